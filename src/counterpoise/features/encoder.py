"""The one encoder: how the columns of a log become numbers, learned batch by batch, and kept with models, policies and ONNX files."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.errors import ColumnError, LogError, OptionError
from counterpoise.features.columns import (
    UNITS,
    Category,
    Column,
    Numeric,
    Scaling,
    Vector,
    column_of,
    is_missing,
    kind_of,
    lengths_of,
    numbers_of,
    text_of,
)
from counterpoise.moments import Floats
from counterpoise.readers.frames import from_table, series_of

LEVELS = 200  # of a category that are kept apart, the most frequent ones
MOST = 1_000_000  # distinct texts that are counted before we call them ids
COVERED = 0.1  # the share of the rows that must have one of the levels that are kept


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

    columns: tuple[Column, ...]

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
                    do="Fill them in as you would before training, or leave those rows out.",
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
) -> list[_Summary]:
    """What each column has in all batches; of a text, at most so many levels."""
    columns = [_Summary(name, most) for name in names]
    for batch in batches:
        for column in columns:
            column.add(from_table(column.name, batch[column.name]))
    return columns


class _Summary:
    """What a column has had in it so far."""

    def __init__(self, name: str, most: float) -> None:
        self.name, self.most = name, most
        self.kind: type[Column] | None = None
        self.empty: type[Column] = Numeric  # what it is by its type, if there is no value at all
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
                do="Fill them up, or leave those rows out with an SQL condition.",
            )

    @property
    def of_model(self) -> Column:
        """How a model takes the column."""
        kind = self.kind or self.empty
        if kind is Category:
            return Category(self.name, self._kept)
        return Vector(self.name, self.width) if kind is Vector else self._number(self.rows - self.scaling.rows)

    @property
    def of_policy(self) -> Column:
        """How a policy takes the column."""
        if self.kind is Category:
            if sum(self.levels[level] for level in self._kept) < COVERED * (self.rows - self.missing):
                raise self._ids()
            return Category(self.name, self._kept, self.missing > 0)
        return Vector(self.name, self.width) if self.kind is Vector else self._number(self.missing)

    @property
    def _kept(self) -> tuple[str, ...]:
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


def _columns(context: object, known: Sequence[Column]) -> dict[str, object]:
    """The columns of a context by name."""
    names = [column.name for column in known]
    rows, available = with_names(context)
    if isinstance(rows, Mapping):
        _check_there(names, available)
        columns = {name: rows[name] for name in names}
        # a single context, as a server gets it, has a list where the log has one in every row
        alone = all(_is_alone(columns[column.name], isinstance(column, Vector)) for column in known)
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
