"""Which files a path, folder, glob or list of them stands for."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path

from counterpoise.errors import LogError, OptionError

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def is_paths(log: object) -> bool:
    """Whether a log is given as the name of a file, or a list of names."""
    if isinstance(log, str | PathLike):
        return True
    return isinstance(log, list | tuple) and len(log) > 0 and all(isinstance(one, str | PathLike) for one in log)


def files_of(log: Paths) -> list[Path]:
    """The files that a path, folder, glob or a list of them stands for, in order; every one can be opened."""
    given = [log] if isinstance(log, str | PathLike) else list(log)
    found = [path for one in given for path in _expand(Path(one))]
    for path in found:
        try:
            path.open("rb").close()
        except OSError as error:
            raise LogError(f"cannot read {shown(path)!r}: {error.strerror}. Check its permissions.") from error
    return found


def check_once(files: Sequence[Path]) -> None:
    """No file is named twice, not even through a link."""
    seen: set[Path] = set()
    for path in files:
        if path.resolve() in seen:
            raise OptionError(f"the file {shown(path)!r} is given twice: its rows would count twice. Name it once.")
        seen.add(path.resolve())


def shown(path: Path) -> str:
    """A path for messages, as whoever named it wrote it, even where the locale knows no more than ASCII."""
    return os.fsencode(path).decode("utf-8", "replace")


def engine_name(path: Path) -> str:
    """A path for polars, which takes UTF-8 whatever the locale says.

    Python keeps the bytes that the locale cannot decode as surrogates, and no other library understands those.
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
    if path.exists():
        return [path]
    if path.is_symlink():
        raise _dangling(path)
    if any(sign in str(path) for sign in "*?["):
        matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        if "**" in path.parts:
            root = Path(*path.parts[: path.parts.index("**")])
            matches = _once(match for match in matches if not _is_hidden(match.relative_to(root)))
        if not matches:
            raise LogError(f"no file matches {shown(path)!r} in {shown(Path.cwd())!r}.")
        # '**' matches a folder and what is in it, which is still there once
        return list(dict.fromkeys(file for match in matches for file in _expand(match)))
    raise LogError(f"no file {shown(path)!r}. Check the path; a glob such as 'logs/*.parquet' may name many.")


def _inside(folder: Path) -> Iterator[Path]:
    """The files in a folder and its subfolders, linked ones included; a folder that links lead back to is read once."""
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
                elif _is_hidden(name):
                    continue
                elif entry.is_file():
                    yield entry
                elif entry.is_symlink():
                    raise _dangling(entry)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise LogError(f"cannot read {shown(folder)!r}: {error.strerror}. Check its permissions.") from error


def _once(matches: Iterable[Path]) -> list[Path]:
    """Without what is found again through a link that leads back, which '**' follows some forty times."""
    found: dict[tuple[Path, str], Path] = {}
    for match in sorted(matches, key=lambda path: (_is_linked(path), len(path.parts), path)):
        found.setdefault((match.parent.resolve(), match.name), match)
    return sorted(found.values())


def _is_linked(path: Path) -> bool:
    return path.parent.resolve() != path.parent.absolute()


def _dangling(link: Path) -> LogError:
    return LogError(
        f"the link {shown(link)!r} leads to {shown(link.readlink())!r}, which is not there. Mend the link, or remove it."
    )


def _is_hidden(path: Path) -> bool:
    """What Spark and notebooks leave beside the data, such as _temporary/; a folder _key=value is data."""
    return path.name.startswith("_") or any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) for part in path.parts
    )
