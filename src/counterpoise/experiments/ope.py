"""The cells of Figures 4 and 5: which ones each scale has, and how they are run and read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Literal, cast

import numpy as np

from counterpoise.errors import OptionError
from counterpoise.experiments.cell import ESTIMATORS, Cell, check_cell, run_cell
from counterpoise.experiments.processes import run_tasks
from counterpoise.experiments.result_file import Key, Recipe, ResultFile, Row, missing_keys

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
    run_tasks(work, tasks_of(missing_keys(wanted, file)), file, jobs=jobs, title="cells")
    return file


def tasks_of(keys: Sequence[Key]) -> list[list[Key]]:
    """The cells, with those that share a world (actions, seed) together, largest first so that no process is left working alone."""

    def world(key: Key) -> tuple[int, int, int]:
        cell = cast(Cell, key)
        return (-cell[2] if cell[2] > LARGE else 0, -cell[1], cell[3])

    return [list(group) for _, group in groupby(sorted(keys, key=world), key=world)]


def work(keys: Sequence[Key]) -> dict[Key, list[Row]]:
    """What a process does with a task."""
    rows: dict[Key, list[Row]] = {}
    for key in keys:
        runs = run_cell(Cell(*cast(Cell, key)))
        rows[key] = [(run.estimator, run.squared_error, run.variance) for run in runs]
    return rows


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
