"""How often does the test of the mean weight raise a false alarm? Worlds of `coverage_grid.py`, whose propensities are all right.

    python benchmarks/mean_weight.py                      # 4,000 logs a cell, ten minutes of one core
    python benchmarks/mean_weight.py --runs 500

Only where at least 30 rows carry the weights' variance does the test speak; elsewhere the verdict says that it cannot tell. A log whose
largest weight is less than half of its world's lacks actions that the target takes, as the alarm then says: such logs are counted apart.
Exits with 1 if alarms at p < 0.001 are more than twice as frequent as that, over all logs on which the test speaks, or in any cell.
"""

from __future__ import annotations

import argparse
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from coverage_grid import Table, worlds

from counterpoise.diagnostics.diagnose import FEW_WEIGHTS, MeanWeight
from counterpoise.moments import Powers

SIZES = (200, 1_000, 5_000, 20_000)
ALARM = 0.001
LEVELS = (0.05, 0.01, ALARM)


def tests(cell: tuple[str, int], runs: int, seed: int) -> list[tuple[float, float, float]]:
    """The rows that carry the weights' variance, the p-value and the largest weight, of every log of a cell."""
    world, n = cell
    random = np.random.default_rng([seed, n, 200 + sorted(worlds()).index(world)])
    found = []
    for _ in range(runs):
        columns, _ = worlds()[world].draw(random, n)
        u = columns["t0"] / columns["p"] - 1.0
        excess = Powers.of(u)
        p = MeanWeight(excess, float(u.std(ddof=1)) / math.sqrt(n)).p_value
        found.append((n / excess.kurtosis, p, 1.0 + float(u.max())))
    return found


def heaviest(world: str) -> float:
    """The largest weight of a world; of those without one, 0."""
    place = worlds()[world]
    return float((place.targets[0] / place.logging).max()) if isinstance(place, Table) else 0.0


def line(name: str, logs: int, p: np.ndarray, lacking: int) -> str:
    rates = " | ".join(f"{100 * np.mean(p < level):.2f} %" for level in LEVELS)
    alarms = int(np.sum(p < ALARM))
    return f"| {name} | {100 * len(p) / logs:.1f} % | {rates} | {alarms} of {logs:,} | {lacking} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    cells = [(world, n) for n in SIZES for world in worlds()]
    with ProcessPoolExecutor(given.processes) as pool:
        found = list(pool.map(partial(tests, runs=given.runs, seed=given.seed), cells))
    print("| cell | tested | " + " | ".join(f"p < {level:g}" for level in LEVELS) + " | alarms | logs that lack rows |")
    print("|---|---|---|---|---|---|---|")
    every, lacked, is_kept = [], 0, True
    for (world, n), ran in zip(cells, found, strict=True):
        rows, p, largest = np.array(ran).T
        speaks, lacks = rows >= FEW_WEIGHTS, largest < heaviest(world) / 2
        tested = p[speaks & ~lacks]
        every.append(tested)
        lacked += int((speaks & lacks).sum())
        is_kept &= few(tested, given.runs)
        if len(tested):
            print(line(f"{world}, n = {n:,}", given.runs, tested, int((speaks & lacks).sum())))
    whole = np.concatenate(every)
    print(line("all", given.runs * len(cells), whole, lacked))
    return int(not (is_kept and few(whole, len(whole))))


def few(p: np.ndarray, logs: int) -> bool:
    """Whether alarms are at most twice as frequent as they should be, but for the luck of so many logs."""
    return bool(np.sum(p < ALARM) <= 2 * ALARM * logs + 3 * math.sqrt(2 * ALARM * logs))


if __name__ == "__main__":
    sys.exit(main())
