"""Plots of a result with matplotlib: the forest plot, the weights' tails, the segments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoise.display import breakable, level_of, number, shortened
from counterpoise.errors import OptionError
from counterpoise.estimators import Estimate
from counterpoise.evaluation.audit import Audit
from counterpoise.evaluation.backtest import Backtest
from counterpoise.evaluation.coverage import Coverage
from counterpoise.evaluation.distribution import Distribution
from counterpoise.evaluation.reading import DATE, TARGETS_DRAWN, Reading, read
from counterpoise.evaluation.result import Result
from counterpoise.evaluation.sensitivity import Sensitivity
from counterpoise.evaluation.wording import rival
from counterpoise.log.kinds import reduced
from counterpoise.log.question import LOGGING
from counterpoise.moments.log_moments import segment_text
from counterpoise.moments.spread import Tail
from counterpoise.report.plots import forest_axis
from counterpoise.report.propensities import drawn_bounds
from counterpoise.report.sections import picked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

# legible on white and on black, and told apart without colors by their markers
COLORS = {"ok": "#2a8c5a", "caution": "#c77d11", "not identified": "#8a8f98", "model only": "#8a8f98"}
MARKERS = {"ok": "o", "caution": "^", "not identified": "x", "model only": "D"}
MARK = "#8a8f98"
MOST = 30  # lines of a forest that can still be read
POINTS = 400  # of a tail's curve


@dataclass(frozen=True)
class ForestLine:
    """One line of a forest plot."""

    name: str
    estimate: Estimate
    verdict: str
    is_primary: bool = True
    logged: float | None = None  # what the log earned there, where that is not the same for all lines


def forest(result: Result, *, ax: Axes | None = None) -> Axes:
    """An interval for every target, best first; for a single target, one for every estimator. The dashed line is what was logged, or 0."""
    reading = read(result)
    if len(result.targets) > 1:
        lines = [_line(reading, name, reading.primary, name) for name in reading.foremost(len(result.targets))]
        return _forest(reading, lines, f"{_what(reading)} of each target, by {reading.primary}", ax)
    (target,) = result.targets
    names = sorted(reading.estimators, key=lambda name: name != reading.primary)
    lines = [_line(reading, target, name, name) for name in names]
    return _forest(reading, lines, f"{_what(reading)} of {shortened(target, 40)}, by estimator", ax)


def segments(result: Result, target: str | None = None, *, ax: Axes | None = None) -> Axes:
    """An interval for every segment of one target (the first, unless you name another), largest segments first.

    The dashed line beside an interval is what was logged in that segment, or no difference.
    """
    reading = read(result)
    name = result.targets[0] if target is None else target
    result[name, reading.primary]  # raises for a target that is not there
    places = [place for target, place in result.verdicts if target == name and place is not None]
    if not places:
        raise OptionError("this result has no segments.", do="Evaluate the log with `segment=COLUMN`.")
    places.sort(key=lambda place: (-result.segment_rows[place], segment_text(place)))
    shown = places[:MOST]
    stack = reduced(next(iter(result.moments.moments.values())).merge(axis=1))
    means = dict(zip(result.moments.segments, (stack.center + stack.average("s")).tolist(), strict=True))
    lines = [
        ForestLine(
            segment_text(place),
            result.stated(name, reading.primary, place),
            result.verdict_on(name, reading.primary, place),
            logged=None if reading.is_difference else means[place],
        )
        for place in shown
    ]
    by = shortened(", ".join(result.moments.segment_columns), 40)
    title = f"{_what(reading)} of {shortened(name, 40)} in each {by}, by {reading.primary}"
    whole = result.stated(name, reading.primary)
    marks = {"whole log": whole.value} if whole.identified else {}
    return _forest(reading, lines, title, ax, marks, left=len(places) - len(shown))


def over_time(result: Result, target: str | None = None, *, ax: Axes | None = None) -> Axes:
    """The change by one target on every date, in order: as a relative lift that day, else as a difference, else as a value.

    The intervals hold for all dates at once; the dashed line is no lift, or the logging policy. A date without an estimate has no mark.
    """
    reading = read(result)
    name = reading.best.target if target is None else target
    result[name, reading.primary]  # raises for a target that is not there
    changes = reading.segments(name)
    if not changes or not all(DATE.fullmatch(change.where) for change in changes):
        others = (
            f"those of this result are {shortened(changes[0].where, 40)!r} and others" if changes else "it has none"
        )
        raise OptionError(
            f"a plot over time needs segments that are dates, such as 2026-03-01; {others}.",
            do="Evaluate the log with `segment=` and a column of days.",
        )
    kinds = ("relative", "lift", "value")
    kind = next(kind for kind in kinds if any(getattr(change, kind) is not None for change in changes))
    scale = 100.0 if kind == "relative" else 1.0
    axes = axes_of(ax, 4.2)
    for k, change in enumerate(changes):
        estimate = getattr(change, kind)
        if estimate is None or change.decision == "cannot say" or not all(map(math.isfinite, estimate.interval)):
            continue
        verdict = result.verdict_on(name, reading.primary, change.segment)
        color = COLORS[verdict]
        axes.plot([k, k], [scale * end for end in estimate.interval], color=color, linewidth=2.2, solid_capstyle="butt")
        if estimate.identified:
            axes.plot([k], [scale * estimate.value], MARKERS[verdict], color=color, markersize=6)
        if kind == "value":
            axes.plot([k - 0.4, k + 0.4], [change.ran] * 2, color=MARK, linestyle="--", linewidth=1, zorder=0)
    if kind != "value":
        axes.axhline(0.0, color=MARK, linestyle="--", linewidth=1, zorder=0)
    step = -(-len(changes) // MOST)  # dates that can be read beside each other
    at = range(0, len(changes), step)
    axes.set_xticks(at, [changes[k].where for k in at], rotation=90 if len(changes) > 8 else 0, parse_math=False)
    per = f"per {reading.unit}"
    lift = "lift" if reading.is_against_log else "difference"
    said = {
        "relative": f"relative {lift} in {reading.reward}, %",
        "lift": f"{lift} in {reading.reward} {per}",
        "value": f"{reading.reward} {per}",
    }
    axes.set_ylabel(shortened(said[kind]), parse_math=False)
    over = "" if kind == "value" else f" over {rival(reading)} that day"
    level = breakable(level_of(result.level))
    _title(axes, f"{shortened(name, 40)}{over}, with {level} intervals for all {len(changes):,} at once", 0)
    frame(axes, ("top", "right"))
    return axes


def weights(result: Result, *, ax: Axes | None = None) -> Axes:
    """The tails of the weights: the share of rows with at least a given weight.

    A slow, straight decline means that larger weights are still to come.
    """
    axes = axes_of(ax, 4.2)
    reading = read(result)
    drawn = reading.foremost(TARGETS_DRAWN, result.moments.targets)
    curves: list[tuple[str, Line2D]] = []
    for name in drawn:
        tail = Tail.total(result.moments.tails.get((name, ""), ()))
        positive = tail.weights[tail.weights > 0]
        if len(positive):
            shares = np.arange(1, len(positive) + 1) / result.n
            at = np.unique(np.geomspace(1, len(positive), POINTS).astype(int)) - 1  # evenly on a logarithmic scale
            curves.append((name, axes.plot(positive[at], shares[at], linewidth=1.8)[0]))
    axes.axvline(1.0, color=MARK, linestyle="--", linewidth=1, zorder=0)
    axes.set(xscale="log", yscale="log", xlabel="weight", ylabel=f"share of {reading.unit}s with at least this weight")
    left = len(result.moments.targets) - len(drawn)
    _title(axes, "Tail of the weights", left)
    name_lines(axes, curves)
    frame(axes, ("top", "right"))
    return axes


def name_lines(axes: Axes, curves: Sequence[tuple[str, Line2D]]) -> None:
    """A legend with the name of every curve."""
    if curves:
        # a label of matplotlib's own that begins with an underscore is left out, so the names are put in afterwards
        legend = axes.legend([line for _, line in curves], [f"{k}" for k in range(len(curves))], frameon=False)
        for said, (name, _) in zip(legend.get_texts(), curves, strict=True):
            said.set(text=shortened(name, 40), parse_math=False)


def coverage(check: Coverage, *, ax: Axes | None = None) -> Axes:
    """The first 100 intervals on logs drawn again, lowest first, around what they should cover; those that miss it are bold."""
    if not check.runs:
        raise OptionError(f"there are no intervals of {check.target!r}: the log does not identify it.")
    axes = axes_of(ax, 4.2)
    rows = picked(check)
    for holds, color, width in ((True, MARK, 0.8), (False, COLORS["caution"], 2.4)):
        some = [(k, low, high) for k, (low, high, is_held) in enumerate(rows) if is_held is holds]
        at, lows, highs = ([row[j] for row in some] for j in range(3))
        axes.hlines(at, lows, highs, color=color, linewidth=width, label=f"{len(some)} {'cover' if holds else 'miss'}")
    axes.axvline(0.0, color=MARK, linestyle="--", linewidth=1, zorder=0)
    axes.set(xlabel="distance from what should be covered", yticks=[])
    share = f"{100 * check.covered:.1f} % of {check.runs:,} logs covered" if check.can_tell else "this log cannot tell"
    _title(axes, f"Intervals of {shortened(check.target, 40)} on logs like this one: {share}", 0)
    frame(axes, ("top", "right", "left"))
    axes.legend(frameon=False)
    return axes


def backtest(answer: Backtest, *, ax: Axes | None = None) -> Axes:
    """What was measured against what was predicted, with both intervals; the diagonal is where they agree."""
    axes = axes_of(ax, 4.2)
    for test in answer.known:
        color = COLORS["ok" if test.covered else "caution"]
        low, high = test.predicted.interval
        axes.plot([low, high], [test.measured] * 2, color=color, linewidth=1)
        axes.plot([test.predicted.value] * 2, list(test.interval), color=color, linewidth=1)
        axes.plot(test.predicted.value, test.measured, "o" if test.covered else "^", color=color, markersize=4)
    ends = [end for test in answer.known for end in (test.predicted.value, test.measured)] or [0.0, 1.0]
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color=MARK, linestyle="--", linewidth=1, zorder=0)
    axes.set(xlabel="predicted difference", ylabel="measured difference")
    frame(axes, ("top", "right"))
    return axes


def sensitivity(answer: Sensitivity, target: str, *, ax: Axes | None = None) -> Axes:
    """The bounds of one target's lift against Γ, with their interval, and where the conclusion could flip."""
    axes = axes_of(ax, 4.2)
    rows = drawn_bounds(answer, target)
    at = [gamma for gamma, _, _ in rows]
    level = breakable(level_of(answer.level))
    color = COLORS["ok"]
    lower, upper = zip(*(interval for _, _, interval in rows), strict=True)
    axes.fill_between(at, lower, upper, color=color, alpha=0.15, linewidth=0, label=f"with sampling, {level}")
    for side, label in ((0, "bounds"), (1, None)):
        axes.plot(at, [lift[side] for _, lift, _ in rows], color=color, linewidth=1.8, label=label)
    axes.axhline(0.0, color=MARK, linestyle="--", linewidth=1)
    tips = answer.tipping(target)
    if 1.0 < tips.sure <= at[-1]:
        axes.axvline(tips.sure, color=MARK, linestyle=":", linewidth=1, label=f"could flip at {tips.sure:.3g}")
    axes.set(xlabel="Γ: odds of logged actions are wrong by up to this factor", ylabel=answer.over)
    axes.set_title(shortened(target, 40), loc="left", fontsize="medium", parse_math=False)
    frame(axes, ("top", "right"))
    axes.legend(frameon=False)
    return axes


