"""The report's section on propensities: a mean weight for every part of the log, against 1."""

from __future__ import annotations

from counterpoise.display import p_value
from counterpoise.evaluation.audit import ALARMS, Audit, Check
from counterpoise.report.axes import Axis
from counterpoise.report.markup import Safe, el, join, left_out, name_of
from counterpoise.report.plots import strip, strip_axis

LISTED = 40
KINDS = {"fine": "primary", "too large": "primary", "too small": "primary"}  # others are drawn as doubtful


def propensities(audit: Audit | None) -> Safe:
    """A forest plot of the parts, those that raise an alarm first; nothing where there are no parts to look at."""
    checks = [] if audit is None else audit.in_order
    if audit is None or not checks:
        return Safe("")
    shown = checks[:LISTED]
    alarms = len(audit.alarms)
    said = "No part speaks against them." if not alarms else f"{alarms:,} of {len(checks):,} parts speak against them."
    lead = (
        "If the propensities are right, the mean weight of every part of the log is 1 (the dashed line): of a segment or a day under a "
        "target, and of 1/propensity where an action was taken, over all rows in which it could be. Intervals are 95 % ones of each part "
        "alone; an alarm allows for all looks. "
    )
    axis = Axis.around([end for check in shown for end in (check.lower, check.upper, 1.0)])
    rows = [_row(check, axis) for check in shown]
    heads = [("Part", None), ("Plot", "plot"), ("Mean weight", "number"), ("What it says", None)]
    table = el(
        "table",
        el("caption", "Mean weights of the parts of the log"),
        el("thead", el("tr", *(el("th", head, scope="col", class_=kind) for head, kind in heads))),
        el("tbody", *rows, class_="group"),
        el(
            "tfoot",
            el("tr", el("td"), el("td", strip_axis(axis), class_="plot"), el("td"), el("td")),
            aria_hidden="true",
        ),
        class_="forest",
    )
    return join(
        [
            el("p", lead, said, class_="lead"),
            el("div", table, class_="scroll", tabindex=0, role="region", aria_label="Mean weights of the parts"),
            left_out(len(checks), LISTED, "parts", "first places"),
        ]
    )


def _row(check: Check, axis: Axis) -> Safe:
    under = "" if check.target is None else join([", under ", name_of(check.target)])
    p = f", p {p_value(check.corrected_p)}" if check.status in ALARMS else ""
    span = el("span", f"{check.lower:.3g} to {check.upper:.3g}", class_="range")
    kind = KINDS.get(check.status, "other")
    return el(
        "tr",
        el("th", name_of(check.by), " ", name_of(check.part), under, scope="row"),
        el("td", strip(check.mean, check.lower, check.upper, axis, 1.0, kind), class_="plot"),
        el("td", f"{check.mean:.3g} ", span, class_="number"),
        el("td", f"{check.status}{p}"),
        class_=kind,
    )
