"""Options are declared once: every command that takes one has the same, and what is typed reaches the library."""

import json
import re
from inspect import signature
from typing import Annotated

import numpy as np
import polars as pl
import pytest
import typer
from command_line import invoke, shop
from messages import refuses
from typer.testing import CliRunner

import counterpoise as cp
from counterpoise.cli.app import app
from counterpoise.cli.options import FURTHER, PANELS, Typed, takes
from counterpoise.cli.verbs import ESTIMATING
from counterpoise.errors import OptionError
from counterpoise.intervals import INTERVALS
from counterpoise.log.parts import PARTS, help_of
from counterpoise.weights import WEIGHTS
from counterpoise.weights.lists import EPISODE_WEIGHTS, LIST_WEIGHTS

COMMANDS = {name: command for name, command in typer.main.get_command(app).commands.items() if not command.hidden}


# what only Python can say: objects, several loggers, the version of a policy in Python, and whether to show a bar
PYTHON_ONLY = {"log", "logger", "shares", "cross_fit", "progress", "version"}
VERBS = {
    "evaluate": set(),
    "compare": set(),
    "plan": set(),
    "distribution": {"thresholds"},  # one at a time: --threshold
    "sensitivity": set(),
    "ab-test": {"action", "context", "candidates", "key"},  # which make no difference to it
    "doctor": set(ESTIMATING),
    "watch": {"groups", "max_segments"},  # a day has neither
    "backtest": {
        "logs",
        "outcomes",
        "against",
        "table",
        "query",
        "external_access",
        "timeout",
    },  # which its table names
}


@pytest.mark.parametrize("command", VERBS)
def test_a_command_offers_what_its_verb_takes_and_nothing_else(command):
    verb = getattr(cp, command.replace("-", "_"))
    taken = {name for name, one in signature(verb).parameters.items() if one.kind is not one.VAR_KEYWORD}
    offered = {option.name for option in COMMANDS[command].params}
    assert taken - offered - PYTHON_ONLY == VERBS[command] - offered
    of_the_command_line = {
        "json",
        "only_new",
        "all",
        "strict",
        "html",
        "title",
        "unit",
        "target_action",
        "no_cluster",
        "no_minimize",
        "propensity_model",
        "tuned_for",
        "max_weight",
    }
    of_the_command_line |= {
        "check_coverage",
        "coverage_runs",
        "sensitivity",
        "rows",
        "quantile",
        "cvar",
        "threshold",
        "tests",
        "config",
        "always",
    }
    assert offered - taken <= of_the_command_line


def test_every_part_of_a_log_is_an_option_but_for_those_of_python_alone():
    offered = {option.name for option in COMMANDS["evaluate"].params}
    assert set(PARTS) - offered == {"logger", "shares", "cross_fit"}


TWELVE = [
    *("--reward", "--propensity", "--action", "--context", "--cluster", "--where"),
    *("--target", "--target-action", "--always", "--segment", "--html", "--json"),
]
EVERY = [*COMMANDS, "state show"]


def shown_help(command, width="80"):
    """The help of a command as an 80-column terminal shows it, by heading."""
    shown = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": width}).stdout
    headings = re.split(r"^(\S.*):\n", shown, flags=re.M)
    return shown, dict(zip(headings[1::2], headings[2::2], strict=True))


def test_the_twelve_options_that_matter_come_first_in_the_help():
    _, panels = shown_help("evaluate")
    listed = [option for text in panels.values() for option in re.findall(r"^  (--[a-z-]+)", text, flags=re.M)]
    assert listed[:12] == TWELVE
    assert [heading for heading in panels if not heading.startswith("Advanced")] == [
        "Arguments",
        *(PANELS[name] for name in ("log", "targets", "answer", "output", "state", "help")),
    ]


@pytest.mark.parametrize("command", [name for name in EVERY if name != "state"])
def test_every_option_is_listed_once_and_under_a_heading(command):
    shown, panels = shown_help(command)
    assert set(panels) <= {"Arguments", *PANELS.values()}
    listed = [option for text in panels.values() for option in re.findall(r"^  (--[a-z-]+)", text, flags=re.M)]
    parent = COMMANDS["state"].commands["show"] if command == "state show" else COMMANDS[command]
    options = [option.opts[0] for option in parent.params if option.param_type_name == "option"]
    assert sorted(listed) == sorted([*options, "--help"])
    assert not [line for line in shown.splitlines() if len(line) > 80], "lines that a terminal would wrap"


