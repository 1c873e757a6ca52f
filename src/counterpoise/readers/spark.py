"""Spark frames: the columns that a question names, and the rows where sums are not enough."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

import narwhals as nw
import polars as pl

from counterpoise.errors import CounterpoiseError, LogError, first_line
from counterpoise.log.expressions import LazyRows, cannot_compute, has_column, may_use, with_actions
from counterpoise.log.groups import CLUSTER, checksum_of
from counterpoise.log.question import Question
from counterpoise.log.rules import check_distinct

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
