"""The report's sections on the weights: their diagnostics, their tail, and the estimate as rows come in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from counterpoise.diagnostics import Diagnostics, judge
from counterpoise.display import Name, Number, Table, cell_text, level_of, number, percent
from counterpoise.estimators import Estimate
from counterpoise.evaluation.reading import TARGETS_DRAWN, TARGETS_LISTED, Reading
from counterpoise.evaluation.wording import foremost_are
from counterpoise.moments.spread import Tail
from counterpoise.report.glossary import term
from counterpoise.report.markup import Safe, el, join, left_out, name_of
from counterpoise.report.plots import Axis, Band, Bars, Line, Mark, chart, thinned
from counterpoise.report.profile import EDGES, Profile
from counterpoise.report.tables import page_table

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
    return f"worth {worth} of {diagnostics.n:,} {reading.unit}s; the largest is {largest}"


def weights(reading: Reading, profiles: Mapping[str, Profile]) -> Safe:
    """The diagnostics of the weights, their tail, and how much of the total weight the largest ones carry."""
    result = reading.result
    targets = [target for target in result.moments.targets if (target, None) in result.all_diagnostics]
    parts = [_diagnostics(reading, reading.foremost(TARGETS_LISTED, targets))]
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


def _diagnostics(reading: Reading, targets: Sequence[str]) -> Safe:
    rows = []
    for target in targets:
        diagnostics = reading.result.diagnostics(target)
        unknown = {"carrying_rows": Number(None)} if judge(diagnostics).verdict == "not identified" else {}
        rows.append({"target": Name(target), **diagnostics.cells(), **unknown})
    titles = {"target": term("target"), "n": term("n", unit=reading.unit)}
    titles |= {key: term(key, words) for key, words in HEADINGS.items()}
    return page_table(Table(rows), "Checks on the weights", titles)


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
    figures = [_converging(target, profile.steps, reading.result.n) for target, profile in profiles.items()]
    figures = [figure for figure in figures if figure]
    if not figures:
        return Safe("")
    level = level_of(reading.result.level)
    lead = f"beta_ips after the first rows, after more, and finally after all, with {level} intervals that treat rows as independent. "
    return join(
        [el("p", lead, term("convergence", "What to look for."), class_="lead"), el("div", *figures, class_="figures")]
    )


def _converging(target: str, steps: list[Estimate], n: int) -> Safe:
    known = [step for step in steps if step.identified and math.isfinite(step.stderr)]
    if not known:
        return Safe("")
    late = [step for step in known if step.n >= known[-1].n / 10] or known
    y = Axis.around([x for step in late for x in (step.value, *step.interval)])
    last = known[-1]
    note = (
        f" The log passed for this plot has {steps[-1].n:,} usable rows, but the estimates rest on {n:,}."
        if steps[-1].n != n
        else ""
    )
    return el(
        "figure",
        chart(
            Axis(0.0, float(last.n)),
            y,
            [
                Band([(float(step.n), *step.interval) for step in known]),
                Mark(last.value),
                Line([(float(step.n), step.value) for step in known]),
            ],
            says=f"Estimate of {target} by rows read: {number(known[0].value, known[0].stderr)} after {known[0].n:,} rows, "
            f"{number(last.value, last.stderr)} after {last.n:,}.",
            x_label="rows read",
            y_label="value per row",
        ),
        el("figcaption", name_of(target), ".", note),
    )
