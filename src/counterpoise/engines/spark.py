"""Logs in Spark: its executors return partial moments; where they cannot, Spark adds up the columns itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import narwhals as nw
import polars as pl

from counterpoise.engines.lists import in_pieces
from counterpoise.engines.memory import Batches
from counterpoise.engines.pushdown import PushedDown, distinct_keys, guard, prepare_there
from counterpoise.engines.query import Frame
from counterpoise.engines.summarize import MOST_SEGMENTS, Summary, finish, summarize
from counterpoise.errors import CounterpoiseError, LogError, OptionError
from counterpoise.log.question import Question
from counterpoise.log.rules import Problem, key_of, merge_problems, rules_of
from counterpoise.moments import LogMoments, Powers
from counterpoise.readers.policies import complete as complete_batch
from counterpoise.readers.spark import complete, errors_told

if TYPE_CHECKING:
    import pyarrow as pa

ESTIMATED = "estimated propensity"
BATCH = 100_000  # rows a policy sees at once; Spark's own batches are smaller
_WITHOUT_COUNTERPOISE: WeakSet[Any] = WeakSet()  # sessions whose executors cannot import it, as they said once


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
        engine = PushedDown(question, complete)
        return tuple(replace(each, queries=engine.queries) for each in summarize(engine, question))


def _by_executors(question: Question) -> tuple[LogMoments, ...]:
    """The partial moments of all partitions, each computed by its executor, added together.

    Spark keeps the output of one successful attempt at each task, so a task that is retried counts its rows once.
    """
    frame, names = complete(question)
    answers = frame.to_native().mapInArrow(partial_moments(question, names), "partial string").collect()
    whole, rules = Batches(question), rules_of(question)
    for (text,) in answers:
        answer = json.loads(text)
        if "error" in answer:
            raise LogError(answer["error"])
        moments = tuple(LogMoments.from_json(raw) for raw in answer["moments"])
        problems = tuple(Problem(rules[k], count, None, value) for k, count, value in answer["problems"])
        left_out = tuple(Powers.from_plain(raw) for raw in answer["left_out"])
        whole.add_summary(Summary(moments, problems, answer["rows"], left_out))
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
    question: Question, names: dict[str, str]
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
            answer = _as_text(partial) if partial.rows else ""
        except CounterpoiseError as error:
            # as an answer: an exception would be retried four times, and sometimes reach the driver without its message
            answer = json.dumps({"error": str(error)})
        if answer:
            yield pa.RecordBatch.from_pydict({"partial": [answer]})

    # without the data, which does not travel, and the key, which Spark counts, as it sees all partitions
    shipped = replace(question, log=question.log.of({}).but(key=(), drop_bad_rows=True))
    return run


def _as_text(partial: Batches) -> str:
    expected = [key_of(rule) for rule in rules_of(partial.question)]
    problems = [
        (expected.index(key_of(problem.rule)), problem.count, problem.value)
        for problem in merge_problems(partial.problems)
    ]
    moments = [log.to_json() for log in partial.total if log.n]  # without rows there are no segments
    left_out = [powers.to_plain() for powers in partial.left_out]
    answer = {"moments": moments, "rows": partial.rows, "problems": problems, "left_out": left_out}
    return json.dumps(answer, default=str)
