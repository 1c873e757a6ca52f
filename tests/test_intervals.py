"""Intervals cover as they promise, and say so when they cannot."""

import math

import narwhals as nw
import numpy as np
import plain
import polars as pl
import pytest
from scipy import stats

import counterpoise as cp
from counterpoise.estimators import ESTIMATORS
from counterpoise.intervals import anytime, bernstein, jackknife, jackknife_error, normal
from counterpoise.moments import Moments
from counterpoise.sources.groups import with_groups


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.999])
def test_quantiles_are_scipys(level):
    assert normal(1.0, 2.0, level).upper == pytest.approx(1 + 2 * stats.norm.ppf((1 + level) / 2), rel=1e-12)
    assert jackknife(1.0, 2.0, 30, level).lower == pytest.approx(1 - 2 * stats.t(29).ppf((1 + level) / 2), rel=1e-12)


def test_jackknife_by_hand():
    """Unequal groups, each deleted in a plain loop."""
    log = plain.random_log(0, n=300)
    user = log["group"]
    result = cp.evaluate(
        reward=log["r"], propensity=log["p"], target=log["t"], cluster=user, groups=5, estimator="snips"
    )
    stack = result.moments.moments["target", ""][0]
    w, r = log["t"] / log["p"], log["r"]
    groups = with_groups(nw.from_native(pl.DataFrame({"g": user})), 5)["g"].to_numpy()
    sizes = np.array([(groups == g).sum() for g in range(5)])
    assert stack.n.tolist() == sizes.tolist()
    n, value = 300, (w * r).sum() / w.sum()
    present = [g for g in range(5) if sizes[g]]
    without = {g: (w * r)[groups != g].sum() / w[groups != g].sum() for g in present}
    centre = len(present) * value - sum((1 - sizes[g] / n) * without[g] for g in present)
    variance = 0.0
    for g in present:
        h = n / sizes[g]
        variance += (h * value - (h - 1) * without[g] - centre) ** 2 / (h - 1) / len(present)
    assert result["target", "snips"].stderr == pytest.approx(math.sqrt(variance), rel=1e-9)


@pytest.mark.parametrize("name", [name for name, entry in ESTIMATORS.items() if not entry.needs])
def test_jackknife_and_delta_method_agree_on_independent_rows(name):
    g = np.random.default_rng(3)
    arrays = {"reward": g.normal(size=20_000), "propensity": np.full(20_000, 0.5), "target": g.uniform(0, 1, 20_000)}
    by_delta = cp.evaluate(**arrays, estimator=name)["target", name].stderr
    by_groups = cp.evaluate(**arrays, estimator=name, interval="jackknife")["target", name].stderr
    # a jackknife of 100 groups knows its error to 1/√(2·99) = 7 %
    assert by_groups == pytest.approx(by_delta, rel=0.3)


def test_clustered_rows_have_larger_errors_and_only_the_jackknife_sees_it():
    g = np.random.default_rng(0)
    users, each = 400, 20
    user = np.repeat(np.arange(users), each)
    mood = g.normal(size=users)[user]
    taste = g.integers(0, 2, users)[user]  # the logging policy decides once for each user
    p = np.full(users * each, 0.5)
    t = np.where(taste, 0.8, 0.2)
    arrays = {"reward": mood + taste + g.normal(size=len(p)), "propensity": p, "target": t}
    robust = cp.evaluate(**arrays, cluster=user)["target", "beta_ips"]
    naive = cp.evaluate(**arrays)["target", "beta_ips"]
    assert robust.value == pytest.approx(naive.value, rel=1e-12)
    # per user: the error of a mean over 400 instead of 8,000 independent values of the users' part
    assert robust.stderr > 2.5 * naive.stderr


@pytest.mark.parametrize("offset", [1e4, 1e8])
@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "ips"])
def test_the_jackknife_keeps_its_digits_far_from_zero(offset, name):
    g = np.random.default_rng(0)
    n = 20_000
    noise = np.round(g.normal(size=n), 3)
    arrays = {"propensity": np.full(n, 0.5), "target": g.uniform(0, 1, n), "cluster": g.integers(0, 2000, n)}
    model = {"model_reward": 0.5 * noise, "model_value": 0.1 * noise}
    near = cp.evaluate(reward=noise, **model, **arrays, estimator=name)["target", name]
    far = cp.evaluate(reward=noise + offset, **{k: v + offset for k, v in model.items()}, **arrays, estimator=name)[
        "target", name
    ]
    # rewards near 10⁸ are themselves known to 10⁻⁸ only
    assert far.stderr**2 == pytest.approx(near.stderr**2, rel=1e-8 if offset < 1e5 else 1e-6)


def test_an_estimate_that_rests_on_one_group_has_no_known_error():
    user = np.repeat(np.arange(50), 10)
    t = np.where(user == 7, 0.5, 0.0)
    result = cp.evaluate(reward=np.zeros(500), propensity=np.full(500, 0.5), target=t, cluster=user)
    for name in ("ips", "snips", "beta_ips"):
        assert result["target", name].stderr == np.inf


def test_anytime_and_compare_allow_for_clusters():
    g = np.random.default_rng(0)
    user = np.repeat(np.arange(200), 20)
    t = np.repeat(g.choice([0.2, 0.8], 200), 20)
    arrays = {"reward": np.repeat(g.normal(size=200), 20), "propensity": np.full(4000, 0.5), "target": t}
    anytime_ = [cp.evaluate(**arrays, cluster=c, interval="anytime")["target", "snips"].stderr for c in (user, None)]
    assert anytime_[0] > 3 * anytime_[1]
    change = [cp.compare(**arrays, cluster=c) for c in (user, None)]
    assert change[0].stderr > 3 * change[1].stderr
    assert change[0].interval.method == "jackknife"
    assert cp.compare(change[0].moments).stderr == change[0].stderr


