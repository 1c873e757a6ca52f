"""Diagnostics measure what they say, and verdicts follow from them."""

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from doubts import codes, numbers
from messages import refuses
from scipy import stats

import counterpoise as cp
from counterpoise.diagnostics import judge
from counterpoise.evaluation.evaluate import rank
from counterpoise.evaluation.plan import plan
from counterpoise.intervals.method import normal
from counterpoise.moments.spread import KEPT, Tail, pareto_k


def evaluate(w, r=None, **options):
    """A log with the given weights (at most 50)."""
    w = np.asarray(w, dtype=float)
    p = np.full(len(w), 0.02)
    return cp.evaluate(reward=np.arange(len(w)) % 2 if r is None else r, propensity=p, target=w * p, **options)


def test_effective_sample_size_mean_weight_and_shares():
    g = np.random.default_rng(0)
    w = g.exponential(size=5000) * (g.random(5000) < 0.5)
    found = evaluate(w).diagnostics()
    assert found.effective_sample_size == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-11)
    assert found.effective_share == pytest.approx(found.effective_sample_size / 5000)
    assert found.mean_weight == pytest.approx(w.mean(), rel=1e-12)
    t = (w.mean() - 1) / (w.std() / math.sqrt(5000))
    skew = stats.skew(w) / math.sqrt(5000)
    hall = t + skew * (t * t / 3 + 1 / 6) + skew**2 * t**3 / 27
    freedom = (5000 / stats.kurtosis(w, fisher=False) / 5) ** 2
    assert found.mean_weight_p == pytest.approx(2 * stats.t(freedom).sf(abs(hall)), rel=1e-9)
    assert found.max_weight == pytest.approx(w.max(), rel=1e-13)
    assert found.top_rows == 50
    assert found.top_share == pytest.approx(np.sort(w)[-50:].sum() / w.sum(), rel=1e-12)
    assert found.zero_weight_share == (w == 0).mean()
    assert (found.reward_min, found.reward_max) == (0.0, 1.0)


@pytest.mark.once
@pytest.mark.parametrize("k", [-0.3, 0.2, 0.5, 0.9, 1.4])
def test_pareto_k_finds_the_shape_of_known_tails(k):
    """Fits 949 exceedances; the sd of the estimate is about (1 + k)/√949 = 5 %."""
    g = np.random.default_rng(1)
    found = [
        pareto_k(Tail(np.sort(1 + stats.genpareto(k).rvs(100_000, random_state=g))[::-1][:KEPT], 0), 100_000)
        for _ in range(20)
    ]
    assert np.mean(found) == pytest.approx(k, abs=0.08 + 4 * np.std(found) / math.sqrt(20))


def test_weights_that_crowd_below_a_bound_have_no_tail():
    """A saturating policy: the largest weights differ from their bound by anything from 10⁻² to 10⁻¹⁶."""
    g = np.random.default_rng(0)
    crowded = 2.5 * (1 - np.exp(-np.abs(g.normal(0, 20, 10_000))))
    assert pareto_k(Tail(np.sort(crowded)[::-1][:KEPT], 0), 10_000) == -1.0
    two = np.where(np.arange(10_000) % 100 == 0, 10.0, 5.0) * (1 + 1e-9 * g.normal(size=10_000))  # two weights, rounded
    assert pareto_k(Tail(np.sort(two)[::-1][:KEPT], 0), 10_000) < 0.7


def test_pareto_k_of_few_or_equal_weights():
    assert math.isnan(pareto_k(Tail(np.array([2.0, 1.0]), 0), 2))
    assert pareto_k(Tail(np.full(100, 5.0), 0), 100) == -1.0
    assert math.isnan(pareto_k(Tail(np.r_[9.0, np.ones(99)], 0), 100))


