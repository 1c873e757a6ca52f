"""`counterpoise reproduce`: the paper's experiments again."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise.cli.learning import COMMANDS
from counterpoise.cli.running import without_traceback
from counterpoise.errors import OptionError

if TYPE_CHECKING:
    from counterpoise.experiments.figures import Runs

reproduce = typer.Typer(help="Run the paper's experiments again.", no_args_is_help=True, rich_markup_mode=None)

Scale = Annotated[
    str, typer.Option(help="smoke (seconds), small (minutes: n up to 16,681, 10 seeds) or paper (hours).")
]
Out = Annotated[Path, typer.Option(help="Folder for the results and figures; an interrupted run continues there.")]
Jobs = Annotated[int | None, typer.Option(help="Processes, one thread each; by default one per core.")]
Published = Annotated[Path | None, typer.Option(help="CSV of published means per cell, drawn as hollow points.")]


@reproduce.command()
@without_traceback
def figure4(scale: Scale = "small", out: Out = Path("results"), jobs: Jobs = None, published: Published = None) -> None:
    """Mean squared error of each estimator against n, a panel per action count and inverse temperature."""
    _figure("figure4", "squared_error", scale, out, jobs, published)


@reproduce.command()
@without_traceback
def figure5(scale: Scale = "small", out: Out = Path("results"), jobs: Jobs = None, published: Published = None) -> None:
    """Estimated variance of each estimator against n; shares its runs with figure4."""
    _figure("figure5", "variance", scale, out, jobs, published)


@reproduce.command()
@without_traceback
def table1(
    data: Annotated[Path, typer.Option(help="Open Bandit Dataset: the folder that holds 'random' and 'bts'.")],
    priors: Annotated[
        Path | None, typer.Option(help="YAML of Beta priors; by default thompson_priors.yaml in it.")
    ] = None,
    scale: Annotated[str, typer.Option(help="5 (smoke), 100 (small) or 1,000 (paper) bootstrap samples.")] = "small",
    campaign: Annotated[list[str] | None, typer.Option(help="men, women or all; by default each of them.")] = None,
    out: Out = Path("results"),
    jobs: Jobs = None,
) -> None:
    """Relative absolute error of each estimator on the logs of a fashion shop, mean and sd over bootstrap samples."""
    from counterpoise.experiments import table1 as experiment

    if scale not in experiment.SAMPLES:
        raise OptionError(f"no scale {scale!r}; there are 'smoke', 'small' and 'paper'.")
    lines = experiment.run_table(
        data,
        priors or data / "thompson_priors.yaml",
        out / f"table1_{scale}.csv",
        samples=experiment.SAMPLES[scale],
        campaigns=tuple(campaign or experiment.CAMPAIGNS),
        jobs=jobs,
    )
    print(experiment.as_text(lines))


@reproduce.command()
@without_traceback
def ope(
    inverse_temperature: Annotated[list[float], typer.Option(help="Of the logging policy; may be repeated.")],
    actions: Annotated[list[int], typer.Option(help="Number of actions; may be repeated.")],
    n: Annotated[list[int], typer.Option(help="Rows of the training and of the test batch; may be repeated.")],
    seeds: Annotated[str, typer.Option(help="One seed, or first:last with last left out, such as 10:20.")],
    out: Annotated[Path, typer.Option(help="CSV file of the runs; an interrupted run continues it.")],
    jobs: Jobs = None,
) -> None:
    """Single cells of Figures 4 and 5: squared error and variance of every estimator, seed by seed."""
    from counterpoise.experiments.ope import Cell, run_cells

    cells = [Cell(*values) for values in product(inverse_temperature, actions, n, _seeds(seeds))]
    file = run_cells(cells, out, jobs=jobs)
    print(f"{out}: {len(file.rows):,} cells, of which {len(set(cells)):,} were asked for.")


@reproduce.command()
@without_traceback
def check(
    published: Annotated[Path, typer.Argument(help="CSV of published runs, with the columns that `ope` writes.")],
    out: Annotated[Path, typer.Option(help="CSV file of our runs; an interrupted check continues it.")] = Path(
        "results/check.csv"
    ),
    digits: Annotated[int, typer.Option(help="Significant digits that must agree.")] = 8,
    jobs: Jobs = None,
) -> None:
    """Run every published cell again and compare squared error and variance digit by digit; exit 1 if any differs."""
    from counterpoise.experiments.claims import differences
    from counterpoise.experiments.ope import RECIPE, Cell, run_cells
    from counterpoise.experiments.result_file import read_rows

    expected = read_rows(published, RECIPE)
    if not expected:
        raise OptionError(f"{str(published)!r} has no rows: name a file of published runs.")
    file = run_cells([Cell(*key) for key in expected], out, jobs=jobs)  # type: ignore[arg-type]
    lines = differences(file.rows, expected, digits)
    for line in lines:
        print(line)
    numbers = sum(2 * len(rows) for rows in expected.values())
    print(f"{len(expected):,} runs, {numbers:,} numbers: {len(lines):,} differ in the first {digits} digits.")
    if lines:
        raise typer.Exit(1)


@reproduce.command()
@without_traceback
def claims(
    results: Annotated[Path, typer.Argument(help="CSV of runs (from `ope` or a figure) or of means per cell.")],
    published: Annotated[Path | None, typer.Option(help="CSV of published means per cell, to compare with.")] = None,
) -> None:
    """What results say about the paper's claims: who has the lowest error where, and how often intervals cover."""
    from counterpoise.experiments.claims import claims_text

    print(claims_text(results, published))


