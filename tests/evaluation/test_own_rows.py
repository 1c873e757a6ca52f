"""A policy that was fitted elsewhere on this very log is noticed, and one that was fitted on other rows is not doubted."""

import json

import numpy as np
import polars as pl
import pytest
from command_line import invoke
from messages import refuses

import counterpoise as cp

pytest.importorskip("sklearn")
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor

CODE = "own-training-rows"
ACTIONS = np.array(["tea", "jam", "milk"])
PARTS = {"context": ["x", "y", "kind"], "action": "action", "reward": "reward", "propensity": "propensity"}


def world(n, seed, *, strength=0.0):
    """Logged at random; clicks are coin flips, unless the contexts matter with some strength."""
    random = np.random.default_rng(seed)
    x, y, kind = random.normal(size=n), random.normal(size=n), random.integers(0, 3, n)
    action = random.integers(0, 3, n)
    rate = 0.4 + strength * (np.tanh(x) * (action - 1) + (kind == action) - 1 / 3) / 2
    return pl.DataFrame(
        {
            "id": np.arange(n) + 1_000_000 * seed,
            "x": x,
            "y": y,
            "kind": pl.Series(np.array(["a", "b", "c"])[kind]),
            "action": pl.Series(ACTIONS[action]),
            "reward": (random.random(n) < rate).astype(float),
            "propensity": np.full(n, 1 / 3),
        }
    )


def numbers(context):
    """A context as the policies below see it."""
    if isinstance(context, np.ndarray):
        context = pl.DataFrame(
            {"x": context[:, 0].astype(float), "y": context[:, 1].astype(float), "kind": context[:, 2]}
        )
    kinds = [(context["kind"] == kind).cast(pl.Float64).alias(kind) for kind in "abc"]
    return np.column_stack([context["x"].to_numpy(), context["y"].to_numpy(), *(kind.to_numpy() for kind in kinds)])


class Greedy:
    """The action with the largest predicted reward, as a data scientist writes it."""

    classes_ = ACTIONS

    def __init__(self, model, log):
        taken = (log["action"].to_numpy()[:, None] == ACTIONS).astype(float)
        self.model = model.fit(np.hstack([numbers(log), taken]), log["reward"].to_numpy())

    def predict_proba(self, context):
        x = numbers(context)
        rows = [np.hstack([x, np.tile(one, (len(x), 1))]) for one in np.eye(3)]
        return np.eye(3)[np.stack([self.model.predict(each) for each in rows], axis=1).argmax(axis=1)]


class Classifier:
    """A soft policy: a classifier of actions, with rewards as weights."""

    def __init__(self, model, log):
        rewarded = log.filter(pl.col("reward") > 0)
        self.model = model.fit(numbers(rewarded), rewarded["action"].to_numpy())
        self.classes_ = self.model.classes_

    def predict_proba(self, context):
        return self.model.predict_proba(numbers(context))


def as_function(policy):
    """The same policy as a function of record batches with the context and the logged action."""

    def probability(batch):
        frame = pl.from_arrow(batch)
        table = policy.predict_proba(frame.select("x", "y", "kind"))
        places = [list(policy.classes_).index(action) for action in frame["action"]]
        return table[np.arange(frame.height), places]

    return probability


FITS = {
    "boosted": lambda log: Greedy(HistGradientBoostingRegressor(random_state=0), log),
    "forest": lambda log: Greedy(RandomForestRegressor(20, random_state=0), log),
    "neighbors": lambda log: Greedy(KNeighborsRegressor(3), log),
    "soft": lambda log: Classifier(RandomForestClassifier(20, random_state=0), log),
}


def caveats(result, target="new"):
    return [caveat for caveat in result.verdict(target).caveats if caveat.code == CODE]


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_a_policy_that_was_fitted_on_these_rows_is_doubted_and_one_of_other_rows_is_not(name, strength):
    log = world(2500, 1, strength=strength)
    own, honest = FITS[name](log), FITS[name](world(2500, 2, strength=strength))
    result = cp.evaluate(log, **PARTS, target={"own": own, "honest": honest})
    (caveat,) = caveats(result, "own")
    assert result.verdict("own").verdict == "caution"
    assert caveat.numbers["flattery"] > 2 * caveat.numbers["error"]
    assert not caveats(result, "honest")


def test_flattery_is_measured():
    """With coin flips, all that the policy seems to gain is flattery."""
    log = world(2500, 3)
    result = cp.evaluate(log, **PARTS, target={"new": FITS["forest"](log)})
    (caveat,) = caveats(result)
    gained = result["new", "beta_ips"].value - log["reward"].mean()
    assert caveat.numbers["flattery"] == pytest.approx(gained, rel=0.25)
    assert gained > 10 * result["new", "beta_ips"].stderr


def test_functions_are_asked_about_every_action():
    log = world(3000, 4)
    target = {"new": as_function(FITS["forest"](log)), "other": as_function(FITS["forest"](world(3000, 5)))}
    result = cp.evaluate(log, **PARTS, target=target)
    assert caveats(result, "new")
    assert not caveats(result, "other")


