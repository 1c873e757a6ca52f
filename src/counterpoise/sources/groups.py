"""This file holds the hash that sends every cluster to one of a few groups, alike on every engine."""

from __future__ import annotations

import zlib
from typing import Any, TypeVar

import narwhals as nw
import polars as pl

_PRIME = 2**26 - 5


Frame = TypeVar("Frame", nw.DataFrame[Any], nw.LazyFrame[Any])


def with_groups(frame: Frame, groups: int) -> Frame:
    """The integer ids in column g as groups, by arithmetic every engine has: two squarings and a product modulo a prime.

    The prime is below 2²⁶, so nothing exceeds 2⁵³ and engines that compute in float64 agree too. Neighbouring ids land far apart,
    as ids are often given out in order. Step by step, because x·x written out doubles the text of an SQL statement each time.
    """
    g = nw.col("g")
    frame = frame.with_columns(g=g % _PRIME)
    frame = frame.with_columns(g=(g + _PRIME) % _PRIME)  # some engines' remainder of a negative number is negative
    frame = frame.with_columns(g=(g * g + 12345) % _PRIME)
    frame = frame.with_columns(g=(g * 48271) % _PRIME)
    frame = frame.with_columns(g=(g * g + 777) % _PRIME)
    return frame.with_columns(g=g % groups)


def integer_ids(values: pl.Series) -> pl.Series:
    """The ids of a cluster column as integers: whole numbers as they are, all else by the CRC-32 of its text.

    The checksum is the same in every version and process, so that moments stored today fit those of tomorrow.
    """
    if values.dtype.is_integer():
        return values.cast(pl.Int64) if values.dtype != pl.UInt64 else (values % _PRIME).cast(pl.Int64)
    whole = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(values))
    if (
        values.dtype.is_float()
    ):  # value by value: whether the others are whole must not matter, they may be in another batch
        whole = values.set(values % 1 != 0, None).cast(pl.Int64, strict=False)
        if whole.null_count() == values.is_nan().sum() + values.null_count():
            return whole
    text = values.cast(pl.String)
    distinct = text.drop_nulls().unique()
    ids = pl.Series([zlib.crc32(value.encode()) for value in distinct], dtype=pl.Int64)
    checksums = text.replace_strict(distinct, ids, default=None, return_dtype=pl.Int64)
    return whole.zip_with(whole.is_not_null(), checksums)
