"""The sections of the report on values: the checks, estimators, segments, positions, the ladder, the reward model and coverage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from counterpoise.display import Cell, Number, Table, level_of, number, percent
from counterpoise.errors import render
from counterpoise.estimators import Estimate
from counterpoise.evaluation.coverage import Coverage, CoverageCheck
from counterpoise.evaluation.ladder import Ladder
from counterpoise.evaluation.reading import (
    TARGETS_DRAWN,
    TARGETS_LISTED,
    TARGETS_WITH_ALL_ESTIMATORS,
    Change,
    Decision,
    Reading,
)
from counterpoise.evaluation.wording import Scale, foremost_are, on_scale, rival, scale_of, verdict_word, written
from counterpoise.moments.columns import EXCESS, REWARD
from counterpoise.report.card import SIGNS
from counterpoise.report.first_screen import KINDS
from counterpoise.report.glossary import ESTIMATOR_WORDS, term
from counterpoise.report.markup import Safe, el, join, left_out, name_of
from counterpoise.report.plots import (
    Axis,
    Line,
    Mark,
    chart,
    forest_axis,
    percent_tick,
    strip_axis,
    strip_of,
    tick_text,
)
from counterpoise.report.tables import (
    ForestRow,
    Group,
    badge,
    estimate_text,
    forest,
    page_table,
    scrolled,
)


def checks(reading: Reading) -> Safe:
    """The verdict on every target, with all of its reasons."""
    verdicts = {change.target: change for change in reading.changes[:TARGETS_LISTED]}
    listed = [
        el(
            "li",
            badge(verdict_word(reading, change)),
            " ",
            el("b", name_of(target)),
            ": no problems found in the weights or rewards." if not change.verdict.reasons else "",
            el("ul", *(el("li", el("bdi", reason)) for reason in change.verdict.reasons))
            if change.verdict.reasons
            else "",
        )
        for target, change in verdicts.items()
    ]
    note = left_out(len(reading.changes), TARGETS_LISTED, "targets", foremost_are(reading))
    return join([el("ul", *listed, class_="verdicts"), note])


def checks_gist(reading: Reading) -> str:
    """How many targets have each verdict."""
    counts = Counter[str](verdict_word(reading, change) for change in reading.changes)
    if len(reading.changes) == 1:
        return f"{len(reading.best.verdict.reasons)} to read" if reading.best.verdict.reasons else "nothing found"
    return ", ".join(f"{counts[word]:,} {word}" for word in SIGNS if counts[word])


def estimates_gist(reading: Reading, target: str) -> str:
    """Whether the estimators agree: whether each lies in the interval of the one behind the headline."""
    own = {name: reading.result.stated(target, name) for name in reading.estimators}
    main = own.pop(reading.primary)
    if not main.identified or not own:
        return reading.primary
    off = [name for name, estimate in own.items() if estimate.identified and estimate.value not in main.interval]
    if not off:
        return f"{', '.join((reading.primary, *own))} agree"
    return f"{', '.join(off)} and {reading.primary} do not agree"


def estimates(reading: Reading) -> Safe:
    """A forest plot of all targets and estimators, which doubles as a table."""
    result = reading.result
    is_long = len(result.targets) > TARGETS_WITH_ALL_ESTIMATORS and len(reading.estimators) > 1
    names = (reading.primary,) if is_long else reading.estimators
    rows = {target: [result.stated(target, name) for name in names] for target in reading.foremost(TARGETS_LISTED)}
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
            left_out(len(result.targets), TARGETS_LISTED, "targets", foremost_are(reading)),
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
                None if single else render(ESTIMATOR_WORDS.get(estimate.name, ""), unit=reading.unit) or None,
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
    more = left_out(len(ladders), TARGETS_DRAWN, "targets", foremost_are(reading), how="plotted")
    return join([el("p", lead, class_="lead"), *tables, more])


def ladder_gist(reading: Reading) -> str:
    """The weights that were chosen."""
    return ", ".join(dict.fromkeys(str(ladder.choice.weight) for ladder in reading.result.ladders.values()))[:100]


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


def model_gist(reading: Reading) -> str:
    """How much of the rewards' variance the model explains."""
    quality = reading.result.model
    return "" if quality is None else f"explains {quality.r2:.1%} of the rewards’ variance"


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


def coverage_gist(check: CoverageCheck | None) -> str:
    """How often the first target's intervals covered."""
    first = next(iter(check.values()), None) if check is not None else None
    return "" if first is None or not first.can_tell else f"{percent(first.covered)} of {first.runs:,} logs"


# -- Lists, position by position -----------------------------------------------------------------------------------------


def positions(reading: Reading) -> Safe:
    """What each position adds to the best target's value, and its mean weight; empty unless lists keep them apart."""
    target = reading.best.target
    moments = reading.result.moments[target]
    rewards = [name for name in moments.columns if name.startswith(REWARD)]
    if not rewards or reading.is_difference:
        return Safe("")
    rows: list[dict[str, Cell]] = []
    for name in rewards:
        at = name.removeprefix(REWARD)
        error = math.sqrt(max(float(moments.covariance(name, name)), 0.0) / max(moments.n, 1))
        mean, excess = float(moments.average(name)), EXCESS + at
        weight = Number(1.0 + float(moments.average(excess)), 0.01) if excess in moments.columns else Number(None)
        rows.append(
            {"Position": int(at), "Adds": Number(mean, error), "Error": Number(error, error), "Mean weight": weight}
        )
    lead = join(
        [
            "What the items at each position add to a list’s value under ",
            name_of(target),
            ", by ips; the sum over positions is the value. ",
        ]
    )
    return join(
        [el("p", lead, "Every mean weight should be 1.", class_="lead"), page_table(Table(rows), "By position")]
    )


