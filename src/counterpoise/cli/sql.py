"""`counterpoise sql`."""

from __future__ import annotations

from typing import Annotated

import typer

import counterpoise as cp
from counterpoise.cli.options import takes
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.typed import Typed, table_path, typed_targets


@ends_at_once
@takes("target_action", "action", "segment", "cluster", "where")
def sql(
    typed: Typed,
    *,
    table: Annotated[str, typer.Argument(help="The log's table; shop.logs is logs in the schema shop.")],
    dialect: Annotated[str, typer.Option(help="bigquery, snowflake, trino, postgres, duckdb, …")],
    reward: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the reward, or an expression.")],
    propensity: Annotated[str, typer.Option(metavar="COLUMN", help="Column of the propensity, or an expression.")],
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]EXPRESSION", help="A target's column, or an SQL expression; may be repeated."),
    ] = None,
    center: Annotated[
        float, typer.Option(metavar="REWARD", help="A number near the mean reward: sums far from it lose digits.")
    ] = 0.0,
) -> None:
    """Print the one aggregate statement that evaluate would run, for a database that only you can reach.

    Its answer, a few rows, goes to `counterpoise.from_sums` in Python.

    \b
    Example:
      counterpoise sql logs --dialect bigquery --reward click --propensity p --target pi_new --segment country
    """
    values = typed.arguments()
    targets = typed_targets(target, values.pop("target_action"), ())
    place = table_path(table)
    print(
        cp.sql(
            dialect=dialect, table=place, reward=reward, propensity=propensity, target=targets, center=center, **values
        )
    )
