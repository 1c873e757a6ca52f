"""The report's section on coverage: how often intervals like these covered, on logs like this one."""

from __future__ import annotations

import math

from counterpoise.display import level_of
from counterpoise.evaluation.coverage import Coverage, CoverageCheck
from counterpoise.evaluation.reading import TARGETS_DRAWN
from counterpoise.report.axes import Axis
from counterpoise.report.markup import Safe, el, join, left_out, name_of
from counterpoise.report.plots import Line, Mark, chart

DRAWN = 100  # intervals in a picture


def coverage(check: CoverageCheck | None) -> Safe:
    """What was found for every target, and a picture of the first intervals; nothing where nobody checked."""
    if check is None or not len(check):
        return Safe("")
    first = next(iter(check.values()))
    lead = (
        f"A {level_of(first.level)} interval should cover on {level_of(first.level)} of all logs. So we drew {first.runs:,} logs from this "
        f"one, {first.drawn} with replacement, made the same interval on each of them, and counted how many cover."
    )
    drawn = [coverage for coverage in list(check.values())[:TARGETS_DRAWN] if coverage.can_tell]
    return join(
        [
            el("p", lead, class_="lead"),
            el("ul", *(el("li", el("bdi", str(coverage))) for coverage in check.values())),
            el("div", *map(_figure, drawn), class_="figures") if drawn else "",
            left_out(len(check), TARGETS_DRAWN, "targets", "first places", how="plotted"),
        ]
    )


def picked(coverage: Coverage) -> list[tuple[float, float, bool]]:
    """The first intervals around what they should cover, lowest first, and whether each covers it.

    An end that is infinite is moved to where the others are.
    """
    ends = [x - coverage.truth for x in (*coverage.lower[:DRAWN], *coverage.upper[:DRAWN]) if math.isfinite(x)]
    least, most = min(ends, default=-1.0), max(ends, default=1.0)
    pairs = zip(coverage.lower[:DRAWN] - coverage.truth, coverage.upper[:DRAWN] - coverage.truth, strict=True)
    intervals = [(max(float(low), least), min(float(high), most), bool(low <= 0.0 <= high)) for low, high in pairs]
    return sorted(intervals, key=lambda row: row[0] + row[1])


def _figure(coverage: Coverage) -> Safe:
    rows = picked(coverage)
    lines = [
        Line([(low, k + 0.5), (high, k + 0.5)], "held" if holds else "missed")
        for k, (low, high, holds) in enumerate(rows)
    ]
    missed = sum(not holds for _, _, holds in rows)
    said = f"{missed} of the first {len(rows)} intervals miss"
    return el(
        "figure",
        chart(
            Axis.around([end for row in rows for end in row[:2]]),
            Axis(0.0, float(len(rows))),
            [*lines, Mark(0.0, upright=True)],
            says=f"Intervals of {coverage.target} on logs like this one: {said}.",
            x_label="distance from what should be covered",
            y_label="logs, by where their interval lies",
        ),
        el("figcaption", name_of(coverage.target), f": {said}, drawn bold."),
    )
