"""`counterpoise plan`."""

from __future__ import annotations

from typing import Annotated

import typer

import counterpoise as cp
from counterpoise.cli.options import MODELS, QUESTION, takes
from counterpoise.cli.printing import show
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.typed import Typed


@ends_at_once
@takes(QUESTION, MODELS, "interval", "tuned_for")
def plan(
    typed: Typed,
    *,
    difference: Annotated[
        float, typer.Option(metavar="D", help="The difference that matters, in units of the reward.")
    ],
    power: Annotated[float, typer.Option(metavar="SHARE", help="Chance to see a difference that is there.")] = 0.8,
    actions: Annotated[
        int | None, typer.Option(metavar="K", help="Number of actions, to see what exploring would save.")
    ] = None,
) -> None:
    """How many rows it takes to know a target to within ± D, or to see a difference of D; and what exploring would save.

    \b
    Examples:
      counterpoise plan log.parquet --target pi_new --difference 0.01
      counterpoise plan log.parquet --target pi_new --difference 0.01 --actions 10 --cluster user_id
    """
    show(typed, cp.plan(typed.data, **typed.question(), difference=difference, power=power, actions=actions))
