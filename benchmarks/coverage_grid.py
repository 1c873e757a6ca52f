"""Do intervals cover, verdicts hold and decisions err as seldom as they promise? A grid of simulated worlds with known truth.

    make statistics                                                    # all of it, under an hour on two cores
    python benchmarks/coverage_grid.py --runs 200 --part value         # a glance
    python benchmarks/coverage_grid.py --seed 7 --cells cells.csv      # other logs; every cell as a line of a file

Four parts: values and lifts (19 worlds × 6 rewards × 4 sizes), differences of two policies, ranks of twenty equal candidates, and
rows that depend on each other within clusters. Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
from scipy.special import bdtr, ndtri

import counterpoise as cp
from counterpoise.intervals.method import normal

Floats = np.ndarray
CONTEXTS = 40
AMOUNT = math.exp(1.5**2 / 2)  # the mean of a lognormal amount


@dataclass(frozen=True)
class Cell:
    """What one cell of the grid showed, over all its runs; `normal` is the coverage of the normal interval in its place."""

    part: str
    world: str
    reward: str
    n: int
    runs: int
    ok: int
    ok_covered: int
    caution: int
    caution_covered: int
    normal: float
    width: float  # median, in normal intervals


# -- worlds: logged propensities, targets, and each row's effect on the reward ------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Forty contexts: what is logged, what the targets do, and the effect of every action."""

    logging: Floats
    targets: tuple[Floats, ...]
    effects: Floats

    def draw(self, random: np.random.Generator, n: int) -> tuple[dict[str, Floats], Floats]:
        context = random.integers(CONTEXTS, size=n)
        action = (random.random(n)[:, None] > self.logging.cumsum(axis=1)[context]).sum(axis=1)
        at = context, action.clip(max=self.logging.shape[1] - 1)
        columns = {f"t{k}": target[at] for k, target in enumerate(self.targets)}
        return {"p": self.logging[at], **columns}, self.effects[at]

    def expect(self, mean: Callable[[Floats], Floats]) -> list[float]:
        """The value of the logging policy, then of each target."""
        return [float((policy * mean(self.effects)).sum(axis=1).mean()) for policy in (self.logging, *self.targets)]


@dataclass(frozen=True)
class Lognormal:
    """Lognormal weights, correlated with the effect on the reward."""

    sigma: float
    correlation: float

    def draw(self, random: np.random.Generator, n: int) -> tuple[dict[str, Floats], Floats]:
        z, other = random.normal(size=(2, n))
        weight = np.exp(self.sigma * z - self.sigma**2 / 2)
        p = np.full(n, 1e-6)
        return {"p": p, "t0": p * weight}, self.correlation * z + math.sqrt(1 - self.correlation**2) * other

    def expect(self, mean: Callable[[Floats], Floats]) -> list[float]:
        z = np.linspace(-9, 9, 20_001)
        density = np.exp(-z * z / 2)
        density /= density.sum()
        return [float(mean(z) @ density), float(mean(z + self.correlation * self.sigma) @ density)]


@dataclass(frozen=True)
class Pareto(Lognormal):
    """Pareto weights with a variance and without a fourth moment, whatever the reward does."""

    sigma: float = 3.0
    correlation: float = 0.0

    def draw(self, random: np.random.Generator, n: int) -> tuple[dict[str, Floats], Floats]:
        weight = random.random(n) ** (-1 / self.sigma) * (self.sigma - 1) / self.sigma
        p = np.full(n, 1e-6)
        return {"p": p, "t0": np.minimum(p * weight, 1.0)}, random.normal(size=n)


