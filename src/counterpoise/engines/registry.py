"""Every kind of log, and how it is added up and read: the one list of them, which anybody can extend."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import narwhals as nw
import polars as pl

from counterpoise.engines import compiled, pushdown, spark
from counterpoise.engines.memory import LISTED, LONGEST, is_plain, summarize_batches, summarize_in_order
from counterpoise.engines.pushdown import PushedDown, prepare_there
from counterpoise.engines.query import Frame
from counterpoise.engines.sampling import (
    First,
    Ids,
    Peek,
    Spread,
    Take,
    of_some_ids,
    rows_of_some_ids,
    sample_of,
    some_of,
    together,
)
from counterpoise.engines.streaming import Streaming, prepare_lazily, rows_in_order
from counterpoise.engines.summarize import summarize
from counterpoise.errors import ColumnError, CounterpoiseError, LogError, OptionError, first_line, verbatim
from counterpoise.log.expressions import column as exactly
from counterpoise.log.expressions import columns, each_by_itself, plan
from counterpoise.log.groups import CLUSTER
from counterpoise.log.log import Log
from counterpoise.log.question import Question
from counterpoise.moments import LogMoments
from counterpoise.readers import connections, databases, files, formats, frames
from counterpoise.readers.progress import Report, progress_bar
from counterpoise.threads import check_threads

T = TypeVar("T")
FrameBatches = Iterator[pl.DataFrame]
IN_MEMORY = (Mapping, pl.DataFrame, pl.LazyFrame)  # no need to ask whether they are something else

SHORT = 2_000_000  # bytes of files whose rows may be so few that reading them is faster than planning a query
LONG = 5_000_000_000  # bytes times targets above which the compiled loop is worth the half second it takes to start
WAITED_FOR = 100_000_000  # bytes of files from which people may want to know how far the reading is
BY_SEGMENT = LONG // 10  # the same where rows have segments or groups, which take polars longer
BY_TEXT = BY_SEGMENT // 10  # the same where clusters are texts, whose checksums are compiled with it
STARTED = SHORT  # the same once the loop has started

SOME = 500  # ids to fetch if only their order says which
SLICED = 8  # times as many rows as are wanted, of which a condition may drop the others
MOST = 100_000  # rows of some ids that are fetched


class LogEngine:
    """How logs of one kind are added up and read row by row.

    For your own kind, inherit from it, say which data it `holds`, return their rows as a `frame`, and put an instance into
    `ENGINES`. One that adds up rows where they are also has its own `moments`, which `summarize` makes from an `Engine`.
    """

    has_order = True  # rows come in the same order whenever they are read
    is_cluster = False  # rows are on many machines, where statements take long to plan, and rows long to fetch
    quote = '"'  # around a column's name in SQL

    def holds(self, data: object) -> bool:
        """Whether some data are of this kind."""
        raise NotImplementedError

    def frame(self, data: Any) -> Any:
        """The rows as a frame that narwhals knows; a lazy one of polars is read in batches."""
        return data

    def moments(self, question: Question, progress: bool | None) -> tuple[LogMoments, ...]:
        """The moments of a question, one for each reward."""
        with progress_bar(progress) as report:
            rows = frames.batches_or_error(self.frame(question.log.data), question)
            return summarize_batches(frames.with_policies(rows, question, report), question, has_order=self.has_order)

    def over_scan(self, question: Question, work: Callable[[pl.LazyFrame], T]) -> T:
        """What `work` makes of a lazy frame of the rows."""
        data = self.frame(question.log.data)
        with frames.errors_told(data):
            return work(data)

    def over_rows(self, question: Question, work: Callable[[FrameBatches], T], number: str | None) -> T:
        """What `work` makes of the rows with everything that the question names; `number` names a column for the rows' own."""
        rows = frames.batches_or_error(self.frame(question.log.data), question, number)
        return work(frames.with_policies(rows, question))

    def take(self, question: Question, take: Take) -> pl.DataFrame:
        """Some rows with everything that the question names but policies."""
        data = self.frame(question.log.data)
        if isinstance(take, Peek):
            batch = next(frames.batches(data, question))
            return batch.gather_every(max(-(-batch.height // take.rows), 1))
        if isinstance(data, pl.LazyFrame):
            return self.over_scan(question, lambda scan: _taken(scan, question, take))
        if isinstance(take, Ids):
            if take.parts > 1:
                read = plan(question, self.columns(question.log)).read
                data = rows_of_some_ids(data, read, take.column, take.parts)
        elif isinstance(data, Mapping):
            data = {name: values[take.places] for name, values in data.items()}
        elif isinstance(take, First):
            data = (
                data.head(take.rows)
                if isinstance(data, pl.DataFrame)
                else nw.from_native(data).head(take.rows).to_native()
            )
        elif not isinstance(nw.from_native(data), nw.LazyFrame):
            data = nw.from_native(data, eager_only=True).gather_every(take.step).to_native()
        batches = frames.batches(data, question)
        return next(batches).head(take.rows) if isinstance(take, First) else pl.concat(batches)

    def sampled(self, question: Question, rows: int) -> pl.DataFrame:
        """At most so many rows with everything that the question names, drawn evenly from all over the log."""
        return self.over_rows(question, lambda batches: sample_of(batches, rows), None)

    def ends(self, question: Question) -> tuple[float | None, float | None]:
        """The smallest and the largest of the question's first reward; None where there are none."""
        return self.over_rows(question, lambda batches: _ends(question, batches), None)

    def scan(self, log: Log) -> pl.LazyFrame:
        """All rows and columns."""
        data = self.frame(log.data)
        if isinstance(data, pl.LazyFrame | pl.DataFrame):
            return data.lazy()
        try:
            return _fetch(data)
        except TypeError as error:
            raise OptionError(
                f"a log is a file, a frame or a database's table; found {type(data).__name__}."
            ) from error
        except nw.exceptions.DuplicateError as error:
            raise ColumnError(f"every column needs a name of its own: {first_line(error)}.") from error

    def columns(self, log: Log) -> list[str]:
        """The names of the columns, read without the rows where that can be."""
        return self.scan(log).collect_schema().names()

    def quoted_columns(self, log: Log) -> dict[str, str]:
        """How the names of the columns are written in the SQL of the log."""
        return {name: self.quote + name.replace(self.quote, 2 * self.quote) + self.quote for name in self.columns(log)}


class Frames(LogEngine):
    """Arrays and frames, eager or lazy: whatever no other engine holds."""

    def holds(self, data: object) -> bool:
        """Anything; what is not a frame is refused when it is read."""
        return True

    def scan(self, log: Log) -> pl.LazyFrame:
        """All rows and columns; arrays are put side by side."""
        if not isinstance(log.data, Mapping):
            with frames.errors_told(log.data):
                scan = super().scan(log)
                scan.collect_schema()
                return scan
        numbers = {*log.reward, str(log.propensity), *(log.control or {})}
        return frames.side_by_side(log.data, list(log.data), numbers).lazy()

    def columns(self, log: Log) -> list[str]:
        """Their names, which a frame in memory has ready."""
        if isinstance(log.data, Mapping):
            return list(log.data)
        with frames.errors_told(log.data):
            return log.data.columns if isinstance(log.data, pl.DataFrame) else frames.as_narwhals(log.data).columns


class Files(LogEngine):
    """Files, folders and globs: scanned, and in memory as a whole only if they have few rows."""

    def holds(self, data: object) -> bool:
        """A path, or a list of them."""
        return not isinstance(data, IN_MEMORY) and files.is_paths(data)

    def moments(self, question: Question, progress: bool | None) -> tuple[LogMoments, ...]:
        """By polars' streaming engine, or by the compiled loop where that saves more than it takes to start."""
        formats.check(question.log)
        with progress_bar(progress, total=lambda: _known_rows(question)) as report:
            return self.over_scan(question, lambda scan: _of_scan(scan, question, report))

    def over_scan(self, question: Question, work: Callable[[pl.LazyFrame], T]) -> T:
        """The same; `work` is called again if later rows of a text file break what the first ones promise."""
        if formats.is_foreign(question.log):
            return _over_foreign(question.log, work)
        numbers = sorted(question.number_columns)
        paths = files.files_of(question.log.data)
        files.check_keys(paths)
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
            raise (files.find_damaged(paths) or LogError(f"cannot read the files: {verbatim(error)}.")) from error

    def over_rows(self, question: Question, work: Callable[[FrameBatches], T], number: str | None) -> T:
        """The rows of a scan."""
        return self.over_scan(question, lambda scan: work(frames.completed(scan, question, number=number)))

    def take(self, question: Question, take: Take) -> pl.DataFrame:
        """Some of a scan."""
        return self.over_scan(question, lambda scan: _taken(scan, question, take))

    def ends(self, question: Question) -> tuple[float | None, float | None]:
        """Those of a scan."""
        return self.over_scan(question, lambda scan: _ends(question, [frames.selected(scan, question)]))

    def scan(self, log: Log) -> pl.LazyFrame:
        """The scan itself."""
        return formats.opened(log.data, log.format).frame if formats.is_foreign(log) else files.scan(log.data)


class Elsewhere(LogEngine):
    """Rows that another system adds up in place; they have no order and no numbers."""

    has_order = False

    def over_frame(self, question: Question, work: Callable[[Frame, Mapping[str, str]], T]) -> T:
        """What `work` makes of the rows with everything that the question names but policies, and of the names they have."""
        raise NotImplementedError

    def batches(self, question: Question, limit: int | None = None) -> Generator[pl.DataFrame, None, None]:
        """The rows, fetched; or so many of them."""
        raise NotImplementedError

    def over_rows(self, question: Question, work: Callable[[FrameBatches], T], number: str | None) -> T:
        """The rows, fetched; a cursor is closed before its connection, even if the work fails halfway."""
        with closing(self.batches(question)) as rows:
            return work(frames.with_policies(rows, question))

    def take(self, question: Question, take: Take) -> pl.DataFrame:
        """Whichever come first, since a database would read all rows for others.

        Ids are chosen there: by the remainder of a number, or of a text's checksum, or else whichever come first.
        """

        def head(frame: Frame, names: Mapping[str, str]) -> pl.DataFrame:
            if isinstance(take, Ids) and take.parts > 1:
                name = names.get(CLUSTER, names.get(take.column, take.column))
                if frame.collect_schema()[name].is_integer() or CLUSTER in names:
                    frame = frame.filter(
                        nw.col(name) % (take.parts | 1) == 0
                    )  # an odd number, since ids are often even
                else:
                    frame = frame.join(frame.select(nw.col(name)).unique().head(SOME), on=name, how="semi")
            columns = {names.get(column, column): column for column in question.wanted_columns}
            rows = frame.select(*map(nw.col, columns)).head(MOST if isinstance(take, Ids) else take.rows)
            fetched: pl.DataFrame = rows.collect("polars").to_native()
            return fetched.rename(columns)

        by_id = replace(question, log=question.log.but(cluster=take.column)) if isinstance(take, Ids) else question
        return self.over_frame(by_id, head)

    def ends(self, question: Question) -> tuple[float | None, float | None]:
        """Found there."""
        reward = nw.col(question.names.rewards[0])

        def both(frame: Frame, names: Mapping[str, str]) -> pl.DataFrame:
            return pushdown.collect(prepare_there(frame, question, names).select(low=reward.min(), high=reward.max()))

        low, high = self.over_frame(question, both).cast(pl.Float64).row(0)
        return low, high


class Databases(Elsewhere):
    """Tables and queries, which their databases add up."""

    def holds(self, data: object) -> bool:
        """A URL, a DuckDB file, connection or relation, or an ibis table."""
        return not isinstance(data, IN_MEMORY) and connections.is_database(data)

    def over_frame(self, question: Question, work: Callable[[Frame, Mapping[str, str]], T]) -> T:
        """The same, in the database."""
        return connections.ask(question.log, lambda native: work(*databases.complete(native, question)))

    def batches(self, question: Question, limit: int | None = None) -> Generator[pl.DataFrame, None, None]:
        """The rows in batches."""
        return databases.batches(question)

    def moments(self, question: Question, progress: bool | None) -> tuple[LogMoments, ...]:
        """Only sums travel, unless a policy has to run here."""
        if question.needs_python:
            with progress_bar(progress) as report, closing(self.batches(question)) as fetched:
                rows = frames.with_policies(fetched, question, report)
                return summarize_batches(rows, question, has_order=False)

        def added_up(native: connections.Native) -> tuple[LogMoments, ...]:
            engine = PushedDown(question, lambda part: databases.complete(native, part), databases.fence_of(native))
            return tuple(replace(each, queries=engine.queries) for each in summarize(engine, question))

        return connections.ask(question.log, added_up)

    def scan(self, log: Log) -> pl.LazyFrame:
        """All rows, fetched."""
        return connections.ask(log, _fetch)

    def columns(self, log: Log) -> list[str]:
        """As the database names them."""
        return connections.ask(log, lambda native: list(native.columns))

    def quoted_columns(self, log: Log) -> dict[str, str]:
        """As the database quotes them."""
        return connections.ask(log, lambda native: {name: connections.quoted(native, name) for name in native.columns})


class Spark(Elsewhere):
    """Spark's frames, which its executors add up."""

    is_cluster = True
    quote = "`"

    def holds(self, data: object) -> bool:
        """A frame of Spark, classic or Connect."""
        return not isinstance(data, IN_MEMORY) and type(data).__module__.startswith("pyspark.sql")

    def over_frame(self, question: Question, work: Callable[[Frame, Mapping[str, str]], T]) -> T:
        """The same, by Spark."""
        with spark.errors_told():
            return work(*spark.complete(question))

    def batches(self, question: Question, limit: int | None = None) -> Generator[pl.DataFrame, None, None]:
        """All rows, or so many that Spark draws."""
        return spark.batches(question, limit)

    def moments(self, question: Question, progress: bool | None) -> tuple[LogMoments, ...]:
        """Sums travel, rows never do."""
        return spark.moments_of(question)

    def sampled(self, question: Question, rows: int) -> pl.DataFrame:
        """Drawn by Spark, so that no more rows travel."""
        return together(frames.with_policies(self.batches(question, rows), question))

    def take(self, question: Question, take: Take) -> pl.DataFrame:
        """The first, or drawn by Spark."""
        return together(self.batches(question, take.rows)) if isinstance(take, Spread) else super().take(question, take)

    def columns(self, log: Log) -> list[str]:
        """As Spark names them."""
        return list(log.data.columns)


# An engine of one's own: ENGINES["mine"] = Mine(). The last one that holds a log's data answers.
ENGINES: dict[str, LogEngine] = {"frames": Frames(), "files": Files(), "spark": Spark(), "databases": Databases()}


def engine_of(log: Log) -> LogEngine:
    """The engine of a log."""
    check_threads()
    engine = next(engine for engine in reversed(ENGINES.values()) if engine.holds(log.data))
    asks_database = any(part is not None for part in (log.table, log.query, log.timeout)) or log.external_access
    if asks_database and not isinstance(engine, Databases):
        connections.check_no_database(log)
    if log.format is not None and not isinstance(engine, Files):
        raise OptionError("`format=` only works with files, and this log is not in files: leave it out.")
    return engine


def columns_of(log: Log) -> list[str]:
    """The names of the log's columns, read without its rows if possible."""
    return engine_of(log).columns(log)


def moments_of(question: Question, *, progress: bool | None = None) -> tuple[LogMoments, ...]:
    """The moments of a question, one for each reward, computed where the log lives if possible."""
    moments = engine_of(question.log).moments(question, progress)
    return tuple(replace(each, looks=1) for each in moments)  # nobody looked at the parts that it was read in


def rows(question: Question, take: Take, beside: Sequence[str] = ()) -> pl.DataFrame:
    """Some rows, with what the question names but policies, clusters and keys, and with other columns beside."""
    bare = question.slim("models", "controls", "segment")
    if not set(beside) <= set(bare.segment):
        bare = replace(bare, segment=tuple(dict.fromkeys((*bare.segment, *beside))))
    return engine_of(bare.log).take(bare, take)


def _taken(scan: pl.LazyFrame, question: Question, take: Take) -> pl.DataFrame:
    """Some rows of a scan."""
    if isinstance(take, Ids):
        read = scan.select(columns(plan(question, scan.collect_schema().names()).read))
        return next(frames.batches(_collect(of_some_ids(read, take.column, take.parts)), question))
    if question.log.where is not None and not isinstance(take, Spread) and each_by_itself(question):
        # a condition that looks at nothing but its own row holds for the same rows of a slice, which is far sooner read
        first = _collect(frames.selected(scan.head(SLICED * take.rows), question).head(take.rows))
        if first.height == take.rows:
            return first
    rows = frames.selected(scan, question)
    return _collect(some_of(rows, take.rows, take.of) if isinstance(take, Spread) else rows.head(take.rows))


def _ends(question: Question, parts: Iterable[pl.DataFrame | pl.LazyFrame]) -> tuple[float | None, float | None]:
    """The smallest and the largest reward of some frames."""
    reward = exactly(question.log.reward[0]).cast(pl.Float64).fill_nan(None)
    ends = pl.concat([_collect(part.lazy().select(low=reward.min(), high=reward.max())) for part in parts])
    low, high = ends.select(pl.col("low").min(), pl.col("high").max()).row(0)
    return low, high


def _over_foreign(log: Log, work: Callable[[pl.LazyFrame], T]) -> T:
    """What `work` makes of the rows of another tool's files."""
    try:
        return work(formats.opened(log.data, log.format).frame)
    except files.UNREADABLE as error:
        raise LogError(f"cannot read the files: {first_line(error)}.") from error


def _collect(frame: pl.LazyFrame) -> pl.DataFrame:
    return frame.collect(engine="streaming")


def _of_scan(scan: pl.LazyFrame, question: Question, report: Report | None) -> tuple[LogMoments, ...]:
    if question.needs_python:
        return summarize_batches(frames.completed(scan, question, report), question)
    if question.makes_rows:
        rows = rows_in_order(frames.selected(scan, question), question)
        batches = partial(rows.collect_batches, chunk_size=LISTED, engine="streaming", maintain_order=True)
        moments = summarize_in_order(batches, question, report)
        if moments is not None:
            return moments
    size, rows = sum(path.stat().st_size for path in files.files_of(question.log.data)), frames.selected(scan, question)
    if size <= SHORT and is_plain(question):
        few = _collect(rows.head(LONGEST + 1))
        if few.height <= LONGEST:
            return summarize_batches(frames.with_policies([few], question, report), question)
    frame = prepare_lazily(rows, question)
    cluster = question.log.cluster
    is_text = cluster is not None and question.groups > 1 and rows.collect_schema()[cluster] == pl.String
    least = STARTED if compiled.is_started() else BY_TEXT if is_text else BY_SEGMENT if question.names.keys else LONG
    if size * len(question.targets) >= least and not question.log.key and compiled.answers(question):
        return summarize(compiled.OnScan(partial(Streaming, frame, question), question, frame, report), question)
    return summarize(Streaming(frame, question, report), question)


def _known_rows(question: Question) -> int | None:
    """How many rows will be read, for those who wait long; None where only reading them tells."""
    log = question.log
    try:
        size = sum(path.stat().st_size for path in files.files_of(log.data))
        is_known = log.where is None and not formats.is_foreign(log) and files.are_parquet(log.data)
        is_long = size >= WAITED_FOR or question.needs_python
        return files.ParquetFiles(log.data).rows if is_known and is_long else None
    except (OSError, CounterpoiseError):  # which reading the rows will explain
        return None


def _fetch(native: Any) -> pl.LazyFrame:
    frame = nw.from_native(native)
    if isinstance(frame, nw.LazyFrame):
        fetched: pl.DataFrame = frame.collect("polars").to_native()
        return fetched.lazy()
    chosen = {name: frame[name] for name in frame.columns}
    # unknown: decimals too wide for polars, which are numbers
    return pl.LazyFrame(
        {name: frames.series_of(column, is_number=column.dtype == nw.Unknown) for name, column in chosen.items()}
    )
