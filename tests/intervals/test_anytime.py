"""Anytime intervals answer only where they can keep their word."""

import math

import numpy as np
import pytest
from scipy import stats

import counterpoise as cp
from counterpoise.intervals import Anytime, Evidence
from counterpoise.intervals.anytime import anytime


def epsilon_greedy(n, seed, rate=0.02, share=0.1, actions=10):
    """The logging policy takes the first action but for a share of uniform choice; the target takes the second in nine of ten rows."""
    g = np.random.default_rng(seed)
    logging = np.full(actions, share / actions)
    logging[0] += 1 - share
    target = np.full(actions, 0.1 / actions)
    target[1] += 0.9
    shown = g.choice(actions, n, p=logging)
    return {"r": (g.random(n) < rate).astype(float), "p": logging[shown], "new": target[shown]}


def test_few_carrying_rows_get_the_whole_line_and_a_note():
    found = cp.evaluate(epsilon_greedy(2000, 0), reward="r", propensity="p", target="new", interval="anytime")
    interval = found["new", "beta_ips"].interval
    assert (interval.lower, interval.upper) == (-math.inf, math.inf)
    assert "rows carry this answer" in interval.note


def spend(n, seed):
    """15 % of the rows buy, for lognormal amounts; the target does in nine of ten rows what the log did in one of twenty."""
    g = np.random.default_rng(seed)
    rare = g.random(n) < 0.05
    return {
        "r": (g.random(n) < 0.15) * np.exp(g.normal(size=n)),
        "p": np.where(rare, 0.05, 0.95),
        "new": np.where(rare, 0.9, 0.1),
    }


def test_spends_get_an_answer_where_enough_buyers_have_come_up():
    """The largest amounts carry the variance, and few rows have them; but 150 rows with a large weight bought something."""
    for seed in range(3):
        found = cp.evaluate(spend(20_000, seed), reward="r", propensity="p", target="new", interval="anytime")
        interval, carrying = found["new", "beta_ips"].interval, found.diagnostics().carrying_rows
        assert carrying < 6
        assert 0.15 * math.exp(0.5) in interval
        assert interval.width < math.inf
    few = cp.evaluate(spend(200, 0), reward="r", propensity="p", target="new", interval="anytime")
    assert few["new", "beta_ips"].interval.width == math.inf


def test_heavy_rows_that_have_not_come_up_are_noticed_by_the_mean_weight():
    log = epsilon_greedy(300, 0, rate=0.5)
    few = {name: column[log["new"] < 0.5] for name, column in log.items()}  # none of the rows that the target is about
    interval = cp.evaluate(few, reward="r", propensity="p", target="new", interval="anytime")[
        "new", "beta_ips"
    ].interval
    assert interval.width == math.inf
    assert "heavy rows have not come up" in interval.note
    clipped = cp.evaluate(few, reward="r", propensity="p", target="new", interval="anytime", weight=cp.weights.Clip(5))[
        "new", "beta_ips"
    ].interval
    assert clipped.width < math.inf  # whose mean need not be 1


def test_tails_are_students_at_the_factor_of_the_confidence_sequence():
    plain = anytime(0.5, 0.1, 500)
    many = Anytime().interval(Evidence(0.5, 0.1, n=500, carrying=1e9), 0.95)
    assert many.width == pytest.approx(plain.width, rel=1e-9)
    few = Anytime().interval(Evidence(0.5, 0.1, n=500, carrying=20.0), 0.95)
    factor = plain.width / 0.2
    assert few.width / 0.2 == pytest.approx(stats.t(16).isf(stats.norm.sf(factor)), rel=1e-10)


@pytest.mark.thorough
@pytest.mark.once
def test_epsilon_greedy_logs_are_missed_at_no_more_than_their_share_of_looks():
    """100 logs, 12 looks each from n = 100; 5 misses are expected at most, and 13 come once in a thousand."""
    missed = 0
    for seed in range(100):
        log = epsilon_greedy(6000, seed, rate=0.3)
        intervals = []
        for n in np.geomspace(100, 6000, 12).astype(int):
            part = {name: column[:n] for name, column in log.items()}
            found = cp.evaluate(
                part, reward="r", propensity="p", target="new", interval="anytime", estimator="beta_ips"
            )
            intervals.append(found["new", "beta_ips"].interval)
        missed += any(0.3 not in interval for interval in intervals)
    assert missed < 13
    assert any(interval.width < math.inf for interval in intervals)


def test_the_unit_of_rewards_does_not_matter_however_small():
    clicks = np.array([1.0, 0.0, 0.0, 1.0] * 50)
    log = {"propensity": np.full(200, 0.5), "target": np.tile([0.4, 0.6], 100)}
    whole = cp.evaluate(**log, reward=clicks, interval="anytime")["target", "beta_ips"].interval
    tiny = cp.evaluate(**log, reward=clicks * 1e-60, interval="anytime")["target", "beta_ips"].interval
    assert (tiny.lower * 1e60, tiny.upper * 1e60) == pytest.approx((whole.lower, whole.upper))
