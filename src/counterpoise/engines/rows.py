"""The rows of a log, for questions that sums cannot answer: all of them, or the good ones as the estimates see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import narwhals as nw
import polars as pl

from counterpoise.engines import spark
from counterpoise.engines.polars_frames import prepare
from counterpoise.engines.read import scanned
from counterpoise.errors import ColumnError, LogError, OptionError, first_line
from counterpoise.log.expressions import only
from counterpoise.log.groups import integer_ids
from counterpoise.log.log import Log
from counterpoise.log.question import Question
from counterpoise.log.rules import only_good
from counterpoise.readers import databases, files, frames
from counterpoise.readers.frames import series_of

T = TypeVar("T")


def rows_of(log: Log) -> pl.LazyFrame:
    """The rows of a log that meet its condition: files are scanned, tables of a database are fetched."""
    return only(_open(log), log.where)


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
    groups = question.groups if question.log.cluster is not None else 1
    # what decides about no row is not read
    lean = replace(question, log=question.log.but(key=()), segment=(), groups=groups)
    data = lean.log.data
    if databases.is_database(data):
        return work(_good(frames.with_policies(databases.batches(lean), lean), lean, number, cluster))
    databases.check_no_database(lean.log)
    if spark.is_spark(data):
        return work(_good(frames.with_policies(spark.batches(lean), lean), lean, number, cluster))
    if files.is_paths(data):
        return scanned(
            lean, lambda scan: work(_good(frames.completed(scan, lean, number=number), lean, number, cluster))
        )
    return work(_good(frames.completed(data, lean, number=number), lean, number, cluster))


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
        good = only_good(nw.from_native(frame, eager_only=True), question).to_native()
        extra = [name for name in (number, cluster) if name is not None]
        yield good.select(*extra, pl.col(*question.numbers).cast(pl.Float64))


def columns_of(log: Log) -> list[str]:
    """The names of the log's columns, read without its rows if possible."""
    if databases.is_database(log.data):
        with databases.opened(log) as native:
            return list(native.columns)
    return _open(log).collect_schema().names()


def collect(frame: pl.LazyFrame) -> pl.DataFrame:
    """The rows of a small answer; damaged files are an error of the log."""
    try:
        return frame.collect(engine="streaming")
    except files.UNREADABLE as error:
        raise LogError(f"cannot read the log: {first_line(error)}.") from error


def _open(log: Log) -> pl.LazyFrame:
    data = log.data
    if databases.is_database(data):
        with databases.opened(log) as native:
            return _fetched(native)
    databases.check_no_database(log)
    if files.is_paths(data):
        return files.scan(data)
    if isinstance(data, pl.LazyFrame | pl.DataFrame):
        return data.lazy()
    try:
        return _fetched(data)
    except TypeError as error:
        raise OptionError(f"a log is a file, a frame or a database's table; found {type(data).__name__}.") from error
    except nw.exceptions.DuplicateError as error:
        raise ColumnError(f"every column needs a name of its own: {first_line(error)}.") from error


def _fetched(native: Any) -> pl.LazyFrame:
    frame = nw.from_native(native)
    if isinstance(frame, nw.LazyFrame):
        fetched: pl.DataFrame = frame.collect("polars").to_native()
        return fetched.lazy()
    chosen = {
        name: frame[name] for name in frame.columns
    }  # unknown are decimals too wide for polars, which are numbers
    return pl.LazyFrame({name: series_of(one, is_number=one.dtype == nw.Unknown) for name, one in chosen.items()})
