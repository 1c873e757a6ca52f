"""What rows of a kind do not go with: the one table of it says why, and has nothing that nobody asks."""

import ast
from pathlib import Path

import pytest

import counterpoise as cp
from counterpoise.errors import OptionError
from counterpoise.estimators import ESTIMATORS
from counterpoise.log.kinds import KINDS, check_kinds, go_with, kinds_of
from counterpoise.log.parts import PARTS
from counterpoise.log.verbs import LIMITS

CONFLICTS = [(kind, what) for kind in KINDS for what in kind.conflicts]
ASKERS = {"check_kinds", "check_rows", "go_with", "get"}


def asked():
    """Whatever the source asks the kinds of a log about, besides verbs, estimators and parts of a log."""
    for path in Path(cp.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.func if isinstance(node, ast.Call) else None
            if getattr(name, "id", getattr(name, "attr", None)) in ASKERS:
                yield from (one.value for one in node.args if isinstance(one, ast.Constant))


def test_a_conflict_is_a_sentence_in_whatever_words_it_is_asked():
    words = dict.fromkeys(("who", "part", "does", "loggers"), "something")
    for kind, what in CONFLICTS:
        why, do = kind.conflicts[what].why.format(**words), kind.conflicts[what].do
        assert why.endswith(".")
        assert not do or do.endswith(".")


def test_nothing_is_in_the_table_that_nobody_asks():
    verbs, estimators = set(LIMITS), {f"estimator={name!r}" for name in ESTIMATORS}
    properties = {"loggers", "has_estimated_propensities"}
    known = verbs | estimators | properties | set(PARTS) | set(asked())
    assert {what for _, what in CONFLICTS} <= known


def test_a_log_of_two_kinds_that_do_not_go_together_is_refused_as_soon_as_it_is_made():
    rows = {"reward": "r", "propensity": "p"}
    lists = {"slate": "l", "position": "k", "propensity_of": "item_given_above"}
    for first, second in (
        ({"keep": "k"}, lists),
        ({"keep": "k"}, {"episode": "e", "step": "s"}),
        ({"keep": "k"}, {"proxy": "q", "observed": "o"}),
        ({"per": "d"}, {"proxy": "q", "observed": "o"}),
        ({"per": "d"}, lists),
        ({"per": "d"}, {"control": {"x": 0.0}}),
        (lists, {"baseline": "x"}),
    ):
        cp.Log({}, **rows, **first)
        cp.Log({}, **rows, **second)
        with pytest.raises(OptionError):
            cp.Log({}, **rows, **first, **second)


def test_plain_rows_go_with_everything_and_sampled_ones_with_what_counts_them():
    plain, sampled = (kinds_of(cp.Log({}, reward="r", propensity="p", **more)) for more in ({}, {"keep": "k"}))
    assert plain == ()
    assert go_with(plain, "sensitivity")
    assert go_with(sampled, "evaluate")
    assert not go_with(sampled, "sensitivity")
    with pytest.raises(OptionError, match="every row would then count once"):
        check_kinds(sampled, "sensitivity")
