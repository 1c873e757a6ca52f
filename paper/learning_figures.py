"""Draws Figures 1–3 and the on-policy experiment: one panel per learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import OptionError
from paper.figures import check_available, save
from paper.learning import Mode, read_curves, run_mode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# -- Compares learning curves with the published ones, and checks the order that the paper claims ----------------------

Key = tuple[str, str, float, str, int]
Curves = Mapping[Key, tuple[float, float, int]]

EPOCHS = (1, 2, 5, 10, 25, 50, 100, 200, 500)  # counted from 1; the files count from 0
ORDER = ("beta-IPS", "BanditNet", "IPS")  # in which gradient variances rise
LEAST = 0.01  # of a difference of values
FACTOR = 2.5  # of gradient variances, which between seeds differ by 2 late in training
FEW = 8  # with fewer runs than this their own sd is known too poorly, and the published one is used if larger


@dataclass(frozen=True)
class Agreement:
    """How many numbers were compared, which are too far off, and which gradient variances are off by more than the factor
    but by no more than their own Monte Carlo error."""

    compared: int
    off: tuple[str, ...]
    noisy: tuple[str, ...]


def compare(curves: Curves, published: Curves, *, errors: float = 3.0, factor: float = FACTOR) -> Agreement:
    """Compare what both have at `EPOCHS`.

    Values must agree within 0.01 or `errors` standard errors of the difference of means, whichever is larger. Gradient
    variances must agree within a factor; those that do not, but are within the standard errors, count as noisy, because a
    mean over 32 runs may depend on a single run.
    """
    compared = 0
    off: list[str] = []
    noisy: list[str] = []
    for key, (mean, sd, runs) in sorted(published.items()):
        _, quantity, _, _, epoch = key
        if epoch + 1 not in EPOCHS or key not in curves:
            continue
        compared += 1
        ours, our_sd, our_runs = curves[key]
        if our_runs < FEW:
            our_sd = max(sd, our_sd) if our_sd == our_sd else sd
        error = (sd**2 / runs + our_sd**2 / our_runs) ** 0.5
        apart = f"{ours:.6g} against {mean:.6g}, {abs(ours - mean) / error if error else math.inf:.1f} standard errors apart"
        within = abs(ours - mean) <= errors * error
        if quantity == "policy_value":
            if not (within or abs(ours - mean) <= LEAST):
                off.append(f"{_name(key)}: {apart}")
        elif not 1 / factor <= ours / mean <= factor:
            (noisy if within else off).append(f"{_name(key)}: {apart}, {ours / mean:.2f} times the published")
    return Agreement(compared, tuple(off), tuple(noisy))


def order(curves: Curves) -> tuple[int, list[str]]:
    """At how many (learning rate, epoch) pairs of mini-batch training the gradient variances rise in this order, and where not."""
    places = sorted({(key[2], key[4]) for key in curves if key[:2] == ("mini_batch", "gradient_variance")})
    off = []
    for rate, epoch in places:
        values = [curves["mini_batch", "gradient_variance", rate, method, epoch][0] for method in ORDER]
        if values != sorted(values):
            shown = ", ".join(f"{method} {value:.3g}" for method, value in zip(ORDER, values, strict=True))
            off.append(f"learning rate {rate:g}, epoch {epoch + 1}: {shown}")
    return len(places), off


def largest(curves: Curves, published: Curves) -> str:
    """The largest differences, whether allowed or not."""
    both = [key for key in published if key in curves and key[4] + 1 in EPOCHS]
    lines = []
    values = [key for key in both if key[1] == "policy_value"]
    if values:
        key = max(values, key=lambda k: abs(curves[k][0] - published[k][0]))
        lines.append(f"largest difference of values: {curves[key][0] - published[key][0]:+.4f} ({_name(key)})")
    ratios = {key: curves[key][0] / published[key][0] for key in both if key[1] == "gradient_variance"}
    if ratios:
        low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        lines.append(
            f"gradient variances are {ratios[low]:.2f} ({_name(low)}) to {ratios[high]:.2f} ({_name(high)}) times the published"
        )
    return "\n".join(lines)


def _name(key: Key) -> str:
    mode, quantity, rate, method, epoch = key
    return f"{mode} {quantity} of {method} at {rate:g}, epoch {epoch + 1}"


# ----------------------------------------------------------------------------------------------------------------------


STYLES: dict[str, tuple[str, str, str]] = {
    "IPS": ("IPS", "#0072B2", "-"),
    "SNIPS": ("SNIPS", "#E69F00", "-"),
    "BanditNet": ("BanditNet, λ = 0.6 (published)", "#009E73", "-"),
    "BanditNet-0.95": ("BanditNet, λ = 0.95 (tuned)", "#009E73", "--"),
    "beta-IPS": ("β-IPS", "#D55E00", "-"),
    "beta-IPS-running": ("β-IPS, running β", "#D55E00", "--"),
    "REINFORCE": ("no baseline", "#0072B2", "-"),
    "REINFORCE-mean": ("mean reward", "#009E73", "-"),
    "REINFORCE-optimal": ("optimal baseline", "#D55E00", "-"),
}
LABEL = {"policy_value": "policy value on the test contexts", "gradient_variance": "gradient variance"}


def draw(curves: Curves, mode: str, quantity: str, *, published: Curves | None = None) -> Figure:
    """Plot the mean over runs with its 95 % band against the epoch, with published means, if given, as hollow points."""
    mine = _by_panel(curves, mode, quantity)
    theirs = _by_panel(published or {}, mode, quantity)
    rates = sorted({rate for rate, _ in mine}, reverse=True)
    check_available()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(rates) + 0.6, 3.6), layout="constrained")
    panels = figure.subplots(1, len(rates), sharey=True, squeeze=False)[0]
    for axes, rate in zip(panels, rates, strict=True):
        for method, (label, color, dashes) in STYLES.items():
            if (rate, method) not in mine:
                continue
            epoch, mean, half = mine[rate, method]
            axes.plot(epoch, mean, color=color, linestyle=dashes, linewidth=1.4, label=label)
            low = mean - half if quantity == "policy_value" else np.maximum(mean - half, 0.1 * mean)
            axes.fill_between(epoch, low, mean + half, color=color, alpha=0.15, linewidth=0)
            if (rate, method) in theirs:
                at, value, _ = theirs[rate, method]
                few = slice(None, None, max(1, len(at) // 15))
                axes.plot(
                    at[few], value[few], linestyle="none", marker="o", markersize=4, fillstyle="none", color=color
                )
        axes.set_title(f"learning rate {rate:g}", fontsize=10)
        axes.set_xlabel("epoch", fontsize=9)
        axes.grid(visible=True, color="0.9", linewidth=0.6)
        axes.tick_params(labelsize=8)
        if quantity == "gradient_variance":
            axes.set_yscale("log")
    panels[0].set_ylabel(LABEL[quantity], fontsize=9)
    if theirs:
        panels[0].plot([], [], linestyle="none", marker="o", fillstyle="none", color="0.4", label="hollow: published")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, fontsize=8)
    return figure


def _by_panel(curves: Curves, mode: str, quantity: str) -> dict[tuple[float, str], NDArray[np.float64]]:
    """(learning rate, method) → epochs from 1, means, half 95 % intervals."""
    panels: dict[tuple[float, str], list[tuple[int, float, float]]] = {}
    for (of_mode, of_quantity, rate, method, epoch), (mean, sd, runs) in sorted(curves.items()):
        if (of_mode, of_quantity) == (mode, quantity):
            half = 1.96 * sd / runs**0.5 if runs > 1 else 0.0
            panels.setdefault((rate, method), []).append((epoch + 1, mean, half))
    return {key: np.array(rows).T for key, rows in panels.items()}


# -- From runs to files: what the commands do --------------------------------------------------------------------------------


def run_figure(
    name: str, mode: Mode, quantity: str, *, scale: str, device: str, out: Path, published: Path | None
) -> list[Path]:
    """Run the curves of a mode, as far as they have not been run, and draw one figure of them: its files."""
    check_available()
    theirs = read_curves(published) if published else None
    path = out / f"{mode}_{scale}.csv"
    run_mode(mode, path, scale=scale, device=device)
    return save(draw(read_curves(path), mode, quantity, published=theirs), out / f"{name}_{scale}")


def compare_files(curves: Path, published: Path) -> tuple[list[str], bool]:
    """What there is to say about curves beside the published ones, and whether they agree with them and with the paper's claim."""
    ours, theirs = read_curves(curves), read_curves(published)
    agreement = compare(ours, theirs)
    if not agreement.compared:
        raise OptionError(
            f"{str(curves)!r} and {str(published)!r} have no curve in common at the epochs that are compared."
        )
    lines = [
        *agreement.off,
        *agreement.noisy,
        f"{agreement.compared:,} numbers compared with the published ones: {len(agreement.off):,} too far off, "
        f"{len(agreement.noisy):,} gradient variances off by more than a factor {FACTOR:g} but within their Monte Carlo error.",
        largest(ours, theirs),
    ]
    wrong: list[str] = []
    if set(ORDER) <= {key[3] for key in ours if key[:2] == ("mini_batch", "gradient_variance")}:
        places, wrong = order(ours)
        lines += wrong
        lines.append(f"gradient variance of β-IPS < BanditNet < IPS at {places - len(wrong)} of {places} epochs.")
    return lines, not agreement.off and not wrong
