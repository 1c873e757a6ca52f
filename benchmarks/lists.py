"""Lists: what they cost, how often their intervals cover, what happens where they end early, and what can be learned from them.

python benchmarks/lists.py --quick
python benchmarks/lists.py coverage --runs 1000 --seed 5 6
"""

from __future__ import annotations

import csv
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import torch
from bench import Suite, fastest_of, head, in_processes, row
from worlds import softmax

import counterpoise as cp
from counterpoise.environments import SyntheticRanking
from counterpoise.learn import RankingLearner

SUITE = Suite(__file__, __doc__)


# -- speed ------------------------------------------------------------------------------------------------------------------


DEPTH = 10


def write_lists(rows: int, path: Path) -> None:
    """Lists of ten, in the order in which they were shown."""
    random = np.random.default_rng(0)
    p = random.uniform(0.2, 0.9, rows)
    pl.DataFrame(
        {
            "list": np.arange(rows) // DEPTH,
            "position": np.arange(rows) % DEPTH + 1,
            "p": p,
            "new": np.minimum(p * random.uniform(0.7, 1.3, rows), 1.0),
            "click": (random.random(rows) < 0.1).astype(np.float64),
        }
    ).write_parquet(path)


@SUITE.experiment("speed", rows=1e5, times=1)
def time_lists(*, rows: int = 10_000_000, times: int = 3) -> None:
    """What lists cost: the rows of a Parquet file evaluated on their own, and as lists of ten, by every weight."""
    parts = {"reward": "click", "propensity": "p", "target": "new"}
    lists = parts | {"slate": "list", "position": "position"}
    kinds = {
        "single rows": parts,
        "independent": lists | {"propensity_of": "item_at_position"},
        "pseudo_inverse": lists | {"propensity_of": "item_at_position", "weight": cp.weights.PseudoInverse()},
        "cascade": lists | {"propensity_of": "item_given_above"},
        "standard": lists | {"propensity_of": "item_given_above", "weight": cp.weights.Standard()},
    }
    head(f"{int(rows):,} rows", "seconds", "over single rows")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lists.parquet"
        write_lists(int(rows), path)
        works = {name: partial(cp.evaluate, str(path), **question) for name, question in kinds.items()}
        taken = fastest_of(works, times)
        for name, (seconds, _) in taken.items():
            row(name, f"{seconds:.3f}", f"{seconds / taken['single rows'][0]:.1f}")


# -- coverage ---------------------------------------------------------------------------------------------------------------


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
class WeightCell:
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


def weight_cells(world: tuple[int, tuple[str, str], int], runs: int, lists: int) -> list[WeightCell]:
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
    return [
        _weight_cell(about + name, name in RIGHT[clicks, logging], rows, truth, error) for name, rows in found.items()
    ]


def _weight_cell(
    name: str, is_right: bool, rows: Sequence[tuple[float, bool, bool]], truth: float, error: float
) -> WeightCell:
    value, covered, ok = (np.array(column) for column in zip(*rows, strict=True))
    bias = (value.mean() - truth) / np.hypot(value.std() / np.sqrt(len(value)), error)
    return WeightCell(name, is_right, float(bias), int(ok.sum()), float(covered[ok].mean()) if ok.any() else np.nan)


@SUITE.experiment("coverage", runs=3, lists=200)
def check_coverage(*, runs: int = 400, lists: int = 2_000, seed: list[int] = (0,), processes: int = 2) -> bool:
    """How often intervals of list values cover the simulated truth, by click model, number of positions and weight.

    Every weight under every click model, the right ones and (marked so) the wrong ones. A right one must cover between 93 % and 97 % of
    the truths where the verdict is `ok`, give or take three standard errors. Every `--seed` is a world.
    """
    head("positions", "clicks, logging", "weight", "bias, in errors", "ok", "covered, given ok")
    broken = []
    worlds = product((3, 10), RIGHT, seed)
    for several in in_processes(partial(weight_cells, runs=runs, lists=lists), worlds, processes):
        print(*several, sep="\n", flush=True)
        broken += [cell for cell in several if not cell.keeps]
    for cell in broken:
        print("outside what is promised:", cell)
    return not broken


# -- lists that end early ---------------------------------------------------------------------------------------------------