def softmax(x: Floats) -> Floats:
    raised = np.exp(x - x.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def greedy(effects: Floats, explore: float = 0.1) -> Floats:
    """The best action of every context, and sometimes any."""
    actions = effects.shape[1]
    return explore / actions + (1 - explore) * np.eye(actions)[effects.argmax(axis=1)]


def fixed(*probabilities: float) -> Floats:
    return np.tile(np.array(probabilities), (CONTEXTS, 1))


@cache
def worlds() -> dict[str, Table | Lognormal]:
    """Fourteen worlds of the grid that this one follows, and five of our own."""
    random = np.random.default_rng(2026)

    def effects(actions: int) -> Floats:
        return random.normal(size=(CONTEXTS, actions))

    found: dict[str, Table | Lognormal] = {}
    for actions in (2, 10, 100):
        e, uniform = effects(actions), np.full((CONTEXTS, actions), 1 / actions)
        found[f"{actions} actions, softmax"] = Table(uniform, (softmax(e),), e)
        found[f"{actions} actions, greedy"] = Table(uniform, (greedy(e),), e)
    found["new arm"] = Table(fixed(0.91, *[0.01] * 9), (fixed(0.7, 0.3, *[0.0] * 8),), effects(10))
    for sigma, correlation in ((0.5, 0.6), (1.0, 0.6), (1.0, -0.6), (1.5, 0.0), (1.5, 0.6), (2.0, -0.6), (2.5, 0.6)):
        found[f"lognormal {sigma}, {correlation:+.1f}"] = Lognormal(sigma, correlation)
    e = effects(10)
    found["own: greedy logging"] = Table(greedy(e, 0.2), (greedy(0.5 * e + effects(10)),), e)
    found["own: near on-policy"] = Table(softmax(0.5 * e), (softmax(0.8 * e),), e)
    found["own: deterministic"] = Table(softmax(e), (greedy(e, 0.0),), e)
    found["own: Pareto 3"] = Pareto()
    found["own: rare treatment"] = Table(fixed(0.98, 0.02), (fixed(0.9, 0.1),), effects(2))
    return found


@cache
def pairs() -> dict[str, Table]:
    """Two policies each: some that differ in one context of forty, some that differ everywhere."""
    random = np.random.default_rng(2027)
    found = {}
    for actions in (2, 10, 100):
        e, uniform = random.normal(size=(CONTEXTS, actions)), np.full((CONTEXTS, actions), 1 / actions)
        other = e.copy()
        other[0] = np.roll(other[0], 1)
        found[f"{actions} actions, differ on 2.5 %"] = Table(uniform, (greedy(other), greedy(e)), e)
        rival = greedy(random.normal(size=(CONTEXTS, actions)))
        found[f"{actions} actions, softmax and greedy"] = Table(uniform, (softmax(e), rival), e)
    e = random.normal(size=(CONTEXTS, 10))
    found["near each other"] = Table(softmax(0.5 * e), (softmax(0.9 * e), softmax(0.6 * e)), e)
    return found


# -- rewards ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clicks:
    """0 or 1, at a rate whose logit moves by half the effect."""

    rate: float

    def mean(self, effect: Floats) -> Floats:
        return 1 / (1 + np.exp(-math.log(self.rate / (1 - self.rate)) - 0.5 * effect))

    def draw(self, random: np.random.Generator, effect: Floats) -> Floats:
        return (random.random(effect.shape) < self.mean(effect)).astype(float)


class Revenue(Clicks):
    """Three in a hundred buy, for lognormal amounts."""

    def mean(self, effect: Floats) -> Floats:
        return AMOUNT * super().mean(effect)

    def draw(self, random: np.random.Generator, effect: Floats) -> Floats:
        buys = random.random(effect.shape) < super().mean(effect)
        return buys * np.exp(1.5 * random.normal(size=effect.shape))


class Score:
    """Normal around 5."""

    def mean(self, effect: Floats) -> Floats:
        return 5 + 0.5 * effect

    def draw(self, random: np.random.Generator, effect: Floats) -> Floats:
        return self.mean(effect) + random.normal(size=effect.shape)


REWARDS: dict[str, Clicks | Score] = {
    "clicks 0.002": Clicks(0.002),
    "clicks 0.02": Clicks(0.02),
    "clicks 0.3": Clicks(0.3),
    "clicks 0.9": Clicks(0.9),
    "revenue": Revenue(0.03),
    "normal 5": Score(),
}


# -- running ----------------------------------------------------------------------------------------------------------------


class Count:
    """How often the interval held, by verdict, and how wide it was."""

    def __init__(self) -> None:
        self.held: dict[str, list[bool]] = {"ok": [], "caution": [], "not identified": []}
        self.normal: list[bool] = []
        self.widths: list[float] = []

    def see(self, estimate: cp.Estimate, verdict: str, truth: float) -> None:
        plain = normal(estimate.value, estimate.stderr)
        self.held[verdict].append(truth in estimate.interval)
        self.normal.append(truth in plain)
        if plain.width > 0:
            self.widths.append(estimate.interval.width / plain.width)

    def cell(self, part: str, world: str, reward: str, n: int) -> Cell:
        ok, caution = self.held["ok"], self.held["caution"]
        width = float(np.median(self.widths)) if self.widths else math.inf
        counts = len(ok), sum(ok), len(caution), sum(caution)
        return Cell(part, world, reward, n, len(self.normal), *counts, float(np.mean(self.normal)), width)


def values(world: str, n: int, runs: int, seed: int) -> list[Cell]:
    """The value and the lift of one target, for every reward."""
    place = worlds()[world]
    random = np.random.default_rng([seed, n, sorted(worlds()).index(world)])
    truths = {name: place.expect(reward.mean) for name, reward in REWARDS.items()}
    counts = {(part, name): Count() for part in ("value", "lift") for name in REWARDS}
    for _ in range(runs):
        columns, effect = place.draw(random, n)
        log = columns | {name: reward.draw(random, effect) for name, reward in REWARDS.items()}
        whole = cp.evaluate(
            log, reward=list(REWARDS), propensity="p", target="t0", estimator=["beta_ips", "lift"], progress=False
        )
        for name, (logged, truth) in truths.items():
            found = whole.of(name)
            verdict = found.verdict().verdict
            counts["value", name].see(found["t0", "beta_ips"], verdict, truth)
            counts["lift", name].see(found["t0", "lift"], verdict, truth - logged)
    return [count.cell(part, world, name, n) for (part, name), count in counts.items()]


def differences(world: str, n: int, runs: int, seed: int) -> list[Cell]:
    """The difference of two targets, for every reward."""
    place = pairs()[world]
    random = np.random.default_rng([seed, n, 100 + sorted(pairs()).index(world)])
    truths = {name: place.expect(reward.mean) for name, reward in REWARDS.items()}
    counts = {name: Count() for name in REWARDS}
    for _ in range(runs):
        columns, effect = place.draw(random, n)
        log = columns | {name: reward.draw(random, effect) for name, reward in REWARDS.items()}
        whole = cp.compare(log, reward=list(REWARDS), propensity="p", target="t0", against="t1", progress=False)
        for name, (_, first, second) in truths.items():
            found = whole.of(name)
            counts[name].see(found["t0", "beta_ips"], found.verdicts["t0", None].verdict, first - second)
    return [count.cell("difference", world, name, n) for name, count in counts.items()]


CANDIDATES = 20
RANKS = {
    "2 actions, clicks 0.3": (2, Clicks(0.3)),
    "10 actions, clicks 0.3": (10, Clicks(0.3)),
    "10 actions, clicks 0.02": (10, Clicks(0.02)),
    "100 actions, clicks 0.3": (100, Clicks(0.3)),
    "10 actions, revenue": (10, Revenue(0.03)),
}


def ranks(world: str, n: int, runs: int, seed: int) -> list[Cell]:
    """Twenty candidates that are all as good as what was logged: `ok_covered` counts the runs in which none was called otherwise."""
    actions, reward = RANKS[world]
    random = np.random.default_rng([seed, n, 200 + sorted(RANKS).index(world)])
    right = decided = 0
    for _ in range(runs):
        targets = tuple(greedy(random.normal(size=(CONTEXTS, actions))) for _ in range(CANDIDATES))
        place = Table(np.full((CONTEXTS, actions), 1 / actions), targets, np.zeros((CONTEXTS, actions)))
        columns, effect = place.draw(random, n)
        names = [f"t{k}" for k in range(CANDIDATES)]
        log = columns | {"r": reward.draw(random, effect)}
        compared = cp.compare(log, reward="r", propensity="p", target=names, progress=False)
        right += all(one.decision == "undecided" for one in cp.rank(compared))
        decided += sum(compared.verdicts[name, None].verdict == "ok" for name in names)
    share = decided / CANDIDATES
    return [Cell("rank", world, f"{share / runs:.0%} ok", n, runs, runs, right, 0, 0, math.nan, math.nan)]


SIZES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "equal": lambda random, users: np.full(users, 10),
    "geometric": lambda random, users: random.geometric(0.1, users),
    "lognormal": lambda random, users: np.ceil(random.lognormal(1.0, 1.5, users)).astype(int),
    "Zipf": lambda random, users: np.minimum(random.zipf(2.0, users), 20 * users),
}


