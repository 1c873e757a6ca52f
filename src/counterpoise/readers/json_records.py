"""JSON lines of other tools: decoded batch by batch, no line lost in silence, and kept as Parquet files for as long as we run."""

from __future__ import annotations

import atexit
import gzip
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from io import BufferedIOBase
from itertools import count, islice
from pathlib import Path

import polars as pl
from polars.datatypes import DataTypeClass

from counterpoise.errors import LogError, OptionError, first_line
from counterpoise.log.expressions import column
from counterpoise.log.log import OWN
from counterpoise.readers.files import UNREADABLE, check_once, path_text

BATCH = 8 * 2**20  # bytes of text that are decoded at a time
SHAPED = 1000  # first records, which say what else there is to read
DEEPEST = 8  # levels of nesting that become columns
NESTED = 500  # brackets inside each other, which some versions of polars follow until the stack is full
EXACT = 2**53  # whole numbers beyond it are text: a float would mix them up

LINE, IS_READ = f"{OWN}line", f"{OWN}is read"  # columns beside the record's own
Type = pl.DataType | DataTypeClass  # polars takes either
Fields = dict[str, Type]


@dataclass(frozen=True)
class LineOfFile:
    """A line of a file."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"line {self.line:,} of {path_text(self.path)!r}"


@dataclass
class Tally:
    """How many lines there were of a kind, the first of them, and what was wrong with it."""

    lines: int
    first: LineOfFile
    why: str = ""


MALFORMED = "malformed"  # lines that cannot be read
BARE = "bare"  # records of which only the decision can be read


@dataclass
class Records:
    """The rows that lines became, as Parquet files, and how many lines did not become what they should, by the reason."""

    parts: list[Path] = field(default_factory=list)
    lines: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)

    def count(self, kind: str, path: Path, line: int, why: str = "") -> None:
        """One more line of a kind."""
        if kind in self.tallies:
            self.tallies[kind].lines += 1
        else:
            self.tallies[kind] = Tally(1, LineOfFile(path, line), why)


@dataclass(frozen=True)
class Layout:
    """How the lines of a format are read.

    `fields` are those that every record may have; `beside` finds further ones in the first records; `rows` makes rows of decoded
    records, with the reason for every record that is left out.
    """

    fields: Fields
    beside: Callable[[Sequence[Mapping[str, object]]], Fields]
    rows: Callable[[pl.DataFrame], tuple[pl.DataFrame, pl.Series]]


def convert(files: Sequence[Path], layout: Layout) -> Records:
    """All lines of all files as rows in Parquet files, in order; a line that cannot be read becomes a row without any value."""
    check_once(files)
    first = list(islice((record for path in files for record in _objects(path)), SHAPED))
    if not first:
        raise LogError(
            f"none of the first lines of {path_text(files[0])!r} is a JSON object.", do="Check the path and `format=`."
        )
    fields = {**layout.beside(first), **layout.fields}
    records, folder = Records(), Path(tempfile.mkdtemp(dir=_folder()))
    for path in files:
        for numbers, lines in _batches(path):
            frame, odd = _decode(lines, fields, layout.fields)
            for k, (kind, why) in odd.items():
                records.count(kind, path, numbers[k], why)
            rows, reasons = layout.rows(frame.with_columns(pl.Series(LINE, numbers, pl.Int64)))
            for k in reasons.is_not_null().arg_true():
                records.count(reasons[k], path, numbers[k])
            records.lines += len(lines)
            records.parts.append(folder / f"{len(records.parts):06}.parquet")
            rows.write_parquet(records.parts[-1])
    return records


# -- Lines ------------------------------------------------------------------------------------------------------------


def _batches(path: Path) -> Iterator[tuple[list[int], list[str]]]:
    """The lines of a file that are not blank, with their numbers; bytes that are not UTF-8 make a line that is not JSON."""
    number = count(1)
    with _open_text(path) as file:
        while lines := file.readlines(BATCH):
            texts: dict[int, str] = {}
            for line in lines:
                k = next(number)
                try:
                    texts[k] = line.strip().decode("utf-8")
                except UnicodeDecodeError:
                    texts[k] = "\ufffd"
            texts = {k: text for k, text in texts.items() if text}
            if texts:
                yield list(texts), list(texts.values())


def _open_text(path: Path) -> BufferedIOBase:
    is_compressed = path.name.lower().endswith(".gz")
    return gzip.GzipFile(path, "rb") if is_compressed else path.open("rb")


def _objects(path: Path) -> Iterator[dict[str, object]]:
    """The JSON objects in the first lines of a file; other lines are passed over here, and counted later."""
    try:
        with _open_text(path) as file:
            for line in islice(file, 10 * SHAPED):
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(record, dict):
                    yield record
    except (OSError, EOFError) as error:
        raise LogError(f"cannot read {path_text(path)!r}: {first_line(error)}.") from error


# -- Decoding ---------------------------------------------------------------------------------------------------------


def _decode(lines: list[str], fields: Fields, least: Fields) -> tuple[pl.DataFrame, dict[int, tuple[str, str]]]:
    """One row for each line: its fields, or at least those of the decision, or nulls; and which lines have less, and why."""
    null = pl.DataFrame({name: pl.Series(name, [None], dtype) for name, dtype in fields.items()})
    pieces: list[pl.DataFrame] = []
    odd: dict[int, tuple[str, str]] = {}

    def decode(start: int, stop: int) -> None:
        frame, _ = _frame(lines[start:stop], fields)
        if frame is None and stop - start > 1:  # something in it is not right: half of it is easier to blame
            middle = (start + stop) // 2
            decode(start, middle)
            decode(middle, stop)
            return
        if frame is None:
            frame, why = _frame(lines[start:stop], least)
            odd[start] = (MALFORMED if frame is None else BARE), why
            frame = null if frame is None else pl.concat([frame, null.drop(list(least))], how="horizontal")
        is_read = odd.get(start, (BARE,))[0] == BARE
        pieces.append(frame.select(pl.lit(is_read).alias(IS_READ), *map(column, fields)))

    decode(0, len(lines))
    return pl.concat(pieces), odd


def _frame(lines: list[str], fields: Fields) -> tuple[pl.DataFrame | None, str]:
    """The fields of some lines, or why they cannot be decoded together."""
    if not all(line.startswith("{") and line.endswith("}") for line in lines):
        return None, "it is not a JSON object"
    if any(_is_deep(line) for line in lines):
        return None, f"it has more than {NESTED} brackets inside each other"
    # polars reads the lines as one array, so that two halves of an object are one, and a line with a comma may be two: numbers tell
    rests = (line[1:].lstrip() for line in lines)
    numbered = [f'{{"{LINE}":{k}{"" if rest == "}" else ","}{rest}' for k, rest in enumerate(rests)]
    try:
        decoded = (
            pl.Series(numbered, dtype=pl.String)
            .str.json_decode(pl.Struct({LINE: pl.Int64(), **fields}))
            .struct.unnest()
        )
    except UNREADABLE as error:
        return None, first_line(error).removeprefix("error deserializing JSON: ")
    numbers = decoded.get_column(LINE)
    if len(numbers) != len(lines) or not numbers.eq_missing(pl.Series(range(len(lines)), dtype=pl.Int64)).all():
        return None, "it is more or less than one JSON object"
    return decoded.drop(LINE), ""


def _is_deep(line: str) -> bool:
    """Whether brackets are nested too deeply, those in text counted, too.

    >>> _is_deep("[" * 1000 + "]" * 1000), _is_deep("[1], " * 1000)
    (True, False)
    """
    if line.count("[") + line.count("{") <= NESTED:  # nearly every line
        return False
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", line):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest > NESTED


# -- What else a record has -------------------------------------------------------------------------------------------


_PATTERN = re.compile(r"\*|\^.*\$", re.DOTALL)  # names that polars would take for several


def shape_of(values: Iterable[object], depth: int = DEEPEST) -> pl.DataType | None:
    """The type of a field by its first values: numbers, truth values, text or objects of these; None for anything else.

    >>> shape_of([{"age": 3, "tags": ["a"]}, {"country": "NO"}])
    Struct({'age': Float64, 'country': String})
    """
    present = [value for value in values if value is not None]
    kinds = {type(value) for value in present}
    if kinds == {dict} and depth:
        objects: list[dict[str, object]] = [value for value in present if isinstance(value, dict)]
        names = dict.fromkeys(name for value in objects for name in value if not _PATTERN.fullmatch(name))
        shapes = {name: shape_of([value.get(name) for value in objects], depth - 1) for name in names}
        fields = {name: shape for name, shape in shapes.items() if shape is not None}
        return pl.Struct(fields) if fields else None
    if kinds == {bool}:
        return pl.Boolean()
    is_long = any(isinstance(value, int) and abs(value) > EXACT for value in present)
    if kinds and kinds <= {bool, int, float} and not is_long:
        return pl.Float64()
    return pl.String() if kinds and kinds <= {bool, int, float, str} else None


def flat(expression: pl.Expr, dtype: Type, prefix: str) -> dict[str, pl.Expr]:
    """The columns of a nested field, under names that join its keys.

    >>> list(flat(pl.col("c"), pl.Struct({"user": pl.Struct({"age": pl.Float64}), "hour": pl.Float64}), "context"))
    ['context_user_age', 'context_hour']
    """
    if not isinstance(dtype, pl.Struct):
        return {prefix: expression}
    columns: dict[str, pl.Expr] = {}
    for part in dtype.fields:
        for name, inner in flat(expression.struct.field(part.name), part.dtype, f"{prefix}_{part.name}").items():
            columns[f"{name}_" if name in columns else name] = inner
    return columns


# -- Files that live as long as we do ---------------------------------------------------------------------------------


@cache
def _folder() -> Path:
    """A folder of our own, removed when the process that made it ends; a fork leaves it alone."""
    try:
        folder, owner = Path(tempfile.mkdtemp(prefix="counterpoise-")), os.getpid()
    except OSError as error:
        raise OptionError(
            f"there is no place for temporary files: {error.strerror}.", do="Set TMPDIR to one."
        ) from error

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
