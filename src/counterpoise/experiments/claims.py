"""What the results say about the paper's claims: who wins where, and whether intervals cover."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from counterpoise.experiments.figures import CellKey, Runs
from counterpoise.experiments.ope import RECIPE
from counterpoise.experiments.result_file import Key, Recipe, Row, read_rows, write_atomically

COMPARED = ("IPS", "SNIPS", "DR", "beta-IPS")
CELLS = Recipe(
    name="cells",
    version=1,
    keys=(("inverse_temperature", float), ("n_actions", int), ("n", int)),
    values=(("estimator", str), ("mse", float), ("mse_stderr", float), ("variance", float)),
    complete=5,
)
Cells = dict[CellKey, dict[str, tuple[float, float, float]]]  # mean squared error, its standard error, mean variance


def read_cells(path: str | Path) -> Cells:
    """The published means per cell."""
    cells: Cells = {}
    for key, rows in read_rows(path, CELLS).items():
        for name, mse, stderr, variance in rows:
            cell = (float(key[0]), int(key[1]), int(key[2]))
            cells.setdefault(cell, {})[str(name)] = (float(mse), float(stderr), float(variance))
    return cells


def write_cells(path: Path, cells: Cells, runs: Runs) -> None:
    """Write the means per cell with the columns of the published file, and how many runs each mean covers."""
    lines = [",".join((*CELLS.columns, "runs"))]
    for (temperature, actions, n), of_estimator in sorted(cells.items()):
        for name, (mse, stderr, variance) in of_estimator.items():
            numbers = f"{mse:.8g},{stderr:.8g},{variance:.8g},{len(runs[temperature, actions, n][name])}"
            lines.append(f"{temperature:g},{actions},{n},{name},{numbers}")
    write_atomically(path, "\n".join(lines) + "\n")


def cells_from(runs: Runs) -> Cells:
    """The means of the runs in each cell."""
    cells: Cells = {}
    for cell, of_estimator in runs.items():
        for name, values in of_estimator.items():
            error, variance = values[:, 0], values[:, 1]
            stderr = float(error.std(ddof=1)) / math.sqrt(len(error)) if len(error) > 1 else math.nan
            cells.setdefault(cell, {})[name] = (float(error.mean()), stderr, float(variance.mean()))
    return cells


def wins(cells: Cells, names: tuple[str, ...] = COMPARED) -> dict[str, int]:
    """In how many cells each estimator has the lowest mean squared error."""
    count = dict.fromkeys(names, 0)
    for of_estimator in cells.values():
        errors = {name: of_estimator[name][0] for name in names if not math.isnan(of_estimator[name][0])}
        count[min(errors, key=lambda name: errors[name])] += 1
    return count


def significant(cells: Cells, first: str = "beta-IPS", second: str = "SNIPS") -> tuple[int, int]:
    """In how many cells the first is better, and worse, than the second by 1.96 standard errors, unpaired."""
    better = worse = 0
    for of_estimator in cells.values():
        a, b = of_estimator[first], of_estimator[second]
        z = (b[0] - a[0]) / max(math.hypot(a[1], b[1]), 1e-300)
        better, worse = better + (z > 1.96), worse + (z < -1.96)
    return better, worse


def significant_paired(runs: Runs, first: str = "beta-IPS", second: str = "SNIPS") -> tuple[int, int]:
    """The same, but with the difference taken seed by seed, which is the sharper test."""
    better = worse = 0
    for of_estimator in runs.values():
        gain = of_estimator[second][:, 0] - of_estimator[first][:, 0]
        stderr = float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
        z = float(gain.mean()) / max(stderr, 1e-300)
        better, worse = better + (z > 1.96), worse + (z < -1.96)
    return better, worse


def coverage(runs: Runs, temperature: float) -> dict[int, dict[str, float]]:
    """The share of seeds in which value ± 1.96 √variance contains the truth, by n and estimator, over all action counts."""
    hits: dict[int, dict[str, list[np.ndarray]]] = {}
    for (t, _, n), of_estimator in runs.items():
        if t == temperature:
            for name, values in of_estimator.items():
                inside = values[:, 0] <= 1.96**2 * values[:, 1]
                hits.setdefault(n, {}).setdefault(name, []).append(inside)
    return {
        n: {name: float(np.concatenate(all_).mean()) for name, all_ in of.items()} for n, of in sorted(hits.items())
    }


def differences(rows: Mapping[Key, list[Row]], published: Mapping[Key, list[Row]], digits: int = 8) -> list[str]:
    """Where runs differ from the published ones in the first digits; rounding noise around 0 counts as 0."""
    lines = []
    for key, expected in sorted(published.items()):
        ours = {row[0]: row[1:] for row in rows[key]}
        for name, *numbers in expected:
            for column, want, got in zip(RECIPE.columns[-2:], numbers, ours[name], strict=True):
                if abs(float(got) - float(want)) > 0.5 * 10.0**-digits * abs(float(want)) + 1e-20:
                    cell = ", ".join(f"{label} {value:g}" for (label, _), value in zip(RECIPE.keys, key, strict=True))
                    lines.append(f"{cell}: {column} of {name} is {got:.12g}, published {want:.12g}")
    return lines
