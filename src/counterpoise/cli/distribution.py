"""`counterpoise distribution`."""

from __future__ import annotations

from typing import Annotated

import typer

import counterpoise as cp
from counterpoise.cli.options import QUESTION, takes
from counterpoise.cli.printing import console, print_json, show_blocks
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.typed import Typed


@ends_at_once
@takes(QUESTION, "interval", "reward_bounds")
def distribution(
    typed: Typed,
    *,
    quantile: Annotated[
        list[float] | None,
        typer.Option(
            metavar="SHARE", help="The reward that this share does not exceed; may be repeated (0.1 … 0.9 by default)."
        ),
    ] = None,
    cvar: Annotated[
        list[float] | None,
        typer.Option(metavar="SHARE", help="The mean of this share of the rewards, the lowest; may be repeated."),
    ] = None,
    threshold: Annotated[
        list[float] | None,
        typer.Option(metavar="REWARD", help="Where to look at the distribution; may be repeated; by default, chosen."),
    ] = None,
) -> None:
    """How the reward would be distributed under target policies: its quantiles, and the mean of its lowest part (CVaR).

    The policy that wrote the log is listed beside them, as "logging".

    \b
    Examples:
      counterpoise distribution log.parquet --target pi_new
      counterpoise distribution log.parquet --reward revenue --target pi_new --quantile 0.5 --quantile 0.9 --cvar 0.1 --json
      counterpoise distribution log.parquet --reward "-latency" --target pi_new --cvar 0.01
    """
    answer = cp.distribution(typed.data, **typed.question(), thresholds=threshold or None)
    chosen = answer.statistics(quantile or (), cvar or ()) if quantile or cvar else None
    if typed["json"]:
        print_json(answer.document(chosen))
    else:
        show_blocks(console(), answer.blocks(rows=None, statistics=chosen))
