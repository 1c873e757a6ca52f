"""Does the anytime interval miss at most as often as it says, however often one looks? Logs that grow, looked at thirty times.

    python benchmarks/anytime_misses.py                      # ten minutes on two cores
    python benchmarks/anytime_misses.py --runs 100           # a glance

A run is a log that grows to 20,000 rows and is looked at from its hundredth row on; it is missed if any of its intervals misses the truth.
Looks with an answer got an interval with two ends; the last column is about the last look, at all rows.
Exits with 1 if a world misses more often than 5 %, beyond Monte Carlo error.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import polars as pl
from coverage_grid import CONTEXTS, REWARDS, Clicks, Floats, Table, fixed, greedy, worlds

import counterpoise as cp

LOOKS = np.unique(np.geomspace(100, 20_000, 30).astype(int))


class Spend(Clicks):
    """15 in a hundred buy, for lognormal amounts with σ = 1."""

    def mean(self, effect: Floats) -> Floats:
        return math.exp(0.5) * super().mean(effect)

    def draw(self, random: np.random.Generator, effect: Floats) -> Floats:
        buys = random.random(effect.shape) < super().mean(effect)
        return buys * np.exp(random.normal(size=effect.shape))


KINDS = {name: REWARDS[name] for name in ("clicks 0.02", "clicks 0.3", "revenue")} | {"spend": Spend(0.15)}


def places() -> dict[str, object]:
    """ε-greedy logging, and other worlds of the grid."""
    random = np.random.default_rng(2028)
    effects = random.normal(size=(CONTEXTS, 10))
    rival = greedy(0.5 * effects + random.normal(size=(CONTEXTS, 10)))
    found: dict[str, object] = {
        f"ε-greedy logging, ε = {share}": Table(greedy(effects, share), (rival,), effects) for share in (0.1, 0.2)
    }
    found["spends, largest weight 18"] = Table(fixed(0.95, 0.05), (fixed(0.1, 0.9),), random.normal(size=(CONTEXTS, 2)))
    names = ("10 actions, greedy", "own: near on-policy", "new arm", "own: rare treatment", "lognormal 1.0, +0.6")
    return found | {name: worlds()[name] for name in names}


def watch(job: tuple[str, int, int]) -> dict[str, tuple[int, float, float]]:
    """How many logs of a world are missed at any look, and what share of looks and of last looks gets an answer, by reward."""
    world, runs, seed = job
    place = places()[world]
    random = np.random.default_rng([seed, list(places()).index(world)])
    truths = {name: place.expect(reward.mean)[1] for name, reward in KINDS.items()}  # type: ignore[attr-defined]
    missed, answered, last = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    for _ in range(runs):
        columns, effect = place.draw(random, int(LOOKS[-1]))  # type: ignore[attr-defined]
        log = pl.DataFrame(columns | {name: reward.draw(random, effect) for name, reward in KINDS.items()})
        seen = dict.fromkeys(KINDS, False)
        for n in LOOKS.tolist():
            found = cp.evaluate(
                log[:n], reward=list(KINDS), propensity="p", target="t0", estimator="beta_ips", interval="anytime",
                progress=False,
            )  # fmt: skip
            for name in KINDS:
                interval = found.of(name)["t0", "beta_ips"].interval
                seen[name] |= truths[name] not in interval
                answered[name] += math.isfinite(interval.width)
                last[name] += n == LOOKS[-1] and math.isfinite(interval.width)
        for name in KINDS:
            missed[name] += seen[name]
    return {name: (missed[name], answered[name] / (runs * len(LOOKS)), last[name] / runs) for name in KINDS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    start, kept = time.time(), True
    print("| world | reward | logs missed at any look | looks with an answer | at all rows |\n|---|---|---|---|---|")
    with ProcessPoolExecutor(given.processes) as pool:
        jobs = [(world, given.runs, given.seed) for world in places()]
        for (world, _, _), found in zip(jobs, pool.map(watch, jobs), strict=True):
            for name, (missed, answered, last) in found.items():
                print(f"| {world} | {name} | {missed / given.runs:.1%} | {answered:.0%} | {last:.0%} |", flush=True)
                kept &= missed / given.runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / given.runs)
    print(f"\n{given.runs:,} logs a world, {time.time() - start:.0f} s. At most 5 %: {'kept' if kept else 'NOT kept'}.")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
