"""The report's table of segments, which sorts and filters."""

from __future__ import annotations

from counterpoise.display import number, signed
from counterpoise.errors import in_units
from counterpoise.evaluation.reading import Reading
from counterpoise.evaluation.result import Segment, segment_text
from counterpoise.report.glossary import term
from counterpoise.report.markup import Safe, el, join, left_out, name_of
from counterpoise.report.tables import badge, scrolled

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
