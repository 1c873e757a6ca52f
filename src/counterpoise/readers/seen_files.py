"""A log's files as they were when they were read: known again by their content, and not changed in the meantime."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counterpoise.errors import Argument, MomentsError, OptionError
from counterpoise.readers import files
from counterpoise.readers.connections import is_database

_PIECE, _PIECES = 2**20, 64  # bytes and number of the pieces of a file, its ends among them, that tell it from others
Seen = Mapping[Path, tuple[object, ...]]  # what tells whether a file is still the same; its content's hash first


def files_seen(log: Any, batch: str | None) -> Seen:
    """The log's files, each with something that tells whether it is still the same; none if the log is not in files."""
    is_files = files.is_paths(log) and not is_database(log)
    if batch is None and not is_files:
        raise OptionError(
            [
                Argument("state"),
                " needs ",
                Argument("batch"),
                ", a key of this part of the log such as '2026-11-14', so that it can refuse to add it twice.",
            ]
        )
    seen: dict[Path, tuple[object, ...]] = {}
    known: dict[object, Path] = {}  # by content
    for path in files.files_of(log) if is_files else ():
        found = _fingerprint(path)
        if batch is None and found[0] in known:
            raise MomentsError(
                f"the file {str(known[found[0]])!r} and the file {str(path)!r} are the same: their rows would count twice.",
                do=["Leave one out, or give all of them a key with ", Argument("batch"), "."],
            )
        seen[path], known[found[0]] = found, path
    return seen


def _fingerprint(path: Path) -> tuple[object, ...]:
    """A hash that stays the same if a file is copied or renamed (for long files, made from parts of it); then, when it was written."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        digest = hashlib.sha256(f"{found.st_size} ".encode())
        for k in range(min(_PIECES, -(-found.st_size // _PIECE))):
            whole = found.st_size <= _PIECES * _PIECE
            file.seek(k * _PIECE if whole else (found.st_size - _PIECE) * k // (_PIECES - 1))
            digest.update(file.read(_PIECE))
    return digest.hexdigest()[:32], found.st_size, found.st_mtime_ns, found.st_ino


def check_unchanged(seen: Seen, log: Any, batch: str | None) -> None:
    """Check that what was read is what the state will say was read."""
    try:
        now = files_seen(log, batch)
    except OSError as error:
        raise MomentsError(f"cannot look at the log again after reading it: {error}. Nothing was stored.") from error
    changed = [path for path in {**seen, **now} if seen.get(path) != now.get(path)]
    if changed:
        raise MomentsError(
            f"the file {str(changed[0])!r} changed while the log was read: nobody can tell which of its rows were counted, and nothing "
            "was stored. Run this again once the file is complete."
        )