def clusters(world: str, n: int, runs: int, seed: int) -> list[Cell]:
    """Users with moods and favorites of their own: their rows depend on each other. `n` counts users."""
    random = np.random.default_rng([seed, n, 300 + list(SIZES).index(world)])
    logging, target, rates = np.full(5, 0.2), np.array([0.4, 0.3, 0.1, 0.1, 0.1]), np.array([0.5, 0.3, 0.2, 0.1, 0.4])
    counts = {"clicks": Count(), "normal": Count()}
    for _ in range(runs):
        sizes = SIZES[world](random, n)
        user = np.repeat(np.arange(n), sizes)
        action = random.integers(5, size=len(user))
        mood = random.normal(size=n)[user] + random.normal(size=(n, 5))[user, action]
        shown = {"p": logging[action], "t0": target[action], "user": user}
        # uniform noise makes the rate's mean over moods exactly the action's rate
        clicks = (random.random(len(user)) < rates[action] + 0.1 * np.tanh(mood)).astype(float)
        rewards = {"clicks": clicks, "normal": rates[action] + mood + random.normal(size=len(user))}
        found = cp.evaluate(
            shown | rewards, reward=list(rewards), propensity="p", target="t0", cluster="user", estimator="beta_ips",
            progress=False,
        )  # fmt: skip
        for name, count in counts.items():
            one = found.of(name)
            count.see(one["t0", "beta_ips"], one.verdict().verdict, float(target @ rates))
    return [count.cell("cluster", f"{world} sizes", name, n) for name, count in counts.items()]


