"""The application: the list of commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from counterpoise.cli.compare import compare
from counterpoise.cli.distribution import distribution
from counterpoise.cli.doctor import doctor
from counterpoise.cli.evaluate import evaluate
from counterpoise.cli.learn import learn
from counterpoise.cli.plan import plan
from counterpoise.cli.reproduce import reproduce
from counterpoise.cli.running import open_streams
from counterpoise.cli.simulate import simulate
from counterpoise.cli.sql import sql
from counterpoise.cli.state import state

app = typer.Typer(
    name="counterpoise",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from counterpoise import __version__

        print(f"counterpoise {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Off-policy evaluation that you can act on: what a new policy would have earned on yesterday's log.

    \b
    counterpoise evaluate log.parquet --reward click --propensity p --target pi_new
    """
    open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for ±, and no traceback


app.command()(evaluate)
app.command()(compare)
app.command()(distribution)
app.command()(doctor)
app.command()(plan)
app.command()(simulate)
app.command()(learn)
app.command()(sql)
app.add_typer(state, name="state")
app.add_typer(reproduce, name="reproduce")
