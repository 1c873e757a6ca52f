"""The sections of the report on values: the answer with its verdicts, forest plots, the ladder, the reward model, coverage and segments."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from counterpoise.display import Phrase, Table, level_of, number, signed
from counterpoise.errors import in_units
from counterpoise.estimators import Estimate
from counterpoise.evaluation.coverage import Coverage, CoverageCheck
from counterpoise.evaluation.ladder import Ladder
from counterpoise.evaluation.reading import (
    TARGETS_DRAWN,
    TARGETS_LISTED,
    TARGETS_WITH_ALL_ESTIMATORS,
    Reading,
    headline,
)
from counterpoise.moments.log_moments import Segment, segment_text
from counterpoise.report.card import SIGNS
from counterpoise.report.glossary import ESTIMATOR_WORDS, term
from counterpoise.report.markup import Safe, el, join, left_out, name_of, phrase
from counterpoise.report.plots import Axis, Line, Mark, chart, forest_axis
from counterpoise.report.tables import (
    ForestRow,
    Group,
    badge,
    estimate_text,
    forest,
    page_table,
    scrolled,
    verdict_class,
)


def head(reading: Reading) -> Safe:
    """The headline, and the verdict on every target."""
    result = reading.result
    verdicts = {target: result.verdict(target) for target in reading.foremost(TARGETS_LISTED)}
    listed = [
        el(
            "li",
            el("span", SIGNS[verdict.verdict], " ", verdict.verdict, class_="badge"),
            " · ",
            el("b", name_of(target)),
            ": no problems found in the weights or rewards." if not verdict.reasons else "",
            el("ul", *(el("li", el("bdi", reason)) for reason in verdict.reasons)) if verdict.reasons else "",
            class_=verdict_class(verdict.verdict),
        )
        for target, verdict in verdicts.items()
    ]
    first, rest = listed[:TARGETS_DRAWN], list(verdicts.values())[TARGETS_DRAWN:]
    shown = [el("p", phrase(Phrase(headline(reading))), class_="answer"), el("ul", *first, class_="verdicts")]
    if rest:
        counts = Counter[str](verdict.verdict for verdict in rest)
        said = ", ".join(f"{counts[name]:,} {name}" for name in SIGNS if counts[name])
        folded = el("summary", f"The verdicts on {len(rest):,} more targets: {said}")
        shown.append(el("details", folded, el("ul", *listed[TARGETS_DRAWN:], class_="verdicts"), class_="entry"))
    shown.append(left_out(len(result.targets), TARGETS_LISTED, "targets", "highest estimates"))
    return join(shown)


def estimates(reading: Reading) -> Safe:
    """A forest plot of all targets and estimators, which doubles as a table."""
    result = reading.result
    is_long = len(result.targets) > TARGETS_WITH_ALL_ESTIMATORS and len(reading.estimators) > 1
    names = (reading.primary,) if is_long else reading.estimators
    rows = {target: [result[target, name] for name in names] for target in reading.foremost(TARGETS_LISTED)}
    lead = (
        f"How much more each target would have earned per {reading.unit} than the policy it is compared with. The dashed line marks no "
        "difference."
        if reading.is_difference
        else f"What each target would have earned per {reading.unit}."
        + (
            f" The dashed line marks what the log itself earned: {number(*reading.logged_digits)}."
            if math.isfinite(reading.mark)
            else ""
        )
    )
    return join(
        [
            el(
                "p",
                lead,
                f" With so many targets, only {reading.primary} is shown; the result itself has every estimator."
                if is_long
                else " Bold marks the estimator behind the headline.",
                " An arrow means the interval continues off the plot.",
                " Each interval is for its own target alone." if len(result.targets) > 1 else "",
                class_="lead",
            ),
            _forest(
                reading, rows, reading.primary, reading.mark, "Estimates of every target", plus=reading.is_difference
            ),
            left_out(len(result.targets), TARGETS_LISTED, "targets", "highest estimates"),
        ]
    )


def lift(reading: Reading) -> Safe:
    """A forest plot of the lifts over the logging policy."""
    if not reading.lifts or reading.is_difference:
        return Safe("")
    rows = {target: [reading.lifts[target]] for target in reading.foremost(TARGETS_LISTED, tuple(reading.lifts))}
    return join(
        [
            el(
                "p",
                f"How much more each target would have earned per {reading.unit} than the policy that wrote the log (",
                term("lift"),
                "). To the right of the dashed line is better than that policy; an interval that crosses the line shows no clear "
                "difference.",
                " The intervals hold for all targets at once, so they are wider than each would be alone."
                if len(rows) > 1
                else "",
                class_="lead",
            ),
            _forest(reading, rows, reading.lift_estimator, 0.0, "Lift of every target", plus=True),
        ]
    )


def _forest(
    reading: Reading, rows: Mapping[str, list[Estimate]], primary: str, reference: float, caption: str, *, plus: bool
) -> Safe:
    verdicts = {target: reading.result.verdict(target).verdict for target in rows}
    known = {target: listed for target, listed in rows.items() if reading.is_known(target)}
    shown = [estimate for listed in (known or rows).values() for estimate in listed]
    axis = forest_axis(shown, [estimate.name == primary for estimate in shown], reference)
    single = all(len(listed) == 1 for listed in rows.values())
    groups: list[Group] = []
    for target, listed in rows.items():
        name = join([name_of(target), " ", "" if verdicts[target] == "ok" else badge(verdicts[target])])
        lines = [
            ForestRow(
                name if single else estimate.name,
                estimate.value,
                estimate.interval,
                estimate_text(estimate.value, estimate.stderr, estimate.interval, is_signed=plus),
                "primary" if estimate.name == primary else "other",
                None if single else ESTIMATOR_WORDS.get(estimate.name),
            )
            for estimate in listed
        ]
        groups.append((None if single else name, lines))
    return forest(groups, axis, reference, caption, ["Target" if single else "Estimator", _value_head(reading)])


def _value_head(reading: Reading) -> Safe:
    return join([term("value"), f" and {level_of(reading.result.level)} ", term("interval", "interval")])


# -- The bias ladder: value and interval with each constant of a weight ------------------------------------------------


def ladder(reading: Reading) -> Safe:
    """A forest plot for each target; empty if no weight was chosen."""
    ladders = reading.result.ladders
    if not ladders:
        return Safe("")
    lead = (
        "The same estimate with each weight, from the unbiased one down to the most biased. The further down, the less noise and the "
        "more bias, which no interval covers. The dashed line marks the unbiased estimate; bold marks the weight behind the answer, the "
        "one with the least error that is no further from those above it than about one standard error."
    )
    drawn = [ladders[target] for target in reading.foremost(TARGETS_DRAWN, tuple(ladders))]
    tables = [_rungs(reading, ladder) for ladder in drawn]
    more = left_out(len(ladders), TARGETS_DRAWN, "targets", "highest estimates", how="plotted")
    return join([el("p", lead, class_="lead"), *tables, more])


def _rungs(reading: Reading, ladder: Ladder) -> Safe:
    estimates = [rung.estimate for rung in ladder.rungs]
    unbiased = estimates[0].value
    axis = forest_axis(estimates, [place in (0, ladder.chosen) for place in range(len(estimates))], unbiased)
    lines = []
    for rung in ladder.rungs:
        estimate, is_chosen = rung.estimate, rung is ladder.choice
        label = join(
            ["unbiased" if rung is ladder.unbiased else name_of(rung.weight), " (chosen)" if is_chosen else ""]
        )
        said = estimate_text(estimate.value, estimate.stderr, estimate.interval, is_signed=reading.is_difference)
        lines.append(ForestRow(label, estimate.value, estimate.interval, said, "primary" if is_chosen else "other"))
    caption = join(["Bias ladder of ", name_of(ladder.target), f" by {estimates[0].name}"])
    heads = ["Weight", _value_head(reading)]
    return forest([(None, lines)], axis, unbiased, caption, heads, label=f"Bias ladder of {ladder.target}")


# -- The reward model: how good it is on rows it has not seen, and what it bought --------------------------------------


def model(reading: Reading) -> Safe:
    """Quality, worth and calibration; empty if no model was fitted."""
    quality = reading.result.model
    if quality is None:
        return Safe("")
    lead = (
        f"{quality.model}, fitted on {quality.rows:,} rows in {quality.folds} folds, so that every row is predicted by a model that has "
        f"not seen it. It explains {quality.r2:.1%} of the rewards' variance on such rows."
    )
    if quality.calibration:
        lead += (
            f" Its log loss is {quality.log_loss:.4g}; that of the mean reward alone is {quality.log_loss_of_mean:.4g}."
        )
    return join([el("p", lead, class_="lead"), el("ul", *_worth(reading)), _calibration(reading)])


def _worth(reading: Reading) -> Iterator[Safe]:
    result = reading.result
    for target in reading.foremost(TARGETS_LISTED):
        if all((target, name, None) in result.estimates for name in ("beta_ips", "optimal_dr")):
            yield el("li", name_of(target), f": the model is worth {max(result.worth(target), 0.0):.0%} more rows.")


def _calibration(reading: Reading) -> Safe:
    quality = reading.result.model
    if quality is None or not quality.calibration:
        return Safe("")
    rows = [
        {"Rows": tenth.rows, "Predicted": tenth.predicted, "Observed": tenth.observed} for tenth in quality.calibration
    ]
    return page_table(Table(rows), "Calibration: tenths of the rows by what was predicted")


# -- Coverage: how often intervals like these covered, on logs like this one -------------------------------------------

DRAWN = 100  # intervals in a picture


def coverage(check: CoverageCheck | None) -> Safe:
    """What was found for every target, and a picture of the first intervals; empty if nobody checked."""
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
            el("div", *map(_covering, drawn), class_="figures") if drawn else "",
            left_out(len(check), TARGETS_DRAWN, "targets", "first places", how="plotted"),
        ]
    )


def picked(coverage: Coverage) -> list[tuple[float, float, bool]]:
    """The first intervals around what they should cover, lowest first, and whether each covers it.

    Infinite ends are moved to where the others are.
    """
    ends = [x - coverage.truth for x in (*coverage.lower[:DRAWN], *coverage.upper[:DRAWN]) if math.isfinite(x)]
    least, most = min(ends, default=-1.0), max(ends, default=1.0)
    pairs = zip(coverage.lower[:DRAWN] - coverage.truth, coverage.upper[:DRAWN] - coverage.truth, strict=True)
    intervals = [(max(float(low), least), min(float(high), most), bool(low <= 0.0 <= high)) for low, high in pairs]
    return sorted(intervals, key=lambda row: row[0] + row[1])


def _covering(coverage: Coverage) -> Safe:
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


# -- Segments: a table that sorts and filters -------------------------------------------------------------------------------

SEGMENTS_LISTED = 1000


def segments(reading: Reading, address: str = "segment-table") -> Safe:
    """A table of segments that sorts and filters, under its own address."""
    result = reading.result
    keys = [key for key in result.verdicts if key[1] is not None]
    if not keys:
        return Safe("")
    every = len({segment for _, segment in keys})
    # every segment of as many targets as fit: a few segments of all targets would not help anybody
    targets = set(reading.foremost(max(1, SEGMENTS_LISTED // every)))
    shown = sorted(
        ((target, segment) for target, segment in keys if target in targets),
        key=lambda key: -result.segment_rows[key[1]],
    )[:SEGMENTS_LISTED]
    names = (*(("Target",) if len(result.targets) > 1 else ()), " / ".join(result.moments.segment_columns))
    heads = [(name_of(name, 40), False) for name in names] + [
        (in_units("Rows", reading.unit), True),
        ("Difference" if reading.is_difference else "Value", True),
        ("From", True),
        ("To", True),
        *(() if reading.is_comparison else (("Effective sample", True),)),
        ("Verdict", False),
    ]
    header = el(
        "tr",
        *(
            el("th", el("button", title, type="button"), scope="col", class_="number" if right else None)
            for title, right in heads
        ),
    )
    body = [_segment_row(reading, target, segment, len(names) > 1) for target, segment in shown]
    words = sorted({result.verdict_on(target, reading.primary, segment) for target, segment in shown})
    controls = el(
        "div",
        el("label", "Filter", el("input", type="search", placeholder="type to filter")),
        el("label", "Verdict", el("select", el("option", "all", value=""), *(el("option", w, value=w) for w in words))),
        el("output", aria_live="polite"),
        class_="controls",
        data_filters=address,
        hidden=True,
    )
    lead = el(
        "p",
        f"Each {'/'.join(map(str, result.moments.segment_columns))[:100]} on its own, by {reading.primary}. ",
        "Click a heading to sort. With many ",
        term("segment", "segments"),
        ", some differ by chance.",
        class_="lead",
    )
    table = el(
        "table",
        el("caption", f"{len(shown):,} rows, largest first"),
        el("thead", header),
        el("tbody", *body),
        class_="segments sortable",
        id=address,
    )
    region = scrolled(table, "Segments")
    count = len(result.targets)
    return join(
        [
            lead,
            controls,
            region,
            left_out(count, len(targets), "targets", "highest estimates"),
            left_out(every, SEGMENTS_LISTED, "segments", f"most {reading.unit}s"),
        ]
    )


def _segment_row(reading: Reading, target: str, segment: Segment, with_target: bool) -> Safe:
    result = reading.result
    estimate = result.estimates[target, reading.primary, segment]
    verdict = result.verdict_on(target, reading.primary, segment)
    write = signed if reading.is_difference else number
    low, high = estimate.interval
    numbers = [
        (estimate.value, write(estimate.value, estimate.stderr)),
        (low, write(low, estimate.stderr)),
        (high, write(high, estimate.stderr)),
    ]
    if not reading.is_comparison:
        effective = result.all_diagnostics[target, segment].effective_sample_size
        numbers.append((effective, f"{effective:,.0f}"))
    return el(
        "tr",
        el("td", name_of(target)) if with_target else "",
        el("th", name_of(segment_text(segment)), scope="row"),
        el("td", f"{estimate.n:,}", class_="number", data_value=estimate.n),
        *(el("td", said, class_="number", data_value=f"{value:.9g}") for value, said in numbers),
        el("td", badge(verdict)),
        data_verdict=verdict,
    )
