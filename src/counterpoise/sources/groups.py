"""This file holds the hash that sends every cluster to one of a few groups, alike on every engine."""

from __future__ import annotations

import zlib

import narwhals as nw
import polars as pl

_PRIME = 2**26 - 5


def group_of(identity: nw.Expr, groups: int) -> nw.Expr:
    """Group of an integer id, by arithmetic every engine has: two squarings and a product modulo a prime below 2²⁶.

    Nothing exceeds 2⁵³, so engines that compute in float64 agree too. Neighbouring ids land far apart, as ids are often given out
    in order.
    """
    x = identity % _PRIME
    x = (x + _PRIME) % _PRIME  # some engines' remainder of a negative number is negative
    x = (x * x + 12345) % _PRIME
    x = (x * 48271) % _PRIME
    x = (x * x + 777) % _PRIME
    return x % groups


def integer_ids(values: pl.Series) -> pl.Series:
    """The ids of a cluster column as integers: integers as they are, all else by the CRC-32 of its text.

    The checksum is the same in every version and process, so that moments stored today fit those of tomorrow.
    """
    if values.dtype.is_integer():
        return values if values.dtype != pl.UInt64 else (values % _PRIME).cast(pl.Int64)
    if values.dtype.is_float() and bool((values.drop_nulls() % 1 == 0).all()):
        return values.cast(pl.Int64, strict=False)
    text = values.cast(pl.String)
    distinct = text.drop_nulls().unique()
    ids = pl.Series([zlib.crc32(value.encode()) for value in distinct], dtype=pl.Int64)
    return text.replace_strict(distinct, ids, default=None, return_dtype=pl.Int64)
