"""The number that policies are chosen by: against plain loops, and a bound that holds as often as it says."""

import math

import numpy as np
import pytest
from learning import torch  # noqa: F401  the room needs it

import counterpoise as cp
from counterpoise.learn.criterion import Score, pessimistic_value

RANDOM = np.random.default_rng(0)


def by_loops(w, r):
    """Value, bound, and effective sample, row by row."""
    n, lowest = len(w), min(r)
    mean_w = sum(w) / n
    around = [w[i] * r[i] - sum(w[j] * r[j] for j in range(n)) / n for i in range(n)]
    spread = sum((x - mean_w) ** 2 for x in w)
    beta = sum(around[i] * (w[i] - mean_w) for i in range(n)) / spread if spread else 0.0
    value = beta + sum(w[i] * (r[i] - beta) for i in range(n)) / n
    size = math.sqrt(sum((x - lowest) ** 2 for x in r) / n)
    bounds = [0.0]
    for factor in (4, 2, 1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32):
        one = factor / (math.sqrt(n) * size)
        product = sum(math.log(1 + one * w[i] * (r[i] - lowest)) for i in range(n))
        bounds.append((math.exp((product - math.log(8 / 0.05)) / n) - 1) / one)  # (1 + λV)ⁿ ≥ Π / (8/δ)
    return value, lowest + max(bounds), sum(w) ** 2 / sum(x * x for x in w)


@pytest.mark.parametrize("shift", [0.0, -3.0, 100.0])
def test_value_and_bound_are_those_of_plain_loops(shift):
    w, r = RANDOM.gamma(0.5, 2, size=200), RANDOM.normal(size=200) + shift
    found = pessimistic_value(w, r)
    value, lower, effective = by_loops(w.tolist(), r.tolist())
    assert found.value == pytest.approx(value, rel=1e-9)
    assert found.lower == pytest.approx(lower, rel=1e-9)
    assert found.effective_sample_size == pytest.approx(effective, rel=1e-9)
    result = cp.evaluate(reward=r, propensity=np.full(200, 0.01), target=w / 100)
    assert found.stderr == pytest.approx(result["target", "beta_ips"].stderr, rel=1e-9)


@pytest.mark.thorough
def test_the_bound_is_rarely_above_the_value():
    """One row in a hundred carries all the weight."""
    runs, n, missed, lowers = 2000, 1000, 0, []
    random = np.random.default_rng(1)
    for _ in range(runs):
        explored = (
            random.random(n) < 0.01
        )  # logging takes another action one time in 100, the target always takes that one
        w = np.where(explored, 100.0, 0.0)
        r = random.random(n) < np.where(explored, 0.6, 0.3)
        lowers.append(pessimistic_value(w, r.astype(float)).lower)
        missed += lowers[-1] > 0.6
    assert missed / runs < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    assert np.mean(lowers) > 0.05  # and it says something


def test_few_large_weights_do_not_count_as_measured():
    assert pessimistic_value(np.ones(40), RANDOM.random(40)).is_measured
    assert not pessimistic_value(np.ones(29), RANDOM.random(29)).is_measured
    heavy = np.where(np.arange(5000) < 25, 200.0, 0.0)
    assert not pessimistic_value(heavy, RANDOM.random(5000)).is_measured
    light = RANDOM.gamma(1, 1, size=2000)
    assert pessimistic_value(light, RANDOM.random(2000)).is_measured
    assert not pessimistic_value(0.8 * light, RANDOM.random(2000)).is_measured  # its heavy rows have not come up


def test_the_criterion_is_the_value_less_its_error_or_else_the_bound():
    assert Score(0.9, 0.125, 0.2, 3.0, is_measured=False).criterion == 0.2
    assert Score(0.9, 0.125, 0.2, 300.0, is_measured=True).criterion == 0.9 - 0.125


def test_odd_rows_have_scores_that_can_be_compared():
    assert pessimistic_value(np.zeros(5), np.ones(5)).lower == 1.0  # no reward is below 1
    assert pessimistic_value([2.0], [3.0]).criterion == 3.0
    assert math.isnan(pessimistic_value([], []).criterion)