def distribution(answer: Distribution, *, ax: Axes | None = None) -> Axes:
    """The share of rewards up to every threshold; the logging policy's own is gray."""
    axes = axes_of(ax, 4.2)
    drawn: list[tuple[str, Line2D]] = []
    for name in (*answer.targets[:TARGETS_DRAWN], LOGGING):
        curve = answer.cdf(name)
        at, value, lower, upper = (curve.get_column(column).to_numpy() for column in curve.columns)
        style: dict[str, Any] = {"color": MARK, "linestyle": "--"} if name == LOGGING else {}
        (line,) = axes.step(at, value, where="post", linewidth=1.8, **style)
        axes.fill_between(at, lower, upper, step="post", color=line.get_color(), alpha=0.2, linewidth=0)
        drawn.append((name, line))
    level = breakable(level_of(answer.level))
    axes.set(xlabel=f"reward, with {level} intervals", ylabel="share of rewards up to it", ylim=(0.0, 1.0))
    name_lines(axes, drawn)
    frame(axes, ("top", "right"))
    return axes


AUDIT_COLORS = {"fine": "#2a8c5a", "too large": "#c0392b", "too small": "#c77d11"}
AUDIT_MARKERS = {"fine": "o", "too large": ">", "too small": "<"}
DOUBTFUL = "#8a8f98"  # cannot tell, or not always eligible


