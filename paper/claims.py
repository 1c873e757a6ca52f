"""What the results say about the paper's claims: who wins where, and whether intervals cover; in numbers and as printed."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from counterpoise.errors import OptionError, verbatim
from paper.ope import OURS, PUBLISHED, RECIPE, SEEDS, Cell, CellKey, Runs, by_cell, run_cells
from paper.result_file import Key, Recipe, ResultFileError, Row, read_rows, write_atomically

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
            means = (float(error.mean()), _stderr(error, alone=math.nan), float(variance.mean()))
            cells.setdefault(cell, {})[name] = means
    return cells


def wins(cells: Cells, names: tuple[str, ...] = COMPARED) -> dict[str, int]:
    """In how many cells each estimator has the lowest mean squared error."""
    count = dict.fromkeys(names, 0)
    for of_estimator in cells.values():
        errors = {name: of_estimator[name][0] for name in names if not math.isnan(of_estimator[name][0])}
        count[min(errors, key=lambda name: errors[name])] += 1
    return count


def significant(cells: Cells) -> tuple[int, int]:
    """In how many cells beta-IPS is better, and worse, than SNIPS by 1.96 standard errors, unpaired."""
    pairs = [(of_estimator["beta-IPS"], of_estimator["SNIPS"]) for of_estimator in cells.values()]
    return _clear((b[0] - a[0], math.hypot(a[1], b[1])) for a, b in pairs)


def significant_paired(runs: Runs, first: str = "beta-IPS", second: str = "SNIPS") -> tuple[int, int]:
    """The same, but with the difference taken seed by seed, which is the sharper test."""
    gains = [of_estimator[second][:, 0] - of_estimator[first][:, 0] for of_estimator in runs.values()]
    return _clear((float(gain.mean()), _stderr(gain, alone=math.inf)) for gain in gains)


def _clear(gains: Iterable[tuple[float, float]]) -> tuple[int, int]:
    """How many gains are above 0, and below it, by 1.96 of their standard errors."""
    z = [gain / max(stderr, 1e-300) for gain, stderr in gains]
    return sum(score > 1.96 for score in z), sum(score < -1.96 for score in z)


def _stderr(values: np.ndarray, *, alone: float) -> float:
    """The standard error of a mean over seeds; that of a single seed is unknown."""
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else alone


def coverage(runs: Runs, temperature: float) -> dict[int, dict[str, float]]:
    """The share of seeds in which value ± 1.96 √variance contains the truth, by n and estimator, over all action counts."""
    hits: dict[int, dict[str, list[np.ndarray]]] = {}
    for (t, _, n), of_estimator in runs.items():
        if t == temperature:
            for name, values in of_estimator.items():
                inside = values[:, 0] <= 1.96**2 * values[:, 1]
                hits.setdefault(n, {}).setdefault(name, []).append(inside)
    return {n: {name: float(np.concatenate(all_).mean()) for name, all_ in hits[n].items()} for n in sorted(hits)}


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


# -- The tables that the commands print --------------------------------------------------------------------------------


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text with aligned columns, the first one to the left."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def claims_text(path: Path, published: Path | None = None) -> str:
    """Everything that a file of runs, or of means per cell, tells us about the claims."""
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            header = next(csv.reader(stream), [])
    except (OSError, UnicodeDecodeError) as error:
        raise ResultFileError(f"{str(path)!r} cannot be read: {verbatim(error)}. Name a file of results.") from error
    if "mse" in header:
        cells = read_cells(path)
        return "\n\n".join([_wins(cells), _significance("unpaired", significant(cells))])
    runs = by_cell(read_rows(path, RECIPE))
    parts = [summary_of(runs, read_cells(published) if published else {})]
    parts.append(_significance("seed by seed", significant_paired(runs)))
    for temperature in sorted({cell[0] for cell in runs}):
        covered = coverage(runs, temperature)
        names = [name for name in next(iter(covered.values())) if name != "DM"]
        rows = [("n", *names)] + [(f"{n:,}", *(f"{of[name]:.0%}" for name in names)) for n, of in covered.items()]
        parts.append(f"Nominal 95 % normal intervals at inverse temperature {temperature:g} cover:\n{columns(rows)}")
    return "\n\n".join(parts)


def summary_of(runs: Runs, published: Cells) -> str:
    """Which estimator wins, and how near the means are to the published ones: equal over all of their seeds, and close over fewer."""
    cells = cells_from(runs)
    shared = [cell for cell in cells if cell in published]
    if not shared:
        return _wins(cells)
    pairs = [(cell, name, cells[cell][name], published[cell][name]) for cell in shared for name in PUBLISHED]
    full = [(a[0], b[0]) for cell, name, a, b in pairs if len(runs[cell][name]) == SEEDS]
    fewer = [(a, b) for cell, name, a, b in pairs if len(runs[cell][name]) != SEEDS]
    lines = []
    if full:
        equal = sum(abs(a - b) <= 1e-7 * abs(b) for a, b in full)
        lines.append(f"Means over {SEEDS} seeds equal to the published ones in 7 digits: {equal} of {len(full)}.")
    if fewer:
        near = sum(abs(a[0] - b[0]) <= 3 * math.hypot(a[1], b[1]) for a, b in fewer)
        lines.append(f"Means over fewer seeds within 3 standard errors of the published ones: {near} of {len(fewer)}.")
    return "\n\n".join([_wins(cells), "\n".join(lines)])


def _wins(cells: Cells) -> str:
    text = f"Lowest mean squared error in {len(cells)} cells, among the paper's estimators: "
    text += ", ".join(f"{name} {count}" for name, count in wins(cells).items()) + "."
    everyone = (*COMPARED, *OURS)
    if all(set(everyone) <= set(of) for of in cells.values()):
        counts = ", ".join(f"{name} {count}" for name, count in wins(cells, everyone).items())
        text += f"\nWith ours beside them: {counts}."
    return text


def _significance(how: str, counts: tuple[int, int]) -> str:
    return f"beta-IPS against SNIPS, 1.96 standard errors, {how}: better in {counts[0]} cells, worse in {counts[1]}."


def check_published(published: Path, out: Path, *, digits: int = 8, jobs: int | None = None) -> tuple[list[str], str]:
    """Run every published cell again: the numbers that differ in the first digits, and how many were compared."""
    expected = read_rows(published, RECIPE)
    if not expected:
        raise OptionError(f"{str(published)!r} has no rows: name a file of published runs.")
    file = run_cells([Cell(*key) for key in expected], out, jobs=jobs)  # type: ignore[arg-type]
    lines = differences(file.rows, expected, digits)
    numbers = sum(2 * len(rows) for rows in expected.values())
    return lines, f"{len(expected):,} runs, {numbers:,} numbers: {len(lines):,} differ in the first {digits} digits."
