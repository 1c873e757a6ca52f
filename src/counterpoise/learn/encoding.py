"""The encoding of contexts that stays with a policy: how numbers, text, truth values and lists of numbers become its inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.errors import Argument, ColumnError, LogError, OptionError, first_line
from counterpoise.models.encoding import LEVELS, Category, Column, Number, Vector, numbers_of, text_of
from counterpoise.moments import Floats
from counterpoise.readers.frames import from_array, series_of

TEXT = (pl.String, pl.Categorical, pl.Enum)
MOST = 1_000_000  # different texts that are counted before we say that they are ids
COVERED = 0.1  # the share of the rows that must have one of the levels that are kept
KINDS = {Number: "number", Category: "category", Vector: "list"}
UNITS: dict[Any, str] = {
    pl.Date: "microseconds since 1970-01-01",
    pl.Datetime: "microseconds since 1970-01-01",
    pl.Duration: "microseconds",
    pl.Time: "nanoseconds since midnight",
}


@dataclass(frozen=True)
class Encoding:
    """How the columns of a context become numbers, in their order; learned once, and kept with the policy.

    Numbers and truth values stay as they are; where the log lacks some, those are at the mean of the others, and a second column marks
    them. Points in time are numbers of microseconds. A text has a column for each of its most frequent levels, and one for missing values
    if the log had any; whatever else turns up ("other") has 0 in all of them. A list has a column for each of its numbers.

    Examples
    --------
    >>> rows = pl.DataFrame({"age": [20, 40, 30], "country": ["DE", "FR", None], "taste": [[1.0, 0.5]] * 3})
    >>> encoding = learned_encoding([rows], ["age", "country", "taste"])
    >>> encoding.features
    ('age', "country = 'DE'", "country = 'FR'", 'country is missing', 'taste[0]', 'taste[1]')
    >>> encoding.table({"age": [50], "country": ["IT"], "taste": [[0, 1]]}).tolist()
    [[50.0, 0.0, 0.0, 0.0, 0.0, 1.0]]
    """

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the log, in order."""
        return tuple(one.name for one in self.columns)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """What each input is, in order."""
        return tuple(name for one in self.columns for name in _features(one))

    @property
    def width(self) -> int:
        """How many numbers the policy takes."""
        return len(self.features)

    @cached_property
    def is_indicator(self) -> NDArray[np.bool_]:
        """Which inputs are 0 or 1 for a level, or for what is missing: standardized, rare ones would be very large."""
        return np.array(
            [
                isinstance(one, Category) or (isinstance(one, Number) and k > 0)
                for one in self.columns
                for k in range(len(_features(one)))
            ],
            dtype=bool,
        )

    @property
    def marks_gaps(self) -> bool:
        """Whether a column of numbers was lacking some."""
        return any(isinstance(one, Number) and one.has_gaps for one in self.columns)

    def blocks(self, columns: Mapping[str, Any]) -> dict[str, Floats]:
        """The inputs that each column becomes, a table for each; NaN where a number is missing."""
        return {one.name: _block(one, series(one.name, columns[one.name])) for one in self.columns}

    def table(self, context: Any) -> Floats:
        """The inputs for contexts as a user has them: a frame, a mapping of columns, or rows of values in the order of the columns."""
        blocks = self.blocks(_columns(context, self.columns))
        for name, block in blocks.items():
            bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
            if len(bad):
                raise LogError(
                    f"context {name!r} must be finite numbers: {len(bad):,} of {len(block):,} rows are not; the first is row {bad[0]:,}.",
                    do="Fill them in as you would before training, or leave those rows out.",
                )
        sizes = {name: len(block) for name, block in blocks.items()}
        if len(set(sizes.values())) > 1:
            raise ColumnError(f"all columns of a context must have the same number of rows; found {sizes}.")
        return np.concatenate(list(blocks.values()), axis=1)

    def described(self) -> list[dict[str, Any]]:
        """The encoding as JSON has it, in the order of the columns."""
        return [_described(one) for one in self.columns]


def encoding_of(description: Any) -> Encoding:
    """The encoding that was described; a ValueError if it is none."""
    if not isinstance(description, list) or not description:
        raise ValueError("its encoding of contexts is not a list of columns")
    return Encoding(tuple(_of_description(one) for one in description))


def _described(one: Column) -> dict[str, Any]:
    found: dict[str, Any] = {"name": one.name, "kind": KINDS[type(one)]}
    if isinstance(one, Category):
        found |= {"levels": list(one.levels), "missing": one.has_gaps}
    if isinstance(one, Vector):
        found |= {"length": one.width}
    if isinstance(one, Number) and one.has_gaps:
        found |= {"missing": True, "mean": one.mean}
    if isinstance(one, Number) and one.unit is not None:
        found |= {"unit": one.unit}
    return found


