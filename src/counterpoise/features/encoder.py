"""The one encoder: how columns of numbers, of categories and of lists become numbers for trees, linear models and policies.

It is learned batch by batch, and kept with models, policies and ONNX files.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from counterpoise.errors import ColumnError, LogError, OptionError, first_line
from counterpoise.log.good import LARGEST
from counterpoise.moments import Floats
from counterpoise.readers.frames import from_table, series_of

LEVELS = 200  # of a category that are kept apart, the most frequent ones
MOST = 1_000_000  # distinct texts that are counted before we call them ids
COVERED = 0.1  # the share of the rows that must have one of the levels that are kept
TEXT = (pl.String, pl.Categorical, pl.Enum)
UNITS: dict[type[pl.DataType], str] = {
    pl.Date: "microseconds since 1970-01-01",
    pl.Datetime: "microseconds since 1970-01-01",
    pl.Duration: "microseconds",
    pl.Time: "nanoseconds since midnight",
}
VARIES = 1e-12  # of its mean: a column whose scale is smaller differs by rounding only


@dataclass(frozen=True)
class Scaling:
    """How many rows a table has, the mean of every column, and the sum of squares around it; those of two parts add up.

    Examples
    --------
    A column that never varies has scale 1, so that nothing is divided by 0:

    >>> scaling = Scaling.of([[1.0, 7.0]]) + Scaling.of([[2.0, 7.0], [3.0, 7.0]])
    >>> scaling.mean.tolist(), scaling.scale.round(3).tolist()
    ([2.0, 7.0], [0.816, 1.0])
    >>> scaling.standardize(np.array([[2.0, 8.0]])).tolist()
    [[0.0, 1.0]]

    References
    ----------
    Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1982.
    """

    rows: int
    mean: Floats
    scatter: Floats

    @classmethod
    def of(cls, table: ArrayLike) -> Scaling:
        """The scaling of one table's rows."""
        x = np.asarray(table, dtype=np.float64)
        if not len(x):
            return cls(0, np.zeros(x.shape[1]), np.zeros(x.shape[1]))
        with np.errstate(invalid="ignore"):
            mean = x.mean(axis=0)
            return cls(len(x), mean, np.square(x - mean).sum(axis=0))

    def __add__(self, other: Scaling) -> Scaling:
        rows = self.rows + other.rows
        if not rows:
            return self
        share = other.rows / rows
        # sums of squares around 0 would lose all digits of columns such as timestamps; and what is not finite is refused elsewhere, and
        # makes the mean and scale NaN here
        with np.errstate(invalid="ignore"):
            apart = other.mean - self.mean
            scatter = self.scatter + other.scatter + np.square(apart) * (self.rows * share)
            return Scaling(rows, self.mean + apart * share, scatter)

    @property
    def scale(self) -> Floats:
        """The standard deviations; 1 for a column that never varies."""
        scale = np.sqrt(self.scatter / max(self.rows, 1))
        return np.where(scale > VARIES * np.abs(self.mean), scale, 1.0)

    def leaving(self, columns: NDArray[np.bool_]) -> Scaling:
        """The same with mean 0 and scale 1 for some columns, which leaves them alone: standardized, a rare level would be huge.

        >>> Scaling.of([[0.0, 10.0], [1.0, 30.0]]).leaving(np.array([True, False])).standardize(np.array([[1.0, 30.0]])).tolist()
        [[1.0, 1.0]]
        """
        return replace(
            self, mean=np.where(columns, 0.0, self.mean), scatter=np.where(columns, float(self.rows), self.scatter)
        )

    def standardize(self, table: ArrayLike) -> Floats:
        """(x − mean) / scale."""
        return np.asarray((np.asarray(table, dtype=np.float64) - self.mean) / self.scale)


