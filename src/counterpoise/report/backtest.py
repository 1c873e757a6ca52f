"""The report of a backtest: what we would have said about earlier tests against what they measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoise.evaluation.backtest import Backtest, Replayed
from counterpoise.evaluation.wording import level_of, number, signed
from counterpoise.report.axes import Axis
from counterpoise.report.markup import Safe, el, join, name_of
from counterpoise.report.page import Part, assemble, write
from counterpoise.report.pictures import COLORS, MARK, axes_of, frame
from counterpoise.report.plots import Band, Bars, Line, Mark, chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESTS_ON = (
    "This assumes that the world of a test was like that of the log before it: the same users, items and season. Where predictions miss in "
    "one direction, look there first."
)


def write_backtest(
    found: Backtest, path: str | os.PathLike[str], *, title: str | None = None, command: str | None = None
) -> Path:
    """Write a backtest as one HTML file that opens anywhere, and return the file's path."""
    parts = [
        *([Part("calibration", "Predicted and measured", _figure(found))] if found.known else []),
        Part("tests", "Test by test", _table(found)),
        Part("assumptions", "What this rests on", el("p", RESTS_ON)),
        *([Part("reproduce", "How to reproduce this", el("pre", el("code", command)))] if command else []),
    ]
    head = join(el("p", said, class_="answer") for said in found.headline())
    return write(Path(path), assemble(head, parts, title or "Backtest of earlier A/B tests"))


def calibration(found: Backtest, *, ax: Axes | None = None) -> Axes:
    """What was measured against what was predicted, with both intervals; the diagonal is where they agree."""
    axes = axes_of(ax, 4.2)
    for one in found.known:
        color = COLORS["ok" if one.covered else "caution"]
        low, high = one.predicted.interval
        axes.plot([low, high], [one.measured] * 2, color=color, linewidth=1)
        axes.plot([one.predicted.value] * 2, list(one.interval), color=color, linewidth=1)
        axes.plot(one.predicted.value, one.measured, "o" if one.covered else "^", color=color, markersize=4)
    ends = [end for one in found.known for end in (one.predicted.value, one.measured)] or [0.0, 1.0]
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color=MARK, linestyle="--", linewidth=1, zorder=0)
    axes.set(xlabel="predicted difference", ylabel="measured difference")
    frame(axes, ("top", "right"))
    return axes


def _figure(found: Backtest) -> Safe:
    known = found.known
    across = Axis.around([end for one in known for end in one.predicted.interval])
    up = Axis.around([end for one in known for end in one.interval])
    low, high = max(across.low, up.low), min(across.high, up.high)
    parts: list[Line | Band | Mark | Bars] = [Mark(0.0), Mark(0.0, upright=True)]
    if high > low:
        parts.append(Line([(low, low), (high, high)], "mark"))
    parts += [line for one in known for line in _cross(one)]
    says = " ".join(found.headline())
    drawn = chart(across, up, parts, says=says, x_label="predicted difference", y_label="measured difference")
    caption = (
        f"A cross for every test: our {level_of(found.level)} interval lies along it, that of what was measured upright. The slanted "
        "line is where both agree."
    )
    return el("figure", drawn, el("figcaption", caption))


def _cross(one: Replayed) -> list[Line]:
    low, high = one.predicted.interval
    bottom, top = one.interval
    return [
        Line([(low, one.measured), (high, one.measured)]),
        Line([(one.predicted.value, bottom), (one.predicted.value, top)]),
    ]


def _table(found: Backtest) -> Safe:
    kinds = {"Predicted": "number", "Measured": "number"}
    names = ("Test", "Predicted", "Measured", "Covered", "Sign", "Verdict")
    head = el("tr", *(el("th", name, scope="col", class_=kinds.get(name)) for name in names))
    caption = "What we would have said, and what was measured"
    table = el("table", el("caption", caption), el("thead", head), el("tbody", *map(_line, found.tests)))
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _line(one: Replayed) -> Safe:
    error = one.predicted.stderr
    low, high = one.predicted.interval
    span = el("span", f"{signed(low, error)} to {signed(high, error)}", class_="range")
    said = ("–", "–") if not one.is_known else ("yes" if one.covered else "no", "same" if one.same_sign else "other")
    measured = f"{signed(one.measured, one.stderr)} ± {number(one.stderr, one.stderr)}"
    return el(
        "tr",
        el("th", name_of(one.name), scope="row"),
        el("td", signed(one.predicted.value, error), " ", span, class_="number"),
        el("td", measured, class_="number"),
        *(el("td", word) for word in (*said, one.verdict)),
    )
