"""The servers that tests need: absent ones skip their tests, except under CI, where they must be there."""

import functools
import os
import shutil

import messages
import pytest
import typer.testing
from hypothesis import settings

# `make test-oldest` and `make test-newest` install no torch, no Spark and nothing that builds or shows pages
CORE = os.environ.get("COUNTERPOISE_CORE") == "1"

settings.register_profile("patient", deadline=None, max_examples=20 if CORE else 100)  # a slow machine is no failure
settings.load_profile("patient")
# the runner makes the command anew for every call, which takes longer than many a call
typer.testing._get_command = functools.cache(typer.main.get_command)

collect_ignore = ["learn/written_by_0_2/make.py"]  # which wrote its folder's files, once, by version 0.2
if CORE:
    collect_ignore += ["engines/test_spark.py", "report/test_browser.py", "test_docs.py", "test_gallery.py"]
    collect_ignore += ["training_script.py"]

# what `make test` leaves to `make test-all`, beside what is marked `thorough`: servers, browsers, every page
THOROUGH = (
    "tests/engines/test_spark.py",
    "tests/test_docs.py",
    "tests/test_gallery.py",
    "tests/paper/",
    "tests/report/test_browser.py",
    "tests/test_audit.py",
)
SERVERS = {"postgres", "postgresql", "java"}
# long files, which begin first: no process is left with one of them when the others are done
LONG = (
    *THOROUGH,
    "tests/evaluation/test_pairs.py",
    "tests/readers/test_time_limits.py",
    "tests/evaluation/test_lists.py",
    "tests/readers/test_odd_inputs.py",
    "tests/engines/",
)


def pytest_addoption(parser):
    parser.addoption("--new-messages", action="store_true", help="write the words of errors to tests/messages.json")


def pytest_configure(config):
    if config.getoption("new_messages"):
        os.environ[messages.NEW] = "1"


def pytest_sessionfinish(session):
    if session.config.getoption("new_messages"):
        messages.write()


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items):
    for item in items:
        parameters = getattr(item, "callspec", None) and item.callspec.params.values()
        needs = {*getattr(item, "fixturenames", ()), *(one for one in parameters or () if isinstance(one, str))}
        if item.nodeid.startswith(THOROUGH) or SERVERS & needs:
            item.add_marker("thorough")
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def sampled(values, *kept):
    """Parameters of which `make test` tries these alone, and `make test-all` the others."""
    return [value if value in kept else pytest.param(value, marks=pytest.mark.thorough) for value in values]


def absent(what):
    """Skip, or fail where nothing may be skipped."""
    if os.environ.get("CI") == "true" and not CORE:
        pytest.fail(f"{what} is absent, and CI may not skip")
    pytest.skip(f"{what} is absent")


@pytest.fixture(scope="session")
def postgres():
    """The URL of a throwaway server, which `.ci/run` starts."""
    pytest.importorskip("psycopg")
    url = os.environ.get("COUNTERPOISE_POSTGRES")
    if not url:
        absent("a PostgreSQL server (COUNTERPOISE_POSTGRES=postgresql://…)")
    return url


@pytest.fixture(scope="session")
def java():
    if shutil.which("java") is None:
        absent("Java")
