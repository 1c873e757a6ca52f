"""The front door: every public name is there, for people and for type checkers, and nothing else is."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import counterpoise as cp
from counterpoise.log.parts import LIMITS, PARTS

TREE = ast.parse(Path(cp.__file__).read_text(encoding="utf-8"))


def test_dir_lists_the_public_names_and_nothing_else():
    assert set(dir(cp)) == {*cp.__all__, "__version__"}
    assert all(getattr(cp, name) is not None for name in cp.__all__ if name != "learn_policy")


def test_type_checkers_see_each_name_where_it_is_at_home():
    (typed,) = (node for node in TREE.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.name: node.module for node in typed.body for alias in node.names}
    rooms = {name for name, module in seen.items() if module == "counterpoise"}
    assert set(seen) == set(cp.__all__)
    assert rooms == set(cp.__all__) - set(cp._HOME)
    assert {name: f"counterpoise.{home}" for name, home in cp._HOME.items()} == {
        name: module for name, module in seen.items() if name not in rooms
    }


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="evalute"):
        cp.evalute  # noqa: B018 - asked for


def test_nothing_is_imported_before_it_is_asked_for():
    code = "import sys, counterpoise; print('numpy' in sys.modules, 'counterpoise.log' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]


VERBS = [*(verb for verb in LIMITS if "Learner" not in verb), "from_sums"]


def function_of(verb):
    if verb == "learn_policy":
        pytest.importorskip("torch")
    return getattr(cp, verb)


@pytest.mark.parametrize("verb", VERBS)
def test_help_and_signature_show_every_part_that_the_verb_takes_with_its_sentence(verb):
    function, taken = function_of(verb), LIMITS["sql" if verb == "from_sums" else verb].taken
    shown, text = inspect.signature(function).parameters, inspect.getdoc(function)
    own = {"ab_test": {"shares"}}.get(verb, set())  # which it says in its own words
    assert set(PARTS) & set(shown) == {*taken, *own}
    assert "parts" not in shown
    assert not [part for part in set(taken) - own if f"\n{part}\n    {PARTS[part].sentence[0].upper()}" not in text]


def test_a_log_shows_its_parts_as_well():
    assert not [part for part in PARTS if f"\n{part}\n    " not in inspect.getdoc(cp.Log)]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("misspelt", "meant"), [("features", "context"), ("propensty", "propensity"), ("Outcome", "reward")]
)
def test_a_misspelt_part_is_answered_with_the_right_one(verb, misspelt, meant):
    with pytest.raises(TypeError, match=rf"{verb} has no argument '{misspelt}'. Did you mean {meant}\?"):
        function_of(verb)({}, **{misspelt: "x"})


@pytest.mark.parametrize(
    ("verb", "misspelt", "meant"),
    [
        ("evaluate", "segments", "segment"),
        ("evaluate", "policy", "target"),
        ("compare", "versus", "against"),
        ("plan", "diference", "difference"),
        ("doctor", "weekday", "day"),
        ("Log", "features", "context"),
        ("Log", "drop_bad_row", "drop_bad_rows"),
    ],
)
def test_a_misspelt_option_is_answered_over_all_arguments_of_the_call(verb, misspelt, meant):
    with pytest.raises(TypeError, match=rf"{verb} has no argument '{misspelt}'. Did you mean {meant}\?"):
        getattr(cp, verb)({}, **{misspelt: "x"})


def test_an_argument_that_is_like_no_other_is_answered_with_all_of_them():
    with pytest.raises(
        TypeError, match=r"no argument 'zzzzqq'. Its arguments are log, .*target.*reward.*drop_bad_rows"
    ):
        cp.evaluate({}, zzzzqq=1)
