"""`counterpoise evaluate` and `counterpoise compare`: what policies would have earned, alone and against each other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

import counterpoise as cp
from counterpoise.cli.options import ANSWER, TARGETS, Title, Typed, answer_option, output_option, takes, target_option
from counterpoise.cli.printing import console, print_json, say, show_blocks
from counterpoise.cli.running import check_free, ends_at_once
from counterpoise.cli.settings import check_title, command_line
from counterpoise.display import ROWS, Display, counted, visible
from counterpoise.errors import OptionError
from counterpoise.log.question import LOGGING
from counterpoise.moments.state import unseen
from counterpoise.readers.progress import progress_line

if TYPE_CHECKING:
    from counterpoise.evaluation.coverage import CoverageCheck
    from counterpoise.evaluation.result import Comparison, Result

AnyResult = TypeVar("AnyResult", bound="Result")


@ends_at_once
@takes(*TARGETS, *ANSWER, "estimator", "max_weight", verb="evaluate")
def evaluate(
    typed: Typed,
    *,
    html: Annotated[
        Path | None, output_option(metavar="FILE", help="Write a report for others to read, one HTML file.")
    ] = None,
    title: Title = None,
) -> None:
    """What target policies would have earned on a log, how sure that is, and whether to believe it.

    Exit code 0: done; 1: not identified, with --strict; 2: bad input; 4: --state has this log already.

    \b
    Examples:
      counterpoise evaluate log.parquet --target pi_new
      counterpoise evaluate log.parquet --target pi_new --segment country \\
        --html report.html
      counterpoise evaluate log.parquet --reward click --reward revenue \\
        --propensity p --target pi_new --target pi_old --cluster user_id
      counterpoise evaluate day1.parquet day2.parquet --target "half=pi_new / 2"
      counterpoise evaluate log.parquet --target policy.safetensors
      counterpoise evaluate log.parquet --target-action greedy=item_new \\
        --action item --context age --context country --model auto
      counterpoise evaluate log.parquet --target pi_new --weight clip:slope
      counterpoise evaluate log.csv --where "country = 'DE'" --json
    """
    check_title(html, title)
    if html is not None:
        check_free(html, such_as="report.html")
    result = _answer(cp.evaluate, typed, typed.question())
    checks = _checks(typed, result)
    result = _with_tipping_points(typed, result)
    show_result(typed, result, lambda answer: list(filter(None, [checks.get(answer.reward)])))
    if html is not None:
        with progress_line(None, "writing the report"):
            result.report(html, command=command_line(), coverage=list(checks.values()), title=title)
        print(f"Report: {html}", file=sys.stderr if typed["json"] else sys.stdout)
    typed.mention()
    _exit(typed, result)


@ends_at_once
@takes(*TARGETS, *ANSWER, verb="compare")
def compare(
    typed: Typed,
    *,
    against: Annotated[
        str,
        target_option(
            metavar="[NAME=]EXPRESSION",
            help="The other policy: the name of a target, whatever --target takes, or logging for the logging policy.",
        ),
    ] = LOGGING,
    rows: Annotated[
        int,
        answer_option(
            metavar="N", help="Show the N rows that drive the best target's difference (reads the log again)."
        ),
    ] = 0,
) -> None:
    """How much more policies would have earned than another, ranked, and which segments drive the difference.

    With several targets, the intervals hold all at once, and Holm's test decides which targets are better or worse. Exit code 0: done;
    1: not identified, with --strict; 2: bad input.

    \b
    Examples:
      counterpoise compare log.parquet --target pi_new --against pi_old \\
        --segment country
      counterpoise compare log.parquet --target pi_new --rows 10
      counterpoise compare log.parquet --target pi_a --target pi_b \\
        --against logging
    """
    result = _answer(cp.compare, typed, typed.question(against=against))
    checks = _checks(typed, result)
    result = _with_tipping_points(typed, result)
    show_result(typed, result, lambda answer: list(filter(None, [checks.get(answer.reward), _heaviest(answer, rows)])))
    typed.mention()
    _exit(typed, result)


def _answer(verb: Callable[..., Result], typed: Typed, question: dict[str, Any]) -> Result:
    """The answer about a log, in the unit of its readers; with --only-new, about a state to which its new files were added one by one."""
    if not typed["only_new"]:
        result = verb(typed.data, **question)
        return result if typed["unit"] is None else result.with_unit(typed["unit"])
    for name in ("batch", "replace"):
        if typed[name]:
            raise OptionError(f"`{name}=` is about one batch, and `only_new=True` adds a batch for every file.")
    if typed["state"] is None:
        raise OptionError("`only_new=True` needs a state that knows which files are old.", do="Pass `state=`, too.")
    from counterpoise.readers.batches import new_files

    files = new_files(typed["state"], typed.data)
    for k, file in enumerate(files, start=1):
        with unseen(k < len(files)):
            result = verb(str(file), **question)
    said = f"Added {counted(len(files), 'file')}." if files else "No new files: everything is in the state already."
    say(console(stderr=True), said)
    if not files:
        result = verb(state=typed["state"], level=question["level"], interval=question["interval"])
    return result if typed["unit"] is None else result.with_unit(typed["unit"])


def show_result(typed: Typed, result: Result, extras: Callable[[Any], list[Display]] = lambda answer: []) -> None:
    """The answer about every reward, under its name if there are several, and what else a command has to show."""
    if typed["json"]:

        def numbers(answer: Any) -> dict[str, Any]:
            return {name: part for extra in extras(answer) for name, part in extra.document().items()}

        print_json(result.document(numbers))
        return
    from rich.text import Text

    out = console()
    for k, (name, answer) in enumerate(result.by_reward.items()):
        if result.others:
            say(out, Text(f"{chr(10) if k else ''}Reward: {visible(str(name))}", style="bold"))
        show_blocks(out, answer.blocks(rows=None if typed["all"] else ROWS))
        for extra in extras(answer):
            say(out)
            show_blocks(out, extra.blocks(rows=None))


def _checks(typed: Typed, result: Result) -> dict[str | None, CoverageCheck]:
    """The check of coverage of every reward, by its name; none without `--check-coverage`."""
    if not typed["check_coverage"]:
        return {}
    return {name: answer.check_coverage(typed["coverage_runs"]) for name, answer in result.by_reward.items()}


def _with_tipping_points(typed: Typed, result: AnyResult) -> AnyResult:
    """The answer, which also says how wrong propensities must be for it to flip if `--sensitivity` asks for that."""
    if not typed["sensitivity"]:
        return result
    with progress_line(None, "finding how wrong propensities must be"):
        return result.with_tipping_points()


def _exit(typed: Typed, result: Result) -> None:
    """Exit 1, if that was wanted, where the log says nothing about one of the targets; segments are too many and too small to count."""
    verdicts = (pair for answer in result.by_reward.values() for pair in answer.verdicts.items())
    overall = (verdict for (_, segment), verdict in verdicts if segment is None)
    if typed["strict"] and any(verdict.verdict == "not identified" for verdict in overall):
        raise typer.Exit(1)


def _heaviest(result: Comparison, rows: int) -> Display | None:
    """The rows that drive the difference of the best target; None if nobody asked, or if the log has no rows to show."""
    is_of_lists = (
        result.question is not None and result.question.sequences is not None
    )  # of which no single row decides
    if rows == 0 or is_of_lists:
        return None
    judged = (policy for policy in cp.rank(result) if result.verdict(policy.target).verdict != "not identified")
    best = next((policy.target for policy in judged if policy.value == policy.value), None)
    if best is None:
        return None
    from counterpoise.evaluation.ranking import heaviest  # not before a log is given

    beta = float(result.estimates[best, "beta_ips", None].baseline)  # type: ignore[arg-type]
    return heaviest(result.asked(best), target=best, against=result.against, baseline=beta, count=rows)
