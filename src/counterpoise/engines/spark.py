"""This file holds the reader of Spark: pushed-down aggregates for columns, partial moments from the executors for policies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import narwhals as nw
import polars as pl

from counterpoise.engines import pushdown
from counterpoise.engines.memory import Partial
from counterpoise.errors import CounterpoiseError, LogError, first_line
from counterpoise.log import rules as checks
from counterpoise.log.request import Request
from counterpoise.moments.log_moments import LogMoments
from counterpoise.readers.databases import cannot_compute, has_column, with_actions
from counterpoise.readers.policies import add_policies

BATCH = 100_000  # rows a policy sees at once; Spark's own batches are smaller


def read(log: Any, request: Request) -> LogMoments:
    """Moments of a Spark DataFrame, classic or Connect; no row ever leaves the executors, only sums and the largest weights."""
    with _errors():
        if request.policies:
            frame, names = _complete(log, request)
            return _with_policies(frame.to_native(), request, names)
        return pushdown.summarise(pushdown.Database(lambda part: _complete(log, part), _collect), request)


def batches(log: Any, request: Request) -> Iterator[pl.DataFrame]:
    """The needed columns, fetched: for questions about rows, which sums do not answer."""
    with _errors():
        frame, names = _complete(log, request)
        columns = dict.fromkeys([*(column for _, column in request.columns), *request.target_actions])
        rows = _collect(frame.select(*(nw.col(names[column]) for column in columns)))
    yield rows.rename({names[column]: column for column in columns})


def _complete(log: Any, request: Request) -> tuple[nw.LazyFrame[Any], dict[str, str]]:
    native, names = _select(log, request)
    return with_actions(nw.from_native(native), request, names)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except CounterpoiseError:
        raise
    except Exception as error:
        raise LogError(f"Spark did not answer: {type(error).__name__}: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    """What went wrong: of an executor's stack trace the line that says it, which is the last of its kind."""
    said = [line.strip() for line in str(error).splitlines() if re.match(r"[\w.]+(Error|Exception)\b.*: ", line)]
    return f"{first_line(error)} {said[-1]}" if said else first_line(error)


def _select(log: Any, request: Request) -> tuple[Any, dict[str, str]]:
    """The needed columns under names that need no quoting, and which is which."""
    functions = _functions(log)
    available = list(log.columns)
    checks.check_distinct(available)
    names: dict[str, str] = {}
    chosen, asked = [], []
    for part, column in request.columns:
        if column in names:
            continue
        names[column] = f"c{len(names)}"
        if has_column(part, column, available):
            value = functions.col("`" + column.replace("`", "``") + "`")
        else:
            value = functions.expr(column)
            asked.append(column)
        chosen.append(value.alias(names[column]))
        if column == request.cluster and dict(log.select(value.alias("id")).dtypes)["id"] == "string":
            # as `groups.integer_ids` does for text
            value = functions.conv(functions.substring(functions.md5(value), 1, 6), 16, 10).cast("bigint")
            names[pushdown.CLUSTER] = f"c{len(names)}"
            chosen.append(value.alias(names[pushdown.CLUSTER]))
    try:
        rows = log if request.where is None else log.filter(functions.expr(request.where))
        native = rows.select(*chosen)
        native.dtypes  # noqa: B018 - Connect looks at a query only when asked for its columns
    except Exception as error:
        if asked or request.where is not None:
            raise cannot_compute([*asked, request.where], error, available) from None
        raise
    return native, names


def _functions(log: Any) -> Any:
    if ".connect." in type(log).__module__:
        from pyspark.sql.connect import functions as connect

        return connect
    from pyspark.sql import functions as classic

    return classic


def _collect(frame: nw.LazyFrame[Any]) -> pl.DataFrame:
    answer: pl.DataFrame = frame.collect("polars").to_native()
    return answer


def _with_policies(native: Any, request: Request, names: dict[str, str]) -> LogMoments:
    """Every partition's partial moments, computed by its executor, together.

    Spark keeps the output of one successful attempt of each task, so that a task tried again counts its rows once.
    """
    answers = native.mapInArrow(partial_moments(request, names), "partial string").collect()
    whole = Partial()
    rules = checks.rules(request)
    for (text,) in answers:
        found = json.loads(text)
        if "error" in found:
            raise LogError(found["error"])
        if found["moments"] is not None:
            part = LogMoments.from_json(json.dumps(found["moments"]))
            whole.total = part if whole.total is None else whole.total + part
        whole.rows += found["rows"]
        whole.problems += [checks.Problem(rules[k], count, None, value) for k, count, value in found["problems"]]
    n = whole.total.n if whole.total is not None else 0
    return whole.finish(request, _duplicates(native, request, names, n))


def _duplicates(native: Any, request: Request, names: dict[str, str], n: int) -> int | None:
    """Good rows whose key another good row has: Spark counts them, as no executor sees all keys."""
    if not request.key:
        return None
    # a policy's probabilities are in range or an error was raised, so that any column in range may stand for them
    stand_in = names | dict.fromkeys(request.policies, names[request.propensity])
    good = pushdown.guard(pushdown.prepare(nw.from_native(native), request, stand_in), request)
    return pushdown.duplicates_of(good, request, n, _collect)


def partial_moments(request: Request, names: dict[str, str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function that an executor runs on the record batches of a partition: one row of text with what it found."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        partial = Partial()
        answer = ""
        try:
            for number, frame in enumerate(_in_pieces(batches)):
                batch = frame.rename({name: column for column, name in names.items()})
                partial.add(add_policies(batch, request, f"batch {number} of partition {partition}"), without_key)
            answer = _as_text(partial, request) if partial.total is not None else ""
        except CounterpoiseError as error:
            # as an answer: an exception would be tried again four times, and reach the driver without its words at times
            answer = json.dumps({"error": str(error)})
        if answer:
            yield pa.RecordBatch.from_pydict({"partial": [answer]})

    without_key = replace(request, key=())  # counted by Spark, which sees all partitions
    return run


def _in_pieces(batches: Iterator[Any]) -> Iterator[pl.DataFrame]:
    """The record batches as frames of about `BATCH` rows."""
    held: list[pl.DataFrame] = []
    for batch in batches:
        held.append(pl.DataFrame(pl.from_arrow(batch)))
        if sum(frame.height for frame in held) >= BATCH:
            yield pl.concat(held)
            held = []
    if held:
        yield pl.concat(held)


def _as_text(partial: Partial, request: Request) -> str:
    assert partial.total is not None
    expected = [checks.key_of(rule) for rule in checks.rules(request)]
    problems = [
        (expected.index(checks.key_of(problem.rule)), problem.count, problem.found)
        for problem in checks.merge_problems(partial.problems)
    ]
    moments = json.loads(partial.total.to_json()) if partial.total.n else None  # without rows there are no segments
    return json.dumps({"moments": moments, "rows": partial.rows, "problems": problems}, default=str)
