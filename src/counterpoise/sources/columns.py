"""This file holds the columns that a log does not have but its columns make: SQL expressions, conditions, chosen actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import polars as pl

from counterpoise.errors import ColumnError, OptionError, first_line
from counterpoise.sources.checks import check_columns, missing
from counterpoise.sources.request import Request

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)


@dataclass(frozen=True)
class Plan:
    """Which columns of the log to read, and which expressions to compute from them."""

    read: tuple[str, ...]
    expressions: tuple[str, ...]
    number: str | None = None  # name of a column for the row's number in the log

    def complete(self, frame: Frame, request: Request) -> Frame:
        """The rows that the condition lets through, with a column for every expression and deterministic target."""
        frame = only(frame if self.number is None else frame.with_row_index(self.number), request.where)
        if self.expressions:
            # The names are ours, so that no name of the user's needs quoting.
            names = {f"counterpoise expression {k}": text for k, text in enumerate(self.expressions)}
            computed = "".join(f', ({text}) AS "{name}"' for name, text in names.items())
            try:
                frame = _checked_sql(frame, f"SELECT *{computed} FROM self")
                schema = frame.collect_schema()
            except pl.exceptions.PolarsError as error:
                asked = " or ".join(map(repr, self.expressions))
                raise ColumnError(f"cannot compute {asked} from this log: {first_line(error)}.") from error
            frame = frame.rename({name: text for name, text in names.items() if name in schema})
        if request.target_actions:
            action = pl.col(str(request.action))
            frame = frame.with_columns(
                (pl.col(column) == action).cast(pl.Float64).alias(made)
                for made, column in request.target_actions.items()
            )
        return frame


def only(frame: Frame, where: str | None) -> Frame:
    """The rows that meet an SQL condition; the query language also compares dates with text."""
    if where is None:
        return frame
    try:
        return _checked_sql(frame, f"SELECT * FROM self WHERE {where}")
    except (pl.exceptions.SQLSyntaxError, pl.exceptions.SQLInterfaceError, pl.exceptions.ColumnNotFoundError) as error:
        raise ColumnError(f"where={where!r} is no SQL condition on this log: {first_line(error)}.") from error
    except pl.exceptions.PolarsError as error:
        raise ColumnError(
            f"where={where!r} does not fit the types of this log: cannot compute it, {first_line(error)}. Compare numbers "
            "without quotes."
        ) from error


def _checked_sql(frame: Frame, query: str) -> Frame:
    """The answer of a query, tried on one row of nulls first: a lazy frame would tell only later that its types do not fit."""
    schema = frame.collect_schema()
    pl.DataFrame({name: [None] for name in schema}, schema=schema).sql(query, table_name="self")
    return frame.sql(query, table_name="self")


def plan(request: Request, names: Sequence[object], number: str | None = None) -> Plan:
    """What to read and what to compute: a text that names a column is that column, any other is an SQL expression."""
    available = [name for name in names if isinstance(name, str)]
    read: dict[str, None] = {}
    expressions: dict[str, None] = {}
    for part, column in request.columns:
        if column in available:
            read[column] = None
            continue
        roots = _roots(part, column, request, available)
        expressions[column] = None
        read |= dict.fromkeys(roots)
    if request.where is not None:
        read |= dict.fromkeys(_roots("where", request.where, request, available))
    clash = [name for name in (*request.target_actions, *request.policies) if name in read]
    if clash:
        raise OptionError(f"target {clash[0]!r} has the name of a column that is read: give it another name.")
    return Plan(tuple(read), tuple(expressions), number)


def _roots(part: str, text: str, request: Request, available: Sequence[str]) -> list[str]:
    """The columns that an expression is made of; raises if it is none, or if they are not there."""
    if not isinstance(text, str):
        check_columns(request, available)
    try:
        expression = pl.sql_expr(text)
        roots = expression.meta.root_names()
    except pl.exceptions.PolarsError as error:
        if part == "where":
            raise ColumnError(f"where={text!r} is no SQL condition: {error}.") from error
        raise missing(part, text, available) from error
    unknown = [name for name in roots if name not in available]
    if unknown and (len(roots) == 1 and roots[0] == text):
        raise missing(part, text, available)
    if unknown:
        raise missing(part, unknown[0], available, inside=text)
    lengths = pl.DataFrame({name: [None, None] for name in roots} or {"": [None, None]}).lazy()
    if roots and _is_aggregate(lengths, expression):
        raise ColumnError(
            f"{part}={text!r} must give one value per row, but adds up rows. Write it without aggregates."
        )
    return roots


def _is_aggregate(two_rows: pl.LazyFrame, expression: pl.Expr) -> bool:
    """Whether two rows become one; a probe without types cannot always tell, and the engine will."""
    try:
        return two_rows.select(expression.alias("probe")).collect().height != 2
    except pl.exceptions.PolarsError:
        return False
