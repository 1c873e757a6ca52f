"""Logs in Spark: its executors return partial moments; where they cannot, Spark adds up the columns, and rows travel where need be."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import narwhals as nw
import polars as pl

from counterpoise.engines.lists import in_pieces
from counterpoise.engines.memory import Batches
from counterpoise.engines.pushdown import PushedDown, distinct_keys, guard, prepare_there
from counterpoise.engines.query import Frame
from counterpoise.engines.summarize import MOST_SEGMENTS, Summary, finish, summarize
from counterpoise.errors import CounterpoiseError, LogError, OptionError, first_line
from counterpoise.log.expressions import LazyRows, cannot_compute, has_column, may_use, with_actions
from counterpoise.log.groups import CLUSTER, checksum_of
from counterpoise.log.question import Question
from counterpoise.log.rules import Problem, check_distinct, key_of, merge_problems, rules_of
from counterpoise.moments import LogMoments, Powers
from counterpoise.readers.policies import complete as complete_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

ESTIMATED = "estimated propensity"
AT_ONCE = 64  # partitions whose answers the driver adds up by itself; those of more are added up by executors first
BATCH = 100_000  # rows a policy sees at once; Spark's own batches are smaller
_WITHOUT_COUNTERPOISE: WeakSet[Any] = WeakSet()  # sessions whose executors cannot import it, as they said once

# -- Sums --------------------------------------------------------------------------------------------------------------


def moments_of(question: Question) -> tuple[LogMoments, ...]:
    """The moments of a Spark DataFrame; no row ever leaves the executors, only sums and the largest weights.

    The executors make them in one job, by the engine for batches, in a tenth of the time that Spark takes to plan and rank the same
    by its own expressions. It is left to those if the rows of a list may be in several partitions, if there are more segments than
    the partial answers of many partitions should have, and if the executors have no counterpoise. They also find the words for
    whatever is wrong with a log of columns, as in any database.
    """
    with errors_told():
        if question.needs_python:
            if question.sequences is not None:
                raise OptionError(
                    "the rows of a ranking may be in several partitions of Spark, where policies run: write the target's probabilities "
                    "to a column."
                )
            return _by_executors(question)
        session = question.log.data.sparkSession
        is_small = question.sequences is None and (question.log.max_segments or 0) <= MOST_SEGMENTS
        if is_small and session not in _WITHOUT_COUNTERPOISE:
            frame, names = complete(question)
            prepare_there(frame, question, names)  # which refuses columns of a wrong type
            try:
                return _by_executors(question)
            except Exception as error:  # whatever it is: if it is the log, Spark's own sums have the same trouble
                if "ModuleNotFoundError" in str(error):
                    _WITHOUT_COUNTERPOISE.add(session)
                    missing = re.search(r"No module named '([\w.]+)'", str(error))
                    warnings.warn(
                        f"Spark's executors run a Python without {missing[1] if missing else 'counterpoise'}, so Spark adds up the columns "
                        "by itself, which takes about ten times as long. Set the environment variable PYSPARK_PYTHON to a Python with "
                        f"counterpoise before the session starts (here, {sys.executable}), or install counterpoise on the executors.",
                        stacklevel=2,
                    )
        engine = PushedDown(question, complete)
        return tuple(replace(each, queries=engine.queries) for each in summarize(engine, question))


def _by_executors(question: Question) -> tuple[LogMoments, ...]:
    """The partial moments of all partitions, each computed by its executor, added together.

    Spark keeps the output of one successful attempt at each task, so a task that is retried counts its rows once.
    """
    frame, names = complete(question)
    native: DataFrame = frame.to_native()
    # without the data, which does not travel, and the key, which Spark counts, as it sees all partitions
    shipped = replace(question, log=question.log.of({}).but(key=(), drop_bad_rows=True))
    partial = native.mapInArrow(partial_moments(shipped, names), "partial string")
    # the driver never holds the answers of all of many partitions, each with its largest weights
    if ".connect." in type(native).__module__:
        whole = added(question, (text for (text,) in partial.toLocalIterator()))
    elif partial.rdd.getNumPartitions() > AT_ONCE:
        merge = in_pairs(shipped)
        text = partial.rdd.map(lambda row: row[0]).treeAggregate("", merge, merge)
        whole = added(question, [text] if text else [])
    else:
        whole = added(question, (text for (text,) in partial.collect()))
    made = finish(whole.summary, question, lambda n: _duplicates(frame, question, names, n))
    return tuple(replace(each, queries=2 if question.log.key else 1) for each in made)


def _duplicates(frame: Frame, question: Question, names: dict[str, str], n: int) -> int | None:
    """How many good rows have the key of another good row; Spark counts them, because no executor sees all keys."""
    if not question.log.key:
        return None
    # a policy's probabilities are in range or an error was raised, so that any column in range may stand for them
    propensity = names.get(str(question.log.propensity), ESTIMATED)
    if propensity == ESTIMATED:  # by a model, whose propensities are in range, too
        frame = frame.with_columns(nw.lit(1.0).alias(ESTIMATED))
        names = names | {str(question.log.propensity): ESTIMATED}
    stand_in = names | {target.column: propensity for target in question.policies}
    if question.model is not None:  # whose predictions are finite, or an error was raised
        stand_in |= dict.fromkeys((str(question.log.model_reward), *question.model_value.values()), propensity)
    return n - distinct_keys(guard(prepare_there(frame, question, stand_in), question), question)


def partial_moments(
    shipped: Question, names: dict[str, str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that an executor runs on the record batches of a partition: one row of text with what it found."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        partial, answer = Batches(shipped), ""
        try:
            for number, frame in enumerate(in_pieces((pl.DataFrame(pl.from_arrow(batch)) for batch in batches), BATCH)):
                batch = frame.rename({name: column for column, name in names.items()})
                partial.add(complete_batch(batch, shipped, f"batch {number} of partition {partition}"))
            answer = as_text(partial) if partial.rows else ""
        except CounterpoiseError as error:
            # as an answer: an exception would be retried four times, and sometimes reach the driver without its message
            answer = json.dumps({"error": str(error)})
        if answer:
            yield pa.RecordBatch.from_pydict({"partial": [answer]})

    return run


def added(question: Question, answers: Iterable[str]) -> Batches:
    """The partial moments of some partitions together."""
    whole, rules = Batches(question), rules_of(question)
    for text in answers:
        answer = json.loads(text)
        if "error" in answer:
            raise LogError(answer["error"])
        moments = tuple(LogMoments.from_json(raw) for raw in answer["moments"])
        problems = tuple(Problem(rules[k], count, None, value) for k, count, value in answer["problems"])
        left_out = tuple(Powers.from_plain(raw) for raw in answer["left_out"])
        whole.add_summary(Summary(moments, problems, answer["rows"], left_out))
    return whole


def in_pairs(shipped: Question) -> Callable[[str, str], str]:
    """The function by which executors add up the partial moments of two partitions, each as text, or empty if it had no rows."""

    def merge(a: str, b: str) -> str:
        if not (a and b):
            return a or b
        try:
            return as_text(added(shipped, (a, b)))
        except LogError as error:
            return json.dumps({"error": str(error)})

    return merge


def as_text(partial: Batches) -> str:
    """Partial moments as executors send them."""
    expected = [key_of(rule) for rule in rules_of(partial.question)]
    problems = [
        (expected.index(key_of(problem.rule)), problem.count, problem.value)
        for problem in merge_problems(partial.problems)
    ]
    moments = [log.to_json() for log in partial.total if log.n]  # without rows there are no segments
    left_out = [powers.to_plain() for powers in partial.left_out]
    answer = {"moments": moments, "rows": partial.rows, "problems": problems, "left_out": left_out}
    return json.dumps(answer, default=str)


# -- Columns and rows --------------------------------------------------------------------------------------------------


def batches(question: Question, limit: int | None = None) -> Generator[pl.DataFrame, None, None]:
    """The columns we need, fetched for questions that sums cannot answer: all rows, or some drawn at random."""
    with errors_told():
        frame, names = complete(question)
        if limit is not None:
            native = frame.to_native()
            frame = nw.from_native(native.orderBy(_functions(native).rand(0)).limit(limit))
        columns = dict.fromkeys(question.wanted_columns)
        rows: pl.DataFrame = frame.select(*(nw.col(names[column]) for column in columns)).collect("polars").to_native()
    yield rows.rename({names[column]: column for column in columns})


def complete(question: Question) -> tuple[LazyRows, dict[str, str]]:
    """The rows that the condition lets through, with every column that a question names, and under which names: those need no quoting."""
    log: DataFrame = question.log.data
    functions = _functions(log)
    available = list(log.columns)
    check_distinct(available)
    texts = [column for _, column in question.columns if column not in available]
    floats = [name for name, dtype in log.dtypes if dtype in ("float", "double")]
    for name in may_use([*texts, question.log.where or ""], floats):  # Spark takes a NaN to be larger than any number
        number = functions.col("`" + name.replace("`", "``") + "`")
        log = log.withColumn(name, functions.when(~functions.isnan(number), number))
    names: dict[str, str] = {}
    chosen, expressions = [], []
    for part, column in question.columns:
        if column in names:
            continue
        names[column] = f"c{len(names)}"
        if has_column(part, column, available):
            value = functions.col("`" + column.replace("`", "``") + "`")
        else:
            value = functions.expr(column)
            expressions.append(column)
        chosen.append(value.alias(names[column]))
        if column == question.log.cluster and dict(log.select(value.alias("id")).dtypes)["id"] == "string":
            names[CLUSTER] = f"c{len(names)}"
            chosen.append(_checksum(functions, value).alias(names[CLUSTER]))
        if column in question.hashed:
            names[checksum_of(column)] = f"c{len(names)}"
            chosen.append(_checksum(functions, value.cast("string")).alias(names[checksum_of(column)]))
    try:
        rows = log if question.log.where is None else log.filter(functions.expr(question.log.where))
        native = rows.select(*chosen)
        native.dtypes  # noqa: B018 - Connect looks at a query only when asked for its columns
    except Exception as error:
        if expressions or question.log.where is not None:
            raise cannot_compute([*expressions, question.log.where], error, available) from None
        raise
    return with_actions(nw.from_native(native), question, names)


def _checksum(functions: ModuleType, value: Column) -> Column:
    """Text as a number, as `groups.integer_ids` does it."""
    checksum: Column = functions.conv(functions.substring(functions.md5(value), 1, 6), 16, 10).cast("bigint")
    return checksum


def _functions(log: object) -> ModuleType:
    if ".connect." in type(log).__module__:
        from pyspark.sql.connect import functions as connect

        return connect
    from pyspark.sql import functions as classic

    return classic


@contextmanager
def errors_told() -> Iterator[None]:
    """Turn whatever Spark raises into an error about the log."""
    try:
        yield
    except CounterpoiseError:
        raise
    except Exception as error:
        # the line of an executor's stack trace that says what went wrong is the last of its kind
        reasons = [line.strip() for line in str(error).splitlines() if re.match(r"[\w.]+(Error|Exception)\b.*: ", line)]
        reason = " ".join([first_line(error), *reasons[-1:]])
        raise LogError(f"Spark did not respond: {type(error).__name__}: {reason}.") from error
