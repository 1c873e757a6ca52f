"""Every estimator obeys every law, and agrees with a plain loop over the rows."""

import narwhals as nw
import numpy as np
import plain
import polars as pl
import pytest

import counterpoise as cp
from counterpoise.estimators import beta_ips, constant_dr, difference, dm, dr, ips, optimal_dr, snips
from counterpoise.log.groups import with_groups
from counterpoise.moments import Moments

EASY = [{}, {"binary": True}, {"n": 20}]
HARD = [{"offset": 1e8}, {"closeness": 1e-7}, {"offset": 1e8, "closeness": 1e-7}, {"offset": -1e6, "closeness": 1e-3}]
# baselines that depend on the context would change lift and cross_fit, too: see test_context.py
NAMES = [name for name, entry in cp.ESTIMATORS.items() if entry.needs != "context"]
VALUES = [name for name, entry in cp.ESTIMATORS.items() if entry.estimand == "value" and name in NAMES]


def evaluate(log):
    columns = {
        "reward": "r",
        "propensity": "p",
        "target": "t",
        "cluster": "group",
        "model_reward": "q",
        "model_value": "v",
    }
    return cp.evaluate(**{part: log[name] for part, name in columns.items()}, estimator=NAMES, interval="normal")


def rows_of(log):
    """The log for the plain loops, with the groups that the hash made of its clusters."""
    ids = with_groups(nw.from_native(pl.DataFrame({"g": log["group"]})), 100)
    return plain.Rows.of(log["t"], log["p"], log["r"], log["q"], log["v"], ids["g"].to_list())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", EASY, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_agrees_with_a_plain_loop(name, options, seed):
    log = plain.random_log(seed, **options)
    estimate = evaluate(log)["target", name]
    value, stderr = plain.PLAIN[name](rows_of(log))
    assert estimate.value == pytest.approx(value, rel=1e-12, abs=1e-12)
    assert estimate.stderr == pytest.approx(stderr, rel=1e-11)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", HARD, ids=str)
def test_keeps_its_digits_far_from_zero_and_close_to_one(name, options):
    log = plain.random_log(5, **options)
    estimate = evaluate(log)["target", name]
    value, stderr = plain.PLAIN[name](rows_of(log))
    assert estimate.value == pytest.approx(value, rel=1e-12, abs=1e-12 if name != "lift" else 1e-15)
    assert estimate.stderr**2 == pytest.approx(stderr**2, rel=1e-8)


@pytest.mark.parametrize("name", VALUES)
def test_on_policy_is_the_mean_reward(name):
    log = plain.random_log(1)
    log["t"] = log["p"]
    log["q"], log["v"] = np.full(200, 0.7), np.full(200, 0.7)
    value, mean = evaluate(log)["target", name].value, log["r"].mean()
    if name == "auto":  # it leans on the model a little wherever the two agree within the noise
        assert min(mean, 0.7) < value < max(mean, 0.7)
        return
    assert value == pytest.approx(0.7 if name == "dm" else mean, rel=1e-12)


def test_on_policy_lift_is_zero():
    log = plain.random_log(1)
    log["t"] = log["p"]
    estimate = evaluate(log)["target", "lift"]
    assert (estimate.value, estimate.stderr) == (0.0, 0.0)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ips"])
def test_a_constant_added_to_every_reward_shifts_the_value_and_not_the_error(name):
    log = plain.random_log(2)
    moved = log | {"r": log["r"] + 10.0, "q": log["q"] + 10.0, "v": log["v"] + 10.0}
    before, after = evaluate(log)["target", name], evaluate(moved)["target", name]
    weight = (log["t"] / log["p"]).mean()
    # DR adds the constant to v and takes it off r − q; only an estimator of the lift does not move
    shift = 0.0 if name == "lift" else 10.0
    assert after.value - before.value == pytest.approx(shift, abs=1e-10), weight
    assert after.stderr == pytest.approx(before.stderr, rel=1e-9)


