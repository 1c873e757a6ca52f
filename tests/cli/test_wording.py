"""Errors, findings and verdicts name arguments apart from their words, and the command line writes them as its own options."""

import ast
import copy
import pickle
import re
from pathlib import Path

import polars as pl
import pytest
from command_line import invoke, shop

import counterpoise as cp
from counterpoise.cli.wording import as_option, options_are, written
from counterpoise.errors import Argument, Blank, CounterpoiseError, Sentence

SOURCE = Path(cp.__file__).parent
OPTIONS = (
    "reward|propensity|target|against|segment|cluster|where|table|query|external_access|state|batch|replace|level|groups|drop_bad_rows|"
    "difference|actions|n_actions|reward_bounds|max_weight|tuned_for|model_reward|model_value|context|action|center"
)


@pytest.mark.parametrize(
    ("argument", "typed"),
    [
        (Argument("n_actions", 5), "--actions 5"),
        (Argument("n", 0), "--rows 0"),
        (Argument("target", {"a": Blank("…"), "b": Blank("…")}), "--target a=… --target b=…"),
        (Argument("segment", ["country", "device"]), "--segment country --segment device"),
        (Argument("target", Blank("COLUMN")), "--target COLUMN"),
        (Argument("version", {"new": "1"}), "version={'new': '1'}"),  # no option of this command
        (Argument("replace", False), "no --replace"),
        (Argument("batch_size", None), "--batch-size 0"),
        (Argument("where", "a > 'x' and b = \"y\""), "--where 'a > '\"'\"'x'\"'\"' and b = \"y\"'"),
    ],
    ids=str,
)
def test_an_argument_is_written_as_the_command_takes_it(argument, typed):
    with options_are(["actions", "rows", "target", "segment", "replace", "where", "batch_size"]):
        assert as_option(argument) == typed


def test_what_travels_to_another_process_keeps_its_arguments():
    error = cp.OptionError(["Pass ", Argument("where"), " or ", Argument("groups", 100), "."])
    sentence = Sentence(["Pass ", Argument("where"), "."])
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert (str(again), written(again)) == ("Pass where= or groups=100.", "Pass --where or --groups 100.")
    for again in (pickle.loads(pickle.dumps(sentence)), copy.deepcopy(sentence)):
        assert (again, again.render(as_option)) == ("Pass where=.", "Pass --where.")


def test_an_error_of_many_lines_is_told_in_one():
    assert written(CounterpoiseError("no column 'a'.\n\nResolved plan: …")) == "no column 'a'."


@pytest.mark.parametrize(
    ("command", "log", "said"),
    [
        ("evaluate", {"click": 1.0}, "if they can be more, pass --reward-bounds."),
        ("compare", {"click": 1.0}, "Every reward is 1, so the rows do not show how rewards vary."),
        ("doctor", {"clicks": 1.0}, "no column looks like the reward. Name it with --reward COLUMN."),
    ],
    ids=["verdict", "comparison", "finding"],
)
def test_findings_and_verdicts_name_options(tmp_path, command, log, said):
    frame = shop().with_columns(pl.lit(value).alias(name) for name, value in log.items())
    frame.select(set(frame.columns) - ({"click"} - set(log))).write_parquet(tmp_path / "log.parquet")
    target = [] if command == "doctor" else ["--target", "pi_new"]
    found = invoke(command, tmp_path / "log.parquet", *target)
    assert found.exit_code == 0, found.stderr
    assert said in found.stdout
    assert "reward_bounds" not in found.stdout


@pytest.mark.once
def test_the_help_says_in_plain_words_what_a_models_reward_is_for():
    said = " ".join(invoke("evaluate", "--help").output.replace("│", " ").split())
    assert "for dr and the other model-based estimators" in said


def test_no_error_writes_an_argument_into_its_words():
    """Only parts can be written another way; a text that has an argument in it is Python's on every front end."""
    found = []
    for path in SOURCE.rglob("*.py"):
        if path.parent.name in ("experiments", "environments"):
            continue
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(getattr(call, "func", None), "id", "")
            if (
                isinstance(call, ast.Call)
                and name.endswith("Error")
                and issubclass(getattr(cp, name, int), CounterpoiseError)
            ):
                texts = [
                    one.value for one in ast.walk(call) if isinstance(one, ast.Constant) and isinstance(one.value, str)
                ]
                found += [f"{path.name}:{call.lineno}: {text}" for text in texts if re.search(rf"\b({OPTIONS})=", text)]
    code = ("log.but(", "cp.intervals.", "ModulePolicy(")  # which no command line has a word for
    assert [one for one in found if not any(call in one for call in code)] == []
