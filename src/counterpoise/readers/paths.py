"""Which files a path, folder, glob or list of them stands for."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

from counterpoise.errors import LogError, OptionError
from counterpoise.log.addresses import looks_like_address, mistyped

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def is_paths(log: object) -> bool:
    """Whether a log is given as the name of a file, or as a list of names."""
    if isinstance(log, str | PathLike):
        return True
    return isinstance(log, list | tuple) and len(log) > 0 and all(isinstance(one, str | PathLike) for one in log)


def files_of(log: Paths) -> list[Path]:
    """The files that a path, a folder, a glob or a list of them stands for, in order; all of them can be opened."""
    given = [log] if isinstance(log, str | PathLike) else list(log)
    found = [path for one in given for path in _expand(Path(one))]
    for path in found:
        if path.is_symlink() and not path.exists():
            raise _dangling(path)
        try:
            path.open("rb").close()
        except OSError as error:
            raise LogError(f"cannot read {shown(path)!r}: {error.strerror}. Check its permissions.") from error
    return found


def check_once(files: Sequence[Path]) -> None:
    """Check that no file is named twice, not even through a link."""
    seen: set[Path] = set()
    for path in files:
        if path.resolve() in seen:
            raise OptionError(f"the file {shown(path)!r} is given twice: its rows would count twice. Name it once.")
        seen.add(path.resolve())


def shown(path: Path) -> str:
    """A path for messages, written as the user wrote it, even if the locale knows nothing but ASCII."""
    return os.fsencode(path).decode("utf-8", "replace")


def engine_name(path: Path) -> str:
    """A path for polars, which expects UTF-8 whatever the locale says.

    Python keeps the bytes that the locale cannot decode as surrogates, which no other library understands.
    """
    try:
        return os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(f"the name of the file {shown(path)!r} is not valid UTF-8. Rename it.") from error


def _expand(path: Path) -> list[Path]:
    if path.is_dir():
        inside = sorted(_inside(path))
        if not inside:
            raise LogError(f"the folder {shown(path)!r} has no files in it.")
        return inside
    if path.exists() or path.is_symlink():
        return [path]
    if any(sign in str(path) for sign in "*?["):
        found = _below(path) if "**" in path.parts else _matches(path)
        if not found and looks_like_address(str(path)):
            raise mistyped(str(path))
        if not found:
            raise LogError(f"no file matches {shown(path)!r} in {shown(Path.cwd())!r}.")
        return found
    if looks_like_address(str(path)):
        raise mistyped(str(path))
    raise LogError(f"no file {shown(path)!r}. Check the path; a glob such as 'logs/*.parquet' may name many.")


def _matches(pattern: Path) -> list[Path]:
    return [file for name in sorted(glob.glob(str(pattern))) for file in _expand(Path(name))]


def _below(pattern: Path) -> list[Path]:
    """What a pattern with '**' matches; Python's own search would follow links in circles until the system stops it."""
    first = pattern.parts.index("**")
    root, wanted = Path(*pattern.parts[:first]), pattern.parts[first:]
    folders = [Path(name) for name in sorted(glob.glob(str(root)))] if root.parts else [root]
    files = (
        file
        for folder in folders
        if folder.is_dir()
        for file in sorted(_inside(folder))
        if _fits(file.relative_to(folder).parts, wanted)
    )
    return list(dict.fromkeys(files))


def _fits(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a file, or a folder that it lies in, matches a pattern part by part."""
    if not wanted:
        return True
    if wanted[0] == "**":
        return any(_fits(parts[k:], wanted[1:]) for k in range(len(parts)))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], wanted[0]) and _fits(parts[1:], wanted[1:])


def _inside(folder: Path) -> Iterator[Path]:
    """The files in a folder and its subfolders, including linked ones; a folder that links lead back to is read once."""
    links, seen = [folder], set[Path]()
    for link in links:  # which grows: folders proper come first, so that they go by their own names
        below = [link]
        for place in below:
            real = place.resolve()
            if real in seen:
                continue
            seen.add(real)
            for entry in _entries(place):
                name = entry.relative_to(folder)
                if entry.is_dir():
                    if not _is_hidden(name / "any file"):
                        (links if entry.is_symlink() else below).append(entry)
                elif not _is_hidden(name) and (entry.is_file() or entry.is_symlink()):
                    yield entry


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise LogError(f"cannot read {shown(folder)!r}: {error.strerror}. Check its permissions.") from error


def _dangling(link: Path) -> LogError:
    return LogError(
        f"the link {shown(link)!r} leads to {shown(link.readlink())!r}, which is not there. Mend the link, or remove it."
    )


def _is_hidden(path: Path) -> bool:
    """Whether this is something that Spark or a notebook left beside the data, such as _temporary/; a folder _key=value is data."""
    return path.name.startswith("_") or any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) for part in path.parts
    )
