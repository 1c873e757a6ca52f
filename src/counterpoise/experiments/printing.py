"""The tables that the commands print."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from counterpoise.errors import ResultFileError
from counterpoise.experiments.cell import PUBLISHED
from counterpoise.experiments.claims import (
    COMPARED,
    Cells,
    cells_from,
    coverage,
    read_cells,
    significant,
    significant_paired,
    wins,
)
from counterpoise.experiments.figures import Runs
from counterpoise.experiments.ope import RECIPE, SEEDS, by_cell
from counterpoise.experiments.result_file import read_rows
from counterpoise.experiments.table1 import PAPER, Line


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


def claims(path: Path, published: Path | None = None) -> str:
    """Everything that a file of runs, or of means per cell, tells us about the claims."""
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            header = next(csv.reader(stream), [])
    except (OSError, UnicodeDecodeError) as error:
        raise ResultFileError(f"{str(path)!r} cannot be read: {error}. Name a file of results.") from error
    if "mse" in header:
        cells = read_cells(path)
        return "\n\n".join([_wins(cells), _significance("unpaired", significant(cells))])
    runs = by_cell(read_rows(path, RECIPE))
    parts = [summary_of(runs, read_cells(published) if published else {})]
    parts.append(_significance("seed by seed", significant_paired(runs)))
    parts += [_coverage(runs, temperature) for temperature in sorted({cell[0] for cell in runs})]
    return "\n\n".join(parts)


def summary_of(runs: Runs, published: Cells) -> str:
    """Which estimator wins, and how far the means are from the published ones."""
    cells = cells_from(runs)
    text = _wins(cells)
    shared = [cell for cell in cells if cell in published]
    if shared:
        text += f"\n\n{_nearness(runs, cells, published, shared)}"
    return text


def _nearness(runs: Runs, cells: Cells, published: Cells, shared: Sequence[tuple[float, int, int]]) -> str:
    """How near the means are: over all of the published seeds they must be equal, and over fewer they must be close."""
    pairs = [(cell, name, cells[cell][name], published[cell][name]) for cell in shared for name in PUBLISHED]
    whole = [(a[0], b[0]) for cell, name, a, b in pairs if len(runs[cell][name]) == SEEDS]
    fewer = [(a, b) for cell, name, a, b in pairs if len(runs[cell][name]) != SEEDS]
    lines = []
    if whole:
        equal = sum(abs(a - b) <= 1e-7 * abs(b) for a, b in whole)
        lines.append(f"Means over {SEEDS} seeds equal to the published ones in 7 digits: {equal} of {len(whole)}.")
    if fewer:
        near = sum(abs(a[0] - b[0]) <= 3 * math.hypot(a[1], b[1]) for a, b in fewer)
        lines.append(f"Means over fewer seeds within 3 standard errors of the published ones: {near} of {len(fewer)}.")
    return "\n".join(lines)


def table1(lines: Sequence[Line]) -> str:
    """The table, one block per campaign, with the paper's numbers beside ours and how well the truth itself is known."""
    blocks = []
    for campaign in dict.fromkeys(line.campaign for line in lines):
        mine = [line for line in lines if line.campaign == campaign]
        first = mine[0]
        rows = [("estimator", "error (sd)", "published (sd)")]
        for line in mine:
            paper = PAPER.get(line.estimator) if campaign == "men" else None
            rows.append(
                (
                    line.estimator,
                    f"{line.error:.4f} ({line.deviation:.4f})",
                    f"{paper[0]} ({paper[1]})" if paper else "–",
                )
            )
        noise = first.truth_stderr / first.truth
        blocks.append(
            f"campaign {campaign}: relative absolute error, {first.samples:,} bootstrap samples of {first.n:,} rows\n"
            f"{columns(rows)}\n"
            f"The truth itself, {first.truth:.5f}, is known to ±{noise:.0%} (one standard error of the target's own "
            "log): differences smaller than that mean nothing."
        )
    return "\n\n".join([*blocks, "Published: the full data, 452,949 rows of campaign men."])


def _wins(cells: Cells) -> str:
    text = f"Lowest mean squared error in {len(cells)} cells, among the paper's estimators: "
    text += ", ".join(f"{name} {count}" for name, count in wins(cells).items()) + "."
    everyone = (*COMPARED, "beta_ips", "cross_fit", "optimal_dr")
    if all(set(everyone) <= set(of) for of in cells.values()):
        text += (
            "\nWith ours beside them: " + ", ".join(f"{n} {count}" for n, count in wins(cells, everyone).items()) + "."
        )
    return text


def _significance(how: str, counts: tuple[int, int]) -> str:
    return f"beta-IPS against SNIPS, 1.96 standard errors, {how}: better in {counts[0]} cells, worse in {counts[1]}."


def _coverage(runs: Runs, temperature: float) -> str:
    covered = coverage(runs, temperature)
    names = [name for name in next(iter(covered.values())) if name != "DM"]
    rows = [("n", *names)] + [(f"{n:,}", *(f"{of[name]:.0%}" for name in names)) for n, of in covered.items()]
    return f"Nominal 95 % normal intervals at inverse temperature {temperature:g} cover:\n{columns(rows)}"
