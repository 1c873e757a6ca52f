"""What commands print: tables that fit, numbers that line up, bars and colors on a terminal only.

Rich is imported where it is used, and no earlier: nothing of it is needed for `--help`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from counterpoise.cli.wording import has_option, written
from counterpoise.display import (
    Block,
    Cell,
    Display,
    Judged,
    Number,
    Percent,
    Pointer,
    Table,
    as_text,
    breakable,
    cell_value,
    visible,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

COLORS = {"ok": "green", "caution": "yellow", "not identified": "red", "fix": "red", "look": "yellow", "note": ""}
BAR = 24  # columns of an interval's bar
WIDE = 110  # columns from which there is room for bars
MORE = {
    "all": "Every segment and estimator: --all.",
    "html": "A page for others: --html report.html.",
    "json": "For programs: --json.",
}
ENDLESS = 1_000_000  # columns of a pipe or file, where nothing has to fit


def console(*, stderr: bool = False) -> Console:
    """Standard output, without escape sequences if it is not a terminal or NO_COLOR is set."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    plain = not stream.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return Console(
        file=stream,
        width=None if stream.isatty() else ENDLESS,
        color_system=None if plain else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


def show(typed: Mapping[str, object], answer: Display) -> None:
    """An answer as the command line prints it: its document, or everything that it shows of itself."""
    if typed["json"]:
        print_json(answer.document())
    else:
        show_blocks(console(), answer.blocks(rows=None))


def show_blocks(out: Console, blocks: Iterable[Block]) -> None:
    """Sentences wrapped to a terminal, verdicts in their colors, and tables with a bar for every interval where there is room."""
    for block in blocks:
        if isinstance(block, Table):
            show_table(out, block)
        elif isinstance(block, Judged):
            _say_verdict(out, block)
        elif isinstance(block, Pointer):
            say(out, "  ".join(said for name, said in MORE.items() if has_option(name)))
        else:
            say(out, breakable(written(block)) if isinstance(block, str) else breakable(str(block)))


def show_table(out: Console, table: Table) -> None:
    """Print a table: text to the left, numbers to the right; cells may come from the log.

    It is wrapped to a terminal, and kept whole in a pipe, so that no digit is lost.
    """
    from rich.table import Table as Grid
    from rich.text import Text

    bars = _bars(table) if out.is_terminal and out.width >= WIDE else []
    grid = Grid(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name, title in zip(table.columns, table.headings, strict=True):
        is_number = table.is_number(name)
        grid.add_column(title, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    if bars:
        grid.add_column("")
    for k, row in enumerate(table.cells(limit=None)):
        grid.add_row(*(Text(visible(breakable(cell))) for cell in [*row, *bars[k : k + 1]]))
    if out.is_terminal:
        out.print(grid)
        return
    with out.capture() as captured:
        out.print(grid)
    out.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _bars(table: Table) -> list[str]:
    """An interval for every row, on one scale; none for a difference among values, nor where there are no intervals."""
    middle = next((name for name in ("change", "value") if name in table.columns), "")
    if not table.rows or not {middle, "lower", "upper"} <= set(table.rows[0]):
        return []
    rows = [(row["lower"], row[middle], row["upper"]) for row in table.rows]
    kinds = [_kind(value) for _, value, _ in rows]
    values = [[cell_value(cell) for cell in row] for row in rows]
    numbers = [[float(x) if isinstance(x, int | float) else math.nan for x in row] for row in values]
    drawn = [kind == min(kinds) for kind in kinds]
    finite = [x for row, is_drawn in zip(numbers, drawn, strict=True) if is_drawn for x in row if math.isfinite(x)]
    ends = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return [bar(row, *ends) if is_drawn else "" for row, is_drawn in zip(numbers, drawn, strict=True)]


def _kind(cell: Cell) -> int:
    """What a number is, of which kinds only the first in a table shares a scale: a value, a change in percent, a difference, nothing."""
    if isinstance(cell, Number):
        return 2 if cell.is_signed else 0
    return 1 if isinstance(cell, Percent) else 3


def print_json(document: object) -> None:
    """Print a document, or a record as one."""
    print(as_text(document))


def bar(interval: Sequence[float], lowest: float, highest: float) -> str:
    """A lower end, a value and an upper end, drawn between the lowest and highest ends of all.

    >>> bar([0.0, 0.5, 1.0], 0.0, 2.0)
    '├─────●─────┤           '
    """
    if not all(map(math.isfinite, (*interval, lowest, highest))) or highest <= lowest:
        return ""
    first, at, last = (round((x - lowest) / (highest - lowest) * (BAR - 1)) for x in interval)
    drawn = [" "] * BAR
    drawn[first : last + 1] = "─" * (last + 1 - first)
    drawn[first], drawn[last] = "├", "┤"
    drawn[min(max(at, 0), BAR - 1)] = "●"
    return "".join(drawn)


def say(out: Console, sentence: str | Text = "", *, indent: int = 0) -> None:
    """Print a sentence: wrapped to a terminal, one whole line elsewhere."""
    from rich.padding import Padding
    from rich.text import Text

    text = Text(visible(sentence)) if isinstance(sentence, str) else sentence
    if out.is_terminal:
        out.print(Padding(text, (0, 0, 0, indent), expand=False) if indent else text)
    else:
        out.print(Text(" " * indent) + text, soft_wrap=True)


def _say_verdict(out: Console, judged: Judged) -> None:
    """A verdict in its color, and its reasons: below it, or beside it in a numbered list."""
    from rich.text import Text

    line = Text.assemble(visible(judged.what), (judged.word, COLORS[judged.word]))
    reasons = [written(reason) for reason in judged.reasons]
    if judged.is_listed:
        line.append(f": {visible(' '.join(reasons))}")
    say(out, line)
    for reason in () if judged.is_listed else reasons:
        say(out, reason, indent=2)
