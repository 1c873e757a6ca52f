"""The application: the list of commands."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from counterpoise import __version__
from counterpoise.cli.running import open_streams, without_traceback
from counterpoise.cli.settings import Click, Command, leave_text, reads_settings
from counterpoise.errors import CounterpoiseError, OptionError, first_line

# the module of each command, in the order of `--help`
_HOMES = {
    "evaluate": "evaluate",
    "compare": "evaluate",
    "ab-test": "verbs",
    "backtest": "verbs",
    "distribution": "verbs",
    "doctor": "verbs",
    "plan": "verbs",
    "sensitivity": "verbs",
    "simulate": "verbs",
    "learn": "learn",
    "sql": "verbs",
    "watch": "state",
    "init": "settings",
    "state": "state",
    "reproduce": "app",
}


class Commands(Mapping[str, Click]):
    """The commands by name, each imported and built when it is asked for: all of them take longer than any of them runs."""

    def __init__(self) -> None:
        self._built: dict[str, Click] = {}

    def __getitem__(self, name: str) -> Click:
        if name not in self._built:
            command = getattr(importlib.import_module(f".{_HOMES[name]}", __package__), name.replace("-", "_"))
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
            if name == "state":  # which has commands of its own
                alone = command
            elif name == "reproduce":  # which takes whatever it once took
                settings = {"ignore_unknown_options": True, "allow_extra_args": True}
                alone.command(name, hidden=True, context_settings=settings)(command)
            else:
                alone.command(name, cls=Command)(command if name == "init" else reads_settings(command))
            self._built[name] = typer.main.get_command(alone)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


class Verbs(TyperGroup):
    """The application's commands, built when they are asked for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = Commands()

    def get_params(self, ctx: Click) -> list[Click]:
        """The options before the command, with one for help."""
        return leave_text(super().get_params(ctx))


app = typer.Typer(
    name="counterpoise",
    cls=Verbs,
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


@without_traceback
def reproduce() -> None:
    """Say where the paper's experiments went."""
    raise OptionError(
        "the paper's experiments are no longer part of the package.",
        do="Run `python -m paper` in a clone of the repository.",
    )
