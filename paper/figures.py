"""Draws Figures 4 and 5: one panel per action count and inverse temperature, as published."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from counterpoise.errors import OptionError
from paper.claims import Cells, cells_from, read_cells, summary_of, write_cells
from paper.ope import RECIPE, CellKey, Runs, Scale, by_cell, cells_of, run_cells
from paper.result_file import read_rows, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Quantity = Literal["squared_error", "variance"]
Styles = Mapping[str, tuple[str, str, str]]  # estimator → label, color, marker
Published = Mapping[tuple[CellKey, str], float]

# The paper draws the (asymptotically) unbiased estimators only, so the direct method is in the CSV and not here.
PAPER: Styles = {
    "IPS": ("IPS", "#0072B2", "o"),
    "SNIPS": ("SNIPS", "#E69F00", "s"),
    "DR": ("DR", "#009E73", "^"),
    "beta-IPS": ("β-IPS", "#D55E00", "D"),
}
OURS: Styles = {
    "beta-IPS": PAPER["beta-IPS"],
    "beta_ips": ("β-IPS, Cov/Var", "#CC79A7", "v"),
    "cross_fit": ("β-IPS, cross-fitted", "#56B4E9", "P"),
    "DR": PAPER["DR"],
    "optimal_dr": ("optimal DR", "#000000", "X"),
}
LABEL: dict[Quantity, str] = {"squared_error": "mean squared error", "variance": "estimated variance"}


def draw(runs: Runs, quantity: Quantity, *, styles: Styles, published: Published | None = None) -> Figure:
    """Plot the mean over seeds with its 95 % band against n, on log axes, with published means, if given, as hollow points."""
    temperatures = sorted({cell[0] for cell in runs})
    actions = sorted({cell[1] for cell in runs})
    size = (2.6 * len(actions) + 1.2, 2.1 * len(temperatures) + 1.1)
    figure = _figure_class()(figsize=size, layout="constrained")
    panels = figure.subplots(len(temperatures), len(actions), sharex=True, sharey="row", squeeze=False)
    for i, temperature in enumerate(temperatures):
        for j, count in enumerate(actions):
            axes, panel = panels[i, j], (temperature, count)
            _panel(axes, {cell[2]: of for cell, of in runs.items() if cell[:2] == panel}, quantity, styles)
            for name, (_, color, marker) in styles.items():
                means = ((cell, mean) for (cell, of), mean in (published or {}).items() if of == name and cell in runs)
                points = sorted((cell[2], mean) for cell, mean in means if cell[:2] == panel)
                if points:
                    hollow = {"linestyle": "none", "markersize": 6, "markerfacecolor": "none", "alpha": 0.7}
                    axes.plot(*zip(*points, strict=True), marker=marker, color=color, **hollow)
            if i == 0:
                axes.set_title(f"{count} actions", fontsize=10)
            if j == 0:
                signed = f"{temperature:g}".replace("-", "−")
                axes.set_ylabel(f"inverse temp. {signed}\n{LABEL[quantity]}", fontsize=9)
            if i == len(temperatures) - 1:
                axes.set_xlabel("n (logged rows)", fontsize=9)
        # every row shows its means; bands, and variances that are 0 up to rounding, may leave the picture
        column = 0 if quantity == "squared_error" else 1
        of_row = [of for cell, of in runs.items() if cell[0] == temperature]
        row = np.concatenate([summary([of[name][:, column] for name in styles if name in of])[0] for of in of_row])
        row = row[np.isfinite(row) & (row > 1e-9)]
        if row.size:
            panels[i, 0].set_ylim(0.4 * float(row.min()), 2.5 * float(row.max()))
    if published:
        hollow = {"linestyle": "none", "marker": "o", "markersize": 6, "markerfacecolor": "none", "color": "0.4"}
        panels[0, 0].plot([], [], label="hollow: published mean of 100 seeds", **hollow)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as SVG and PNG side by side; the same figure gives the same files, byte for byte."""
    import matplotlib
    from PIL import Image  # which matplotlib needs anyway

    svg, png, small = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "counterpoise", "svg.fonttype": "none"}):
        figure.savefig(svg, format="svg", metadata={"Date": None})
    figure.savefig(png, format="png", dpi=110)
    Image.open(png).convert("RGB").quantize(128).save(small, format="png", optimize=True)  # a quarter of the size
    contents = {".svg": re.sub(rb"\n\s+", b"\n", svg.getvalue()), ".png": small.getvalue()}
    for suffix, content in contents.items():
        write_atomically(path.with_suffix(suffix), content)
    return [path.with_suffix(suffix) for suffix in contents]


