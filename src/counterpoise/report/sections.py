"""This file holds the sections of the report, from the answer to how to reproduce it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from counterpoise.estimators import Estimate
from counterpoise.report.axes import Axis
from counterpoise.report.glossary import ESTIMATOR_WORDS, glossary, term
from counterpoise.report.markup import Safe, el, join, name_of
from counterpoise.report.numbers import level_of, number, percent, signed
from counterpoise.report.plots import Band, Bars, Line, Mark, chart, strip, strip_axis, thinned
from counterpoise.report.profile import EDGES, Profile
from counterpoise.report.reading import Reading, answer, fingerprint
from counterpoise.results import Segment
from counterpoise.tails import EMPTY, Tail

TARGETS_DRAWN = 8
TARGETS_LISTED = 200
SEGMENTS_LISTED = 1000


def head(reading: Reading) -> Safe:
    """The sentence, and the verdict on every target."""
    result = reading.result
    listed = [
        el(
            "li",
            el("span", SIGNS[verdict.verdict], " ", verdict.verdict, class_="badge"),
            " · ",
            el("b", name_of(target)),
            ": nothing in the weights speaks against the estimates." if not verdict.reasons else "",
            el("ul", *(el("li", el("bdi", reason)) for reason in verdict.reasons)) if verdict.reasons else "",
            class_=_class(verdict.verdict),
        )
        for target in result.targets[:TARGETS_LISTED]
        for verdict in [result.verdict(target)]
    ]
    return join([el("p", answer(reading), class_="answer"), el("ul", *listed, class_="verdicts")])


SIGNS = {"ok": "✓", "caution": "▲", "not identified": "✕", "model only": "◇"}


def _badge(verdict: str) -> Safe:
    return el("span", SIGNS[verdict], " ", verdict, class_=f"badge {_class(verdict)}")


def _class(verdict: str) -> str:
    return "is-" + verdict.replace(" ", "-")


def estimates(reading: Reading) -> Safe:
    """Forest plot of all targets and estimators, which is a table too."""
    result = reading.result
    mean, _ = reading.logged
    reference = 0.0 if reading.is_difference else mean
    rows = {target: [result[target, name] for name in reading.estimators] for target in result.targets[:TARGETS_LISTED]}
    lead = (
        "What each target would have earned more per row than the other policy. The dashed line is no difference."
        if reading.is_difference
        else f"What each target would have earned per row. The dashed line is what was logged: {number(mean, reading.logged[1])}."
    )
    return join(
        [
            el(
                "p", lead, " Strong: the estimator that the answer uses. An arrow: the interval goes on.", class_="lead"
            ),
            _forest(reading, rows, reading.primary, reference, "Estimates of every target", plus=reading.is_difference),
            _left_out(len(result.targets), TARGETS_LISTED, "targets"),
        ]
    )


def lift(reading: Reading) -> Safe:
    """Forest plot of the lifts over the logging policy."""
    if not reading.lifts or reading.primary == "lift":
        return Safe("")
    rows = {target: [one] for target, one in list(reading.lifts.items())[:TARGETS_LISTED]}
    return join(
        [
            el(
                "p",
                "How much more per row than the policy that wrote the log (",
                term("lift"),
                "). Right of the dashed line is better than what ran; an interval across the line shows no difference.",
                class_="lead",
            ),
            _forest(reading, rows, "lift", 0.0, "Lift of every target", plus=True),
        ]
    )


def _forest(
    reading: Reading, rows: Mapping[str, list[Estimate]], primary: str, reference: float, caption: str, *, plus: bool
) -> Safe:
    level, verdicts = reading.result.level, {target: reading.result.verdict(target).verdict for target in rows}
    known = {target: listed for target, listed in rows.items() if reading.is_known(target)}
    axis = _forest_axis(known or rows, primary, reference)
    write = signed if plus else number
    single = all(len(listed) == 1 for listed in rows.values())
    bodies = []
    for target, listed in rows.items():
        doubt = "" if verdicts[target] == "ok" else _badge(verdicts[target])
        lines = [] if single else [el("tr", el("th", name_of(target), " ", doubt, scope="rowgroup", colspan=3))]
        for one in listed:
            kind = "primary" if one.name == primary else "other"
            label = join([name_of(target), " ", doubt]) if single else one.name
            low, high = one.interval
            span = el("span", f"{write(low, one.stderr)} to {write(high, one.stderr)}", class_="range")
            said = [write(one.value, one.stderr), " ", span] if one.identified else ["not identified"]
            lines.append(
                el(
                    "tr",
                    el("th", label, scope="row", title=None if single else ESTIMATOR_WORDS.get(one.name)),
                    el("td", strip(one.value, low, high, axis, reference, kind), class_="plot"),
                    el("td", *said, class_="number"),
                    class_=kind,
                )
            )
        bodies.append(el("tbody", *lines, class_="group"))
    columns = el(
        "tr",
        el("th", "Target" if single else "Estimator", scope="col"),
        el("th", "Plot", scope="col", class_="plot"),
        el("th", term("value"), f" and {level_of(level)} ", term("interval", "interval"), scope="col", class_="number"),
    )
    axis_row = el("tr", el("td"), el("td", strip_axis(axis), class_="plot"), el("td"))
    return el(
        "div",
        el(
            "table",
            el("caption", caption),
            el("thead", columns),
            *bodies,
            el("tfoot", axis_row, aria_hidden="true"),
            class_="forest",
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def _forest_axis(rows: Mapping[str, list[Estimate]], primary: str, reference: float) -> Axis:
    """Room for the primary estimates, and up to twice as much again on each side for others that are wider."""
    chosen = [one for listed in rows.values() for one in listed if one.name == primary]
    needed = [x for one in chosen for x in (one.value, *one.interval)]
    core = [x for x in (*needed, reference) if math.isfinite(x)]
    everything = [
        x for listed in rows.values() for one in listed for x in (one.value, *one.interval) if math.isfinite(x)
    ]
    if not core:
        return Axis.around(everything)
    spread = (max(core) - min(core)) or abs(max(core)) * 0.1 or 1.0
    low, high = min(core) - 2 * spread, max(core) + 2 * spread
    return Axis.around([*core, *(min(max(x, low), high) for x in everything)], margin=0.02)


def segments(reading: Reading) -> Safe:
    """A table of segments that sorts and filters."""
    result = reading.result
    keys = [key for key in result.verdicts if key[1] is not None]
    if not keys:
        return Safe("")
    keys.sort(key=lambda key: -result.estimates[key[0], reading.primary, key[1]].n)
    names = (*(("Target",) if len(result.targets) > 1 else ()), " / ".join(result.moments.segment_columns))
    heads = [(name_of(name, 40), False) for name in names] + [
        ("Rows", True),
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
    body = [_segment_row(reading, target, segment) for target, segment in keys[:SEGMENTS_LISTED]]
    words = sorted({result.verdicts[key].verdict for key in keys})
    controls = el(
        "div",
        el("label", "Filter", el("input", type="search", placeholder="words to find")),
        el("label", "Verdict", el("select", el("option", "all", value=""), *(el("option", w, value=w) for w in words))),
        el("output", aria_live="polite"),
        class_="controls",
        data_filters="segment-table",
        hidden=True,
    )
    lead = el(
        "p",
        f"Each {'/'.join(map(str, result.moments.segment_columns))[:100]} on its own, by {reading.primary}. ",
        "Press a heading to sort. With many ",
        term("segment", "segments"),
        " some differ by chance.",
        class_="lead",
    )
    table = el(
        "table",
        el("caption", f"{len(keys):,} rows, largest first"),
        el("thead", header),
        el("tbody", *body),
        class_="segments sortable",
        id="segment-table",
    )
    region = el("div", table, class_="scroll", tabindex=0, role="region", aria_label="Segments")
    return join([lead, controls, region, _left_out(len(keys), SEGMENTS_LISTED, "segments, the largest")])


def _segment_row(reading: Reading, target: str, segment: Segment) -> Safe:
    result = reading.result
    one = result.estimates[target, reading.primary, segment]
    verdict = result.verdicts[target, segment].verdict if reading.primary != "dm" else "model only"
    write = signed if reading.is_difference else number
    low, high = one.interval
    numbers = [
        (one.value, write(one.value, one.stderr)),
        (low, write(low, one.stderr)),
        (high, write(high, one.stderr)),
    ]
    if not reading.is_comparison:
        effective = result.all_diagnostics[target, segment].effective_sample_size
        numbers.append((effective, f"{effective:,.0f}"))
    label = " / ".join("(missing)" if value is None else str(value) for value in segment or ())
    return el(
        "tr",
        el("td", name_of(target)) if len(result.targets) > 1 else "",
        el("th", name_of(label), scope="row"),
        el("td", f"{one.n:,}", class_="number", data_value=one.n),
        *(el("td", said, class_="number", data_value=f"{value:.9g}") for value, said in numbers),
        el("td", _badge(verdict)),
        data_verdict=verdict,
    )


def weights(reading: Reading, profiles: Mapping[str, Profile]) -> Safe:
    """Diagnostics of the weights, their tail, and how much of all weight the largest carry."""
    result = reading.result
    targets = [target for target in result.moments.targets if (target, None) in result.all_diagnostics]
    parts = [_diagnostics(reading, targets[:TARGETS_LISTED]), _left_out(len(targets), TARGETS_LISTED, "targets")]
    for target in targets[:TARGETS_DRAWN]:
        tail = sum(result.moments.tails.get((target, ""), ()), EMPTY)
        figures = [*_weight_figures(target, tail, result.diagnostics(target).n, result.diagnostics(target).mean_weight)]
        if target in profiles:
            figures.append(_histogram(target, profiles[target], tail.zeros))
        if any(figures):
            parts += [el("h3", "Weights of ", name_of(target)), el("div", *figures, class_="figures")]
    parts.append(_left_out(len(targets), TARGETS_DRAWN, "targets' plots"))
    return join(parts)


def _diagnostics(reading: Reading, targets: list[str]) -> Safe:
    result = reading.result
    keys = [
        ("n", "Rows"),
        ("effective_sample_size", "Effective sample"),
        ("mean_weight", "Mean weight"),
        ("mean_weight_p", "its p"),
        ("max_weight", "Largest"),
        ("top_share", "Top share"),
        ("pareto_k", "Pareto k"),
        ("zero_weight_share", "Weight 0"),
    ]
    rows = []
    for target in targets:
        found = result.diagnostics(target)
        said = [
            f"{found.n:,}",
            f"{found.effective_sample_size if found.has_overlap else 0:,.0f}",
            number(found.mean_weight if found.has_overlap else 0.0, found.mean_weight_stderr),
            f"{found.mean_weight_p:.2g}",
            number(found.max_weight),
            f"{percent(found.top_share)} in {found.top_rows:,}",
            number(found.pareto_k, 0.1),
            percent(found.zero_weight_share),
        ]
        rows.append(el("tr", el("th", name_of(target), scope="row"), *(el("td", x, class_="number") for x in said)))
    header = [el("th", term("target"), scope="col")]
    header += [el("th", term(key, words), scope="col", class_="number") for key, words in keys]
    table = el("table", el("caption", "Checks of the weights"), el("thead", el("tr", *header)), el("tbody", *rows))
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label="Checks of the weights")


def _weight_figures(target: str, tail: Tail, n: int, mean: float) -> list[Safe]:
    weights = tail.weights[tail.weights > 0]
    if not len(weights) or n < 2:
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
            f"{percent(len(weights) / n)} of the rows have at least {number(float(weights[-1]))}.",
            x_label="weight",
            y_label="share of rows with at least this weight",
        ),
        el(
            "figcaption",
            f"Tail of the weights ({kept}, both scales logarithmic). A steep fall is good; a straight, "
            "slow one says that larger weights are still to come. Dashed: a weight of 1.",
        ),
    )
    carried = np.cumsum(weights) / max(n * mean, 1e-300)
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
            says=f"Where the estimate of {target} comes from: the {len(weights):,} rows with the largest weights, "
            f"{percent(edge)} of the log, carry {percent(curve[-1][1])} of all weight.",
            x_label="% of the rows, heaviest first",
            y_label="% of all weight",
        ),
        el(
            "figcaption",
            f"Where the estimate comes from: {percent(edge)} of the rows carry {percent(curve[-1][1])} of all "
            "weight. Dashed: if all rows counted the same.",
        ),
    )
    return [first, second]


def _histogram(target: str, found: Profile, zeros: int) -> Safe:
    filled = np.flatnonzero(found.counts)
    total = found.counts.sum() + zeros
    if not len(filled):
        return Safe("")
    first, last = int(filled[0]), int(filled[-1]) + 1
    shares = 100 * found.counts / total
    bars = [(float(EDGES[k]), float(EDGES[k + 1]), float(shares[k])) for k in range(first, last)]
    return el(
        "figure",
        chart(
            Axis(float(EDGES[first]) / 1.1, float(EDGES[last]) * 1.1, True),
            Axis(0.0, 1.05 * float(shares.max())),
            [Bars(bars), Mark(1.0, upright=True)],
            says=f"Histogram of the weights of {target}, from {number(float(EDGES[first]))} to {number(float(EDGES[last]))}; "
            f"{percent(zeros / total)} of the rows have weight 0.",
            x_label="weight (logarithmic)",
            y_label="% of the rows",
        ),
        el(
            "figcaption",
            f"All weights above 0; {percent(zeros / total)} of the rows have weight 0. Dashed: a weight of 1.",
        ),
    )


def convergence(reading: Reading, profiles: Mapping[str, Profile]) -> Safe:
    """The estimate after more and more rows."""
    figures = [_converging(target, one.steps, reading.result.n) for target, one in profiles.items()]
    figures = [figure for figure in figures if figure]
    if not figures:
        return Safe("")
    level = level_of(reading.result.level)
    lead = f"beta_ips after the first rows of the log, after more, up to all, with {level} intervals that take rows to be independent. "
    return join(
        [el("p", lead, term("convergence", "What to look for."), class_="lead"), el("div", *figures, class_="figures")]
    )


def _converging(target: str, steps: list[Estimate], n: int) -> Safe:
    known = [one for one in steps if one.identified and math.isfinite(one.stderr)]
    if not known:
        return Safe("")
    late = [one for one in known if one.n >= known[-1].n / 10] or known
    y = Axis.around([x for one in late for x in (one.value, *one.interval)])
    last = known[-1]
    note = (
        f" The log given for this plot has {steps[-1].n:,} usable rows, the estimates rest on {n:,}."
        if steps[-1].n != n
        else ""
    )
    return el(
        "figure",
        chart(
            Axis(0.0, float(last.n)),
            y,
            [
                Band([(float(one.n), *one.interval) for one in known]),
                Mark(last.value),
                Line([(float(one.n), one.value) for one in known]),
            ],
            says=f"Estimate of {target} by rows read: {number(known[0].value, known[0].stderr)} after {known[0].n:,} rows, "
            f"{number(last.value, last.stderr)} after {last.n:,}.",
            x_label="rows read",
            y_label="value per row",
        ),
        el("figcaption", name_of(target), ".", note),
    )


def words(reading: Reading) -> Safe:
    """The glossary."""
    names = list(dict.fromkeys(name for _, name, _ in reading.result.estimates))
    names += ["lift"] if reading.lifts and "lift" not in names else []
    return join(
        [
            el("p", "What every number here means. Press a term to open it.", class_="lead"),
            glossary(names, reading.result.method),
        ]
    )


def reproduce(reading: Reading, command: str | None, version: str) -> Safe:
    """The command, the version and the fingerprint of the data."""
    result, log = reading.result, reading.result.moments
    facts: list[tuple[object, object]] = [
        ("Version", f"counterpoise {version}"),
        (term("n"), f"{result.n:,}"),
        (term("dropped"), f"{result.dropped_rows:,}"),
        ("Targets", join([join([", " if k else "", name_of(target)]) for k, target in enumerate(log.targets[:50])])),
        ("Segments by", join([name_of(" / ".join(log.segment_columns))]) if log.segment_columns else "none"),
        (term("cluster"), name_of(log.cluster) if log.cluster else "none: rows are taken to be independent"),
        ("Intervals", f"{result.method}, level {level_of(result.level)}"),
        (term("fingerprint"), el("code", fingerprint(result))),
    ]
    shown = [el("dl", *(join([el("dt", name), el("dd", value)]) for name, value in facts), class_="facts")]
    if command:
        shown.insert(0, el("pre", el("code", el("bdi", command[:5000])), tabindex=0, aria_label="Command"))
    return join(shown)


def _left_out(count: int, limit: int, what: str) -> Safe:
    if count <= limit:
        return Safe("")
    return el(
        "p", f"Of {count:,}, the first {limit:,} {what} are shown here; the result itself has them all.", class_="note"
    )
