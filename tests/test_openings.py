"""A module opens with one plain sentence that says what it is for."""

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

SOURCE = Path(__file__).parent.parent / "src" / "counterpoise"
ROOMS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
MODULES = sorted([*SOURCE.glob("*.py"), *(path for room in ROOMS for path in (SOURCE / room).rglob("*.py"))])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_opens_with_what_it_is_for(path):
    opening = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    assert opening.endswith("."), opening
    assert not opening.startswith(("This file", "This module")), opening


def test_every_room_is_looked_at():
    assert {"cli", "diagnostics", "engines", "learn", "log", "report"} <= set(ROOMS)
    assert set(SOURCE.rglob("*.py")) == set(MODULES)
    assert all((path.parent / "__init__.py").exists() for path in MODULES)
