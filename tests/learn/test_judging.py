"""Policies that were learned in folds, evaluated on the rows that neither trained nor chose them; and which of them is handed out."""

import numpy as np
import polars as pl
import pytest
from learning import torch
from messages import refuses

import counterpoise.learn.source as sources
from counterpoise.environments import SyntheticBandit
from counterpoise.errors import OptionError, TrainingError
from counterpoise.evaluation.evaluate import evaluate
from counterpoise.learn import LearningWarning, LinearSoftmax, PolicyLearner, RunningBaseline
from counterpoise.learn.hand_out import Attempt, doubts, evaluate_folds, hand_out, is_surely_better
from counterpoise.log.groups import folds_of
from counterpoise.log.log import Log

LOG = SyntheticBandit(n_actions=6, inverse_temperature=-2, seed=2).draw(900)
CONTEXT = [f"context_{k}" for k in range(5)]
FRAME = LOG.frame().with_columns(pl.Series("user", [f"u{k // 3}" for k in range(900)]))
NAMES = {"context": CONTEXT, "action": "action", "reward": "reward", "propensity": "propensity"}
USERS = NAMES | {"cluster": "user"}


def policies(folds=3):
    torch.manual_seed(0)
    made = [LinearSoftmax(5, 6, bias=True) for _ in range(folds)]
    for k, policy in enumerate(made):
        with torch.no_grad():
            policy.scores.bias[k] += 2.0  # so that which of them answers makes a difference
    return made


def by_a_loop(made, ids):
    """The target's probability of every row, one at a time, and β-IPS of the lift from them."""
    folds = folds_of(pl.Series(ids), len(made))
    target = np.array(
        [made[folds[i]].predict_proba(LOG.context[i][None])[0, LOG.action[i]] for i in range(len(LOG.action))]
    )
    u = target / LOG.propensity - 1
    ur = u * LOG.reward
    beta = np.cov(ur, u)[0, 1] / np.var(u, ddof=1)
    return folds, (u * (LOG.reward - beta)).mean()


def test_every_row_is_judged_by_the_policy_of_its_fold():
    made = policies()
    result = evaluate_folds(Log(FRAME, **NAMES), made)
    _, lift = by_a_loop(made, np.arange(900))
    assert result.n == 900
    assert result["fold policies", "lift"].value == pytest.approx(lift, rel=1e-6)  # single precision


def test_rows_of_one_cluster_stay_in_one_fold_and_errors_allow_for_them():
    made = policies()
    result = evaluate_folds(Log(FRAME, **USERS), made)
    from counterpoise.log.groups import integer_ids

    folds, lift = by_a_loop(made, integer_ids(FRAME["user"]).to_numpy())
    assert all(len(set(folds[k : k + 3])) == 1 for k in range(0, 900, 3))
    assert result["fold policies", "lift"].value == pytest.approx(lift, rel=1e-6)  # single precision
    assert result.diagnostics().cluster_groups is not None


@pytest.mark.parametrize("names", [NAMES, USERS])
def test_files_in_chunks_give_what_a_frame_gives(tmp_path, monkeypatch, names):
    FRAME.write_parquet(tmp_path / "log.parquet")
    made = policies()
    expected = evaluate_folds(Log(FRAME, **names, where="reward >= 0"), made, level=0.9)
    monkeypatch.setattr(sources, "CHUNK", 250)
    found = evaluate_folds(Log(str(tmp_path / "log.parquet"), **names), made, level=0.9)
    assert found.n == 900
    for estimator in ("lift", "beta_ips"):
        one, other = found["fold policies", estimator], expected["fold policies", estimator]
        assert one.value == pytest.approx(other.value, rel=1e-9)
        assert one.interval.lower == pytest.approx(other.interval.lower, rel=1e-9)
    assert found.verdict() == expected.verdict()


def test_anything_that_is_a_target_can_be_judged_and_columns_may_be_expressions():
    class Third:
        classes_ = np.arange(6)

        def predict_proba(self, context):
            return np.eye(6)[np.full(len(context), 3)]

    parts = NAMES | {"reward": "reward * 10"}
    result = evaluate_folds(Log(FRAME.with_columns(pl.col("action").cast(pl.Float64)), **parts), [Third(), Third()])
    plain = (LOG.reward * 10 * (LOG.action == 3) / LOG.propensity).mean()
    assert result["fold policies", "ips"].value == pytest.approx(plain, rel=1e-9)


