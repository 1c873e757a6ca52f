"""This file holds the readers of files: Parquet, CSV, Arrow and JSON lines, one or many, larger than memory."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from counterpoise.errors import LogError, OptionError

FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".csv.zst": "csv",
    ".tsv": "tsv",
    ".arrow": "ipc",
    ".feather": "ipc",
    ".ipc": "ipc",
    ".jsonl": "json lines",
    ".ndjson": "json lines",
    ".jsonl.gz": "json lines",
    ".ndjson.gz": "json lines",
}

INFERRED = 10_000  # rows from which the types of text formats are guessed

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def is_paths(log: object) -> bool:
    """Whether a log is given as the name of a file, or a list of names."""
    if isinstance(log, str | PathLike):
        return True
    return isinstance(log, list | tuple) and len(log) > 0 and all(isinstance(one, str | PathLike) for one in log)


def files_of(log: Paths) -> list[Path]:
    """The files that a path, folder, glob or a list of them stands for, in order; each can be opened, and is there once."""
    given = [log] if isinstance(log, str | PathLike) else list(log)
    found = [path for one in given for path in _expand(Path(one))]
    seen: set[Path] = set()
    for path in found:
        if path.resolve() in seen:
            raise OptionError(f"the file {str(path)!r} is given twice: its rows would count twice. Name it once.")
        seen.add(path.resolve())
        try:
            path.open("rb").close()
        except OSError as error:
            raise LogError(f"cannot read {str(path)!r}: {error.strerror}. Check its permissions.") from error
    return found


def _expand(path: Path) -> list[Path]:
    if path.is_dir():
        inside = sorted(one for one in path.rglob("*") if one.is_file() and not _is_hidden(one.relative_to(path)))
        if not inside:
            raise LogError(f"the folder {str(path)!r} has no files in it.")
        return inside
    if path.exists():
        return [path]
    if any(sign in str(path) for sign in "*?["):
        matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        if "**" in path.parts:
            root = Path(*path.parts[: path.parts.index("**")])
            matches = [match for match in matches if not _is_hidden(match.relative_to(root))]
        if not matches:
            raise LogError(f"no file matches {str(path)!r} in {str(Path.cwd())!r}.")
        # '**' matches a folder and what is in it, which is still there once
        return list(dict.fromkeys(file for match in matches for file in _expand(match)))
    raise LogError(f"no file {str(path)!r}. Check the path; a glob such as 'logs/*.parquet' may name many.")


def _is_hidden(path: Path) -> bool:
    """What Spark and notebooks leave beside the data, such as _temporary/; a folder _key=value is data."""
    return path.name.startswith("_") or any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) for part in path.parts
    )


def scan(log: Paths, numbers: Sequence[str] = ()) -> pl.LazyFrame:
    """All files as one lazy frame; folders named column=value are columns.

    Text formats do not say what a column holds: a reward of 0 and 1 in the first rows may be 0.5 later, so `numbers` are floats.
    """
    files = files_of(log)
    formats = {_format(path) for path in files}
    if len(formats) > 1:
        raise OptionError(f"the files of one log must be of one format, found {', '.join(sorted(formats))}.")
    kind = formats.pop()
    schemas = [_schema(path) for path in files]
    typed = kind in ("parquet", "ipc")
    for path, schema in zip(files[1:], schemas[1:], strict=True):
        if dict(schema) != dict(schemas[0]) if typed else set(schema) != set(schemas[0]):
            raise LogError(_difference(files[0], schemas[0], path, schema))
    floats = {name for name in numbers if not typed and any(one.get(name, pl.Null).is_numeric() for one in schemas)}
    return _open(files, kind, dict.fromkeys(floats, pl.Float64))


def _open(files: Sequence[Path], kind: str, types: Mapping[str, Any] | None = None) -> pl.LazyFrame:
    # dates in folder names stay text, as they are written: '2026-01-01' compares and prints alike
    hive: dict[str, Any] = {"hive_partitioning": _is_hive(files), "try_parse_hive_dates": False}
    text: dict[str, Any] = {"schema_overrides": dict(types or {}), "infer_schema_length": INFERRED}
    match kind:
        case "parquet":
            return pl.scan_parquet(list(files), glob=False, **hive)
        case "ipc":
            return pl.scan_ipc(list(files), glob=False, **hive)
        case "csv" | "tsv":
            return pl.scan_csv(list(files), glob=False, separator="," if kind == "csv" else "\t", **text)
        case _:
            return pl.scan_ndjson([glob.escape(str(path)) for path in files], **text)  # it has no glob=False


def _schema(path: Path) -> pl.Schema:
    """The columns of one file; its name is in the error if it is damaged."""
    try:
        return _open([path], _format(path)).collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> LogError:
    """The error that a file is truncated, corrupt or of another format than its name says."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return LogError(
        f"cannot read {str(path)!r}: {reason}. The file is damaged or incomplete: write it again, or leave it out."
    )


def find_damaged(files: Sequence[Path]) -> LogError | None:
    """The error of the first file that cannot be read to its end; looked for only once reading all of them has failed."""
    for path in files:
        try:
            for _ in _open([path], _format(path)).collect_batches(chunk_size=1_000_000, engine="streaming"):
                pass
        except (pl.exceptions.PolarsError, OSError) as error:
            return damaged(path, error)
    return None


def _format(path: Path) -> str:
    name = path.name.lower()
    for ending in sorted(FORMATS, key=len, reverse=True):
        if name.endswith(ending):
            return FORMATS[ending]
    raise OptionError(f"cannot tell the format of {str(path)!r}; known endings are {', '.join(FORMATS)}.")


def _is_hive(files: Sequence[Path]) -> bool:
    return any("=" in part for path in files for part in path.parts[:-1])


def _difference(first: Path, mine: pl.Schema, second: Path, theirs: pl.Schema) -> str:
    """What two files disagree about."""
    only = [name for name in mine if name not in theirs] + [name for name in theirs if name not in mine]
    said = (
        f"column {only[0]!r} is in one of them only"
        if only
        else next(
            f"column {name!r} is {mine[name]} in the one and {theirs[name]} in the other"
            for name in mine
            if mine[name] != theirs[name]
        )
    )
    return (
        f"the files {str(first)!r} and {str(second)!r} differ: {said}. Write them alike, or evaluate them separately."
    )
