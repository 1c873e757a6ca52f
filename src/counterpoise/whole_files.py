"""Writing files whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

unfinished: set[Path] = set()  # for whoever must end the process at once: these may go


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place in one step once all of it is on disk; on any failure nothing is left.

    Whoever is killed meanwhile leaves the old file as it was. A link stays a link, a file keeps its permissions, and what is not a
    regular file (a device, a pipe) is refused.
    """
    place = Path(path).resolve()
    if not place.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {str(place.parent)!r}", str(path))
    if place.exists() and not place.is_file():  # a device, a pipe or a folder is no file to be replaced
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    part = place.with_name(f".{place.stem}.{secrets.token_hex(6)}{place.suffix}")
    unfinished.add(part)
    try:
        part.touch(exist_ok=False)
        yield part
        _to_disk(part, os.O_RDWR)
        if place.exists():
            part.chmod(place.stat().st_mode & 0o777)
        os.replace(part, place)
        if os.name == "posix":  # others cannot open a folder
            _to_disk(place.parent, os.O_RDONLY)  # the new name, too, must survive a power cut
    finally:
        part.unlink(missing_ok=True)
        unfinished.discard(part)


def _to_disk(path: Path, how: int) -> None:
    descriptor = os.open(path, how)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
