"""The oldest versions that pyproject.toml allows are those that `make test-oldest` tries."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def required(lines):
    """Every requirement, with those of the extras of our own."""
    for line in lines:
        one = Requirement(line)
        if one.name == PROJECT["name"]:
            for extra in one.extras:
                yield from required(PROJECT["optional-dependencies"][extra])
        else:
            yield one


def oldest(requirement):
    """The oldest version that a requirement allows, or None where any will do."""
    for part in requirement.specifier:
        if part.operator in (">=", "=="):
            return Version(part.version.removesuffix(".*"))
    return None


def pins(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version in pairs}


def test_the_oldest_versions_tested_are_the_oldest_allowed():
    needed = required([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]])
    allowed = {canonicalize_name(one.name): oldest(one) for one in needed if oldest(one) is not None}
    tried = pins("constraints-oldest.txt")
    assert {name: tried.get(name) for name in allowed} == allowed


def test_every_dependency_of_users_has_a_lower_bound():
    assert [line for line in PROJECT["dependencies"] if oldest(Requirement(line)) is None] == []
