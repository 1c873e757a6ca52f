"""Errors, findings and verdicts have their arguments in backticks, and the command line writes them as its own options."""

import ast
import copy
import pickle
import re
from pathlib import Path

import polars as pl
import pytest
from command_line import invoke, shop
from messages import refuses

import counterpoise as cp
from counterpoise.cli.wording import as_option, options_are, written
from counterpoise.errors import CounterpoiseError, Sentence, render, verbatim

SOURCE = Path(cp.__file__).parent
WHERE = "a > 'x' and b = \"y\""
OPTIONS = (
    "reward|propensity|target|against|segment|cluster|where|table|query|external_access|state|batch|replace|level|groups|drop_bad_rows|"
    "difference|actions|n_actions|reward_bounds|max_weight|tuned_for|model_reward|model_value|context|action|center"
)


@pytest.mark.parametrize(
    ("argument", "typed"),
    [
        ("n_actions=5", "--actions 5"),
        ("n=0", "--rows 0"),
        ("target={'a': …, 'b': …}", "--target a=… --target b=…"),
        ("segment=['country', 'device']", "--segment country --segment device"),
        ("target=COLUMN", "--target COLUMN"),
        ("target=Chosen(column='an item')", "--target-action 'an item'"),
        ("version={'new': '1'}", "version={'new': '1'}"),  # no option of this command
        ("replace=False", "no --replace"),
        ("replace=True", "--replace"),
        ("replace=", "--replace"),
        ("batch_size=None", "--batch-size 0"),
        (f"where={WHERE!r}", "--where 'a > '\"'\"'x'\"'\"' and b = \"y\"'"),
        ("where='`a` > 1'", "--where '`a` > 1'"),
        ("reward_bounds=(0, 1.5)", "--reward-bounds 0 1.5"),
        ("level=nan", "--level nan"),
    ],
    ids=str,
)
def test_an_argument_is_written_as_the_command_takes_it(argument, typed):
    options = ["actions", "rows", "target", "target_action", "segment", "replace", "where", "batch_size", "level"]
    with options_are([*options, "reward_bounds"]):
        assert render(f"`{argument}`", as_option) == typed
    assert render(f"`{argument}`") == argument


@pytest.mark.parametrize(
    "name", ["`where=`", "it's `where=`", "\"quoted\" `a` and 'b'", "`where='", "''", "a\\", "`", "`level=1"], ids=str
)
def test_a_name_of_the_users_is_never_read_as_an_argument(name):
    """Quoted, as a value or as it is: the name stays what it is, and the arguments around it are still found."""
    for text, said in {
        f"no column {name!r} and {name!r}: pass `where=` or `reward={name!r}`, {name!r}.": "no column {0!r} and {0!r}: pass W or R, {0!r}.",
        f"{verbatim(name)}: pass `where=` or `reward={name!r}`; {verbatim(name)}.": "{0}: pass W or R; {0}.",
    }.items():
        python = said.replace("W", "where=").replace("R", "reward={0!r}").format(name)
        shell = said.replace("W", "--where").replace("R", as_option("reward", repr(name))).format(name)
        error, sentence = cp.ColumnError(text), Sentence(text)
        assert (str(error), str(sentence)) == (python, python)
        assert (written(error), written(sentence)) == (shell, shell)
        assert Sentence(f"So: {verbatim(sentence)}").render(as_option) == f"So: {shell}"
        assert written(pickle.loads(pickle.dumps(sentence))) == shell


@pytest.mark.parametrize("name", ["`where=`", '"it\'s" `a`'], ids=str)
def test_a_column_of_any_name_is_told_as_it_is(tmp_path, name):
    shop().rename({"click": name}).write_parquet(tmp_path / "log.parquet")
    said = f"the log has {name!r}, "
    with refuses(cp.ColumnError):
        cp.evaluate(tmp_path / "log.parquet", reward="earned", propensity="p", target="pi_new")
    found = invoke("evaluate", tmp_path / "log.parquet", "--reward", "earned", "--target", "pi_new")
    assert found.exit_code == 2
    assert said in found.stderr
    assert "Pass --reward one of these" in found.stderr


def test_what_travels_to_another_process_keeps_its_arguments():
    error = cp.OptionError("Pass `where=` or `groups=100`.", do=f"Or {verbatim('`this=`')}.")
    sentence = Sentence(f"Pass `where=`, {verbatim('`this=`')}.")
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert (str(again), written(again)) == (
            "Pass where= or groups=100. Or `this=`.",
            "Pass --where or --groups 100. Or `this=`.",
        )
    for again in (pickle.loads(pickle.dumps(sentence)), copy.deepcopy(sentence)):
        assert (again, again.render(as_option)) == ("Pass where=, `this=`.", "Pass --where, `this=`.")


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
    """Only what is in backticks can be written another way; an argument without them is Python's on every front end."""
    found = []
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "environments":
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
                found += [
                    f"{path.name}:{call.lineno}: {text}" for text in texts if re.search(rf"(?<!`)\b({OPTIONS})=", text)
                ]
    code = ("log.but(", "cp.intervals.", "ModulePolicy(")  # which no command line has a word for
    assert [one for one in found if not any(call in one for call in code)] == []
