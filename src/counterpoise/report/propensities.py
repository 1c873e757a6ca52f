"""The sections of the report on propensities: checked part by part, estimated by a model, and what if they were wrong."""

from __future__ import annotations

import math

import numpy as np

from counterpoise.display import Cell, Table, Worded, counted, p_value, shortened
from counterpoise.evaluation.audit import ALARMS, Audit
from counterpoise.evaluation.reading import Reading
from counterpoise.evaluation.sensitivity import LIFT, Sensitivity
from counterpoise.evaluation.wording import capital
from counterpoise.intervals import Interval
from counterpoise.report.markup import Safe, el, join, left_out, name_of
from counterpoise.report.plots import Axis, Band, Line, Mark, chart
from counterpoise.report.tables import ForestRow, estimate_text, forest, page_table

# -- The audit: a mean weight for every part of the log, against 1 -----------------------------------------------------

LISTED = 40
SURE = {"fine", "too large", "too small"}  # others are drawn as doubtful


def propensities(audit: Audit | None) -> Safe:
    """A forest plot of the parts, alarms first; empty if there are no parts to look at."""
    checks = [] if audit is None else audit.in_order
    if audit is None or not checks:
        return Safe("")
    shown = checks[:LISTED]
    lead = (
        "If the propensities are right, the mean weight of every part of the log is 1 (the dashed line): of a segment or a day under a "
        "target, and of 1/propensity where an action was taken, over all rows in which it could be. Intervals are 95 % ones of each part "
        "alone; an alarm allows for all looks. "
    )
    axis, rows = Axis.around([end for check in shown for end in (check.lower, check.upper, 1.0)]), []
    for check in shown:
        under = "" if check.target is None else join([", under ", name_of(check.target)])
        p = f", p {p_value(check.corrected_p)}" if check.status in ALARMS else ""
        ends, name = (check.lower, check.upper), join([name_of(check.by), " ", name_of(check.part), under])
        size = estimate_text(check.mean, (check.upper - check.lower) / 4.0, ends)
        kind = "primary" if check.status in SURE else "other"
        rows.append(ForestRow(name, check.mean, ends, size, kind, more=[f"{check.status}{p}"]))
    caption, heads = "Mean weights of the parts of the log", ["Part", "Mean weight", "Result"]
    table = forest([(None, rows)], axis, 1.0, caption, heads, label="Mean weights of the parts")
    said = f"{capital(gist(audit))}."
    return join([el("p", lead, said, class_="lead"), table, left_out(len(checks), LISTED, "parts", "first places")])


def gist(audit: Audit | None) -> str:
    """How many parts raise an alarm."""
    if audit is None or not audit.in_order:
        return ""
    alarms, parts = len(audit.alarms), len(audit.in_order)
    return f"{counted(alarms, 'alarm') if alarms else 'no alarm'} in {counted(parts, 'part')} of the log"


# -- The propensity model: its calibration, and how far its propensities overlap ---------------------------------------


def propensity_model(reading: Reading) -> Safe:
    """What the model is, whether its predictions came true, and how small its propensities get; empty without a model."""
    quality = reading.result.propensity_model
    if quality is None:
        return Safe("")
    estimated = reading.result.moments.estimated
    errors = (
        "The errors above include what the fit of the model adds to them or takes from them."
        if estimated is not None and estimated.covariances
        else "The errors above take these propensities as known: there is no formula for what this model's fit does to them."
    )
    lead = join(
        [
            "The propensities were not logged. They come from ", name_of(quality.model), " of ", name_of(", ".join(quality.context)),
            f", fitted on {quality.rows:,} rows and {quality.actions:,} actions in {quality.folds} folds, so that no row is predicted by a "
            f"model that has seen it. The logged actions have a log loss of {quality.log_loss:.3g}; that of their shares alone is "
            f"{quality.log_loss_of_shares:.3g}. ", errors,
            f" In {quality.logged:,} further rows of the sample the propensity was logged." if quality.logged else "",
        ]
    )  # fmt: skip
    bins = [
        {"Pairs": bin_.rows, "Predicted": bin_.predicted, "Observed": bin_.observed} for bin_ in quality.calibration
    ]
    ends = {0.0: "smallest", 1.0: "largest"}
    spread: list[dict[str, Cell]] = [
        {"Share of rows below": Worded(q, ends.get(q, f"{100 * q:g} %")), "Propensity": value}
        for q, value in quality.quantiles
    ]
    note = (
        f"For a policy that chooses every action equally often, the effective sample size is about {quality.effective_rows:,.0f} of "
        f"{quality.rows:,} rows. Propensities below {quality.floor:.2g} are raised to it: {quality.raised:,} were."
    )
    return join(
        [
            el("p", lead, class_="lead"),
            page_table(Table(bins), "Calibration: probabilities of all actions, out of fold"),
            page_table(Table(spread), "Overlap: propensities of the logged actions"),
            el("p", note, class_="note"),
        ]
    )


