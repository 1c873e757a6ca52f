"""Reads files: Parquet, CSV, Arrow and JSON lines, one or many, even if they are larger than memory."""

from __future__ import annotations

import csv
import fnmatch
import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import TypeGuard
from urllib.parse import unquote

import polars as pl

from counterpoise.errors import ColumnError, LogError, OptionError, first_line, verbatim
from counterpoise.log.addresses import looks_like_address, without_password
from counterpoise.log.expressions import column, columns
from counterpoise.log.parts import Paths

# -- Which files a path, folder, glob or list of them stands for -------------------------------------------------------


def is_paths(log: object) -> TypeGuard[Paths]:
    """Whether a log is given as the name of a file, or as a list of names."""
    if isinstance(log, str | PathLike):
        return True
    return isinstance(log, list | tuple) and len(log) > 0 and all(isinstance(path, str | PathLike) for path in log)


def files_of(log: Paths) -> list[Path]:
    """The files that a path, a folder, a glob or a list of them stands for, in order; all of them can be opened."""
    names = [log] if isinstance(log, str | PathLike) else list(log)
    paths = [path for name in names for path in _expand(Path(name))]
    for path in paths:
        if path.is_symlink() and not path.exists():
            raise LogError(
                f"the link {path_text(path)!r} leads to {path_text(path.readlink())!r}, which does not exist. Fix the link, or remove it."
            )
        try:
            path.open("rb").close()
        except OSError as error:
            raise LogError(f"cannot read {path_text(path)!r}: {error.strerror}. Check its permissions.") from error
    return paths


def check_once(files: Sequence[Path]) -> None:
    """Check that no file is named twice, not even through a link."""
    resolved: set[Path] = set()
    for path in files:
        if path.resolve() in resolved:
            raise OptionError(f"the file {path_text(path)!r} is given twice: its rows would count twice. Name it once.")
        resolved.add(path.resolve())


def path_text(path: Path) -> str:
    """A path for messages, as the user wrote it, even in an ASCII locale."""
    return os.fsencode(path).decode("utf-8", "replace")


def engine_name(path: Path) -> str:
    """A path for polars, which expects UTF-8 whatever the locale says.

    Python keeps the bytes that the locale cannot decode as surrogates, which no other library understands.
    """
    try:
        return os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(f"the name of the file {path_text(path)!r} is not valid UTF-8. Rename it.") from error


def _expand(path: Path) -> list[Path]:
    if path.is_dir():
        inside = sorted(_inside(path))
        if not inside:
            raise LogError(f"the folder {path_text(path)!r} has no files in it.")
        return inside
    if path.exists() or path.is_symlink():
        return [path]
    if any(sign in str(path) for sign in "*?["):
        if files := _matches(path):
            return files
        if not looks_like_address(str(path)):
            raise LogError(f"no file matches {path_text(path)!r} in {path_text(Path.cwd())!r}.")
    if looks_like_address(str(path)):
        raise OptionError(
            f"{without_password(str(path))!r} looks like the address of a database, and there is no such file.",
            do="Write an address as postgresql://user:…@host/database, and name the log with `table=` or `query=`.",
        )
    raise LogError(f"no file {path_text(path)!r}. Check the path; a glob such as 'logs/*.parquet' may name many.")


def _matches(pattern: Path) -> list[Path]:
    """What a pattern matches; one with '**' would have Python's own search follow links in circles until the system stops it."""
    if "**" not in pattern.parts:
        return [file for name in sorted(glob.glob(str(pattern))) for file in _expand(Path(name))]
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
    links, visited = [folder], set[Path]()
    for link in links:  # grows as we go: real folders come first, so that they keep their own names
        below = [link]
        for place in below:
            real = place.resolve()
            if real in visited:
                continue
            visited.add(real)
            try:
                entries = sorted(place.iterdir())
            except OSError as error:
                raise LogError(f"cannot read {path_text(place)!r}: {error.strerror}. Check its permissions.") from error
            for entry in entries:
                name = entry.relative_to(folder)
                if entry.is_dir():
                    if not _is_hidden(name / "any file"):
                        (links if entry.is_symlink() else below).append(entry)
                elif not _is_hidden(name) and (entry.is_file() or entry.is_symlink()):
                    yield entry


