"""The report's section on the bias ladder: value and interval with each constant of a weight, and which of them was chosen."""

from __future__ import annotations

from counterpoise.display import level_of, number, signed
from counterpoise.evaluation.ladder import Ladder, Rung
from counterpoise.evaluation.reading import TARGETS_DRAWN, Reading
from counterpoise.report.axes import Axis, forest_axis
from counterpoise.report.glossary import term
from counterpoise.report.markup import Safe, el, join, left_out, name_of
from counterpoise.report.plots import strip, strip_axis


def ladder(reading: Reading) -> Safe:
    """A forest plot for each target; nothing where no weight was chosen."""
    ladders = reading.result.ladders
    if not ladders:
        return Safe("")
    lead = (
        "The same estimate with each weight, from the unbiased one down to the most biased. The further down, the less noise and the "
        "more bias, which no interval covers. The dashed line marks the unbiased estimate; bold marks the weight behind the answer, the "
        "one with the least error that is no further from those above it than about one standard error."
    )
    drawn = [ladders[target] for target in reading.foremost(TARGETS_DRAWN, tuple(ladders))]
    tables = [_table(reading, ladder) for ladder in drawn]
    more = left_out(len(ladders), TARGETS_DRAWN, "targets", "highest estimates", how="plotted")
    return join([el("p", lead, class_="lead"), *tables, more])


def _table(reading: Reading, ladder: Ladder) -> Safe:
    estimates = [rung.estimate for rung in ladder.rungs]
    axis = forest_axis(estimates, [place in (0, ladder.chosen) for place in range(len(estimates))], estimates[0].value)
    rows = [_row(reading, ladder, rung, axis) for rung in ladder.rungs]
    caption = join(["Bias ladder of ", name_of(ladder.target), f" by {estimates[0].name}"])
    heading = el(
        "tr",
        el("th", "Weight", scope="col"),
        el("th", "Plot", scope="col", class_="plot"),
        el(
            "th", term("value"), f" and {level_of(reading.result.level)} ", term("interval", "interval"),
            scope="col", class_="number",
        ),
    )  # fmt: skip
    axis_row = el("tr", el("td"), el("td", strip_axis(axis), class_="plot"), el("td"))
    table = el(
        "table",
        el("caption", caption),
        el("thead", heading),
        el("tbody", *rows, class_="group"),
        el("tfoot", axis_row, aria_hidden="true"),
        class_="forest",
    )
    label = f"Bias ladder of {ladder.target}"
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def _row(reading: Reading, ladder: Ladder, rung: Rung, axis: Axis) -> Safe:
    write, estimate = signed if reading.is_difference else number, rung.estimate
    kind = "primary" if rung is ladder.choice else "other"
    low, high = estimate.interval
    span = el("span", f"{write(low, estimate.stderr)} to {write(high, estimate.stderr)}", class_="range")
    said = [write(estimate.value, estimate.stderr), " ", span] if estimate.identified else ["not identified"]
    label = "unbiased" if rung is ladder.unbiased else name_of(rung.weight)
    return el(
        "tr",
        el("th", label, " (chosen)" if rung is ladder.choice else "", scope="row"),
        el("td", strip(estimate.value, low, high, axis, ladder.unbiased.estimate.value, kind), class_="plot"),
        el("td", *said, class_="number"),
        class_=kind,
    )
