"""A sample of rows from all over a log, in one pass that never holds more than twice as many."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl

from counterpoise.errors import LogError

TICKET, PLACE = "counterpoise ticket", "counterpoise place"


def sample_of(batches: Iterable[pl.DataFrame], rows: int) -> pl.DataFrame:
    """All rows, or so many of them: those with the smallest random numbers, in the order of the log.

    The numbers follow the order of rows, so that the sample is the same however the log is cut into batches.

    >>> whole = pl.DataFrame({"x": range(10)})
    >>> sample_of([whole], 3).equals(sample_of([whole[:4], whole[4:]], 3))
    True
    """
    random, seen = np.random.default_rng(0), 0
    held: list[pl.DataFrame] = []
    for batch in batches:
        places = np.arange(seen, seen + batch.height)
        held.append(batch.with_columns(pl.Series(TICKET, random.random(batch.height)), pl.Series(PLACE, places)))
        seen += batch.height
        if sum(one.height for one in held) > 2 * rows:
            held = [pl.concat(held).bottom_k(rows, by=TICKET)]
    whole = together(held)
    if whole.height > rows:
        whole = whole.bottom_k(rows, by=TICKET)
    return whole.sort(PLACE).drop(TICKET, PLACE)


def some_of(rows: pl.LazyFrame, wanted: int, total: int) -> pl.LazyFrame:
    """About so many of `total` rows, by a hash of their numbers, so that no rhythm of the log decides which; all of a short log.

    >>> some_of(pl.LazyFrame({"x": range(10_000)}), 100, 10_000).collect().height
    101
    """
    if total <= wanted:
        return rows
    number = pl.int_range(pl.len(), dtype=pl.UInt64)
    return rows.filter(number * 2654435761 % 2**32 < 2**32 * wanted // total)


def together(batches: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """The rows of all batches, of which there must be some; a batch without rows has not got the columns that models add."""
    some = [batch for batch in batches if batch.height]
    if not some:
        raise LogError("the log has no rows.")
    return pl.concat(some)