def test_wrong_propensities_fail_the_mean_weight_test():
    g = np.random.default_rng(2)
    n = 20_000
    p = np.full(n, 0.25)
    hit = g.random(n) < 0.25
    reward = hit & (g.random(n) < 0.9)
    right = cp.evaluate(reward=reward, propensity=p, target=hit * 1.0)
    wrong = cp.evaluate(reward=reward, propensity=p * 1.2, target=hit * 1.0)
    assert right.diagnostics().mean_weight_p > 0.001
    assert right.verdict().verdict == "ok"
    assert wrong.diagnostics().mean_weight_p < 1e-6
    assert wrong.verdict().verdict == "caution"
    assert codes(wrong.verdict()) & {"mean-weight-off", "mean-weight-below-one"}


def test_verdicts():
    g = np.random.default_rng(3)
    even = evaluate(g.uniform(0.5, 1.5, 5000)).verdict()
    assert (even.verdict, even.reasons) == ("ok", ())
    assert evaluate(np.zeros(50)).verdict().verdict == "not identified"
    assert evaluate(np.ones(1)).verdict().verdict == "not identified"
    few = evaluate(g.uniform(0.5, 1.5, 25)).verdict()
    assert few.verdict == "caution"
    assert few.caveats[0].code == "few-effective-rows"
    # the log shows a fifth of what the target does
    thin = evaluate(np.where(np.arange(5000) % 5 == 0, 1.0, 0.0)).verdict()
    assert thin.verdict == "not identified"
    assert "less than half" in str(thin)


def sound(**change):
    """Diagnostics of a log that is fine, but for the change."""
    fine = evaluate(np.random.default_rng(3).uniform(0.5, 1.5, 5000)).diagnostics()
    assert judge(fine).verdict == "ok"
    return judge(replace(fine, **change))


@pytest.mark.parametrize(
    ("change", "word", "reason"),
    [
        ({"carrying_rows": 6.9}, "caution", "About 6.9 rows carry this answer; 7 or more are needed"),
        ({"carrying_rows": 6.96}, "caution", "About 6.96 rows carry this answer; 7 or more are needed"),
        ({"carrying_rows": 6.9}, "caution", "the outcome that matters is too rare"),
        (
            {"carrying_rows": 2.0, "weight_rows": 9.0, "pareto_k": 0.9},
            "caution",
            "most of the weight (Pareto k = 0.90)",
        ),
        ({"carrying_rows": 7.1}, "ok", ""),
        ({"reward_max": 0.0, "carrying_rows": 0.0}, "caution", "Every reward is 0"),
        (
            {"reward_min": 3.7, "reward_max": 3.7, "carrying_rows": 0.0},
            "caution",
            "The interval is unbounded unless you pass reward_bounds=",
        ),
        ({"dropped": 300}, "caution", "300 of 5,300 rows were invalid and dropped"),
        ({"dropped": 200}, "ok", ""),
        ({"dropped": 10, "unknown_share": 0.002}, "caution", "could move the answer by up to 0.0021"),
        ({"dropped": 5, "unknown_share": 0.001}, "ok", ""),
        ({"effective_sample_size": 29.0}, "caution", "effective sample of 29 rows"),
        ({"effective_sample_size": 31.0}, "ok", ""),
        ({"mean_weight_p": 0.0009}, "caution", "propensities or target probabilities are wrong"),
        ({"mean_weight_p": 0.0009, "weight_rows": 29.0}, "caution", "cannot tell a wrong propensity from bad luck"),
        ({"mean_weight_p": 0.0011}, "ok", ""),
        ({"duplicates": 3}, "caution", "3 rows repeat the key"),
        ({"duplicates": 1}, "caution", "1 row repeats the key"),
        ({"cluster_groups": 19}, "caution", "groups of clusters"),
        ({"cluster_groups": 20}, "ok", ""),
        ({"cluster_groups": 100, "effective_clusters": 19.9}, "caution", "effective number of clusters is about 20"),
        ({"cluster_groups": 100, "effective_clusters": 20.1}, "ok", ""),
        ({"mean_weight": 0.4, "mean_weight_stderr": 0.01}, "not identified", "less than half"),
        ({"mean_weight": 0.4, "mean_weight_stderr": 0.1}, "ok", ""),
        ({"mean_weight": 0.0}, "not identified", "No row has a positive weight"),
        ({"n": 1}, "not identified", "A single row"),
        ({"n": 0}, "not identified", "no rows"),
    ],
    ids=str,
)
def test_where_each_verdict_turns(change, word, reason):
    verdict = sound(**change)
    assert verdict.verdict == word
    assert reason in str(verdict)


