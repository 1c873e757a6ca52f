"""The report of a backtest: what we would have said about earlier tests against what they measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoise.display import level_of, number, signed
from counterpoise.evaluation.backtest import Backtest, Replayed
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
    backtest: Backtest, path: str | os.PathLike[str], *, title: str | None = None, command: str | None = None
) -> Path:
    """Write a backtest as one HTML file that opens anywhere, and return the file's path."""
    parts = [
        *([Part("calibration", "Predicted and measured", _figure(backtest))] if backtest.known else []),
        Part("tests", "Test by test", _table(backtest)),
        Part("assumptions", "What this rests on", el("p", RESTS_ON)),
        *([Part("reproduce", "How to reproduce this", el("pre", el("code", command)))] if command else []),
    ]
    head = join(el("p", said, class_="answer") for said in backtest.headline())
    return write(Path(path), assemble(head, parts, title or "Backtest of earlier A/B tests"))


def calibration(backtest: Backtest, *, ax: Axes | None = None) -> Axes:
    """What was measured against what was predicted, with both intervals; the diagonal is where they agree."""
    axes = axes_of(ax, 4.2)
    for test in backtest.known:
        color = COLORS["ok" if test.covered else "caution"]
        low, high = test.predicted.interval
        axes.plot([low, high], [test.measured] * 2, color=color, linewidth=1)
        axes.plot([test.predicted.value] * 2, list(test.interval), color=color, linewidth=1)
        axes.plot(test.predicted.value, test.measured, "o" if test.covered else "^", color=color, markersize=4)
    ends = [end for test in backtest.known for end in (test.predicted.value, test.measured)] or [0.0, 1.0]
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color=MARK, linestyle="--", linewidth=1, zorder=0)
    axes.set(xlabel="predicted difference", ylabel="measured difference")
    frame(axes, ("top", "right"))
    return axes


def _figure(backtest: Backtest) -> Safe:
    known = backtest.known
    across = Axis.around([end for test in known for end in test.predicted.interval])
    up = Axis.around([end for test in known for end in test.interval])
    low, high = max(across.low, up.low), min(across.high, up.high)
    parts: list[Line | Band | Mark | Bars] = [Mark(0.0), Mark(0.0, upright=True)]
    if high > low:
        parts.append(Line([(low, low), (high, high)], "mark"))
    parts += [line for test in known for line in _cross(test)]
    says = " ".join(backtest.headline())
    drawn = chart(across, up, parts, says=says, x_label="predicted difference", y_label="measured difference")
    caption = (
        f"A cross for every test: our {level_of(backtest.level)} interval lies along it, that of what was measured upright. The slanted "
        "line is where both agree."
    )
    return el("figure", drawn, el("figcaption", caption))


def _cross(test: Replayed) -> list[Line]:
    low, high = test.predicted.interval
    bottom, top = test.interval
    return [
        Line([(low, test.measured), (high, test.measured)]),
        Line([(test.predicted.value, bottom), (test.predicted.value, top)]),
    ]


def _table(backtest: Backtest) -> Safe:
    kinds = {"Predicted": "number", "Measured": "number"}
    names = ("Test", "Predicted", "Measured", "Covered", "Sign", "Verdict")
    head = el("tr", *(el("th", name, scope="col", class_=kinds.get(name)) for name in names))
    caption = "What we would have said, and what was measured"
    table = el("table", el("caption", caption), el("thead", head), el("tbody", *map(_line, backtest.tests)))
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _line(test: Replayed) -> Safe:
    error = test.predicted.stderr
    low, high = test.predicted.interval
    span = el("span", f"{signed(low, error)} to {signed(high, error)}", class_="range")
    said = ("–", "–") if not test.is_known else ("yes" if test.covered else "no", "same" if test.same_sign else "other")
    measured = f"{signed(test.measured, test.stderr)} ± {number(test.stderr, test.stderr)}"
    return el(
        "tr",
        el("th", name_of(test.name), scope="row"),
        el("td", signed(test.predicted.value, error), " ", span, class_="number"),
        el("td", measured, class_="number"),
        *(el("td", word) for word in (*said, test.verdict)),
    )
