"""An answer in a notebook: its sentences, verdicts and tables, legible on a light or dark background."""

from __future__ import annotations

from collections.abc import Iterator

from counterpoise.display import Block, Display, Judged, Phrase, Pointer, Table, counted
from counterpoise.report.markup import Safe, el, join, phrase

ROWS = 10
SIGNS = {"ok": "✓", "caution": "▲", "not identified": "✕", "model only": "◇", "fix": "✕", "look": "▲", "note": "◇"}

# The notebook chooses the background and the text color, so the card leaves both alone; only the badges bring their own.
CARD = (
    "border:1px solid rgba(128,128,128,.45);border-radius:8px;padding:14px 18px;margin:4px 0;max-width:60em;"
    "font-family:system-ui,'Segoe UI','DejaVu Sans',sans-serif;font-size:14px;line-height:1.45"
)
ANSWER = "font-size:17px;line-height:1.4;margin:0 0 10px;overflow-wrap:anywhere"
QUIET = "font-size:12px;opacity:.8;margin:8px 0 0"
LINE = "margin:0 0 6px;overflow-wrap:anywhere"
BADGE = (
    "display:inline-block;color:#fff;border-radius:10px;padding:1px 9px;margin-right:6px;font-size:12px;font-weight:600"
)
PAPER = {"✓": "#1a7340", "▲": "#8a5300", "✕": "#a32020", "◇": "#57606a"}
TABLE = "border-collapse:collapse;margin:10px 0;font-size:13px;font-variant-numeric:tabular-nums"
CELL = "padding:3px 10px;border:0;border-bottom:1px solid rgba(128,128,128,.3);background:none;"


def card(answer: Display) -> Safe:
    """What a notebook shows of an answer.

    >>> from counterpoise import evaluate
    >>> made = card(evaluate(reward=[1, 0, 1], propensity=[0.5] * 3, target={"<b>": [0.0] * 3}))
    >>> made[:5], "cannot tell how <bdi>&lt;b&gt;</bdi> compares with the logging policy" in made
    ('<div ', True)
    """
    return el("div", *(part for block in answer.blocks(rows=ROWS) for part in _block(block)), style=CARD)


def _block(block: Block) -> Iterator[Safe]:
    if isinstance(block, Table):
        yield table_card(block)
    elif isinstance(block, Judged):
        sign = SIGNS[block.word]
        badge = el("span", f"{sign} {block.word}", style=f"{BADGE};background:{PAPER[sign]}")
        said = [" ".join(block.reasons)] if block.reasons else []
        yield el("p", badge, el("b", el("bdi", block.what)), *said, style=LINE)
    elif isinstance(block, Phrase):
        yield el("p", phrase(block), style=QUIET if block.is_quiet else ANSWER)
    elif block:
        yield el("p", str(block), style=QUIET if isinstance(block, Pointer) else LINE)


def table_card(table: Table) -> Safe:
    """A table as a notebook shows it."""
    styles = [
        f"{CELL}text-align:{'right' if table.is_number(name) else 'left'};white-space:nowrap" for name in table.columns
    ]
    head = el(
        "tr", *(el("th", title, scope="col", style=style) for title, style in zip(table.headings, styles, strict=True))
    )
    body = [
        el(
            "tr",
            *(
                el("td", el("bdi", text), style=("font-weight:600;" if k in table.strong else "") + style)
                for text, style in zip(row, styles, strict=True)
            ),
        )
        for k, row in enumerate(table.cells())
    ]
    made = el("table", el("thead", head), el("tbody", *body), style=TABLE)
    more = counted(table.left_out, "more row")
    note = el("p", f"… and {more}; see ", el("code", ".table()"), style=QUIET) if table.left_out else ""
    return join([el("div", made, style="overflow-x:auto", tabindex=0), note])
