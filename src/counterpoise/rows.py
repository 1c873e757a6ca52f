"""The rows of a log as a lazy polars frame, for questions that sums do not answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import narwhals as nw
import polars as pl

from counterpoise.errors import ColumnError, LogError, OptionError, first_line
from counterpoise.sources import files, sql
from counterpoise.sources.columns import check_digits, columns, only, plan
from counterpoise.sources.frames import series_of
from counterpoise.sources.request import Request


def rows_of(
    log: Any, *, where: str | None = None, table: str | Sequence[str] | None = None, query: str | None = None
) -> pl.LazyFrame:
    """The rows of a log that meet an SQL condition: files are scanned, tables of a database are fetched."""
    return only(_open(log, table, query), where)


def asked_rows(
    log: Any,
    request: Request,
    *,
    table: str | Sequence[str] | None = None,
    query: str | None = None,
    number: str | None = None,
) -> pl.LazyFrame:
    """The rows that a request is about, its expressions computed; `number` names a column for their number in the log."""
    frame = rows_of(log, table=table, query=query)
    schema = frame.collect_schema()
    wanted = plan(request, schema.names())
    check_digits(schema, wanted.read)
    chosen = frame.select(columns(wanted.read))
    return wanted.complete(chosen if number is None else chosen.with_row_index(number), request)


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
    except files.UNREADABLE as error:
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