@pytest.mark.parametrize("shift", [0.0, 1e4, -3.0])
def test_carrying_rows_are_those_of_the_weights_variance_times_the_share_of_the_rarer_rewards(shift):
    g = np.random.default_rng(5)
    w, r = g.exponential(1.0, 800), g.gamma(0.3, size=800) + shift
    p = np.full(800, 0.01)
    shares = [((r - end) ** 2).mean() ** 2 / ((r - end) ** 4).mean() for end in (r.min(), r.max())]
    expected = 800 / stats.kurtosis(w, fisher=False) * min(shares) / 2  # more than two values
    found = cp.evaluate(reward=r, propensity=p, target=np.minimum(w * p, 1.0)).diagnostics()
    assert found.carrying_rows == pytest.approx(expected, rel=1e-6)
    assert found.weight_rows == pytest.approx(800 / stats.kurtosis(w, fisher=False), rel=1e-9)
    clicks = (np.arange(800) % 40 == 0).astype(float) + shift
    assert cp.evaluate(reward=clicks, propensity=p, target=p).diagnostics().carrying_rows == pytest.approx(
        20.0, rel=1e-6
    )
    assert cp.evaluate(reward=np.full(800, shift), propensity=p, target=p).diagnostics().carrying_rows == 0.0


@pytest.mark.thorough
def test_estimates_that_rest_on_few_clicks_are_never_ok():
    """One action in twenty, one click in 160, so about three that count: normal intervals miss too often there."""
    g = np.random.default_rng(6)
    missed, held, logs, n = 0, 0, 300, 10_000
    for _ in range(logs):
        hit, click = g.random(n) < 0.05, g.random(n) < 0.0063
        result = cp.evaluate(reward=click, propensity=np.full(n, 0.05), target=hit * 1.0, estimator="beta_ips")
        assert result.verdict().verdict != "ok"
        one = result["target", "beta_ips"]
        missed += 0.0063 not in normal(one.value, one.stderr)
        held += 0.0063 in one.interval
    assert missed / logs > 0.05 + 3 * math.sqrt(0.05 * 0.95 / logs)  # else the verdict cries wolf
    assert held / logs > 0.95 - 3 * math.sqrt(0.05 * 0.95 / logs)


def test_a_gap_between_bounded_weights_is_no_heavy_tail():
    g = np.random.default_rng(7)
    n = 500
    few = np.where(g.random(n) < 0.04, g.normal(3.0, 0.05, n), g.normal(0.9, 0.02, n))
    found = evaluate(few)
    assert found.diagnostics().pareto_k > 0.7
    assert "heavy tail" not in str(found.verdict())


def test_a_comparison_is_as_doubtful_as_the_worse_of_its_policies():
    g = np.random.default_rng(3)
    p, reward = np.full(5000, 0.02), g.random(5000)
    good, none = p * g.uniform(0.5, 1.5, 5000), np.zeros(5000)
    for target, against, doubted in ((good, none, "against"), (none, good, "target")):
        found = cp.compare(reward=reward, propensity=p, target=target, against=against)
        assert found.verdict().verdict == "not identified"
        (caveat,) = (caveat for caveat in found.verdict().caveats if caveat.code == "no-overlap")
        assert str(caveat).startswith(f"{doubted}: ")
        assert not found.difference.identified
        assert tuple(found.interval) == (-np.inf, np.inf)
    assert cp.compare(reward=reward, propensity=p, target=good, against="logging").verdict().verdict == "ok"


