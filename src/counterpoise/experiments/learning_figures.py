"""Draws Figures 1–3 and the on-policy experiment: one panel per learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoise.experiments.figures import check_available
from counterpoise.experiments.learning_check import Curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def _by_panel(curves: Mapping[Any, tuple[float, float, int]], mode: str, quantity: str) -> dict[tuple[float, str], Any]:
    """(learning rate, method) → epochs from 1, means, half 95 % intervals."""
    found: dict[tuple[float, str], list[tuple[int, float, float]]] = {}
    for (of_mode, of_quantity, rate, method, epoch), (mean, sd, runs) in sorted(curves.items()):
        if (of_mode, of_quantity) == (mode, quantity):
            half = 1.96 * sd / runs**0.5 if runs > 1 else 0.0
            found.setdefault((rate, method), []).append((epoch + 1, mean, half))
    return {key: np.array(rows).T for key, rows in found.items()}
