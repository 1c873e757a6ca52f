"""What a log needs wherever it lives outside this process, in a database or in Spark: names, expressions, chosen actions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import narwhals as nw

from counterpoise.errors import ColumnError, first_line
from counterpoise.log.expressions import not_comparable
from counterpoise.log.question import Question
from counterpoise.log.rules import indicator, missing


def has_column(part: str, column: str, available: Sequence[str]) -> bool:
    """Whether a text names a column; a text that looks like a name but does not exist is a mistake, and any other is an expression."""
    if column in available:
        return True
    if re.fullmatch(r"\w+", column):
        raise missing(part, column, available)
    return False


def with_actions(
    frame: nw.LazyFrame[Any], question: Question, names: dict[str, str]
) -> tuple[nw.LazyFrame[Any], dict[str, str]]:
    """A column for every deterministic target: 1 if the logged action is the one it takes, 0 if not, null if unknown."""
    action = nw.col(names.get(str(question.log.action), str(question.log.action)))
    made = {target.column: f"counterpoise choice {k}" for k, target in enumerate(question.choices)}
    chosen = []
    types = frame.collect_schema() if question.choices else {}
    logged = str(question.log.action)
    for target in question.choices:
        its, other = (types[names.get(name, name)] for name in (target.source.column, logged))
        if nw.String in (its, other) and (its.is_numeric() or other.is_numeric()):
            raise not_comparable(target.source.column, its, logged, other)
    for target in question.choices:
        same = nw.col(names.get(target.source.column, target.source.column)) == action
        chosen.append(nw.when(~same.is_null()).then(indicator(same)).alias(made[target.column]))
    # one step for all: a step for each would be as many subqueries, one inside the other
    return frame.with_columns(*chosen) if chosen else frame, names | made


def cannot_compute(expressions: Sequence[str | None], error: Exception, available: Sequence[str]) -> ColumnError:
    """The error for an expression or condition that is not valid here."""
    texts = " or ".join(repr(text) for text in expressions if text is not None)
    return ColumnError(
        f"the database cannot compute {texts}: {first_line(error)}. The log has {', '.join(map(repr, available))}."
    )
