"""The rows of a log, for questions that sums do not answer: all of them, or the good ones as the estimates see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import narwhals as nw
import polars as pl

from counterpoise.errors import LogError, OptionError, first_line
from counterpoise.sources import checks, files, frames, sql
from counterpoise.sources.columns import only
from counterpoise.sources.embedded import prepare
from counterpoise.sources.read import scanned
from counterpoise.sources.request import Request

T = TypeVar("T")


def rows_of(
    log: Any, *, where: str | None = None, table: str | Sequence[str] | None = None, query: str | None = None
) -> pl.LazyFrame:
    """The rows of a log that meet an SQL condition: files are scanned, tables of a database are fetched."""
    return only(_open(log, table, query), where)


def over_good_rows(
    log: Any,
    request: Request,
    work: Callable[[Iterator[pl.DataFrame]], T],
    *,
    table: str | Sequence[str] | None = None,
    query: str | None = None,
    number: str | None = None,
) -> T:
    """What `work` makes of the rows that a request's estimates rest on: read, completed and checked as for the estimates themselves.

    The batches have the names of `Request.numbers`: r, p, and t0, t1, … in the order of the targets, be they columns, expressions,
    policies or chosen actions. Rows come in the log's order where it has one; `number` names a column for their number in it.
    """
    groups = request.groups if request.cluster is not None else 1
    lean = replace(request, segment=(), key=(), groups=groups)  # what decides about no row is not read
    if sql.is_database(log):
        return work(_good(frames.with_policies(sql.batches(log, lean, table, query), lean), lean, number))
    if table is not None or query is not None:
        raise OptionError("`table=` and `query=` only work with a database, and this log is not one.")
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


def columns_of(log: Any, *, table: str | Sequence[str] | None = None, query: str | None = None) -> list[str]:
    """The names of the log's columns, read without its rows where that can be."""
    if sql.is_database(log):
        with sql._Errors(log):
            return list(sql.relation(log, table, query).columns)
    return _open(log, table, query).collect_schema().names()


def collect(frame: pl.LazyFrame) -> pl.DataFrame:
    """The rows of a small answer; damaged files are an error of the log."""
    try:
        return frame.collect(engine="streaming")
    except pl.exceptions.PolarsError as error:
        raise LogError(f"cannot read the log: {first_line(error)}.") from error


def _open(log: Any, table: str | Sequence[str] | None, query: str | None) -> pl.LazyFrame:
    if sql.is_database(log):
        with sql._Errors(log):
            return _fetched(sql.relation(log, table, query))
    if table is not None or query is not None:
        raise OptionError("table= and query= are for databases; this log is none.")
    if files.is_paths(log):
        return files.scan(log)
    if isinstance(log, pl.LazyFrame | pl.DataFrame):
        return log.lazy()
    try:
        return _fetched(log)
    except TypeError as error:
        raise OptionError(f"a log is a file, a frame or a database's table; found {type(log).__name__}.") from error


def _fetched(native: Any) -> pl.LazyFrame:
    fetched: pl.DataFrame = nw.from_native(native).lazy().collect("polars").to_native()
    return fetched.lazy()
