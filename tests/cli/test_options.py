"""Options are declared once: every command that takes one has the same, and what is typed reaches the library."""

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from counterpoise.cli.app import app
from counterpoise.cli.options import SHARED, TARGETS, takes
from counterpoise.cli.typed import Typed
from counterpoise.errors import OptionError
from counterpoise.log.parts import LogFields, help_of

COMMANDS = typer.main.get_command(app).commands


def test_evaluate_takes_every_part_of_a_log():
    offered = {option.name for option in COMMANDS["evaluate"].params}
    assert set(LogFields.__annotations__) - offered == {"logger", "shares", "control", "key"}


@pytest.mark.parametrize("name", ["action", "context", "candidates", "cluster", "slate", "where", "drop_bad_rows"])
def test_a_part_is_explained_in_the_words_of_the_library(name):
    (option,) = (option for option in COMMANDS["evaluate"].params if option.name == name)
    assert help_of(name).lower() in option.help.lower()


def test_an_option_is_the_same_in_every_command():
    for name in {
        "where",
        "query",
        "cluster",
        "level",
        "interval",
        "json",
        "drop_bad_rows",
        "reward_bounds",
        "baseline",
    }:
        declared = {
            (option.help, option.metavar, str(option.default))
            for command in COMMANDS.values()
            for option in command.params
            if option.name == name
        }
        assert len(declared) == 1, name


def test_every_shared_option_becomes_an_argument_of_the_library():
    typed = Typed(dict.fromkeys(SHARED) | {"no_cluster": True, "interval": "anytime", "tuned_for": 7.0})
    values = typed.arguments()
    of_commands = {"log", "json", "strict", "check_coverage", "coverage_runs", "sensitivity"}
    assert set(SHARED) - set(values) - of_commands == {"no_cluster", "tuned_for", "max_weight"}
    assert values["cluster"] is False
    assert values["interval"].tuned_for == 7.0
    with pytest.raises(OptionError, match="--no-cluster"):
        Typed(cluster="user_id", no_cluster=True).arguments()


def test_a_command_gets_one_record_of_what_was_typed():
    application, received = typer.Typer(), []

    @application.command()
    @takes(TARGETS, "where", "context", "json")
    def ask(typed: Typed, *, depth: Annotated[int, typer.Option(help="How far.")] = 3) -> None:
        received.append((typed, depth))

    outcome = CliRunner().invoke(application, ["--where", "x > 1", "--context", "a", "--context", "b", "--json"])
    assert outcome.exit_code == 0, outcome.output
    ((typed, depth),) = received
    values = typed.arguments()
    assert (depth, typed["json"], "json" in values) == (3, True, False)
    assert (values["where"], values["context"], values["target"]) == ("x > 1", ["a", "b"], None)
    names = [option.name for option in typer.main.get_command(application).params]
    assert names[:6] == ["reward", "propensity", "target", "target_action", "depth", "where"]
