"""The front door: every public name is there, for people and for type checkers, and nothing else is."""

import ast
import inspect
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import counterpoise as cp
from counterpoise.log.parts import PARTS
from counterpoise.log.verbs import LIMITS

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


LOG = {
    "r": [1.0, 0.0, 1.0, 0.0] * 5,
    "p": [0.5] * 20,
    "t": [0.6, 0.4] * 10,
    "game": [k // 2 for k in range(20)],
    "move": [0, 1] * 10,
}
ASKED = {"reward": "r", "propensity": "p", "target": "t"}
STEPS = ASKED | {"episode": "game", "step": "move"}
ARMS = LOG | {"arm": ["a", "b"] * 10, "action": [0, 1] * 10, "p0": [0.5] * 20, "p1": [0.5] * 20}
LOGGED = {"reward": "r", "propensity": "p"}
# what an old name does, what the new one does, and the new name
OLD = {
    "gamma=": (
        lambda: cp.evaluate(LOG, **STEPS, gamma=0.5),
        lambda: cp.evaluate(LOG, **STEPS, discount_factor=0.5),
        "discount_factor=",
    ),
    "Log(gamma=)": (
        lambda: cp.Log(LOG, **LOGGED, gamma=0.5, episode="game", step="move"),
        lambda: cp.Log(LOG, **LOGGED, discount_factor=0.5, episode="game", step="move"),
        "discount_factor=",
    ),
    "but(gamma=)": (
        lambda: stepwise().but(gamma=0.5),
        lambda: stepwise().but(discount_factor=0.5),
        "discount_factor=",
    ),
    "without('gamma')": (
        lambda: stepwise().without("gamma"),
        lambda: stepwise().without("discount_factor"),
        "discount_factor=",
    ),
    "log.gamma": (lambda: stepwise().gamma, lambda: stepwise().discount_factor, "log.discount_factor"),
    "doctor(distribution=)": (
        lambda: cp.doctor(ARMS, distribution=["p0", "p1"]),
        lambda: cp.doctor(ARMS, probabilities=["p0", "p1"]),
        "probabilities=",
    ),
    "result.per": (
        lambda: cp.evaluate(LOG, **ASKED).per("visit"),
        lambda: cp.evaluate(LOG, **ASKED).with_unit("visit"),
        "with_unit()",
    ),
    "test.per": (lambda: an_ab_test().per("visit"), lambda: an_ab_test().with_unit("visit"), "with_unit()"),
    "weights.Ratio": (lambda: cp.weights.Ratio, lambda: cp.weights.Importance, "weights.Importance"),
}


def stepwise():
    return cp.Log(LOG, **LOGGED, discount_factor=0.25, episode="game", step="move")


def an_ab_test():
    return cp.ab_test(ARMS, reward="r", arm="arm")


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_does_the_same_and_warns_once_with_the_new_one(name):
    old, new, called = OLD[name]
    with pytest.warns(FutureWarning) as warned:
        found = old()
    assert len(warned) == 1
    assert f"is now called {called}; the old name works until version 0.5" in str(warned[0].message)
    assert Path(warned[0].filename).name == Path(__file__).name  # where to change it
    assert repr(found) == repr(new())


def test_both_names_of_an_argument_at_once_are_refused():
    with pytest.raises(TypeError, match="both 'gamma' and 'discount_factor'"):
        cp.evaluate(LOG, **STEPS, gamma=0.5, discount_factor=0.5)


def test_gamma_is_how_far_odds_may_be_wrong_where_that_is_asked():
    assert cp.sensitivity(LOG, **ASKED, gamma=1.5).gammas == (1.5,)


def test_a_log_that_was_pickled_with_an_old_name_has_the_new_one():
    state = stepwise().__getstate__()
    state["gamma"] = state.pop("discount_factor")
    log = object.__new__(cp.Log)
    log.__setstate__(state)
    assert log.discount_factor == 0.25


HERE = Path(__file__).parents[1]
USES = {
    "per": r"\.per\([\"'u]",
    "weights.Ratio": r"\b(cp|counterpoise)\.weights\.Ratio\b|weights(\.weight)? import [^\n]*\bRatio\b",
    "distribution=": r"doctor\([^\n]*\bdistribution=",
    "gamma": r"\b(evaluate|compare|rank|watch|plan|Log|but)\([^\n]*\bgamma=|(evaluate|compare|watch|doctor)\b[^\n]* --gamma",
}


def test_nothing_of_ours_has_an_old_name():
    files = [
        file for folder in ("src", "docs", "examples", "paper", "benchmarks") for file in (HERE / folder).rglob("*")
    ]
    for file in [*files, HERE / "README.md"]:
        if file.suffix in (".py", ".md", ".ipynb", ".toml", ".json"):
            text = file.read_text(encoding="utf-8").partition("## counterpoise 0.3\n")[0]  # the table of old names
            assert not [use for use, pattern in USES.items() if re.search(pattern, text)], file


KINDS = {cp.OptionError: ValueError, cp.LogError: ValueError, cp.ColumnError: KeyError}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_of_pythons_own_kind_and_reads_as_it_was_written(kind):
    error = kind("no column 'a\\nb'", do="Pass `reward=`.")
    assert isinstance(error, KINDS[kind])
    assert isinstance(error, cp.CounterpoiseError)
    assert str(error) == f"{error}" == "no column 'a\\nb' Pass reward=."
    assert "".join(traceback.format_exception_only(error)).endswith(f"{kind.__name__}: {error}\n")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (kind, str(error))
    assert kind.exit_code == 2


def test_errors_are_caught_as_pythons_own():
    with pytest.raises(KeyError, match="'click'"):
        cp.evaluate(LOG, **ASKED | {"reward": "click"})
    with pytest.raises(ValueError, match="level"):
        cp.evaluate(LOG, **ASKED, level=2.0)
    with pytest.raises(ValueError, match="propensity"):
        cp.evaluate(LOG | {"p": [0.0] * 20}, **ASKED)