def _is_hidden(path: Path) -> bool:
    """Whether Spark or a notebook left this next to the data, such as _temporary/; a folder _key=value is data."""
    return path.name.startswith("_") or any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) for part in path.parts
    )


# ----------------------------------------------------------------------------------------------------------------------


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
# lines of JSON that are looked at closely for keys given twice: nested objects make every line suspicious
CHECKED = 10_000

# what polars raises for a file it cannot read; a panic is not an ordinary exception
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)

# the lines of a text file, including the first, as text
scan_texts = partial(pl.scan_csv, glob=False, has_header=False, infer_schema=False, truncate_ragged_lines=True)


def scan(log: Paths, numbers: Sequence[str] = (), inferred: int | None = INFERRED) -> pl.LazyFrame:
    """All files as one lazy frame; folders named column=value become columns.

    Text formats do not say what a column contains: a reward that is 0 or 1 in the first rows may be 0.5 later, so `numbers` are floats.
    The types of other columns are guessed from the `inferred` first rows of each file, or from all rows if it is None. Files that have not
    changed are opened once, however often an answer comes back to them.
    """
    files = files_of(log)
    check_once(files)
    formats = {_format(path) for path in files}
    if len(formats) > 1:
        raise OptionError(f"the files of one log must be of one format, found {', '.join(sorted(formats))}.")
    kind = formats.pop()
    typed = kind in ("parquet", "ipc")
    return _scan(
        tuple(files), tuple(map(stamp_of, files)), kind, () if typed else tuple(numbers), None if typed else inferred
    )


@lru_cache(maxsize=8)  # scans, which are small: an answer and its report need one or two
def _scan(
    files: tuple[Path, ...],
    stamps: tuple[tuple[int, ...] | None, ...],
    kind: str,
    numbers: tuple[str, ...],
    inferred: int | None,
) -> pl.LazyFrame:
    """The scan of files as they were when they had these times, sizes and numbers on their disk."""
    schemas = [_schema(path, inferred) for path in files]
    folders = [_folders(path) for path in files]
    typed = kind in ("parquet", "ipc")
    described = [dict(schema) if typed else dict.fromkeys(schema) for schema in schemas]
    for path, mine, folder in zip(files, described, folders, strict=True):
        if mine != described[0]:
            raise LogError(_difference(files[0], described[0], path, mine))
        if folder.keys() != folders[0].keys():
            raise LogError(_difference(files[0], folders[0], path, folder))
        _check_folders(path, kind, {name: value for name, value in folder.items() if name in mine})
    values = {name: _values([folder[name] for folder in folders]) for name in folders[0]}
    if kind == "parquet":
        return _open(files, kind, hive={name: series.dtype for name, series in values.items()})
    types = schemas[0] if typed else _common_types(files, schemas, numbers)
    parts = []
    # One scan for the files of a folder that have their columns in the same order, which is all that CSV can read together.
    is_csv = kind in ("csv", "tsv")
    signs = [_signs(path, kind) if is_csv else None for path in files]
    alike = groupby(range(len(files)), key=lambda k: (list(schemas[k]), folders[k], signs[k]))
    for _, group in alike:
        k, *more = group
        constants = [pl.lit(series[k], series.dtype).alias(name) for name, series in values.items()]
        opened = _open([files[j] for j in (k, *more)], kind, types, inferred)
        parts.append(opened.select(columns(types)).with_columns(constants))
    return pl.concat(parts)


