"""`counterpoise state`: what a stored state holds, and its answer once more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import counterpoise as cp
from counterpoise.cli.evaluate import show_result
from counterpoise.cli.options import Typed, takes
from counterpoise.cli.printing import console, print_json, show_blocks
from counterpoise.cli.running import without_traceback
from counterpoise.cli.settings import Command, reads_settings
from counterpoise.display import Block, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from counterpoise.evaluation.result import Result
    from counterpoise.moments.state import State

state = typer.Typer(help="Look into the file of --state.", no_args_is_help=True, rich_markup_mode=None)

SHOWN = 31  # batches; --json has all


@state.callback()
def _several() -> None:
    """Look into the file of --state."""  # with a single command Typer would leave its name out


@state.command(cls=Command)
@reads_settings
@without_traceback
@takes("level", "interval", "reward_bounds", "tuned_for", "max_weight", "estimator", "json")
def show(
    typed: Typed,
    *,
    file: Annotated[Path, typer.Argument(help="A file that evaluate --state wrote.")],
) -> None:
    """Print the question of a state, its batches, and the answer about all of them.

    Only the state is read, and nothing is changed: use it when the output of a job got lost.

    \b
    Examples:
      counterpoise state show state.json
      counterpoise state show state.json --interval anytime --json
    """
    from counterpoise.moments.state import existing

    known = existing(file)
    how = typed.arguments()
    estimator = how.pop("estimator")
    if any(against for _, against in known.question["contrasts"]):
        result: Result = cp.compare(state=file, **how)
    else:
        result = cp.evaluate(state=file, estimator=estimator, **how)
    if not typed["json"]:
        show_blocks(console(), _contents(file, known))
        show_result(typed, result)
        return
    batches = [
        {
            "batch": batch.key,
            "files": list(batch.files),
            "rows": batch.rows,
            "dropped_rows": batch.dropped,
            "replaceable": k >= known.first_apart,
        }
        for k, batch in enumerate(known.batches)
    ]
    print_json({"question": known.question, "batches": batches, "answer": result.document()})


def _contents(file: Path, known: State) -> Iterator[Block]:
    """The question in words, and the last batches."""
    yield f"The state {str(file)!r} has {len(known.batches):,} batches; the last {len(known.recent):,} can be replaced."
    said_already = (("groups", 1), ("contrasts", [[target, ""] for target in known.question["target"]]))
    for part, value in known.question.items():
        if value not in (None, [], {}, False) and (part, value) not in said_already:
            yield f"  {part}: {_words(value)}"
    yield ""
    if len(known.batches) > SHOWN:
        yield f"The last {SHOWN} of them (--json has all):"
    rows = []
    for batch in known.batches[-SHOWN:]:
        first, more = next(iter(batch.files), ""), len(batch.files) - 1
        files = first + (f" and {more:,} more" if more > 0 else "")
        rows.append({"batch": batch.key, "rows": batch.rows, "dropped": batch.dropped, "file": files})
    yield Table(rows)
    yield ""


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {part}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(" − ".join(filter(None, part)) if isinstance(part, list) else part for part in value)
    return str(value)
