"""A log's files as they were when they were read: known again by their content, and not changed in the meantime."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from counterpoise.errors import Argument, LogError, MomentsError, OptionError, first_line
from counterpoise.log.expressions import columns
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


class ParquetFiles:
    """Parquet files that are read part by part and again and again; which files these are is settled when they are opened."""

    def __init__(self, log: files.Paths) -> None:
        self._stamps = {path: _stamp(path) for path in files.files_of(log)}
        self._scan = files.scan(list(self._stamps))
        self.columns = self._scan.collect_schema().names()
        try:
            self.rows = int(self._scan.select(pl.len()).collect().item())
        except files.UNREADABLE as error:
            raise (files.find_damaged(list(self._stamps)) or LogError(f"cannot read the files: {error}.")) from error

    def read(self, names: Sequence[str], start: int, rows: int) -> pl.DataFrame:
        """Some columns of some rows."""
        try:
            # a scan remembers the footers that it has read, and would look for the rows of new files where the old had them
            scan = self._scan if self.are_untouched() else files.scan(list(self._stamps))
            frame: pl.DataFrame = scan.select(columns(names)).slice(start, rows).collect()
        except (*files.UNREADABLE, LogError) as error:
            if not self.are_untouched():
                raise self.changed() from error
            raise LogError(f"cannot read {self._named()} any longer: {first_line(error)}.") from error
        if frame.height != min(rows, self.rows - start):
            raise self.changed()
        return frame

    def are_untouched(self) -> bool:
        """Whether no file was written to, replaced or removed since it was opened."""
        return all(_stamp(path) == stamp for path, stamp in self._stamps.items())

    def changed(self) -> LogError:
        """The error for rows that are not the same as before."""
        return LogError(
            f"{self._named()} changed while it was being trained on, and every epoch must see the rows that were checked at the start.",
            do="Start again, on files that nobody writes to in the meantime.",
        )

    def _named(self) -> str:
        touched = [path for path, stamp in self._stamps.items() if _stamp(path) != stamp] or list(self._stamps)
        return repr(str(touched[0])) + (f" (and {len(touched) - 1:,} more)" if len(touched) > 1 else "")


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is written or replaced; the last part changes even if somebody sets the times back."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
