"""This file holds the readers of files: Parquet, CSV, Arrow and JSON lines, one or many, larger than memory."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl

from counterpoise.errors import ColumnError, LogError, OptionError, first_line

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
    """The files that a path, folder, glob or a list of them stands for, in order; every one can be opened."""
    given = [log] if isinstance(log, str | PathLike) else list(log)
    found = [path for one in given for path in _expand(Path(one))]
    for path in found:
        try:
            path.open("rb").close()
        except OSError as error:
            raise LogError(f"cannot read {str(path)!r}: {error.strerror}. Check its permissions.") from error
    return found


def _check_once(files: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for path in files:
        if path.resolve() in seen:
            raise OptionError(f"the file {str(path)!r} is given twice: its rows would count twice. Name it once.")
        seen.add(path.resolve())


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


def scan(log: Paths, numbers: Sequence[str] = (), inferred: int | None = INFERRED) -> pl.LazyFrame:
    """All files as one lazy frame; folders named column=value are columns.

    Text formats do not say what a column holds: a reward of 0 and 1 in the first rows may be 0.5 later, so `numbers` are floats.
    The types of other columns are guessed from the `inferred` first rows of each file, None for all rows.
    """
    files = files_of(log)
    _check_once(files)
    formats = {_format(path) for path in files}
    if len(formats) > 1:
        raise OptionError(f"the files of one log must be of one format, found {', '.join(sorted(formats))}.")
    kind = formats.pop()
    schemas = [_schema(path, inferred) for path in files]
    folders = [_folders(path) for path in files]
    typed = kind in ("parquet", "ipc")
    for name, dtype in schemas[0].items():
        if name in numbers and isinstance(dtype, pl.Decimal) and (dtype.precision or 0) > 38:
            raise ColumnError(
                f"column {name!r} holds decimals of up to {dtype.precision} digits, and files are read with 38 at most. Write it as "
                "a float, or read the files with pyarrow and pass the table."
            )
    columns = [dict(one) if typed else dict.fromkeys(one) for one in schemas]
    for path, mine, found in zip(files, columns, folders, strict=True):
        if mine != columns[0]:
            raise LogError(_difference(files[0], columns[0], path, mine))
        if found.keys() != folders[0].keys():
            raise LogError(_difference(files[0], folders[0], path, found))
        _check_folders(path, kind, {name: value for name, value in found.items() if name in mine})
    values = {name: _values([one[name] for one in folders]) for name in folders[0]}
    if kind == "parquet":
        return _open(files, kind, hive={name: one.dtype for name, one in values.items()})
    types = schemas[0] if typed else _common_types(files, schemas, numbers)
    parts = []
    # One scan for the files of a folder that have their columns in the same order, which is all that CSV can read together.
    alike = groupby(range(len(files)), key=lambda k: (list(schemas[k]), folders[k]))
    for _, group in alike:
        k, *more = group
        made = [pl.lit(one[k], one.dtype).alias(name) for name, one in values.items()]
        opened = _open([files[j] for j in (k, *more)], kind, types, inferred)
        parts.append(opened.select(list(types)).with_columns(made))
    return pl.concat(parts)


def _open(
    files: Sequence[Path],
    kind: str,
    types: Mapping[str, Any] | None = None,
    inferred: int | None = INFERRED,
    hive: Mapping[str, Any] | None = None,
) -> pl.LazyFrame:
    known = {name: dtype for name, dtype in (types or {}).items() if dtype != pl.Null}
    text: dict[str, Any] = {"schema_overrides": known, "infer_schema_length": inferred}
    match kind:
        case "parquet":
            return pl.scan_parquet(list(files), glob=False, hive_partitioning=bool(hive), hive_schema=hive or None)
        case "ipc":
            return pl.scan_ipc(_escaped(files), hive_partitioning=False)
        case "csv" | "tsv":
            return pl.scan_csv(list(files), glob=False, separator="," if kind == "csv" else "\t", **text)
        case _:
            return pl.scan_ndjson(_escaped(files), **text)


def _escaped(files: Sequence[Path]) -> list[str]:
    """Names for scans that take globs and, in the oldest polars we support, nothing else."""
    return [glob.escape(str(path)) for path in files]


def _schema(path: Path, inferred: int | None) -> pl.Schema:
    """The columns of one file; its name is in the error if it is damaged. Null is the type of a text file's empty column."""
    kind = _format(path)
    try:
        opened = _open([path], kind, inferred=inferred)
        schema = opened.collect_schema()
        if kind in ("csv", "tsv"):
            # CSV calls a column without values text, and all columns of a file without rows
            texts = opened.select(pl.col(pl.String))
            rows = texts if inferred is None else texts.head(inferred)
            empty = rows.select(pl.all().is_null().all()).collect(engine="streaming").to_dict(as_series=False)
            schema.update({name: pl.Null() for name, found in empty.items() if found == [True]})
        return schema
    except (pl.exceptions.PolarsError, OSError) as error:
        raise damaged(path, error) from error


