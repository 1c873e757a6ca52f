"""The servers that tests need: absent ones skip their tests, except under CI, where they must be there."""

import os
import shutil

import messages
import pytest
from hypothesis import settings

# `make test-oldest` and `make test-newest` install no torch, no Spark and nothing that builds or shows pages
CORE = os.environ.get("COUNTERPOISE_CORE") == "1"

settings.register_profile("patient", deadline=None, max_examples=20 if CORE else 100)  # a slow machine is no failure
settings.load_profile("patient")
collect_ignore = ["learn/written_by_0_2/make.py"]  # which wrote its folder's files, once, by version 0.2
if CORE:
    collect_ignore += ["engines/test_spark.py", "report/test_browser.py", "test_docs.py", "test_gallery.py"]
    collect_ignore += ["training_script.py"]

# long files, which begin first: no process is left with one of them when the others are done
LONG = (
    "tests/engines/test_spark.py",
    "tests/test_audit.py",
    "tests/test_docs.py",
    "tests/paper/",
    "tests/report/test_browser.py",
)


def pytest_addoption(parser):
    parser.addoption("--new-messages", action="store_true", help="write the words of errors to tests/messages.json")


def pytest_configure(config):
    if config.getoption("new_messages"):
        os.environ[messages.NEW] = "1"


def pytest_sessionfinish(session):
    if session.config.getoption("new_messages"):
        messages.write()


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


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
