"""The audit of propensities as a plot: a mean weight for every part of the log, against 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from counterpoise.display import shortened
from counterpoise.errors import Argument, Blank, OptionError
from counterpoise.evaluation.audit import Audit, Check
from counterpoise.report.pictures import MARK, MOST, _title, axes_of, frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {"fine": "#2a8c5a", "too large": "#c0392b", "too small": "#c77d11"}
MARKERS = {"fine": "o", "too large": ">", "too small": "<"}
DOUBTFUL = "#8a8f98"  # cannot tell, or not always eligible


def means(audit: Audit | None, *, ax: Axes | None = None) -> Axes:
    """A dot with its 95 % interval for every part, those that raise an alarm first; the dashed line is 1, where all should be."""
    drawn = [] if audit is None else audit.in_order
    if not drawn:
        raise OptionError(
            "the doctor audited no part of this log, so there is nothing to plot.",
            do=["Name the logged action with ", Argument("action", Blank("COLUMN")), ", or a segment and a target."],
        )
    shown = drawn[:MOST]
    axes = axes_of(ax, 1.3 + 0.32 * len(shown))
    for k, check in enumerate(shown):
        color = COLORS.get(check.status, DOUBTFUL)
        axes.plot([check.lower, check.upper], [k, k], color=color, linewidth=2.2, solid_capstyle="butt")
        axes.plot([check.mean], [k], MARKERS.get(check.status, "x"), color=color, markersize=6)
    axes.axvline(1.0, color=MARK, linestyle="--", linewidth=1, zorder=0)
    axes.set_yticks(range(len(shown)), [_label(check) for check in shown], parse_math=False)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlabel("mean weight, with 95 % intervals of each part alone; 1 if propensities are right")
    _title(axes, "Propensities by action, day and segment", len(drawn) - len(shown))
    frame(axes, ("top", "right", "left"))
    axes.tick_params(axis="y", length=0)
    return axes


def _label(check: Check) -> str:
    said = shortened(f"{check.by} {check.part}" + ("" if check.target is None else f", {check.target}"), 40)
    return said if check.status == "fine" else f"{said} ({check.status})"
