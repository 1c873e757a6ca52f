"""Plots as SVG, in which lines stretch with the page and text does not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise.report.axes import Axis, tick_text
from counterpoise.report.markup import Safe, el, join

HEIGHT = 220  # of a chart's area, in pixels
EDGE = 0.04  # of a strip's width, kept free on both sides
SCALE = 1000  # of the area's own coordinates

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A line through points; `kind` is its CSS class."""

    points: Points
    kind: str = "curve"


@dataclass(frozen=True)
class Band:
    """The area between two lines over the same x."""

    rows: Sequence[tuple[float, float, float]]  # x, lower, upper


@dataclass(frozen=True)
class Mark:
    """A line across the chart at one value."""

    value: float
    upright: bool = False
    kind: str = "mark"


@dataclass(frozen=True)
class Bars:
    """Bars from the bottom: left, right, height."""

    rows: Sequence[tuple[float, float, float]]


def chart(
    x: Axis, y: Axis, parts: Sequence[Line | Band | Mark | Bars], *, says: str, x_label: str, y_label: str
) -> Safe:
    """A chart; `says` describes it to readers who cannot see it."""
    drawn = [_part(x, y, part) for part in parts]
    grid = [_straight(0, y.share(tick), 1, y.share(tick), "grid") for tick in y.ticks()]
    area = el(
        "svg", *grid, *drawn, class_="area", viewBox=f"0 0 {SCALE} {SCALE}", preserveAspectRatio="none", height=HEIGHT
    )
    return el(
        "div",
        el("div", y_label, class_="y-label"),
        el("svg", *_upright_ticks(y), class_="y-axis", height=HEIGHT, width=52),
        area,
        el("svg", *_ticks(x, 0.0), class_="x-axis", height=20, width="100%"),
        el("div", x_label, class_="x-label"),
        class_="chart",
        role="img",
        aria_label=says,
    )


def strip(value: float, lower: float, upper: float, axis: Axis, reference: float | None, kind: str) -> Safe:
    """One row of a forest plot: a dot with its interval, and an arrow if the interval continues off the axis."""
    parts = []
    if reference is not None and 0 <= axis.share(reference) <= 1:
        at = _across(axis.share(reference))
        parts.append(el("line", x1=at, x2=at, y1=0, y2="100%", class_="mark"))
    if not math.isnan(value):
        left, right = axis.share(max(lower, -1e300)), axis.share(min(upper, 1e300))
        if right > 0 and left < 1:
            parts.append(
                el("line", x1=_across(max(left, 0)), x2=_across(min(right, 1)), y1=12, y2=12, class_="interval")
            )
        for beyond, at, path in ((left < 0, "0%", "M0 12l9 -5v10z"), (right > 1, "100%", "M0 12l-9 -5v10z")):
            if beyond:
                parts.append(el("svg", el("path", d=path), x=at, class_="arrow"))
        if 0 <= axis.share(value) <= 1:
            parts.append(el("circle", cx=_across(axis.share(value)), cy=12, r=5))
    return el("svg", *parts, class_=f"strip {kind}", width="100%", height=24, aria_hidden="true", focusable="false")


def strip_axis(axis: Axis) -> Safe:
    """The numbers below the strips."""
    return el("svg", *_ticks(axis, EDGE, wanted=4), class_="x-axis", width="100%", height=20, aria_hidden="true")


def _across(share: float) -> str:
    return f"{100 * (EDGE + (1 - 2 * EDGE) * share):.4g}%"


def _ticks(axis: Axis, edge: float, wanted: int = 4) -> list[Safe]:
    drawn = []
    shares = [(tick, axis.share(tick)) for tick in axis.ticks(3 if axis.logarithmic else wanted)]
    inside = [(tick, share) for tick, share in shares if -1e-9 <= share <= 1 + 1e-9]
    for k, (tick, share) in enumerate(inside):
        at = edge + (1 - 2 * edge) * share
        anchor = "start" if at < 0.08 else "end" if at > 0.92 else "middle"
        spare = "inner" if 0 < k < len(inside) - 1 else None  # left out if there is no room
        drawn.append(el("text", tick_text(tick), x=f"{100 * at:.4g}%", y=14, text_anchor=anchor, class_=spare))
    return drawn


def _upright_ticks(axis: Axis) -> list[Safe]:
    spots = [(tick, HEIGHT * (1 - axis.share(tick))) for tick in axis.ticks()]
    return [
        el("text", tick_text(tick), x=46, y=min(max(y + 4, 10), HEIGHT - 1), text_anchor="end")
        for tick, y in spots
        if -1 <= y <= HEIGHT + 1
    ]


def _part(x: Axis, y: Axis, part: Line | Band | Mark | Bars) -> Safe:
    if isinstance(part, Mark):
        if part.upright:
            return _straight(x.share(part.value), 0, x.share(part.value), 1, part.kind)
        return _straight(0, y.share(part.value), 1, y.share(part.value), part.kind)
    if isinstance(part, Bars):
        return join(_bar(x, y, *row) for row in part.rows if row[2] > 0)
    if isinstance(part, Band):
        there = [_at(x.share(px), y.share(high)) for px, _, high in part.rows]
        back = [_at(x.share(px), y.share(low)) for px, low, _ in reversed(part.rows)]
        return el("path", d="M" + "L".join(there + back) + "Z", class_="band") if part.rows else Safe("")
    points = [_at(x.share(px), y.share(py)) for px, py in part.points]
    if len(set(points)) == 1:
        points.append(points[0])  # a line of no length with round ends is a dot
    return el("path", d="M" + "L".join(points), class_=part.kind) if points else Safe("")


def _bar(x: Axis, y: Axis, left: float, right: float, height: float) -> Safe:
    start, end, top = x.share(left), x.share(right), y.share(height)
    d = f"M{_at(start, 0)}L{_at(start, top)}L{_at(end, top)}L{_at(end, 0)}Z"
    return el("path", d=d, class_="bar")


def _straight(x1: float, y1: float, x2: float, y2: float, kind: str) -> Safe:
    return el("path", d=f"M{_at(x1, y1)}L{_at(x2, y2)}", class_=kind)


def _at(x: float, y: float) -> str:
    """Shares of the area as coordinates; anything far outside is drawn just outside."""
    return " ".join(f"{SCALE * min(max(v, -3.0), 4.0):.1f}" for v in (x, 1 - y))


def thinned(points: Points, limit: int = 200) -> list[tuple[float, float]]:
    """At most `limit` of the points, densest where the line begins, and always including the first and the last.

    >>> thinned([(float(k), 0.0) for k in range(1, 1001)], 5)[-1]
    (1000.0, 0.0)
    """
    if len(points) <= limit:
        return list(points)
    spots = (round(len(points) ** (k / (limit - 1))) - 1 for k in range(limit))
    return [points[k] for k, _ in itertools.groupby(spots)]
