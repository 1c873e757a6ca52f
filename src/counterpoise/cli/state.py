"""`counterpoise state`: what a stored state holds, and its answer once more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import counterpoise as cp
from counterpoise.cli.compare import document_of, show_comparison
from counterpoise.cli.options import INTERVALS, takes
from counterpoise.cli.printing import answer, console, each_reward, estimates, print_json, say, show_table
from counterpoise.cli.running import without_traceback
from counterpoise.cli.typed import Typed

if TYPE_CHECKING:
    from rich.console import Console

    from counterpoise.moments.state import State

state = typer.Typer(help="Look into the file of --state.", no_args_is_help=True, rich_markup_mode=None)

SHOWN = 31  # batches; --json has all


@state.callback()
def _several() -> None:
    """Look into the file of --state."""  # with a single command Typer would leave its name out


@state.command()
@without_traceback
@takes("level", INTERVALS, "max_weight", "estimator", "json")
def show(
    typed: Typed,
    *,
    file: Annotated[Path, typer.Argument(help="A file that evaluate --state wrote.")],
) -> None:
    """Print the question of a state, its batches, and the answer about all of them.

    Nothing is read but the state, and nothing is changed: this is how to have again an answer whose output was lost.

    \b
    Examples:
      counterpoise state show state.json
      counterpoise state show state.json --interval anytime --json
    """
    from counterpoise.evaluation.documents import evaluation, of_rewards
    from counterpoise.moments.state import existing

    known = existing(file)
    how = typed.arguments()
    estimator = how.pop("estimator")
    out = None if typed["json"] else console()
    if out is not None:
        _contents(out, file, known)
    if any(against for _, against in known.question["contrasts"]):
        compared = cp.compare(state=file, **how)
        document = of_rewards(compared, document_of)
        if out is not None:
            for single in each_reward(out, compared):
                show_comparison(out, single)
    else:
        result = cp.evaluate(state=file, estimator=estimator, **how)
        document = of_rewards(result, evaluation)
        if out is not None:
            for each in each_reward(out, result):
                answer(out, each)
                estimates(out, each)
    if typed["json"]:
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
        print_json({"question": known.question, "batches": batches, "answer": document})


def _contents(out: Console, file: Path, known: State) -> None:
    """The question in words, and the last batches."""
    say(
        out,
        f"The state {str(file)!r} has {len(known.batches):,} batches; the last {len(known.recent):,} can be replaced.",
    )
    said_already = (("groups", 1), ("contrasts", [[target, ""] for target in known.question["target"]]))
    for part, value in known.question.items():
        if value not in (None, [], {}, False) and (part, value) not in said_already:
            say(out, f"{part}: {_words(value)}", indent=2)
    say(out)
    if len(known.batches) > SHOWN:
        say(out, f"The last {SHOWN} of them (--json has all):")
    rows = []
    for batch in known.batches[-SHOWN:]:
        first, more = next(iter(batch.files), ""), len(batch.files) - 1
        files = first + (f" and {more:,} more" if more > 0 else "")
        rows.append([batch.key or "–", f"{batch.rows:,}", f"{batch.dropped:,}", files])
    show_table(out, ["batch", "rows ", "dropped ", "file"], rows)
    say(out)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {part}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(" − ".join(filter(None, part)) if isinstance(part, list) else part for part in value)
    return str(value)