def audit(checked: Audit | None, *, ax: Axes | None = None) -> Axes:
    """A dot with its 95 % interval for every part, those that raise an alarm first; the dashed line is 1, where all should be."""
    drawn = [] if checked is None else checked.in_order
    if not drawn:
        raise OptionError(
            "the doctor audited no part of this log, so there is nothing to plot.",
            do="Name the logged action with `action=COLUMN`, or a segment and a target.",
        )
    shown = drawn[:MOST]
    axes = axes_of(ax, 1.3 + 0.32 * len(shown))
    for k, check in enumerate(shown):
        color = AUDIT_COLORS.get(check.status, DOUBTFUL)
        axes.plot([check.lower, check.upper], [k, k], color=color, linewidth=2.2, solid_capstyle="butt")
        axes.plot([check.mean], [k], AUDIT_MARKERS.get(check.status, "x"), color=color, markersize=6)
    axes.axvline(1.0, color=MARK, linestyle="--", linewidth=1, zorder=0)
    names = [shortened(f"{each.by} {each.part}{f', {each.target}' * (each.target is not None)}", 40) for each in shown]
    labels = [
        f"{name} ({each.status})" if each.status != "fine" else name for name, each in zip(names, shown, strict=True)
    ]
    axes.set_yticks(range(len(shown)), labels, parse_math=False)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlabel("mean weight, with 95 % intervals of each part alone; 1 if propensities are right")
    _title(axes, "Propensities by action, day and segment", len(drawn) - len(shown))
    frame(axes, ("top", "right", "left"))
    axes.tick_params(axis="y", length=0)
    return axes


