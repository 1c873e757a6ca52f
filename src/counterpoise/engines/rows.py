"""The rows of a log, for questions that sums cannot answer: all of them, or the good ones as the estimates see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import polars as pl

from counterpoise.engines.registry import columns_of, engine_of, rows
from counterpoise.engines.sampling import First
from counterpoise.engines.streaming import good_rows, prepare
from counterpoise.log.expressions import only
from counterpoise.log.groups import integer_ids
from counterpoise.log.kinds import check_kinds
from counterpoise.log.log import Log
from counterpoise.log.question import Question
from counterpoise.readers import frames

T = TypeVar("T")


def rows_of(log: Log) -> pl.LazyFrame:
    """The rows of a log that meet its condition: files are scanned, tables of a database are fetched."""
    return only(engine_of(log).scan(log), log.where)


def over_good_rows(
    question: Question,
    work: Callable[[Iterator[pl.DataFrame]], T],
    *,
    number: str | None = None,
    cluster: str | None = None,
) -> T:
    """What `work` makes of the rows behind a question's estimates, which are read, completed and checked just as for the estimates.

    The batches have the internal names of the question's numbers, whether those are columns, expressions, policies or chosen actions.
    Rows come in the log's order if it has one; `number` names a column for their number in it, and `cluster` one for the integer ids
    of their clusters.
    """
    check_kinds(question.kinds, "single rows")
    # columns that rule out no row are not read
    clusters = [] if question.log.cluster is None else ["cluster"]
    bare = question.slim("models", "controls", *clusters)

    def good(batches: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:  # under the question's own names, as float64
        first_row = 0
        for batch in batches:
            frame = prepare(batch, bare, first_row)
            if number is not None:
                known = batch.get_column(number) if number in batch.columns else None  # rows of a database have none
                row = pl.int_range(first_row, first_row + batch.height) if known is None else known
                frame = frame.with_columns(row.alias(number))
            if cluster is not None:
                frame = frame.with_columns(integer_ids(batch.get_column(str(bare.log.cluster))).alias(cluster))
            first_row += batch.height
            extra = [name for name in (number, cluster) if name is not None]
            yield good_rows(frame, bare).select(*extra, pl.col(*bare.numbers).cast(pl.Float64))

    return engine_of(bare.log).over_rows(bare, lambda batches: work(good(batches)), number)


def good_of(some: pl.DataFrame, question: Question) -> pl.DataFrame:
    """The good ones of such rows, under the question's own names, with its policies: as the estimates see them."""
    return good_rows(named_of(some, question), question)


def named_of(some: pl.DataFrame, question: Question) -> pl.DataFrame:
    """Such rows under the question's own names, with its policies."""
    bare = question.slim("models", "controls", "segment")
    return prepare(pl.concat(frames.with_policies([some], bare)), bare, 0)


class Sample:
    """The first rows of a question's log, which all who look at them share, and the names of its columns."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._first: dict[int, tuple[tuple[str, ...], pl.DataFrame]] = {}

    @cached_property
    def columns(self) -> list[str]:
        """The names of the log's columns; arrays have none."""
        return [] if self.question.log.is_arrays else columns_of(self.question.log)

    def first(self, count: int, beside: Sequence[str] = ()) -> pl.DataFrame:
        """So many rows, with columns beside what the question names: read once, unless later ones ask for more columns."""
        known, some = self._first.get(count, ((), None))
        if some is None or not set(beside) <= set(some.columns):
            known = tuple(dict.fromkeys((*known, *beside)))
            some = rows(self.question, First(count), known)
            self._first[count] = known, some
        return some

    def column(self, name: str, count: int) -> pl.DataFrame:
        """So many rows of a column that must hold numbers; that of a log in memory is at hand."""
        data = self.question.log.data
        if self.question.log.where is None and isinstance(data, Mapping):
            return pl.DataFrame({name: frames.from_array(name, data[name][:count], is_number=True)})
        if self.question.log.where is None and isinstance(data, pl.DataFrame) and name in data.columns:
            return pl.DataFrame({name: data.get_column(name).head(count)})
        return self.first(count)