def test_ips_alone_is_hurt_by_a_constant_added_to_every_reward():
    log = plain.random_log(2)
    moved = log | {"r": log["r"] + 10.0}
    assert evaluate(moved)["target", "ips"].stderr > 3 * evaluate(log)["target", "ips"].stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_factor_on_every_reward_scales_value_and_error(name):
    log = plain.random_log(3)
    scaled = log | {"r": log["r"] * -4.0, "q": log["q"] * -4.0, "v": log["v"] * -4.0}
    before, after = evaluate(log)["target", name], evaluate(scaled)["target", name]
    assert after.value == pytest.approx(-4.0 * before.value, rel=1e-11)
    assert after.stderr == pytest.approx(4.0 * before.stderr, rel=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_merging_equals_concatenating(name):
    log = plain.random_log(4, n=300)
    parts = [{k: v[i:j] for k, v in log.items()} for i, j in ((0, 1), (1, 120), (120, 300))]
    merged = cp.evaluate(sum(evaluate(part).moments for part in parts), estimator=NAMES, interval="normal")
    whole = evaluate(log)
    assert merged["target", name].value == pytest.approx(whole["target", name].value, rel=1e-12)
    assert merged["target", name].stderr == pytest.approx(whole["target", name].stderr, rel=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_row_order_does_not_matter(name):
    log = plain.random_log(6)
    order = np.random.default_rng(0).permutation(200)
    shuffled = {k: v[order] for k, v in log.items()}
    assert evaluate(shuffled)["target", name].value == pytest.approx(evaluate(log)["target", name].value, rel=1e-12)
    assert evaluate(shuffled)["target", name].stderr == pytest.approx(evaluate(log)["target", name].stderr, rel=1e-12)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("cross_fit", "auto")])
def test_every_row_twice_changes_only_the_error(name):
    log = plain.random_log(7)
    twice = {k: np.concatenate([v, v]) for k, v in log.items()}
    before, after = evaluate(log)["target", name], evaluate(twice)["target", name]
    assert after.value == pytest.approx(before.value, rel=1e-11)
    assert after.stderr == pytest.approx(before.stderr / np.sqrt(2), rel=1e-11)


@pytest.mark.parametrize("name", ["snips", "beta_ips", "constant_dr", "cross_fit"])
def test_rewards_that_never_vary_are_estimated_exactly(name):
    log = plain.random_log(8) | {"r": np.full(200, 3.0)}
    result = evaluate(log)
    assert result["target", name].value == pytest.approx(3.0, rel=1e-13)
    assert result["target", name].stderr == pytest.approx(0.0, abs=1e-12)


# -- the family ---------------------------------------------------------------------------------------------------------


def random_moments(seed):
    log = plain.random_log(seed)
    w = log["t"] / log["p"]
    return w, log["r"], Moments.of(w, log["r"], model_reward=log["q"], model_value=log["v"]), log


@pytest.mark.parametrize("seed", range(5))
def test_the_papers_formulas(seed):
    """IPS, SNIPS, DM, DR and β-IPS with the floor, written as in the recipe of the experiments, value and variance."""
    w, r, m, log = random_moments(seed)
    n = len(r)
    beta = np.mean(r * (w**2 - w)) / max(np.mean(w**2 - w), 1e-11)
    value = np.mean(w * r) / max(np.mean(w), 1e-10)
    cases = {
        ips: (w * r).mean(),
        dm: log["v"].mean(),
        dr: (log["v"] + w * (r - log["q"])).mean(),
        snips: value,
    }
    variances = {
        ips: np.var(w * r) / n,
        dm: np.var(log["v"]) / n,
        dr: np.var(log["v"] + w * (r - log["q"])) / n,
        snips: np.sum((w * (r - value)) ** 2) / np.sum(w) ** 2,
    }
    for estimator, expected in cases.items():
        assert estimator(m).value == pytest.approx(expected, rel=1e-12)
        assert estimator(m).stderr ** 2 == pytest.approx(variances[estimator], rel=1e-11)
    ours = beta_ips(m, baseline="plug-in")
    assert ours.baseline == pytest.approx(beta, rel=1e-12)
    assert ours.value == pytest.approx((beta + w * (r - beta)).mean(), rel=1e-12)
    assert ours.stderr**2 == pytest.approx(np.var(beta + w * (r - beta)) / n, rel=1e-11)


@pytest.mark.parametrize("baseline", [0.0, -2.5, 1e6, "optimal", "plug-in"])
def test_constant_dr_is_beta_ips(baseline):
    """The paper's equivalence: doubly robust with a constant model, computed as such, is β-IPS."""
    w, r, m, _ = random_moments(3)
    found, same = constant_dr(m, prediction=baseline), beta_ips(m, baseline=baseline)
    terms = same.baseline + w * (r - same.baseline)
    assert found.value == pytest.approx(same.value, rel=1e-13)
    assert found.stderr == pytest.approx(same.stderr, rel=1e-13)
    scale = 1.0 + abs(same.baseline)
    assert found.value == pytest.approx(terms.mean(), abs=1e-12 * scale)


