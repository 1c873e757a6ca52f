"""Figures 4 and 5: in every cell a world, a target policy learned in it, and every estimator's error; which cells, and how they are run.

The published estimators are our yardstick, floors, zeros and all, and we compare them with the published numbers digit by digit. The
library's own estimators agree with them wherever the value is identified, and say so where it is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import OptionError
from counterpoise.estimators import beta_ips, cross_fit, optimal_dr
from counterpoise.moments import Moments
from paper.regressions import fit_reward_model, fit_target
from paper.result_file import Key, Recipe, ResultFile, Row, run_tasks

Floats = NDArray[np.float64]

CellKey = tuple[float, int, int]

Runs = Mapping[CellKey, Mapping[str, np.ndarray]]

# -- The five estimators and their variances as the paper's released code computes them --------------------------------

PUBLISHED = ("DM", "DR", "IPS", "SNIPS", "beta-IPS")


def published(
    weight: Floats, reward: Floats, model_reward: Floats, model_value: Floats
) -> dict[str, tuple[float, float]]:
    """The value and variance of every published estimator.

    If a log has no overlap (all weights are 0), IPS, SNIPS and beta-IPS have the value 0 and the variance 0, as published.

    >>> published(np.zeros(2), np.ones(2), np.ones(2), np.ones(2))["SNIPS"]
    (0.0, 0.0)
    """
    w, r = weight, reward
    extra = w * w - w
    beta = float(np.mean(r * extra)) / max(float(np.mean(extra)), 1e-11)
    snips = float((w * r).mean()) / max(float(w.mean()), 1e-10)
    return {
        "DM": _mean(model_value),
        "DR": _mean(model_value + w * (r - model_reward)),
        "IPS": _mean(w * r),
        "SNIPS": (snips, float(np.square(w * (r - snips)).sum()) / max(float(w.sum()), 1e-10) ** 2),
        "beta-IPS": _mean(beta + w * (r - beta)),
    }


def _mean(terms: Floats) -> tuple[float, float]:
    return float(terms.mean()), float(terms.var()) / terms.size


# -- One cell ----------------------------------------------------------------------------------------------------------

OURS = ("beta_ips", "cross_fit", "optimal_dr")
ESTIMATORS = (*PUBLISHED, *OURS)
FOLDS = 10


class Cell(NamedTuple):
    """Which world, how many rows, and which seed."""

    inverse_temperature: float
    n_actions: int
    n: int
    seed: int


class CellRun(NamedTuple):
    """What one estimator made of one cell; squared error and variance are NaN if the value is not identified."""

    estimator: str
    squared_error: float
    variance: float


def check_cell(cell: Cell) -> None:
    """Check that a cell can be run at all."""
    if not np.isfinite(cell.inverse_temperature):
        raise OptionError(f"the inverse temperature must be a finite number; found {cell.inverse_temperature}.")
    if cell.n_actions < 2:
        raise OptionError(f"a cell needs at least 2 actions; found {cell.n_actions}.")
    if cell.n < 1:
        raise OptionError(f"a cell needs n of at least 1 row; found {cell.n}.")
    if not 0 <= cell.seed < 2**32:
        raise OptionError(f"seeds must lie in 0 … 2³² − 1; found {cell.seed}.")


def run_cell(cell: Cell) -> list[CellRun]:
    """Draw a training batch and a test batch, learn a target policy on the first, and evaluate it on the second.

    >>> [run.estimator for run in run_cell(Cell(1.0, 25, 100, 0))][:5]
    ['DM', 'DR', 'IPS', 'SNIPS', 'beta-IPS']
    """
    check_cell(cell)
    world = SyntheticBandit(cell.n_actions, inverse_temperature=cell.inverse_temperature, seed=cell.seed)
    training, test = world.draw(cell.n), world.draw(cell.n)
    policy, model = fit_target(training), fit_reward_model(training)
    del training
    action = policy(test.context)
    weight = (action == test.action) / test.propensity
    model_reward, model_value = model(test.context, test.action), model(test.context, action)
    truth = test.value(action)
    estimates = published(weight, test.reward, model_reward, model_value)
    estimates |= ours(weight, test.reward, model_reward, model_value)
    return [CellRun(name, (value - truth) ** 2, variance) for name, (value, variance) in estimates.items()]


def ours(w: Floats, r: Floats, q: Floats, v: Floats) -> dict[str, tuple[float, float]]:
    """The library's β (Cov/Var), the cross-fitted one, and the optimal combination with the reward model."""
    folds = [
        Moments.of(w[k::FOLDS], r[k::FOLDS], model_reward=q[k::FOLDS], model_value=v[k::FOLDS]) for k in range(FOLDS)
    ]
    groups = Moments.stack(folds)
    log = groups.merge(axis=0)
    estimates = {"beta_ips": beta_ips(log), "cross_fit": cross_fit(groups), "optimal_dr": optimal_dr(log)}
    return {name: (float(e.value), float(e.stderr) ** 2) for name, e in estimates.items()}


