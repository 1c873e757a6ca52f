"""`auto` against the best of IPS, SNIPS, DR and β-IPS: the paper's grid, and cells outside it.

In every cell, the squared error of `auto` is divided by that of the best of the four published estimators, which is chosen on
the other half of the seeds (even seeds judge it for odd ones, and the other way round). Every seed is a world of its own. Reward model and
target policy are the paper's: logistic regressions on a training batch of the same size. Where rewards are continuous, the model is
a ridge regression on the same inputs, and the target learns from rewards above their median.

Three figures: the geometric mean of the ratios, the share of cells with a ratio of at most 1.15, and the largest ratio; the last two as
they are and beyond their paired Monte Carlo error. And one more: how often the interval of `auto` covers the truth where the verdict is
`ok`.

    python benchmarks/auto_grid.py                         # all cells, 200 seeds up to n = 5,994 and 40 above
    python benchmarks/auto_grid.py --seeds 20 --cells grid # a tenth of the seeds, the paper's cells alone
    python benchmarks/auto_grid.py --first-seed 1000       # other worlds
"""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import counterpoise as cp
from counterpoise.environments import ClassificationBandit, Feedback, SyntheticBandit
from counterpoise.experiments.ope import published
from counterpoise.experiments.regressions import fit_reward_model, fit_target

GRID = (100, 278, 774, 2154, 5994, 16681, 46415)
OUTSIDE = (100, 278, 774, 2154, 5994)
MANY = 5994  # rows, above which a fifth of the seeds is run
RIVALS = ("DR", "IPS", "SNIPS", "beta-IPS")
OURS = ("auto", "optimal_dr", "beta_ips", "dm")
SETS = ("iris", "wine", "breast_cancer", "digits", "generated")
WEAK = 60  # rows that the logging policy of a classification set has learnt from


class Cell(NamedTuple):
    """Which kind of world, its parameters, and how many rows."""

    kind: str
    temperature: float
    n_actions: int
    n: int

    def __str__(self) -> str:
        logging = f"T = {self.temperature:g}, " if self.kind != "uniform logging" else ""
        return f"{self.kind}, {logging}{self.n_actions} actions, n = {self.n:,}"


class Run(NamedTuple):
    """What one seed of a cell gave."""

    cell: Cell
    seed: int
    truth: float
    rivals: tuple[float, ...]
    ours: tuple[float, ...]
    verdict: str
    covered: bool
    plain_covered: bool
    width: float


def cells_of(which: str) -> list[Cell]:
    """The paper's cells up to n = 46,415, or those outside its grid."""
    temperatures = (-5.0, -1.0, 1.0, 5.0)
    if which == "grid":
        return [Cell("paper", *rest) for rest in product(temperatures, (25, 50, 75, 100), GRID)]
    found = [Cell("paper", *rest) for rest in product(temperatures, (10, 500), OUTSIDE)]
    found += [Cell("continuous", *rest) for rest in product((-1.0, 1.0), (25, 100), OUTSIDE)]
    found += [Cell("uniform logging", 0.0, *rest) for rest in product((25, 100), OUTSIDE)]
    return found + [
        Cell(name, temperature, len(np.unique(data_set(name)[1])), n)
        for name, temperature, n in product(SETS, (0.0, 0.5), OUTSIDE)
    ]


# -- worlds ------------------------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """A log of the test batch, what the model says of it, and the truth."""

    log: Feedback
    target: Any
    model_reward: Any
    model_value: Any
    truth: float


def draw(cell: Cell, seed: int) -> Rows:
    """Draw a training and a test batch, fit the target and the model on the first, and look at the second."""
    training, test = batches(cell, seed)
    learnt = training
    if cell.kind == "continuous":
        learnt = replace(training, reward=np.maximum(training.reward - np.median(training.reward), 0.0))
    policy = fit_target(learnt)
    model = fit_ridge(training) if cell.kind == "continuous" else fit_reward_model(training)
    action = policy(test.context)
    return Rows(
        test,
        (action == test.action).astype(float),
        model(test.context, test.action),
        model(test.context, action),
        test.value(action),
    )


def batches(cell: Cell, seed: int) -> tuple[Feedback, Feedback]:
    """The two batches of a cell; those of a classification set have different rows of it."""
    if cell.kind in SETS:
        context, label = data_set(cell.kind)
        halves = [ClassificationBandit(context[k::2], label[k::2], seed=2 * seed + k) for k in (0, 1)]
        logging = weak_logging(halves[0], cell.temperature) if cell.temperature else None
        first, second = (half.draw(cell.n, logging=logging) for half in halves)
        return first, second
    options: dict[str, Any] = {"continuous": {"reward": "continuous"}, "uniform logging": {"logging": "uniform"}}
    world = SyntheticBandit(
        cell.n_actions, inverse_temperature=cell.temperature, seed=seed, **options.get(cell.kind, {})
    )
    return world.draw(cell.n), world.draw(cell.n)