def _panel(axes: Axes, by_size: Mapping[int, Mapping[str, np.ndarray]], quantity: Quantity, styles: Styles) -> None:
    column = 0 if quantity == "squared_error" else 1
    sizes = sorted(by_size)
    for name, (label, color, marker) in styles.items():
        values = [by_size[n][name][:, column] if name in by_size[n] else np.array([]) for n in sizes]
        mean, half = summary(values)
        # a band that reaches 0 has no lower end on a log axis
        low = np.where(mean - half > 0, mean - half, mean * 0.05)
        axes.plot(sizes, mean, color=color, marker=marker, markersize=3.5, linewidth=1.3, label=label)
        axes.fill_between(sizes, low, mean + half, color=color, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(visible=True, which="major", color="0.9", linewidth=0.6)
    axes.tick_params(labelsize=8)
    axes.minorticks_off()


def summary(values: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The mean and half a 95 % interval over the seeds in which the value was identified; NaN if it never was."""
    mean, half = np.full(len(values), np.nan), np.full(len(values), np.nan)
    for k, runs in enumerate(values):
        finite = runs[np.isfinite(runs)]
        if finite.size and (average := float(finite.mean())) > 0:
            mean[k] = average
            half[k] = 1.96 * float(finite.std(ddof=1)) / np.sqrt(finite.size) if finite.size > 1 else 0.0
    return mean, half


def check_available() -> None:
    """Say that matplotlib is missing before hours of running, not after."""
    _figure_class()


def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OptionError(
            "figures need matplotlib, which is not installed: pip install 'counterpoise[plot]'. "
            "The numbers are in the CSV file all the same."
        ) from error
    return Figure


# -- From runs to files: what the commands do --------------------------------------------------------------------------------

QUANTITIES: dict[str, Quantity] = {"figure4": "squared_error", "figure5": "variance"}


def run_figure(
    name: str, scale: Scale, out: Path, *, jobs: int | None = None, published: Path | None = None
) -> Iterator[object]:
    """Run the cells of a scale, as far as they have not been run, and draw one figure of them: what to print, line by line."""
    cells = read_cells(published) if published else {}
    wanted = cells_of(scale)
    check_available()
    file = run_cells(wanted, out / f"ope_{scale}.csv", jobs=jobs)
    runs = by_cell({key: file.rows[key] for key in wanted})
    yield from _files(runs, out / f"{name}_{scale}", QUANTITIES[name], cells)
    yield summary_of(runs, cells)


def draw_runs(results: Path, out: Path, *, published: Path | None = None) -> Iterator[object]:
    """Draw both figures from whatever runs there are, and write the means per cell beside them."""
    runs = by_cell(read_rows(results, RECIPE))
    if not runs:
        raise OptionError(f"{str(results)!r} has no rows: name a file of runs.")
    cells = read_cells(published) if published else {}
    for name, quantity in QUANTITIES.items():
        yield from _files(runs, out / name, quantity, cells)
    write_cells(out / "cells.csv", cells_from(runs), runs)
    yield out / "cells.csv"


def _files(runs: Runs, path: Path, quantity: Quantity, cells: Cells) -> Iterator[Path]:
    """The files of a figure with the paper's estimators, and of one with ours."""
    column = 0 if quantity == "squared_error" else 2
    points = {(cell, name): of[name][column] for cell, of in cells.items() for name in of}
    for suffix, styles in (("", PAPER), ("_ours", OURS)):
        yield from save(draw(runs, quantity, styles=styles, published=points), path.with_name(path.name + suffix))
