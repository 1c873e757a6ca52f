"""`counterpoise evaluate`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import counterpoise as cp
from counterpoise.cli.options import ANSWER, INTERVALS, LISTS, MODELS, QUESTION, VALUES, takes
from counterpoise.cli.printing import answer, console, coverage, each_reward, estimates, ladder, print_json
from counterpoise.cli.running import check_free, ends_at_once
from counterpoise.cli.typed import Typed
from counterpoise.log.log import without_password

if TYPE_CHECKING:
    from counterpoise.evaluation.coverage import CoverageCheck
    from counterpoise.evaluation.result import Result


@ends_at_once
@takes(QUESTION, ANSWER, MODELS, LISTS, INTERVALS, VALUES)
def evaluate(
    typed: Typed,
    *,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report for others to read, one HTML file.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keeps the sums: this log is added to it, the answer is about all."),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Key of this log in --state, such as its day; files may go without."),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Put this log in the place of what its batch or files had added to --state."),
    ] = False,
) -> None:
    """What target policies would have earned on a log, how sure that is, and whether to believe it.

    Exit code 0: done; 1: not identified, with --strict; 2: bad input.

    \b
    Examples:
      counterpoise evaluate log.parquet --reward click --propensity p --target pi_new
      counterpoise evaluate log.parquet --target pi_new --target pi_old --segment country --cluster user_id --html report.html
      counterpoise evaluate log.parquet --reward click --reward revenue --target pi_new
      counterpoise evaluate day1.parquet day2.parquet --target "half=pi_new / 2" --target-action greedy=item_new --action item
      counterpoise evaluate log.parquet --target policy.safetensors --context age --context income --action item
      counterpoise evaluate log.parquet --target-action item_new --action item --context age --context country --model auto
      counterpoise evaluate log.parquet --target pi_new --weight clip:slope
      counterpoise evaluate log.csv --where "country = 'DE'" --json
    """
    from counterpoise.evaluation import documents
    from counterpoise.evaluation.sensitivity import with_tipping_points

    if html is not None:
        check_free(html, such_as="report.html")
    result = cp.evaluate(typed.data, **typed.question(), state=state, batch=batch, replace=replace)
    checks = checks_of(typed, result)
    result = with_tipping_points(result) if typed["sensitivity"] else result
    if typed["json"]:

        def document(single: Result) -> dict[str, Any]:
            return documents.evaluation(single) | (documents.coverage(checks[single.reward]) if checks else {})

        print_json(documents.of_rewards(result, document))
    else:
        out = console()
        for single in each_reward(out, result):
            answer(out, single)
            estimates(out, single)
            ladder(out, single)
            coverage(out, checks.get(single.reward))
    if html is not None:
        command = shlex.join(["counterpoise", *map(without_password, sys.argv[1:])])
        result.report(html, command=command, coverage=list(checks.values()))
        print(f"Report: {html}", file=sys.stderr if typed["json"] else sys.stdout)
    if typed["strict"] and is_unidentified(result):
        raise typer.Exit(1)


def checks_of(typed: Typed, result: Result) -> dict[str | None, CoverageCheck]:
    """The check of coverage of every reward, by its name; none without `--check-coverage`."""
    if not typed["check_coverage"]:
        return {}
    return {name: answer.check_coverage(typed["coverage_runs"]) for name, answer in result.by_reward.items()}


def is_unidentified(result: Result) -> bool:
    """Whether the log says nothing about one of the targets; segments are too many and too small to count."""
    verdicts = (pair for answer in result.by_reward.values() for pair in answer.verdicts.items())
    whole = (verdict for (_, segment), verdict in verdicts if segment is None)
    return any(verdict.verdict == "not identified" for verdict in whole)