@dataclass(frozen=True)
class Numeric:
    """A column of numbers: whether some were missing, the unit if they were dates or times, and its mean and scale.

    A description has the mean only if some were missing, and never the scale, which a policy keeps in a layer of its own.
    """

    name: str
    has_gaps: bool = False
    unit: str | None = None
    mean: float = field(default=0.0, compare=False)  # its last digits depend on the parts in which a log was read
    scale: float = field(default=1.0, compare=False)
    kind: ClassVar[str] = "number"

    @property
    def features(self) -> tuple[str, ...]:
        """What each of its inputs is."""
        return (self.name, f"{self.name} is missing") if self.has_gaps else (self.name,)

    @property
    def is_indicator(self) -> tuple[bool, ...]:
        """Which of its inputs are 0 or 1: the mark of what is missing."""
        return (False, True) if self.has_gaps else (False,)

    def native(self, values: pl.Series) -> Floats:
        """The numbers; those missing or infinite are NaN."""
        return numbers_of(values)[:, None]

    def plain(self, values: pl.Series) -> Floats:
        """The numbers around 0 at scale 1; missing ones are at the mean, and marked where some were missing before."""
        standardized = (numbers_of(values) - self.mean) / self.scale
        gaps = np.isnan(standardized)
        standardized[gaps] = 0.0
        return np.column_stack([standardized, gaps]) if self.has_gaps else standardized[:, None]

    def inputs(self, values: pl.Series) -> Floats:
        """The numbers as they are; missing ones are at the mean and marked, or NaN where none were missing before."""
        if self.unit is not None and values.dtype.is_numeric():
            raise ColumnError(
                f"the policy was learned from points in time or durations in the context {self.name!r}, and now it has {values.dtype}.",
                do=f"Pass what the log had; encoded, they are {self.unit}.",
            )
        try:
            numbers = numbers_of(values)
        except pl.exceptions.PolarsError as error:
            raise ColumnError(
                f"the policy was learned from numbers in the context {self.name!r}, and now it has {values.dtype}: {first_line(error)}.",
                do="Cast the column to numbers.",
            ) from error
        if not self.has_gaps:
            return numbers[:, None]
        gaps = is_missing(values)
        return np.column_stack([np.where(gaps, self.mean, numbers), gaps])

    def described(self) -> dict[str, object]:
        """The column as JSON has it."""
        gaps = {"missing": True, "mean": self.mean} if self.has_gaps else {}
        unit = {} if self.unit is None else {"unit": self.unit}
        return {"name": self.name, "kind": self.kind, **gaps, **unit}


@dataclass(frozen=True)
class Category:
    """A column of categories: the values that are kept apart, and whether missing ones have their own column."""

    name: str
    levels: tuple[str, ...]
    has_gaps: bool = False
    kind: ClassVar[str] = "category"

    @property
    def features(self) -> tuple[str, ...]:
        """What each of its inputs is."""
        missing = (f"{self.name} is missing",) if self.has_gaps else ()
        return (*(f"{self.name} = {level!r}" for level in self.levels), *missing)

    @property
    def is_indicator(self) -> tuple[bool, ...]:
        """All of its inputs are 0 or 1."""
        return (True,) * (len(self.levels) + self.has_gaps)

    def native(self, values: pl.Series) -> Floats:
        """The number of each value among the levels; NaN for one that is not."""
        codes = codes_of(text_of(values), self.levels)[:, None]
        return np.where(codes < 0, np.nan, codes)

    def plain(self, values: pl.Series) -> Floats:
        """A column for every level, 1 where the value is that one; all 0 for an unseen value."""
        is_level = self.native(values) == np.arange(len(self.levels))
        if self.has_gaps:
            is_level = np.column_stack([is_level, values.is_null().to_numpy()])
        return np.asarray(is_level, dtype=np.float64)

    inputs = plain

    def described(self) -> dict[str, object]:
        """The column as JSON has it."""
        return {"name": self.name, "kind": self.kind, "levels": list(self.levels), "missing": self.has_gaps}


@dataclass(frozen=True)
class Vector:
    """A column of lists of numbers, all of one length, such as an embedding: a column for every place in them."""

    name: str
    width: int
    kind: ClassVar[str] = "list"

    @property
    def features(self) -> tuple[str, ...]:
        """What each of its inputs is."""
        return tuple(f"{self.name}[{k}]" for k in range(self.width))

    @property
    def is_indicator(self) -> tuple[bool, ...]:
        """None of its inputs are 0 or 1 alone."""
        return (False,) * self.width

    def native(self, values: pl.Series) -> Floats:
        """The numbers; those missing or infinite are NaN."""
        return vectors_of(values, self.width)

    def plain(self, values: pl.Series) -> Floats:
        """The numbers as they are; missing ones are 0."""
        return np.nan_to_num(vectors_of(values, self.width), nan=0.0)

    inputs = native

    def described(self) -> dict[str, object]:
        """The column as JSON has it."""
        return {"name": self.name, "kind": self.kind, "length": self.width}


EncodedColumn = Numeric | Category | Vector