def test_few_clusters_are_said():
    result = evaluate(np.random.default_rng(4).uniform(0.5, 1.5, 3000), cluster=np.arange(3000) % 5)
    assert result.verdict().verdict == "caution"
    assert numbers(result.verdict(), "few-clusters")["clusters"] == 5


@pytest.mark.once
def test_the_mean_weight_test_allows_for_clusters():
    """Weights alike within a user: the naive test would reject far more often than it says."""
    g = np.random.default_rng(5)
    rejections = {"naive": 0, "robust": 0}
    for _ in range(100):
        w = np.repeat(g.choice([0.5, 1.5], 200), 20)
        user = np.repeat(np.arange(200), 20)
        rejections["naive"] += evaluate(w).diagnostics().mean_weight_p < 0.05
        rejections["robust"] += evaluate(w, cluster=user).diagnostics().mean_weight_p < 0.05
    assert rejections["naive"] > 40
    assert rejections["robust"] <= 14  # 5 expected, sd 2.2


def test_weights_that_are_all_one_are_no_evidence_against_the_propensities():
    g = np.random.default_rng(6)
    p = g.uniform(0.1, 0.9, 1000)
    found = cp.evaluate(reward=p, propensity=p, target=p * (1 + 1e-16)).diagnostics()
    assert found.mean_weight_p == 1.0


def test_verdict_words_come_from_the_diagnostics_alone():
    found = evaluate(np.random.default_rng(3).uniform(0.5, 1.5, 5000))
    assert judge(found.diagnostics()) == found.verdict()


def unsupported(n=20_000):
    """The log hardly ever takes what the target would do."""
    g = np.random.default_rng(8)
    logging, target, clicks = np.array([0.95, 0.05, 0.0]), np.array([0.05, 0.25, 0.70]), np.array([0.1, 0.6, 0.0])
    action = g.choice(3, n, p=logging)
    return {"r": 1.0 * (g.random(n) < clicks[action]), "p": logging[action], "t": target[action]}


def test_what_is_not_identified_is_neither_better_nor_planned_for():
    question = {"reward": "r", "propensity": "p", "target": "t"}
    compared = cp.compare(unsupported(), **question)
    assert compared.verdict().verdict == "not identified"
    (one,) = rank(compared)
    assert (one.decision, one.p) == ("undecided", 1.0)
    needs = plan(pl.DataFrame(unsupported()), **question, difference=0.01, actions=3).needs
    assert needs.value_rows == needs.difference_rows == needs.power_rows == math.inf


def test_a_ranking_of_one_has_the_interval_of_the_comparison_itself():
    g = np.random.default_rng(9)
    p = g.uniform(0.2, 0.8, 2000)
    log = {"r": g.random(2000), "p": p, "t": p * g.uniform(0.5, 1.2, 2000)}
    options = {"interval": cp.intervals.Anytime(tuned_for=1e6)}
    compared = cp.compare(log, reward="r", propensity="p", target="t", **options)
    assert rank(compared)[0].interval == compared.interval


def test_too_few_actions_are_refused_by_the_propensities():
    g = np.random.default_rng(10)
    log = pl.DataFrame({"r": g.random(3000), "p": np.full(3000, 0.1), "t": g.uniform(0.05, 0.15, 3000)})
    question = {"reward": "r", "propensity": "p", "target": "t", "difference": 0.01}
    with refuses(cp.OptionError):
        plan(log, **question, actions=3)
    assert plan(log, **question, actions=10).exploration[0].needs.value_rows > 0


def test_single_precision_is_no_wrong_propensity():
    n = 2000
    log = {"r": np.arange(n) % 2.0, "p": np.full(n, 0.2), "t": np.full(n, 0.2, np.float32)}
    assert cp.evaluate(log, reward="r", propensity="p", target="t").verdict().verdict == "ok"
