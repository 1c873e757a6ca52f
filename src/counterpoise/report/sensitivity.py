"""Sensitivity in pictures: what a lift could be if the propensities were wrong, for the report and as a plot."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from counterpoise.display import level_of, shortened
from counterpoise.evaluation.sensitivity import Bounds, Sensitivity
from counterpoise.report.axes import Axis
from counterpoise.report.markup import Safe, el, join, name_of
from counterpoise.report.pictures import COLORS, MARK, axes_of, frame
from counterpoise.report.plots import Band, Line, Mark, chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST, MOST = 2.0, 10.0  # up to which Γ is drawn
POINTS = 25


def sensitivity(answer: Sensitivity | None) -> Safe:
    """The tipping point of every target in words, and a picture of its bounds; nothing where there are no rows to read."""
    if answer is None:
        return Safe("")
    lead = (
        "All estimates rest on the logged propensities. Here, the odds of every logged action may be wrong by a factor of up to Γ, in "
        "whatever way is worst: Γ = 1 says that they are right, Γ = 2 that they may be half or twice as large."
    )
    known = [name for name in answer.targets if math.isfinite(answer.tipping(name).lift)]
    return join(
        [
            el("p", lead, class_="lead"),
            el("ul", *(el("li", el("bdi", str(answer.tipping(name)))) for name in answer.targets)),
            el("div", *(_figure(answer, name) for name in known), class_="figures") if known else "",
        ]
    )


def bands(answer: Sensitivity, target: str, *, ax: Axes | None = None) -> Axes:
    """The bounds of one target's lift against Γ, with their interval, and where the conclusion could flip."""
    axes = axes_of(ax, 4.2)
    rows = drawn(answer, target)
    at = [bounds.gamma for bounds in rows]
    level = level_of(answer.level).replace("\N{NO-BREAK SPACE}", " ")
    color = COLORS["ok"]
    lower, upper = ([end[side] for end in (tuple(bounds.lift_interval) for bounds in rows)] for side in (0, 1))
    axes.fill_between(at, lower, upper, color=color, alpha=0.15, linewidth=0, label=f"with sampling, {level}")
    for side, label in ((0, "bounds"), (1, None)):
        axes.plot(at, [bounds.lift[side] for bounds in rows], color=color, linewidth=1.8, label=label)
    axes.axhline(0.0, color=MARK, linestyle="--", linewidth=1)
    tips = answer.tipping(target)
    if 1.0 < tips.sure <= at[-1]:
        axes.axvline(tips.sure, color=MARK, linestyle=":", linewidth=1, label=f"could flip at {tips.sure:.3g}")
    axes.set(xlabel="Γ: odds of logged actions are wrong by up to this factor", ylabel=answer.over)
    axes.set_title(shortened(target, 40), loc="left", fontsize="medium", parse_math=False)
    frame(axes, ("top", "right"))
    axes.legend(frameon=False)
    return axes


def drawn(answer: Sensitivity, target: str) -> list[Bounds]:
    """The bounds that are drawn, from Γ = 1 to a little beyond the tipping point."""
    tips = answer.tipping(target).point
    last = min(max(LEAST, 1.25 * tips), MOST) if math.isfinite(tips) else LEAST
    return [answer.bounds(float(gamma), target) for gamma in np.geomspace(1.0, last, POINTS)]


def _figure(answer: Sensitivity, target: str) -> Safe:
    rows = drawn(answer, target)
    tips = answer.tipping(target)
    band = [(bounds.gamma, bounds.lift_interval.lower, bounds.lift_interval.upper) for bounds in rows]
    lines = [Line([(bounds.gamma, bounds.lift[side]) for bounds in rows]) for side in (0, 1)]
    marks = [Mark(0.0), *([Mark(tips.sure, upright=True)] if 1.0 < tips.sure <= rows[-1].gamma else [])]
    return el(
        "figure",
        chart(
            Axis(1.0, rows[-1].gamma),
            Axis.around([end for _, low, high in band for end in (low, high)]),
            [Band(band), *lines, *marks],
            says=f"Bounds of the {answer.over.partition(' ')[0]} of {shortened(target)} against Γ. {tips}",
            x_label="Γ: odds are wrong by up to this factor",
            y_label=answer.over,
        ),
        el(
            "figcaption",
            name_of(target),
            f": the least and the largest {answer.over.partition(' ')[0]}, with their interval.",
        ),
    )