def weak_logging(world: ClassificationBandit, temperature: float) -> Callable[[Any], Any]:
    """A policy that learnt from few rows, softened, and that takes one label in five at random."""
    weak = fit_target(world.draw(WEAK))

    def probabilities(context: Any) -> Any:
        score = np.full((len(context), world.n_actions), -30.0)
        score[:, weak.actions] = context @ weak.coefficients[:, :-1].T + weak.coefficients[:, -1]
        mass = np.exp(temperature * (score - score.max(axis=1, keepdims=True)))
        return 0.8 * mass / mass.sum(axis=1, keepdims=True) + 0.2 / world.n_actions

    return probabilities


@cache
def data_set(name: str) -> tuple[Any, Any]:
    """Standardized contexts and labels, in a fixed random order so that both halves have every label."""
    from sklearn import datasets

    if name == "generated":
        context, label = datasets.make_classification(3000, 12, n_informative=8, n_classes=6, random_state=0)
    else:
        context, label = getattr(datasets, f"load_{name}")(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(label))
    spread = context.std(axis=0)
    return ((context - context.mean(axis=0)) / np.where(spread > 0, spread, 1.0))[order], label[order]


def fit_ridge(log: Feedback) -> Callable[[Any, Any], Any]:
    """Least squares of the reward on [context, one-hot action], with a penalty of 1 on all but the intercept."""
    d, k = log.context.shape[1], log.n_actions
    x = np.hstack([log.context, np.eye(k)[log.action], np.ones((len(log), 1))])
    penalty = np.diag([1.0] * (d + k) + [0.0])
    solved = np.linalg.solve(x.T @ x + penalty, x.T @ log.reward)
    return lambda context, action: context @ solved[:d] + solved[d:-1][action] + solved[-1]


def run(cell: Cell, seed: int) -> Run:
    """One seed of one cell."""
    rows = draw(cell, seed)
    log = rows.log
    found = cp.evaluate(
        reward=log.reward,
        propensity=log.propensity,
        target=rows.target,
        model_reward=rows.model_reward,
        model_value=rows.model_value,
        estimator=list(OURS),
    )
    values = published(rows.target / log.propensity, log.reward, rows.model_reward, rows.model_value)
    interval, plain = (found["target", name].interval for name in ("auto", "optimal_dr"))
    return Run(
        cell,
        seed,
        rows.truth,
        tuple(values[name][0] for name in RIVALS),
        tuple(found["target", name].value for name in OURS),
        found.verdict().verdict,
        rows.truth in interval,
        rows.truth in plain,
        interval.width,
    )


# -- figures -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """A cell's mean squared error over the oracle's, with its paired Monte Carlo error."""

    cell: Cell
    value: float
    stderr: float

    @property
    def low(self) -> float:
        """What is left of it at 95 %."""
        return self.value - 1.96 * self.stderr


def ratios(runs: Iterable[Run], name: str = "auto") -> list[Ratio]:
    """The ratio of every cell; cells in which the oracle makes no error at all have none."""
    by_cell: dict[Cell, list[Run]] = {}
    for one in runs:
        by_cell.setdefault(one.cell, []).append(one)
    found = []
    for cell, members in by_cell.items():
        truth = np.array([one.truth for one in members])
        rivals = np.square(np.array([one.rivals for one in members]) - truth[:, None])
        values = np.array([one.ours[OURS.index(name)] for one in members])
        mine = np.square(np.nan_to_num(values) - truth)  # without overlap the published estimators answer 0
        odd = np.array([one.seed % 2 == 1 for one in members])
        best = {half: rivals[odd != half].mean(axis=0).argmin() for half in (False, True)}
        oracle = np.where(odd, rivals[:, best[True]], rivals[:, best[False]])
        if oracle.mean() > 0:
            ratio = float(mine.mean() / oracle.mean())
            spread = float(np.sqrt(np.square(mine - ratio * oracle).sum()) / oracle.sum())
            found.append(Ratio(cell, ratio, spread))
    return found


