"""Pictures of a result with matplotlib: the forest plot, the weights' tails, the segments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from counterpoise.errors import OptionError
from counterpoise.estimators import Estimate
from counterpoise.evaluation.result import Result, segment_text
from counterpoise.moments.tails import EMPTY
from counterpoise.report.reading import Reading, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {"ok": "#1a7f4b", "caution": "#b7791f", "not identified": "#8a8f98"}
MOST = 30  # lines of a forest that can still be read


def forest(result: Result, *, ax: Axes | None = None) -> Axes:
    """An interval for every target; for a single target, one for every estimator. Dashed: what the log itself earned, or 0."""
    reading = read(result)
    if len(result.targets) > 1:
        entries = [(name, result[name, reading.primary], _verdict(result, name)) for name in result.targets]
        entries.sort(key=lambda entry: -math.inf if math.isnan(entry[1].value) else entry[1].value, reverse=True)
        title = f"{reading.primary}, {100 * result.level:.4g} % intervals"
    else:
        name = result.targets[0]
        entries = [(one, result[name, one], _verdict(result, name)) for one in reading.estimators]
        title = f"{name}, {100 * result.level:.4g} % intervals"
    return _forest(reading, entries, title, ax)


def segments(result: Result, target: str | None = None, *, ax: Axes | None = None) -> Axes:
    """An interval for every segment of one target (the first, unless named), the largest segments first."""
    reading = read(result)
    name = result.targets[0] if target is None else target
    places = [place for (one, place) in result.verdicts if one == name and place is not None]
    if not places:
        raise OptionError("this result has no segments: evaluate the log with segment=COLUMN.")
    entries = [
        (segment_text(place), result.estimates[name, reading.primary, place], result.verdicts[name, place].verdict)
        for place in places
    ]
    entries.sort(key=lambda entry: -entry[1].n)
    return _forest(reading, entries, f"{name} by {', '.join(result.moments.segment_columns)}", ax)


def weights(result: Result, *, ax: Axes | None = None) -> Axes:
    """The tails of the weights: which share of the rows has at least a weight; a slow, straight fall is bad news."""
    axes = _axes(ax, 4.0)
    for name in result.moments.targets[:10]:
        tail = sum(result.moments.tails.get((name, ""), ()), EMPTY)
        positive = tail.weights[tail.weights > 0]
        if len(positive):
            shares = [(k + 1) / result.n for k in range(len(positive))]
            axes.plot(positive, shares, drawstyle="steps-pre", label=name)
    axes.axvline(1.0, color="#8a8f98", linestyle="--", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="weight", ylabel="share of rows with at least this weight")
    axes.legend(frameon=False)
    return axes


def _forest(reading: Reading, entries: Sequence[tuple[str, Estimate, str]], title: str, ax: Axes | None) -> Axes:
    shown = entries[:MOST]
    axes = _axes(ax, 1.4 + 0.34 * len(shown))
    for k, (_, estimate, verdict) in enumerate(shown):
        if not estimate.identified:
            continue
        lower, upper = estimate.interval
        color = COLORS[verdict]
        if math.isfinite(lower) and math.isfinite(upper):
            axes.plot([lower, upper], [k, k], color=color, linewidth=2, solid_capstyle="butt")
        axes.plot([estimate.value], [k], "o", color=color, markersize=5)
    mark = 0.0 if reading.is_difference else reading.logged[0]
    if math.isfinite(mark):
        axes.axvline(mark, color="#8a8f98", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(shown)), [name for name, _, _ in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel("difference per row" if reading.is_difference else "value per row")
    left = len(entries) - len(shown)
    axes.set_title(title + (f" ({left:,} more not shown)" if left else ""), loc="left", fontsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return axes


def _verdict(result: Result, target: str) -> str:
    return result.verdict(target).verdict


def _axes(ax: Axes | None, height: float) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise OptionError("plots need matplotlib: pip install 'counterpoise[plot]'.") from error
    made: Axes = pyplot.subplots(figsize=(7.0, height), layout="constrained")[1]
    return made
