"""The contracts on imports hold, cover every module, and see an import that goes the wrong way."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("importlinter", reason="needs import-linter, which developers have")

ROOT = Path(__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
RUN = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"


@pytest.fixture
def house(tmp_path):
    """A copy of the source, and a function that runs its contracts."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    def lint():
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
        command = [sys.executable, "-c", RUN]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)

    return tmp_path / "src" / "counterpoise", lint


def test_the_contracts_hold(house):
    found = house[1]()
    assert found.returncode == 0, found.stdout + found.stderr
    assert "0 broken" in found.stdout


@pytest.mark.once
@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("moments/moments.py", "import counterpoise.evaluation.evaluate", "Rooms"),
        ("log/good.py", "from counterpoise.readers import files", "Rooms"),
        ("weights/ratio.py", "def late():\n    from counterpoise.engines import registry", "Rooms"),
        ("evaluation/plan.py", "from counterpoise.report import page", "Rooms"),
        ("errors.py", "from counterpoise import whole_files", "Rooms"),
        ("attic.py", "x = 1", "Rooms"),  # a module in no room
        ("attic/__init__.py", "x = 1", "Rooms"),
        ("learn/rows.py", "from counterpoise.learn import policy", "Learning"),
        ("environments/checks.py", "from counterpoise.weights import ratio", "Environments"),
        ("features/encoder.py", "from counterpoise.models import design", "Rooms"),
        ("weights/ratio.py", "import torch", "torch"),
        ("evaluation/plan.py", "import safetensors", "torch"),
    ],
)
def test_a_wrong_import_breaks_a_contract(house, file, line, broken):
    source, lint = house
    planted = source / file
    planted.parent.mkdir(exist_ok=True)
    text = planted.read_text(encoding="utf-8") if planted.exists() else '"""Planted."""\n'
    planted.write_text(f"{text}\n{line}\n", encoding="utf-8")
    found = lint()
    assert found.returncode == 1, found.stdout + found.stderr
    lines = [
        line.partition(" (")[0] for line in found.stdout.splitlines()
    ]  # how many imports are ignored stands behind
    said = [line for line in lines if line.endswith(("KEPT", "BROKEN"))]
    assert [one for one in said if one.endswith("BROKEN") and broken in one], found.stdout


def test_every_room_is_in_the_contracts_that_are_about_all_of_them():
    source = ROOT / "src" / "counterpoise"
    rooms = {path.parent.name for path in source.glob("*/__init__.py")} | {
        path.stem for path in source.glob("[!_]*.py")
    }
    layers, learning, environments, torch = CONTRACTS
    assert {name for layer in layers["layers"] for name in layer.split(" | ")} == rooms
    forbidden = {name.removeprefix("counterpoise.") for name in environments["forbidden_modules"]}
    assert forbidden == rooms - {"environments", "errors", "whole_files", "cli", "demo"}
    sources = {name.removeprefix("counterpoise.") for name in torch["source_modules"]}
    assert sources == rooms - {"learn"}
    assert {path.stem for path in (source / "learn").glob("[!_]*.py")} == set(learning["layers"])
    assert not list((source / "learn").glob("*/__init__.py"))
