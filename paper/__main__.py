"""`python -m paper`: the paper's experiments again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from itertools import product
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from counterpoise.errors import CounterpoiseError, OptionError

P = ParamSpec("P")
a_file, a_folder, a_name, a_number, a_scale = (
    partial(typer.Option, metavar=metavar) for metavar in ("FILE", "FOLDER", "NAME", "N", "SCALE")
)
app = typer.Typer(
    name="python -m paper", help="Run the paper's experiments again.", no_args_is_help=True, rich_markup_mode=None
)


def without_traceback(command: Callable[P, None]) -> Callable[P, None]:
    """Print a refusal in one line, and exit 2."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except CounterpoiseError as error:
            typer.echo(f"{type(error).__name__}: {error}", err=True)
            raise typer.Exit(error.exit_code) from None

    return run


Scale = Annotated[str, a_scale(help="smoke (seconds), small (minutes: n up to 16,681, 10 seeds) or paper (hours).")]
Out = Annotated[Path, a_folder(help="Folder for the results and figures; an interrupted run continues there.")]
Jobs = Annotated[int | None, a_number(help="Processes, one thread each; by default one per core.")]
Published = Annotated[Path | None, a_file(help="CSV of published means per cell, drawn as hollow points.")]


@app.command()
@without_traceback
def figure4(scale: Scale = "small", out: Out = Path("results"), jobs: Jobs = None, published: Published = None) -> None:
    """Mean squared error of each estimator against n, a panel per action count and inverse temperature."""
    _figure("figure4", scale, out, jobs, published)


@app.command()
@without_traceback
def figure5(scale: Scale = "small", out: Out = Path("results"), jobs: Jobs = None, published: Published = None) -> None:
    """Estimated variance of each estimator against n; shares its runs with figure4."""
    _figure("figure5", scale, out, jobs, published)


@app.command()
@without_traceback
def table1(
    data: Annotated[Path, a_folder(help="Open Bandit Dataset: the folder that holds 'random' and 'bts'.")],
    priors: Annotated[Path | None, a_file(help="YAML of Beta priors; by default thompson_priors.yaml in it.")] = None,
    scale: Annotated[str, a_scale(help="5 (smoke), 100 (small) or 1,000 (paper) bootstrap samples.")] = "small",
    campaign: Annotated[list[str] | None, a_name(help="men, women or all; by default each of them.")] = None,
    out: Out = Path("results"),
    jobs: Jobs = None,
) -> None:
    """Relative absolute error of each estimator on the logs of a fashion shop, mean and sd over bootstrap samples."""
    from paper import table1 as experiment

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


@app.command()
@without_traceback
def ope(
    inverse_temperature: Annotated[list[float], a_number(help="Of the logging policy; may be repeated.")],
    actions: Annotated[list[int], a_number(help="Number of actions; may be repeated.")],
    n: Annotated[list[int], a_number(help="Rows of the training and of the test batch; may be repeated.")],
    seeds: Annotated[
        str, typer.Option(metavar="SEEDS", help="One seed, or first:last without the last, such as 10:20.")
    ],
    out: Annotated[Path, a_file(help="CSV file of the runs; an interrupted run continues it.")],
    jobs: Jobs = None,
) -> None:
    """Single cells of Figures 4 and 5: squared error and variance of every estimator, seed by seed."""
    from paper.ope import Cell, run_cells

    first, colon, last = seeds.partition(":")  # 10:20 → 10 … 19
    try:
        start = int(first)
        stop = int(last) if colon else start + 1
    except ValueError:
        raise OptionError(f"seeds are one integer or first:last, such as 10:20; found {seeds!r}.") from None
    if stop <= start:
        raise OptionError(
            f"`--seeds {seeds}` selects no seeds: the last one is left out, so it must be above the first."
        )
    cells = [Cell(*values) for values in product(inverse_temperature, actions, n, range(start, stop))]
    file = run_cells(cells, out, jobs=jobs)
    print(f"{out}: {len(file.rows):,} cells, of which {len(set(cells)):,} were asked for.")


@app.command()
@without_traceback
def check(
    published: Annotated[Path, typer.Argument(help="CSV of published runs, with the columns that `ope` writes.")],
    out: Annotated[Path, a_file(help="CSV file of our runs; an interrupted check continues it.")] = Path(
        "results/check.csv"
    ),
    digits: Annotated[int, a_number(help="Significant digits that must agree.")] = 8,
    jobs: Jobs = None,
) -> None:
    """Run every published cell again and compare squared error and variance digit by digit; exit 1 if any differs."""
    from paper.claims import check_published

    lines, summary = check_published(published, out, digits=digits, jobs=jobs)
    print(*lines, summary, sep="\n")
    if lines:
        raise typer.Exit(1)


@app.command()
@without_traceback
def claims(
    results: Annotated[Path, typer.Argument(help="CSV of runs (from `ope` or a figure) or of means per cell.")],
    published: Annotated[Path | None, a_file(help="CSV of published means per cell, to compare with.")] = None,
) -> None:
    """What results say about the paper's claims: who has the lowest error where, and how often intervals cover."""
    from paper.claims import claims_text

    print(claims_text(results, published))


