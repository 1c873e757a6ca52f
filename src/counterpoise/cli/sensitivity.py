"""`counterpoise sensitivity`."""

from __future__ import annotations

from typing import Annotated

import typer

import counterpoise as cp
from counterpoise.cli.options import QUESTION, takes
from counterpoise.cli.printing import show
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.typed import Typed
from counterpoise.log.question import LOGGING


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

    show(typed, cp.sensitivity(typed.data, **typed.question(against=against), gamma=gamma or GAMMAS))
