"""Does `check_coverage` report what is true? Its answer on single logs against the coverage over many, in worlds with known truth.

    python benchmarks/check_coverage.py                                  # all cells, about an hour on one core
    python benchmarks/check_coverage.py --logs 3 --size 200              # a glance
    python benchmarks/check_coverage.py --cells cells.csv                # every log as a line of a file

The worlds, pairs and rewards are those of coverage_grid.py, at n = 200, 1,000 and 5,000, with the default interval and the normal one. The
true coverage of a cell is over `--worlds` logs; what is reported is by `--runs` draws on each of `--logs` other logs (a third of
them for the normal interval). Only cells in which at
least half of the logs have three rows that carry the answer count, and of those only the logs that have them: on the others the check says
that it cannot tell.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace

import numpy as np
from coverage_grid import REWARDS, Table, pairs, worlds

import counterpoise as cp
from counterpoise.engines.resampling import each_unit, units_of
from counterpoise.estimators import DIFFERENCES, ESTIMATORS
from counterpoise.evaluation.asking import question_of
from counterpoise.evaluation.estimates import Options, View, estimates
from counterpoise.intervals import strategy

SIZES = (200, 1000, 5000)
INTERVALS = ("student", "normal")
ROWS = 1_000_000  # in memory at a time
CLOSE = 0.03
GLANCE = 30  # logs that show a cell to be hopeless


@dataclass(frozen=True)
class Checked:
    """One log of one cell."""

    part: str
    world: str
    reward: str
    n: int
    interval: str
    carrying: float  # the median of the cell
    true: float
    reported: float
    too_low: float
    true_too_low: float


def asked(part: str, log: dict[str, np.ndarray], **more: str) -> cp.Result:
    columns = {"reward": "r", "propensity": "p", "target": "t0"} | more
    if part == "value":
        return cp.evaluate(log, **columns, estimator="beta_ips", progress=False)  # type: ignore[arg-type]
    return cp.compare(log, **columns, against="t1", progress=False)  # type: ignore[arg-type]


def truth(part: str, world: str, reward: str, n: int, logs: int, random: np.random.Generator) -> dict[str, list[float]]:
    """Over many logs: how often each interval covers and lies too low, and how many rows carry the answer (the median)."""
    place, rewards = (worlds() if part == "value" else pairs())[world], REWARDS[reward]
    expected = place.expect(rewards.mean)
    value = expected[1] if part == "value" else expected[1] - expected[2]
    contrast = ("t0", "" if part == "value" else "t1")
    registry = {"beta_ips": (ESTIMATORS if part == "value" else DIFFERENCES)["beta_ips"]}
    found: dict[str, list[float]] = {name: [] for name in (*INTERVALS, *(f"{name} low" for name in INTERVALS), "E")}
    for start in range(0, logs, max(1, ROWS // n)):
        count = min(max(1, ROWS // n), logs - start)
        columns, effect = place.draw(random, n * count)
        log = columns | {"r": rewards.draw(random, effect), "run": np.repeat(np.arange(count), n)}
        parts = {"reward": "r", "propensity": "p", "cluster": "run"}
        question = question_of(log, parts, "t0", against="t1" if part == "difference" else None)
        units = units_of(question, rows=n * count, center=expected[0], random=random, grouped=True)
        alone = replace(units, question=replace(question, log=question.log.but(cluster=None)))
        view = View(each_unit(alone), contrast)
        found["E"] += view.carrying[1:]
        for name in INTERVALS:
            made = estimates(view, registry, Options(0.95, strategy(name, is_clustered=False))).values()
            found[name] += [value in one.interval for one in made][1:]
            found[f"{name} low"] += [one.interval.upper < value for one in made][1:]
    return found


def cell(part: str, world: str, reward: str, n: int, given: argparse.Namespace) -> list[Checked]:
    """A dozen logs of one cell."""
    place = (worlds() if part == "value" else pairs())[world]
    random = np.random.default_rng([given.seed, n, sorted(REWARDS).index(reward), sum(map(ord, world + part))])
    if np.median(truth(part, world, reward, n, GLANCE, random)["E"]) < 2:
        return []
    over = truth(part, world, reward, n, given.worlds, random)
    carrying = float(np.median(over["E"]))
    if carrying < 3:
        return []
    found = []
    for k in range(given.logs):
        columns, effect = place.draw(random, n)
        log = columns | {"r": REWARDS[reward].draw(random, effect)}
        for name in INTERVALS if k < given.logs / 3 else INTERVALS[:1]:
            one = asked(part, log, interval=name).check_coverage(given.runs, seed=k, progress=False)["t0"]
            if one.can_tell:
                shares = float(np.mean(over[name])), one.covered, one.too_low, float(np.mean(over[f"{name} low"]))
                found.append(Checked(part, world, reward, n, name, carrying, *shares))
    return found


def run(job: tuple[str, str, str, int, argparse.Namespace]) -> list[Checked]:
    return cell(*job)


def jobs(given: argparse.Namespace) -> Iterator[tuple[str, str, str, int, argparse.Namespace]]:
    places: dict[str, dict[str, Table]] = {"value": worlds(), "difference": pairs()}  # type: ignore[dict-item]
    for n in sorted(given.size or SIZES, reverse=True):
        for part, named in places.items():
            cells = [(part, world, reward, n, given) for world in named for reward in REWARDS]
            yield from cells[:: given.every]


def summary(found: list[Checked]) -> bool:
    """The table, and whether eight cells in ten are right with the default interval."""
    kept = True
    print(
        "\n| interval | | cells with E ≥ 3 | true coverage | reported − true | cells within 3 points | logs within 3 points |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in INTERVALS:
        for part in ("value", "difference", "all"):
            own = [one for one in found if one.interval == name and part in (one.part, "all")]
            cells: dict[tuple[str, str, str, int], list[Checked]] = {}
            for one in own:
                cells.setdefault((one.part, one.world, one.reward, one.n), []).append(one)
            if not cells:
                continue
            off = [float(np.mean([one.reported - one.true for one in logs])) for logs in cells.values()]
            true = [logs[0].true for logs in cells.values()]
            right, close = (
                np.mean(np.abs(off) <= CLOSE),
                np.mean([abs(one.reported - one.true) <= CLOSE for one in own]),
            )
            print(
                f"| {name} | {part} | {len(cells)} | {min(true):.1%} to {max(true):.1%} | {np.mean(off):+.2%} | {right:.1%} | "
                f"{close:.1%} |"
            )
            kept &= name != "student" or right >= 0.8
    return bool(kept)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=800, help="logs behind the true coverage of a cell")
    parser.add_argument("--logs", type=int, default=12, help="logs that are checked in a cell")
    parser.add_argument("--runs", type=int, default=500, help="draws of a check")
    parser.add_argument("--size", type=int, action="append")
    parser.add_argument("--every", type=int, default=1, help="only every so manyth cell")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cells", help="a CSV file for every log")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    start, found, todo = time.time(), list[Checked](), list(jobs(given))
    with ProcessPoolExecutor(given.processes) as pool:
        for k, one in enumerate(pool.map(run, todo)):
            found += one
            print(f"\r{k + 1} of {len(todo)}, {time.time() - start:.0f} s", end="", file=sys.stderr, flush=True)
    if given.cells and found:
        with open(given.cells, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(asdict(found[0])))
            writer.writeheader()
            writer.writerows(asdict(one) for one in found)
    kept = summary(found)
    error = 2 * math.sqrt(0.95 * 0.05 / given.worlds)
    print(
        f"\nTrue coverage to ± {error:.1%}, {given.logs} logs a cell, {given.runs} draws a log; {time.time() - start:.0f} s."
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