# -- Segments: a table that sorts and filters -------------------------------------------------------------------------------

SEGMENTS_LISTED = 1000


def segments(reading: Reading, address: str = "segment-table") -> Safe:
    """A forest plot of the change in every segment against what ran there: a table that sorts and filters, under its own address."""
    result, unit = reading.result, reading.unit
    every = len(result.segment_rows)
    if not every:
        return Safe("")
    # every segment of as many targets as fit: a few segments of all targets would not help anybody
    targets = [change.target for change in reading.changes][: max(1, SEGMENTS_LISTED // every)]
    largest = set(sorted(result.segment_rows, key=lambda place: -result.segment_rows[place])[:SEGMENTS_LISTED])
    shown = [change for target in targets for change in reading.segments(target) if change.segment in largest]
    scale = scale_of(shown)
    pairs = [(on_scale(change, scale), change.verdict.verdict == "ok") for change in shown]
    drawn = [(estimate, is_ok) for estimate, is_ok in pairs if estimate is not None]
    axis = forest_axis([estimate for estimate, _ in drawn], [is_ok for _, is_ok in drawn], 0.0)
    by = " / ".join(result.moments.segment_columns)
    heads = [
        *([("Target", "")] if len(result.targets) > 1 else []),
        (name_of(by, 40), ""),
        (f"{unit.capitalize()}s", "number"),
        ("", "plot"),
        ("Change", "number"),
        *([] if reading.is_difference else [("Value", "number")]),
        ("Decision", ""),
        ("Verdict", ""),
    ]
    header = [
        el("th", el("button", title, type="button") if title else "Plot", scope="col", class_=kind or None)
        for title, kind in heads
    ]
    body = [_segment_row(reading, change, scale, axis, len(result.targets) > 1) for change in shown]
    write = percent_tick if scale == "share" else tick_text
    foot = [el("td", strip_axis(axis, write) if kind == "plot" else "", class_=kind or None) for _, kind in heads]
    words = sorted({verdict_word(reading, change) for change in shown})
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
        "Each ", name_of(by), f" on its own against {rival(reading)} there (the dashed line), by {reading.primary}. With many ",
        term("segment", "segments"), f", some differ by chance, so the intervals of the change are wide enough to hold for all {every:,}. ",
        "Click a heading to sort.",
        class_="lead",
    )  # fmt: skip
    table = el(
        "table",
        el("caption", "From the least change to the most; dates in order"),
        el("thead", el("tr", *header)),
        el("tbody", *body),
        el("tfoot", el("tr", *foot), aria_hidden="true"),
        class_="segments sortable",
        id=address,
    )
    return join(
        [
            lead,
            controls,
            scrolled(table, "Segments"),
            left_out(len(result.targets), len(targets), "targets", foremost_are(reading)),
            left_out(every, SEGMENTS_LISTED, "segments", f"most {unit}s"),
        ]
    )


_SAID: tuple[Decision, Decision] = ("better", "worse")
_UNSAID: tuple[Decision, Decision] = ("higher", "lower")


def segments_gist(reading: Reading) -> str:
    """From where to where the best target's change goes, and how many segments are decided."""
    changes = reading.segments() if len(reading.result.segment_rows) <= SEGMENTS_LISTED else ()
    scale = scale_of(changes)
    known = [on_scale(change, scale) for change in changes]
    values = sorted((each for each in known if each is not None and each.identified), key=lambda each: each.value)
    if not values:
        return ""
    low, high = (written(each, scale)[0] for each in (values[0], values[-1]))
    counts = Counter(change.decision for change in changes)
    up, down = _UNSAID if reading.result.minimize is None else _SAID
    said = f"{up} in {counts[up]:,} of {len(changes):,}"
    return f"{low} to {high}; {said}" + (f", {down} in {counts[down]:,}" if counts[down] else "")


def _segment_row(reading: Reading, change: Change, scale: Scale, axis: Axis, with_target: bool) -> Safe:
    estimate, verdict, own = on_scale(change, scale), verdict_word(reading, change), change.value
    said, span = written(estimate, scale)
    size = math.nan if estimate is None else estimate.value
    drawn = strip_of(estimate, axis, 0.0, KINDS[change.decision])
    return el(
        "tr",
        el("td", name_of(change.target)) if with_target else "",
        el("th", name_of(change.where), scope="row"),
        el("td", f"{change.rows:,}", class_="number", data_value=change.rows),
        el("td", drawn, class_="plot"),
        el("td", said, " ", el("span", span, class_="range"), class_="number size", data_value=f"{size:.9g}"),
        ""
        if reading.is_difference
        else el(
            "td", *estimate_text(own.value, own.stderr, own.interval), class_="number", data_value=f"{own.value:.9g}"
        ),
        el("td", change.decision, class_="said"),
        el("td", badge(verdict)),
        class_=KINDS[change.decision],
        data_verdict=verdict,
    )
