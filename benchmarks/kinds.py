"""Kinds of logs: do intervals cover and verdicts hold where rows are more than a choice and its reward? Worlds with a known truth.

python benchmarks/kinds.py keep --runs 100                      # a glance
python benchmarks/kinds.py episodes --processes 16 --write
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


# -- rows that were sampled ---------------------------------------------------------------------------------------------------

CONTEXTS, CHOICES = 6, 4
Keeping = Callable[
    [Floats, Floats, Floats], Floats
]  # context, action and whether it was rewarded → the probability to be kept


class Sample:
    """Rows that were kept with probabilities that may depend on everything in them, of a log that nobody has.

    `far` is how far apart the policies are, `rate` how often a choice is rewarded, and `spread` the sd of the logarithm of an amount. With
    `users`, whole users of so many rows are kept, half of whom are rewarded more often, with a probability that depends on that.
    """

    def __init__(
        self, keep: Keeping, far: float = 0.7, *, rate: float = 0.2, spread: float = 0.0, users: int = 0
    ) -> None:
        random = np.random.default_rng(25)
        shape = (CONTEXTS, CHOICES)
        self.spread, self.users = spread, users
        scores, pull = random.normal(0.0, 0.5, shape), random.normal(size=shape)
        self.old, self.new = softmax(scores), softmax(scores + far * pull)
        self.rate = np.minimum(rate * np.exp(0.4 * pull + random.normal(0.0, 0.3, shape)), 0.9)
        context, action, rewarded = np.indices((*shape, 2)).reshape(3, -1)
        self.cells = np.stack([context, action, rewarded], axis=1)
        self.keep = keep(context.astype(float), action.astype(float), rewarded.astype(float))
        clicks = np.stack([1.0 - self.rate, self.rate], axis=2)
        self.share = (self.old[:, :, None] * clicks / CONTEXTS).ravel()

    @property
    def truth(self) -> float:
        """What the new policy earns; amounts are 1 on average."""
        return float((self.new * self.rate).sum(axis=1).mean())

    def draw(self, random: np.random.Generator, size: int) -> dict[str, Floats]:
        """A log of about so many rows: cells are drawn as often as they were in the log that nobody has, and kept one by one."""
        if self.users:
            return self._of_users(random, size)
        before = round(size / float(self.share @ self.keep))
        kept = random.binomial(random.multinomial(before, self.share), self.keep)
        return self._rows(random, np.repeat(np.arange(len(kept)), kept), before)

    def _rows(self, random: np.random.Generator, cell: np.ndarray, before: int) -> dict[str, Floats]:
        context, action, rewarded = self.cells[cell].T
        amount = np.exp(random.normal(0.0, self.spread, len(cell)) - self.spread**2 / 2) if self.spread else 1.0
        p, new = self.old[context, action], self.new[context, action]
        return {"r": rewarded * amount, "p": p, "t": new, "k": self.keep[cell], "before": np.array([before])}

    def _of_users(self, random: np.random.Generator, size: int) -> dict[str, Floats]:
        """Users of a kind that is rewarded half as often as usual, or once and a half; those who are kept are kept whole."""
        chance = self.keep[[0, 1]]  # of either kind
        users = round(size / self.users / chance.mean())
        kept = random.binomial(random.binomial(users, 0.5), chance[0]), random.binomial(users // 2, chance[1])
        kind = np.repeat([0, 1], kept)
        user = np.repeat(np.arange(len(kind)), self.users)
        context = random.integers(CONTEXTS, size=len(kind))[user]
        action = (random.random((len(user), 1)) > self.old[context].cumsum(axis=1)[:, :-1]).sum(axis=1)
        reward = random.random(len(user)) < self.rate[context, action] * np.array([0.5, 1.5])[kind[user]]
        return {
            "r": reward.astype(float), "p": self.old[context, action], "t": self.new[context, action], "k": chance[kind[user]],
            "user": user, "before": np.array([users * self.users]),
        }  # fmt: skip

    def answer(self, random: np.random.Generator, size: int) -> Answer:
        """The value by `keep`, beside self-normalized weights whose propensities are multiplied by it; `ips` would be off by far."""
        log = self.draw(random, size)
        log.pop("before")
        question = {
            "reward": "r",
            "target": "t",
            "estimator": ["beta_ips", "snips"],
            "cluster": "user" if self.users else None,
        }
        result = cp.evaluate(log, propensity="p", keep="k", progress=False, **question)
        folded = cp.evaluate(log | {"p": log["p"] * log["k"]}, propensity="p", progress=False, **question)
        return Answer(result["t", "beta_ips"], result.verdict().verdict, folded["t", "snips"].value)

    def ignored(self, random: np.random.Generator, size: int) -> float:
        """The value if nobody says that rows were sampled."""
        log = self.draw(random, size)
        return cp.evaluate(reward=log["r"], propensity=log["p"], target=log["t"], progress=False)[
            "target", "beta_ips"
        ].value


def every(share: float) -> Keeping:
    """The same share of all rows."""
    return lambda context, action, rewarded: np.full(len(context), share)


def clicks(share: float, of_clicks: float = 1.0) -> Keeping:
    """All rewards (or a share of them), and a share of the rest."""
    return lambda context, action, rewarded: np.where(rewarded > 0, of_clicks, share)


def choices(least: float) -> Keeping:
    """More of some actions than of others."""
    return lambda context, action, rewarded: least ** (action / (CHOICES - 1))


def both(least: float) -> Keeping:
    """By the action and by the reward."""
    return lambda context, action, rewarded: np.where(rewarded > 0, 1.0, least ** (0.5 + 0.5 * action / (CHOICES - 1)))


@cache
def samples() -> dict[str, Sample]:
    """From all rows to one in a thousand, by reward, by action, by both and by neither, with thin overlap, rare and heavy rewards."""
    return {
        "all rows": Sample(every(1.0)),
        "1 in 10": Sample(every(0.1)),
        "1 in 1,000": Sample(every(0.001)),
        "all rewards, 1 in 10": Sample(clicks(0.1)),
        "all rewards, 1 in 100": Sample(clicks(0.01), rate=0.02),
        "all rewards, 1 in 1,000, rewards 0.2 %": Sample(clicks(0.001), rate=0.002),
        "half the rewards, 1 in 10, rewards 0.2 %": Sample(clicks(0.1, 0.5), rate=0.002),
        "fewer rewards than others": Sample(clicks(1.0, 0.2)),
        "by action, to 1 in 10": Sample(choices(0.1)),
        "by action, to 1 in 1,000": Sample(choices(0.001)),
        "by both, to 1 in 10": Sample(both(0.1)),
        "by both, to 1 in 100": Sample(both(0.01)),
        "by both, thin overlap": Sample(both(0.1), 2.0),
        "all rewards, 1 in 10, thin overlap": Sample(clicks(0.1), 2.0),
        "all rewards, 1 in 10, amounts": Sample(clicks(0.1), spread=0.5),
        "all rewards, 1 in 10, heavy tails": Sample(clicks(0.1), spread=1.5),
        "by both, heavy tails": Sample(both(0.1), spread=1.5),
        "users, kept whole": Sample(lambda context, action, rewarded: np.where(rewarded > 0, 0.8, 0.2), users=5),
    }


@SUITE.experiment("keep", runs=3, size=[500])
def check_keep(
    *, runs: int = 1000, size: list[int] = (500, 3000), seed: int = 0, processes: int = 2, only: str = ""
) -> bool:
    """Sampled rows: from all to one in a thousand, by reward, action, both or neither; sizes are of what was kept.

    The plain way multiplies the propensities by the probability to be kept, and self-normalizes. Broken if logs with `ok` cover less
    than 93 % together, or a world of them is more than three standard errors below; if logs with `caution` cover less than 90 %; or if,
    where the normal interval is right, fewer than 70 % of the logs are `ok` or ours is more than 1.1 times as wide.
    """
    kept = hold(samples, size, runs, seed, processes, only)
    print("\nIf nobody says that rows were sampled, over 20 logs:")
    for name, world in samples().items():
        if only in name:
            random = np.random.default_rng(seed)
            values = [world.ignored(random, max(size)) for _ in range(20)]
            print(f"- {name}: {np.mean(values):.4g} ± {np.std(values):.2g}, where {world.truth:.4g} is true")
    return kept


# -- episodes -----------------------------------------------------------------------------------------------------------------

STATES, ACTIONS = 6, 3


class Process:
    """Episodes in six states with three actions, whose value is a sum over states, step by step.

    `far` is how far apart the policies are, `exits` how much the choice decides about the end of an episode, `rate` how often a step
    is rewarded, and `spread` the sd of the logarithm of an amount. With `users`, whole users are drawn, with this many episodes each
    that begin in the same state and are rewarded more or less often.
    """

    def __init__(
        self,
        steps: int,
        far: float = 0.5,
        *,
        exits: float | None = None,
        rate: float = 0.4,
        spread: float = 0.0,
        users: int = 0,
        gamma: float = 1.0,
    ) -> None:
        random = np.random.default_rng([steps, 25])
        shape = (STATES, ACTIONS)
        self.steps, self.spread, self.users, self.gamma = steps, spread, users, gamma
        scores, pull = random.normal(0.0, 0.5, shape), random.normal(size=shape)
        self.old, self.new = softmax(scores), softmax(scores + far * pull)
        self.moves = softmax(random.normal(size=(*shape, STATES)))
        self.rate = expit(np.log(rate / (1 - rate)) + 0.7 * pull + random.normal(0.0, 0.5, shape))
        stays = 1.5 + (exits or 0.0) * (pull + random.normal(0.0, 0.3, shape))
        self.stay = np.ones(shape) if exits is None else expit(stays)
        self.types = (
            np.array([0.5, 1.5]) if users else np.array([1.0])
        )  # how often a user is rewarded, of what is usual

    @property
    def truth(self) -> float:
        """What the new policy earns, going back from the last step."""
        ahead, values = np.zeros(STATES), []
        for kind in self.types:
            ahead = np.zeros(STATES)
            for _ in range(self.steps):
                onward = self.gamma * self.stay * (self.moves @ ahead)
                ahead = (self.new * (np.minimum(self.rate * kind, 1.0) + onward)).sum(axis=1)
            values.append(ahead.mean())
        return float(np.mean(values))

    def draw(self, random: np.random.Generator, episodes: int) -> dict[str, Floats]:
        """A log with a row for each step that was taken."""
        each = max(self.users, 1)
        user = np.arange(episodes) // each
        state, kind = (random.integers(size, size=episodes)[user] for size in (STATES, len(self.types)))
        alive, rows = np.arange(episodes), []
        for step in range(1, self.steps + 1):
            s = state[alive]
            a = (random.random((len(s), 1)) > self.old[s].cumsum(axis=1)[:, :-1]).sum(axis=1)
            reward = (random.random(len(s)) < self.rate[s, a] * self.types[kind[alive]]).astype(float)
            if self.spread:
                reward *= np.exp(random.normal(0.0, self.spread, len(s)) - self.spread**2 / 2)
            number = np.full(len(s), float(step))
            rows.append((alive, number, user[alive], reward, self.old[s, a], self.new[s, a]))
            state[alive] = (random.random((len(s), 1)) > self.moves[s, a].cumsum(axis=1)[:, :-1]).sum(axis=1)
            alive = alive[random.random(len(s)) < self.stay[s, a]]
        names = ("episode", "step", "user", "reward", "p", "new")
        return {name: np.concatenate(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}

    def answer(self, random: np.random.Generator, size: int) -> Answer:
        """The value with our baseline, beside plain per-decision importance sampling."""
        log = self.draw(random, size)
        result = cp.evaluate(
            log, reward="reward", propensity="p", target="new", episode="episode", step="step", discount_factor=self.gamma,
            cluster="user" if self.users else None, estimator=["beta_ips", "ips"], progress=False,
        )  # fmt: skip
        return Answer(result["new", "beta_ips"], result.verdict().verdict, result["new", "ips"].value)


@cache
def processes_of_episodes() -> dict[str, Process]:
    """Short and long, with and without exits, near and far, rare and heavy-tailed rewards, users."""
    return {
        "2 steps": Process(2),
        "4 steps": Process(4),
        "4 steps, exits": Process(4, exits=1.5),
        "8 steps": Process(8, 0.3),
        "8 steps, exits": Process(8, exits=1.5),
        "20 steps, near": Process(20, 0.1),
        "20 steps": Process(20, 0.25),
        "20 steps, far": Process(20, 0.5),
        "20 steps, exits": Process(20, 0.4, exits=1.5),
        "20 steps, exits, discounted": Process(20, 0.4, exits=1.5, gamma=0.9),
        "4 steps, thin overlap": Process(4, 1.5),
        "8 steps, thin overlap, exits": Process(8, 1.2, exits=1.5),
        "4 steps, rare rewards": Process(4, rate=0.02),
        "8 steps, rare rewards, exits": Process(8, rate=0.02, exits=1.5),
        "4 steps, heavy tails": Process(4, spread=1.5),
        "8 steps, heavy tails, exits": Process(8, spread=1.5, exits=1.5),
        "4 steps, users": Process(4, users=5),
        "8 steps, users, exits": Process(8, users=5, exits=1.5),
    }


@SUITE.experiment("episodes", runs=3, size=[300])
def check_episodes(
    *, runs: int = 1000, size: list[int] = (300, 2000), seed: int = 0, processes: int = 2, only: str = ""
) -> bool:
    """Episodes: per-decision importance sampling with a baseline for every step, from 2 to 20 of them.

    Broken if logs with `ok` cover less than 93 % together, or a world of them is more than three standard errors below; if logs with
    `caution` cover less than 90 %; or if, where the normal interval is right, fewer than 70 % of the logs are `ok` or ours is more than
    1.1 times as wide.
    """
    return hold(processes_of_episodes, size, runs, seed, processes, only)


# -- ratios of sums -------------------------------------------------------------------------------------------------------------


class Sums:
    """Rows with an amount and what it is divided by, in six contexts with three actions; both depend on the choice.

    `far` is how far apart the policies are, `rate` how often something is earned, `spread` the sd of the logarithm of an amount, and
    `per` how a row is counted: "sessions" (one and more), "seen" (0 or 1, and only what was seen earns), "heavy" (lognormal) or "one".
    With `users`, whole users are drawn, with so many rows each, who are alike in both.
    """

    def __init__(
        self, per: str, far: float = 0.7, *, rate: float = 1.0, spread: float = 0.5, users: int = 0, seen: float = 0.5
    ) -> None:
        random = np.random.default_rng([len(per), users, 26])
        shape = (STATES, ACTIONS)
        self.per, self.rate, self.spread, self.users = per, rate, spread, users
        scores, pull = random.normal(0.0, 0.5, shape), random.normal(size=shape)
        self.old, self.new = softmax(scores), softmax(scores + far * pull)
        self.mean = np.exp(0.5 * pull + random.normal(0.0, 0.3, shape))  # of an amount for each that is counted
        counted = {"sessions": np.exp(random.normal(0.0, 0.5, shape)), "heavy": np.exp(random.normal(0.0, 0.3, shape))}
        self.counts = counted.get(per, expit(np.log(seen / (1 - seen)) + random.normal(0.0, 0.5, shape)))
        self.types = np.array([0.6, 1.4]) if users else np.array([1.0])

    @property
    def counted(self) -> Floats:
        """What a row is divided by on average, in every context and for every action."""
        return {"sessions": 1.0 + self.counts, "one": np.ones_like(self.counts)}.get(self.per, self.counts)

    @property
    def truth(self) -> float:
        """The ratio of what the new policy earns to what it is divided by; users of either kind earn more or less for each."""
        return float((self.new * self.counted * self.rate * self.mean).sum() / (self.new * self.counted).sum())

    def answer(self, random: np.random.Generator, size: int) -> Answer:
        """The ratio with our baseline, beside the ratio of weighted sums."""
        each = max(self.users, 1)
        user = np.arange(size) // each
        s, kind = (random.integers(k, size=size)[user] for k in (STATES, len(self.types)))
        a = (random.random((size, 1)) > self.old[s].cumsum(axis=1)[:, :-1]).sum(axis=1)
        average = self.counts[s, a]
        per = {
            "sessions": lambda: 1.0 + random.poisson(average),
            "heavy": lambda: average * np.exp(random.normal(0.0, 1.2, size) - 0.72),
            "one": lambda: np.ones(size),
        }.get(self.per, lambda: (random.random(size) < average).astype(float))()
        earns = random.random(size) < self.rate
        amount = np.exp(random.normal(0.0, self.spread, size) - self.spread**2 / 2) if self.spread else 1.0
        reward = per * self.mean[s, a] * self.types[kind] * earns * amount
        result = cp.evaluate(
            {"reward": reward, "per": per, "p": self.old[s, a], "new": self.new[s, a], "user": user},
            reward=cp.Ratio("reward", "per"), propensity="p", target="new", cluster="user" if self.users else None,
            estimator=["beta_ips", "snips"], progress=False,
        )  # fmt: skip
        return Answer(result["new", "beta_ips"], result.verdict().verdict, result["new", "snips"].value)


@cache
def sums_of_ratios() -> dict[str, Sums]:
    """Sessions, rows that count or do not, heavy divisors; near and far, rare and heavy-tailed amounts, users."""
    return {
        "sessions": Sums("sessions"),
        "sessions, near": Sums("sessions", 0.2),
        "sessions, thin overlap": Sums("sessions", 1.5),
        "sessions, rare amounts": Sums("sessions", rate=0.03),
        "sessions, heavy amounts": Sums("sessions", spread=1.5),
        "sessions, rare and heavy": Sums("sessions", rate=0.05, spread=1.2),
        "sessions, users": Sums("sessions", users=5),
        "seen": Sums("seen"),
        "seen, clicks": Sums("seen", rate=0.1, spread=0.0),
        "rarely seen": Sums("seen", seen=0.05),
        "seen, thin overlap": Sums("seen", 1.5, rate=0.3),
        "heavy divisor": Sums("heavy"),
        "heavy divisor, equal amounts": Sums("heavy", spread=0.0),
        "heavy divisor, users": Sums("heavy", users=5),
        "divided by one": Sums("one"),
    }


@SUITE.experiment("ratios", runs=3, size=[1000])
def check_ratios(
    *, runs: int = 1000, size: list[int] = (2000, 20_000), seed: int = 0, processes: int = 2, only: str = ""
) -> bool:
    """Ratios of sums: revenue per session, clicks among rows that were seen; beside the ratio of weighted sums.

    Broken as `episodes` is.
    """
    return hold(sums_of_ratios, size, runs, seed, processes, only)


# -- a proxy for every row, the reward for some -----------------------------------------------------------------------------------

SITUATIONS, ANSWERS = 5, 4


class Judged:
    """Clicks or amounts in five contexts with four actions, all of them judged and some of them labeled.

    `labels` is the share that is labeled, or the function of the proxy that says with which probability. `judge` makes the proxy of the
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
        random, shape = np.random.default_rng(25), (SITUATIONS, ANSWERS)
        self.labels, self.judge, self.spread, self.users = labels, judge, spread, users
        scores, pull = random.normal(0.0, 0.5, shape), random.normal(size=shape)
        self.old, self.new = softmax(scores), softmax(scores + far * pull)
        self.rate = expit(np.log(rate / (1 - rate)) + 0.5 * pull + random.normal(0.0, 0.5, shape))
        self.bias = random.normal(0.0, 1.0, ANSWERS)  # what the judge likes
        self.types = np.array([0.6, 1.4]) if users else np.array([1.0])

    @property
    def truth(self) -> float:
        """What the new policy earns."""
        rates = np.minimum(np.multiply.outer(self.types, self.rate), 1.0).mean(axis=0)
        return float((self.new * rates).sum(axis=1).mean())

    def draw(self, random: np.random.Generator, size: int) -> dict[str, Floats]:
        """A log whose reward is there where it is labeled."""
        user = np.arange(size) // max(self.users, 1)
        x, kind = (random.integers(count, size=size)[user] for count in (SITUATIONS, len(self.types)))
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
    """The value by the labeled rows alone, each for as many as its probability says, with the best constant baseline."""
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
        "1 % labeled": Judged(0.01, biased),
        "5 % labeled": Judged(0.05, biased),
        "20 % labeled": Judged(0.2, biased),
        "50 % labeled": Judged(0.5, biased),
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
