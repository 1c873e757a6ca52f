"""The plot of a distribution: one distribution function for every policy, with its intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counterpoise.display import level_of
from counterpoise.evaluation.distribution import Distribution
from counterpoise.evaluation.reading import TARGETS_DRAWN
from counterpoise.log.question import LOGGING
from counterpoise.report.pictures import MARK, axes_of, frame, name_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


def curves(distribution: Distribution, *, ax: Axes | None = None) -> Axes:
    """The share of rewards up to every threshold; the logging policy's own is gray."""
    axes = axes_of(ax, 4.2)
    drawn: list[tuple[str, Line2D]] = []
    for name in (*distribution.targets[:TARGETS_DRAWN], LOGGING):
        curve = distribution.cdf(name)
        at, value, lower, upper = (curve.get_column(column).to_numpy() for column in curve.columns)
        style: dict[str, Any] = {"color": MARK, "linestyle": "--"} if name == LOGGING else {}
        (line,) = axes.step(at, value, where="post", linewidth=1.8, **style)
        axes.fill_between(at, lower, upper, step="post", color=line.get_color(), alpha=0.2, linewidth=0)
        drawn.append((name, line))
    level = level_of(distribution.level).replace("\N{NO-BREAK SPACE}", " ")
    axes.set(xlabel=f"reward, with {level} intervals", ylabel="share of rewards up to it", ylim=(0.0, 1.0))
    name_lines(axes, drawn)
    frame(axes, ("top", "right"))
    return axes
