"""Samples of a log: rows from all over it, in one pass that never holds more than twice as many; and all rows of some ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.errors import LogError
from counterpoise.log.expressions import column as exactly
from counterpoise.log.expressions import columns as exactly_all
from counterpoise.readers.frames import from_array, series_of

TICKET, PLACE = "counterpoise ticket", "counterpoise place"
ALL = 2**64 - 1  # the largest hash
SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ by the golden ratio, whose multiples are spread evenly


@dataclass(frozen=True)
class First:
    """The first rows; whichever come first, if rows have no order."""

    rows: int

    @property
    def places(self) -> slice:
        """Which of the log's rows they are."""
        return slice(self.rows)


@dataclass(frozen=True)
class Peek(First):
    """At most so many, evenly spaced if the log is in memory, and otherwise the first."""


@dataclass(frozen=True)
class Spread:
    """About so many of a log's rows, of which there are `of`, from all over it; of a database, the first."""

    rows: int
    of: int

    @property
    def step(self) -> int:
        """From one to the next, in memory."""
        return max(self.of // self.rows, 1)

    @property
    def places(self) -> slice:
        """Which of the log's rows they are."""
        return slice(None, None, self.step)


@dataclass(frozen=True)
class Ids:
    """All rows of about one in so many of a column's ids."""

    column: str
    parts: int


Take = First | Spread | Ids


def sample_of(batches: Iterable[pl.DataFrame], rows: int) -> pl.DataFrame:
    """All rows, or so many of them: those with the smallest random numbers, in the order of the log.

    The numbers follow the order of rows, so that the sample is the same however the log is cut into batches.

    >>> whole = pl.DataFrame({"x": range(10)})
    >>> sample_of([whole], 3).equals(sample_of([whole[:4], whole[4:]], 3))
    True
    """
    random, before = np.random.default_rng(0), 0
    held: list[pl.DataFrame] = []
    for batch in batches:
        places = np.arange(before, before + batch.height)
        held.append(batch.with_columns(pl.Series(TICKET, random.random(batch.height)), pl.Series(PLACE, places)))
        before += batch.height
        if sum(part.height for part in held) > 2 * rows:
            held = [pl.concat(held).bottom_k(rows, by=TICKET)]
    whole = together(held)
    if whole.height > rows:
        whole = whole.bottom_k(rows, by=TICKET)
    return whole.sort(PLACE).drop(TICKET, PLACE)


def some_of(rows: pl.LazyFrame, wanted: int, total: int) -> pl.LazyFrame:
    """About so many of `total` rows, by a hash of their numbers, so that no pattern in the log matters; all of a short log.

    >>> some_of(pl.LazyFrame({"x": range(10_000)}), 100, 10_000).collect().height
    101
    """
    if total <= wanted:
        return rows
    number = pl.int_range(pl.len(), dtype=pl.UInt64)
    return rows.filter(number * 2654435761 % 2**32 < 2**32 * wanted // total)


def together(batches: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """The rows of all batches, at least one of which has rows; an empty batch lacks the columns that models add."""
    some = [batch for batch in batches if batch.height]
    if not some:
        raise LogError("the log has no rows.")
    return pl.concat(some)


def of_some_ids(rows: pl.LazyFrame, column: str, parts: int) -> pl.LazyFrame:
    """All rows of about one in so many ids."""
    return rows if parts == 1 else rows.filter(exactly(column).hash() < ALL // parts)


def rows_of_some_ids(data: Any, names: Sequence[str], column: str, parts: int) -> Any:
    """The same for some columns of arrays or a frame in memory, returned as the same kind of thing."""
    if isinstance(data, Mapping):
        rows = _places(from_array(column, data[column], is_number=False), parts)
        return {name: _take(data[name], rows) for name in names}
    if isinstance(data, pl.DataFrame):
        return data.select(exactly_all(names))[_places(data.get_column(column), parts)]
    frame = nw.from_native(data).select(list(names))
    if isinstance(frame, nw.LazyFrame):
        frame = frame.collect("polars")
    return frame[_places(series_of(frame[column], is_number=False, is_label=True), parts)].to_native()


def _take(values: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows of an array, a list or a series."""
    if isinstance(values, list | tuple):
        return [values[row] for row in rows]
    return values.gather(rows) if isinstance(values, pl.Series) else np.asarray(values)[rows]


def _places(ids: pl.Series, parts: int) -> NDArray[np.int64]:
    """Where the chosen ids are."""
    if ids.dtype in (pl.Int64, pl.UInt64) and not ids.null_count():
        hashes = ids.to_numpy().view(np.uint64) * SPREAD  # a third of the time that a thorough hash takes
    else:
        hashes = ids.hash().to_numpy()
    return np.flatnonzero(hashes < np.uint64(ALL // parts))