def _common_types(files: Sequence[Path], schemas: Sequence[pl.Schema], numbers: Sequence[str]) -> dict[str, Any]:
    """The types of text files' columns: numbers where all are numbers, text where they are of several kinds."""
    types: dict[str, Any] = {}
    for name in schemas[0]:
        found = {schema[name]: path for schema, path in zip(reversed(schemas), reversed(files), strict=True)}
        found.pop(pl.Null(), None)
        is_number = {dtype.is_numeric() for dtype in found}
        if name in numbers and len(is_number) > 1:
            one, other = (next(d for d in found if d.is_numeric() == kind) for kind in (True, False))
            raise LogError(_difference(found[one], {name: one}, found[other], {name: other}))
        if name in numbers and is_number <= {True}:  # nothing but numbers, or nothing
            types[name] = pl.Float64()
        elif len(found) <= 1:
            types[name] = next(iter(found), pl.Null())
        elif is_number == {True}:
            types[name] = pl.Float64() if any(dtype.is_float() for dtype in found) else pl.Int128()
        else:
            types[name] = pl.String()
    return types


def _folders(path: Path) -> dict[str, str | None]:
    """The columns that a file's folders name, as text: day=2026-01-01 gives day."""
    pairs = [part.split("=") for part in path.parts[:-1] if part.count("=") == 1 and "*" not in part]
    return {name: None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value) for name, value in pairs}


def _values(texts: Sequence[str | None]) -> pl.Series:
    """The values of folders, of one type; dates stay text, as they are written: '2026-01-01' compares and prints alike."""
    given = [text for text in texts if text is not None]
    if given and all(text in ("true", "false") for text in given):
        return pl.Series([None if text is None else text == "true" for text in texts], dtype=pl.Boolean)
    series = pl.Series(texts, dtype=pl.String)
    for pattern, dtype in ((r"-?\d{1,18}", pl.Int64), (r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", pl.Float64)):
        if given and all(re.fullmatch(pattern, text) for text in given):
            return series.cast(dtype)
    return series


def _check_folders(path: Path, kind: str, folders: Mapping[str, str | None]) -> None:
    """A folder's column that the file has too must say the same; polars writes such files, and reads the folder's."""
    for name, value in folders.items():
        try:
            column = _open([path], kind, inferred=None).select(name)
            expected = pl.lit(value, pl.String).cast(column.collect_schema()[name], strict=False)
            agrees = column.select(pl.col(name).eq_missing(expected).all()).collect(engine="streaming").item()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise damaged(path, error) from error
        if not agrees:
            raise LogError(
                f"the folder of {str(path)!r} says {name}={value}, but the file has a column {name!r} of its own with other values. "
                "Rename the folder or the column."
            )


def damaged(path: Path, error: Exception) -> LogError:
    """The error that a file is truncated, corrupt or of another format than its name says."""
    return LogError(
        f"cannot read {str(path)!r}: {first_line(error)}. The file is damaged or incomplete: write it again, or leave it out."
    )


def find_damaged(files: Sequence[Path]) -> LogError | None:
    """The error of the first file that cannot be read to its end; looked for only once reading all of them has failed."""
    for path in files:
        try:
            for _ in _open([path], _format(path), inferred=None).collect_batches(
                chunk_size=1_000_000, engine="streaming"
            ):
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


def _difference(first: Path, mine: Mapping[str, Any], second: Path, theirs: Mapping[str, Any]) -> str:
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
