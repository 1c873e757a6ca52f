"""`counterpoise doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

import counterpoise as cp
from counterpoise.cli.options import CLUSTERS, KEY, LOG, REWARD, takes
from counterpoise.cli.printing import show
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.typed import Typed


@ends_at_once
@takes(REWARD, "propensity", "action", KEY, CLUSTERS, LOG)
def doctor(
    typed: Typed,
    *,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A target's probability of the logged action; may be repeated; guessed."),
    ] = None,
    segment: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Check mean weights for every value of this column; may be repeated."),
    ] = None,
    day: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Check mean weights by this day or time; a lone date column is found."),
    ] = None,
    distribution: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="The logging policy's probabilities of all actions: a list column, or repeat it for a column each, in the "
            "actions' order or as ACTION=COLUMN.",
        ),
    ] = None,
) -> None:
    """What a log looks like, whether its propensities and rewards can be right, and what to fix first.

    \b
    Examples:
      counterpoise doctor log.parquet
      counterpoise doctor log.parquet --target pi_new --key request_id --json
      counterpoise doctor log.parquet --action item --segment country --day time
    """
    examination = cp.doctor(
        typed.data,
        **typed.arguments(),
        target=target or (),
        segment=segment or (),
        day=day,
        distribution=_distribution(distribution),
    )
    show(typed, examination)


def _distribution(columns: list[str] | None) -> str | list[str] | dict[str, str] | None:
    """One list column, a column for each action, or columns by action."""
    if not columns:
        return None
    if all("=" in column for column in columns):
        return {action: name for action, _, name in (column.partition("=") for column in columns)}
    return columns[0] if len(columns) == 1 else columns
