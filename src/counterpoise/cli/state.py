"""`counterpoise state` and `watch`: what a stored state holds, its answer once more, and its days one by one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import counterpoise as cp
from counterpoise.cli.evaluate import show_result
from counterpoise.cli.options import TARGETS, Typed, answer_option, log_option, takes
from counterpoise.cli.printing import console, print_json, show_blocks
from counterpoise.cli.printing import show as show_answer
from counterpoise.cli.running import check_free, ends_at_once, without_traceback
from counterpoise.cli.settings import Command, command_line, from_file, reads_settings
from counterpoise.display import Block, Table, counted
from counterpoise.moments.state import State, existing, is_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from counterpoise.evaluation.result import Result

state = typer.Typer(
    name="state",
    help="Look into the file of --state.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)

SHOWN = 31  # batches; --json has all
FIRED = 3  # the exit code of an alert


@state.callback()
def _several() -> None:
    """Look into the file of --state."""  # with a single command Typer would leave its name out


@state.command(cls=Command)
@reads_settings
@without_traceback
@takes(
    "level",
    "interval",
    "reward_bounds",
    "minimize",
    "no_minimize",
    "tuned_for",
    "max_weight",
    "estimator",
    "unit",
    "all",
    "json",
)
def show(
    typed: Typed, *, file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that evaluate --state wrote.")]
) -> None:
    """Print the question of a state, its batches, and the answer about all of them.

    Only the state is read, and nothing is changed: use it when the output of a job got lost.

    \b
    Examples:
      counterpoise state show state.json
      counterpoise state show state.json --interval anytime --json
    """
    from counterpoise.evaluation import summaries  # not before a state is given

    stored = summaries.summarized(existing(file))
    how = typed.arguments()
    estimator = how.pop("estimator")
    if any(against for _, against in stored.question["contrasts"]):
        result: Result = cp.compare(state=file, **how)
    else:
        result = cp.evaluate(state=file, estimator=estimator, **how)
    result = result if typed["unit"] is None else result.with_unit(typed["unit"])
    if not typed["json"]:
        show_blocks(console(), _contents(file, stored, summaries.by_batch(stored, SHOWN)))
        show_result(typed, result)
        return
    batches = [
        {
            "batch": batch.key,
            "files": list(batch.files),
            "rows": batch.rows,
            "dropped_rows": batch.dropped,
            "replaceable": k >= stored.first_apart,
            "summaries": dict(batch.summaries),
        }
        for k, batch in enumerate(stored.batches)
    ]
    print_json({"question": stored.question, "looks": stored.looks, "batches": batches, "answer": result.document()})


def _contents(file: Path, stored: State, answers: Table) -> Iterator[Block]:
    """The question in words, and the last batches."""
    batches, recent = len(stored.batches), len(stored.recent)
    count = "1 batch" if batches == 1 else f"{batches:,} batches"
    which = ", which can" if batches == 1 else ", which can all" if recent == batches else f"; the last {recent:,} can"
    yield f"The state {str(file)!r} has {count}{which} still be replaced. {counted(stored.looks, 'look')} so far."
    said_already = (("groups", 1), ("contrasts", [[target, ""] for target in stored.question["target"]]))
    for part, value in stored.question.items():
        if value in (None, [], {}, False) or (part, value) in said_already:
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{name} = {each}" for name, each in value.items())
        elif isinstance(value, list):
            value = ", ".join(" − ".join(filter(None, each)) if isinstance(each, list) else each for each in value)
        yield f"  {part}: {value}"
    yield ""
    if len(stored.batches) > SHOWN:
        yield f"The last {SHOWN} of them (--json has all):"
    rows = []
    for batch in stored.batches[-SHOWN:]:
        first, more = next(iter(batch.files), ""), len(batch.files) - 1
        files = first + (f" and {more:,} more" if more > 0 else "")
        rows.append({"batch": batch.key, "rows": batch.rows, "dropped": batch.dropped, "file": files})
    yield Table(rows)
    yield ""
    if answers.rows:
        yield "Batch by batch, with standard errors:"
        yield answers
        yield ""


@ends_at_once
@takes(*TARGETS, "weight", "state", verb="evaluate", without=("groups", "max_segments"))
def watch(
    typed: Typed,
    *,
    day: Annotated[
        str | None, log_option(metavar="COLUMN", help="The day of every row, if the log is not one file a day.")
    ] = None,
    reference: Annotated[
        str, answer_option(metavar="DAYS", help="How many of the first days are quiet, or FIRST:LAST of them.")
    ] = "14",
    alert: Annotated[
        list[str] | None,
        answer_option(
            metavar="CONDITION",
            help="Exit 3 if this holds: changed, changed since DAY, or a comparison such as 'lift < 0' (which then the whole band is), "
            "'rows < 1000' or 'age > 2 days'. May be repeated.",
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        answer_option(
            metavar="DAY",
            help="The day of this check, today by default: it is not over, and days that should have come by then are missing.",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page for others to read, one HTML file.")
    ] = None,
) -> None:
    """A log day by day: values and lifts with bands that hold at all times, and alarms where something changed.

    LOG is a state that evaluate --state wrote, or a folder with a file for each day; with --state, only its new files are read. Exit
    code 0: done; 2: bad input; 3: an alert.

    \b
    Examples:
      counterpoise watch state.json --html watch.html
      counterpoise watch state.json --alert changed --alert "lift < 0"
      counterpoise watch logs/ --target pi_new --state state.json
      counterpoise watch log.parquet --target pi_new --day date --json
    """
    if html is not None:
        check_free(html, such_as="watch.html")
    if is_state(typed.data):
        # a state has its question; what the settings say of one is for logs
        said = {name for name in typed if name == "level" or name not in from_file()}
        question = {
            name: value
            for name, value in typed.arguments().items()
            if name in said and (name == "minimize" or value not in (None, False))
        }
        if chosen := question.pop("target_action", None):
            question["target"] = chosen
    else:
        question = typed.question()
    answer = cp.watch(typed.data, **question, day=day, reference=reference, alert=alert, as_of=as_of)
    show_answer(typed, answer)
    if html is not None:
        answer.report(html, command=command_line())
        print(f"Page: {html}", file=sys.stderr if typed["json"] else sys.stdout)
    if answer.fired:
        raise typer.Exit(FIRED)