def model_gist(reading: Reading) -> str:
    """What kind of model it is, and how often it had to raise a propensity."""
    quality = reading.result.propensity_model
    return "" if quality is None else f"{quality.model} of {', '.join(quality.context)}"[:100]


# -- Sensitivity: what a lift could be if the propensities were wrong --------------------------------------------------

LEAST, MOST = 2.0, 10.0  # up to which Γ is drawn
POINTS = 25


def sensitivity(answer: Sensitivity | None) -> Safe:
    """The tipping point of every target in words, and a picture of its bounds; empty if there are no rows to read."""
    if answer is None:
        return Safe("")
    lead = (
        "All estimates rest on the logged propensities. Here, the odds of every logged action may be wrong by a factor of up to Γ, in "
        "whatever way is worst: Γ = 1 means that they are right, Γ = 2 that they may be half or twice as large."
    )
    figures, what = [], "difference" if answer.against else "lift"
    for target in (name for name in answer.targets if math.isfinite(answer.tipping(name).lift)):
        rows, tips = drawn_bounds(answer, target), answer.tipping(target)
        band, last = [(gamma, *interval) for gamma, _, interval in rows], rows[-1][0]
        lines = [Line([(gamma, lift[side]) for gamma, lift, _ in rows]) for side in (0, 1)]
        marks = [Mark(0.0), *([Mark(tips.sure, upright=True)] if 1.0 < tips.sure <= last else [])]
        plot = chart(
            Axis(1.0, last),
            Axis.around([end for _, low, high in band for end in (low, high)]),
            [Band(band), *lines, *marks],
            says=f"Bounds of the {what} of {shortened(target)} against Γ. {tips}",
            x_label="Γ: odds are wrong by up to this factor",
            y_label=answer.over,
        )
        said = f": the least and the largest {what}, with their interval."
        figures.append(el("figure", plot, el("figcaption", name_of(target), said)))
    tipping = el("ul", *(el("li", el("bdi", str(answer.tipping(name)))) for name in answer.targets))
    drawn = el("div", *figures, class_="figures") if figures else ""
    return join([el("p", lead, class_="lead"), tipping, drawn])


def tipping_gist(answer: Sensitivity | None, target: str) -> str:
    """How wrong odds must be before the conclusion flips."""
    if answer is None or target not in answer.targets:
        return ""
    tips = answer.tipping(target)
    if not math.isfinite(tips.lift) or tips.sure == 1.0:
        return "there is no conclusion to flip"
    if math.isinf(tips.sure):
        return "no error of theirs flips the conclusion"
    return f"odds must be off by a factor of {tips.sure:.3g} before the conclusion flips"


def drawn_bounds(answer: Sensitivity, target: str) -> list[tuple[float, tuple[float, float], Interval]]:
    """Γ, and the lift's bounds and interval that are drawn, from Γ = 1 to a little beyond the tipping point."""
    tips = answer.tipping(target).point
    last = min(max(LEAST, 1.25 * tips), MOST) if math.isfinite(tips) else LEAST
    return [(gamma, *answer.span(target, gamma, LIFT)) for gamma in np.geomspace(1.0, last, POINTS).tolist()]