def test_bernstein_of_impossible_weights():
    arrays = {"reward": np.ones(1000), "propensity": np.full(1000, 0.1), "target": np.full(1000, 0.9)}
    interval = cp.evaluate(**arrays, interval="bernstein", reward_bounds=(0, 1), max_weight=10)[
        "target", "ips"
    ].interval
    assert tuple(interval) == (0.0, 1.0)
    assert "weights are wrong" in interval.note
    thirds = {"reward": np.ones(1000), "propensity": np.full(1000, 1 / 3), "target": np.ones(1000)}
    cp.evaluate(**thirds, interval="bernstein", reward_bounds=(0, 1), max_weight=3)  # 1/(1/3) may round up


def test_fits_with_no_rows_to_spare_have_no_known_error():
    log = {k: v[:3] for k, v in plain.random_log(1).items()}
    arrays = {
        "reward": log["r"],
        "propensity": log["p"],
        "target": log["t"],
        "model_reward": log["q"],
        "model_value": log["v"],
    }
    two = {k: v[:2] for k, v in arrays.items()}
    assert cp.evaluate(**arrays)["target", "optimal_dr"].stderr == np.inf
    assert cp.evaluate(**two)["target", "beta_ips"].stderr == np.inf
    assert cp.evaluate(**two)["target", "lift"].stderr == np.inf
    assert np.isfinite(cp.evaluate(**two)["target", "snips"].stderr)


def test_one_group_says_nothing():
    error, groups = jackknife_error(np.array(1.0), np.array([1.0, 1.0]), np.array([5, 0]))
    assert (float(error), int(groups)) == (np.inf, 1)
    assert tuple(jackknife(1.0, np.inf, 1)) == (-np.inf, np.inf)


def test_anytime_covers_at_all_times_at_once():
    """Means of a stream, looked at after every one of 2,000 rows from the 50th on; the normal interval fails, this one does not."""
    g = np.random.default_rng(1)
    runs, n = 1000, 2000
    x = g.exponential(size=(runs, n))
    count = np.arange(1, n + 1)
    mean = x.cumsum(axis=1) / count
    sd = np.sqrt((x**2).cumsum(axis=1) / count - mean**2)
    look = slice(50, None)
    factor = np.array([anytime(0.0, 1.0, int(k), tuned_for=500).upper for k in count])
    missed = (np.abs(mean - 1) > factor * sd / np.sqrt(count))[:, look].any(axis=1).mean()
    missed_by_normal = (np.abs(mean - 1) > 1.96 * sd / np.sqrt(count))[:, look].any(axis=1).mean()
    assert missed < 0.05 + 4 * math.sqrt(0.05 * 0.95 / runs)
    assert missed_by_normal > 0.2


def test_anytime_formula():
    n, t, alpha = 5000, 10_000, 0.05
    rho2 = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha)) + 1) / t
    half = 3.0 * math.sqrt(2 * (n * rho2 + 1) / (n * n * rho2) * math.log(math.sqrt(n * rho2 + 1) / alpha))
    assert anytime(0.0, 3.0 / math.sqrt(n), n).upper == pytest.approx(half, rel=1e-12)


def test_bernstein_formula_and_coverage():
    g = np.random.default_rng(2)
    n = 500
    covered = 0
    for _ in range(200):
        w, r = g.choice([0.0, 4.0], n, p=[0.75, 0.25]), (g.random(n) < 0.3).astype(float)
        m = Moments.of(w, r)
        interval = bernstein(m, 0.95, reward_bounds=(0.0, 1.0), max_weight=4.0)
        log_term = math.log(4 / 0.05)
        half = math.sqrt(2 * np.var(w * r, ddof=1) * log_term / n) + 7 * 4.0 * log_term / (3 * (n - 1))
        assert interval.upper == pytest.approx(min((w * r).mean() + half, 1.0), rel=1e-12)
        covered += 0.3 in interval
    assert covered == 200  # it promises 95 % at every n and is far wider than that needs
    assert "times as wide as the normal interval" in interval.note


def test_bernstein_from_the_front_door():
    log = plain.random_log(1, n=2000, binary=True)
    arrays = {"reward": log["r"], "propensity": log["p"], "target": log["t"]}
    bounds = {"interval": "bernstein", "reward_bounds": (0, 1), "max_weight": 10.0}
    result = cp.evaluate(**arrays, **bounds)
    assert {name for _, name, _ in result.estimates} == {"ips"}
    interval = result["target", "ips"].interval
    assert interval.width > cp.evaluate(**arrays)["target", "ips"].interval.width
    with pytest.raises(cp.LogError, match="max_weight is 2"):
        cp.evaluate(**arrays, **(bounds | {"max_weight": 2.0}))
    with pytest.raises(cp.LogError, match="reward_bounds"):
        cp.evaluate(**(arrays | {"reward": log["r"] * 3}), **bounds)
    with pytest.raises(cp.OptionError, match="clusters"):
        cp.evaluate(**arrays, **bounds, cluster=log["group"])


def test_levels_nest():
    log = plain.random_log(1, n=500)
    arrays = {"reward": log["r"], "propensity": log["p"], "target": log["t"], "cluster": log["group"] + np.arange(500)}
    for interval in ("normal", "jackknife", "anytime"):
        widths = [
            cp.evaluate(**arrays, level=level, interval=interval)["target", "snips"].interval.width
            for level in (0.5, 0.9, 0.99)
        ]
        assert widths == sorted(widths)
        assert widths[0] > 0
