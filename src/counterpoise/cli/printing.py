"""What commands print: tables that fit, numbers that line up, bars and colors on a terminal only.

Rich is imported where it is used, and no earlier: nothing of it is needed for `--help`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from counterpoise.cli.wording import written
from counterpoise.diagnostics import WRONG_PROPENSITIES
from counterpoise.evaluation.result import WHOLE, segment_text
from counterpoise.evaluation.wording import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from counterpoise.diagnostics import Verdict
    from counterpoise.evaluation.coverage import CoverageCheck
    from counterpoise.evaluation.result import Result, Segment
    from counterpoise.intervals import Interval

R = TypeVar("R", bound="Result")

COLORS = {"ok": "green", "caution": "yellow", "not identified": "red"}
BAR = 24  # columns of an interval's bar
WIDE = 110  # columns from which there is room for bars
ENDLESS = 1_000_000  # columns of a pipe or file, where nothing has to fit


def console(*, stderr: bool = False) -> Console:
    """Standard output; without any escape sequence where it is no terminal or NO_COLOR is set."""
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


def number(value: float | None, *, signed: bool = False) -> str:
    """Five significant digits; an empty cell for what is unknown."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:+.5g}" if signed else f"{value:.5g}"


def show_table(out: Console, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: text to the left, numbers (headings that end in a blank) to the right; cells may come from the log.

    It is wrapped to a terminal, and whole where nobody looks, so that no digit is lost in a pipe.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings:
        is_number = heading.endswith(" ")
        table.add_column(heading.strip(), justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    out.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_json(document: Any) -> None:
    """Print a document, or a record as one."""
    from counterpoise.evaluation.documents import as_text

    print(as_text(document))


def bar(lower: float, value: float, upper: float, lowest: float, highest: float) -> str:
    """An interval drawn between the lowest and highest ends of all.

    >>> bar(0.0, 0.5, 1.0, 0.0, 2.0)
    '├─────●─────┤           '
    """
    if not all(map(math.isfinite, (lower, value, upper, lowest, highest))) or highest <= lowest:
        return ""
    first, at, last = (round((x - lowest) / (highest - lowest) * (BAR - 1)) for x in (lower, value, upper))
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


def say_verdict(out: Console, where: str, verdict: Verdict) -> None:
    """A verdict in its color, and its reasons."""
    from rich.text import Text

    say(out, Text.assemble(f"{visible(where)}: ", (verdict.verdict, COLORS[verdict.verdict])))
    for reason in verdict.reasons:
        say(out, written(reason), indent=2)


def each_reward(out: Console, result: R) -> Iterator[R]:
    """The result of every reward, under the reward's name where there are several."""
    from rich.text import Text

    for k, (name, answer) in enumerate(result.by_reward.items()):
        if result.others:
            say(out, Text(f"{chr(10) if k else ''}Reward: {visible(str(name))}", style="bold"))
        yield answer


def answer(out: Console, result: Result) -> None:
    """What the estimates rest on, and the answer in one sentence."""
    from counterpoise.evaluation.headline import Number, basis, headline
    from counterpoise.evaluation.reading import read

    reading = read(result)
    for parts in ([basis(reading)], headline(reading)):
        written = [number(x.value, signed=x.is_signed) if isinstance(x, Number) else str(x) for x in parts]
        say(out, "".join(written).replace("\N{NO-BREAK SPACE}", " "))
    say(out)


def estimates(out: Console, result: Result) -> None:
    """All estimates of a result, a bar each where there is room, and the verdicts."""
    has_segments = bool(result.moments.segment_columns)
    with_bars = out.is_terminal and out.width >= WIDE
    headings = ["target", *(["segment"] if has_segments else []), "estimator", "value ", "stderr ", "lower ", "upper "]
    rows = []
    lowest, highest = ends(
        [e.interval for (_, name, _), e in result.estimates.items() if not result.is_difference(name)]
    )
    for (target, name, segment), estimate in result.estimates.items():
        place = [WHOLE if segment is None else segment_text(segment)] if has_segments else []
        lower, upper = estimate.interval
        is_difference = result.is_difference(name)
        numbers = [number(x, signed=is_difference) for x in (estimate.value, estimate.stderr, lower, upper)]
        numbers[1] = numbers[1].removeprefix("+")
        drawn = ["" if is_difference else bar(lower, estimate.value, upper, lowest, highest)] if with_bars else []
        rows.append([target, *place, name, *numbers, *drawn])
    show_table(out, [*headings, *([""] if with_bars else [])], rows)
    say(out)
    verdicts(out, result)


def ladder(out: Console, result: Result) -> None:
    """The bias ladder of every target, where the log chose a weight's constant."""
    if not result.ladders:
        return
    rows = [
        [row["target"], row["weight"], row["estimator"]]
        + [number(row[name]) for name in ("value", "stderr", "lower", "upper")]
        + ["chosen" if row["chosen"] else ""]
        for rungs in result.ladders.values()
        for row in rungs.rows()
    ]
    say(out)
    say(out, "The bias ladder, from the unbiased weight to the most biased:")
    show_table(out, ["target", "weight", "estimator", "value ", "stderr ", "lower ", "upper ", ""], rows)


def coverage(out: Console, check: CoverageCheck | None) -> None:
    """How often intervals like these cover, a line for every target, if that was checked."""
    if check is not None:
        say(out)
        for covered in check.values():
            say(out, str(covered))


def verdicts(out: Console, result: Result) -> None:
    """The verdict of every target, and of the segments that are not ok."""
    for (target, segment), verdict in result.verdicts.items():
        if segment is None or verdict.verdict != "ok":
            say_verdict(out, place_of(target, segment), verdict)
    tested = {
        key: diagnostics.mean_weight_p for key, diagnostics in result.all_diagnostics.items() if diagnostics.mean_is_one
    }
    whole = [p for (_, segment), p in tested.items() if segment is None]
    parts = [p for (_, segment), p in tested.items() if segment is not None]
    # of many segments some have a small p-value by chance
    if parts and min(whole) >= WRONG_PROPENSITIES > min(parts) * len(parts):
        say(
            out,
            "Weights have mean 1 in the whole log but not in every segment: a segment must be known before the choice, such as a country. "
            "The action itself, or what came of it, makes right propensities look wrong.",
        )


def place_of(target: str, segment: Segment) -> str:
    """A target, or a target in a segment."""
    return target if segment is None else f"{target} in {segment_text(segment)}"


def ends(shown: Sequence[Interval]) -> tuple[float, float]:
    """The lowest and highest end of all."""
    finite = [x for interval in shown for x in interval if math.isfinite(x)]
    return (min(finite), max(finite)) if finite else (0.0, 0.0)
