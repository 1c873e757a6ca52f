"""How often intervals of list values cover the simulated truth, by click model, number of positions and weight.

    python benchmarks/list_coverage.py                                  # 400 logs a cell
    python benchmarks/list_coverage.py --runs 1000 --seed 5 --seed 6    # other worlds

Prints every weight under every click model, the right ones and (marked so) the wrong ones, with bias and coverage. Exits with 1 if a right
one covers less than 93 % or more than 97 % of the truths by more than three standard errors, where the verdict is `ok`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

import counterpoise as cp
from counterpoise.environments import SyntheticRanking

WEIGHTS = {
    "independent": (cp.weights.Independent(), "at", "item_at_position"),
    "cascade": (cp.weights.Cascade(), "given", "item_given_above"),
    "standard": (cp.weights.Standard(), "given", "item_given_above"),
    "pseudo_inverse": (cp.weights.PseudoInverse(), "at", "item_at_position"),
}
RIGHT = {
    ("position", "plackett_luce"): ("independent", "cascade", "standard"),
    ("cascade", "plackett_luce"): ("cascade", "standard"),
    ("dependent", "plackett_luce"): ("standard",),
    ("position", "independent"): tuple(WEIGHTS),
}


@dataclass(frozen=True)
class Cell:
    """One weight in one world: how far off it is in errors, how often it covers, and how often the verdict is ok."""

    name: str
    is_right: bool
    bias: float
    ok: int
    covered: float

    @property
    def keeps(self) -> bool:
        """Whether it covers as promised, or need not."""
        error = 3 * np.sqrt(0.05 * 0.95 / max(self.ok, 1))
        return not (self.is_right and self.ok) or 0.93 - error <= self.covered <= 0.97 + error

    def __str__(self) -> str:
        return f"| {self.name}{'' if self.is_right else ' (wrong)'} | {self.bias:+.1f} | {self.ok:,} | {100 * self.covered:.1f} % |"


def cells(world: tuple[int, tuple[str, str], int], runs: int, lists: int) -> list[Cell]:
    """Every weight in one world."""
    positions, (clicks, logging), seed = world
    sharper = 1.0 if positions == 3 else 0.5
    made = SyntheticRanking(positions, clicks=clicks, logging=logging, sharper=sharper, seed=seed)
    truth, error = made.value(draws=1_000_000)
    found: dict[str, list[tuple[float, bool, bool]]] = {name: [] for name in WEIGHTS}
    for _ in range(runs):
        log = made.draw(lists)
        for name, (weight, kind, said) in WEIGHTS.items():
            result = cp.evaluate(
                log, reward="click", propensity=f"p_{kind}", target=f"new_{kind}", slate="list", position="position",
                propensity_of=said, weight=weight, progress=False,
            )  # fmt: skip
            one = result[f"new_{kind}", "beta_ips"]
            found[name].append((one.value, truth in one.interval, result.verdict().verdict == "ok"))
    about = f"{positions} | {clicks}, {logging}, seed {seed} | "
    return [_cell(about + name, name in RIGHT[clicks, logging], rows, truth, error) for name, rows in found.items()]


def _cell(name: str, is_right: bool, rows: Sequence[tuple[float, bool, bool]], truth: float, error: float) -> Cell:
    value, covered, ok = (np.array(column) for column in zip(*rows, strict=True))
    bias = (value.mean() - truth) / np.hypot(value.std() / np.sqrt(len(value)), error)
    return Cell(name, is_right, float(bias), int(ok.sum()), float(covered[ok].mean()) if ok.any() else np.nan)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--lists", type=int, default=2_000)
    parser.add_argument("--seed", type=int, action="append", help="of a world; may be repeated")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    print(
        "| positions | clicks, logging | weight | bias, in errors | ok | covered, given ok |\n|---|---|---|---|---|---|"
    )
    broken = []
    with ProcessPoolExecutor(given.processes) as pool:
        worlds = list(product((3, 10), RIGHT, given.seed or [0]))
        for found in pool.map(partial(cells, runs=given.runs, lists=given.lists), worlds):
            print(*found, sep="\n", flush=True)
            broken += [one for one in found if not one.keeps]
    for one in broken:
        print("outside what is promised:", one)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