def _open(
    files: Sequence[Path],
    kind: str,
    types: Mapping[str, pl.DataType] | None = None,
    inferred: int | None = INFERRED,
    hive: Mapping[str, pl.DataType] | None = None,
) -> pl.LazyFrame:
    names = [engine_name(path) for path in files]
    overrides = {name: dtype for name, dtype in (types or {}).items() if dtype != pl.Null}
    match kind:
        case "parquet":
            return pl.scan_parquet(names, glob=False, hive_partitioning=bool(hive), hive_schema=hive or None)
        case "ipc":
            return pl.scan_ipc(_escape(names), hive_partitioning=False)
        case "csv" | "tsv":
            separator, decimal_comma = _signs(files[0], kind)
            header = _header(files[0], separator, stamp_of(files[0]))
            has_quotes = any('"' in name for name in header)  # which polars leaves doubled in names, and nowhere else
            return pl.scan_csv(
                names,
                glob=False,
                separator=separator,
                decimal_comma=decimal_comma,
                schema_overrides=overrides,
                infer_schema_length=inferred,
                with_column_names=partial(_unquote, header) if has_quotes else None,
            )
        case _:
            return pl.scan_ndjson(_escape(names), schema_overrides=overrides, infer_schema_length=inferred)


def _signs(path: Path, kind: str) -> tuple[str, bool]:
    """What separates the columns of a text file, and whether a comma is the decimal sign, as spreadsheets write it in much of Europe."""
    return ("\t", False) if kind == "tsv" else _signs_of(path, stamp_of(path))


@lru_cache(maxsize=10_000)  # files
def _signs_of(path: Path, stamp: tuple[int, ...] | None) -> tuple[str, bool]:
    """Semicolons only where nothing else is possible: a header with semicolons and no comma, and as many columns in every row."""
    lines = scan_texts(engine_name(path), separator="\x01", quote_char=None, new_columns=["line"])
    try:
        header = _first(lines, 1)
        if len(header) != 1 or ";" not in header[0] or len(next(csv.reader(header))) > 1:
            return ",", False
        texts = _first(lines, INFERRED)
        rows = [row for row in csv.reader(texts, delimiter=";") if row]
    except csv.Error:  # a field that is too long, or a null byte
        return ",", False
    complete = rows[:-1] if len(texts) == INFERRED else rows  # the last may be cut within a quoted field
    if len(rows[0]) < 2 or any(len(row) != len(rows[0]) for row in complete):
        return ",", False
    fields = list(zip(*complete[1:], strict=True))
    has_point = any(_POINT.fullmatch(cell) for cells in fields for cell in cells)
    numbers = [cells for cells in fields if all(_COMMA.fullmatch(cell) for cell in cells if cell)]
    return ";", not has_point and any("," in cell for cells in numbers for cell in cells)


_COMMA = re.compile(r"\s*[+-]?(\d+|\d*,\d+)([eE][+-]?\d+)?\s*")  # a number with a decimal comma, or a whole one
_POINT = re.compile(r"\s*[+-]?\d*\.\d+([eE][+-]?\d+)?\s*")


def _first(lines: pl.LazyFrame, count: int) -> list[str]:
    """The first lines of a text file, without the mark that some programs begin it with; none if it cannot be read."""
    try:
        texts = lines.head(count).collect(engine="streaming")["line"].to_list()
    except UNREADABLE:  # which the reader itself will explain
        return []
    return [(text or "").removeprefix("\ufeff") + "\n" for text in texts]


@lru_cache(maxsize=10_000)  # files
def _header(path: Path, separator: str, stamp: tuple[int, ...] | None) -> tuple[str, ...]:
    """The names in the first row of a text file, read as any other row; none if it cannot be read."""
    try:
        row = scan_texts(engine_name(path), separator=separator).head(1).collect(engine="streaming").row(0)
    except UNREADABLE:  # which the reader itself will explain
        return ()
    return tuple(name or "" for name in row)