def _of_description(one: Any) -> Column:
    match one:
        case {"name": str(name), "kind": "number"}:
            return _number_of(name, one.get("missing", False), one.get("mean", 0.0), one.get("unit"))
        case {"name": str(name), "kind": "category", "levels": list(levels), "missing": bool(missing)} if all(
            isinstance(level, str) for level in levels
        ) and len(set(levels)) == len(levels):
            return Category(name, tuple(levels), missing)
        case {"name": str(name), "kind": "list", "length": int(length)} if length > 0:
            return Vector(name, length)
    raise ValueError(f"{str(one)[:60]!r} does not say how a column of the context is encoded")


def _number_of(name: str, missing: Any, mean: Any, unit: Any) -> Number:
    is_known = isinstance(missing, bool) and isinstance(mean, int | float) and np.isfinite(mean)
    if not is_known or unit not in (None, *UNITS.values()):
        raise ValueError(f"column {name!r} of the context is not encoded as numbers are")
    return Number(name, float(mean), 1.0, missing, unit)


def _features(one: Column) -> list[str]:
    if isinstance(one, Category):
        missing = [f"{one.name} is missing"] if one.has_gaps else []
        return [*(f"{one.name} = {level!r}" for level in one.levels), *missing]
    if isinstance(one, Number) and one.has_gaps:
        return [one.name, f"{one.name} is missing"]
    return [f"{one.name}[{k}]" for k in range(one.width)] if isinstance(one, Vector) else [one.name]


def _block(one: Column, values: pl.Series) -> Floats:
    if isinstance(one, Category):
        return one.plain(values.cast(pl.String) if values.dtype == pl.Null else values)
    if isinstance(one, Number) and one.unit is not None and values.dtype.is_numeric():
        raise ColumnError(
            f"the policy was learned from points in time or durations in the context {one.name!r}, and now it has {values.dtype}.",
            do=f"Pass what the log had; encoded, they are {one.unit}.",
        )
    try:
        found = one.native(values)
        if isinstance(one, Number) and one.has_gaps:
            gaps = is_missing(values)
            found = np.column_stack([np.where(gaps, one.mean, found[:, 0]), gaps])
        return found
    except pl.exceptions.PolarsError as error:
        raise ColumnError(
            f"the policy was learned from numbers in the context {one.name!r}, and now it has {values.dtype}: {first_line(error)}.",
            do="Cast the column to numbers.",
        ) from error


def is_missing(values: pl.Series) -> NDArray[np.bool_]:
    """Which numbers are missing: null or NaN, but not infinite."""
    gaps = values.is_null()
    return (gaps | values.is_nan().fill_null(True) if values.dtype.is_float() else gaps).to_numpy()


# -- learning it -----------------------------------------------------------------------------------------------------


def learned_encoding(parts: Iterator[Mapping[str, Any]] | Sequence[Any], names: Sequence[str]) -> Encoding:
    """The encoding of some columns, from the rows of a log part by part."""
    found: dict[str, _Seen] = {}
    for part in parts:
        for name in names:
            values = series(name, part[name])
            found.setdefault(name, _Seen(name)).add(values)
    return Encoding(tuple(found[name].column for name in names))


