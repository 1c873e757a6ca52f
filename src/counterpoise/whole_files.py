"""Writes a file completely, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from os import PathLike
from pathlib import Path

unfinished: set[Path] = set()  # for whoever has to end the process at once: delete these first


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[Path]:
    """A file beside `path` to write to. Once all of it is on disk, it replaces `path` in one step; a failure leaves nothing behind.

    If the process is killed, the old file stays as it was, and the next to write it removes what that one left behind. A file keeps its
    permissions, a link gives way to a file and what it leads to stays as it was, and anything that is not a regular file (a device, a
    pipe) is refused.
    """
    place = Path(path).parent.resolve() / Path(path).name  # not the file that a link leads to: it may be anybody's
    if not place.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {str(place.parent)!r}", str(path))
    if place.exists() and not place.is_file():  # a device, a pipe or a folder must not be replaced
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    _remove_leftovers(place)
    # what tells this process from all others, also on other machines that share the folder; nothing where the system does not say
    begun = _begun(os.getpid())
    mark = f"{_machine()}-{os.getpid()}-{begun}-" if begun else ""
    part = place.with_name(f".{place.stem[:NAMED]}.{mark}{os.urandom(6).hex()}{place.suffix}")
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


NAMED = 150  # letters of a file's name in that of its part, which must not become too long
FORGOTTEN = 7 * 24 * 3600.0  # seconds without a write after which nobody is writing, on whatever machine


def _remove_leftovers(place: Path) -> None:
    """Remove what writers of the same file left beside it when they were killed; never what another process may still be writing."""
    name = re.compile(
        rf"\.{re.escape(place.stem[:NAMED])}\.(?:(\w+)-(\d+)-(\w+)-)?[0-9a-f]{{12}}{re.escape(place.suffix)}"
    )
    with os.scandir(place.parent) as entries:
        parts = [(Path(entry.path), match) for entry in entries if (match := name.fullmatch(entry.name))]
    for path, match in parts:
        with suppress(OSError):  # another writer may have removed it
            if _is_over(*match.groups()) or time.time() - path.stat().st_mtime > FORGOTTEN:
                path.unlink()


def _is_over(machine: str | None, process: str | None, begun: str | None) -> bool:
    """Whether a process has ended. Only those that can be looked up from here: of this machine, since it was started."""
    if process is None or machine != _machine():
        return False
    try:
        os.kill(int(process), 0)  # sends nothing
    except ProcessLookupError:
        return True
    except OSError:  # it belongs to somebody else
        return False
    return _begun(int(process)) not in ("", begun)  # the number is another's by now


def _begun(process: int) -> str:
    """When a process began, in the ticks of Linux since its start; "ended" if nobody has fetched its exit code; "" if that is unknown."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "ended" if fields[0] in "ZX" else fields[19]


@cache
def _machine() -> str:
    """This machine since it was started, and the space of its process numbers, which a container has of its own."""
    parts = [platform.node()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.blake2b(" ".join(parts).encode(), digest_size=4).hexdigest()


def _to_disk(path: Path, how: int) -> None:
    descriptor = os.open(path, how)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
