"""`counterpoise compare`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

import counterpoise as cp
from counterpoise.cli.coverage import checks_of, say_coverage
from counterpoise.cli.evaluate import is_unidentified
from counterpoise.cli.options import ANSWER, INTERVALS, LISTS, MODELS, QUESTION, takes
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
    json: bool,
    strict: bool,
    check_coverage: bool,
    coverage_runs: int,
    sensitivity: bool,
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
    from counterpoise.cli.printing import console, each_reward, ladder
    from counterpoise.evaluation.documents import as_text, of_rewards
    from counterpoise.evaluation.sensitivity import with_tipping_points

    result = cp.compare(typed.data, **typed.question(quiet=json, against=against))
    checks = checks_of(result, coverage_runs, wanted=check_coverage)
    result = with_tipping_points(result) if sensitivity else result
    if json:
        print(as_text(of_rewards(result, partial(_document, rows=rows, checks=checks))))
    else:
        out = console()
        for answer in each_reward(out, result):
            show_comparison(out, answer)
            ladder(out, answer)
            say_coverage(out, checks.get(answer.reward))
            if (top := _top(answer, rows)) is not None:
                _heaviest(out, *top)
    if strict and is_unidentified(result):
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
    from counterpoise.cli.printing import answer, say, verdicts
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
    from counterpoise.cli.printing import WIDE, add, bar, ends, number, show, table

    with_bars = out.is_terminal and out.width >= WIDE
    made = table("target", "difference ", "stderr ", "lower ", "upper ", "p ", "decision", *([""] if with_bars else []))
    lowest, highest = ends([row.interval for row in ranked])
    for row in ranked:
        numbers = [number(x, signed=True) for x in (row.value, row.interval.lower, row.interval.upper)]
        drawn = [bar(row.interval.lower, row.value, row.interval.upper, lowest, highest)] if with_bars else []
        add(
            made,
            row.target,
            numbers[0],
            number(row.stderr),
            *numbers[1:],
            p_value(row.p).removeprefix("= "),
            row.decision,
            *drawn,
        )
    show(out, made)


def _drivers(out: Console, target: str, parts: Sequence[Driver], unit: str) -> None:
    from counterpoise.cli.printing import add, number, say, show, table

    say(out)
    say(out, f"What drives the difference of {target}; the parts add up to it:")
    made = table("segment", f"{unit}s ", f"of {unit}s ", "part ", "stderr ")
    for part in parts[:SHOWN]:
        share = f"{100 * part.share_of_rows:.3g} %"
        add(made, segment_text(part.segment), f"{part.rows:,}", share, number(part.contribution, signed=True),
            number(part.stderr))  # fmt: skip
    rest = parts[SHOWN:]
    if rest:
        total = sum(part.contribution for part in rest)
        rows, of_rows = sum(part.rows for part in rest), 100 * sum(part.share_of_rows for part in rest)
        add(made, f"{len(rest):,} others", f"{rows:,}", f"{of_rows:.3g} %", number(total, signed=True), "")
    show(out, made)


def _heaviest(out: Console, target: str, top: Heaviest) -> None:
    from counterpoise.cli.printing import add, number, say, show, table

    say(out)
    say(
        out,
        f"The {top.top_rows:,} heaviest of {top.n:,} rows carry {top.top_share:.1%} of what moves the difference of {target}. "
        "The heaviest, numbered from 0:",
    )
    made = table("row ", "reward ", "propensity ", "weight ", "other weight ", "part ")
    for row in top.rows:
        numbers = [number(x) for x in (row.reward, row.propensity, row.weight, row.other_weight)]
        add(made, f"{row.row:,}", *numbers, number(row.part, signed=True))
    show(out, made)