def _unquote(header: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that polars found, those with quotes in them as the header's row has them."""
    return [true if '""' in name else name for name, true in zip(names, header, strict=True)]


def _escape(names: Sequence[str]) -> list[str]:
    """File names, escaped for scans that take globs and, in the oldest polars we support, nothing else."""
    return [glob.escape(name) for name in names]


def _schema(path: Path, inferred: int | None) -> pl.Schema:
    """The columns of one file; if it is damaged, the error names it. An empty column of a text file has the type Null."""
    kind = _format(path)
    try:
        opened = _open([path], kind, inferred=inferred)
        schema = opened.collect_schema()
        if kind in ("csv", "tsv"):
            separator, _ = _signs(path, kind)
            names = [
                name for name in _header(path, separator, stamp_of(path)) if name
            ]  # spreadsheets leave some unnamed
            name, count = next(iter(Counter(names).most_common(1)), ("", 0))
            if count > 1:  # polars would rename the second
                raise ColumnError(f"{path_text(path)!r} has {count} columns called {name!r}. {_RENAME}")
            # columns without any value (all of them, if there are no rows), which CSV calls text
            rows = opened if inferred is None else opened.head(inferred)
            is_empty = rows.select(pl.col(pl.String)).select(pl.all().is_null().all())
            empty = is_empty.collect(engine="streaming").to_dict(as_series=False)
            long = _long_numbers(path, kind, schema, inferred)
            schema.update({name: pl.Null() for name, value in empty.items() if value == [True]} | long)
    except pl.exceptions.DuplicateError as error:
        raise ColumnError(f"cannot read {path_text(path)!r}: {first_line(error)}. {_RENAME}") from error
    except UNREADABLE as error:
        raise damage_error(path, error) from error
    check_keys([path], INFERRED)
    return schema


def _long_numbers(path: Path, kind: str, schema: pl.Schema, inferred: int | None) -> dict[str, pl.DataType]:
    """The columns of whole numbers too large for any integer type, which CSV takes for integers all the same; they are text."""
    names = [name for name, dtype in schema.items() if dtype == pl.Int128]
    if not names:
        return {}
    texts = _open([path], kind, dict.fromkeys(names, pl.String()), inferred).select(columns(names))
    rows = texts if inferred is None else texts.head(inferred)
    lost = (column(name).cast(pl.Int128, strict=False).null_count() > column(name).null_count() for name in names)
    losses = rows.select(lost).collect(engine="streaming").row(0, named=True)
    return {name: pl.String() for name, is_lost in losses.items() if is_lost}


def check_keys(files: Sequence[Path], rows: int | None = None) -> None:
    """Check that no row of JSON lines has the same key twice, because polars would take the first.

    We look closely only at lines with more keys than the file has columns, and at the first ones, which may have fewer.
    """
    for path in files:
        if _format(path) != "json lines":
            continue
        try:
            wide = len(_open([path], "json lines").collect_schema())
            # one column: no line of JSON has a control character
            lines = scan_texts(engine_name(path), separator="\x01", quote_char=None, new_columns=["line"])
            lines = lines.with_row_index("row") if rows is None else lines.with_row_index("row").head(rows)
            is_odd = (pl.col("row") < 100) | (pl.col("line").str.count_matches(r'"\s*:') > wide)
            suspicious = lines.filter(is_odd).head(CHECKED).collect(engine="streaming")
        except UNREADABLE as error:
            raise damage_error(path, error) from error
        for row, line in suspicious.rows():
            twice = _repeated_key(line)
            if twice is not None:
                raise ColumnError(f"{path_text(path)!r} has the key {twice!r} twice in line {row + 1:,}. {_RENAME}")


def _repeated_key(line: str | None) -> str | None:
    """The key that a line's object has twice; a line that is not JSON is left to the reader."""
    try:
        pairs = json.loads(line or "null", object_pairs_hook=_Pairs)
    except ValueError:
        return None
    counts = Counter(name for name, _ in pairs) if isinstance(pairs, _Pairs) else {}
    return next((name for name, count in counts.items() if count > 1), None)


class _Pairs(list[tuple[str, object]]):
    """A JSON object, with every key that is written in it."""


_RENAME = "Every column needs a name of its own: rename one of them."


def _common_types(
    files: Sequence[Path], schemas: Sequence[pl.Schema], numbers: Sequence[str]
) -> dict[str, pl.DataType]:
    """The types of text files' columns: numbers if all are numbers, text if they are of several kinds."""
    types: dict[str, pl.DataType] = {}
    for name in schemas[0]:
        by_type = {schema[name]: path for schema, path in zip(reversed(schemas), reversed(files), strict=True)}
        by_type.pop(pl.Null(), None)
        is_number = {dtype.is_numeric() for dtype in by_type}
        if name in numbers and len(is_number) > 1:
            number, other = (next(d for d in by_type if d.is_numeric() == kind) for kind in (True, False))
            raise LogError(_difference(by_type[number], {name: number}, by_type[other], {name: other}))
        if name in numbers and is_number <= {True}:  # nothing but numbers, or nothing
            types[name] = pl.Float64()
        elif len(by_type) <= 1:
            types[name] = next(iter(by_type), pl.Null())
        elif is_number == {True}:
            types[name] = pl.Float64() if any(dtype.is_float() for dtype in by_type) else pl.Int128()
        else:
            types[name] = pl.String()
    return types


def _folders(path: Path) -> dict[str, str | None]:
    """The columns that a file's folders name, as text: day=2026-01-01 gives the column day."""
    pairs = [part.split("=") for part in path.parts[:-1] if part.count("=") == 1 and "*" not in part]
    return {name: None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value) for name, value in pairs}


