"""`counterpoise ab-test` and `counterpoise backtest`: tests that were run, and what we would have said before them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import counterpoise as cp
from counterpoise.cli.options import (
    ANSWERED,
    LOG,
    Title,
    Typed,
    numbers,
    pairs,
    table_of,
    takes,
)
from counterpoise.cli.printing import show
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.settings import check_title, command_line
from counterpoise.errors import OptionError
from counterpoise.log.parts import usual


@ends_at_once
@takes(
    "no_cluster",
    "no_minimize",
    "interval",
    "level",
    "unit",
    verb="ab_test",
    without=("action", "context", "candidates", "key"),
)
def ab_test(
    typed: Typed,
    *,
    arm: Annotated[
        str, typer.Option(metavar="COLUMN", help="Which arm a row belongs to.", rich_help_panel=LOG)
    ] = "arm",
    against: Annotated[
        str | None,
        typer.Option(metavar="ARM", help="The arm to compare with; the first by default.", rich_help_panel=ANSWERED),
    ] = None,
    propensity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARM=COLUMN",
            help="An arm's policy's probability of the logged action; one for every arm, to pool them.",
        ),
    ] = None,
    shares: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARM=SHARE", help="An arm's planned share of the rows; one for every arm.", rich_help_panel=LOG
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report for people to read.")] = None,
    title: Title = None,
) -> None:
    """How much more one arm of a randomized test earned than another: in means, adjusted for context, and pooled off-policy.

    \b
    Examples:
      counterpoise ab-test test.parquet --reward click --shares A=0.5 \\
        --shares B=0.5
      counterpoise ab-test test.parquet --reward click --baseline visits \\
        --cluster user_id
      counterpoise ab-test test.parquet --reward click --propensity A=p_a \\
        --propensity B=p_b
    """
    check_title(html, title)
    values = typed.arguments()
    if values["reward"] is None:
        values["reward"] = usual("reward", typed.columns)
    test = cp.ab_test(
        typed.data,
        **values,
        arm=arm,
        against=against,
        propensity=pairs("propensity", propensity),
        shares=numbers("shares", pairs("shares", shares)),
    )
    test = test if typed["unit"] is None else test.with_unit(typed["unit"])
    if html is not None:
        test.report(html, command=command_line(), title=title)
    show(typed, test)


@ends_at_once
@takes(
    "no_cluster",
    "no_minimize",
    "interval",
    "level",
    verb="backtest",
    without=("log", "table", "query", "external_access", "timeout"),
)
def backtest(
    typed: Typed,
    *,
    tests: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE.CSV",
            help="One row per test: test, log, measured, stderr (or lower and upper), and maybe target and against.",
        ),
    ],
    reward: Annotated[str, typer.Option(metavar="COLUMN", help="The reward in every log.")] = "reward",
    propensity: Annotated[str, typer.Option(metavar="COLUMN", help="The propensity in every log.")] = "propensity",
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The target, where the table has none.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report for people to read.")] = None,
) -> None:
    """What we would have said before earlier A/B tests, next to what they measured: coverage, signs and calibration.

    \b
    Example:
      counterpoise backtest tests.csv --reward click --target pi_new \\
        --html backtest.html
    """
    if not tests.is_file():
        raise OptionError(f"there is no file {str(tests)!r}.")
    rows = table_of(str(tests)).to_dicts()
    lacking = [name for name in ("test", "log", "measured") if not rows or name not in rows[0]]
    if lacking:
        raise OptionError(f"{str(tests)!r} has no column {lacking[0]!r}: it needs test, log, measured and stderr.")
    logs = {str(row["test"]): str(row["log"]) for row in rows}
    outcome = cp.backtest(logs, rows, target=target, reward=reward, propensity=propensity, **typed.arguments())
    if html is not None:
        outcome.report(html)
    show(typed, outcome)