class _Seen:
    """What a column has had in it so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind: type[Column] | None = None
        self.unit: str | None = None
        self.levels: Counter[str] = Counter()
        self.rows = self.missing = self.width = 0
        self.total, self.counted = 0.0, 0

    def add(self, values: pl.Series) -> None:
        """Take in some rows; a column without a single value says nothing yet."""
        self.rows += len(values)
        self.missing += int(is_missing(values).sum())
        if values.null_count() == len(values):
            return
        kind = kind_of(values)
        if self.kind not in (None, kind):
            raise ColumnError(f"context {self.name!r} has {values.dtype} in some rows and something else in others.")
        self.kind = kind
        if kind is Category:
            counts = text_of(values.drop_nulls()).alias("level").value_counts(name="count")
            self.levels.update(dict(zip(counts.to_series(0).to_list(), counts.to_series(1).to_list(), strict=True)))
            if len(self.levels) > MOST:
                raise self._ids()
        if kind is Vector:
            self._check_width(values)
        if kind is Number:
            self.unit = UNITS.get(values.dtype.base_type(), self.unit)
            numbers = numbers_of(values)
            known = numbers[~np.isnan(numbers)]
            self.total, self.counted = self.total + float(known.sum()), self.counted + len(known)

    def _check_width(self, values: pl.Series) -> None:
        lengths = (values.arr.to_list() if isinstance(values.dtype, pl.Array) else values).list.len().drop_nulls()
        self.width = self.width or int(lengths[0])
        if not self.width or (lengths != self.width).any():
            odd = lengths.filter(lengths != self.width) if self.width else lengths
            raise ColumnError(
                f"context {self.name!r} must have lists of the same length in every row; some have {self.width} numbers, others {odd[0]}.",
                do="Fill them up, or leave those rows out with an SQL condition.",
            )

    @property
    def column(self) -> Column:
        """How the column is encoded."""
        if self.kind is Vector:
            return Vector(self.name, self.width)
        if self.kind is not Category:
            mean = self.total / self.counted if self.missing and self.counted else 0.0
            return Number(self.name, mean, 1.0, self.missing > 0 and self.counted > 0, self.unit)
        kept = self.levels.most_common(LEVELS)
        if sum(count for _, count in kept) < COVERED * (self.rows - self.missing):
            raise self._ids()
        return Category(self.name, tuple(sorted(level for level, _ in kept)), self.missing > 0)

    def _ids(self) -> ColumnError:
        return ColumnError(
            f"context {self.name!r} has {len(self.levels):,} different texts, and the {LEVELS} most frequent are in less than "
            f"{COVERED:.0%} of the rows: it looks like an id.",
            do=[
                "Leave it out, or name an SQL expression that makes fewer levels of it in ",
                Argument("context"),
                ", or bring an embedding as a column of lists.",
            ],
        )


def kind_of(values: pl.Series) -> type[Column]:
    """How a column would be encoded."""
    dtype = values.dtype
    if dtype in TEXT:
        return Category
    if isinstance(dtype, pl.List | pl.Array):
        if dtype.inner.is_numeric() or dtype.inner == pl.Null:
            return Vector
    elif dtype.is_numeric() or dtype.is_temporal() or dtype in (pl.Boolean, pl.Null):
        return Number
    raise ColumnError(
        f"a context is numbers, text, truth values, points in time or lists of numbers; column {values.name!r} has {dtype}.",
        do="Make numbers or text of it; an SQL expression will do.",
    )


# -- what users have -------------------------------------------------------------------------------------------------


def series(name: str, values: Any) -> pl.Series:
    """A column, whatever it is in, as a polars series."""
    if isinstance(values, pl.Series):
        return values.alias(name)
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return pl.Series(name, np.ascontiguousarray(values))
    if isinstance(values, list | tuple) and any(isinstance(one, list | tuple | np.ndarray) for one in values[:1000]):
        return pl.Series(name, [None if one is None else list(one) for one in values], strict=False)
    return from_array(name, values, is_number=False)


def _columns(context: Any, known: Sequence[Column]) -> dict[str, Any]:
    """The columns of a context by name."""
    names = [one.name for one in known]
    if isinstance(context, Mapping):
        _check_there(names, list(context))
        columns = {name: context[name] for name in names}
        # a single context, as a server gets it, has a list where the log has one in every row
        alone = all(_is_alone(columns[one.name], isinstance(one, Vector)) for one in known)
        return {name: [one] for name, one in columns.items()} if alone else columns
    if isinstance(context, list | tuple) and context and all(isinstance(one, Mapping) for one in context):
        for one in context:
            _check_there(names, list(one))
        return {name: [one[name] for one in context] for name in names}
    if isinstance(context, pl.DataFrame):
        _check_there(names, context.columns)
        return {name: context.get_column(name) for name in names}
    if isinstance(context, np.ndarray) and context.dtype.kind in "biuf" and context.shape[1:] == (len(names),):
        return {name: context[:, k] for k, name in enumerate(names)}
    if isinstance(context, np.ndarray | list | tuple):
        return _of_rows(context, names)
    try:
        frame = nw.from_native(context)
    except TypeError as error:
        raise OptionError(
            f"a context is a frame, a mapping of columns, or rows of values; found {type(context).__name__}."
        ) from error
    _check_there(names, frame.collect_schema().names())
    if isinstance(frame, nw.LazyFrame):
        frame = frame.select(list(names)).collect()
    return {name: series_of(frame[name], is_number=False) for name in names}


def _is_alone(value: Any, is_list: bool) -> bool:
    """Whether this is what one row has in a column."""
    if isinstance(value, str) or value is None:
        return True
    if not is_list or np.ndim(value) == 0:
        return np.ndim(value) == 0
    return all(np.ndim(one) == 0 for one in value)


def _of_rows(context: Any, names: Sequence[str]) -> dict[str, Any]:
    rows = [list(row) for row in context]
    odd = [row for row in rows if len(row) != len(names)]
    if odd:
        raise OptionError(
            f"a context has {len(names)} columns ({', '.join(map(repr, names))}); found a row with {len(odd[0])} values."
        )
    return {name: pl.Series(name, [row[k] for row in rows], strict=False) for k, name in enumerate(names)}


def _check_there(names: Sequence[str], found: Sequence[str]) -> None:
    lost = [name for name in names if name not in found]
    if lost:
        raise ColumnError(
            f"the policy was learned from the columns {', '.join(map(repr, names))}; the context lacks {', '.join(map(repr, lost))}.",
            do="Pass a frame or a mapping that has them.",
        )
