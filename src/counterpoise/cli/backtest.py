"""`counterpoise backtest`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import counterpoise as cp
from counterpoise.cli.options import CLUSTERS, takes
from counterpoise.cli.running import ends_at_once
from counterpoise.cli.typed import Typed, table_of
from counterpoise.errors import OptionError


@ends_at_once
@takes(CLUSTERS, "level", "drop_bad_rows", "json")
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
    json: bool,
) -> None:
    """What we would have said before earlier A/B tests, next to what they measured: coverage, signs and calibration.

    \b
    Example:
      counterpoise backtest tests.csv --reward click --propensity p --target pi_new --html backtest.html
    """
    from counterpoise.cli.printing import console, say
    from counterpoise.evaluation.documents import as_text

    if not tests.is_file():
        raise OptionError(f"there is no file {str(tests)!r}.")
    rows: list[dict[str, Any]] = table_of(str(tests)).to_dicts()
    lacking = [name for name in ("test", "log", "measured") if not rows or name not in rows[0]]
    if lacking:
        raise OptionError(f"{str(tests)!r} has no column {lacking[0]!r}: it needs test, log, measured and stderr.")
    logs = {str(row["test"]): str(row["log"]) for row in rows}
    outcome = cp.backtest(logs, rows, target=target, reward=reward, propensity=propensity, **typed.arguments())
    if html is not None:
        outcome.report(html)
    if json:
        print(as_text(outcome.document()))
        return
    out = console()
    for line in repr(outcome).splitlines():
        say(out, line)
