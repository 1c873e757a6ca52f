"""Every kind of log, and how it is added up and read: the one list of them, to which anybody can add."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import narwhals as nw
import polars as pl

from counterpoise.engines import compiled, spark
from counterpoise.engines.memory import summarize_batches, summarize_in_order
from counterpoise.engines.pushdown import PushedDown
from counterpoise.engines.sampling import of_some_ids, rows_of_some_ids, sample_of, some_of, together
from counterpoise.engines.streaming import Streaming, prepare_lazily, rows_of_lists
from counterpoise.engines.summarize import Engine, summarize
from counterpoise.errors import ColumnError, LogError, OptionError, first_line
from counterpoise.log.expressions import columns, plan
from counterpoise.log.groups import CLUSTER
from counterpoise.log.log import Log
from counterpoise.log.question import Question
from counterpoise.moments import LogMoments
from counterpoise.readers import connections, databases, files, frames
from counterpoise.readers import spark as spark_frames
from counterpoise.readers.progress import Report, progress_bar
from counterpoise.threads import check_threads

# -- Scans of files: read once more where a text file's rows are not what its first ones promise -----------------------

T = TypeVar("T")


def over_scan(question: Question, work: Callable[[pl.LazyFrame], T]) -> T:
    """What `work` makes of a scan of the files; it is called again if later rows of a text file break what the first ones promise."""
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
        raise (files.find_damaged(paths) or LogError(f"cannot read the files: {error}.")) from error


# ----------------------------------------------------------------------------------------------------------------------


Batches = Iterator[pl.DataFrame]
IN_MEMORY = (Mapping, pl.DataFrame, pl.LazyFrame)  # which need not be asked whether they are something else

LONG = 5_000_000_000  # bytes times targets from which files are worth the half second that the compiled loop takes to start

LISTED = 100_000  # rows that are made into lists at a time, which stay in the cache
SOME = 500  # ids, where nothing but their order tells which to fetch
MOST = 100_000  # rows of some ids that are fetched


class LogEngine:
    """How logs of one kind are added up, and read row by row.

    For a kind of your own, inherit from it, say which data it `holds`, give their rows as a `frame`, and put an object of it into
    `ENGINES`. One that adds up where its rows are also has its own `moments`, which `summarize` makes from an `Engine`.
    """

    has_order = True  # rows come in the same order whenever they are read

    def holds(self, data: Any) -> bool:
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

    def over_rows(self, question: Question, work: Callable[[Batches], T], number: str | None) -> T:
        """What `work` makes of the rows with everything that the question names; `number` names a column for the rows' own."""
        rows = frames.batches_or_error(self.frame(question.log.data), question, number)
        return work(frames.with_policies(rows, question))

    def first_rows(self, question: Question, rows: int) -> pl.DataFrame:
        """Some rows with everything that the question names."""
        data = self.frame(question.log.data)
        if isinstance(data, Mapping):
            data = {name: values[:rows] for name, values in data.items()}
        elif isinstance(data, pl.LazyFrame):
            with frames.errors_told(data):
                return frames.selected(data, question).head(rows).collect(engine="streaming")
        else:
            data = nw.from_native(data).head(rows).to_native()
        return next(frames.batches(data, question)).head(rows)

    def sampled(self, question: Question, rows: int) -> pl.DataFrame:
        """The rows with everything that the question names; so many at most, drawn evenly from all over the log."""
        return self.over_rows(question, lambda batches: sample_of(batches, rows), None)

    def drawn(self, question: Question, rows: int, total: int) -> pl.DataFrame:
        """About so many of `total` rows, from all over the log, with what it has of the question's columns: no policy has run."""
        data = self.frame(question.log.data)
        if isinstance(data, pl.LazyFrame):
            return some_of(frames.selected(data, question), rows, total).collect(engine="streaming")
        step = max(total // rows, 1)
        if isinstance(data, Mapping):
            data = {name: values[::step] for name, values in data.items()}
        elif not isinstance(nw.from_native(data), nw.LazyFrame):
            data = nw.from_native(data, eager_only=True).gather_every(step).to_native()
        return next(frames.batches(data, question))

    def some_ids(self, question: Question, column: str, parts: int) -> Log:
        """The log with all rows of about one in so many of a column's ids, and perhaps without columns that the question does not name."""
        log, data = question.log, self.frame(question.log.data)
        if parts == 1:
            return log.of(data)
        if isinstance(data, pl.LazyFrame):
            return log.of(of_some_ids(data, column, parts))
        return log.of(rows_of_some_ids(data, plan(question, self.columns(log)).read, column, parts))

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


class Frames(LogEngine):
    """Arrays and frames, eager or lazy: whatever no other engine holds."""

    def holds(self, data: Any) -> bool:
        """Anything; what is no frame is refused when it is read."""
        return True

    def scan(self, log: Log) -> pl.LazyFrame:
        """All rows and columns; those of arrays are put side by side."""
        if not isinstance(log.data, Mapping):
            with frames.errors_told(log.data):
                scan = super().scan(log)
                scan.collect_schema()
                return scan
        numbers = {*log.reward, log.propensity, *(log.control or {})}
        return frames.side_by_side(log.data, list(log.data), numbers).lazy()

    def columns(self, log: Log) -> list[str]:
        """Their names, which a frame in memory tells at once."""
        if isinstance(log.data, Mapping):
            return list(log.data)
        with frames.errors_told(log.data):
            return log.data.columns if isinstance(log.data, pl.DataFrame) else frames.as_narwhals(log.data).columns


class Files(LogEngine):
    """Files, folders and globs: scanned, and never in memory as a whole."""

    def holds(self, data: Any) -> bool:
        """A path, or a list of them."""
        return not isinstance(data, IN_MEMORY) and files.is_paths(data)

    def moments(self, question: Question, progress: bool | None) -> tuple[LogMoments, ...]:
        """By polars' streaming engine, or by the compiled loop where that saves more than it takes to start."""
        with progress_bar(progress) as report:
            return over_scan(question, lambda scan: _of_scan(scan, question, report))

    def over_rows(self, question: Question, work: Callable[[Batches], T], number: str | None) -> T:
        """The rows of a scan."""
        return over_scan(question, lambda scan: work(frames.completed(scan, question, number=number)))

    def first_rows(self, question: Question, rows: int) -> pl.DataFrame:
        """The first of a scan."""
        return over_scan(question, lambda scan: frames.selected(scan, question).head(rows).collect(engine="streaming"))

    def drawn(self, question: Question, rows: int, total: int) -> pl.DataFrame:
        """Some of a scan."""

        def some(scan: pl.LazyFrame) -> pl.DataFrame:
            return some_of(frames.selected(scan, question), rows, total).collect(engine="streaming")

        return over_scan(question, some)

    def some_ids(self, question: Question, column: str, parts: int) -> Log:
        """Those of a scan, fetched."""

        def fetched(scan: pl.LazyFrame) -> pl.DataFrame:
            wanted = scan.select(columns(plan(question, scan.collect_schema().names()).read))
            rows: pl.DataFrame = of_some_ids(wanted, column, parts).collect(engine="streaming")
            return rows

        return question.log.of(over_scan(question, fetched))

    def scan(self, log: Log) -> pl.LazyFrame:
        """The scan itself."""
        return files.scan(log.data)


class Databases(LogEngine):
    """Tables and queries, which their databases add up."""

    has_order = False

    def holds(self, data: Any) -> bool:
        """A URL, a DuckDB file, connection or relation, or an ibis table."""
        return not isinstance(data, IN_MEMORY) and connections.is_database(data)

    def moments(self, question: Question, progress: bool | None) -> tuple[LogMoments, ...]:
        """Sums travel; rows do where a policy only runs here."""
        if question.needs_python:
            with progress_bar(progress) as report:
                rows = frames.with_policies(databases.batches(question), question, report)
                return summarize_batches(rows, question, has_order=False)
        with connections.opened(question.log) as native:
            engine = PushedDown(question, lambda part: databases.complete(native, part), databases.fence)
            return summarize(engine, question)

    def over_rows(self, question: Question, work: Callable[[Batches], T], number: str | None) -> T:
        """The rows in batches; they have no numbers."""
        return work(frames.with_policies(databases.batches(question), question))

    def first_rows(self, question: Question, rows: int) -> pl.DataFrame:
        """Whichever come first."""
        with connections.opened(question.log) as native:
            frame, names = databases.complete(native, question)
            return _rename_head(frame, question, names, rows)

    def drawn(self, question: Question, rows: int, total: int) -> pl.DataFrame:
        """Whichever come first: a database would read all rows for others."""
        return self.first_rows(question, rows)

    def some_ids(self, question: Question, column: str, parts: int) -> Log:
        """Those that the database chooses."""
        by_id = replace(question, log=question.log.but(cluster=column))
        with connections.opened(question.log) as native:
            frame, names = databases.complete(native, by_id)
            return _fetch_ids(frame, question, names, column, parts)

    def scan(self, log: Log) -> pl.LazyFrame:
        """All rows, fetched."""
        with connections.opened(log) as native:
            return _fetch(native)

    def columns(self, log: Log) -> list[str]:
        """As the database names them."""
        with connections.opened(log) as native:
            return list(native.columns)


class Spark(LogEngine):
    """Spark's frames, which its executors add up."""

    has_order = False

    def holds(self, data: Any) -> bool:
        """A frame of Spark, classic or Connect."""
        return not isinstance(data, IN_MEMORY) and spark_frames.is_spark(data)

    def moments(self, question: Question, progress: bool | None) -> tuple[LogMoments, ...]:
        """Sums travel, rows never do."""
        return spark.moments_of(question)

    def over_rows(self, question: Question, work: Callable[[Batches], T], number: str | None) -> T:
        """The rows, fetched; they have no numbers."""
        return work(frames.with_policies(spark_frames.batches(question), question))

    def first_rows(self, question: Question, rows: int) -> pl.DataFrame:
        """Whichever come first."""
        with spark_frames.errors_told():
            frame, names = spark_frames.complete(question)
            return _rename_head(frame, question, names, rows)

    def some_ids(self, question: Question, column: str, parts: int) -> Log:
        """Those that Spark chooses."""
        with spark_frames.errors_told():
            frame, names = spark_frames.complete(replace(question, log=question.log.but(cluster=column)))
            return _fetch_ids(frame, question, names, column, parts)

    def sampled(self, question: Question, rows: int) -> pl.DataFrame:
        """Drawn by Spark, so that no more rows travel."""
        return together(frames.with_policies(spark_frames.batches(question, rows), question))

    def drawn(self, question: Question, rows: int, total: int) -> pl.DataFrame:
        """Drawn by Spark."""
        return together(spark_frames.batches(question, rows))


# An engine of one's own: ENGINES["mine"] = Mine(). The last one that holds a log's data answers.
ENGINES: dict[str, LogEngine] = {"frames": Frames(), "files": Files(), "spark": Spark(), "databases": Databases()}


def engine_of(log: Log) -> LogEngine:
    """The engine of a log."""
    check_threads()
    engine = next(engine for engine in reversed(ENGINES.values()) if engine.holds(log.data))
    asks_database = log.table is not None or log.query is not None or log.external_access
    if asks_database and not isinstance(engine, Databases):
        connections.check_no_database(log)
    return engine


def columns_of(log: Log) -> list[str]:
    """The names of the log's columns, read without its rows if possible."""
    return engine_of(log).columns(log)


def moments_of(question: Question, *, progress: bool | None = None) -> tuple[LogMoments, ...]:
    """The moments of a question, one for each reward, computed where the log lives if possible."""
    return engine_of(question.log).moments(question, progress)


def first_rows(question: Question, rows: int) -> pl.DataFrame:
    """Some rows of a question's log, with every column that it names."""
    return engine_of(question.log).first_rows(question, rows)


def _rename_head(frame: Any, question: Question, names: Mapping[str, str], rows: int) -> pl.DataFrame:
    """Some rows from elsewhere, with the columns under the names that the question has for them."""
    columns = {names.get(column, column): column for column in question.wanted_columns}
    head: pl.DataFrame = frame.select(*map(nw.col, columns)).head(rows).collect("polars").to_native()
    return head.rename(columns)


def _fetch_ids(frame: nw.LazyFrame[Any], question: Question, names: Mapping[str, str], column: str, parts: int) -> Log:
    """The rows of some ids from elsewhere: by the remainder of a number, or of a text's checksum, or else of whichever ids come first."""
    name = names.get(CLUSTER, names.get(column, column))
    if parts > 1:
        dtype = frame.collect_schema()[name]
        if dtype.is_integer() or CLUSTER in names:
            frame = frame.filter(nw.col(name) % (parts | 1) == 0)  # by an odd number, since ids are often even
        else:
            first = frame.select(nw.col(name)).unique().head(SOME)
            frame = frame.join(first, on=name, how="semi")
    rows = _rename_head(frame, question, names, MOST)
    return question.log.of(rows).but(where=None, table=None, query=None, external_access=False)


def _of_scan(scan: pl.LazyFrame, question: Question, report: Report | None) -> tuple[LogMoments, ...]:
    if question.needs_python:
        return summarize_batches(frames.completed(scan, question, report), question)
    if question.makes_lists:
        rows = rows_of_lists(frames.selected(scan, question), question)
        batches = partial(rows.collect_batches, chunk_size=LISTED, engine="streaming", maintain_order=True)
        moments = summarize_in_order(batches, question, report)
        if moments is not None:
            return moments
    size = sum(path.stat().st_size for path in files.files_of(question.log.data))
    frame = prepare_lazily(frames.selected(scan, question), question)
    engine: Engine = Streaming(frame, question, report)
    is_long = size * len(question.targets) >= LONG and not question.log.key
    if is_long and compiled.answers(question):
        engine = compiled.OnScan(Streaming(frame, question), question, frame, report)
    return summarize(engine, question)


def _fetch(native: Any) -> pl.LazyFrame:
    frame = nw.from_native(native)
    if isinstance(frame, nw.LazyFrame):
        fetched: pl.DataFrame = frame.collect("polars").to_native()
        return fetched.lazy()
    chosen = {name: frame[name] for name in frame.columns}
    # unknown are decimals too wide for polars, which are numbers
    return pl.LazyFrame(
        {name: frames.series_of(column, is_number=column.dtype == nw.Unknown) for name, column in chosen.items()}
    )