def _line(reading: Reading, target: str, estimator: str, name: str) -> ForestLine:
    verdict = reading.result.verdict_on(target, estimator)
    return ForestLine(name, reading.result.stated(target, estimator), verdict, estimator == reading.primary)


def _what(reading: Reading) -> str:
    if not reading.is_difference:
        return "Value"
    is_logging = reading.is_against_log
    return f"Difference from {'the logging policy' if is_logging else shortened(reading.result.against, 40)}"


def _forest(
    reading: Reading,
    lines: Sequence[ForestLine],
    title: str,
    ax: Axes | None,
    marks: Mapping[str, float] | None = None,
    *,
    left: int = 0,
) -> Axes:
    shown = lines[:MOST]
    axes = axes_of(ax, 1.3 + 0.32 * len(shown))
    known = [line for line in shown if line.verdict != "not identified"] or shown
    room = forest_axis([line.estimate for line in known], [line.is_primary for line in known], reading.mark)
    axes.set_xlim(room.low, room.high)
    for k, line in enumerate(shown):  # a dot with its interval, and an arrow if the interval continues off the plot
        estimate, color, width = line.estimate, COLORS[line.verdict], 2.6 if line.is_primary else 1.4
        if not estimate.identified:
            continue
        first, last = (min(max(end, room.low), room.high) for end in estimate.interval)
        axes.plot([first, last], [k, k], color=color, linewidth=width, solid_capstyle="butt")
        for end, edge, arrow in zip(estimate.interval, (room.low, room.high), "<>", strict=True):
            if (end < room.low) if arrow == "<" else (end > room.high):
                axes.plot([edge], [k], marker=arrow, color=color, markersize=7, clip_on=False)
        if room.low <= estimate.value <= room.high:
            size = 6.5 if line.is_primary else 5
            axes.plot([estimate.value], [k], MARKERS[line.verdict], color=color, markersize=size)
    for label, value in (marks or {}).items():
        axes.axvline(value, color=COLORS["ok"], linewidth=1, alpha=0.6, label=label, zorder=0)
    own = [(k, line.logged) for k, line in enumerate(shown) if line.logged is not None and math.isfinite(line.logged)]
    for j, (k, logged) in enumerate(own):
        words = None if j else "logged, in each segment"
        axes.plot([logged, logged], [k - 0.4, k + 0.4], color=MARK, linestyle="--", linewidth=1, label=words, zorder=0)
    if not own and math.isfinite(reading.mark):
        label = "no difference" if reading.is_difference else f"logged: {number(*reading.logged_digits)}"
        axes.axvline(reading.mark, color=MARK, linestyle="--", linewidth=1, label=label, zorder=0)
    names = [shortened(line.name, 40) + ("" if line.estimate.identified else " (not identified)") for line in shown]
    axes.set_yticks(range(len(shown)), names, parse_math=False)  # a dollar sign in a name must not start a formula
    axes.set_ylim(len(shown) - 0.4, -0.6)
    level = breakable(level_of(reading.result.level))
    axes.set_xlabel(f"{'difference' if reading.is_difference else 'value'} per {reading.unit}, with {level} intervals")
    _title(axes, title, left + len(lines) - len(shown))
    frame(axes, ("top", "right", "left"))
    axes.tick_params(axis="y", length=0)
    _legend(axes, is_beside=ax is None)
    return axes


