"""The application: the list of commands."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from counterpoise import __version__
from counterpoise.cli.evaluate import compare, evaluate
from counterpoise.cli.learn import learn
from counterpoise.cli.running import open_streams, without_traceback
from counterpoise.cli.settings import Command, init, reads_settings
from counterpoise.cli.state import state, watch
from counterpoise.cli.verbs import ab_test, backtest, distribution, doctor, plan, sensitivity, simulate, sql
from counterpoise.errors import CounterpoiseError, OptionError, first_line

app = typer.Typer(
    name="counterpoise",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"counterpoise {__version__}")
        raise typer.Exit


@without_traceback
def _import(modules: list[str]) -> None:
    """Import what the user names, so that the estimators, intervals, weights and engines that it registers are known."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0] and error.name != name:
                raise
            raise OptionError(
                f"there is no module {name!r} to import.",
                do="Install its package, or name its folder in PYTHONPATH: the folder you are in is not searched.",
            ) from None
        except CounterpoiseError:
            raise
        except (Exception, SystemExit) as error:  # whatever the module does when it is imported
            raise OptionError(
                f"the module {name!r} cannot be imported: {type(error).__name__}: {first_line(error)}.",
                do=f"Run python -c 'import {name}' to see where.",
            ) from error


@app.callback()
def main(
    imports: Annotated[
        list[str] | None,
        typer.Option(
            "--import", metavar="MODULE", help="Import a module that registers estimators of your own; may be repeated."
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Off-policy evaluation that you can act on: what a new policy would have earned on yesterday's log.

    \b
    counterpoise evaluate log.parquet --reward click --propensity p --target pi_new
    """
    open_streams()
    _import(imports or [])
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for ±, and no traceback


for name, command in {
    "evaluate": evaluate,
    "compare": compare,
    "ab-test": ab_test,
    "backtest": backtest,
    "distribution": distribution,
    "doctor": doctor,
    "plan": plan,
    "sensitivity": sensitivity,
    "simulate": simulate,
    "learn": learn,
    "sql": sql,
    "watch": watch,
}.items():
    app.command(name, cls=Command)(reads_settings(command))
app.command(cls=Command)(init)
app.add_typer(state, name="state")


@app.command(hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@without_traceback
def reproduce() -> None:
    """Say where the paper's experiments went."""
    raise OptionError(
        "the paper's experiments are no longer part of the package.",
        do="Run `python -m paper` in a clone of the repository.",
    )
