"""Kinds of logs: do intervals cover and verdicts hold where rows are more than a choice and its reward? Worlds with a known truth.

python benchmarks/kinds.py proxy --runs 100                  # a glance
python benchmarks/kinds.py proxy --processes 16 --write
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Protocol

import numpy as np
from bench import Suite, head, in_processes, row, share, split
from scipy.special import bdtr, expit, ndtri
from worlds import Floats, softmax

import counterpoise as cp
from counterpoise.intervals.method import normal

SUITE = Suite(__file__, __doc__)


# -- what every kind is held to -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What one log said: the estimate with its interval, the verdict, and the value that the plain way gives."""

    estimate: cp.Estimate
    verdict: str
    plain: float


class World(Protocol):
    """Logs with a known truth: every kind of log has its own."""

    @property
    def truth(self) -> float: ...

    def answer(self, random: np.random.Generator, size: int) -> Answer:
        """Draw a log of so many units, and evaluate it."""


@dataclass(frozen=True)
class Seen:
    """One log: its verdict, whether our interval and the normal one cover, their widths' ratio, and both squared errors."""

    verdict: str
    covered: bool
    normal: bool
    width: float
    square: float
    plain: float


@dataclass(frozen=True)
class Cell:
    """All logs of one world and size."""

    world: str
    size: int
    seen: Sequence[Seen]

    def given(self, verdict: str) -> list[Seen]:
        """The logs with this verdict."""
        return [one for one in self.seen if one.verdict == verdict]

    def mean(self, of: Callable[[Seen], float]) -> float:
        """The mean over all logs."""
        return float(np.mean([of(one) for one in self.seen]))

    @property
    def width(self) -> float:
        """The median width, in normal intervals."""
        return float(np.median([one.width for one in self.seen]))

    @property
    def errors_below(self) -> float:
        """How many standard errors the coverage given ok is from 93 %, by the exact chance of so few hits: a cell may have few."""
        ok = self.given("ok")
        return float(ndtri(np.clip(bdtr(sum(one.covered for one in ok), max(len(ok), 1), 0.93), 1e-16, 1 - 1e-16)))

    @property
    def is_easy(self) -> bool:
        """Whether the normal interval is right."""
        return 0.94 <= self.mean(lambda one: one.normal) <= 0.96


def see(job: tuple[Callable[[], Mapping[str, World]], str, int, int, list[int]]) -> list[Seen]:
    """Some logs of one world."""
    worlds, name, size, runs, seed = job
    world, random = worlds()[name], np.random.default_rng(seed)
    found = []
    for _ in range(runs):
        answer = world.answer(random, size)
        estimate, truth = answer.estimate, world.truth
        usual = normal(estimate.value, estimate.stderr)
        ratio = estimate.interval.width / usual.width if usual.width > 0 else 1.0
        squares = (estimate.value - truth) ** 2, (answer.plain - truth) ** 2
        found.append(Seen(answer.verdict, truth in estimate.interval, truth in usual, ratio, *squares))
    return found


def hold(
    worlds: Callable[[], Mapping[str, World]], sizes: Sequence[int], runs: int, seed: int, processes: int, only: str
) -> bool:
    """The table of all worlds, and whether the promises are kept."""
    cells = [(name, size) for name, size in product(worlds(), sizes) if only in name]
    parts = split(runs, 4 if processes > 1 else 1)
    jobs = [
        (worlds, name, size, part, [seed, list(worlds()).index(name), size, k])
        for name, size in cells
        for k, part in enumerate(parts)
    ]
    head(
        "world",
        "size",
        "ok",
        "covered, given ok",
        "given caution",
        "normal",
        "width",
        "squared error, of the plain way's",
    )
    found, seen = [], list[Seen]()
    for job, some in zip(jobs, in_processes(see, jobs, processes), strict=True):
        seen += some
        if job[-1][-1] == len(parts) - 1:
            found.append(Cell(job[1], job[2], seen))
            seen = []
            print_cell(found[-1])
    return summarize(found)


def print_cell(cell: Cell) -> None:
    """A line of the table."""
    ok, caution = cell.given("ok"), cell.given("caution")
    row(
        cell.world,
        f"{cell.size:,}",
        share(len(ok), len(cell.seen), 0),
        covered(ok),
        covered(caution),
        f"{cell.mean(lambda one: one.normal):.1%}",
        f"{cell.width:.2f}",
        f"{cell.mean(lambda one: one.square) / cell.mean(lambda one: one.plain):.2f}",
    )


