"""A result in a notebook: the headline, the verdicts and a short table, legible on a light or dark background."""

from __future__ import annotations

from collections import Counter

from counterpoise.evaluation.headline import basis
from counterpoise.evaluation.reading import Reading, read
from counterpoise.evaluation.result import Result
from counterpoise.evaluation.showing import Key, cells, columns, important, other_rewards
from counterpoise.report.answer import SIGNS, answer
from counterpoise.report.markup import Safe, el, join, name_of

ROWS = 10
VERDICTS = 5
NUMBERS = {"value", "stderr", "lower", "upper"}

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
PAPER = {"ok": "#1a7340", "caution": "#8a5300", "not identified": "#a32020", "model only": "#57606a"}
TABLE = "border-collapse:collapse;margin:10px 0 0;font-size:13px;font-variant-numeric:tabular-nums"
CELL = "padding:3px 10px;border:0;border-bottom:1px solid rgba(128,128,128,.3);background:none;"


def card(result: Result) -> Safe:
    """What a notebook shows for a result.

    >>> from counterpoise import evaluate
    >>> made = card(evaluate(reward=[1, 0, 1], propensity=[0.5] * 3, target={"<b>": [0.0] * 3}))
    >>> made[:5], "cannot say what <bdi>&lt;b&gt;</bdi> would have earned" in made
    ('<div ', True)
    """
    reading = read(result)
    return el(
        "div",
        el("p", answer(reading), style=ANSWER),
        *_verdicts(reading),
        *_table(reading),
        el("p", " ".join([basis(reading), *other_rewards(result)]), style=QUIET),
        style=CARD,
    )


def _verdicts(reading: Reading) -> list[Safe]:
    targets = reading.foremost(len(reading.result.targets))
    verdicts = {target: reading.result.verdict(target) for target in targets}
    lines = [
        el(
            "p",
            _badge(verdict.verdict),
            el("b", name_of(target, 60)),
            ": " + " ".join(verdict.reasons) if verdict.reasons else "",
            style=LINE,
        )
        for target, verdict in list(verdicts.items())[:VERDICTS]
    ]
    rest = Counter(verdicts[target].verdict for target in targets[VERDICTS:])
    if rest:
        said = [
            join([_badge(word), f"{count:,} more target{'s' if count > 1 else ''} "]) for word, count in rest.items()
        ]
        lines.append(el("p", *said, style=LINE))
    return lines


def _badge(verdict: str) -> Safe:
    return el("span", f"{SIGNS[verdict]} {verdict}", style=f"{BADGE};background:{PAPER[verdict]}")


def _table(reading: Reading) -> list[Safe]:
    titles, shown = columns(reading), important(reading, ROWS)
    head = el("tr", *(el("th", title, scope="col", style=_cell(title)) for title in titles))
    is_mixed = len({key[1:] for key in shown}) > 1
    body = [_row(reading, titles, key, is_strong=is_mixed and _answers(reading, key)) for key in shown]
    table = el("table", el("thead", head), el("tbody", *body), style=TABLE)
    more = len(reading.result.estimates) - len(shown)
    note = el("p", f"… and {more:,} more row{'s' if more > 1 else ''}; see ", el("code", ".table()"), style=QUIET)
    return [el("div", table, style="overflow-x:auto", tabindex=0), *([note] if more else [])]


def _answers(reading: Reading, key: Key) -> bool:
    """Whether a row shows the estimator behind the headline, over the whole log."""
    return key[1] == reading.primary and key[2] is None


def _row(reading: Reading, titles: list[str], key: Key, *, is_strong: bool) -> Safe:
    strong = "font-weight:600;" if is_strong else ""
    written = zip(titles, cells(reading, key), strict=True)
    return el("tr", *(el("td", el("bdi", text), style=strong + _cell(title)) for title, text in written))


def _cell(title: str) -> str:
    return f"{CELL}text-align:{'right' if title in NUMBERS else 'left'};white-space:nowrap"