# -- All cells of a scale ----------------------------------------------------------------------------------------------

Scale = Literal["smoke", "small", "paper"]

INVERSE_TEMPERATURES = (-5.0, -1.0, 1.0, 5.0)
ACTIONS = (25, 50, 75, 100)
SIZES = (100, 278, 774, 2154, 5994, 16681, 46415, 129154, 359381, 1000000)
SEEDS = 100
RECIPE = Recipe(
    name="ope",
    version=1,
    keys=(("inverse_temperature", float), ("n_actions", int), ("n", int), ("seed", int)),
    values=(("estimator", str), ("squared_error", float), ("variance", float)),
    complete=len(ESTIMATORS),
)
LARGE = 20_000  # cells of more rows are tasks of their own; smaller ones share the drawing of their coefficients


def cells_of(scale: Scale) -> list[Cell]:
    """The cells of a scale: enough for a quick look, all that fit in minutes, or the paper's 16,000.

    >>> [len(cells_of(scale)) for scale in ("smoke", "small", "paper")]
    [18, 960, 16000]
    """
    if scale == "smoke":
        grid = product((-5.0, 5.0), (25,), SIZES[:3], range(3))
    elif scale == "small":
        grid = product(INVERSE_TEMPERATURES, ACTIONS, SIZES[:6], range(10))
    elif scale == "paper":
        grid = product(INVERSE_TEMPERATURES, ACTIONS, SIZES, range(SEEDS))
    else:
        raise OptionError(f"no scale {scale!r}; there are 'smoke', 'small' and 'paper'.")
    return [Cell(*values) for values in grid]


def run_cells(cells: Iterable[Cell], path: str | Path, *, jobs: int | None = None) -> ResultFile:
    """Run the cells that the file does not have yet, in parallel, and add them to it."""
    wanted = [Cell(float(c.inverse_temperature), *c[1:]) for c in cells]
    for cell in wanted:
        check_cell(cell)
    file = ResultFile.open(path, RECIPE)
    run_tasks(work, tasks_of(file.missing(wanted)), file, jobs=jobs, title="cells")
    return file


def tasks_of(keys: Sequence[Key]) -> list[list[Key]]:
    """The cells, with those that share a world (actions, seed) together, largest first so that no process is left working alone."""

    def world(key: Key) -> tuple[int, int, int]:
        cell = cast(Cell, key)
        return (-cell[2] if cell[2] > LARGE else 0, -cell[1], cell[3])

    return [list(group) for _, group in groupby(sorted(keys, key=world), key=world)]


def work(keys: Sequence[Key]) -> dict[Key, list[Row]]:
    """What a process does with a task."""
    return {key: [*run_cell(Cell(*cast(Cell, key)))] for key in keys}


def by_cell(rows: dict[Key, list[Row]]) -> dict[tuple[float, int, int], dict[str, np.ndarray]]:
    """(T, actions, n) → estimator → one row (squared error, variance) per seed."""
    cells: dict[tuple[float, int, int], dict[str, list[Row]]] = {}
    for key in sorted(rows):
        cell = cast(Cell, key)
        for row in rows[key]:
            cells.setdefault((float(cell[0]), cell[1], cell[2]), {}).setdefault(str(row[0]), []).append(row[1:])
    return {
        cell: {name: np.array(values, dtype=np.float64) for name, values in of_estimator.items()}
        for cell, of_estimator in cells.items()
    }
