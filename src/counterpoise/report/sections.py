"""The sections of the report on values: the checks, estimators, segments, positions, the ladder, the reward model and coverage."""

from __future__ import annotations

import math
from collections import Counter

from counterpoise.display import Cell, Number, Table, level_of, number, percent
from counterpoise.evaluation.coverage import Coverage, CoverageCheck
from counterpoise.evaluation.reading import (
    TARGETS_DRAWN,
    TARGETS_LISTED,
    TARGETS_WITH_ALL_ESTIMATORS,
    Reading,
)
from counterpoise.evaluation.wording import counts, foremost_are, on_scale, rival, scale_of, verdict_word, written
from counterpoise.moments.columns import EXCESS, REWARD
from counterpoise.report.card import SIGNS
from counterpoise.report.first_screen import KINDS
from counterpoise.report.glossary import estimator_words, term
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
    listed = []
    for change in reading.changes[:TARGETS_LISTED]:
        reasons = [el("li", el("bdi", reason)) for reason in change.verdict.reasons]
        said = el("ul", *reasons) if reasons else ": no problems found in the weights or rewards."
        name = el("b", name_of(change.target))
        listed.append(el("li", badge(verdict_word(reading, change)), " ", name, said))
    note = left_out(len(reading.changes), TARGETS_LISTED, "targets", foremost_are(reading))
    return join([el("ul", *listed, class_="verdicts"), note])


def checks_gist(reading: Reading) -> str:
    """How many targets have each verdict."""
    if len(reading.changes) == 1:
        return f"{len(reading.best.verdict.reasons)} to read" if reading.best.verdict.reasons else "nothing found"
    return counts([verdict_word(reading, change) for change in reading.changes], list(SIGNS))


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
    result, primary = reading.result, reading.primary
    is_long = len(result.targets) > TARGETS_WITH_ALL_ESTIMATORS and len(reading.estimators) > 1
    names = (primary,) if is_long else reading.estimators
    rows = {target: [result.stated(target, name) for name in names] for target in reading.foremost(TARGETS_LISTED)}
    if reading.is_difference:
        lead = f"How much more each target would have earned per {reading.unit} than the policy it is compared with. "
        lead += "The dashed line marks no difference."
    else:
        lead = f"What each target would have earned per {reading.unit}."
        if math.isfinite(reading.mark):
            lead += f" The dashed line marks what the log itself earned: {number(*reading.logged_digits)}."
    lead += (
        f" With so many targets, only {primary} is shown; the result itself has every estimator."
        if is_long
        else " Bold marks the estimator behind the headline."
    )
    lead += " An arrow means the interval continues off the plot."
    lead += " Each interval is for its own target alone." if len(result.targets) > 1 else ""
    known = [estimate for target, listed in rows.items() if reading.is_known(target) for estimate in listed]
    shown = known or [estimate for listed in rows.values() for estimate in listed]
    axis = forest_axis(shown, [estimate.name == primary for estimate in shown], reading.mark)
    is_single = len(names) == 1
    groups: list[Group] = []
    for target, listed in rows.items():
        verdict = result.verdict(target).verdict
        name = join([name_of(target), " ", "" if verdict == "ok" else badge(verdict)])
        lines = [
            ForestRow(
                name if is_single else estimate.name,
                estimate.value,
                estimate.interval,
                estimate_text(estimate.value, estimate.stderr, estimate.interval, is_signed=reading.is_difference),
                "primary" if estimate.name == primary else "other",
                None if is_single else estimator_words(estimate.name, reading.unit),
            )
            for estimate in listed
        ]
        groups.append((None if is_single else name, lines))
    heads = ["Target" if is_single else "Estimator", _value_head(reading)]
    plot = forest(groups, axis, reading.mark, "Estimates of every target", heads)
    note = left_out(len(result.targets), TARGETS_LISTED, "targets", foremost_are(reading))
    return join([el("p", lead, class_="lead"), plot, note])


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
    tables = []
    for target in reading.foremost(TARGETS_DRAWN, tuple(ladders)):
        ladder, rungs = ladders[target], ladders[target].rungs
        estimates, unbiased = [rung.estimate for rung in rungs], rungs[0].estimate
        axis = forest_axis(estimates, [place in (0, ladder.chosen) for place in range(len(rungs))], unbiased.value)
        lines = []
        for rung in rungs:
            ours, is_chosen = rung.estimate, rung is ladder.choice
            said = estimate_text(ours.value, ours.stderr, ours.interval, is_signed=reading.is_difference)
            weight = "unbiased" if rung is ladder.unbiased else name_of(rung.weight)
            name = join([weight, " (chosen)" if is_chosen else ""])
            kind = "primary" if is_chosen else "other"
            lines.append(ForestRow(name, ours.value, ours.interval, said, kind))
        caption = join(["Bias ladder of ", name_of(target), f" by {unbiased.name}"])
        heads = ["Weight", _value_head(reading)]
        tables.append(forest([(None, lines)], axis, unbiased.value, caption, heads, label=f"Bias ladder of {target}"))
    more = left_out(len(ladders), TARGETS_DRAWN, "targets", foremost_are(reading), how="plotted")
    return join([el("p", lead, class_="lead"), *tables, more])