PARTS = {
    "value": (values, lambda: worlds(), (200, 1000, 5000, 50_000)),
    "difference": (differences, lambda: pairs(), (200, 1000, 5000)),
    "rank": (ranks, lambda: RANKS, (1000, 5000)),
    "cluster": (clusters, lambda: SIZES, (50, 300, 2000)),
}


def jobs(parts: list[str], runs: int, seed: int) -> Iterator[tuple[Callable[..., list[Cell]], str, int, int, int]]:
    """The longest first, so that both cores end together."""
    for n in sorted({n for part in parts for n in PARTS[part][2]}, reverse=True):
        for part in parts:
            function, names, sizes = PARTS[part]
            if n in sizes:
                yield from ((function, name, n, runs, seed) for name in names())


def run(job: tuple[Callable[..., list[Cell]], str, int, int, int]) -> list[Cell]:
    function, *arguments = job
    return function(*arguments)


# -- what it shows ----------------------------------------------------------------------------------------------------------


def share(part: float, whole: float) -> str:
    return f"{part / whole:6.1%}" if whole else "     –"


def summary(cells: list[Cell]) -> bool:
    """The table of promises, and whether all are kept."""
    kept = True
    print(
        "\n| | ok | covered, given ok | covered, given caution | ok where normal is right | width there | worst cell, given ok |"
    )
    print("|---|---|---|---|---|---|---|")
    for part in ("value", "lift", "difference", "cluster"):
        own = [cell for cell in cells if cell.part == part]
        if not own:
            continue
        runs, ok, held = (sum(getattr(cell, name) for cell in own) for name in ("runs", "ok", "ok_covered"))
        doubted, anyway = sum(cell.caution for cell in own), sum(cell.caution_covered for cell in own)
        fine = [cell for cell in own if 0.94 <= cell.normal <= 0.96]
        passed, there = sum(cell.ok for cell in fine), sum(cell.runs for cell in fine)
        width = float(np.median([cell.width for cell in fine])) if fine else math.nan
        worst = min(((below(cell), cell) for cell in own if cell.ok), key=lambda pair: pair[0])
        name = f"{worst[1].world}, {worst[1].reward}, {worst[1].n:,}: {share(worst[1].ok_covered, worst[1].ok).strip()}"
        print(
            f"| {part} | {share(ok, runs)} | {share(held, ok)} | {share(anyway, doubted)} | {share(passed, there)} | {width:.3f} | "
            f"{name} of {worst[1].ok:,} ({worst[0]:+.1f} errors from 93 %) |"
        )
        kept &= 0.93 <= held / max(ok, 1) <= 0.97 and anyway / max(doubted, 1) >= 0.90 and worst[0] >= -3
        if part != "cluster":
            kept &= ok / runs >= 0.20 and passed / max(there, 1) >= 0.80 and width <= 1.15
    ranked = [cell for cell in cells if cell.part == "rank"]
    if ranked:
        print("\n| twenty equal candidates | n | comparisons ok | runs with a false decision |")
        print("|---|---|---|---|")
    for cell in ranked:
        wrong = 1 - cell.ok_covered / cell.runs
        print(f"| {cell.world} | {cell.n:,} | {cell.reward.removesuffix(' ok')} | {wrong:.1%} |")
        kept &= wrong <= 0.06 + 2 * math.sqrt(0.06 * 0.94 / cell.runs)
    return kept


