"""`counterpoise compare`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

import counterpoise as cp
from counterpoise.cli.evaluate import checks_of, is_unidentified
from counterpoise.cli.options import ANSWER, INTERVALS, LISTS, MODELS, QUESTION, takes
from counterpoise.cli.printing import (
    WIDE,
    answer,
    bar,
    console,
    coverage,
    each_reward,
    ends,
    ladder,
    number,
    print_json,
    say,
    show_table,
    verdicts,
)
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.typed import Typed
from counterpoise.diagnostics import p_value
from counterpoise.evaluation.result import segment_text
from counterpoise.log.question import LOGGING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from counterpoise.evaluation.coverage import CoverageCheck
    from counterpoise.evaluation.heaviest import Heaviest
    from counterpoise.evaluation.ranking import Driver, Ranked
    from counterpoise.evaluation.result import Comparison

SHOWN = 10  # segments of each target; --json has all


@ends_at_once
@takes(QUESTION, ANSWER, MODELS, LISTS, INTERVALS)
def compare(
    typed: Typed,
    *,
    against: Annotated[
        str,
        typer.Option(
            metavar="[NAME=]EXPRESSION",
            help="The other policy: the name of a target, whatever --target takes, or logging, which wrote the log.",
        ),
    ] = LOGGING,
    rows: Annotated[
        int,
        typer.Option(
            metavar="N", help="Show the N rows that drive the best target's difference (reads the log again)."
        ),
    ] = 0,
) -> None:
    """How much more policies would have earned than another, ranked, and which segments drive the difference.

    With several targets the intervals hold all at once, and who is better or worse is decided by Holm's test. Exit code 0: done;
    1: not identified, with --strict; 2: bad input.

    \b
    Examples:
      counterpoise compare log.parquet --target pi_new --against pi_old --segment country
      counterpoise compare log.parquet --target pi_new --rows 10
      counterpoise compare log.parquet --target pi_a --target pi_b --target pi_c --against logging
    """
    from counterpoise.evaluation.documents import of_rewards
    from counterpoise.evaluation.sensitivity import with_tipping_points

    result = cp.compare(typed.data, **typed.question(against=against))
    checks = checks_of(typed, result)
    result = with_tipping_points(result) if typed["sensitivity"] else result
    if typed["json"]:
        print_json(of_rewards(result, partial(_document, rows=rows, checks=checks)))
    else:
        out = console()
        for single in each_reward(out, result):
            show_comparison(out, single)
            ladder(out, single)
            coverage(out, checks.get(single.reward))
            if (top := _top(single, rows)) is not None:
                _heaviest(out, *top)
    if typed["strict"] and is_unidentified(result):
        raise typer.Exit(1)


def document_of(result: Comparison) -> dict[str, Any]:
    """A comparison's document, with its ranking and what drives it."""
    from counterpoise.evaluation.documents import comparison
    from counterpoise.evaluation.ranking import drivers, rank

    ranked = rank(result)
    return comparison(result, ranked, {row.target: drivers(result, row.target) for row in ranked})


def _document(result: Comparison, *, rows: int, checks: Mapping[str | None, CoverageCheck]) -> dict[str, Any]:
    from counterpoise.evaluation.documents import coverage

    top = _top(result, rows)
    checked = coverage(checks[result.reward]) if checks else {}
    return document_of(result) | ({"heaviest": top[1]} if top else {}) | checked


def _top(result: Comparison, rows: int) -> tuple[str, Heaviest] | None:
    """The best target, and the rows that drive its difference; None where nobody wants them or the log knows none."""
    from counterpoise.evaluation.heaviest import heaviest
    from counterpoise.evaluation.ranking import rank

    is_of_lists = result.question is not None and result.question.lists is not None  # of which no single row decides
    best = _best(result, rank(result)) if rows > 0 and not is_of_lists else None
    if best is None:
        return None
    beta = float(result.estimates[best.target, "beta_ips", None].baseline)  # type: ignore[arg-type]
    rivals = {"target": best.target, "against": result.against}
    return best.target, heaviest(result.asked(best.target), **rivals, baseline=beta, count=rows)


def show_comparison(out: Console, result: Comparison) -> None:
    """The answer in one sentence, the ranking, what drives it and the verdicts."""
    from counterpoise.evaluation.ranking import drivers, rank

    ranked = rank(result)
    answer(out, result)
    if len(ranked) > 1:
        say(out, "These intervals hold for all targets at once:")
    _ranking(out, ranked)
    for row in ranked:
        if parts := drivers(result, row.target):
            _drivers(out, row.target, parts, result.moments.weight.unit)
    say(out)
    verdicts(out, result)


def _best(result: Comparison, ranked: Sequence[Ranked]) -> Ranked | None:
    """The first of the ranking about which the log says anything."""
    known = (row for row in ranked if result.verdict(row.target).verdict != "not identified" and row.value == row.value)
    return next(known, None)


def _ranking(out: Console, ranked: Sequence[Ranked]) -> None:
    with_bars = out.is_terminal and out.width >= WIDE
    lowest, highest = ends([row.interval for row in ranked])
    rows = []
    for row in ranked:
        lower, upper = row.interval
        value, low, high = (number(x, signed=True) for x in (row.value, lower, upper))
        drawn = [bar(lower, row.value, upper, lowest, highest)] if with_bars else []
        p = p_value(row.p).removeprefix("= ")
        rows.append([row.target, value, number(row.stderr), low, high, p, row.decision, *drawn])
    headings = ["target", "difference ", "stderr ", "lower ", "upper ", "p ", "decision", *([""] if with_bars else [])]
    show_table(out, headings, rows)


def _drivers(out: Console, target: str, parts: Sequence[Driver], unit: str) -> None:
    say(out)
    say(out, f"What drives the difference of {target}; the parts add up to it:")
    lines = [
        (segment_text(part.segment), part.rows, part.share_of_rows, part.contribution, number(part.stderr))
        for part in parts[:SHOWN]
    ]
    if rest := parts[SHOWN:]:
        sums = (sum(getattr(part, name) for part in rest) for name in ("rows", "share_of_rows", "contribution"))
        lines.append((f"{len(rest):,} others", *sums, ""))
    rows = [
        [name, f"{n:,}", f"{100 * share:.3g} %", number(total, signed=True), stderr]
        for name, n, share, total, stderr in lines
    ]
    show_table(out, ["segment", f"{unit}s ", f"of {unit}s ", "part ", "stderr "], rows)


def _heaviest(out: Console, target: str, top: Heaviest) -> None:
    say(out)
    say(
        out,
        f"The {top.top_rows:,} heaviest of {top.n:,} rows carry {top.top_share:.1%} of what moves the difference of {target}. "
        "The heaviest, numbered from 0:",
    )
    rows = [
        [
            f"{row.row:,}",
            *map(number, (row.reward, row.propensity, row.weight, row.other_weight)),
            number(row.part, signed=True),
        ]
        for row in top.rows
    ]
    show_table(out, ["row ", "reward ", "propensity ", "weight ", "other weight ", "part "], rows)