def test_where_contexts_repeat_no_policy_knows_a_single_row():
    log = world(3000, 6).with_columns(pl.col("x", "y").sign())
    assert not caveats(cp.evaluate(log, **PARTS, target={"new": FITS["forest"](log)}))


# -- `trained_on=` settles it ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log():
    return world(2000, 7)


@pytest.fixture(scope="module")
def own(log):
    return FITS["forest"](log)


def test_what_the_message_says_settles_it(log, own):
    """`trained_on=` with these rows keeps the doubt and says how many; other rows, or False, end it."""
    evaluate = lambda **more: cp.evaluate(log, **PARTS, target={"new": own}, **more)  # noqa: E731
    assert "trained_on=False" in caveats(evaluate())[0].do
    (caveat,) = caveats(evaluate(trained_on=log[:1000]))
    assert caveat.numbers["share"] == pytest.approx(0.5, abs=0.05)
    assert not caveats(evaluate(trained_on=world(2000, 8)))
    assert not caveats(evaluate(trained_on=False))


@pytest.mark.parametrize("form", ["mapping", "file", "files", "pandas", "lazy"])
def test_training_rows_come_in_any_form_and_are_matched_by_key_if_there_is_one(form, log, own, tmp_path):
    ids = log[:500].select("id")
    data = {
        "mapping": lambda: {"id": ids["id"].to_list()},
        "file": lambda: (ids.write_csv(tmp_path / "ids.csv"), tmp_path / "ids.csv")[1],
        "files": lambda: (ids.write_parquet(tmp_path / "ids.parquet"), [tmp_path / "ids.parquet"])[1],
        "pandas": lambda: pytest.importorskip("pandas").DataFrame({"id": ids["id"].to_list()}),
        "lazy": ids.lazy,
    }[form]()
    (caveat,) = caveats(cp.evaluate(log, **PARTS, key="id", target={"new": own}, trained_on=data))
    assert caveat.numbers["share"] == pytest.approx(0.25, abs=0.05)
    others = {"id": [10**9, 10**9 + 1]}
    assert not caveats(cp.evaluate(log, **PARTS, key="id", target={"new": own}, trained_on=others))


def test_columns_of_probabilities_are_settled_too(log, own):
    scored = log.with_columns(pi=pl.Series(as_function(own)(log.to_arrow().combine_chunks().to_batches()[0])))
    assert not caveats(cp.evaluate(scored, **PARTS, target={"new": "pi"}))  # a column is not asked about other rows
    assert caveats(cp.evaluate(scored, **PARTS, target={"new": "pi"}, trained_on=log))


def test_every_verb_uses_it_or_refuses_it_in_words(log, own):
    target = {"new": own}
    assert caveats(cp.compare(log, **PARTS, target=target, trained_on=log))
    assert {one.decision for one in cp.rank(log, **PARTS, target=target, trained_on=log)} == {"undecided"}
    for refuse in (cp.sensitivity, cp.distribution):
        with refuses(cp.OptionError):
            refuse(log, **PARTS, target=target, trained_on=log)
    with refuses(cp.OptionError):
        cp.evaluate(log, reward="reward", propensity="propensity", target="propensity", trained_on=log)
    with refuses(cp.OptionError):
        cp.evaluate(log, **PARTS, target=target, trained_on=log.drop("kind"))


# -- `cross_fit=True` fits and evaluates by folds ----------------------------------------------------------------------


def luck(result, target="new"):
    """How far a value of coin flips is from the truth, in standard errors."""
    estimate = result[target, "beta_ips"]
    return (estimate.value - 0.4) / estimate.stderr


def test_cross_fitted_policies_are_not_flattered(log, own):
    assert luck(cp.evaluate(log, **PARTS, target={"new": own})) > 10
    forest = RandomForestRegressor(10, random_state=0)
    logs = [world(1000, seed) for seed in range(20, 28)]
    lucks = [luck(cp.evaluate(each, **PARTS, target={"new": forest}, cross_fit=True)) for each in logs]
    assert abs(np.mean(lucks)) < 4 / np.sqrt(len(logs))


def test_cross_fitted_policies_learn_what_there_is_to_learn():
    log = world(3000, 9, strength=0.4)
    target = {"new": HistGradientBoostingRegressor(random_state=0)}
    (answer,) = cp.rank(log, **PARTS, target=target, cross_fit=True)
    assert answer.decision == "better"


def test_folds_are_of_whole_clusters():
    """Each user is there four times with the same click, so that other rows of the user give it away."""
    once = world(600, 10)
    log = pl.concat([once] * 4).with_columns(user=pl.concat([once["id"]] * 4))
    target = {"new": KNeighborsRegressor(1)}
    apart = cp.evaluate(log, **PARTS, target=target, cross_fit=True, cluster="user")
    assert abs(luck(apart)) < 4
    assert luck(cp.evaluate(log, **PARTS, target=target, cross_fit=True, cluster=False)) > 10