@reproduce.command()
@without_traceback
def draw(
    results: Annotated[Path, typer.Argument(help="CSV of runs, from `ope` or a figure, finished or not.")],
    out: Out = Path("results"),
    published: Published = None,
) -> None:
    """Draw both figures from whatever runs there are, and write the means per cell beside them."""
    from counterpoise.experiments.claims import cells_from, write_cells
    from counterpoise.experiments.ope import RECIPE, by_cell
    from counterpoise.experiments.result_file import read_rows

    runs = by_cell(read_rows(results, RECIPE))
    if not runs:
        raise OptionError(f"{str(results)!r} has no rows: name a file of runs.")
    for name, quantity in (("figure4", "squared_error"), ("figure5", "variance")):
        _draw(runs, out / name, quantity, published)
    write_cells(out / "cells.csv", cells_from(runs), runs)
    print(out / "cells.csv")


def _figure(name: str, quantity: str, scale: str, out: Path, jobs: int | None, published: Path | None) -> None:
    from counterpoise.experiments import figures
    from counterpoise.experiments.claims import read_cells, summary_of
    from counterpoise.experiments.ope import by_cell, cells_of, run_cells

    cells = read_cells(published) if published else {}
    wanted = cells_of(scale)  # type: ignore[arg-type]
    figures.check_available()
    file = run_cells(wanted, out / f"ope_{scale}.csv", jobs=jobs)
    runs = by_cell({key: file.rows[key] for key in wanted})
    _draw(runs, out / f"{name}_{scale}", quantity, published)
    print(summary_of(runs, cells))


def _draw(runs: Runs, path: Path, quantity: str, published: Path | None) -> None:
    from counterpoise.experiments import figures
    from counterpoise.experiments.claims import read_cells

    column = 0 if quantity == "squared_error" else 2
    cells = read_cells(published) if published else {}
    points = {(cell, name): of[name][column] for cell, of in cells.items() for name in of}
    for suffix, styles in (("", figures.PAPER), ("_ours", figures.OURS)):
        drawn = figures.draw(runs, quantity, styles=styles, published=points)  # type: ignore[arg-type]
        for written in figures.save(drawn, path.with_name(path.name + suffix)):
            print(written)


def _seeds(text: str) -> range:
    """10:20 → 10 … 19."""
    first, colon, last = text.partition(":")
    try:
        start = int(first)
        stop = int(last) if colon else start + 1
    except ValueError:
        raise OptionError(f"seeds are one integer or first:last, such as 10:20; found {text!r}.") from None
    if stop <= start:
        raise OptionError(f"the seeds {text} are none: the last is left out, so it must be above the first.")
    return range(start, stop)


for _command in COMMANDS:
    reproduce.command()(without_traceback(_command))