# what folders' values may be, the first that fits; a float would confuse ids of more digits
_NUMBERS = (
    (r"-?\d{1,18}", pl.Int64),
    (r"-?\d{1,38}", pl.Int128),
    (r"-?(\d{1,15}\.?\d*|\.\d+)([eE][+-]?\d+)?", pl.Float64),
)


def _values(texts: Sequence[str | None]) -> pl.Series:
    """The values of folders, all of one type; dates stay text, because '2026-01-01' compares and prints the same either way."""
    present = [text for text in texts if text is not None]
    if present and all(text in ("true", "false") for text in present):
        return pl.Series([None if text is None else text == "true" for text in texts], dtype=pl.Boolean)
    series = pl.Series(texts, dtype=pl.String)
    for pattern, dtype in _NUMBERS:
        if present and all(re.fullmatch(pattern, text) for text in present):
            return series.cast(dtype)
    return series


def _check_folders(path: Path, kind: str, folders: Mapping[str, str | None]) -> None:
    """Check that a column says the same in the folder's name and in the file; polars writes such files, and reads the folder's value."""
    for name, value in folders.items():
        try:
            own = _open([path], kind, inferred=None).select(column(name))
            expected = pl.lit(value, pl.String).cast(own.collect_schema()[name], strict=False)
            agrees = own.select(column(name).eq_missing(expected).all()).collect(engine="streaming").item()
        except UNREADABLE as error:
            raise damage_error(path, error) from error
        if not agrees:
            raise LogError(
                f"the folder of {path_text(path)!r} has {name}={value}, but the file has a column {name!r} of its own with other values. "
                "Rename the folder or the column."
            )


def damage_error(path: Path, error: BaseException) -> LogError:
    """The error for a file that is truncated, corrupt, or in another format than its name says."""
    said, advice = first_line(error), "The file is damaged or incomplete: write it again, or leave it out"
    if said.startswith("InvalidNumber"):  # JSON, where 39 digits are too many
        advice = "If it is a whole number too long for any integer, write it as text"
    return LogError(f"cannot read {path_text(path)!r}: {said}. {advice}.")