def test_learners_are_judged_as_their_policies_are():
    fitted = PolicyLearner(epochs=1, folds=None, batch_size=256).fit(FRAME, **NAMES)
    expected = evaluate_folds(Log(FRAME, **NAMES), [fitted.policy_] * 2)
    found = evaluate_folds(Log(FRAME, **NAMES), [fitted] * 2)
    assert found["fold policies", "lift"].value == expected["fold policies", "lift"].value


@pytest.mark.parametrize("policy", [1, "action", None, LinearSoftmax])
def test_what_is_not_a_policy_is_refused(policy):
    with refuses(OptionError):
        evaluate_folds(Log(FRAME, **NAMES), [policy] * 2)


def test_what_is_surely_better_and_why_not():
    class Knowing:
        def __init__(self, sign):
            self.sign = sign

        def predict_proba(self, context):
            expected = {tuple(x): row for x, row in zip(LOG.context, LOG.expected(slice(0, 900)), strict=True)}
            best = np.array([np.argmax(self.sign * expected[tuple(x)]) for x in context])
            return 0.5 * np.eye(6)[best] + 0.5 / 6

    good = evaluate_folds(Log(FRAME, **NAMES), [Knowing(1)] * 2)
    assert is_surely_better(good)
    assert doubts(good) == ""
    bad = evaluate_folds(Log(FRAME, **NAMES), [Knowing(-1)] * 2)
    assert not is_surely_better(bad)
    assert "the logging policy earned" in doubts(bad)
    few = evaluate(reward=[1, 0] * 10, propensity=[0.5] * 20, target=[0.9, 0.1] * 10)
    assert few[few.targets[0], "lift"].interval.lower > 0
    assert not is_surely_better(few)
    assert doubts(few) == " ".join(few.verdict().reasons)


def test_no_policies_are_refused():
    with refuses(OptionError):
        evaluate_folds(Log(FRAME, **NAMES), [])


def a_result(lift):
    rows = {"r": [1, 0, 1, 0] * 50, "p": [0.5] * 200, "fold policies": [0.5 + lift, 0.5 - lift] * 100}
    return evaluate(rows, reward="r", propensity="p", target="fold policies")


@pytest.mark.parametrize("fallback", ["warn", "imitate", "raise"])
def test_what_is_surely_better_is_handed_out_and_the_rest_by_the_fallback(fallback, recwarn):
    better, other, source = a_result(0.3), a_result(0.0), sources.Source(Log(FRAME, **NAMES))
    source.look(0)
    refitted, first, second = [], LinearSoftmax(5, 6), LinearSoftmax(5, 6)

    def handed_out(*attempts, imitate=lambda: None):
        def refit(policy):
            refitted.append(policy)
            return policy

        policy, attempt, rejected = hand_out(source, attempts, refit, fallback=fallback, imitate=imitate)
        estimate = policy.lesson_.estimate
        assert (estimate and estimate["value"]) == (
            attempt.result and attempt.result["fold policies", "beta_ips"].value
        )
        return policy, rejected

    assert handed_out(Attempt(first, other), Attempt(second, better)) == (second, None)
    assert handed_out(Attempt(first, other, lift_bound=0.01), Attempt(second, better)) == (first, None)  # sure anyway
    assert handed_out(Attempt(first)) == handed_out(Attempt(first, other, imitates=True)) == (first, None)
    assert not recwarn
    refitted.clear()
    if fallback == "raise":
        with refuses(TrainingError):
            handed_out(Attempt(first, other))
        assert not refitted
    elif fallback == "imitate":
        imitation = Attempt(second, other, imitates=True)
        assert handed_out(Attempt(first, other, lift_bound=-0.01), imitate=lambda: imitation) == (second, other)
        assert (refitted, list(recwarn)) == ([second], [])
        with pytest.warns(LearningWarning):
            assert handed_out(Attempt(first, other)) == (first, None)  # there is no imitation to be had
    else:
        with pytest.warns(LearningWarning, match="The learned policy is not reliably better .* collect a log"):
            assert handed_out(Attempt(first, other), Attempt(second, other)) == (second, None)


def test_old_names_work_with_a_warning():
    with pytest.warns(FutureWarning, match="judge is now called evaluate_folds"):
        from counterpoise.learn import judge
    with pytest.warns(FutureWarning, match="baselines is now called objectives"):
        from counterpoise.learn import baselines
    assert (judge, baselines.RunningBaseline) == (evaluate_folds, RunningBaseline)
