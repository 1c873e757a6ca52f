"""`counterpoise doctor`, `plan`, `distribution`, `sensitivity` and `sql`: a command for each verb that answers with one page of text."""

from __future__ import annotations

from typing import Annotated

import typer

import counterpoise as cp
from counterpoise.cli.options import ANSWERED, ASKED, LOG, TARGETS, Typed, table_path, takes, typed_targets
from counterpoise.cli.printing import console, print_json, show, show_blocks
from counterpoise.cli.running import ends_at_once
from counterpoise.errors import OptionError
from counterpoise.log.parts import MODELS
from counterpoise.log.question import LOGGING

# parts that say how to estimate, and make no difference to the doctor
ESTIMATING = (
    *MODELS,
    "context",
    "candidates",
    "control",
    "baseline",
    "discount",
    "groups",
    "reward_bounds",
    "drop_bad_rows",
)


@ends_at_once
@takes("no_cluster", "no_minimize", "target_action", "always", verb="doctor", without=ESTIMATING)
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
        typer.Option(
            metavar="COLUMN",
            help="Check mean weights by this day or time; a lone date column is found.",
            rich_help_panel=ANSWERED,
        ),
    ] = None,
    probabilities: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="The logging policy's probabilities of all actions: a list column, or repeat it for a column each, in the "
            "actions' order or as ACTION=COLUMN.",
            rich_help_panel=LOG,
        ),
    ] = None,
) -> None:
    """What a log looks like, whether its propensities and rewards can be right, and what to fix first.

    \b
    Examples:
      counterpoise doctor log.parquet
      counterpoise doctor log.parquet --target pi_new --key request_id --json
      counterpoise doctor log.parquet --action item --segment country --day time
      counterpoise doctor log.parquet --action item --target-action item_new
    """
    parts = typed.arguments()
    chosen = typed_targets((), parts.pop("target_action"), (), parts.pop("always"))
    examination = cp.doctor(
        typed.data,
        **parts,
        target={**{column: column for column in target or ()}, **chosen},
        segment=segment or (),
        day=day,
        probabilities=_probabilities(probabilities),
    )
    show(typed, examination)


def _probabilities(columns: list[str] | None) -> str | list[str] | dict[str, str] | None:
    """One list column, a column for each action, or columns by action."""
    if not columns:
        return None
    if all("=" in column for column in columns):
        return {action: name for action, _, name in (column.partition("=") for column in columns)}
    return columns[0] if len(columns) == 1 else columns


@ends_at_once
@takes(*TARGETS, "interval", "tuned_for", verb="plan")
def plan(
    typed: Typed,
    *,
    difference: Annotated[
        str,
        typer.Option(
            metavar="D",
            help="The difference that matters: in units of the reward, or as a share of what ran, such as 5%.",
            rich_help_panel=ANSWERED,
        ),
    ],
    power: Annotated[
        float, typer.Option(metavar="SHARE", help="Chance to see a difference that is there.", rich_help_panel=ANSWERED)
    ] = 0.8,
    actions: Annotated[
        int | None,
        typer.Option(
            metavar="K", help="Number of actions, to see what exploring would save.", rich_help_panel=ANSWERED
        ),
    ] = None,
) -> None:
    """How many rows it takes to know a target to within ± D, or to see a difference of D; and what exploring would save.

    \b
    Examples:
      counterpoise plan log.parquet --target pi_new --difference 5%
      counterpoise plan log.parquet --target pi_new --difference 0.01 \\
        --actions 10 --cluster user_id
    """
    size = difference if difference.strip().endswith("%") else _number("difference", difference)
    show(typed, cp.plan(typed.data, **typed.question(), difference=size, power=power, actions=actions))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"`{name}={text!r}` is neither a number nor a share such as 5%.") from None


@ends_at_once
@takes(*TARGETS, "weight", "interval", verb="distribution")
def distribution(
    typed: Typed,
    *,
    quantile: Annotated[
        list[float] | None,
        typer.Option(
            metavar="SHARE",
            help="The reward that this share does not exceed; may be repeated (0.1 … 0.9 by default).",
            rich_help_panel=ANSWERED,
        ),
    ] = None,
    cvar: Annotated[
        list[float] | None,
        typer.Option(
            metavar="SHARE",
            help="The mean of this share of the rewards, the lowest; may be repeated.",
            rich_help_panel=ANSWERED,
        ),
    ] = None,
    threshold: Annotated[
        list[float] | None,
        typer.Option(
            metavar="REWARD",
            help="Where to look at the distribution; may be repeated; by default, chosen.",
            rich_help_panel=ANSWERED,
        ),
    ] = None,
) -> None:
    """How the reward would be distributed under target policies: its quantiles, and the mean of its lowest part (CVaR).

    The policy that wrote the log is listed beside them, as "logging".

    \b
    Examples:
      counterpoise distribution log.parquet --target pi_new
      counterpoise distribution log.parquet --reward revenue --quantile 0.5 \\
        --cvar 0.1 --json
      counterpoise distribution log.parquet --reward "-latency" \\
        --target pi_new --cvar 0.01
    """
    answer = cp.distribution(typed.data, **typed.question(), thresholds=threshold or None)
    chosen = answer.statistics(quantile or (), cvar or ()) if quantile or cvar else None
    if typed["json"]:
        print_json(answer.document(chosen))
    else:
        show_blocks(console(), answer.blocks(rows=None, statistics=chosen))


@ends_at_once
@takes(*TARGETS, verb="sensitivity")
def sensitivity(
    typed: Typed,
    *,
    against: Annotated[
        str,
        typer.Option(
            metavar="[NAME=]EXPRESSION",
            help="The policy that the conclusion is about: the name of a target, whatever --target takes, or logging, which wrote the log.",
            rich_help_panel=ASKED,
        ),
    ] = LOGGING,
    gamma: Annotated[
        list[float] | None,
        typer.Option(
            metavar="FACTOR",
            help="How far odds may be wrong, at least 1; may be repeated (1, 1.2, 1.5, 2 by default).",
            rich_help_panel=ANSWERED,
        ),
    ] = None,
) -> None:
    """What target policies could have earned if the propensities were wrong, and how wrong they must be for a conclusion to flip.

    The odds of every logged action may be wrong by a factor of up to gamma, in whatever way is worst.

    \b
    Examples:
      counterpoise sensitivity log.parquet --target pi_new
      counterpoise sensitivity log.parquet --target pi_new --against pi_old
      counterpoise sensitivity log.parquet --target pi_new --gamma 1.1 \\
        --gamma 3 --json
    """
    question = typed.question(against=against) | ({"gamma": gamma} if gamma else {})
    show(typed, cp.sensitivity(typed.data, **question))


@ends_at_once
@takes("target_action", "action", "segment", "cluster", "where")
def sql(
    typed: Typed,
    *,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="The log's table; shop.logs is logs in the schema shop.")
    ],
    dialect: Annotated[str, typer.Option(metavar="NAME", help="bigquery, snowflake, trino, postgres, duckdb, …")],
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
      counterpoise sql logs --dialect bigquery --reward click --propensity p \\
        --target pi_new
    """
    values = typed.arguments()
    targets = typed_targets(target, values.pop("target_action"), ())
    place = table_path(table)
    print(
        cp.sql(
            dialect=dialect, table=place, reward=reward, propensity=propensity, target=targets, center=center, **values
        )
    )