def column_of(description: object) -> EncodedColumn:
    """The column that was described; a ValueError if it is something else."""
    match description:
        case {"name": str(name), "kind": Numeric.kind, **more}:
            missing, mean, unit = more.get("missing", False), more.get("mean", 0.0), more.get("unit")
            units = (None, *UNITS.values())
            if isinstance(missing, bool) and isinstance(mean, int | float) and np.isfinite(mean) and unit in units:
                return Numeric(name, missing, unit, float(mean))
            raise ValueError(f"column {name!r} of the context is not encoded as numbers are")
        case {"name": str(name), "kind": Category.kind, "levels": list(levels), "missing": bool(missing)} if all(
            isinstance(level, str) for level in levels
        ) and len(set(levels)) == len(levels):
            return Category(name, tuple(levels), missing)
        case {"name": str(name), "kind": Vector.kind, "length": int(length)} if length > 0:
            return Vector(name, length)
    raise ValueError(f"{str(description)[:60]!r} does not describe how a column of the context is encoded")


def kind_of(values: pl.Series) -> type[EncodedColumn]:
    """How a column would be encoded."""
    dtype = values.dtype
    if dtype in TEXT:
        return Category
    if isinstance(dtype, pl.List | pl.Array):
        if dtype.inner.is_numeric() or dtype.inner == pl.Null:
            return Vector
    elif dtype.is_numeric() or dtype.is_temporal() or dtype in (pl.Boolean, pl.Null):
        return Numeric
    raise ColumnError(
        f"column {values.name!r} has {dtype}; models and policies take numbers, text, truth values, points in time and lists of numbers.",
        do="Make numbers or text of it, for which an SQL expression will do, or leave it out.",
    )


# -- values as numbers and text ------------------------------------------------------------------------------------


def is_missing(values: pl.Series) -> NDArray[np.bool_]:
    """Which numbers are missing: null or NaN, but not infinite."""
    gaps = values.is_null()
    return (gaps | values.is_nan().fill_null(True) if values.dtype.is_float() else gaps).to_numpy()


def numbers_of(values: pl.Series) -> Floats:
    """A column as float64, NaN where it is missing, infinite or nearly so; dates and times are microseconds from 1970.

    >>> from datetime import date, datetime
    >>> bool(numbers_of(pl.Series([date(2026, 1, 1)])) == numbers_of(pl.Series([datetime(2026, 1, 1)], dtype=pl.Datetime("ns"))))
    True
    """
    if isinstance(values.dtype, pl.Duration):
        values = values.cast(pl.Duration("us"))
    elif values.dtype == pl.Date or isinstance(values.dtype, pl.Datetime):
        values = values.cast(pl.Datetime("us", getattr(values.dtype, "time_zone", None)))
    if values.dtype.is_temporal():
        values = values.to_physical()
    numbers: Floats = values.cast(pl.Float64).to_numpy().astype(np.float64, copy=True)
    numbers[~(np.abs(numbers) <= LARGEST)] = np.nan  # whose squares would not be finite
    return numbers


def vectors_of(values: pl.Series, width: int) -> Floats:
    """A column of lists of so many numbers as a table, NaN where a number or a whole list is missing.

    >>> vectors_of(pl.Series([[1, 2], None]), 2).tolist()
    [[1.0, 2.0], [nan, nan]]
    """
    lengths = lengths_of(values)
    odd = (lengths != width).fill_null(False).arg_true()
    if len(odd):
        raise ColumnError(
            f"the lists of column {values.name!r} must all have the same length: that of row {odd[0]:,} has "
            f"{lengths[odd[0]]:,} numbers, and others have {width:,}."
        )
    table = np.full((len(values), width), np.nan)
    if width:
        numbers = values.arr.to_list() if isinstance(values.dtype, pl.Array) else values
        table[values.is_not_null().to_numpy()] = numbers_of(numbers.drop_nulls().explode()).reshape(-1, width)
    return table


def lengths_of(values: pl.Series) -> pl.Series:
    """How many numbers each list of a column has."""
    dtype = values.dtype
    if not isinstance(dtype, pl.List | pl.Array) or not (dtype.inner.is_numeric() or dtype.inner == pl.Null):
        raise ColumnError(f"column {values.name!r} must hold lists of numbers, but holds {dtype}.")
    return (values.arr.to_list() if isinstance(dtype, pl.Array) else values).list.len()