def _legend(axes: Axes, *, is_beside: bool) -> None:
    """What the vertical lines mean, and which verdicts there are if they are not all the same.

    It goes next to our own figure; in somebody else's there may be no room for it.
    """
    from matplotlib.lines import Line2D

    handles, labels = axes.get_legend_handles_labels()
    shapes = {line.get_marker() for line in axes.get_lines()}
    verdicts = [name for name in ("ok", "caution", "not identified") if MARKERS[name] in shapes]
    for name in verdicts if len(verdicts) > 1 else ():
        handles.append(Line2D([], [], color=COLORS[name], marker=MARKERS[name], linewidth=2))
        labels.append(name)
    if handles:
        beside = {"bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0, "frameon": False} if is_beside else {}
        axes.legend(handles, labels, loc="upper left" if is_beside else "best", fontsize="small", **beside)


def _title(axes: Axes, title: str, left: int) -> None:
    more = f" ({left:,} more not shown)" if left else ""
    axes.set_title(title + more, loc="left", fontsize="medium", parse_math=False)


def frame(axes: Axes, hidden: Sequence[str]) -> None:
    """Leave out some sides of the frame."""
    for side in hidden:
        axes.spines[side].set_visible(False)


def axes_of(ax: Axes | None, height: float) -> Axes:
    """The axes to draw on: those that were given, or new ones."""
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise OptionError("plots need matplotlib: pip install 'counterpoise[plot]'.") from error
    made: Axes = pyplot.subplots(figsize=(7.5, height), layout="constrained")[1]
    return made
