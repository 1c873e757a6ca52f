"""`learn_policy` from end to end: every kind of log, every fallback, a budget of time, and contenders of one's own."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from learning import torch
from messages import refuses

import counterpoise as cp
from counterpoise.environments import SyntheticBandit
from counterpoise.errors import LogError, OptionError, TrainingError
from counterpoise.learn import (
    OBJECTIVES,
    Direct,
    LearningWarning,
    Objective,
    PolicyLearner,
    Reduction,
    TwoTower,
    learn_policy,
    load_policy,
    objectives,
    portfolio,
    race,
)
from counterpoise.learn import contenders as networks
from counterpoise.learn import search as searching
from counterpoise.learn import source as sources
from counterpoise.learn.contenders import Network
from counterpoise.learn.forest import ForestLearner

linear = pytest.importorskip("sklearn.linear_model")
LOG = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(1500)
ARRAYS = {"context": LOG.context, "action": LOG.action, "reward": LOG.reward, "propensity": LOG.propensity}
CONTEXT = [f"context_{k}" for k in range(5)]
NAMES = {"context": CONTEXT, "action": "action", "reward": "reward", "propensity": "propensity"}
QUICK = [Network("linear", "beta_ips", hidden=(), epochs=1, imitation=0.03), ForestLearner(trees=10)]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(networks, "LEAST", 60)
    monkeypatch.setattr(
        searching, "imitation", lambda: Network("imitation", "imitation", hidden=(8,), epochs=1, rate=0.05)
    )


class Recording:
    """A contender of one's own: a classifier of scikit-learn, and a list of the rows it was given."""

    name = "my classifier"
    temperatures = (1.0, 0.0)

    def __init__(self):
        self.given = []

    def fit(self, rest, seed):
        self.given.append(rest.rows)
        rows = rest.rows
        weight = rows.reward.numpy() / rows.propensity.numpy()
        return linear.LogisticRegression().fit(rows.context.numpy(), rows.action.numpy(), sample_weight=weight)