@pytest.mark.filterwarnings("ignore:fetch_arrow_table")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("source", ["lazy", "pandas", "parquet", "duckdb"])
def test_rows_are_cross_fitted_wherever_they_are(source, log, tmp_path):
    data, more = log, {}
    if source == "lazy":
        data = log.lazy()
    elif source == "pandas":
        data = pytest.importorskip("pandas").DataFrame(log.to_dict(as_series=False))
    elif source == "parquet":
        data = tmp_path / "log.parquet"
        log.write_parquet(data)
    else:
        data = pytest.importorskip("duckdb").connect()
        data.register("rows", log.to_arrow())
        data.execute("create table log as select * from rows")
        more = {"table": "log", "key": "id"}
    target = {"new": RandomForestRegressor(5, random_state=0)}
    result = cp.evaluate(data, **PARTS, **more, target=target, cross_fit=True)
    assert abs(luck(result)) < 5
    assert not caveats(result)
    if source != "duckdb":  # whose folds follow the key
        expected = cp.evaluate(log, **PARTS, target=target, cross_fit=True)
        assert result["new", "beta_ips"].value == pytest.approx(expected["new", "beta_ips"].value)


def test_what_cross_fitting_does_not_do_is_said(log, own, tmp_path):
    new = {"new": RandomForestRegressor(5)}
    refused = {
        "not fitted": {"target": {"new": RandomForestClassifier()}},
        "not a policy": {"target": RandomForestRegressor(2).fit(numbers(log), log["reward"])},
        "none of these": {"target": {"new": own}, "cross_fit": True},
        "model=": {"target": new, "cross_fit": True, "model": "ridge"},
        "one reward": {"target": new, "cross_fit": True, "reward": ["reward", "x"], "context": ["y", "kind"]},
        "every day": {"target": new, "cross_fit": True, "state": tmp_path / "state", "batch": "1"},
        "candidates": {"target": new, "cross_fit": True, "candidates": "kind"},
    }
    for message, arguments in refused.items():
        with pytest.raises(cp.OptionError, match=message):
            cp.evaluate(log, **PARTS | arguments)
    for verb in (cp.sensitivity, cp.distribution):
        with refuses(cp.OptionError):
            verb(log, **PARTS, target=new, cross_fit=True)


def test_reports_and_the_command_line_know_training_rows(log, own, tmp_path):
    scored = log.with_columns(pi=pl.Series(as_function(own)(log.to_arrow().combine_chunks().to_batches()[0])))
    scored.write_parquet(tmp_path / "log.parquet")
    log[:1000].select("id").write_csv(tmp_path / "trained.csv")
    words = ["evaluate", str(tmp_path / "log.parquet"), "--target", "pi", "--key", "id", "--json"]
    said = [json.loads(invoke(*words, *more).stdout) for more in ([], ["--trained-on", str(tmp_path / "trained.csv")])]
    found = [{one["code"] for verdict in each["verdicts"] for one in verdict["caveats"]} for each in said]
    assert CODE not in found[0]
    assert CODE in found[1]
    result = cp.evaluate(scored, **PARTS, key="id", target="pi", trained_on=tmp_path / "trained.csv")
    assert result.report(tmp_path / "page.html").exists()
    crossed = cp.evaluate(log, **PARTS, target={"new": RandomForestRegressor(3)}, cross_fit=True)
    assert crossed.report(tmp_path / "crossed.html").exists()


# -- costs: where less is better, what flatters is less, and the best action is the cheapest --------------------------------


@pytest.mark.parametrize("said", [True, None])
def test_a_policy_of_costs_that_was_fitted_on_these_rows_is_doubted(said):
    log = world(3000, 4)
    policy = Greedy(RandomForestRegressor(20, random_state=0), log)
    costs = log.with_columns(cost=1.0 - pl.col("reward"))
    result = cp.evaluate(costs, **(PARTS | {"reward": "cost"}), target={"new": policy}, minimize=said)
    assert CODE in {caveat.code for caveat in result.verdict().caveats}


def test_a_cross_fitted_policy_of_costs_takes_the_cheapest_action():
    random = np.random.default_rng(0)
    action = random.integers(0, 2, 3000)
    log = pl.DataFrame(
        {"x": random.normal(size=3000), "a": action, "cost": action + random.random(3000), "p": np.full(3000, 0.5)}
    )
    asked = {
        "reward": "cost",
        "propensity": "p",
        "action": "a",
        "context": ["x"],
        "cross_fit": True,
        "target": {"new": Ridge()},
    }
    assert cp.evaluate(log, **asked, minimize=True).value == pytest.approx(0.5, abs=0.05)
    assert cp.evaluate(log, **asked, minimize=False).value == pytest.approx(1.5, abs=0.05)
    with refuses(cp.OptionError):
        cp.evaluate(log, **asked)