def text_of(values: pl.Series) -> pl.Series:
    """Values as the text that tells them apart; 3 and 3.0 are the same action.

    >>> text_of(pl.Series([3.0, 1.0])).to_list(), text_of(pl.Series(["a", None])).to_list()
    (['3', '1'], ['a', None])
    """
    if values.dtype.is_float() and (values.drop_nulls() % 1 == 0).all():
        values = values.cast(pl.Int64)
    return values.cast(pl.String)


def codes_of(text: pl.Series, levels: Sequence[str]) -> NDArray[np.int64]:
    """The number of each text among the levels, −1 for any other.

    >>> codes_of(pl.Series(["b", "c", None]), ["a", "b"]).tolist()
    [1, -1, -1]
    """
    keys = pl.Series(levels, dtype=pl.String)
    return np.array(text.replace_strict(keys, np.arange(len(levels)), default=-1, return_dtype=pl.Int64))


# -- The encoder -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoder:
    """How columns become numbers, in their order; learned once, and kept with the model or policy.

    It has three forms. `native` is for trees: one column for each, categories as codes, and NaN for what is missing. `plain` is
    for models of numbers: standardized, a column of 0 and 1 for every level, and nothing missing. `table` is for policies, which
    standardize their inputs themselves: numbers as they are; where the log lacked some, those are at the mean of the others, and
    a second column marks them. In all of them, dates and times are microseconds, only the most frequent levels of a text are kept
    apart ("other" is 0 in all of its columns), and a list has a column for each of its numbers.

    Examples
    --------
    >>> rows = pl.DataFrame({"age": [20, 40], "country": ["DE", "FR"]})
    >>> encoder = Encoder.of(rows, ["age", "country"])
    >>> encoder.plain(pl.DataFrame({"age": [30, None], "country": ["FR", "XX"]})).tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    >>> encoder.native(rows).tolist(), encoder.is_category
    ([[20.0, 0.0], [40.0, 1.0]], (False, True))

    For a policy, from batches; a text that was missing has a column of its own:

    >>> batches = [rows, pl.DataFrame({"age": [30], "country": [None]})]
    >>> encoder = Encoder.learned(batches, ["age", "country"])
    >>> encoder.features
    ('age', "country = 'DE'", "country = 'FR'", 'country is missing')
    >>> encoder.table({"age": [50, 60], "country": ["IT", None]}).tolist()
    [[50.0, 0.0, 0.0, 0.0], [60.0, 0.0, 0.0, 1.0]]
    """

    columns: tuple[EncodedColumn, ...]

    @classmethod
    def of(cls, rows: pl.DataFrame, names: Sequence[str]) -> Encoder:
        """The encoder of a model, which takes rows as they come: infinite counts as missing, and missing text is not a level."""
        return cls(tuple(column.of_model for column in _summaries([rows], names, most=math.inf)))

    @classmethod
    def learned(cls, batches: Iterable[Mapping[str, object] | pl.DataFrame], names: Sequence[str]) -> Encoder:
        """The encoder of a policy, from the rows of a log batch by batch; texts that look like ids are refused."""
        return cls(tuple(column.of_policy for column in _summaries(batches, names, most=MOST)))

    @classmethod
    def of_description(cls, description: object) -> Encoder:
        """The encoder that was `described`; a ValueError if it is something else."""
        if not isinstance(description, list) or not description:
            raise ValueError("its encoding of contexts is not a list of columns")
        return cls(tuple(column_of(column) for column in description))

    def described(self) -> list[dict[str, object]]:
        """The encoder of a policy as JSON has it, in the order of the columns."""
        return [column.described() for column in self.columns]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the log, in order."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """What each column of the plain form, or each input of a policy, is."""
        return tuple(feature for column in self.columns for feature in column.features)

    @property
    def width(self) -> int:
        """How many numbers the plain form has, or a policy takes."""
        return len(self.features)

    @cached_property
    def is_indicator(self) -> NDArray[np.bool_]:
        """Which inputs are 0 or 1 for a level, or for what is missing: standardized, rare ones would be very large."""
        return np.array([flag for column in self.columns for flag in column.is_indicator], dtype=bool)

    @property
    def is_category(self) -> tuple[bool, ...]:
        """Which columns of the native form are categories."""
        return tuple(
            isinstance(column, Category)
            for column in self.columns
            for _ in range(column.width if isinstance(column, Vector) else 1)
        )

    @property
    def marks_gaps(self) -> bool:
        """Whether a column of numbers had missing values."""
        return any(isinstance(column, Numeric) and column.has_gaps for column in self.columns)

    def native(self, rows: pl.DataFrame) -> Floats:
        """One column for each: categories as codes, missing values as NaN."""
        return _side_by_side([column.native(rows.get_column(column.name)) for column in self.columns], rows.height)

    def plain(self, rows: pl.DataFrame) -> Floats:
        """Numbers standardized, categories as columns of 0 and 1, and nothing missing."""
        return _side_by_side([column.plain(rows.get_column(column.name)) for column in self.columns], rows.height)

    def numbers(self, rows: pl.DataFrame, *, is_native: bool) -> Floats:
        """The native form, for a model that takes categories and missing values as they are, or else the plain one."""
        return self.native(rows) if is_native else self.plain(rows)

    def blocks(self, columns: Mapping[str, object]) -> dict[str, Floats]:
        """The inputs that each column becomes, a table for each; NaN where a number is missing."""
        return {column.name: column.inputs(from_table(column.name, columns[column.name])) for column in self.columns}

    def table(self, context: object) -> Floats:
        """The inputs for contexts as a user has them: a frame, a mapping of columns, or rows of values in the order of the columns."""
        blocks = self.blocks(_columns(context, self.columns))
        for name, block in blocks.items():
            bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
            if len(bad):
                raise LogError(
                    f"context {name!r} must be finite numbers: {len(bad):,} of {len(block):,} rows are not; the first is row {bad[0]:,}.",
                    do="Fill them in as you would before training, or drop those rows.",
                )
        sizes = {name: len(block) for name, block in blocks.items()}
        if len(set(sizes.values())) > 1:
            raise ColumnError(f"all columns of a context must have the same number of rows; found {sizes}.")
        return np.concatenate(list(blocks.values()), axis=1)


def _side_by_side(parts: list[Floats], rows: int) -> Floats:
    return np.concatenate(parts, axis=1) if parts else np.zeros((rows, 0))


# -- learning it -----------------------------------------------------------------------------------------------------


def _summaries(
    batches: Iterable[Mapping[str, object] | pl.DataFrame], names: Sequence[str], most: float
) -> list[_ColumnSummary]:
    """What each column has in all batches; of a text, at most so many levels."""
    columns = [_ColumnSummary(name, most) for name in names]
    for batch in batches:
        for column in columns:
            column.add(from_table(column.name, batch[column.name]))
    return columns


class _ColumnSummary:
    """What a column has had in it so far."""

    def __init__(self, name: str, most: float) -> None:
        self.name, self.most = name, most
        self.kind: type[EncodedColumn] | None = None
        self.empty: type[EncodedColumn] = Numeric  # what it is by its type, if there is no value at all
        self.unit: str | None = None
        self.levels: Counter[str] = Counter()
        self.scaling = Scaling.of(np.empty((0, 1)))  # of the numbers that are finite
        self.rows = self.missing = self.width = 0

    def add(self, values: pl.Series) -> None:
        """Add some rows; a column without a single value says nothing yet."""
        self.rows += len(values)
        self.missing += int(is_missing(values).sum())
        kind = kind_of(values)
        if values.null_count() == len(values):
            self.empty = kind
            return
        if self.kind not in (None, kind):
            raise ColumnError(f"column {self.name!r} has {values.dtype} in some rows and something else in others.")
        self.kind = kind
        if kind is Category:
            counts = text_of(values.drop_nulls()).alias("level").value_counts(name="count")
            self.levels.update(dict(zip(counts.to_series(0).to_list(), counts.to_series(1).to_list(), strict=True)))
            if len(self.levels) > self.most:
                raise self._ids()
        elif kind is Vector:
            self._check_width(values)
        else:
            self.unit = UNITS.get(values.dtype.base_type(), self.unit)
            numbers = numbers_of(values)
            self.scaling += Scaling.of(numbers[~np.isnan(numbers), None])

    def _check_width(self, values: pl.Series) -> None:
        lengths = lengths_of(values).drop_nulls()
        self.width = self.width or int(lengths[0])
        if not self.width or (lengths != self.width).any():
            odd = lengths.filter(lengths != self.width) if self.width else lengths
            raise ColumnError(
                f"column {self.name!r} must have lists of the same length in every row; some have {self.width} numbers, others {odd[0]}.",
                do="Fill them up, or drop those rows with an SQL condition.",
            )

    @property
    def of_model(self) -> EncodedColumn:
        """How a model takes the column."""
        kind = self.kind or self.empty
        if kind is Category:
            return Category(self.name, self._frequent)
        return Vector(self.name, self.width) if kind is Vector else self._number(self.rows - self.scaling.rows)

    @property
    def of_policy(self) -> EncodedColumn:
        """How a policy takes the column."""
        if self.kind is Category:
            if sum(self.levels[level] for level in self._frequent) < COVERED * (self.rows - self.missing):
                raise self._ids()
            return Category(self.name, self._frequent, self.missing > 0)
        return Vector(self.name, self.width) if self.kind is Vector else self._number(self.missing)

    @property
    def _frequent(self) -> tuple[str, ...]:
        """The most frequent levels; of equally frequent ones, the first by name."""
        kept = heapq.nsmallest(LEVELS, self.levels.items(), key=lambda level: (-level[1], level[0]))
        return tuple(sorted(level for level, _ in kept))

    def _number(self, gaps: int) -> Numeric:
        mean, scale = float(self.scaling.mean[0]), float(self.scaling.scale[0])
        return Numeric(self.name, gaps > 0 and self.scaling.rows > 0, self.unit, mean, scale)

    def _ids(self) -> ColumnError:
        return ColumnError(
            f"context {self.name!r} has {len(self.levels):,} different texts, and the {LEVELS} most frequent are in less than "
            f"{COVERED:.0%} of the rows: it looks like an id.",
            do="Leave it out, or name an SQL expression that makes fewer levels of it in `context=`, or bring an "
            "embedding as a column of lists.",
        )


# -- contexts as users have them -------------------------------------------------------------------------------------


def with_names(context: object) -> tuple[Any, list[str]]:
    """Contexts that are in memory, and the columns of a frame, of a mapping, or of a mapping for every row."""
    if isinstance(context, list | tuple) and context and all(isinstance(row, Mapping) for row in context):
        return context, list(context[0])
    if isinstance(context, Mapping):
        return context, list(context)
    # polars reads a record batch, and narwhals does not
    frame = nw.from_native(
        pl.DataFrame(context) if hasattr(context, "__arrow_c_array__") else context, pass_through=True
    )
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect()
    return (frame.to_native(), frame.columns) if isinstance(frame, nw.DataFrame) else (context, [])


def _columns(context: object, encoded: Sequence[EncodedColumn]) -> dict[str, object]:
    """The columns of a context by name."""
    names = [column.name for column in encoded]
    rows, available = with_names(context)
    if isinstance(rows, Mapping):
        _check_there(names, available)
        columns = {name: rows[name] for name in names}
        # a single context, as a server gets it, has a list where the log has one in every row
        alone = all(_is_alone(columns[column.name], isinstance(column, Vector)) for column in encoded)
        return {name: [value] for name, value in columns.items()} if alone else columns
    if available and isinstance(rows, list | tuple):
        for row in rows:
            _check_there(names, list(row))
        return {name: [row[name] for row in rows] for name in names}
    if available:
        _check_there(names, available)
        frame = nw.from_native(rows, eager_only=True)
        return {name: series_of(frame[name], is_number=False) for name in names}
    if isinstance(rows, np.ndarray) and rows.dtype.kind in "biuf" and rows.shape[1:] == (len(names),):
        return {name: rows[:, k] for k, name in enumerate(names)}
    if isinstance(rows, np.ndarray | list | tuple):
        values = [list(row) for row in rows]
        odd = [row for row in values if len(row) != len(names)]
        if odd:
            raise OptionError(
                f"a context has {len(names)} columns ({', '.join(map(repr, names))}); found a row with {len(odd[0])} values."
            )
        return {name: pl.Series(name, [row[k] for row in values], strict=False) for k, name in enumerate(names)}
    raise OptionError(f"a context is a frame, a mapping of columns, or rows of values; found {type(context).__name__}.")


def _is_alone(value: Any, is_list: bool) -> bool:
    """Whether this is a single row's value."""
    if isinstance(value, str) or value is None:
        return True
    if not is_list or np.ndim(value) == 0:
        return np.ndim(value) == 0
    return all(np.ndim(number) == 0 for number in value)


def _check_there(names: Sequence[str], columns: Sequence[str]) -> None:
    lost = [name for name in names if name not in columns]
    if lost:
        raise ColumnError(
            f"the policy was learned from the columns {', '.join(map(repr, names))}; the context lacks {', '.join(map(repr, lost))}.",
            do="Pass a frame or a mapping that has them.",
        )