@pytest.mark.parametrize("command", [name for name in EVERY if name != "state"])
def test_help_has_no_words_of_python(command):
    shown, _ = shown_help(command)
    pythonic = r"\b(None|True|False|frame|str|dict|raising|kwargs|models\.\w+)\b|list\[|<\w+>|\w=\)"
    assert not re.findall(pythonic, shown)
    assert not re.search(r"Python", shown) or command == "sql"  # whose answer goes to Python


def test_python_says_what_only_python_can():
    assert "models.Propensity" in help_of("propensity")
    assert "models.Propensity" in cp.evaluate.__doc__


def help_texts(name):
    return {option.help for command in COMMANDS.values() for option in command.params if option.name == name}


def test_help_names_what_is_in_the_registries():
    """Whoever adds to a registry need not think of the help."""
    from counterpoise.models.propensity import CLASSIFIERS
    from counterpoise.models.reward import NAMES

    weights = [name.replace("_", "-") for name in (*WEIGHTS, *LIST_WEIGHTS, *EPISODE_WEIGHTS)]
    registries = {"interval": INTERVALS, "estimator": cp.ESTIMATORS, "weight": weights}
    registries |= {"model": NAMES, "propensity_model": CLASSIFIERS}
    for option, names in registries.items():
        (said,) = help_texts(option)
        for name in names:
            assert re.search(rf"\b{name}\b", said), (option, name)
    for name, method in INTERVALS.items():
        (said,) = help_texts("interval")
        assert (name in said.partition(";")[2]) == (not method.allows_differences)


def test_help_names_every_objective():
    pytest.importorskip("torch")
    from counterpoise.learn.objectives import OBJECTIVES

    (said,) = help_texts("objective")
    for name in set(OBJECTIVES) - {"dr", "predicted_reward"}:  # which need a reward model
        assert re.search(rf"\b{name}\b", said), name


def test_control_variates_are_typed_with_their_means(tmp_path):
    random = np.random.default_rng(0)
    noise = random.normal(size=900)
    shop(900).with_columns(noise=noise, click=pl.col("click") + noise).write_parquet(tmp_path / "log.parquet")
    asked = ("evaluate", tmp_path / "log.parquet", "--target", "pi_new", "--estimator", "optimal_dr", "--json")
    found = json.loads(invoke(*asked, "--control", "noise=0").stdout)["estimates"][0]
    expected = cp.evaluate(
        tmp_path / "log.parquet",
        reward="click",
        propensity="p",
        target="pi_new",
        control={"noise": 0.0},
        estimator="optimal_dr",
    )["pi_new", "optimal_dr"]
    assert (found["value"], found["stderr"]) == pytest.approx((expected.value, expected.stderr), rel=1e-12)
    wrong = invoke(*asked, "--control", "noise")
    assert (wrong.exit_code, "--control takes NAME=VALUE" in wrong.stderr) == (2, True)


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


def test_every_option_that_commands_share_becomes_an_argument_of_the_library():
    shared = {**dict.fromkeys(PARTS), **dict.fromkeys(FURTHER)}
    values = Typed(shared | {"no_cluster": True, "interval": "anytime", "tuned_for": 7.0}).arguments()
    of_commands = {"log", "json", "all", "unit", "only_new", "strict", "check_coverage", "coverage_runs", "sensitivity"}
    assert set(shared) - set(values) - of_commands == {"no_cluster", "no_minimize", "tuned_for", "max_weight"}
    assert values["cluster"] is False
    assert values["interval"].tuned_for == 7.0
    with refuses(OptionError):
        Typed(cluster="user_id", no_cluster=True).arguments()


def test_a_command_gets_one_record_of_what_was_typed():
    application, received = typer.Typer(), []

    @application.command()
    @takes("reward", "propensity", "target", "target_action", "where", "context", "json")
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