def ladder_gist(reading: Reading) -> str:
    """The weights that were chosen."""
    return ", ".join(dict.fromkeys(str(ladder.choice.weight) for ladder in reading.result.ladders.values()))[:100]


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
    worth = [
        el("li", name_of(target), f": the model is worth {max(reading.result.worth(target), 0.0):.0%} more rows.")
        for target in reading.foremost(TARGETS_LISTED)
        if all((target, name, None) in reading.result.estimates for name in ("beta_ips", "optimal_dr"))
    ]
    tenths = [
        {"Rows": each.rows, "Predicted": each.predicted, "Observed": each.observed} for each in quality.calibration
    ]
    caption = "Calibration: tenths of the rows by what was predicted"
    table = page_table(Table(tenths), caption) if tenths else ""
    return join([el("p", lead, class_="lead"), el("ul", *worth), table])


def model_gist(reading: Reading) -> str:
    """How much of the rewards' variance the model explains."""
    quality = reading.result.model
    return "" if quality is None else f"explains {quality.r2:.1%} of the rewards’ variance"


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
    figures = []
    for each in [each for each in list(check.values())[:TARGETS_DRAWN] if each.can_tell]:
        rows = picked(each)
        ends = [([(low, k + 0.5), (high, k + 0.5)], holds) for k, (low, high, holds) in enumerate(rows)]
        said = f"{sum(not holds for _, _, holds in rows)} of the first {len(rows)} intervals miss"
        plot = chart(
            Axis.around([end for row in rows for end in row[:2]]),
            Axis(0.0, float(len(rows))),
            [*(Line(points, "held" if holds else "missed") for points, holds in ends), Mark(0.0, upright=True)],
            says=f"Intervals of {each.target} on logs like this one: {said}.",
            x_label="distance from what should be covered",
            y_label="logs, by where their interval lies",
        )
        figures.append(el("figure", plot, el("figcaption", name_of(each.target), f": {said}, drawn bold.")))
    return join(
        [
            el("p", lead, class_="lead"),
            el("ul", *(el("li", el("bdi", str(coverage))) for coverage in check.values())),
            el("div", *figures, class_="figures") if figures else "",
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
            "What the items at each position add to a ranking’s value under ",
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
    """A forest plot of the change in every segment against the logging policy there: a table that sorts and filters."""
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
        ("Lift" if reading.is_against_log else "Difference", "number"),
        *([] if reading.is_difference else [("Value", "number")]),
        ("Decision", ""),
        ("Verdict", ""),
    ]
    header = [
        el("th", el("button", title, type="button") if title else "Plot", scope="col", class_=kind or None)
        for title, kind in heads
    ]
    body = []
    for change in shown:
        estimate, own, kind = on_scale(change, scale), change.value, KINDS[change.decision]
        (size, span), verdict = written(estimate, scale), verdict_word(reading, change)
        value, at = estimate_text(own.value, own.stderr, own.interval), math.nan if estimate is None else estimate.value
        cells = [
            el("td", name_of(change.target)) if len(result.targets) > 1 else "",
            el("th", name_of(change.where), scope="row"),
            el("td", f"{change.rows:,}", class_="number", data_value=change.rows),
            el("td", strip_of(estimate, axis, 0.0, kind), class_="plot"),
            el("td", size, " ", el("span", span, class_="range"), class_="number size", data_value=f"{at:.9g}"),
            "" if reading.is_difference else el("td", *value, class_="number", data_value=f"{own.value:.9g}"),
            el("td", change.decision, class_="said"),
            el("td", badge(verdict)),
        ]
        body.append(el("tr", *cells, class_=kind, data_verdict=verdict))
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
        term("segment", "segments"), f", some differ by chance, so these intervals are wide enough to hold for all {every:,}. ",
        "Click a heading to sort.",
        class_="lead",
    )  # fmt: skip
    table = el(
        "table",
        el("caption", "From the smallest to the largest; dates in order"),
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


def segments_gist(reading: Reading) -> str:
    """From where to where the best target's change goes, and how many segments are decided."""
    changes = reading.segments() if len(reading.result.segment_rows) <= SEGMENTS_LISTED else ()
    scale = scale_of(changes)
    known = [on_scale(change, scale) for change in changes]
    values = sorted((each for each in known if each is not None and each.identified), key=lambda each: each.value)
    if not values:
        return ""
    low, high = (written(each, scale)[0] for each in (values[0], values[-1]))
    counts = Counter[str](change.decision for change in changes)
    up, down = ("higher", "lower") if reading.result.minimize is None else ("better", "worse")
    said = f"{up} in {counts[up]:,} of {len(changes):,}"
    return f"{low} to {high}; {said}" + (f", {down} in {counts[down]:,}" if counts[down] else "")