POSITIONS, ITEMS, CONTEXTS, EARLY_WORLDS = 5, 7, 4, 4
# how far the odds of leaving differ between items
EXITS = {"exits 0.3": 0.3, "exits 1": 1.0, "exits 2": 2.0, "exits 4": 4.0}
LENGTHS = ("equal lengths", "lengths fixed before", *EXITS)


class EarlyWorld:
    """Policies, clicks and exits at every slot, with a value that is a sum over contexts."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind, random = kind, np.random.default_rng([seed, 77])
        shape = (CONTEXTS, POSITIONS, ITEMS)
        charm = random.normal(size=(CONTEXTS, 1, ITEMS))
        old = random.normal(0.0, 0.4, shape)
        self.old, self.new = (softmax(one) for one in (old, old + 0.4 * charm + random.normal(0.0, 0.2, shape)))
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


Verdicts = dict[tuple[str, str, int], bool]
Row = tuple[str, str, int, float, bool, bool]  # kind, weight, run, how far off, covered, ok


def run_early(one: tuple[str, int], seed: int, lists: int) -> list[Row]:
    """Every weight on one log of one kind."""
    kind, k = one
    world = EarlyWorld(kind, seed * EARLY_WORLDS + k % EARLY_WORLDS)
    log, truth = world.draw(lists, seed * 1_000_003 + k), world.value
    found = []
    for name, (weight, _, said) in WEIGHTS.items():
        result = cp.evaluate(
            log, reward="click", propensity="p", target="new", slate="list", position="position", propensity_of=said, weight=weight,
            progress=False,
        )  # fmt: skip
        best = result["new", "beta_ips"]
        ok = result.verdict("new").verdict == "ok"
        found.append((kind, name, k, best.value - truth, truth in best.interval, ok))
    return found


@dataclass(frozen=True)
class EarlyCell:
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
        off = [np.array([row[3] for row in self.rows if row[2] % EARLY_WORLDS == k]) for k in range(EARLY_WORLDS)]
        return [float(one.mean() / one.std()) for one in off if len(one) > 1]

    @property
    def missed(self) -> float:
        """How often the verdict is ok in worlds with a bias of more than two standard deviations; nan where there are none."""
        far = [k for k, bias in enumerate(self.bias) if abs(bias) > 2]
        verdicts = [row[5] for row in self.rows if row[2] % EARLY_WORLDS in far]
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


@SUITE.experiment("early", runs=4, lists=500)
def check_early(
    *,
    runs: int = 1000,
    lists: int = 5000,
    seed: int = 1,
    only: str = "",
    verdicts: Path | None = None,
    against: Path | None = None,
    processes: int = 2,
) -> bool:
    """Lists that end early: how often intervals cover and the verdict is `ok`, where lengths are and are not the choice's doing.

    Lists of up to five positions are filled slot by slot, so that every weight is right as long as lengths are fixed beforehand. Then
    people leave after an item with a chance that depends on it, from hardly to strongly. Cascade and standard are right there, too;
    independent and pseudo-inverse are not, and must not say `ok` where their bias exceeds two standard errors. Runs go round four worlds
    of each kind. Broken if a wrong one is `ok` in more than 10 % of the logs of worlds with such a bias, if a right one with `ok` covers
    less than 93 %, or if more than 2 % of right logs have a doubt that they don't have in the file `--against`, which another version
    wrote with `--verdicts`.
    """
    kinds = [kind for kind in LENGTHS if only in kind]
    work = partial(run_early, seed=seed, lists=lists)
    rows = [
        each for several in in_processes(work, product(kinds, range(runs)), processes, chunk=10) for each in several
    ]
    if verdicts:
        with verdicts.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    before: Verdicts = {}
    if against:
        with against.open(newline="", encoding="utf-8") as file:
            before = {(words[0], words[1], int(words[2])): words[5] == "True" for words in csv.reader(file)}
    head(
        "lists",
        "weight",
        "covered",
        "ok",
        "covered, given ok",
        "bias/sd by world",
        "ok where that exceeds 2",
        "new doubts",
    )
    faults = []
    for kind, weight in product(kinds, WEIGHTS):
        cell = EarlyCell(kind, weight, [each for each in rows if each[:2] == (kind, weight)])
        print(cell.line(before), flush=True)
        faults += cell.faults(before)
    for fault in faults:
        print("not as required:", fault)
    return not faults


# -- learning ---------------------------------------------------------------------------------------------------------------


CLICK_MODELS = {
    "position": (cp.weights.Independent(), "item_at_position", "p_at"),
    "cascade": (cp.weights.Cascade(), "item_given_above", "p_given"),
    "dependent": (cp.weights.Standard(), "item_given_above", "p_given"),
}


@dataclass(frozen=True)
class Learned:
    """How learning went in one world."""

    clicks: str
    is_better: bool  # in truth
    is_surely_better: bool  # by the verdict
    is_covered: bool

    @property
    def is_easy(self) -> bool:
        """Whether there is something to gain that a log can show."""
        return self.clicks != "dependent"


def learn_ranker(clicks: str, seed: int, lists: int, epochs: int) -> Learned:
    """Learn in one world, and print how that went."""
    world = SyntheticRanking(positions=3, clicks=clicks, seed=seed, contexts=RANKING_CONTEXTS)
    one_hot = [(pl.col("context") == k).cast(pl.Float64).alias(f"x{k}") for k in range(RANKING_CONTEXTS)]
    log = world.draw(lists).with_columns(*one_hot)
    weight, kind, propensity = CLICK_MODELS[clicks]
    started = time.perf_counter()
    ranker = RankingLearner(epochs=epochs, batch_size=256, holdout=0.25, progress=False)
    ranker.fit(
        log, weight=weight, slate="list", position="position", propensity_of=kind, propensity=propensity, reward="click",
        action="item", context=[f"x{k}" for k in range(RANKING_CONTEXTS)],
    )  # fmt: skip
    took = time.perf_counter() - started
    with torch.no_grad():
        scores = ranker.policy_(torch.eye(RANKING_CONTEXTS)).double().numpy()
    (old, a), (new, b), (greedy, _) = (world.value(policy) for policy in ("logging", scores, 1e6 * scores))
    found, verdict = ranker.result_["learned", "lift"].interval, ranker.result_.verdict().verdict
    print(
        f"| {clicks} | {seed} | {old:.3f} | {verdict} | {found.lower:+.3f} to {found.upper:+.3f} | {new - old:+.3f} | "
        f"{greedy - old:+.3f} | {took:.1f} |",
        flush=True,
    )
    is_better, is_sure = new - old > 3 * np.hypot(a, b), verdict == "ok" and found.lower > 0
    return Learned(clicks, is_better, is_sure, found.lower <= new - old <= found.upper)


RANKING_CONTEXTS = 3


@SUITE.experiment("learning", lists=2000, epochs=1, seeds=1, clicks=["cascade"])
def check_learning(
    *, lists: int = 50_000, epochs: int = 4, seeds: int = 5, clicks: list[str] = tuple(CLICK_MODELS)
) -> bool:
    """Rankers learned from simulated logs of lists: what lists that they have not seen say of them, and the truth.

    Every world has its own items and logging policy. A log is learned from with the weight that is right for its clicks; `result_` judges
    the ranker on lists that it has not seen. Where clicks depend on the whole list, there is little to gain, and weights of whole lists
    can hardly show it. Broken if a ranker that is surely better (verdict `ok`, and a lift above 0 in all of its interval) is not better in
    truth; if in the other two click models a ranker does not earn more than the logging policy in truth, or fewer than 80 % of them are
    surely better; or if fewer than 80 % of all intervals cover the truth.
    """
    torch.set_num_threads(1)
    head("clicks", "seed", "logging", "verdict", "lift", "true lift", "greedy", "seconds")
    rankers = [learn_ranker(kind, seed, lists, epochs) for kind in clicks for seed in range(seeds)]
    easy = [ranker for ranker in rankers if ranker.is_easy]
    better, sure = sum(ranker.is_better for ranker in rankers), sum(ranker.is_surely_better for ranker in rankers)
    covered = sum(ranker.is_covered for ranker in rankers)
    print(
        f"\n{better} of {len(rankers)} earn more than logging in truth, {sure} surely; {covered} intervals cover the truth."
    )
    is_kept = all(ranker.is_better for ranker in rankers if ranker.is_easy or ranker.is_surely_better)
    is_kept &= sum(ranker.is_surely_better for ranker in easy) >= 0.8 * len(easy)
    return is_kept and covered >= 0.8 * len(rankers)


if __name__ == "__main__":
    sys.exit(SUITE.main())
