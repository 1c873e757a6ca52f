"""The report's sections on the weights: their diagnostics, their tail, and the estimate as rows come in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING

import numpy as np

from counterpoise.diagnostics import Diagnostics, judge
from counterpoise.display import Name, Number, Table, cell_text, level_of, number, percent
from counterpoise.engines.rows import over_good_rows, rows_of
from counterpoise.errors import CounterpoiseError
from counterpoise.estimators import Estimate, beta_ips
from counterpoise.estimators.estimate import unstack
from counterpoise.evaluation.reading import TARGETS_DRAWN, TARGETS_LISTED, Reading
from counterpoise.evaluation.wording import foremost_are
from counterpoise.intervals.method import normal
from counterpoise.log.columns import PROPENSITY
from counterpoise.log.question import Question
from counterpoise.moments import Floats, Moments
from counterpoise.moments.spread import Tail
from counterpoise.report.glossary import term
from counterpoise.report.markup import Safe, el, join, left_out, name_of
from counterpoise.report.plots import Axis, Band, Bars, Line, Mark, chart, thinned
from counterpoise.report.tables import page_table

if TYPE_CHECKING:
    import polars as pl

HEADINGS = {
    "effective_sample_size": "Effective",
    "mean_weight": "Mean",
    "mean_weight_p": "p-value",
    "max_weight": "Largest",
    "top_share": "Top share",
    "pareto_k": "Pareto k",
    "zero_weight_share": "Weight 0",
    "carrying_rows": "Carrying",
}


def gist(reading: Reading) -> str:
    """What the weights leave of the rows, and the largest of them."""
    diagnostics = reading.result.all_diagnostics.get((reading.best.target, None))
    if diagnostics is None:
        return ""
    cells = diagnostics.cells()
    worth, largest = (cell_text(cells[name]) for name in ("effective_sample_size", "max_weight"))
    return f"effective sample size {worth} of {diagnostics.n:,} {reading.unit}s; the largest weight is {largest}"


def weights(reading: Reading, profiles: Mapping[str, Profile]) -> Safe:
    """The diagnostics of the weights, their tail, and how much of the total weight the largest ones carry."""
    result = reading.result
    targets = [target for target in result.moments.targets if (target, None) in result.all_diagnostics]
    rows = []
    for target in reading.foremost(TARGETS_LISTED, targets):
        diagnostics = result.diagnostics(target)
        unknown = {"carrying_rows": Number(None)} if judge(diagnostics).verdict == "not identified" else {}
        rows.append({"target": Name(target), **diagnostics.cells(), **unknown})
    titles = {"target": term("target"), "n": term("n", unit=reading.unit)}
    titles |= {key: term(key, words) for key, words in HEADINGS.items()}
    parts = [page_table(Table(rows), "Checks on the weights", titles)]
    parts.append(left_out(len(targets), TARGETS_LISTED, "targets", foremost_are(reading)))
    for target in reading.foremost(TARGETS_DRAWN, targets):
        tail = Tail.total(result.moments.tails.get((target, ""), ()))
        figures = _weight_figures(target, tail, result.diagnostics(target), f"{reading.unit}s")
        if target in profiles:
            figures.append(_histogram(target, profiles[target]))
        if any(figures):
            parts += [el("h3", "Weights of ", name_of(target)), el("div", *figures, class_="figures")]
    parts.append(left_out(len(targets), TARGETS_DRAWN, "targets", foremost_are(reading), how="plotted"))
    if result.earlier_rows:
        units = f"{reading.unit}s"
        said = (
            f"{result.earlier_rows:,} of the {result.n:,} {units} come from earlier logs, of which the state keeps only sums. Plots of "
            f"single {units} would show the last log alone, so there are none here."
        )
        parts.append(el("p", said, class_="note"))
    return join(parts)


def _weight_figures(target: str, tail: Tail, diagnostics: Diagnostics, units: str) -> list[Safe]:
    weights, n = tail.weights[tail.weights > 0], diagnostics.n
    if len(weights) < 2 or n < 2:  # sums alone know the largest weight and no tail
        return []
    survival = thinned([(float(w), (k + 1) / n) for k, w in enumerate(weights)])
    x, y = (
        Axis.around([p[0] for p in survival] + [1.0], logarithmic=True),
        Axis.around([p[1] for p in survival] + [1.0], logarithmic=True),
    )
    kept = f"the {len(weights):,} largest" if len(weights) + tail.zeros < n else "all"
    first = el(
        "figure",
        chart(
            x,
            y,
            [Mark(1.0, upright=True), Line(survival)],
            says=f"Tail of the weights of {target}: the largest is {number(float(weights[0]))}, and "
            f"{percent(len(weights) / n)} of the {units} have a weight of at least {number(float(weights[-1]))}.",
            x_label="weight",
            y_label=f"share of {units} with at least this weight",
        ),
        el(
            "figcaption",
            f"The tail of the weights ({kept}; both axes are logarithmic). A steep drop is good; a slow, straight decline means "
            "that larger weights are still to come. The dashed line marks a weight of 1.",
        ),
    )
    carried = np.cumsum(weights) / max(n * diagnostics.mean_weight, 1e-300)
    curve = [((k + 1) / n, min(float(c), 1.0)) for k, c in enumerate(carried)]
    edge = curve[-1][0]
    second = el(
        "figure",
        chart(
            Axis(0.0, 100 * edge),
            Axis(0.0, max(1.05 * curve[-1][1], 0.01) * 100),
            [
                Line([(0.0, 0.0), (100 * edge, 100 * edge)], "even"),
                Line([(0.0, 0.0), *((100 * a, 100 * b) for a, b in thinned(curve))]),
            ],
            says=f"Where the estimate of {target} comes from: the {len(weights):,} {units} with the largest weights, "
            f"{percent(edge)} of the log, carry {percent(curve[-1][1])} of the total weight.",
            x_label=f"% of the {units}, heaviest first",
            y_label="% of the total weight",
        ),
        el(
            "figcaption",
            f"Where the estimate comes from: {percent(edge)} of the {units} carry {percent(curve[-1][1])} of the total weight. "
            f"The dashed line shows what it would look like if all {units} counted the same.",
        ),
    )
    return [first, second]


def _histogram(target: str, profile: Profile) -> Safe:
    filled = np.flatnonzero(profile.counts)
    zeros, total = profile.zeros, profile.counts.sum() + profile.zeros
    if not len(filled):
        return Safe("")
    first, last = int(filled[0]), int(filled[-1]) + 1
    shares = 100 * profile.counts / total
    bars = [(float(EDGES[k]), float(EDGES[k + 1]), float(shares[k])) for k in range(first, last)]
    weight = Axis(float(EDGES[first]) / 1.1, float(EDGES[last]) * 1.1, True)
    mark = " The dashed line marks a weight of 1." if weight.low <= 1.0 <= weight.high else ""
    return el(
        "figure",
        chart(
            weight,
            Axis(0.0, 1.05 * float(shares.max())),
            [Bars(bars), Mark(1.0, upright=True)],
            says=f"Histogram of the weights of {target}, from {number(float(EDGES[first]))} to {number(float(EDGES[last]))}; "
            f"{percent(zeros / total)} of the rows have weight 0.",
            x_label="weight (logarithmic)",
            y_label="% of the rows",
        ),
        el(
            "figcaption",
            f"All weights above 0; {percent(zeros / total)} of the rows have weight 0.{mark}",
        ),
    )


def convergence_gist(profiles: Mapping[str, Profile], target: str) -> str:
    """The estimate half way and at the end."""
    known = [step for step in profiles[target].steps if step.identified] if target in profiles else []
    if not known:
        return ""
    half = min(known, key=lambda step: abs(step.n - known[-1].n / 2))
    write = known[-1].stderr
    return f"{number(half.value, write)} after half of them, {number(known[-1].value, write)} after all"


def convergence(reading: Reading, profiles: Mapping[str, Profile]) -> Safe:
    """Plots of the estimate as more and more rows come in."""
    figures = []
    for target, each in profiles.items():
        known = [step for step in each.steps if step.identified and math.isfinite(step.stderr)]
        if not known:
            continue
        first, last, read, n = known[0], known[-1], each.steps[-1].n, reading.result.n
        late = [step for step in known if step.n >= last.n / 10] or known
        note = f" The log passed for this plot has {read:,} usable rows, but the estimates rest on {n:,}."
        plot = chart(
            Axis(0.0, float(last.n)),
            Axis.around([x for step in late for x in (step.value, *step.interval)]),
            [
                Band([(float(step.n), *step.interval) for step in known]),
                Mark(last.value),
                Line([(float(step.n), step.value) for step in known]),
            ],
            says=f"Estimate of {target} by rows read: {number(first.value, first.stderr)} after {first.n:,} rows, "
            f"{number(last.value, last.stderr)} after {last.n:,}.",
            x_label="rows read",
            y_label="value per row",
        )
        figures.append(el("figure", plot, el("figcaption", name_of(target), ".", note if read != n else "")))
    if not figures:
        return Safe("")
    level = level_of(reading.result.level)
    lead = f"beta_ips after the first rows, after more, and finally after all, with {level} intervals that treat rows as independent. "
    look = term("convergence", "What to look for.")
    return join([el("p", lead, look, class_="lead"), el("div", *figures, class_="figures")])


# -- One more pass over the log, for what sums cannot show ------------------------------------------------------------------

CHECKPOINTS = 60
EDGES = 10.0 ** np.arange(-4.0, 6.05, 0.1)  # of the histogram; what lies beyond falls into the outermost bins


@dataclass
class Profile:
    """One target's β-IPS after each part of the rows, how many of its weights fall into each bin, and how many are 0."""

    steps: list[Estimate] = field(default_factory=list)
    counts: Floats = field(default_factory=lambda: np.zeros(len(EDGES) - 1))
    zeros: int = 0


