"""Tables of a page: plain ones, and forests, whose rows have a plot each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from counterpoise.display import Name, Table, cell_text, estimate_cells
from counterpoise.intervals import Interval
from counterpoise.report.card import SIGNS
from counterpoise.report.markup import Safe, el, name_of
from counterpoise.report.plots import Axis, strip, strip_axis

Group = tuple[object, Sequence["ForestRow"]]  # a name, or None for rows that stand alone, and its rows


@dataclass(frozen=True)
class ForestRow:
    """A row of a forest: a label, a value with its interval, what is said beside the plot, and further cells."""

    label: object
    value: float
    interval: Interval | tuple[float, float]
    said: Sequence[object]
    kind: str = "primary"
    title: str | None = None
    more: Sequence[object] = ()


def forest(
    groups: Sequence[Group],
    axis: Axis,
    reference: float,
    caption: object,
    heads: Sequence[object],
    *,
    label: str | None = None,
) -> Safe:
    """A plot that doubles as a table; `heads` are those of the labels, of what is said, and of further cells."""
    bodies, is_drawn = [], False
    for name, rows in groups:
        lines = [] if name is None else [el("tr", el("th", name, scope="rowgroup", colspan=3))]
        strips = [strip(row.value, tuple(row.interval), axis, reference, row.kind) for row in rows]
        is_drawn = is_drawn or any(strips)
        lines += [
            el(
                "tr",
                el("th", row.label, scope="row", title=row.title),
                el("td", drawn, class_="plot"),
                el("td", *row.said, class_="number"),
                *(el("td", cell) for cell in row.more),
                class_=row.kind,
            )
            for row, drawn in zip(rows, strips, strict=True)
        ]
        bodies.append(el("tbody", *lines, class_="group"))
    first, said, *more = heads
    columns = [el("th", first, scope="col"), el("th", "Plot", scope="col", class_="plot")]
    columns += [el("th", said, scope="col", class_="number"), *(el("th", head, scope="col") for head in more)]
    foot = [el("td"), el("td", strip_axis(axis), class_="plot"), *(el("td") for _ in heads[1:])]
    table = el(
        "table",
        el("caption", caption),
        el("thead", el("tr", *columns)),
        *bodies,
        el("tfoot", el("tr", *foot), aria_hidden="true") if is_drawn else "",
        class_="forest",
    )
    return scrolled(table, label or str(caption))


def estimate_text(
    value: float, error: float, interval: Sequence[float] | Interval, *, is_signed: bool = False
) -> list[object]:
    """A value and its interval, or bounds alone, to the digits of the error."""
    cells = estimate_cells(value, error, interval, is_signed=is_signed)
    span = el("span", f"{cells['lower']} to {cells['upper']}", class_="range")
    if not math.isnan(value):
        return [cells["value"], " ", span]
    return [span, " (bounds)"] if all(map(math.isfinite, interval)) else ["not identified"]


def page_table(table: Table, caption: str, titles: Mapping[str, Safe] | None = None) -> Safe:
    """A table of an answer; `titles` are headings that link to the glossary. Names head their rows."""
    kinds = ["number" if table.is_number(name) else None for name in table.columns]
    named = zip(table.columns, table.headings, strict=True)
    headings = [(titles or {}).get(name, heading[:1].upper() + heading[1:]) for name, heading in named]
    head = [el("th", title, scope="col", class_=kind) for title, kind in zip(headings, kinds, strict=True)]
    body = []
    for row in table.rows:
        cells = [
            el("th", name_of(cell.value), scope="row")
            if isinstance(cell, Name)
            else el("td", cell_text(cell, None), class_=kind)
            for cell, kind in zip((row[name] for name in table.columns), kinds, strict=True)
        ]
        body.append(el("tr", *cells))
    return scrolled(el("table", el("caption", caption), el("thead", el("tr", *head)), el("tbody", *body)), caption)


def scrolled(table: Safe, label: str) -> Safe:
    """A table that scrolls by itself where it is wider than the page."""
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def badge(verdict: str) -> Safe:
    """A verdict with its sign."""
    return el("span", SIGNS[verdict], " ", verdict, class_=f"badge {verdict_class(verdict)}")


def verdict_class(verdict: str) -> str:
    """The class of what a verdict is about."""
    return "is-" + verdict.replace(" ", "-")
