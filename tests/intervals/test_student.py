"""Student's interval: the formula by hand, its limits, and what it covers."""

import math

import numpy as np
import pytest
from scipy import stats

import counterpoise as cp
from counterpoise.intervals import Evidence, Student
from counterpoise.intervals.method import normal

pytestmark = pytest.mark.once


def by_hand(w, r, level=0.95):
    """β-IPS of the rows and of two half rows more, with t quantiles, written out."""
    n, u = len(w), w - 1
    beta = np.cov(w * r, w, bias=True)[0, 1] / w.var()
    term = beta + w * (r - beta)
    kurtosis = stats.kurtosis(u, fisher=False)
    low, high = (0.0, 1.0) if set(np.unique(r)) <= {0.0, 1.0} else (r.min(), r.max())
    share = min(((r - end) ** 2).mean() ** 2 / ((r - end) ** 4).mean() for end in (low, high))
    seen = 1.0 if len(np.unique(r)) == 2 else 0.5
    freedom = max(3.0, (seen * n / kurtosis * share / 5) ** 2)
    heavy = math.sqrt((u**4).mean() / (u**2).mean()) if n / kurtosis >= 10 else w.max() - 1
    rare = low + ((r - low) ** 2).mean() / (r - low).mean()
    usual = high - ((high - r) ** 2).mean() / (high - r).mean()
    extremes = sorted(beta + (1 + heavy) * (reward - beta) for reward in (rare, usual))
    spread = term.var() / (1 - min(kurtosis / n, 0.6)) ** 2
    total = n + 1
    mean = (term.sum() + sum(extremes) / 2) / total
    variance = n * spread + n * (term.mean() - mean) ** 2 + sum((x - mean) ** 2 for x in extremes) / 2
    half = stats.t(freedom).ppf((1 + level) / 2) * math.sqrt(variance) / total
    return mean - half, mean + half


@pytest.mark.parametrize("kind", ["clicks", "amounts", "heavy"])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_formula_by_hand(kind, level):
    g = np.random.default_rng(3)
    n = 400
    w = g.exponential(1.0, n) if kind != "heavy" else np.where(np.arange(n) % 100 == 0, 40.0, 0.6)
    r = g.lognormal(size=n) if kind == "amounts" else (g.random(n) < 0.2).astype(float)
    p = np.full(n, 0.01)
    found = cp.evaluate(reward=r, propensity=p, target=w * p, level=level)["target", "beta_ips"]
    lower, upper = by_hand(w, r, level)
    ends = (lower, upper) if kind == "amounts" else (max(lower, 0.0), min(upper, 1.0))
    assert tuple(found.interval) == pytest.approx(ends, rel=1e-9)
    assert found.interval.method == "student"


def test_it_is_the_normal_interval_where_many_rows_carry_the_answer():
    g = np.random.default_rng(4)
    n = 200_000
    log = {"reward": g.random(n) < 0.5, "propensity": np.full(n, 0.5), "target": g.uniform(0.3, 0.7, n)}
    for name in ("beta_ips", "lift", "snips", "ips"):
        one = cp.evaluate(**log)["target", name]
        plain = normal(one.value, one.stderr)
        assert one.interval.width == pytest.approx(plain.width, rel=2e-3)
        assert one.interval.lower == pytest.approx(plain.lower, abs=2e-3 * plain.width)


def test_fewer_carrying_rows_and_fewer_clusters_make_it_wider():
    def width(**change):
        return Student().interval(Evidence(0.0, 1.0, n=1000, extremes=(-9.0, 9.0), **change), 0.95).width

    assert width(carrying=3.0) > width(carrying=30.0) > width(carrying=300.0)
    assert width(groups=100, clusters=5.0) > width(groups=100, clusters=80.0) > width()
    assert width(leverage=0.3) > width()


def test_what_cannot_be_known_is_the_whole_line():
    for value, stderr, n in ((math.nan, 1.0, 10), (0.0, math.inf, 10), (0.0, 1.0, 1)):
        assert tuple(Student().interval(Evidence(value, stderr, n), 0.95)) == (-math.inf, math.inf)


@pytest.mark.thorough
def test_a_new_arm_is_covered_where_the_normal_interval_misses_nearly_always():
    """Logged in 1 % of the rows, shown in 30 %: of 1,000 rows ten show it, and of those 0.2 have a click."""
    g = np.random.default_rng(5)
    runs, n, rate = 400, 1000, 0.02
    held = plain = 0
    for _ in range(runs):
        arm = g.choice(3, n, p=[0.91, 0.01, 0.08])
        p, t = np.array([0.91, 0.01, 0.08])[arm], np.array([0.7, 0.3, 0.0])[arm]
        reward = (g.random(n) < rate).astype(float)
        found = cp.evaluate(reward=reward, propensity=p, target=t, estimator="beta_ips")
        one = found["target", "beta_ips"]
        held += rate in one.interval
        plain += rate in normal(one.value, one.stderr)
        assert found.verdict().verdict != "ok"
    error = math.sqrt(0.95 * 0.05 / runs)
    assert held / runs > 0.95 - 3 * error
    assert plain / runs < 0.7
