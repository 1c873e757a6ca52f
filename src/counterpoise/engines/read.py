"""The choice of the reader that a log wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import polars as pl

from counterpoise.engines import memory as embedded
from counterpoise.engines import streaming as scans
from counterpoise.errors import ColumnError, LogError
from counterpoise.log.request import Request
from counterpoise.moments.log_moments import LogMoments
from counterpoise.readers import databases as sql
from counterpoise.readers import files, frames
from counterpoise.readers.progress import Report, progress_bar

T = TypeVar("T")

LONG = 5_000_000_000  # bytes times targets from which files are worth the half second that the compiled loop takes to start


def read(
    log: Any,
    request: Request,
    *,
    table: sql.Table = None,
    query: str | None = None,
    external_access: bool = False,
    progress: bool | None = None,
) -> LogMoments:
    """Moments of a log, computed where it lives if that can be."""
    if sql.is_database(log):
        if not request.policies:
            return sql.read(log, request, table, query, external_access=external_access)
        with progress_bar(progress) as report:
            rows = sql.batches(log, request, table, query, external_access=external_access)
            return embedded.summarise(frames.with_policies(rows, request, report), request)
    sql.check_no_database(table, query, external_access)
    if type(log).__module__.startswith("pyspark.sql"):
        from counterpoise.engines import spark

        return spark.read(log, request)
    with progress_bar(progress) as report:
        if files.is_paths(log):
            return _files(log, request, report)
        return embedded.summarise(frames.completed(log, request, report), request)


def _files(log: Any, request: Request, report: Report | None) -> LogMoments:
    size = sum(path.stat().st_size for path in files.files_of(log))

    def summary(scan: pl.LazyFrame) -> LogMoments:
        if request.policies:
            return embedded.summarise(frames.completed(scan, request, report), request)
        return scans.summarise(scan, request, report, is_long=size * len(request.targets) >= LONG)

    return scanned(log, request, summary)


def scanned(log: Any, request: Request, work: Callable[[pl.LazyFrame], T]) -> T:
    """What `work` makes of a scan of the files; it is called again where a text file's rows are not what the first ones promise."""
    numbers = [column for _, column in request.numbers.values()]
    found = files.files_of(log)
    files.check_keys(found)
    try:
        return work(files.scan(log, numbers))
    except files.UNREADABLE as error:
        first: BaseException = error
    try:
        # A row of a text file may be unlike the first ones: now guess from all rows, which takes longer but makes no promise.
        return work(files.scan(log, numbers, inferred=None))
    except ColumnError as wrong:
        reason = next(iter(str(first).splitlines()), type(first).__name__)
        raise ColumnError(f"{wrong} The first rows read well, but then: {reason}.") from first
    except files.UNREADABLE as error:
        raise (files.find_damaged(found) or LogError(f"cannot read the files: {error}.")) from error