def find_damaged(files: Sequence[Path]) -> LogError | None:
    """The error for the first file that cannot be read to its end; we look for it only after reading all of them has failed."""
    for path in files:
        try:
            rows = _open([path], _format(path), inferred=None)
            for _ in rows.collect_batches(chunk_size=1_000_000, engine="streaming"):
                pass
        except UNREADABLE as error:
            return damage_error(path, error)
    return None


def are_parquet(log: Paths) -> bool:
    """Whether all files of a log are Parquet, of which any rows can be read without the others."""
    return all(_format(path) == "parquet" for path in files_of(log))


def _format(path: Path) -> str:
    name = path.name.lower()
    for ending in sorted(FORMATS, key=len, reverse=True):
        if name.endswith(ending):
            return FORMATS[ending]
    raise OptionError(f"cannot tell the format of {path_text(path)!r}; known endings are {', '.join(FORMATS)}.")


def _difference(first: Path, mine: Mapping[str, object], second: Path, theirs: Mapping[str, object]) -> str:
    """What two files disagree about."""
    only = [name for name in mine if name not in theirs] + [name for name in theirs if name not in mine]
    if only:
        said = f"column {only[0]!r} is in one of them only"
    else:
        name = next(name for name in mine if mine[name] != theirs[name])
        said = f"column {name!r} is {mine[name]} in the one and {theirs[name]} in the other"
    return f"the files {path_text(first)!r} and {path_text(second)!r} differ: {said}. Write them alike, or evaluate them separately."


class ParquetFiles:
    """Parquet files that are read part by part and again and again; which files these are is settled when they are opened."""

    def __init__(self, log: Paths) -> None:
        self._stamps = {path: stamp_of(path) for path in files_of(log)}
        self._scan = scan(list(self._stamps))
        self.columns = self._scan.collect_schema().names()
        try:
            self.rows = int(self._scan.select(pl.len()).collect().item())
        except UNREADABLE as error:
            raise (
                find_damaged(list(self._stamps)) or LogError(f"cannot read the files: {verbatim(error)}.")
            ) from error

    def read(self, names: Sequence[str], start: int, rows: int) -> pl.DataFrame:
        """Some columns of some rows."""
        try:
            # a scan remembers the footers that it has read, and would look for the rows of new files where the old had them
            rows_now = self._scan if self.are_untouched() else scan(list(self._stamps))
            frame: pl.DataFrame = rows_now.select(columns(names)).slice(start, rows).collect()
        except (*UNREADABLE, LogError) as error:
            if not self.are_untouched():
                raise self.changed() from error
            raise LogError(f"cannot read {self._names()} any longer: {first_line(error)}.") from error
        if frame.height != min(rows, self.rows - start):
            raise self.changed()
        return frame

    def are_untouched(self) -> bool:
        """Whether no file was written to, replaced or removed since it was opened."""
        return all(stamp_of(path) == stamp for path, stamp in self._stamps.items())

    def changed(self) -> LogError:
        """The error for rows that are not the same as before."""
        return LogError(
            f"{self._names()} changed while it was being trained on, and every epoch must see the rows that were checked at the start.",
            do="Start again, on files that nobody writes to in the meantime.",
        )

    def _names(self) -> str:
        touched = [path for path, stamp in self._stamps.items() if stamp_of(path) != stamp] or list(self._stamps)
        return repr(str(touched[0])) + (f" (and {len(touched) - 1:,} more)" if len(touched) > 1 else "")


def stamp_of(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is written or replaced; the last part changes even if somebody sets the times back."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def collect(frame: pl.LazyFrame) -> pl.DataFrame:
    """The rows of a small answer; damaged files are an error of the log."""
    try:
        return frame.collect(engine="streaming")
    except UNREADABLE as error:
        raise LogError(f"cannot read the log: {first_line(error)}.") from error
