"""How to write a column of a log inside an expression of its SQL."""

from __future__ import annotations

from collections.abc import Callable, Collection

from counterpoise.engines.rows import columns_of
from counterpoise.log.log import Log
from counterpoise.readers import connections, spark


def quoting(log: Log) -> Callable[[str], str]:
    """What a text is inside an expression: the quoted name of a column, or an expression in brackets.

    >>> quote = quoting(Log({"my p": [0.5]}))
    >>> quote("my p"), quote("p / 2")
    ('"my p"', '(p / 2)')
    """
    if log.data is None or (isinstance(log.data, str) and not log.data):  # a statement is written for a log elsewhere
        return lambda text: text if text.isidentifier() else f"({text})"
    if connections.is_database(log.data):
        with connections.opened(log) as native:
            names = {name: connections.quoted(native, name) for name in native.columns}
        return lambda text: names.get(text, f"({text})")
    if spark.is_spark(log.data):
        return lambda text: _quoted(text, log.data.columns, "`")
    columns = columns_of(log.but(propensity=None, logger=None, shares=None))
    return lambda text: _quoted(text, columns, '"')


def _quoted(text: str, columns: Collection[str], sign: str) -> str:
    return f"{sign}{text.replace(sign, sign * 2)}{sign}" if text in columns else f"({text})"
