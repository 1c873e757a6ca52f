"""From a question to its moments: chooses the reader and the engine that suit the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import polars as pl

from counterpoise.engines import compiled, spark
from counterpoise.engines.memory import summarize_batches
from counterpoise.engines.polars_frames import prepare_lazily
from counterpoise.engines.pushdown import PushedDown
from counterpoise.engines.streaming import Streaming
from counterpoise.engines.summarize import Engine, summarize
from counterpoise.errors import ColumnError, LogError
from counterpoise.log.question import Question
from counterpoise.moments import LogMoments
from counterpoise.readers import databases, files, frames
from counterpoise.readers.progress import Report, progress_bar

T = TypeVar("T")

LONG = 5_000_000_000  # bytes times targets from which files are worth the half second that the compiled loop takes to start


def moments_of(question: Question, *, progress: bool | None = None) -> tuple[LogMoments, ...]:
    """The moments of a question, one for each reward, computed where the log lives if possible."""
    data = question.log.data
    if databases.is_database(data):
        if not question.policies:
            with databases.opened(question.log) as native:
                engine = PushedDown(
                    question, lambda part: databases.complete(native, part), spark.collect, databases.fence
                )
                return summarize(engine, question)
        with progress_bar(progress) as report:
            return summarize_batches(frames.with_policies(databases.batches(question), question, report), question)
    databases.check_no_database(question.log)
    if spark.is_spark(data):
        return spark.moments_of(question)
    with progress_bar(progress) as report:
        if files.is_paths(data):
            return scanned(question, lambda scan: _of_scan(scan, question, report))
        return summarize_batches(frames.completed(data, question, report), question)


def _of_scan(scan: pl.LazyFrame, question: Question, report: Report | None) -> tuple[LogMoments, ...]:
    if question.policies:
        return summarize_batches(frames.completed(scan, question, report), question)
    size = sum(path.stat().st_size for path in files.files_of(question.log.data))
    frame = prepare_lazily(frames.selected(scan, question), question)
    engine: Engine = Streaming(frame, question, report)
    is_long = size * len(question.targets) >= LONG and not question.log.key
    if is_long and compiled.answers(question):
        engine = compiled.OnScan(Streaming(frame, question), report)
    return summarize(engine, question)


def scanned(question: Question, work: Callable[[pl.LazyFrame], T]) -> T:
    """What `work` makes of a scan of the files; it is called again if later rows of a text file break what the first ones promise."""
    numbers = [column for _, column in question.numbers.values()]
    found = files.files_of(question.log.data)
    files.check_keys(found)
    try:
        return work(files.scan(question.log.data, numbers))
    except files.UNREADABLE as error:
        first: BaseException = error
    try:
        # A row of a text file may be unlike the first ones: now guess from all rows, which takes longer but makes no promise.
        return work(files.scan(question.log.data, numbers, inferred=None))
    except ColumnError as wrong:
        reason = next(iter(str(first).splitlines()), type(first).__name__)
        raise ColumnError(f"{wrong} The first rows read well, but then: {reason}.") from first
    except files.UNREADABLE as error:
        raise (files.find_damaged(found) or LogError(f"cannot read the files: {error}.")) from error