def test_the_family_in_one_place():
    """β = 0 is IPS; SNIPS is β-IPS at its own value; DR with a constant model is constant DR."""
    w, r, m, _ = random_moments(4)
    assert beta_ips(m, baseline=0.0).value == pytest.approx(ips(m).value, rel=1e-13)
    at_snips = beta_ips(m, baseline=snips(m).value)
    assert at_snips.value == pytest.approx(snips(m).value, rel=1e-12)
    flat = Moments.of(w, r, model_reward=np.full(200, 0.4), model_value=np.full(200, 0.4))
    assert dr(flat).value == pytest.approx(constant_dr(m, prediction=0.4).value, rel=1e-12)
    assert dr(flat).stderr == pytest.approx(constant_dr(m, prediction=0.4).stderr, rel=1e-12)


def test_difference_is_that_of_the_two_weights():
    log = plain.random_log(9)
    g = np.random.default_rng(1)
    other = np.clip(log["t"] + g.normal(0, 0.1, 200), 0, 1)
    w1, w2 = log["t"] / log["p"], other / log["p"]
    d, dr_ = w1 - w2, (w1 - w2) * log["r"]
    beta = np.cov(dr_, d)[0, 1] / np.var(d, ddof=1)
    found = cp.compare(reward=log["r"], propensity=log["p"], target={"new": log["t"]}, against=other)
    assert found.value == pytest.approx((d * (log["r"] - beta)).mean(), rel=1e-11)
    assert found.stderr == pytest.approx(np.sqrt(np.var(d * (log["r"] - beta)) / 200), rel=1e-11)
    assert found.baseline == pytest.approx(beta, rel=1e-10)
    assert found["new", "ips"].value == pytest.approx(dr_.mean(), rel=1e-11)
    plugged = difference(Moments.of(1 + d, log["r"]), baseline="plug-in")
    assert plugged.baseline == pytest.approx((d**2 * log["r"]).mean() / (d**2).mean(), rel=1e-11)


def test_comparing_with_logging_is_the_lift():
    log = plain.random_log(9)
    arrays = {"reward": log["r"], "propensity": log["p"], "target": log["t"]}
    found, lift = cp.compare(**arrays, against="logging"), cp.evaluate(**arrays)["target", "lift"]
    assert found.value == pytest.approx(lift.value, rel=1e-13)
    assert found.stderr == pytest.approx(lift.stderr, rel=1e-13)


# -- degenerate logs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_no_overlap_is_not_identified(name):
    log = plain.random_log(1) | {"t": np.zeros(200)}
    result = evaluate(log)
    estimate = result["target", name]
    if name in ("dm", "auto"):
        assert estimate.value == pytest.approx(log["v"].mean())
    if name == "dm":
        return
    assert estimate.identified == (name == "auto")
    assert (estimate.stderr, tuple(estimate.interval)) == (np.inf, (-np.inf, np.inf))
    assert result.verdict().verdict == "not identified"


@pytest.mark.parametrize("name", [name for name in VALUES if name not in ("cross_fit", "auto")])
@pytest.mark.parametrize("weight", [1.0, 0.25, 0.3])
def test_weights_that_are_all_equal(name, weight):
    """A constant weight has no variance to learn a baseline from; estimators with one fall back to the mean reward."""
    log = plain.random_log(2, binary=True)
    log["t"] = log["p"] * weight
    log["q"], log["v"] = np.full(200, 0.5), np.full(200, 0.5)
    estimate = evaluate(log)["target", name]
    mean = log["r"].mean()
    expected = {"ips": weight * mean, "dm": 0.5, "dr": 0.5 + weight * (mean - 0.5)}.get(name, mean)
    assert estimate.value == pytest.approx(expected, rel=1e-9)
    assert np.isfinite(estimate.stderr)


@pytest.mark.parametrize("name", NAMES)
def test_one_row_says_nothing_about_its_error(name):
    log = {k: v[:1] for k, v in plain.random_log(3).items()}
    result = evaluate(log)
    assert result["target", name].stderr == np.inf
    assert result.verdict().verdict == "not identified"


def test_control_variates_that_repeat_each_other():
    w, r, m, log = random_moments(6)
    controls = {"a": log["q"] - log["q"].mean(), "b": 2 * (log["q"] - log["q"].mean()), "c": np.zeros(200)}
    once = optimal_dr(Moments.of(w, r, controls={"a": controls["a"]}))
    thrice = optimal_dr(Moments.of(w, r, controls=controls))
    assert thrice.value == pytest.approx(once.value, rel=1e-10)
    assert thrice.stderr == pytest.approx(once.stderr, rel=1e-10)
    assert optimal_dr(Moments.of(w, r)).value == pytest.approx(beta_ips(m).value, rel=1e-12)
