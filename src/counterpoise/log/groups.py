"""The hash that sends every cluster to one of a few groups, the same on every engine."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import narwhals as nw
import polars as pl

from counterpoise.errors import ColumnError

PRIME = 2**26 - 5
CLUSTER = "the cluster's checksum"  # a column of our own: where the cluster is text, and other parts may want the text


Frame = TypeVar("Frame", nw.DataFrame[Any], nw.LazyFrame[Any])


def checksum_of(column: str) -> str:
    """The name of a column's checksums, a column of our own."""
    return f"the checksum of {column}"


def with_groups(frame: Frame, groups: int) -> Frame:
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
        # by a series, as polars divides the widest integers by no plain number
        return values.cast(pl.Int64) if narrow else (values % pl.Series([PRIME], dtype=values.dtype)).cast(pl.Int64)
    if values.dtype.is_float():
        values = values.fill_nan(None)
        whole = (values % 1 == 0) & (values.abs() < 2.0**53)
        numbers = values.set(~whole.fill_null(False), None).cast(pl.Int64)
        return numbers.zip_with(whole.fill_null(True), _checksums(values))
    return _checksums(values)


def _checksums(values: pl.Series) -> pl.Series:
    try:
        text = values.cast(pl.String)
    except pl.exceptions.PolarsError as error:
        raise ColumnError(f"cluster {values.name!r} must hold numbers or text, but holds {values.dtype}.") from error
    distinct = text.drop_nulls().unique()
    ids = pl.Series([_checksum(value) for value in distinct], dtype=pl.Int64)
    return text.replace_strict(distinct, ids, default=None, return_dtype=pl.Int64)


def _checksum(text: str) -> int:
    """The first six hexadecimal digits of the checksum, which stay below the prime and are enough for 10,000 groups."""
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:6], 16)