@app.command()
@without_traceback
def draw(
    results: Annotated[Path, typer.Argument(help="CSV of runs, from `ope` or a figure, finished or not.")],
    out: Out = Path("results"),
    published: Published = None,
) -> None:
    """Draw both figures from whatever runs there are, and write the means per cell beside them."""
    from paper.figures import draw_runs

    for line in draw_runs(results, out, published=published):
        print(line)


def _figure(name: str, scale: str, out: Path, jobs: int | None, published: Path | None) -> None:
    from paper.figures import run_figure

    for line in run_figure(name, scale, out, jobs=jobs, published=published):  # type: ignore[arg-type]
        print(line)


# -- The learning experiments --------------------------------------------------------------------------------------------

Learning = Annotated[str, a_scale(help="smoke (seconds), or paper (32 runs of 250,000 rows: minutes on a GPU).")]
Device = Annotated[str, a_name(help="cpu or cuda.")]
Curves = Annotated[Path, a_folder(help="Folder for the curves and figures; an interrupted run continues there.")]
PublishedCurves = Annotated[Path | None, a_file(help="CSV of published curves, to draw and to compare with.")]


@app.command()
@without_traceback
def figure1(
    scale: Learning = "smoke", device: Device = "cpu", out: Curves = Path("results"), published: PublishedCurves = None
) -> None:
    """Full-batch learning: policy value against the epoch for IPS, SNIPS and β-IPS."""
    _learning_figure("figure1", "full_batch", "policy_value", scale, device, out, published)


@app.command()
@without_traceback
def figure2(
    scale: Learning = "smoke", device: Device = "cpu", out: Curves = Path("results"), published: PublishedCurves = None
) -> None:
    """Mini-batch learning: policy value against the epoch for IPS, BanditNet (both λ) and β-IPS (both β)."""
    _learning_figure("figure2", "mini_batch", "policy_value", scale, device, out, published)


@app.command()
@without_traceback
def figure3(
    scale: Learning = "smoke", device: Device = "cpu", out: Curves = Path("results"), published: PublishedCurves = None
) -> None:
    """Mini-batch learning: gradient variance against the epoch; shares its runs with figure2."""
    _learning_figure("figure3", "mini_batch", "gradient_variance", scale, device, out, published)


@app.command()
@without_traceback
def on_policy(scale: Learning = "smoke", device: Device = "cpu", out: Curves = Path("results")) -> None:
    """On-policy learning (section 2.1): no baseline, the mean reward, and the baseline of least gradient variance."""
    _learning_figure("on_policy_value", "on_policy", "policy_value", scale, device, out, None)
    _learning_figure("on_policy_gradient_variance", "on_policy", "gradient_variance", scale, device, out, None)


@app.command()
@without_traceback
def opl(
    mode: Annotated[str, typer.Option(metavar="MODE", help="full_batch, mini_batch or on_policy.")],
    method: Annotated[
        list[str], a_name(help="ips, snips, banditnet, banditnet_0.95, beta_ips, running_beta_ips; may be repeated.")
    ],
    learning_rate: Annotated[list[float], typer.Option(metavar="RATE", help="Of Adam; may be repeated.")],
    out: Annotated[Path, a_file(help="CSV file of the curves; an interrupted run continues it.")],
    runs: Annotated[int, a_number(min=1, help="Runs that differ in initialization and shuffling.")] = 32,
    epochs: Annotated[int, a_number(min=1, help="Passes over the rows.")] = 100,
    device: Device = "cpu",
    published: PublishedCurves = None,
) -> None:
    """Single curves: mean and sd over runs of policy value and gradient variance, epoch by epoch, on all 250,000 rows."""
    from paper.learning import FLAGS, run_mode

    for name in method:
        if name not in FLAGS:
            raise OptionError(f"there is no method {name!r}; choose from {', '.join(FLAGS)}.")
    run_mode(
        mode,  # type: ignore[arg-type]
        out,
        scale="paper",
        device=device,
        methods=[FLAGS[name] for name in method],
        learning_rates=learning_rate,
        runs=runs,
        epochs=epochs,
    )
    print(out)
    if published:
        _compare(out, published)


@app.command()
@without_traceback
def check_curves(
    curves: Annotated[Path, typer.Argument(help="CSV of curves, from `opl` or a figure.")],
    published: Annotated[Path, typer.Argument(help="CSV of published curves.")],
) -> None:
    """Compare curves with published ones; exit 1 if a value or a gradient variance is too far off."""
    _compare(curves, published)


def _learning_figure(
    name: str, mode: str, quantity: str, scale: str, device: str, out: Path, published: Path | None
) -> None:
    from paper.learning_figures import run_figure

    written = run_figure(name, mode, quantity, scale=scale, device=device, out=out, published=published)  # type: ignore[arg-type]
    print(*written, sep="\n")
    if published and scale == "paper":
        _compare(out / f"{mode}_{scale}.csv", published)


def _compare(curves: Path, published: Path) -> None:
    from paper.learning_figures import compare_files

    lines, is_alike = compare_files(curves, published)
    print(*lines, sep="\n")
    if not is_alike:
        raise typer.Exit(1)


if __name__ == "__main__":
    app(prog_name="python -m paper")
