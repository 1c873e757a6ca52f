"""Plots as SVG, in which lines stretch with the page and text does not; and the scales that they are drawn on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from counterpoise.estimators import Estimate
from counterpoise.report.markup import Safe, el, join

# -- Scales: where a number lies, and which numbers to write along it --------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic scale from low to high."""

    low: float
    high: float
    logarithmic: bool = False
    names: tuple[str, ...] = ()  # of 0, 1, 2, …, where these are not numbers but days, say

    @classmethod
    def around(cls, values: Iterable[float], *, logarithmic: bool = False, margin: float = 0.05) -> Axis:
        """An axis that fits all finite values (the positive ones, if it is logarithmic), with a margin.

        >>> Axis.around([1.0, 3.0, float("inf")], margin=0.5)
        Axis(low=0.0, high=4.0, logarithmic=False, names=())
        """
        kept = [x for x in values if math.isfinite(x) and (x > 0 or not logarithmic)]
        if not kept:
            return cls(1.0, 10.0, True) if logarithmic else cls(0.0, 1.0)
        low, high = min(kept), max(kept)
        if logarithmic:
            wide = max(math.log10(high / low), 0.5) * margin
            return cls(low / 10**wide, high * 10**wide, True)
        spread = (high - low) or abs(high) * 0.1 or 1.0
        return cls(low - margin * spread, high + margin * spread)

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high end, outside [0, 1] for values off the scale.

        >>> Axis(1.0, 100.0, True).share(10.0)
        0.5
        """
        if self.logarithmic:
            if value <= 0:
                return -1.0
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, wanted: int = 5) -> list[float]:
        """Round numbers along the axis.

        >>> Axis(0.0, 1.1).ticks(), Axis(0.5, 200.0, True).ticks()
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [1.0, 10.0, 100.0])
        """
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last - first >= 1:
                return [10.0**k for k in range(first, last + 1, max(1, math.ceil((last - first) / wanted)))]
            steps = [m * 10.0**k for k in range(first - 1, last + 2) for m in (1, 2, 5)]
            return [x for x in steps if self.low <= x <= self.high] or [self.low]
        wide = (self.high - self.low) / wanted
        size = 10.0 ** math.floor(math.log10(wide))  # the step is the next of 1, 2, 5, 10, …, or the one just below
        step = next((m * size for m in (1.0, 2.0, 5.0) if m * size >= 0.75 * wide), 10 * size)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        digits = max(0, -math.floor(math.log10(step)))
        return [round(k * step, digits + 1) for k in range(first, last + 1)]

    def tick_text(self, tick: float) -> str:
        """What is written at a tick.

        >>> Axis(0.0, 1.0, names=("Monday", "Tuesday")).tick_text(1.0), Axis(0.0, 1.0).tick_text(0.5)
        ('Tuesday', '0.5')
        """
        if not self.names:
            return tick_text(tick)
        return self.names[int(tick)] if tick == int(tick) and 0 <= tick < len(self.names) else ""


def forest_axis(estimates: Sequence[Estimate], matters: Sequence[bool], reference: float) -> Axis:
    """An axis with room for the estimates that matter, and up to twice as much again on each side for wider ones."""
    spans = [[x for x in (estimate.value, *estimate.interval) if math.isfinite(x)] for estimate in estimates]
    everything = [x for span in spans for x in span]
    core = [x for span, is_core in zip(spans, matters, strict=True) if is_core for x in span]
    core += [reference] if math.isfinite(reference) else []
    if not core:
        return Axis.around(everything)
    spread = (max(core) - min(core)) or abs(max(core)) * 0.1 or 1.0
    low, high = min(core) - 2 * spread, max(core) + 2 * spread
    return Axis.around([*core, *(min(max(x, low), high) for x in everything)], margin=0.02)


def tick_text(value: float) -> str:
    """A tick's number, short.

    >>> tick_text(0.25), tick_text(20000.0), tick_text(2e6), tick_text(1e-5)
    ('0.25', '20k', '2M', '1e-05')
    """
    size = abs(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit <= size < 1e12 and (name != "k" or size >= 1e4):
            return f"{value / unit:.4g}{name}".replace("-", "−")
    return f"{value:.6g}".replace("-", "−") if size >= 1e-4 or size == 0 else f"{value:.3g}"


def percent_tick(value: float) -> str:
    """A tick of a change in percent.

    >>> percent_tick(0.4).replace("\N{NO-BREAK SPACE}", " "), percent_tick(-0.125).replace("\N{NO-BREAK SPACE}", " ")
    ('+40 %', '−12.5 %')
    """
    return f"{'+' if value > 0 else ''}{tick_text(round(100 * value, 9))}\N{NO-BREAK SPACE}%"


# -- Charts, and the strips of a forest plot ---------------------------------------------------------------------------

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
    heights = [(tick, HEIGHT * (1 - y.share(tick))) for tick in y.ticks()]
    upright = [
        el("text", tick_text(tick), x=46, y=min(max(at + 4, 10), HEIGHT - 1), text_anchor="end")
        for tick, at in heights
        if -1 <= at <= HEIGHT + 1
    ]
    grid = [_straight(0, y.share(tick), 1, y.share(tick), "grid") for tick in y.ticks()]
    area = el(
        "svg", *grid, *drawn, class_="area", viewBox=f"0 0 {SCALE} {SCALE}", preserveAspectRatio="none", height=HEIGHT
    )
    return el(
        "div",
        el("div", y_label, class_="y-label"),
        el("svg", *upright, class_="y-axis", height=HEIGHT, width=52),
        area,
        el("svg", *_ticks(x, 0.0), class_="x-axis", height=20, width="100%"),
        el("div", x_label, class_="x-label"),
        class_="chart",
        role="img",
        aria_label=says,
    )


def strip(value: float, interval: tuple[float, ...], axis: Axis, reference: float, kind: str) -> Safe:
    """One row of a forest plot: a dot with its interval, or bounds alone, and an arrow if they continue off the axis."""
    parts = []
    lower, upper = interval
    if math.isnan(lower + upper):
        return Safe("")
    if 0 <= axis.share(reference) <= 1:
        at = _across(axis.share(reference))
        parts.append(el("line", x1=at, x2=at, y1=0, y2="100%", class_="mark"))
    left, right = axis.share(max(lower, -1e300)), axis.share(min(upper, 1e300))
    if right > 0 and left < 1:
        drawn = "interval bounds" if math.isnan(value) else "interval"
        parts.append(el("line", x1=_across(max(left, 0)), x2=_across(min(right, 1)), y1=12, y2=12, class_=drawn))
    for beyond, at, path in ((left < 0, "0%", "M0 12l9 -5v10z"), (right > 1, "100%", "M0 12l-9 -5v10z")):
        if beyond:
            parts.append(el("svg", el("path", d=path), x=at, class_="arrow"))
    if 0 <= axis.share(value) <= 1:
        parts.append(el("circle", cx=_across(axis.share(value)), cy=12, r=5))
    return el("svg", *parts, class_=f"strip {kind}", width="100%", height=24, aria_hidden="true", focusable="false")


def strip_of(estimate: Estimate | None, axis: Axis, reference: float, kind: str) -> Safe:
    """The strip of an estimate; empty if there is none."""
    return Safe("") if estimate is None else strip(estimate.value, tuple(estimate.interval), axis, reference, kind)


def strip_axis(axis: Axis, write: Callable[[float], str] = tick_text) -> Safe:
    """The numbers below the strips."""
    ticks = _ticks(axis, EDGE, wanted=4, write=write)
    return el("svg", *ticks, class_="x-axis", width="100%", height=20, aria_hidden="true")


def _across(share: float) -> str:
    return f"{100 * (EDGE + (1 - 2 * EDGE) * share):.4g}%"


def _ticks(axis: Axis, edge: float, wanted: int = 4, write: Callable[[float], str] | None = None) -> list[Safe]:
    drawn = []
    shares = [(tick, axis.share(tick)) for tick in axis.ticks(3 if axis.logarithmic else wanted)]
    inside = [(tick, share) for tick, share in shares if -1e-9 <= share <= 1 + 1e-9]
    for k, (tick, share) in enumerate(inside):
        at = edge + (1 - 2 * edge) * share
        anchor = "start" if at < 0.08 else "end" if at > 0.92 else "middle"
        spare = "inner" if 0 < k < len(inside) - 1 else None  # left out if there is no room
        drawn.append(
            el("text", (write or axis.tick_text)(tick), x=f"{100 * at:.4g}%", y=14, text_anchor=anchor, class_=spare)
        )
    return drawn


def _part(x: Axis, y: Axis, part: Line | Band | Mark | Bars) -> Safe:
    if isinstance(part, Mark):
        if part.upright:
            return _straight(x.share(part.value), 0, x.share(part.value), 1, part.kind)
        return _straight(0, y.share(part.value), 1, y.share(part.value), part.kind)
    if isinstance(part, Bars):
        bars = [(x.share(left), x.share(right), y.share(height)) for left, right, height in part.rows if height > 0]
        corners = [((left, 0), (left, top), (right, top), (right, 0)) for left, right, top in bars]
        return join(el("path", d=f"M{'L'.join(_at(*at) for at in each)}Z", class_="bar") for each in corners)
    if isinstance(part, Band):
        there = [_at(x.share(px), y.share(high)) for px, _, high in part.rows]
        back = [_at(x.share(px), y.share(low)) for px, low, _ in reversed(part.rows)]
        return el("path", d="M" + "L".join(there + back) + "Z", class_="band") if part.rows else Safe("")
    points = [_at(x.share(px), y.share(py)) for px, py in part.points]
    if len(set(points)) == 1:
        points.append(points[0])  # a zero-length line with round ends is a dot
    return el("path", d="M" + "L".join(points), class_=part.kind) if points else Safe("")


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
