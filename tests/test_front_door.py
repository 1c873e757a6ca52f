"""The front door: every public name is there, for people and for type checkers, and nothing else is."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import counterpoise as cp

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
