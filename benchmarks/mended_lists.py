"""Lists that end early: how often intervals cover, and how often the verdict is `ok`, where lengths are and are not the choice's doing.

    python benchmarks/mended_lists.py --runs 1000 --processes 8 --seed 1
    python benchmarks/mended_lists.py --runs 1000 --write after.csv --against before.csv    # which doubts are new

Lists of up to five positions are filled slot by slot, so that every weight is right as long as lengths are fixed beforehand. Then people
leave after an item with a chance that depends on it, from hardly to strongly. Cascade and standard are right there, too; independent and
pseudo-inverse are not, and must not say `ok` where their bias exceeds two standard errors. Runs go round four worlds of each kind. Exits
with 1 if a wrong one is `ok` in more than 10 % of the logs of worlds with such a bias, if a right one with `ok` covers less than 93 %, or
if more than 2 % of right logs have a doubt that they don't have in the file `--against`, which another version wrote.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl

import counterpoise as cp

POSITIONS, ITEMS, CONTEXTS, WORLDS = 5, 7, 4, 4
WEIGHTS = {
    "independent": (cp.weights.Independent(), "item_at_position"),
    "pseudo_inverse": (cp.weights.PseudoInverse(), "item_at_position"),
    "cascade": (cp.weights.Cascade(), "item_given_above"),
    "standard": (cp.weights.Standard(), "item_given_above"),
}
# how far the odds of leaving differ between items
EXITS = {"exits 0.3": 0.3, "exits 1": 1.0, "exits 2": 2.0, "exits 4": 4.0}
KINDS = ("equal lengths", "lengths fixed before", *EXITS)


class World:
    """Policies, clicks and exits at every slot, with a value that is a sum over contexts."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, random = kind, np.random.default_rng([seed, 77])
        shape = (CONTEXTS, POSITIONS, ITEMS)
        charm = random.normal(size=(CONTEXTS, 1, ITEMS))
        old = random.normal(0.0, 0.4, shape)
        self.old, self.new = (_softmax(one) for one in (old, old + 0.4 * charm + random.normal(0.0, 0.2, shape)))
        self.click = 1 / (1 + np.exp(1.2 - 0.5 * charm - random.normal(0.0, 0.4, shape)))
        stays = 1.0 + EXITS.get(kind, 0.0) * (charm + random.normal(0.0, 0.3, shape)) * random.choice((-1, 1))
        self.stay = 1 / (1 + np.exp(-stays))
        self.shortest = random.integers(1, POSITIONS, CONTEXTS)

    @property
    def value(self) -> float:
        """What the new policy's lists earn."""
        goes_on = (self.new * self.stay).sum(axis=2) if self.kind in EXITS else np.ones((CONTEXTS, POSITIONS))
        reached = np.cumprod(np.concatenate([np.ones((CONTEXTS, 1)), goes_on[:, :-1]], axis=1), axis=1)
        if self.kind == "lengths fixed before":
            k = np.arange(POSITIONS)
            reached = np.minimum(1.0, (POSITIONS - k) / (POSITIONS - self.shortest[:, None] + 1))
        return float((reached * (self.new * self.click).sum(axis=2)).sum(axis=1).mean())

    def draw(self, lists: int, seed: int) -> pl.DataFrame:
        """A log with one row for each position that was reached."""
        random, k = np.random.default_rng([seed, 78]), np.arange(POSITIONS)
        x = random.integers(CONTEXTS, size=lists)[:, None]
        chance = np.cumsum(self.old[x[:, 0]], axis=2)
        item = (random.random((lists, POSITIONS, 1)) > chance[:, :, :-1]).sum(axis=2)
        length = np.full(lists, POSITIONS)
        if self.kind == "lengths fixed before":
            length = random.integers(self.shortest[x[:, 0]], POSITIONS + 1)
        elif self.kind in EXITS:
            leaves = random.random(item.shape) >= self.stay[x, k, item]
            length = np.where(leaves.any(axis=1), leaves.argmax(axis=1) + 1, POSITIONS)
        there = k < length[:, None]
        columns = {
            "list": np.broadcast_to(np.arange(lists)[:, None], item.shape),
            "position": np.broadcast_to(k + 1, item.shape),
            "click": (random.random(item.shape) < self.click[x, k, item]).astype(float),
            "p": self.old[x, k, item],
            "new": self.new[x, k, item],
        }
        return pl.DataFrame({name: one[there] for name, one in columns.items()})


def _softmax(scores: np.ndarray) -> np.ndarray:
    odds = np.exp(scores)
    return np.asarray(odds / odds.sum(axis=2, keepdims=True))


