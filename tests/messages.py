"""Messages in one place: a test names the class of an error, and messages.json has its words.

After words have changed, `pytest --new-messages` writes those of the tests that it runs again. Read the difference before you commit it.
"""

import fcntl
import json
import os
import re
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("messages.json")
NEW = "COUNTERPOISE_NEW_MESSAGES"
# other versions of libraries have words of their own in what we quote
COMPARES = os.environ.get("COUNTERPOISE_CORE") != "1"

_known = json.loads(FILE.read_text()) if FILE.exists() else {}
_heard = defaultdict(dict)  # by test: its words, each once, in order


@contextmanager
def refuses(kind):
    """The work inside raises this error, with the words that messages.json has for this test."""
    with pytest.raises(kind) as error:
        yield error
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    words = f"{type(error.value).__name__}: {without_accidents(str(error.value))}"
    _heard[test].setdefault(words)
    if COMPARES and NEW not in os.environ:
        assert words in map(without_accidents, _known.get(test, ())), (
            "messages.json has other words for this test, or none: pytest --new-messages"
        )


def without_accidents(text):
    """A message without what differs from run to run: folders, ports, names of tables, addresses, checksums, the order of sets."""
    text = re.sub(r"/[^\s'\"]*/pytest-of-[^/\s]+/pytest-\d+/(popen-gw\d+/)?(\w+?)\d*\b", r"/\2", text)
    text = re.sub(r"\b(port|Col:) \d+", r"\1 …", re.sub(r"_[0-9a-f]{12}\b", "_…", text))
    text = re.sub(r"\{('\w[^{}:]*')\}", lambda found: f"{{{', '.join(sorted(found[1].split(', ')))}}}", text)
    return re.sub(r"\b0x[0-9a-f]{6,}|\b[0-9a-f]{8}(?=…)|\b[0-9a-f]{32}\b", "…", text)


def write():
    """Write the words of the tests that ran, in place of those known; tests that are gone lose theirs."""
    with open(f"{FILE}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes of one run write one after the other
        known = json.loads(FILE.read_text()) if FILE.exists() else {}
        known = {test: words for test, words in known.items() if _exists(test)}
        heard = {test: list(words) for test, words in _heard.items()}
        FILE.write_text(json.dumps(known | heard, indent=0, ensure_ascii=False, sort_keys=True) + "\n")
    os.unlink(f"{FILE}.lock")


def _exists(test):
    path, _, name = test.partition("::")
    file = FILE.parents[1] / path
    return file.exists() and f"def {name.partition('[')[0]}(" in file.read_text()