def below(cell: Cell) -> float:
    """How many standard errors the coverage given ok is from 93 %, by the exact chance of so few hits: a cell may have few runs."""
    return float(ndtri(np.clip(bdtr(cell.ok_covered, cell.ok, 0.93), 1e-16, 1 - 1e-16)))


def picture(cells: list[Cell], path: str) -> None:
    """Coverage of the normal interval against ours, cell by cell."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), sharex=True, sharey=True, layout="constrained")
    for ax, part in zip(axes, ("value", "lift", "difference"), strict=True):
        own = [cell for cell in cells if cell.part == part and cell.ok + cell.caution]
        ours = [(cell.ok_covered + cell.caution_covered) / (cell.ok + cell.caution) for cell in own]
        sure = [cell.ok > cell.runs / 2 for cell in own]
        for is_ok, color, words in ((False, "#c77700", "mostly caution"), (True, "#1a7f37", "mostly ok")):
            chosen = [k for k, one in enumerate(sure) if one is is_ok]
            ax.scatter([own[k].normal for k in chosen], [ours[k] for k in chosen], s=9, color=color, label=words)
        ax.axhline(0.95, color="grey", linewidth=0.8)
        ax.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle=":")
        ax.set(title=part, xlabel="covered by the normal interval", xlim=(0, 1.01), ylim=(0, 1.01))
    axes[0].set_ylabel("covered by Student's, the default")
    axes[0].legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=110)


def load(path: str) -> list[Cell]:
    """Cells that `--cells` wrote."""
    kinds = {"part": str, "world": str, "reward": str, "normal": float, "width": float}
    with open(path, newline="") as file:
        return [Cell(**{k: kinds.get(k, int)(v) for k, v in row.items()}) for row in csv.DictReader(file)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--cells", help="a CSV file for every cell")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--picture", nargs=2, metavar=("CELLS", "PNG"), help="draw such a file, and run nothing")
    given = parser.parse_args()
    if given.picture:
        picture(load(given.picture[0]), given.picture[1])
        return 0 if summary(load(given.picture[0])) else 1
    start, cells = time.time(), list[Cell]()
    todo = list(jobs(given.part or list(PARTS), given.runs, given.seed))
    with ProcessPoolExecutor(given.processes) as pool:
        for k, found in enumerate(pool.map(run, todo)):
            cells += found
            if sys.stderr.isatty():
                print(f"\r{k + 1} of {len(todo)}, {time.time() - start:.0f} s", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if given.cells:
        with open(given.cells, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(asdict(cells[0])))
            writer.writeheader()
            writer.writerows(asdict(cell) for cell in cells)
    kept = summary(cells)
    print(
        f"\n{given.runs:,} runs a cell, {time.time() - start:.0f} s. Every promise {'is' if kept else 'is NOT'} kept."
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
