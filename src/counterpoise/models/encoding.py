"""Encodes columns as numbers for a model: text and categories, missing values, and whatever turns up that was not there before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from counterpoise.errors import ColumnError
from counterpoise.log.expressions import column as exactly
from counterpoise.log.good import LARGEST
from counterpoise.moments import Floats

LEVELS = 200  # of a category that are told apart, the most frequent ones


@dataclass(frozen=True)
class Number:
    """A column of numbers: its mean and scale, whether values were missing, and the unit of what were points in time."""

    name: str
    mean: float
    scale: float
    has_gaps: bool
    unit: str | None = None

    def native(self, values: pl.Series) -> Floats:
        """The numbers; those missing or infinite are NaN."""
        return numbers_of(values)[:, None]

    def plain(self, values: pl.Series) -> Floats:
        """The numbers around 0 at scale 1; missing ones are at the mean, and marked where the model has seen such."""
        found = (numbers_of(values) - self.mean) / self.scale
        gaps = np.isnan(found)
        found[gaps] = 0.0
        return np.column_stack([found, gaps]) if self.has_gaps else found[:, None]


@dataclass(frozen=True)
class Category:
    """A column of categories: the values that are told apart, and whether missing ones have a column of their own."""

    name: str
    levels: tuple[str, ...]
    has_gaps: bool = False

    def codes(self, values: pl.Series) -> Floats:
        """The number of each value among the levels; NaN for one that is not."""
        return codes_of(text_of(values), self.levels)

    def native(self, values: pl.Series) -> Floats:
        """The codes themselves."""
        return self.codes(values)[:, None]

    def plain(self, values: pl.Series) -> Floats:
        """A column for every level, 1 where the value is that one; all 0 for an unseen value."""
        found = self.codes(values)[:, None] == np.arange(len(self.levels))
        if self.has_gaps:
            found = np.column_stack([found, values.is_null().to_numpy()])
        return np.asarray(found, dtype=np.float64)


@dataclass(frozen=True)
class Vector:
    """A column of lists of numbers, all of one length, such as an embedding: a column for every place in them."""

    name: str
    width: int

    def native(self, values: pl.Series) -> Floats:
        """The numbers; those missing or infinite are NaN."""
        return vectors_of(values, self.width)

    def plain(self, values: pl.Series) -> Floats:
        """The numbers as they are; missing ones are 0."""
        return np.nan_to_num(vectors_of(values, self.width), nan=0.0)


Column = Number | Category | Vector


@dataclass(frozen=True)
class Encoder:
    """How columns become numbers, as learned from some rows.

    >>> rows = pl.DataFrame({"age": [20, 40], "country": ["DE", "FR"]})
    >>> encoder = Encoder.of(rows, ["age", "country"])
    >>> encoder.plain(pl.DataFrame({"age": [30, None], "country": ["FR", "XX"]})).tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    >>> encoder.native(rows).tolist(), encoder.is_category
    ([[20.0, 0.0], [40.0, 1.0]], (False, True))
    """

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, rows: pl.DataFrame, names: Sequence[str]) -> Encoder:
        """The encoder for these columns."""
        return cls(tuple(_learned(rows.select(exactly(name)).to_series()) for name in names))

    @property
    def is_category(self) -> tuple[bool, ...]:
        """Which columns of the native form are categories."""
        widths = [one.width if isinstance(one, Vector) else 1 for one in self.columns]
        return tuple(
            isinstance(one, Category) for one, width in zip(self.columns, widths, strict=True) for _ in range(width)
        )

    def native(self, rows: pl.DataFrame) -> Floats:
        """One column for each: categories as codes, missing values as NaN."""
        return _side_by_side([one.native(rows.get_column(one.name)) for one in self.columns], rows.height)

    def plain(self, rows: pl.DataFrame) -> Floats:
        """Numbers standardized, categories as columns of 0 and 1, and nothing missing."""
        return _side_by_side([one.plain(rows.get_column(one.name)) for one in self.columns], rows.height)


def numbers_of(values: pl.Series) -> Floats:
    """A column as float64, NaN where it is missing, infinite or as good as; points in time are microseconds from 1970.

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
    found: Floats = values.cast(pl.Float64).to_numpy().astype(np.float64, copy=True)
    found[~(np.abs(found) <= LARGEST)] = np.nan  # whose squares would not be finite
    return found


def vectors_of(values: pl.Series, width: int | None = None) -> Floats:
    """A column of lists of numbers as a table, NaN where a number or a whole list is missing; all lists must have one length.

    >>> vectors_of(pl.Series([[1, 2], None])).tolist()
    [[1.0, 2.0], [nan, nan]]
    """
    if isinstance(values.dtype, pl.Array):
        values = values.arr.to_list()
    if not isinstance(values.dtype, pl.List) or not (values.dtype.inner.is_numeric() or values.dtype.inner == pl.Null):
        raise ColumnError(f"column {values.name!r} must hold lists of numbers, but holds {values.dtype}.")
    there, lengths = values.is_not_null(), values.list.len()
    expected = width if width is not None else int(lengths.drop_nulls()[0]) if there.any() else 0
    odd = (lengths != expected).fill_null(False).arg_true()
    if len(odd):
        raise ColumnError(
            f"the lists of column {values.name!r} must all have the same length: that of row {odd[0]:,} has "
            f"{lengths[odd[0]]:,} numbers, and others have {expected:,}."
        )
    found = np.full((len(values), expected), np.nan)
    if expected:
        found[there.to_numpy()] = numbers_of(values.drop_nulls().explode()).reshape(-1, expected)
    return found


def text_of(values: pl.Series) -> pl.Series:
    """Values as the text that tells them apart; 3 and 3.0 are the same action.

    >>> text_of(pl.Series([3.0, 1.0])).to_list(), text_of(pl.Series(["a", None])).to_list()
    (['3', '1'], ['a', None])
    """
    if values.dtype.is_float() and (values.drop_nulls() % 1 == 0).all():
        values = values.cast(pl.Int64)
    return values.cast(pl.String)


def codes_of(text: pl.Series, levels: Sequence[str]) -> Floats:
    """The number of each text among the levels, NaN for any other."""
    known = pl.Series(levels, dtype=pl.String)
    numbers = pl.Series(np.arange(len(levels), dtype=np.float64))
    found: Floats = text.replace_strict(known, numbers, default=None, return_dtype=pl.Float64).to_numpy()
    return found


def _learned(values: pl.Series) -> Column:
    dtype = values.dtype
    if dtype.is_numeric() or dtype.is_temporal() or dtype == pl.Boolean:
        found = numbers_of(values)
        known = found[~np.isnan(found)]
        mean, scale = (float(known.mean()), float(known.std())) if len(known) else (0.0, 1.0)
        return Number(
            values.name, mean, scale if scale > 1e-12 * abs(mean) and scale > 0 else 1.0, len(known) < len(found)
        )
    if dtype in (pl.String, pl.Categorical, pl.Enum) or dtype == pl.Null:
        counted = text_of(values).drop_nulls().alias("level").value_counts(sort=True, name="count").head(LEVELS)
        return Category(values.name, tuple(sorted(counted.to_series().to_list())))
    if isinstance(dtype, pl.List | pl.Array):
        return Vector(values.name, vectors_of(values).shape[1])
    raise ColumnError(
        f"a model takes numbers, text, truth values, points in time and lists of numbers, but column {values.name!r} holds {dtype}. "
        "Make numbers of it, or leave it out."
    )


def _side_by_side(parts: list[Floats], rows: int) -> Floats:
    return np.concatenate(parts, axis=1) if parts else np.zeros((rows, 0))
