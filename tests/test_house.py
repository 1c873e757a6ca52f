"""What has shrunk stays small: the figures of `benchmarks/house.py` are within its limits, and it counts what it says."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "house.py"
pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def house():
    spec = importlib.util.spec_from_file_location("house", SCRIPT)
    sys.modules["house"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["house"]


def passed(figures):
    return [str(figure) for figure in figures if not figure.is_kept]


def test_the_source_is_within_its_limits(house):
    assert passed(house.figures(house.read(house.SOURCE))) == []


def test_the_way_of_an_evaluation_is_within_its_limits(house):
    assert passed(house.evaluating()) == []


@pytest.mark.thorough
def test_the_ways_of_learning_are_within_their_limits(house):
    pytest.importorskip("torch")
    assert passed(house.learning()) == []


@pytest.fixture
def small(house, tmp_path):
    """A function that reads a house of a few files, and gives its figures by name."""

    def figures(files):
        for name, text in {"__init__.py": '"""It."""\n', **files}.items():
            path = tmp_path / "counterpoise" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return {figure.name: figure for figure in house.figures(house.read(tmp_path))}

    return figures


def test_code_is_what_is_neither_blank_nor_comment_nor_docstring(small):
    text = '"""A room."""\n\n# why\nx = 1  # because\n\n\ndef f():\n    """Say."""\n    return """two\nlines"""\n'
    found = small({"a.py": text})
    assert found["files"].value == 2
    assert found["lines of code"].value == 4
    assert found["lines of docstrings"].value == 3


def test_a_module_behind_a_door_is_imported_by_whoever_goes_through_the_door(small):
    found = small(
        {
            "room/__init__.py": "from counterpoise.room.inner import thing\n",
            "room/inner.py": "thing = 1\n",
            "room/other.py": "x = 1\n",
            "a.py": "from counterpoise.room import thing\n",
            "b.py": "from counterpoise.room.inner import thing\nfrom counterpoise.room import other\n",
            "estimators/ips.py": "from counterpoise import a\n",
            "c.py": "from counterpoise.estimators import ips\nimport counterpoise.a\n",
        }
    )["modules with one importer"]
    assert found.parts == ("room.other ← b",)  # a strategy such as ips is left out


def test_a_late_import_escapes_a_cycle_only_if_there_would_be_one(small):
    found = small(
        {
            "room/__init__.py": "from counterpoise.room import a\n",
            "room/a.py": "def f():\n    from counterpoise.room.b import x\n    from counterpoise.room import c\n    import json\n",
            "room/b.py": "from counterpoise.room import a\nx = 1\n",
            "room/c.py": "y = 1\n",
        }
    )
    assert found["imports inside functions"].value == 3
    assert found["own imports inside functions"].parts == ("room.a:2 → room.b", "room.a:3 → room.c")
    assert found["… that escape a cycle"].parts == ("room.a:2 → room.b",)
    assert found["deepest chain of imports"].value == 2


def test_a_figure_above_its_limit_is_not_kept(house, monkeypatch):
    monkeypatch.setitem(house.LIMITS, "casts", 3)
    assert house.Figure("casts", 3).is_kept
    assert not house.Figure("casts", 4).is_kept
    assert house.Figure("never limited", 10**9).is_kept


def test_types_of_one_name_are_counted_whether_they_are_classes_or_aliases(small):
    files = {"a.py": '"""A."""\nclass Part:\n    pass\n', "b.py": '"""B."""\n_Part = str | int\nLIMIT = P = 3\n'}
    found = small(files | {"c.py": '"""C."""\nfrom counterpoise.a import Part\nP = Other = int\n'})
    assert found["type names used twice"].value == 1
    assert found["type names used twice"].parts == ("Part",)
