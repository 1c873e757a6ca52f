"""The rows of a log, for questions that sums cannot answer: all of them, or the good ones as the estimates see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import polars as pl

from counterpoise.engines.registry import engine_of, first_rows
from counterpoise.engines.streaming import good_rows, prepare
from counterpoise.errors import OptionError
from counterpoise.log.expressions import only
from counterpoise.log.groups import integer_ids
from counterpoise.log.log import Log
from counterpoise.log.question import Question
from counterpoise.readers import frames

T = TypeVar("T")
ID = "the id as a number"


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
    if question.lists is not None:
        raise OptionError(
            "this looks at single rows, and the rows of this log are positions of lists, which only evaluate, compare and rank add up."
        )
    groups = question.groups if question.log.cluster is not None else 1
    # columns that rule out no row are not read
    lean = replace(question, log=question.log.but(key=()), segment=(), groups=groups)
    return engine_of(lean.log).over_rows(lean, lambda batches: work(_good(batches, lean, number, cluster)), number)


def _good(
    batches: Iterable[pl.DataFrame], question: Question, number: str | None, cluster: str | None
) -> Iterator[pl.DataFrame]:
    """The good rows of every batch, under the question's own names, as float64."""
    first_row = 0
    for batch in batches:
        frame = prepare(batch, question, first_row)
        if number is not None:
            known = batch.get_column(number) if number in batch.columns else None  # rows of a database have none
            row = pl.int_range(first_row, first_row + batch.height) if known is None else known
            frame = frame.with_columns(row.alias(number))
        if cluster is not None:
            frame = frame.with_columns(integer_ids(batch.get_column(str(question.log.cluster))).alias(cluster))
        first_row += batch.height
        good = good_rows(frame, question)
        extra = [name for name in (number, cluster) if name is not None]
        yield good.select(*extra, pl.col(*question.numbers).cast(pl.Float64))


def rows_of_ids(question: Question, column: str, parts: int, others: Sequence[str] = ()) -> tuple[Log, pl.DataFrame]:
    """All rows of about one in so many of a column's ids, with what the question names but policies, and other columns; and their log."""
    wider = _with_columns(question, (column, *others))
    some = engine_of(wider.log).some_ids(wider, column, parts)
    return some, pl.concat(frames.batches(some.data, replace(wider, log=some)))


def first_rows_with(question: Question, rows: int, others: Sequence[str]) -> pl.DataFrame:
    """The first rows, with what the question names but policies, clusters and keys, and some other columns."""
    lean = replace(question, log=question.log.but(cluster=None, key=()))
    return first_rows(_with_columns(lean, others), rows)


def first_good_rows(question: Question, rows: int) -> pl.DataFrame:
    """The good ones of the first rows, under the question's own names, as the estimates see them."""
    lean = replace(question, log=question.log.but(cluster=None, key=()), segment=(), groups=1)
    batch = first_rows(lean, rows)
    return good_rows(prepare(pl.concat(frames.with_policies([batch], lean)), lean, 0), lean)


def _with_columns(question: Question, others: Sequence[str]) -> Question:
    """The question with more columns to read, which play no part in it."""
    return replace(question, segment=tuple(dict.fromkeys((*question.segment, *others))), groups=1)


def good_rows_of_ids(
    question: Question, column: str, parts: int, is_worth_it: Callable[[pl.Series], bool]
) -> pl.DataFrame | None:
    """All good rows of about one in so many of a column's ids, under the question's own names, with its segments, and numbers for ids.

    They are the rows behind the question's estimates, except those without an id. If `is_worth_it` says no to the ids, policies
    are not called and the answer is None.
    """
    some, batch = rows_of_ids(question, column, parts)
    ids = batch.get_column(column).rename(ID)
    if ids.dtype.is_float():
        ids = ids.fill_nan(None)
    if ids.null_count():
        batch, ids = batch.filter(ids.is_not_null()), ids.drop_nulls()
    if not is_worth_it(ids):
        return None
    lean = replace(question, log=some, groups=1)
    good = prepare(pl.concat(frames.with_policies([batch], lean)), lean, 0).with_columns(ids.alias(ID))
    if question.log.drop_bad_rows:  # without it, bad rows have been refused
        good = good_rows(good, lean)
    numbers = good.get_column(ID)
    if not numbers.dtype.is_integer():
        numbers = numbers.rank("dense")
    _, numbered = np.unique(numbers.to_numpy(), return_inverse=True)
    return good.with_columns(pl.Series(ID, numbered))
