"""The report's sections on values and segments, its glossary, and how to reproduce it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from counterpoise.estimators import Estimate
from counterpoise.evaluation.reading import (
    TARGETS_DRAWN,
    TARGETS_LISTED,
    TARGETS_WITH_ALL_ESTIMATORS,
    Reading,
)
from counterpoise.evaluation.result import Result, Segment
from counterpoise.evaluation.wording import level_of, number, signed
from counterpoise.log.question import Question
from counterpoise.report.answer import SIGNS, answer
from counterpoise.report.axes import forest_axis
from counterpoise.report.fingerprint import fingerprint
from counterpoise.report.glossary import ESTIMATOR_WORDS, glossary, term
from counterpoise.report.markup import Safe, el, join, left_out, name_of
from counterpoise.report.plots import strip, strip_axis

SEGMENTS_LISTED = 1000


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
            class_=_class(verdict.verdict),
        )
        for target, verdict in verdicts.items()
    ]
    first, rest = listed[:TARGETS_DRAWN], list(verdicts.values())[TARGETS_DRAWN:]
    shown = [el("p", answer(reading), class_="answer"), el("ul", *first, class_="verdicts")]
    if rest:
        counts = Counter[str](verdict.verdict for verdict in rest)
        said = ", ".join(f"{counts[name]:,} {name}" for name in SIGNS if counts[name])
        folded = el("summary", f"The verdicts on {len(rest):,} more targets: {said}")
        shown.append(el("details", folded, el("ul", *listed[TARGETS_DRAWN:], class_="verdicts"), class_="entry"))
    shown.append(left_out(len(result.targets), TARGETS_LISTED, "targets", "highest estimates"))
    return join(shown)


def _badge(verdict: str) -> Safe:
    return el("span", SIGNS[verdict], " ", verdict, class_=f"badge {_class(verdict)}")


def _class(verdict: str) -> str:
    return "is-" + verdict.replace(" ", "-")


def estimates(reading: Reading) -> Safe:
    """A forest plot of all targets and estimators, which doubles as a table."""
    result = reading.result
    is_long = len(result.targets) > TARGETS_WITH_ALL_ESTIMATORS and len(reading.estimators) > 1
    names = (reading.primary,) if is_long else reading.estimators
    rows = {target: [result[target, name] for name in names] for target in reading.foremost(TARGETS_LISTED)}
    lead = (
        "How much more each target would have earned per row than the policy it is compared with. The dashed line marks no difference."
        if reading.is_difference
        else f"What each target would have earned per row. The dashed line marks what the log itself earned: {number(*reading.logged)}."
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
    if not reading.lifts or reading.primary == "lift":
        return Safe("")
    rows = {target: [reading.lifts[target]] for target in reading.foremost(TARGETS_LISTED, tuple(reading.lifts))}
    return join(
        [
            el(
                "p",
                "How much more each target would have earned per row than the policy that wrote the log (",
                term("lift"),
                "). To the right of the dashed line is better than that policy; an interval that crosses the line shows no clear "
                "difference.",
                " The intervals hold for all targets at once, so they are wider than each would be alone."
                if len(rows) > 1
                else "",
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
    shown = [one for listed in (known or rows).values() for one in listed]
    axis = forest_axis(shown, [one.name == primary for one in shown], reference)
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


def segments(reading: Reading) -> Safe:
    """A table of segments that sorts and filters."""
    result = reading.result
    keys = [key for key in result.verdicts if key[1] is not None]
    if not keys:
        return Safe("")
    every = len({segment for _, segment in keys})
    # every segment of as many targets as fit: a few segments of all targets would not help anybody
    targets = set(reading.foremost(max(1, SEGMENTS_LISTED // every)))
    shown = sorted(
        ((target, segment) for target, segment in keys if target in targets),
        key=lambda key: -result.estimates[key[0], reading.primary, key[1]].n,
    )[:SEGMENTS_LISTED]
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
    body = [_segment_row(reading, target, segment, len(names) > 1) for target, segment in shown]
    words = sorted({result.verdicts[key].verdict for key in shown})
    controls = el(
        "div",
        el("label", "Filter", el("input", type="search", placeholder="type to filter")),
        el("label", "Verdict", el("select", el("option", "all", value=""), *(el("option", w, value=w) for w in words))),
        el("output", aria_live="polite"),
        class_="controls",
        data_filters="segment-table",
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
        id="segment-table",
    )
    region = el("div", table, class_="scroll", tabindex=0, role="region", aria_label="Segments")
    count = len(result.targets)
    return join(
        [
            lead,
            controls,
            region,
            left_out(count, len(targets), "targets", "highest estimates"),
            left_out(every, SEGMENTS_LISTED, "segments", "most rows"),
        ]
    )


def _segment_row(reading: Reading, target: str, segment: Segment, with_target: bool) -> Safe:
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
        el("td", name_of(target)) if with_target else "",
        el("th", name_of(label), scope="row"),
        el("td", f"{one.n:,}", class_="number", data_value=one.n),
        *(el("td", said, class_="number", data_value=f"{value:.9g}") for value, said in numbers),
        el("td", _badge(verdict)),
        data_verdict=verdict,
    )


def words(reading: Reading) -> Safe:
    """The glossary."""
    names = list(dict.fromkeys(name for _, name, _ in reading.result.estimates))
    names += ["lift"] if reading.lifts and "lift" not in names else []
    return join(
        [
            el("p", "What every number on this page means. Click a term to open it.", class_="lead"),
            glossary(names, reading.result.interval_method),
        ]
    )


def _effective_clusters(result: Result) -> list[tuple[object, object]]:
    """How many clusters the rows are worth, which is the same for every target because all of them share the same rows."""
    found = next((one for (_, place), one in result.all_diagnostics.items() if place is None), None)
    if found is None or found.effective_clusters is None:
        return []
    return [(term("effective_clusters"), f"about {round(found.effective_clusters):,}")]


def _asked(question: Question | None) -> list[tuple[object, object]]:
    """Which columns and rows the question was about, if the result still knows."""
    if question is None:
        return []
    log = question.log
    parts = {"Reward": log.reward[0], "Propensity": log.propensity, "Condition": log.where}
    return [(part, el("code", name_of(column, 500))) for part, column in parts.items() if column is not None]


def _listed(names: Sequence[str], limit: int = 50) -> Safe:
    """The first names, and how many more there are."""
    shown = [join([", " if k else "", name_of(name)]) for k, name in enumerate(names[:limit])]
    return join([*shown, f" and {len(names) - limit:,} more" if len(names) > limit else ""])


def reproduce(reading: Reading, command: str | None, version: str) -> Safe:
    """The command, the version and the fingerprint of the data."""
    result, log = reading.result, reading.result.moments
    facts: list[tuple[object, object]] = [
        ("Version", f"counterpoise {version}"),
        (term("n"), f"{result.n:,}"),
        (term("dropped"), f"{result.dropped_rows:,}"),
        ("Targets", _listed(log.targets)),
        *_asked(result.question),
        ("Segments by", join([name_of(" / ".join(log.segment_columns))]) if log.segment_columns else "none"),
        (term("cluster"), name_of(log.cluster) if log.cluster else "none: rows are treated as independent"),
        *_effective_clusters(result),
        ("Intervals", f"{result.method}, level {level_of(result.level)}"),
        (term("fingerprint"), el("code", fingerprint(result))),
    ]
    shown = [el("dl", *(join([el("dt", name), el("dd", value)]) for name, value in facts), class_="facts")]
    if command:
        shown.insert(0, el("pre", el("code", el("bdi", command[:5000])), tabindex=0, aria_label="Command"))
    return join(shown)
