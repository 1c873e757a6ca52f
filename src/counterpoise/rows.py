"""The rows of a log, for questions that sums do not answer: all of them, or the good ones as the estimates see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import narwhals as nw
import polars as pl

from counterpoise.errors import ColumnError, LogError, OptionError, first_line
from counterpoise.sources import checks, files, frames, sql
from counterpoise.sources.columns import only
from counterpoise.sources.embedded import prepare
from counterpoise.sources.frames import series_of
from counterpoise.sources.read import scanned
from counterpoise.sources.request import Request

T = TypeVar("T")


def rows_of(
    log: Any,
    *,
    where: str | None = None,
    table: str | Sequence[str] | None = None,
    query: str | None = None,
    external_access: bool = False,
) -> pl.LazyFrame:
    """The rows of a log that meet an SQL condition: files are scanned, tables of a database are fetched."""
    return only(_open(log, table, query, external_access), where)


def over_good_rows(
    log: Any,
    request: Request,
    work: Callable[[Iterator[pl.DataFrame]], T],
    *,
    table: str | Sequence[str] | None = None,
    query: str | None = None,
    external_access: bool = False,
    number: str | None = None,
) -> T:
    """What `work` makes of the rows that a request's estimates rest on: read, completed and checked as for the estimates themselves.

    The batches have the names of `Request.numbers`: r, p, and t0, t1, … in the order of the targets, be they columns, expressions,
    policies or chosen actions. Rows come in the log's order where it has one; `number` names a column for their number in it.
    """
    groups = request.groups if request.cluster is not None else 1
    lean = replace(request, segment=(), key=(), groups=groups)  # what decides about no row is not read
    if sql.is_database(log):
        rows = sql.batches(log, lean, table, query, external_access=external_access)
        return work(_good(frames.with_policies(rows, lean), lean, number))
    sql.check_no_database(table, query, external_access)
    if type(log).__module__.startswith("pyspark.sql"):
        from counterpoise.sources import spark

        return work(_good(frames.with_policies(spark.batches(log, lean), lean), lean, number))
    if files.is_paths(log):
        return scanned(log, lean, lambda scan: work(_good(frames.completed(scan, lean, number=number), lean, number)))
    return work(_good(frames.completed(log, lean, number=number), lean, number))


def _good(batches: Iterable[pl.DataFrame], request: Request, number: str | None) -> Iterator[pl.DataFrame]:
    """The good rows of every batch, under the request's own names, as float64."""
    first_row = 0
    for batch in batches:
        frame = prepare(batch, request, first_row)
        if number is not None:
            known = batch.get_column(number) if number in batch.columns else None  # rows of a database have none
            row = pl.int_range(first_row, first_row + batch.height) if known is None else known
            frame = frame.with_columns(row.alias(number))
        first_row += batch.height
        good = nw.from_native(frame, eager_only=True).filter(checks.valid(request)).to_native()
        yield good.select(*([] if number is None else [number]), pl.col(*request.numbers).cast(pl.Float64))


def columns_of(
    log: Any, *, table: str | Sequence[str] | None = None, query: str | None = None, external_access: bool = False
) -> list[str]:
    """The names of the log's columns, read without its rows where that can be."""
    if sql.is_database(log):
        with sql.connected(log, external_access=external_access) as place:
            return list(sql.relation(place, table, query).columns)
    return _open(log, table, query, external_access).collect_schema().names()


def collect(frame: pl.LazyFrame) -> pl.DataFrame:
    """The rows of a small answer; damaged files are an error of the log."""
    try:
        return frame.collect(engine="streaming")
    except files.UNREADABLE as error:
        raise LogError(f"cannot read the log: {first_line(error)}.") from error


def _open(log: Any, table: str | Sequence[str] | None, query: str | None, external_access: bool) -> pl.LazyFrame:
    if sql.is_database(log):
        with sql.connected(log, external_access=external_access) as place:
            return _fetched(sql.relation(place, table, query))
    sql.check_no_database(table, query, external_access)
    if files.is_paths(log):
        return files.scan(log)
    if isinstance(log, pl.LazyFrame | pl.DataFrame):
        return log.lazy()
    try:
        return _fetched(log)
    except TypeError as error:
        raise OptionError(f"a log is a file, a frame or a database's table; found {type(log).__name__}.") from error
    except nw.exceptions.DuplicateError as error:
        raise ColumnError(f"every column needs a name of its own: {first_line(error)}.") from error


def _fetched(native: Any) -> pl.LazyFrame:
    frame = nw.from_native(native)
    if isinstance(frame, nw.LazyFrame):
        fetched: pl.DataFrame = frame.collect("polars").to_native()
        return fetched.lazy()
    chosen = {name: frame[name] for name in frame.columns}
    # unknown to narwhals are decimals too wide for polars, which are numbers all the same
    return pl.LazyFrame({name: series_of(one, is_number=one.dtype == nw.Unknown) for name, one in chosen.items()})