def summarize(cells: Sequence[Cell]) -> bool:
    """What is promised of all cells together, and whether it is kept."""
    ok, caution = ([one for cell in cells for one in cell.given(verdict)] for verdict in ("ok", "caution"))
    easy = [cell for cell in cells if cell.is_easy]
    passed, there = sum(len(cell.given("ok")) for cell in easy), sum(len(cell.seen) for cell in easy)
    width = float(np.median([cell.width for cell in easy])) if easy else math.nan
    worst = min((cell for cell in cells if cell.given("ok")), key=lambda cell: cell.errors_below)
    print(
        f"\nCovered {covered(ok)} given ok, {covered(caution)} given caution. Where the normal interval is right, {share(passed, there)} "
        f"of the logs are ok, and the interval is {width:.2f} times as wide. The worst world is {worst.world!r} with {worst.size:,}, "
        f"{worst.errors_below:+.1f} standard errors from 93 %.",
        flush=True,
    )
    return bool(
        np.mean([one.covered for one in ok]) >= 0.93
        and worst.errors_below >= -3
        and (not caution or np.mean([one.covered for one in caution]) >= 0.90)
        and (not easy or (passed / there >= 0.70 and width <= 1.1))
    )


def covered(logs: Sequence[Seen]) -> str:
    """How often the interval covered, of how many."""
    return f"{share(sum(one.covered for one in logs), len(logs))} of {len(logs):,}" if logs else "–"


# -- a proxy for every row, the reward for some -----------------------------------------------------------------------------------

CONTEXTS, ACTIONS = 5, 4


class Judged:
    """Clicks or amounts in five contexts with four actions, all of them judged and some of them labelled.

    `labels` is the share that is labelled, or the function of the proxy that says with which probability. `judge` makes the proxy of the
    rewards, the actions' own bias and noise. `far` is how far apart the policies are, `rate` how often a row is rewarded, `spread` the sd
    of the logarithm of an amount, and `users` how many rows each user has, whose context and inclination are the same.
    """

    def __init__(
        self,
        labels: float | Callable[[Floats], Floats],
        judge: Callable[[Floats, Floats, np.random.Generator], Floats],
        far: float = 0.7,
        *,
        rate: float = 0.4,
        spread: float = 0.0,
        users: int = 0,
    ) -> None:
        random, shape = np.random.default_rng(25), (CONTEXTS, ACTIONS)
        self.labels, self.judge, self.spread, self.users = labels, judge, spread, users
        scores, pull = random.normal(0.0, 0.5, shape), random.normal(size=shape)
        self.old, self.new = softmax(scores), softmax(scores + far * pull)
        self.rate = expit(np.log(rate / (1 - rate)) + 0.5 * pull + random.normal(0.0, 0.5, shape))
        self.bias = random.normal(0.0, 1.0, ACTIONS)  # what the judge likes
        self.types = np.array([0.6, 1.4]) if users else np.array([1.0])

    @property
    def truth(self) -> float:
        """What the new policy earns."""
        rates = np.minimum(np.multiply.outer(self.types, self.rate), 1.0).mean(axis=0)
        return float((self.new * rates).sum(axis=1).mean())

    def draw(self, random: np.random.Generator, size: int) -> dict[str, Floats]:
        """A log whose reward is there where it is labelled."""
        user = np.arange(size) // max(self.users, 1)
        x, kind = (random.integers(count, size=size)[user] for count in (CONTEXTS, len(self.types)))
        a = (random.random((size, 1)) > self.old[x].cumsum(axis=1)[:, :-1]).sum(axis=1)
        reward = (random.random(size) < self.rate[x, a] * self.types[kind]).astype(float)
        if self.spread:
            reward *= np.exp(random.normal(0.0, self.spread, size) - self.spread**2 / 2)
        judge = self.judge(reward, self.bias[a], random)
        chance = np.full(size, self.labels) if isinstance(self.labels, float) else self.labels(judge)
        labeled = random.random(size) < chance
        return {
            "reward": np.where(labeled, reward, np.nan), "judge": judge, "labeled": labeled, "chance": chance, "user": user,
            "p": self.old[x, a], "new": self.new[x, a],
        }  # fmt: skip

    def answer(self, random: np.random.Generator, size: int) -> Answer:
        """The value with the judge, beside that of the labels alone."""
        log = self.draw(random, size)
        result = cp.evaluate(
            log, reward="reward", propensity="p", target="new", proxy="judge", observed="labeled",
            label_propensity=None if isinstance(self.labels, float) else "chance",
            cluster="user" if self.users else None, estimator="beta_ips", progress=False,
        )  # fmt: skip
        return Answer(result["new", "beta_ips"], result.verdict().verdict, by_labels(log))


def by_labels(log: Mapping[str, Floats]) -> float:
    """The value by the labelled rows alone, each for as many as its probability says, with the best constant baseline."""
    known = log["labeled"]
    w, r, h = log["new"][known] / log["p"][known], log["reward"][known], 1 / log["chance"][known]
    beta = np.cov(h * w * r, h * (w - 1))[0, 1] / max(np.var(h * (w - 1)), 1e-12) if len(w) > 2 else 0.0
    return float((h * (w * (r - beta) + beta)).sum() / max(h.sum(), 1e-12))