def profile(question: Question, targets: Sequence[str], *, rows: int, level: float) -> dict[str, Profile]:
    """One pass, in row order, over the rows behind the question's estimates, of which there are about `rows`.

    >>> from counterpoise import evaluate
    >>> log = {"r": [1, 0, 1, 1], "p": [0.5, 0.5, 0.25, 0.5], "pi_new": [0.5, 0.25, 0.5, 0.25]}
    >>> result = evaluate(log, reward="r", propensity="p", target={"new": "pi_new"})
    >>> found = profile(result.question, ["new"], rows=4, level=0.95)["new"]
    >>> [step.n for step in found.steps], int(found.counts.sum())
    ([1, 2, 3, 4], 4)
    """
    chosen = {target: question.names.targets[question.target_names.index(target)] for target in targets}
    reward = question.names.rewards[0]

    def pass_over(batches: Iterator[pl.DataFrame]) -> dict[str, Profile]:
        profiles = {target: Profile() for target in targets}
        running = {target: Moments.empty() for target in targets}
        marks: dict[str, list[Moments]] = {target: [] for target in targets}
        done, every, center = 0, max(1, -(-rows // CHECKPOINTS)), None
        for batch in batches:
            r = batch.get_column(reward).to_numpy()
            p = batch.get_column(PROPENSITY).to_numpy() if question.weight.needs_propensity else r
            center = float(r.mean()) if center is None and len(r) else center
            weights = {  # of the whole batch: a column in pieces becomes an array only once
                target: question.weight.weight(batch.get_column(column).to_numpy(), p)
                for target, column in chosen.items()
            }
            for target, w in weights.items():
                some = w[w > 0]
                profiles[target].counts += np.histogram(np.clip(some, EDGES[0], EDGES[-1]), EDGES)[0]
                profiles[target].zeros += len(w) - len(some)
            first = 0
            while first < len(r):  # a batch is cut wherever a checkpoint falls into it
                last = min(len(r), first + every - done % every)
                done += last - first
                for target, w in weights.items():
                    running[target] += Moments.of(w[first:last], r[first:last], center=center)
                    if done % every == 0:
                        marks[target].append(running[target])
                first = last
        for target, known in marks.items() if done else ():
            known += [running[target]] if done % every else []
            together = beta_ips(Moments.stack(known))
            steps = (unstack(together, k) for k in range(len(known)))
            profiles[target].steps += [replace(step, interval=normal(step.value, step.stderr, level)) for step in steps]
        return profiles

    return over_good_rows(question, pass_over)


# -- The days that a log goes from and to -----------------------------------------------------------------------------


def dates_of(question: Question) -> str:
    """The first and the last day of a log with a single column of dates or times; empty for others.

    >>> from datetime import date
    >>> from counterpoise import evaluate
    >>> log = {"r": [1, 0], "p": [0.5, 0.5], "t": [0.5, 0.5], "day": [date(2026, 3, 14), date(2026, 3, 1)]}
    >>> dates_of(evaluate(log, reward="r", propensity="p", target="t").question)
    '1–14 March 2026'
    """
    import polars as pl

    try:
        rows = rows_of(question.log)
        days = [name for name, kind in rows.collect_schema().items() if kind in (pl.Date, pl.Datetime)]
        if len(days) != 1:
            return ""
        column = pl.col(days[0])
        first, last = rows.select(column.min().alias("first"), column.max().alias("last")).collect().row(0)
    except (CounterpoiseError, pl.exceptions.PolarsError):
        return ""  # dates are a courtesy
    return "" if first is None else days_between(first, last)


def days_between(first: date, last: date) -> str:
    """Two days as people write them.

    >>> days_between(date(2026, 3, 1), date(2026, 4, 2)), days_between(date(2025, 3, 1), date(2025, 3, 1))
    ('1 March – 2 April 2026', '1 March 2025')
    """
    end = f"{last.day} {last:%B %Y}"
    if (first.year, first.month, first.day) == (last.year, last.month, last.day):
        return end
    if (first.year, first.month) == (last.year, last.month):
        return f"{first.day}–{end}"
    return f"{first.day} {first:%B}{'' if first.year == last.year else f' {first.year}'} – {end}"
