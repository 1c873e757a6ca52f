"""Writes a file completely, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

unfinished: set[Path] = set()  # for whoever has to end the process at once: delete these first


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[Path]:
    """A file beside `path` to write to. Once all of it is on disk, it replaces `path` in one step; a failure leaves nothing behind.

    If the process is killed, the old file stays as it was. A file keeps its permissions, a link gives way to a file and what it leads to
    stays as it was, and anything that is not a regular file (a device, a pipe) is refused.
    """
    place = Path(path).parent.resolve() / Path(path).name  # not the file that a link leads to: it may be anybody's
    if not place.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {str(place.parent)!r}", str(path))
    if place.exists() and not place.is_file():  # a device, a pipe or a folder must not be replaced
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    part = place.with_name(f".{place.stem}.{secrets.token_hex(6)}{place.suffix}")
    unfinished.add(part)
    try:
        part.touch(exist_ok=False)
        yield part
        _to_disk(part, os.O_RDWR)
        if place.exists() and not place.is_symlink():
            part.chmod(place.stat().st_mode & 0o777)
        os.replace(part, place)
        if os.name == "posix":  # other systems cannot open a folder
            _to_disk(place.parent, os.O_RDONLY)  # the new name must survive a power cut, too
    finally:
        part.unlink(missing_ok=True)
        unfinished.discard(part)


def _to_disk(path: Path, how: int) -> None:
    descriptor = os.open(path, how)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
