"""A ranker learned from a log of rankings beats the logging policy, and is evaluated on held-out rankings."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from learning import torch
from messages import refuses

import counterpoise as cp
from counterpoise.environments import SyntheticRanking
from counterpoise.errors import LogError, OptionError, TrainingError
from counterpoise.estimators.weighted import beta_ips, ips, snips
from counterpoise.learn import (
    MLP,
    LearningWarning,
    LinearSoftmax,
    PlackettLuce,
    PolicyLearner,
    RankingLearner,
    objectives,
)
from counterpoise.learn.ranking import ListSource
from counterpoise.learn.rows import Split
from counterpoise.learn.steps import LoggedLists
from counterpoise.moments import Moments
from counterpoise.readers import frames

# most logs here are short, and what is learned from them is not reliably better; the last test looks at what is said of that
pytestmark = pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
CONTEXT = ("x0", "x1", "x2")
GIVEN, AT = "item_given_above", "item_at_position"
PARTS = {"slate": "list", "position": "position", "reward": "click", "action": "item", "context": list(CONTEXT)}
BY_GIVEN = PARTS | {"propensity_of": GIVEN, "propensity": "p_given"}
BY_AT = PARTS | {"propensity_of": AT, "propensity": "p_at"}
WEIGHTS = [
    (cp.weights.Cascade(), BY_GIVEN),
    (cp.weights.Standard(), BY_GIVEN),
    (cp.weights.Independent(), BY_AT),
]


def drawn(lists, clicks="cascade", seed=0, **options):
    """A world, and a log of it with a column for each context."""
    world = SyntheticRanking(positions=3, clicks=clicks, seed=seed, **options)
    log = world.draw(lists)
    return world, log.with_columns((pl.col("context") == k).cast(pl.Float64).alias(f"x{k}") for k in range(3))


def ragged(log):
    """The same log, with some lists cut short."""
    return log.filter((pl.col("list") % 5 != 0) | (pl.col("position") < 3))


def a_policy(slots=3, seed=1):
    torch.manual_seed(seed)
    return PlackettLuce(MLP(3, 8, hidden=(4,)), slots)


def learner(**options):
    return RankingLearner(**{"epochs": 2, "batch_size": 128, "learning_rate": 0.03, "progress": False} | options)


def parameters_of(found):
    return torch.cat([parameter.detach().flatten() for parameter in found.policy_.parameters()])


@pytest.mark.parametrize(("weight", "parts"), WEIGHTS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("discount", [None, "dcg"])
def test_held_out_lists_are_measured_as_evaluate_measures_them(weight, parts, discount):
    log, policy = ragged(drawn(400)[1]), a_policy()
    source = ListSource(cp.Log(log, **parts, discount=discount), weight, Split(0.0, 0))
    lists, _ = source.look(0)
    parts_of_it = [lists.take(slice(0, 150)), lists.take(slice(150, None))]
    logged = LoggedLists(policy, weight, source.shares)
    found = sum((moments for moments, *_ in logged.moments(parts_of_it)), Moments.empty())
    expected = cp.evaluate(log, **parts, discount=discount, target={"new": policy}, weight=weight)
    assert found.n == expected.n == 400
    for name, estimator in {"beta_ips": beta_ips, "snips": snips, "ips": ips}.items():
        assert estimator(found).value == pytest.approx(expected["new", name].value, rel=1e-5)
        assert estimator(found).stderr == pytest.approx(expected["new", name].stderr, rel=1e-4)
    held_out = logged.held_out(parts_of_it, None, 0.9)
    whole = cp.evaluate(expected.moments, level=0.9)
    assert held_out.effective_sample_size == pytest.approx(expected.diagnostics().effective_sample_size, rel=1e-4)
    assert held_out.value == pytest.approx(whole["new", "beta_ips"].value, rel=1e-5)
    if expected.diagnostics().carrying_rows < 7:
        assert held_out.interval.width == np.inf
    else:  # the same but for the half rows at either end
        assert held_out.interval.width == pytest.approx(whole["new", "beta_ips"].interval.width, rel=0.1)


@pytest.mark.parametrize(("kind", "parts"), [("given", BY_GIVEN), ("at", BY_AT)])
def test_a_policy_is_a_target_whatever_the_order_and_the_batches_of_rows(kind, parts, tmp_path, monkeypatch):
    world, log = drawn(300)
    policy = PlackettLuce(LinearSoftmax(3, 8), 3)
    with torch.no_grad():
        policy.scores.scores.weight.copy_(torch.as_tensor(world.scores["new"].T))
    policy.context_ = CONTEXT
    expected = cp.evaluate(log, **parts, target=f"new_{kind}")
    found = cp.evaluate(log, **parts, target={"new": policy})
    assert found["new", "beta_ips"].value == pytest.approx(expected[f"new_{kind}", "beta_ips"].value, rel=1e-5)
    mixed = log.sample(fraction=1.0, shuffle=True, seed=2).with_columns(pl.format("list {}", "list").alias("list"))
    monkeypatch.setattr(frames, "BATCH", 7)
    for data in (mixed, mixed.lazy()):
        again = cp.evaluate(data, **parts, target={"new": policy})
        assert again["new", "beta_ips"].value == pytest.approx(found["new", "beta_ips"].value, rel=1e-9)
    with pytest.raises(OptionError, match="was learned from the columns"):
        cp.evaluate(log, **parts | {"context": ["x1", "x0", "x2"]}, target={"new": policy})
    with pytest.raises(OptionError, match="this log has no rankings"):
        cp.evaluate(log, reward="click", propensity="p_given", action="item", context=["x0"], target={"new": policy})


def test_learned_rankers_are_targets_too_from_a_file_as_well(tmp_path):
    log = drawn(2_000)[1]
    found = learner().fit(log, **BY_GIVEN)
    found.save(tmp_path / "ranker.safetensors")
    named = {"learner": found, "policy": found.policy_, "file": tmp_path / "ranker.safetensors"}
    result = cp.evaluate(log, **BY_GIVEN, target=named)
    values = {result[name, "beta_ips"].value for name in named}
    assert len(values) == 1
    assert found.predict(np.eye(3)).shape == found.sample(np.eye(3), seed=0).items.shape == (3, 3)


def test_the_learned_ranker_beats_logging_by_the_verdict_and_in_truth():
    world, log = drawn(12_000)
    found = learner(holdout=0.25, learning_rate=0.01, epochs=4).fit(log, **BY_GIVEN)
    assert found.result_.verdict().verdict == "ok"
    assert found.result_["learned", "lift"].interval.lower > 0
    with torch.no_grad():
        scores = found.policy_(torch.eye(3)).numpy()
    (old, old_error), (new, new_error) = world.value("logging", draws=20_000), world.value(scores, draws=20_000)
    assert new - old > 0.03 + 5 * np.hypot(old_error, new_error)


def test_lists_that_judge_neither_train_nor_choose():
    log = drawn(1_500)[1].with_columns(user=pl.col("list") // 3)
    parts = BY_GIVEN | {"cluster": "user"}
    source = ListSource(cp.Log(log, **parts), cp.weights.Cascade(), Split(0.1, 2**31))
    source.look(0)
    judged = np.unique(source.apart["user"])
    assert 0.05 < len(judged) / 500 < 0.15
    assert len(source.apart["list"]) == 9 * len(judged)  # whole users
    assert source.rows == 1_500 - 3 * len(judged)
    other = log.with_columns(
        click=pl.when(pl.col("user").is_in(judged.tolist())).then(1 - pl.col("click")).otherwise(pl.col("click"))
    )
    one, two = (learner().fit(each, **parts) for each in (log, other))
    torch.testing.assert_close(parameters_of(one), parameters_of(two), rtol=0, atol=0)
    assert one.result_["learned", "beta_ips"].value != two.result_["learned", "beta_ips"].value
    assert one.result_.n == 3 * len(judged)
    assert not hasattr(learner(holdout=0).fit(log, **parts), "result_")


@pytest.mark.parametrize("objective", ["ips", "running_beta_ips", "lambda_ips", "snips", "value_beta_ips"])
def test_every_objective_learns(objective):
    options = {"batch_size": None, "epochs": 20} if objective in ("snips", "value_beta_ips") else {}
    log = drawn(2_000)[1]
    found = learner(objective=objective, banditnet_lambda=0.2, **options).fit(log, **BY_GIVEN)
    target = {"start": PlackettLuce(LinearSoftmax(3, 8), 3), "learned": found}
    with torch.no_grad():
        target["start"].scores.scores.weight.zero_()
    result = cp.evaluate(log, **BY_GIVEN, target=target)
    assert result["learned", "beta_ips"].value > result["start", "beta_ips"].value


def test_files_short_lists_text_ids_and_gaps_in_item_ids(tmp_path):
    log = ragged(drawn(1_000)[1]).with_columns(pl.format("list {}", "list").alias("list"), item=10 * pl.col("item"))
    log.write_parquet(tmp_path / "log.parquet")
    frame, files, shuffled = (
        learner().fit(data, **BY_GIVEN)
        for data in (log, tmp_path / "log.parquet", log.sample(fraction=1.0, shuffle=True, seed=1))
    )
    assert frame.classes_.tolist() == list(range(0, 80, 10))
    assert set(np.unique(frame.predict(np.eye(3)))) <= set(frame.classes_)
    for other in (files, shuffled):
        torch.testing.assert_close(parameters_of(frame), parameters_of(other), rtol=0, atol=0)


def test_arrays_and_expressions_are_logs_too():
    log = drawn(1_000)[1]
    expected = learner().fit(log, **BY_GIVEN)
    arrays = {part: log[name].to_numpy() for part, name in BY_GIVEN.items() if part not in ("context", "propensity_of")}
    found = learner().fit(**arrays, context=log.select(CONTEXT).to_numpy(), propensity_of=GIVEN)
    computed = [f"CAST(context = {k} AS DOUBLE)" for k in range(3)]
    other = learner().fit(log, **BY_GIVEN | {"context": computed})
    for one in (found, other):
        torch.testing.assert_close(parameters_of(one), parameters_of(expected), rtol=0, atol=0)
        assert one.result_["learned", "ips"].value == pytest.approx(expected.result_["learned", "ips"].value)
    assert (found.context_, other.context_) == ((), tuple(computed))


def test_a_ranker_of_your_own_is_a_target():
    class Uniform:
        def list_probabilities(self, context, items, propensity_of):
            return np.where(items >= 0, 1 / (8 - np.arange(items.shape[1])), 1.0)

    log = drawn(300)[1].with_columns(uniform=1 / (9 - pl.col("position")))
    found = cp.evaluate(log, **BY_GIVEN, target={"mine": Uniform(), "column": "uniform"})
    assert found["mine", "beta_ips"].value == pytest.approx(found["column", "beta_ips"].value)


def test_a_policy_that_is_passed_is_left_alone_and_fitting_twice_is_fitting_once():
    log, policy = drawn(1_000)[1], a_policy()
    before = torch.cat([parameter.detach().flatten().clone() for parameter in policy.parameters()])
    found = learner(policy=policy).fit(log, **BY_GIVEN)
    one = parameters_of(found)
    assert (one != before).any()
    torch.testing.assert_close(parameters_of(found.fit(log, **BY_GIVEN)), one, rtol=0, atol=0)
    torch.testing.assert_close(torch.cat([p.detach().flatten() for p in policy.parameters()]), before, rtol=0, atol=0)


def test_a_run_resumes_as_if_it_had_never_stopped(tmp_path):
    log = drawn(1_000)[1]
    whole = learner(objective="running_beta_ips", epochs=4).fit(log, **BY_GIVEN)
    checkpoint = tmp_path / "run.safetensors"
    for epochs in (2, 4):
        found = learner(objective="running_beta_ips", epochs=epochs, checkpoint=checkpoint).fit(log, **BY_GIVEN)
    assert found.history_ == whole.history_
    torch.testing.assert_close(parameters_of(found), parameters_of(whole), rtol=0, atol=0)
    with refuses(cp.errors.PolicyFileError):
        learner(objective="running_beta_ips", epochs=4, checkpoint=checkpoint).fit(
            log, weight=cp.weights.Standard(), **BY_GIVEN
        )


def test_bad_lists_are_refused_or_left_out_as_a_whole():
    log = drawn(1_000)[1]
    bad = log.with_columns(
        p_given=pl.when((pl.col("list") == 3) & (pl.col("position") == 2)).then(0.0).otherwise(pl.col("p_given"))
    )
    with refuses(LogError):
        learner().fit(bad, **BY_GIVEN)
    gap = log.filter((pl.col("list") != 3) | (pl.col("position") != 2))
    with refuses(LogError):
        learner().fit(gap, **BY_GIVEN)
    whole = learner().fit(log.filter(pl.col("list") != 3), **BY_GIVEN)
    for data in (bad, gap):
        found = learner().fit(data, **BY_GIVEN, drop_bad_rows=True)
        assert found.dropped_rows_ == 1  # list, as evaluate counts them
        torch.testing.assert_close(parameters_of(found), parameters_of(whole), rtol=0, atol=0)


def test_what_does_not_fit_is_refused():
    log = drawn(300)[1]
    rows = {"reward": "click", "propensity": "p_given", "action": "item", "context": list(CONTEXT)}
    for options, given, says in (
        ({}, rows, "learning to rank needs a log of rankings"),
        ({"policy": MLP(3, 8)}, BY_GIVEN, "policy= must be a ranking policy; found MLP. Pass policy=PlackettLuce"),
        ({"policy": a_policy(2)}, BY_GIVEN, "shows 2 items, and these rankings have up to 3"),
        ({"norms": "all"}, BY_GIVEN, "does not work with rankings"),
        ({"negatives": 4}, BY_GIVEN, "negatives= does not work with rankings"),
        ({"compile": True}, BY_GIVEN, "compile= does not work with rankings"),
        ({"objective": "dr"}, BY_GIVEN, "needs a reward model"),
        ({"objective": "lambda_ips"}, BY_GIVEN, "λ is not tuned"),
        ({"n_actions": 5}, BY_GIVEN, "the policy has no item 5"),
        ({}, BY_GIVEN | {"weight": cp.weights.Independent()}, "does not go with these propensities"),
        ({}, BY_AT | {"weight": cp.weights.PseudoInverse()}, "pseudo-inverse"),
        ({}, BY_GIVEN | {"context": [*CONTEXT, "position"]}, "one context per ranking"),
    ):
        with pytest.raises((OptionError, LogError), match=says):
            learner(**options).fit(log, **given)
    with refuses(OptionError):
        PolicyLearner().fit(log, **BY_GIVEN)
    with refuses(OptionError):
        cp.learn_policy(log, **BY_GIVEN)
    with refuses(OptionError):
        PolicyLearner(policy=a_policy(), batch_size=64).fit(log, **rows)


@pytest.mark.parametrize(
    "refused",
    [
        {"objective": "dr"},
        {"objective": "log_smoothing"},
        {"objective": "predicted_reward"},
        {"imitation": 0.5},
        {"smoothing": 0.5},
        {"clip": 2.0},
        {"temperature": 0.5},
        {"fallback": "imitate"},
        {"norms": "all"},
        {"precision": "bfloat16"},
        {"negatives": 4},
        {"compile": True},
    ],
    ids=str,
)
def test_the_page_on_rankings_lists_what_is_refused(refused):
    page = (Path(__file__).parents[2] / "docs" / "rankings.md").read_text(encoding="utf-8")
    (name, value), *_ = refused.items()
    assert f'`{name}="{value}"`' in page or f"`{name}=`" in page
    with refuses(OptionError):
        learner(**refused).fit(drawn(50)[1], **BY_GIVEN)


def test_a_ranker_that_is_not_surely_better_is_not_handed_out_in_silence():
    log = drawn(400)[1]
    with pytest.warns(LearningWarning, match=r"The learned policy is not reliably better .* explores more\.$"):
        learner().fit(log, **BY_GIVEN)
    with refuses(TrainingError):
        learner(fallback="raise").fit(log, **BY_GIVEN)
    with refuses(OptionError):
        learner(fallback="imitate").fit(log, **BY_GIVEN)


def test_an_objective_of_ones_own_is_computed_for_each_position(monkeypatch):
    monkeypatch.setattr(objectives, "OBJECTIVES", dict(objectives.OBJECTIVES))

    def mine(target, reward, propensity):
        return (target / propensity * reward).mean()

    objectives.register("mine", objectives.Objective(mine))
    log = drawn(300)[1]
    with pytest.warns(LearningWarning):
        found, expected = (learner(objective=name, epochs=2).fit(log, **BY_GIVEN) for name in ("mine", "ips"))
    torch.testing.assert_close(parameters_of(found), parameters_of(expected), rtol=1e-3, atol=1e-5)