Verdicts = dict[tuple[str, str, int], bool]
Row = tuple[str, str, int, float, bool, bool]  # kind, weight, run, how far off, covered, ok


def run(one: tuple[str, int], seed: int, lists: int) -> list[Row]:
    """Every weight on one log of one kind."""
    kind, k = one
    world = World(kind, seed * WORLDS + k % WORLDS)
    log, truth = world.draw(lists, seed * 1_000_003 + k), world.value
    found = []
    for name, (weight, said) in WEIGHTS.items():
        result = cp.evaluate(
            log, reward="click", propensity="p", target="new", slate="list", position="position", propensity_of=said, weight=weight,
            progress=False,
        )  # fmt: skip
        best = result["new", "beta_ips"]
        ok = result.verdict("new").verdict == "ok"
        found.append((kind, name, k, best.value - truth, truth in best.interval, ok))
    return found


@dataclass(frozen=True)
class Cell:
    """One weight on all logs of one kind."""

    kind: str
    weight: str
    rows: list[Row]

    @property
    def is_right(self) -> bool:
        """Whether the weight suits such logs."""
        return self.kind not in EXITS or self.weight in ("cascade", "standard")

    @property
    def bias(self) -> list[float]:
        """The bias over the standard deviation, world by world."""
        off = [np.array([row[3] for row in self.rows if row[2] % WORLDS == k]) for k in range(WORLDS)]
        return [float(one.mean() / one.std()) for one in off if len(one) > 1]

    @property
    def missed(self) -> float:
        """How often the verdict is ok in worlds with a bias of more than two standard deviations; nan where there are none."""
        far = [k for k, bias in enumerate(self.bias) if abs(bias) > 2]
        verdicts = [row[5] for row in self.rows if row[2] % WORLDS in far]
        return float(np.mean(verdicts)) if verdicts else math.nan

    def new_doubts(self, before: Verdicts) -> float:
        """How many logs were ok and are not."""
        return float(np.mean([before.get(row[:3], False) and not row[5] for row in self.rows]))

    def faults(self, before: Verdicts) -> list[str]:
        """What is required and not so."""
        covered, ok = (np.array([row[k] for row in self.rows]) for k in (4, 5))
        found = []
        if not self.is_right and self.missed > 0.1:
            found.append(f"ok in {self.missed:.1%} of the logs with a bias")
        if self.is_right and ok.any() and covered[ok].mean() < 0.93 - 3 * math.sqrt(0.05 * 0.95 / ok.sum()):
            found.append(f"covers {covered[ok].mean():.1%} where ok")
        if self.is_right and self.new_doubts(before) > 0.02:
            found.append(f"{self.new_doubts(before):.1%} of right logs have a new doubt")
        return [f"{self.kind}, {self.weight}: {one}" for one in found]

    def line(self, before: Verdicts) -> str:
        """The cell as a row of a table."""
        covered, ok = (np.array([row[k] for row in self.rows]) for k in (4, 5))
        parts = [
            self.kind, self.weight + ("" if self.is_right else " (wrong)"), f"{covered.mean():.1%}", f"{ok.mean():.1%}",
            f"{covered[ok].mean():.1%}" if ok.any() else "–", " ".join(f"{bias:+.2f}" for bias in self.bias),
            "" if math.isnan(self.missed) else f"{self.missed:.1%}", f"{self.new_doubts(before):.1%}" if before else "",
        ]  # fmt: skip
        return f"| {' | '.join(parts)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--lists", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="kinds of lists whose name has this in it")
    parser.add_argument("--write", type=Path, help="a CSV file for every verdict")
    parser.add_argument("--against", type=Path, help="such a file that another version wrote")
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if given.only in kind]
    with ProcessPoolExecutor(given.processes) as pool:
        work = partial(run, seed=given.seed, lists=given.lists)
        rows = [row for found in pool.map(work, product(kinds, range(given.runs)), chunksize=10) for row in found]
    if given.write:
        with given.write.open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    before: Verdicts = {}
    if given.against:
        with given.against.open(newline="") as file:
            before = {(row[0], row[1], int(row[2])): row[5] == "True" for row in csv.reader(file)}
    print(
        "| lists | weight | covered | ok | covered, given ok | bias/sd by world | ok where that exceeds 2 | new doubts |"
    )
    print("|---|---|---|---|---|---|---|---|")
    faults = []
    for kind, weight in product(kinds, WEIGHTS):
        cell = Cell(kind, weight, [row for row in rows if row[:2] == (kind, weight)])
        print(cell.line(before))
        faults += cell.faults(before)
    for one in faults:
        print("not as required:", one)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