def figures(title: str, runs: list[Run], worst: int) -> None:
    """Print the three figures, the worst cells, and the coverage."""
    print(f"\n## {title}: {len({one.cell for one in runs})} cells, {len(runs):,} logs\n")
    print("| estimator | geometric mean | at most 1.15 | … beyond Monte Carlo error | largest | above 1.5 beyond it |")
    print("|---|---|---|---|---|---|")
    for name in ("auto", "beta_ips", "optimal_dr", "dm"):
        found = ratios(runs, name)
        mean = math.exp(np.mean([math.log(max(one.value, 1e-300)) for one in found]))
        within = [np.mean([getattr(one, part) <= 1.15 for one in found]) for part in ("value", "low")]
        print(
            f"| `{name}` | {mean:.3f} | {within[0]:.1%} | {within[1]:.1%} | {max(one.value for one in found):.2f} | "
            f"{sum(one.low > 1.5 for one in found)} |"
        )
    print("\nThe largest ratios of `auto`:\n")
    for one in sorted(ratios(runs), key=lambda one: -one.value)[:worst]:
        print(f"- {one.cell}: {one.value:.2f} ± {one.stderr:.2f}")
    print("\nMean ratios of `auto` by n:\n")
    for n in sorted({one.cell.n for one in runs}):
        values = [one.value for one in ratios(runs) if one.cell.n == n]
        print(f"- n = {n:,}: {math.exp(np.mean(np.log(values))):.2f} (from {min(values):.2f} to {max(values):.2f})")
    coverage(runs)


def coverage(runs: list[Run], fewest: int = 30) -> None:
    """Print how often the interval covers where the verdict is `ok`, together and by cell."""
    ok = [one for one in runs if one.verdict == "ok"]
    if not ok:
        return
    together = np.mean([(one.covered, one.plain_covered) for one in ok], axis=0)
    print(
        f"\nVerdict `ok` on {len(ok):,} of {len(runs):,} logs. Of these, the 95 % interval of `auto` covers {together[0]:.1%} and that of "
        f"`optimal_dr` {together[1]:.1%}."
    )
    by_cell: dict[Cell, list[tuple[bool, bool]]] = {}
    for one in ok:
        by_cell.setdefault(one.cell, []).append((one.covered, one.plain_covered))
    found = sorted((*np.mean(hits, axis=0), len(hits), cell) for cell, hits in by_cell.items() if len(hits) >= fewest)
    if not found:
        return
    errors = [math.sqrt(0.93 * 0.07 / count) for _, _, count, _ in found]
    beyond = sum(mine + 1.96 * error < 0.93 for (mine, *_), error in zip(found, errors, strict=True))
    print(
        f"Of {len(found)} cells with {fewest} such logs or more, {sum(one[0] < 0.93 for one in found)} are below 93 %, {beyond} of them by "
        "more than Monte Carlo error. The lowest:\n"
    )
    for (mine, plain, count, cell), error in list(zip(found, errors, strict=True))[:8]:
        print(f"- {cell}: {mine:.1%} ± {error:.1%} of {count} (`optimal_dr`: {plain:.1%})")


# -- running -----------------------------------------------------------------------------------------------------------


def work(task: list[tuple[Cell, int]]) -> list[Run]:
    """The cells that share a world."""
    return [run(cell, seed) for cell, seed in task]


def tasks_of(cells: list[Cell], first: int, seeds: int) -> list[list[tuple[Cell, int]]]:
    """Cells that share their coefficients together, the large ones alone and first."""
    tasks: dict[Any, list[tuple[Cell, int]]] = {}
    for cell in cells:
        large = cell.n > MANY
        for seed in range(first, first + (max(seeds // 5, 2) if large else seeds)):
            tasks.setdefault((-cell.n if large else 0, seed, cell.kind, cell.n_actions), []).append((cell, seed))
    return [tasks[key] for key in sorted(tasks, key=lambda key: key[0])]


def run_all(cells: list[Cell], first: int, seeds: int, processes: int) -> list[Run]:
    tasks = tasks_of(cells, first, seeds)
    if processes == 1:
        return [one for task in tasks for one in work(task)]
    with get_context("spawn").Pool(processes) as pool:
        return [one for found in pool.imap_unordered(work, tasks) for one in found]


def write(path: Path, runs: list[Run]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(
            [*Cell._fields, "seed", "truth", *RIVALS, *OURS, "verdict", "covered", "optimal_dr_covered", "width"]
        )
        for one in sorted(runs):
            table.writerow([*one.cell, one.seed, one.truth, *one.rivals, *one.ours, *one[5:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="up to n = 5,994; a fifth of them above")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cells", choices=["grid", "outside", "all"], default="all")
    parser.add_argument("--worst", type=int, default=10, help="how many of the largest ratios to print")
    parser.add_argument("--csv", type=Path, help="write every run to PATH-grid.csv and PATH-outside.csv")
    asked = parser.parse_args()
    for which in ("grid", "outside") if asked.cells == "all" else (asked.cells,):
        runs = run_all(cells_of(which), asked.first_seed, asked.seeds, asked.processes)
        title = "The paper's grid" if which == "grid" else "Outside the grid"
        figures(title, runs, asked.worst)
        if asked.csv:
            write(asked.csv.with_name(f"{asked.csv.name}-{which}.csv"), runs)


if __name__ == "__main__":
    main()
