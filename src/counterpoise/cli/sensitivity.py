"""`counterpoise sensitivity`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import counterpoise as cp
from counterpoise.cli.options import QUESTION, takes
from counterpoise.cli.printing import console, number, print_json, say, say_verdict, show_table
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.typed import Typed
from counterpoise.log.question import LOGGING

if TYPE_CHECKING:
    from rich.console import Console

    from counterpoise.evaluation.sensitivity import Sensitivity


@ends_at_once
@takes(QUESTION, "reward_bounds")
def sensitivity(
    typed: Typed,
    *,
    against: Annotated[
        str,
        typer.Option(
            metavar="[NAME=]EXPRESSION",
            help="The policy that the conclusion is about: the name of a target, whatever --target takes, or logging, which wrote the log.",
        ),
    ] = LOGGING,
    gamma: Annotated[
        list[float] | None,
        typer.Option(
            metavar="FACTOR", help="How far odds may be wrong, at least 1; may be repeated (1, 1.2, 1.5, 2 by default)."
        ),
    ] = None,
) -> None:
    """What target policies could have earned if the propensities were wrong, and how wrong they must be for a conclusion to flip.

    The odds of every logged action may be wrong by a factor of up to gamma, in whatever way is worst.

    \b
    Examples:
      counterpoise sensitivity log.parquet --target pi_new
      counterpoise sensitivity log.parquet --target pi_new --against pi_old
      counterpoise sensitivity log.parquet --reward revenue --target pi_new --gamma 1.1 --gamma 3 --cluster user_id --json
    """
    from counterpoise.evaluation.sensitivity import GAMMAS

    question = typed.question(against=against)
    answer = cp.sensitivity(typed.data, **question, gamma=gamma or GAMMAS)
    if typed["json"]:
        print_json(_document(answer))
    else:
        _show(console(), answer)


def _document(sensitivity: Sensitivity) -> dict[str, Any]:
    from counterpoise.evaluation.documents import finite

    tips = [sensitivity.tipping(name) for name in sensitivity.targets]
    return {
        "n": sensitivity.n,
        "level": sensitivity.level,
        "against": sensitivity.against or LOGGING,
        "bounds": finite(sensitivity.table().to_dicts()),
        "tipping_points": finite(
            [{"target": tip.target, "lift": tip.lift, "point": tip.point, "sure": tip.sure} for tip in tips]
        ),
        "dropped_rows": sensitivity.log.dropped,
    }


def _show(out: Console, sensitivity: Sensitivity) -> None:
    names = ("value_from", "value_to", "lift_from", "lift_to", "lift_lower", "lift_upper")
    rows = [
        [row["target"], f"{row['gamma']:g}", *(number(row[name]) for name in names)]
        for row in sensitivity.table().to_dicts()
    ]
    headings = ["target", "gamma ", "value from ", "to ", "lift from ", "to ", "interval from ", "to "]
    show_table(out, headings, rows)
    say(out)
    say(out, f"{sensitivity.n:,} rows, {100 * sensitivity.level:.4g} % intervals of the {sensitivity.over}.")
    for name in sensitivity.targets:
        verdict = sensitivity.verdict(name)
        if verdict.verdict != "ok":
            say_verdict(out, name, verdict)
        say(out, str(sensitivity.tipping(name)))
