"""The command line of the learning experiments: parsing and printing only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.errors import OptionError

Scale = Annotated[str, typer.Option(help="smoke (seconds), or paper (32 runs of 250,000 rows: minutes on a GPU).")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Out = Annotated[Path, typer.Option(help="Folder for the curves and figures; an interrupted run continues there.")]
Published = Annotated[Path | None, typer.Option(help="CSV of published curves, to draw and to compare with.")]


def figure1(
    scale: Scale = "smoke", device: Device = "cpu", out: Out = Path("results"), published: Published = None
) -> None:
    """Full-batch learning: policy value against the epoch for IPS, SNIPS and β-IPS."""
    _figure("figure1", "full_batch", "policy_value", scale, device, out, published)


def figure2(
    scale: Scale = "smoke", device: Device = "cpu", out: Out = Path("results"), published: Published = None
) -> None:
    """Mini-batch learning: policy value against the epoch for IPS, BanditNet (both λ) and β-IPS (both β)."""
    _figure("figure2", "mini_batch", "policy_value", scale, device, out, published)


def figure3(
    scale: Scale = "smoke", device: Device = "cpu", out: Out = Path("results"), published: Published = None
) -> None:
    """Mini-batch learning: gradient variance against the epoch; shares its runs with figure2."""
    _figure("figure3", "mini_batch", "gradient_variance", scale, device, out, published)


def on_policy(scale: Scale = "smoke", device: Device = "cpu", out: Out = Path("results")) -> None:
    """On-policy learning (section 2.1): no baseline, the mean reward, and the baseline of least gradient variance."""
    _figure("on_policy_value", "on_policy", "policy_value", scale, device, out, None)
    _figure("on_policy_gradient_variance", "on_policy", "gradient_variance", scale, device, out, None)


def opl(
    mode: Annotated[str, typer.Option(help="full_batch, mini_batch or on_policy.")],
    method: Annotated[
        list[str],
        typer.Option(help="ips, snips, banditnet, banditnet_0.95, beta_ips, running_beta_ips; may be repeated."),
    ],
    learning_rate: Annotated[list[float], typer.Option(help="Of Adam; may be repeated.")],
    out: Annotated[Path, typer.Option(help="CSV file of the curves; an interrupted run continues it.")],
    runs: Annotated[int, typer.Option(min=1, help="Runs that differ in initialization and shuffling.")] = 32,
    epochs: Annotated[int, typer.Option(min=1)] = 100,
    device: Device = "cpu",
    published: Published = None,
) -> None:
    """Single curves: mean and sd over runs of policy value and gradient variance, epoch by epoch, on all 250,000 rows."""
    from counterpoise.experiments.learning import FLAGS, run_mode

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


def check_curves(
    curves: Annotated[Path, typer.Argument(help="CSV of curves, from `opl` or a figure.")],
    published: Annotated[Path, typer.Argument(help="CSV of published curves.")],
) -> None:
    """Compare curves with published ones; exit 1 if a value or a gradient variance is too far off."""
    _compare(curves, published)


COMMANDS = (figure1, figure2, figure3, on_policy, opl, check_curves)


def _figure(name: str, mode: str, quantity: str, scale: str, device: str, out: Path, published: Path | None) -> None:
    from counterpoise.experiments import figures
    from counterpoise.experiments.learning import read_curves, run_mode
    from counterpoise.experiments.learning_figures import draw

    figures.check_available()
    theirs = read_curves(published) if published else None
    path = out / f"{mode}_{scale}.csv"
    run_mode(mode, path, scale=scale, device=device)  # type: ignore[arg-type]
    drawn = draw(read_curves(path), mode, quantity, published=theirs)
    for written in figures.save(drawn, out / f"{name}_{scale}"):
        print(written)
    if published and scale == "paper":
        _compare(path, published)


def _compare(curves: Path, published: Path) -> None:
    from counterpoise.experiments.learning import read_curves
    from counterpoise.experiments.learning_figures import FACTOR, compare, largest, order

    ours, theirs = read_curves(curves), read_curves(published)
    agreement = compare(ours, theirs)
    if not agreement.compared:
        raise OptionError(
            f"{str(curves)!r} and {str(published)!r} have no curve in common at the epochs that are compared."
        )
    for line in agreement.off + agreement.noisy:
        print(line)
    print(
        f"{agreement.compared:,} numbers compared with the published ones: {len(agreement.off):,} too far off, "
        f"{len(agreement.noisy):,} gradient variances off by more than a factor {FACTOR:g} but within their Monte Carlo error."
    )
    failed = bool(agreement.off)
    print(largest(ours, theirs))
    methods = {key[3] for key in ours if key[:2] == ("mini_batch", "gradient_variance")}
    if {"beta-IPS", "BanditNet", "IPS"} <= methods:
        places, wrong = order(ours)
        for line in wrong:
            print(line)
        print(f"gradient variance of β-IPS < BanditNet < IPS at {places - len(wrong)} of {places} epochs.")
        failed |= bool(wrong)
    if failed:
        raise typer.Exit(1)
