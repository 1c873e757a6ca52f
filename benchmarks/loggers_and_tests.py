"""Several loggers and A/B tests against the truth: `python benchmarks/loggers_and_tests.py [runs]`.

Twenty pairs of loggers, from two that are alike to one that is nearly deterministic: the root mean squared error of balanced weights, naive
pooling and the mean of both loggers by inverse variance, all with the optimal baseline. Then A/B tests of policies that agree on 50 to
99 % of decisions: the width and coverage of the three methods' intervals.
"""

import sys

import numpy as np
import polars as pl

import counterpoise as cp
from counterpoise.estimators import beta_ips
from counterpoise.moments import Moments

ROWS = 1_000
ACTIONS = 5


def policies(random, rows, sharpness):
    """A policy's probabilities, the nearer to one action the sharper it is."""
    best = np.eye(ACTIONS)[random.integers(ACTIONS, size=rows)]
    return (1 - sharpness) * random.dirichlet(np.ones(ACTIONS) * 3, rows) + sharpness * best


def estimates(random, share, sharp):
    """What the three ways say about one log, less the truth."""
    loggers = [policies(random, ROWS, one) for one in sharp]
    target = policies(random, ROWS, 0.3)
    appeal = np.linspace(0.1, 0.9, ACTIONS)
    is_first = random.random(ROWS) < share
    acted = np.where(is_first[:, None], *loggers)
    action = (random.random(ROWS)[:, None] > acted.cumsum(axis=1)).sum(axis=1).clip(0, ACTIONS - 1)
    reward = (random.random(ROWS) < appeal[action]) * 1.0
    at = np.arange(ROWS), action
    t, first, second, own = target[at], loggers[0][at], loggers[1][at], acted[at]
    seen = is_first.mean()
    truth = (target @ appeal).mean()
    balanced = beta_ips(Moments.of(t / (seen * first + (1 - seen) * second), reward)).value
    naive = beta_ips(Moments.of(t / own, reward)).value
    each = [beta_ips(Moments.of((t / own)[one], reward[one])) for one in (is_first, ~is_first)]
    mass = [one.stderr**-2 for one in each]
    mixed = sum(m * one.value for m, one in zip(mass, each, strict=True)) / sum(mass)
    return np.array([balanced, naive, mixed]) - truth


def loggers(runs):
    """The errors of twenty pairs of loggers."""
    print("| share of the first | sharpness of both | balanced | naive | inverse variance |\n|---|---|---|---|---|")
    for share in (0.1, 0.3, 0.5, 0.8):
        for sharp in ((0.0, 0.0), (0.0, 0.5), (0.5, 0.5), (0.2, 0.9), (0.0, 0.995)):
            random = np.random.default_rng([1, int(10 * share), int(1000 * sharp[0]), int(1000 * sharp[1])])
            off = np.array([estimates(random, share, sharp) for _ in range(runs)])
            rmse = np.sqrt(np.square(off).mean(axis=0))
            print(f"| {share} | {sharp[0]}, {sharp[1]} | " + " | ".join(f"{one:.4f}" for one in rmse) + " |")


def tests(runs):
    """The width (in that of the difference in means) and coverage of each method."""
    print("\n| policies agree on | method | width | covered |\n|---|---|---|---|")
    for agree in (0.5, 0.9, 0.99):
        widths, covered = {}, {}
        for seed in range(runs):
            log, truth = _test(np.random.default_rng([2, int(100 * agree), seed]), agree)
            found = cp.ab_test(
                log, arm="arm", against="old", reward="r", baseline=["x"], propensity={"new": "p_new", "old": "p_old"}
            )
            plain = found.effects[0].interval.width
            for one in found.effects:
                widths.setdefault(one.method, []).append(one.interval.width / plain)
                covered.setdefault(one.method, []).append(truth in one.interval)
        for method in widths:
            print(f"| {agree:.0%} | {method} | {np.mean(widths[method]):.2f} | {np.mean(covered[method]):.1%} |")


def _test(random, agree, rows=2_000):
    x, arm = random.normal(size=rows), np.where(random.random(rows) < 0.5, "new", "old")
    old = random.integers(3, size=rows)
    new = np.where(random.random(rows) < agree, old, 3)
    action = np.where(arm == "new", new, old)
    r = x + 0.5 * (action == 3) + random.normal(size=rows)
    columns = {"arm": arm, "r": r, "x": x, "p_new": (action == new) * 1.0, "p_old": (action == old) * 1.0}
    return pl.DataFrame(columns), 0.5 * (1 - agree)


if __name__ == "__main__":
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    loggers(runs)
    tests(runs)
