"""The hash that sends every cluster to one of a few groups, the same on every engine, and rows to the folds of models."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.errors import ColumnError

if TYPE_CHECKING:
    from narwhals.typing import FrameT

PRIME = 2**26 - 5
MANY = 5_000  # texts for which compiled checksums pay
CLUSTER = "the cluster's checksum"  # our own column, since other parts may need the text of the cluster


def checksum_of(column: str) -> str:
    """The name of a column's checksums, a column of our own."""
    return f"the checksum of {column}"


def with_groups(frame: FrameT, groups: int) -> FrameT:
    """The integer ids in column g as groups, by arithmetic that every engine has: two squarings and a product modulo a prime.

    The prime is below 2²⁶, so nothing exceeds 2⁵³, and engines that compute in float64 agree, too. Neighboring ids land far apart,
    because ids are often given out in order. It goes step by step, because x·x written out doubles the text of an SQL statement each time.
    """
    g = nw.col("g")
    frame = frame.with_columns(g=g % PRIME)
    frame = frame.with_columns(g=(g + PRIME) % PRIME)  # some engines' remainder of a negative number is negative
    frame = frame.with_columns(g=(g * g + 12345) % PRIME)
    frame = frame.with_columns(g=(g * 48271) % PRIME)
    frame = frame.with_columns(g=(g * g + 777) % PRIME)
    return frame.with_columns(g=g % groups)


def integer_ids(values: pl.Series) -> pl.Series:
    """The ids of a cluster column as integers: whole numbers as they are, anything else by the MD5 of its text; NaN is not an id.

    This is decided value by value. Databases and Spark compute the same checksum, so the moments of a log are the same wherever it
    lives, and those stored today fit tomorrow's.
    """
    if values.dtype.is_integer():
        # too narrow for the prime
        narrow = values.dtype in (pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16, pl.UInt32)
        # by a series: polars cannot divide the widest integers by a plain number
        return values.cast(pl.Int64) if narrow else (values % pl.Series([PRIME], dtype=values.dtype)).cast(pl.Int64)
    if values.dtype.is_float():
        values = values.fill_nan(None)
        is_whole = (values % 1 == 0) & (values.abs() < 2.0**53)
        numbers = values.set(~is_whole.fill_null(False), None).cast(pl.Int64)
        return numbers.zip_with(is_whole.fill_null(True), _checksums(values))
    return _checksums(values)


def _checksums(values: pl.Series) -> pl.Series:
    try:
        text = values.cast(pl.String)
    except pl.exceptions.PolarsError as error:
        raise ColumnError(f"cluster {values.name!r} must hold numbers or text, but holds {values.dtype}.") from error
    if len(text) >= MANY and "counterpoise.engines.loop" in sys.modules:  # a log is long enough for compiled code
        with suppress(ImportError):
            from counterpoise.log.checksums import checksums

            return checksums(text)
    distinct = text.drop_nulls().unique()
    # the first six hexadecimal digits, which stay below the prime and are enough for 10,000 groups
    digits = (hashlib.md5(value.encode(), usedforsecurity=False).hexdigest()[:6] for value in distinct)
    ids = pl.Series([int(six, 16) for six in digits], dtype=pl.Int64)
    return text.replace_strict(distinct, ids, default=None, return_dtype=pl.Int64)


# -- random numbers that belong to a row -------------------------------------------------------------------------------

STEP = np.uint64(0x9E3779B97F4A7C15)  # between the states of splitmix64 (Steele, Lea & Flood, OOPSLA 2014)


def mix(states: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of splitmix64, in which every bit of the state affects every bit of the output."""
    x = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform(states: NDArray[np.uint64]) -> NDArray[np.float64]:
    """A number in [0, 1) for every state of splitmix64.

    >>> bool(abs(uniform(np.arange(10_000, dtype=np.uint64) * STEP).mean() - 0.5) < 0.01)
    True
    """
    return np.asarray((mix(states) >> np.uint64(11)) / 2.0**53)


# -- folds -------------------------------------------------------------------------------------------------------------


def row_ids(frame: pl.DataFrame, names: Sequence[str], first_row: int) -> pl.Series:
    """What tells rows apart: the integer ids of their cluster or key; without either, their number in the log.

    Never their content: rows with the same context and reward would all land in one fold.

    >>> row_ids(pl.DataFrame({"user": [7, 8]}), ["user"], 0).to_list(), row_ids(pl.DataFrame({"user": [7, 8]}), [], 5).to_list()
    ([7, 8], [5, 6])
    """
    if not names:
        return pl.Series(np.arange(first_row, first_row + frame.height))
    chosen = pl.DataFrame([frame.get_column(name) for name in names])
    if len(names) == 1:
        return integer_ids(chosen.to_series())
    return integer_ids(chosen.select(pl.concat_str(pl.all().cast(pl.String), separator="\x1f")).to_series())


def folds_of(ids: pl.Series, folds: int) -> NDArray[np.int64]:
    """The fold of every row, by the hash that groups clusters; -1 where a row has no id.

    >>> folds = folds_of(pl.Series([1, 2, 3, 1, None]), 2)
    >>> bool(folds[0] == folds[3]), int(folds[4])
    (True, -1)
    """
    hashed = with_groups(nw.from_native(pl.DataFrame({"g": ids.cast(pl.Int64)}), eager_only=True), folds).to_native()
    numbers: NDArray[np.int64] = hashed.get_column("g").fill_null(-1).cast(pl.Int64).to_numpy()
    return numbers