def little_exploration(rows=1500):
    """A logging policy that is right and takes its action in 99 rows of 100."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 2))
    best = (x[:, 0] > 0).astype(int)
    action = np.where(random.random(rows) < 0.99, best, 1 - best)
    reward = (random.random(rows) < np.where(action == best, 0.8, 0.1)).astype(float)
    return {"context": x, "action": action, "reward": reward, "propensity": np.where(action == best, 0.99, 0.01)}


def test_a_forest_alone_is_judged_and_handed_out():
    found = cp.learn_policy(**ARRAYS, contenders=[ForestLearner(trees=10)], minutes=None)
    assert found.name == "forest"
    assert found.result[found.result.targets[0], "lift"].value > 0


def test_what_is_found_is_better_and_says_so(tmp_path):
    found = learn_policy(**ARRAYS, contenders=QUICK, minutes=None)
    assert (found.kind, found.rejected, found.skipped) == ("learned", None, {})
    assert LOG.value(found.predict_proba) > LOG.reward.mean() + 0.1
    assert {one.name for one in found.leaderboard} == {"linear", "forest"}
    assert found.name == found.leaderboard[0].name
    assert found.policy.temperature == found.leaderboard[0].temperature
    assert found.result["fold policies", "lift"].interval.lower > 0
    assert len(found.policies) == 3
    assert 0 < found.fit_seconds < found.seconds
    assert found.mean_reward == pytest.approx(LOG.reward.mean())
    said = str(found)
    assert f"{found.name.capitalize()} is best. It would have earned" in said
    assert all(one.name in said for one in found.leaderboard)
    numbers = json.loads(json.dumps(found.to_dict()))
    assert numbers["value"] == found.result["fold policies", "beta_ips"].value
    assert [one["name"] for one in numbers["leaderboard"]] == [one.name for one in found.leaderboard]
    found.save(tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    np.testing.assert_array_equal(loaded.predict_proba(LOG.context), found.predict_proba(LOG.context))
    action, propensity = found.policy.sample(LOG.context, seed=0)
    assert len(action) == len(propensity) == 1500


def test_the_portfolio_depends_on_the_actions_and_every_policy_in_it_can_be_saved(tmp_path):
    assert [one.name for one in portfolio(4)] == [
        "direct linear", "softmax", "direct network", "forest", "log smoothing", "large direct network", "reduction to trees",
    ]  # fmt: skip
    assert not any("tree" in one.name or one.name == "forest" for one in portfolio(1000))
    rest = searching.Race(*_race(), 3, 4, 0)
    for place, one in enumerate(portfolio(4)):
        policy = rest.learn(one, None)
        policy.save(tmp_path / str(place))
        np.testing.assert_array_equal(
            load_policy(tmp_path / str(place)).predict_proba(LOG.context), policy.predict_proba(LOG.context)
        )


def _race():
    opened = searching._open(cp.Log(**{name: part[:300] for name, part in ARRAYS.items()}), 3, 0)
    return opened.source.chunk(0), opened.folds


def test_frames_files_and_arrays_give_the_same_policy(tmp_path):
    frame = LOG.frame()
    frame[:700].write_parquet(tmp_path / "1.parquet")
    frame[700:].write_parquet(tmp_path / "2.parquet")
    arrays = learn_policy(**ARRAYS, contenders=QUICK[:1], seed=3)
    for log in (frame, [tmp_path / "1.parquet", tmp_path / "2.parquet"], cp.Log(frame, **NAMES)):
        names = {} if isinstance(log, cp.Log) else NAMES
        found = learn_policy(log, **names, contenders=QUICK[:1], seed=3)
        np.testing.assert_array_equal(found.predict_proba(LOG.context), arrays.predict_proba(LOG.context))
        assert found.policy.context_ == tuple(CONTEXT)
        assert found.result["fold policies", "beta_ips"].value == arrays.result["fold policies", "beta_ips"].value
    assert arrays.policy.context_ == ()
    other = learn_policy(**ARRAYS, contenders=QUICK[:1], seed=4)
    assert (other.predict_proba(LOG.context) != arrays.predict_proba(LOG.context)).any()


def test_actions_keep_their_ids(tmp_path):
    frame = LOG.frame().with_columns(action=pl.col("action") * 10 + 5)
    plain = learn_policy(LOG.frame(), **NAMES, contenders=QUICK[1:])
    for contenders in (QUICK[1:], [Recording()]):
        found = learn_policy(frame, **NAMES, contenders=contenders, fallback="warn")
        assert found.classes_.tolist() == [5, 15, 25, 35]
        result = cp.evaluate(frame, **NAMES, target=found)
        table = found.predict_proba(LOG.context)
        by_hand = cp.evaluate(reward=LOG.reward, propensity=LOG.propensity, target=table[np.arange(1500), LOG.action])
        assert result[result.targets[0], "beta_ips"].value == pytest.approx(by_hand["target", "beta_ips"].value)
        assert set(found.policy.sample(LOG.context)[0].tolist()) <= {5, 15, 25, 35}
    same = learn_policy(frame, **NAMES, contenders=QUICK[1:])
    np.testing.assert_array_equal(same.predict_proba(LOG.context), plain.predict_proba(LOG.context))
    same.save(tmp_path / "policy")
    assert load_policy(tmp_path / "policy").classes_.tolist() == [5, 15, 25, 35]


def whole(given, key):
    """Whether rows with the same key are in one fold: a fit is given all of them or none."""
    names, total = np.unique(key(given[-1]), return_counts=True)
    parts = [np.unique(key(rows), return_counts=True) for rows in given[:-1]]
    return all((counts == total[np.searchsorted(names, keys)]).all() for keys, counts in parts)


def test_rows_of_one_cluster_and_of_one_context_stay_together():
    frame = LOG.frame().with_columns(user=pl.Series(np.random.default_rng(0).integers(150, size=1500)).cast(pl.String))
    mine = Recording()
    learn_policy(frame, **NAMES, cluster="user", contenders=[mine])
    assert [len(rows) < 1500 for rows in mine.given] == [True, True, True, False]
    assert whole(mine.given, lambda rows: rows.unit.numpy())
    assert not whole(mine.given, lambda rows: rows.context[:, 0].numpy() > 0)
    mine = Recording()
    alike = pl.concat([LOG.frame()[:500]] * 3).with_columns(LOG.frame()["action", "reward", "propensity"])
    learn_policy(alike, **NAMES, contenders=[mine])
    assert whole(mine.given, lambda rows: rows.context[:, 0].numpy())


def test_a_policy_that_is_not_surely_better_is_not_handed_out_in_silence():
    log = little_exploration()
    found = learn_policy(**log, contenders=QUICK)
    assert (found.kind, found.name, found.policy.temperature) == ("imitation", "imitation", 1.0)
    assert "Nothing was reliably better than the logging policy, so this policy imitates it." in found.summary()
    assert found.rejected is not None
    assert found.result.targets == ("imitating fold policies",)
    table = found.predict_proba(log["context"])
    assert table[np.arange(1500), (log["context"][:, 0] > 0).astype(int)].mean() > 0.8
    with pytest.warns(LearningWarning, match="not reliably better than the logging policy"):
        warned = learn_policy(**log, contenders=QUICK, fallback="warn")
    assert warned.rejected is None
    assert warned.result.targets == ("fold policies",)
    with refuses(TrainingError):
        learn_policy(**log, contenders=QUICK, fallback="raise")


def test_ctrl_c_while_an_imitation_is_judged_hands_out_what_was_learned(monkeypatch):
    evaluate_rows = searching.evaluate_rows

    def stopped(*rows, name, **options):
        if name.startswith("imitating"):
            raise KeyboardInterrupt
        return evaluate_rows(*rows, name=name, **options)

    monkeypatch.setattr(searching, "evaluate_rows", stopped)
    with pytest.warns(LearningWarning, match="not reliably better"):
        found = learn_policy(**little_exploration(), contenders=QUICK[:1])
    assert (found.kind, found.name, found.rejected) == ("learned", "linear", None)
    assert found.result.targets == ("fold policies",)


@pytest.mark.parametrize("factor", [0.01, 1e-6])
def test_propensities_that_are_too_small_promise_nothing(factor):
    """As percentages of percentages are, or what comes of logging a rounded number."""
    found = learn_policy(**ARRAYS | {"propensity": LOG.propensity * factor}, contenders=QUICK, progress=False)
    assert found.kind == "imitation"
    assert "The mean weight is" in str(found)


def test_time_that_is_too_short_leaves_out_all_but_the_first_contender():
    began = time.perf_counter()
    found = learn_policy(**ARRAYS, contenders=[*QUICK, Recording()], minutes=1e-6)
    assert found.seconds < time.perf_counter() - began
    assert sorted(one.name for one in found.leaderboard) == ["linear"]
    assert found.skipped == dict.fromkeys(["forest", "my classifier"], "there was no time left to try it.")
    assert "forest: there was no time left to try it." in str(found)


def test_an_imitation_is_handed_out_however_late_it_is():
    found = learn_policy(**little_exploration(), contenders=QUICK[:1], minutes=1e-6)
    assert (found.kind, found.result.targets) == ("imitation", ("imitating fold policies",))


def test_ctrl_c_during_the_imitation_leaves_what_was_learned(monkeypatch):
    stopping = Stopping(2)
    stopping.name = "imitation"
    monkeypatch.setattr(searching, "imitation", lambda: stopping)
    with pytest.warns(LearningWarning, match="not reliably better than the logging policy"):
        found = learn_policy(**little_exploration(), contenders=QUICK[:1], minutes=None)
    assert (found.kind, found.name) == ("learned", "linear")


class Slow(Recording):
    """The same, but every row takes a while, and the clock knows."""

    name = "slow"

    def __init__(self, clock, per_row):
        super().__init__()
        self.clock, self.per_row = clock, per_row

    def fit(self, rest, seed):
        self.clock[0] += self.per_row * len(rest.rows)
        return super().fit(rest, seed)


def test_a_model_that_cannot_be_interrupted_learns_from_as_many_rows_as_there_is_time_for(monkeypatch):
    log = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(30_000)
    parts = {"context": log.context, "action": log.action, "reward": log.reward, "propensity": log.propensity}
    clock = [0.0]
    for module in (race, searching):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    slow = Slow(clock, 1e-3)  # 90 s for the fits in folds and the last one
    found = learn_policy(**parts, contenders=[slow], minutes=0.5)
    assert clock[0] < 1.2 * 30
    assert len(slow.given[-1]) < 30_000
    assert f"There was time for {len(slow.given[-1]):,} of 30,000 rows in its last fit" in str(found)
    assert log.value(found.predict_proba) > log.reward.mean() + 0.1
    assert learn_policy(**ARRAYS, contenders=[Slow(clock, 1e-3)], minutes=None).cut == ""


@pytest.mark.parametrize(
    "one", [Network("linear", "beta_ips", hidden=(8,), epochs=10**5, imitation=0.03), ForestLearner(trees=10**5)]
)
def test_networks_and_forests_do_as_much_as_there_is_time_for(one):
    """Left alone, each of these would go on for days."""
    found = learn_policy(**ARRAYS, contenders=[one], minutes=0.02)
    assert found.cut
    assert LOG.value(found.predict_proba) > LOG.reward.mean()


def test_a_network_whose_first_steps_took_all_its_time_ends_with_one_more():
    """Timing them once outlasted the end on a busy machine, and then nothing stopped the other 300."""
    rows = searching._open(cp.Log(**ARRAYS), 3, 0).source.memory
    rest = race.Rest(rows, 4, seconds=1e-9)
    Network("linear", "beta_ips", hidden=(8,), epochs=300).fit(rest, 0)
    assert rest.cuts == ["0.1% of its training"]


class Stopping(Recording):
    """A contender during whose n-th fit somebody presses Ctrl-C."""

    name = "stopping"

    def __init__(self, fit):
        super().__init__()
        self.stops = fit

    def fit(self, rest, seed):
        found = super().fit(rest, seed)
        if len(self.given) == self.stops:
            raise KeyboardInterrupt
        return found


def test_ctrl_c_hands_out_the_best_so_far():
    found = learn_policy(**ARRAYS, contenders=[QUICK[0], Stopping(2), QUICK[1]], minutes=None)
    assert found.name == "linear"
    assert found.skipped == {
        "stopping": "the search was stopped while it was learning.",
        "forest": "the search was stopped before it.",
    }
    assert LOG.value(found.predict_proba) > LOG.reward.mean() + 0.1
    last = learn_policy(**ARRAYS, contenders=[Stopping(4)], minutes=None)
    assert "learned from 67% of the rows" in str(last)
    np.testing.assert_array_equal(last.predict_proba(LOG.context), last.policies[0].predict_proba(LOG.context))
    with pytest.raises(KeyboardInterrupt):  # nothing is there to hand out
        learn_policy(**ARRAYS, contenders=[Stopping(2), QUICK[0]], minutes=None)


def test_a_single_action_leaves_nothing_to_choose():
    with refuses(LogError):
        learn_policy(**ARRAYS | {"action": np.full(1500, 3), "propensity": np.ones(1500)})


def test_rewards_far_from_zero_are_learned_from_like_any_others():
    plain = learn_policy(**ARRAYS, contenders=QUICK[:1], minutes=None)
    far = learn_policy(**ARRAYS | {"reward": LOG.reward + 1e8}, contenders=QUICK[:1], minutes=None)
    np.testing.assert_allclose(far.predict_proba(LOG.context), plain.predict_proba(LOG.context), atol=1e-5)
    assert far.mean_reward == pytest.approx(1e8 + LOG.reward.mean(), rel=0, abs=1e-6)
    assert far.leaderboard[0].value == pytest.approx(1e8 + plain.leaderboard[0].value, rel=0, abs=1e-6)
    assert far.kind == plain.kind == "learned"
    with refuses(LogError):
        PolicyLearner().fit(**ARRAYS | {"reward": LOG.reward + 1e8})


@pytest.mark.parametrize("learn", [learn_policy, lambda *log, **parts: PolicyLearner().fit(*log, **parts)])
def test_columns_that_are_not_known_before_the_choice_are_refused(learn):
    frame = LOG.frame().with_columns(clicked=pl.when(pl.col("reward") > 0).then(pl.lit("yes")).otherwise(pl.lit("no")))
    with refuses(LogError):
        learn(frame, **NAMES | {"context": [*CONTEXT, "clicked"]})
    for name in ("reward", "action"):
        with refuses(OptionError):
            learn(frame, **NAMES | {"context": [*CONTEXT, name]})
    with refuses(LogError):
        learn(**ARRAYS | {"context": np.column_stack([LOG.context, LOG.reward])})


def test_an_estimate_that_no_reward_allows_is_called_impossible():
    """Propensities that are too small by a factor of 3 promise three times the clicks."""
    found = learn_policy(**ARRAYS | {"propensity": LOG.propensity / 3}, contenders=QUICK, minutes=None)
    assert found.kind == "imitation"
    assert found.reward_range == (0.0, 1.0)
    assert "per row is impossible, as all rewards are between 0 and 1: the propensities are wrong" in str(found)
    assert "impossible" not in str(learn_policy(**ARRAYS, contenders=QUICK[:1], minutes=None))


def test_objectives_take_a_model():
    reduced = learn_policy(**ARRAYS, objective="reduction", model=linear.LogisticRegression())
    direct = learn_policy(**ARRAYS, objective="direct", model=linear.Ridge(), fallback="warn")
    for found, name in ((reduced, "reduction"), (direct, "direct")):
        assert [one.name for one in found.leaderboard] == [name]
    assert LOG.value(reduced.predict_proba) > LOG.reward.mean()
    with refuses(OptionError):
        reduced.save("policy")


def test_a_model_that_cannot_be_fitted_is_an_error():
    with refuses(TrainingError):
        learn_policy(**ARRAYS, objective="reduction", model=linear.LogisticRegression(C=-1))


def test_contenders_of_ones_own_are_tried_like_any_other():
    found = learn_policy(**ARRAYS, contenders=[Recording(), Reduction(linear.LogisticRegression()), Direct("ridge")])
    assert found.name in ("my classifier", "reduction", "direct")
    assert LOG.value(found.predict_proba) > LOG.reward.mean()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"minutes": 0}, "minutes=0 must be above 0"),
        ({"minutes": "1"}, "minutes='1' must be above 0"),
        ({"minutes": float("nan")}, "minutes=nan must be above 0"),
        ({"minutes": True}, "minutes=True must be above 0"),
        ({"folds": 1}, "folds must be a whole number of at least 2"),
        ({"folds": 2.5}, "folds must be a whole number of at least 2"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"level": 95}, "level"),
        ({"fallback": "ignore"}, "fallback='ignore' is not known; choose from imitate, warn, raise"),
        ({"contenders": []}, "contenders= must be a list of contenders; found"),
        ({"contenders": QUICK[0]}, "contenders= must be a list of contenders; found Network"),
        (
            {"contenders": [linear.Ridge()]},
            r"contenders= must have a name, temperatures and fit; Ridge\(\) does not. Wrap",
        ),
        ({"contenders": [Direct("ridge", temperatures=())]}, "contender 'direct' needs temperatures of 0 or more"),
        ({"contenders": [Direct("ridge", temperatures=(-1,))]}, "contender 'direct' needs temperatures of 0 or more"),
        ({"objective": "magic"}, "no objective 'magic'; choose from reduction, direct, beta_ips"),
        ({"contenders": ["magic"]}, "no objective 'magic'; choose from beta_ips"),
        ({"objective": "dr"}, "'dr' needs a reward model's predictions.*Use PolicyLearner"),
        ({"objective": "direct", "contenders": QUICK}, "objective= and contenders= exclude each other"),
        ({"objective": "reduction"}, "a reduction needs a classifier. Pass one as model="),
        ({"model": "ridge"}, "model= needs objective=, 'reduction' or 'direct'"),
        ({"reward": None}, "reward"),
    ],
)
def test_odd_options_are_refused(options, says):
    with pytest.raises(OptionError, match=says):
        learn_policy(**(ARRAYS | options))


def test_logs_without_enough_rows_are_refused():
    few = {name: part[:2] for name, part in ARRAYS.items()} | {"reward": np.array([0.0, 1.0])}
    with refuses(LogError):
        learn_policy(**few)
    with refuses(LogError):
        learn_policy(LOG.frame().with_columns(user=pl.lit("a")), **NAMES, cluster="user")
    with refuses(LogError):
        learn_policy(**(ARRAYS | {"reward": np.ones(1500)}))
    with refuses(LogError):
        learn_policy(**(ARRAYS | {"propensity": np.zeros(1500)}))


# -- what the training loop takes, a search takes ------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch):
    """A registry that forgets what a test put into it."""
    monkeypatch.setattr(objectives, "OBJECTIVES", dict(OBJECTIVES))


def test_a_registered_objective_is_a_contender_by_its_name(registry):
    calls = []

    def clipped(target, reward, propensity):
        calls.append(len(target))
        return ((target / propensity).clamp(max=10) * reward).mean()

    objectives.register("clipped", Objective(clipped))
    learner = PolicyLearner("clipped", epochs=2, batch_size=256, learning_rate=0.05, folds=None).fit(**ARRAYS)
    assert LOG.value(learner.predict_proba) > LOG.reward.mean()
    found = learn_policy(**ARRAYS, contenders=["clipped", QUICK[0]], minutes=None)
    assert {standing.name for standing in found.leaderboard} == {"clipped", "linear"}
    assert calls
    alone = learn_policy(**ARRAYS, objective="clipped", minutes=None)
    assert [standing.name for standing in alone.leaderboard] == ["clipped"]
    assert LOG.value(alone.predict_proba) > LOG.reward.mean()


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in ("dr", "imitation")])
def test_every_objective_learns_as_a_contender(name):
    rows = searching._open(cp.Log(**ARRAYS), 3, 0).source.memory
    policy = Network(name, name, hidden=(16,), epochs=5).fit(race.Rest(rows, 4), 0)
    assert LOG.value(policy.predict_proba) > LOG.reward.mean()


def test_where_rewards_must_not_be_negative_the_lowest_is_taken_away():
    network = Network("smooth", "log_smoothing", hidden=(), epochs=1)
    rows = searching._open(cp.Log(**ARRAYS), 3, 0).source.memory
    plain, lower = (network.fit(race.Rest(replace(rows, reward=rows.reward - away), 4), 0) for away in (0.0, 4.0))
    np.testing.assert_allclose(plain.predict_proba(LOG.context), lower.predict_proba(LOG.context), atol=1e-4)


def with_candidates(rows=1500):
    """A log of ten actions, of which every row has four to choose from, with features by which some are better."""
    random = np.random.default_rng(0)
    features, x = random.normal(size=(10, 2)), random.normal(size=(rows, 2))
    lists = np.argsort(random.random((rows, 10)), axis=1)[:, :4]
    action = lists[np.arange(rows), random.integers(4, size=rows)]
    good = 1 / (1 + np.exp(-2 * (x * features[action]).sum(1)))
    columns = {"x0": x[:, 0], "x1": x[:, 1], "action": action, "reward": (random.random(rows) < good).astype(float)}
    log = pl.DataFrame(columns).with_columns(propensity=pl.lit(0.25), pool=pl.Series(lists.tolist()))
    items = pl.DataFrame({"action": np.arange(10), "f0": features[:, 0], "f1": features[:, 1]})
    return log, items, {"context": ["x0", "x1"], "action": "action", "reward": "reward", "propensity": "propensity"}


def test_candidates_are_what_a_policy_chooses_among(tmp_path):
    log, _, names = with_candidates()
    found = learn_policy(log, **names, candidates="pool", contenders=[*QUICK, Direct("ridge")], minutes=None)
    assert found.skipped == {"forest": "it cannot learn to choose among the candidates of a row."}
    assert (found.kind, found.policy.candidates_, found.candidates_) == ("learned", "pool", "pool")
    table = found.predict_proba(log.select("x0", "x1"), log["pool"].to_list())
    allowed = np.zeros((1500, 10), dtype=bool)
    np.put_along_axis(allowed, np.array(log["pool"].to_list()), True, axis=1)
    assert (table[~allowed] == 0).all()
    result = cp.evaluate(log, **names, candidates="pool", target={"found": found})
    probability = table[np.arange(1500), log["action"].to_numpy()]
    by_hand = cp.evaluate(reward=log["reward"].to_numpy(), propensity=np.full(1500, 0.25), target=probability)
    assert result["found", "beta_ips"].value == pytest.approx(by_hand["target", "beta_ips"].value, rel=1e-5)
    # in the race, too: weights have mean 1 only where they are those of a choice among the candidates
    diagnostics = found.result.diagnostics("fold policies")
    assert diagnostics.mean_weight == pytest.approx(1, abs=0.15)


def test_networks_learn_from_the_features_of_items():
    log, items, names = with_candidates(3000)
    x = np.random.default_rng(1).normal(size=(2000, 2))
    good = x @ items.select("f0", "f1").to_numpy().T
    new = int(np.bincount(good.argmax(1)).argmax())  # the action that is best most often, and was never taken
    contenders = [
        Network("direct", "predicted_reward", hidden=(), epochs=10, rate=0.02, temperatures=(0.0,)),
        "beta_ips",
    ]
    found = learn_policy(
        log.filter(pl.col("action") != new),
        **names,
        candidates="pool",
        items=items,
        contenders=contenders,
        minutes=None,
    )
    assert isinstance(found.policy, TwoTower)
    assert found.classes_.tolist() == list(range(10))
    chosen = found.predict_proba(pl.DataFrame({"x0": x[:, 0], "x1": x[:, 1]}), np.ones((2000, 10), bool)).argmax(1)
    assert good[np.arange(2000), chosen].mean() > 0.8 * good.max(1).mean()
    assert (chosen == new).sum() > 0.5 * (good.argmax(1) == new).sum()
    with refuses(OptionError):
        learn_policy(log, **names, items=items, contenders=[Direct("ridge")])


def test_files_larger_than_memory_are_raced_on_a_sample_and_learned_from_as_a_whole(tmp_path, monkeypatch):
    whole = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(6000)
    frame = whole.frame().with_columns(action=pl.format("action {}", "action"), day=pl.Series(np.arange(6000) % 10))
    frame.write_parquet(tmp_path / "log.parquet")
    monkeypatch.setattr(searching, "SAMPLE", 2000)
    monkeypatch.setattr(sources, "CHUNK", 1024)
    steps, plain = [], networks.batches
    monkeypatch.setattr(networks, "batches", lambda *args: (steps.append(b) or b for b in plain(*args)))
    parts = NAMES | {"where": "day < 9"}
    found = learn_policy(tmp_path / "log.parquet", **parts, contenders=QUICK[:1], minutes=None)
    assert (found.kind, found.cut) == ("learned", "")
    assert 1700 < found.result.n < 2300
    assert found.classes_.tolist() == [f"action {k}" for k in range(4)]
    assert found.mean_reward == pytest.approx(frame.filter(pl.col("day") < 9)["reward"].mean(), rel=1e-6)
    assert whole.value(found.predict_proba) > whole.reward.mean() + 0.1
    # the last fit visits rows of all files: more different ones than the sample has
    last = torch.cat([batch.context[:, 0] for batch in steps[-60:]])
    assert len(torch.unique(last)) > 4000
    for contender in (QUICK[1], Network("whole", "snips", hidden=())):  # which cannot be cut into batches
        sampled = learn_policy(tmp_path / "log.parquet", **parts, contenders=[contender], minutes=None)
        assert f"has learned from a sample of {sampled.result.n:,} of 5,400 rows" in str(sampled)
    limited = learn_policy(tmp_path / "log.parquet", **parts, contenders=QUICK[:1], minutes=0.02)
    assert limited.seconds < 30
