"""This file holds the choice of the reader that a log wants."""

from __future__ import annotations

from typing import Any

import polars as pl

from counterpoise.errors import CounterpoiseError, LogError, OptionError
from counterpoise.log_moments import LogMoments
from counterpoise.sources import compiled, embedded, files, frames, pushdown, scans, sql
from counterpoise.sources.progress import Report, progress_bar
from counterpoise.sources.request import Request

LONG = 20_000_000  # bytes from which files are worth the start of the compiled loop
FEW = 3  # targets up to which the streaming engine is as fast, with half the memory


def read(
    log: Any, request: Request, *, table: sql.Table = None, query: str | None = None, progress: bool | None = None
) -> LogMoments:
    """Moments of a log, computed where it lives if that can be."""
    if sql.is_database(log):
        if not request.policies:
            return sql.read(log, request, table, query)
        with progress_bar(progress) as report:
            return embedded.summarise(
                frames.with_policies(sql.batches(log, request, table, query), request, report), request
            )
    if table is not None or query is not None:
        raise OptionError("table= and query= are for databases; this log is none.")
    if type(log).__module__.startswith("pyspark.sql"):
        from counterpoise.sources import spark

        return spark.read(log, request)
    with progress_bar(progress) as report:
        if files.is_paths(log):
            return _files(log, request, report)
        return embedded.summarise(frames.completed(log, request, report), request)


def _files(log: Any, request: Request, report: Report | None) -> LogMoments:
    scan = files.scan(log, [column for _, column in request.numbers.values()])
    long = sum(path.stat().st_size for path in files.files_of(log)) >= LONG
    try:
        if request.policies:
            return embedded.summarise(frames.completed(scan, request, report), request)
        if long and len(request.targets) > FEW and not request.key and compiled.answers(request):
            found = _compiled(scan, request, report)
            if found is not None:
                return found
        return scans.summarise(scan, request, report)
    except CounterpoiseError:
        raise
    except (pl.exceptions.PolarsError, OSError) as error:
        raise (files.find_damaged(files.files_of(log)) or LogError(f"cannot read the files: {error}.")) from error


def _compiled(scan: pl.LazyFrame, request: Request, report: Report | None) -> LogMoments | None:
    """The batches of a scan through the compiled loop, ten targets at a time to bound memory; None as soon as a row is bad."""
    parts: list[LogMoments] = []
    for part, _ in pushdown.split(request):
        partial = embedded.Partial()
        for batch in frames.completed(scan, part, None if parts else report):
            partial.add(batch, part)
            if (
                partial.problems
            ):  # what is bad for one target is dropped for all: the streaming engine sees them together
                return None
        parts.append(partial.finish(part))
    return pushdown.together(parts, request)