def scores(slope: float, noise: float, bias: float = 0.1) -> Callable[[Floats, Floats, np.random.Generator], Floats]:
    """A judge who sees the reward with so much noise, and likes some actions for no reason."""
    return lambda reward, liked, random: 0.3 + slope * reward + bias * liked + random.normal(0.0, noise, len(reward))


def mistakes(share: float) -> Callable[[Floats, Floats, np.random.Generator], Floats]:
    """A judge of clicks who is wrong now and then."""
    return lambda reward, liked, random: np.abs(reward - (random.random(len(reward)) < share))


def early(reward: Floats, liked: Floats, random: np.random.Generator) -> Floats:
    """What is known of an amount after a few days: a part of it."""
    return reward * random.beta(4.0, 4.0, len(reward))


@cache
def judged_worlds() -> dict[str, Judged]:
    """Few labels and many, good, useless and perfect judges, thin overlap, rare and heavy-tailed rewards, users, labels by the judge."""
    biased, useless, perfect = scores(0.6, 0.2), scores(0.0, 0.5), mistakes(0.0)
    return {
        "1 % labelled": Judged(0.01, biased),
        "5 % labelled": Judged(0.05, biased),
        "20 % labelled": Judged(0.2, biased),
        "50 % labelled": Judged(0.5, biased),
        "5 %, useless judge": Judged(0.05, useless),
        "20 %, useless judge": Judged(0.2, useless),
        "5 %, perfect judge": Judged(0.05, perfect),
        "50 %, perfect judge": Judged(0.5, perfect),
        "5 %, wrong 1 % of the time": Judged(0.05, mistakes(0.01)),
        "5 %, contrary judge": Judged(0.05, scores(-0.4, 0.2, 0.3)),
        "5 %, judge from 0 to 100": Judged(0.05, lambda *rows: 100 * scores(0.5, 0.2)(*rows)),
        "10 %, thin overlap": Judged(0.1, biased, 2.0),
        "50 %, thin overlap": Judged(0.5, biased, 2.0),
        "5 %, rare rewards": Judged(0.05, biased, rate=0.02),
        "50 %, rare rewards": Judged(0.5, biased, rate=0.02),
        "20 %, heavy tails": Judged(0.2, biased, spread=1.5),
        "10 %, early signal, heavy tails": Judged(0.1, early, spread=1.0),
        "10 %, users": Judged(0.1, biased, users=5),
        "50 %, users": Judged(0.5, biased, users=5),
        "labels by the judge": Judged(lambda judge: np.clip(0.02 + 0.3 * judge, 0.02, 0.9), biased),
        "labels by the judge, thin overlap": Judged(lambda judge: np.clip(0.02 + 0.3 * judge, 0.02, 0.9), biased, 1.5),
    }


@SUITE.experiment("proxy", runs=3, size=[1000])
def check_proxy(
    *, runs: int = 1000, size: list[int] = (2000, 12000), seed: int = 0, processes: int = 2, only: str = ""
) -> bool:
    """A judge for every row and labels for some, from 1 % to 50 % of them; the plain way has the labels alone.

    Broken if logs with `ok` cover less than 93 % together, or a world of them is more than three standard errors below; if logs with
    `caution` cover less than 90 %; or if, where the normal interval is right, fewer than 70 % of the logs are `ok` or ours is more than
    1.1 times as wide.
    """
    kept = hold(judged_worlds, size, runs, seed, processes, only)
    print(
        "\nThe root mean square error with both, with the labels alone, and with the judge alone, as if it were the truth:\n"
    )
    head("world", "size", "both", "labels alone", "judge alone")
    for name, world in judged_worlds().items():
        if only in name:
            random = np.random.default_rng([seed, 1])
            errors = np.array([_errors(world, random, max(size)) for _ in range(max(runs // 10, 3))])
            row(name, f"{max(size):,}", *(f"{one:.4f}" for one in np.sqrt(np.square(errors).mean(axis=0))))
    return kept


def _errors(world: Judged, random: np.random.Generator, size: int) -> tuple[float, float, float]:
    """How far each of three ways is off, on one log."""
    log = world.draw(random, size)
    parts = {"propensity": "p", "target": "new", "estimator": "beta_ips", "progress": False}
    chance = None if isinstance(world.labels, float) else "chance"
    both = cp.evaluate(log, reward="reward", proxy="judge", observed="labeled", label_propensity=chance, **parts)
    judge = cp.evaluate(log, reward="judge", **parts)
    truth = world.truth
    return (
        both["new", "beta_ips"].value - truth,
        by_labels(log) - truth,
        judge["new", "beta_ips"].value - truth,
    )


if __name__ == "__main__":
    sys.exit(SUITE.main())
