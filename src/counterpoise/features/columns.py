"""Columns of numbers, of categories and of lists: their scale, and what each becomes for trees, for linear models and for policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from counterpoise.errors import ColumnError, first_line
from counterpoise.log.good import LARGEST
from counterpoise.moments import Floats

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
    >>> scaling.standardized(np.array([[2.0, 8.0]])).tolist()
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

        >>> Scaling.of([[0.0, 10.0], [1.0, 30.0]]).leaving(np.array([True, False])).standardized(np.array([[1.0, 30.0]])).tolist()
        [[1.0, 1.0]]
        """
        return replace(
            self, mean=np.where(columns, 0.0, self.mean), scatter=np.where(columns, float(self.rows), self.scatter)
        )

    def standardized(self, table: ArrayLike) -> Floats:
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


Column = Numeric | Category | Vector


def column_of(description: object) -> Column:
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
    raise ValueError(f"{str(description)[:60]!r} does not say how a column of the context is encoded")


def kind_of(values: pl.Series) -> type[Column]:
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
    known = pl.Series(levels, dtype=pl.String)
    return np.array(text.replace_strict(known, np.arange(len(levels)), default=-1, return_dtype=pl.Int64))
