"""Rows that several policies wrote: before anything is added up, the mixture of their propensities takes the place of each one's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from counterpoise.errors import LogError, OptionError
from counterpoise.log.kinds.kind import OR_DROP, Conflict, RowKind
from counterpoise.log.parts import checked_shares

if TYPE_CHECKING:
    from counterpoise.log.log import Log

Quote = Callable[[str], str]  # a column or an expression, as it stands inside an expression of the log's SQL

_ONE_POLICY = Conflict(
    "{who} looks at the propensities of one policy, and {loggers} wrote this log.",
    "Choose one of them: its column as `propensity=`, and its rows with `where=`.",
)
INVALID = (
    "Every logger's probability of the logged action must lie in [0, 1], and that of the logger who wrote the row "
    f"above 0: fix the log{OR_DROP}"
)


class OfLoggers(RowKind):
    """Rows with `logger=`, and a mapping of loggers to columns as `propensity=`; a statement cannot tell who wrote them."""

    parts = ("logger", "shares")
    conflicts: ClassVar[Mapping[str, Conflict]] = {"doctor": _ONE_POLICY, "learning": _ONE_POLICY}

    def is_of(self, log: Any) -> bool:
        """Whether a log has the propensities of several loggers."""
        return isinstance(log.propensity, Mapping)

    def check(self, log: Log) -> None:
        """Check that several loggers come with a propensity each."""
        if self.is_of(log) and len(log.loggers) < 2:
            raise OptionError(
                f"`propensity=` maps {len(log.loggers)} logger to its column: name two or more, or one column."
            )
        if log.propensity is not None:
            self.check_verb(log, "")

    def check_verb(self, log: Log, verb: str) -> None:
        """Check that nobody says who wrote a row where the log has no propensities of several loggers."""
        if verb == "ab_test":  # which may have no propensities, and whose arms the shares are about
            return
        named = next((part for part in self.parts if getattr(log, part) is not None), None)
        if named and not self.is_of(log):
            raise OptionError(
                f"`{named}=` is about several loggers.",
                do=f"Pass `propensity=` as a mapping of each of them to its probability of the logged action, or leave out `{named}=`.",
            )

    def of_one_policy(self, log: Log, quote: Quote, rows_by: Callable[[Log, str], Mapping[str, int]]) -> Log:
        """The log as if a single policy had written it that took each action as often as all of them together."""
        loggers, logger = log.loggers, str(log.logger)
        if log.shares is not None:
            shares = checked_shares(log.shares, tuple(loggers))
        elif log.data is None or (isinstance(log.data, str) and not log.data):
            raise OptionError(
                "the loggers' shares of the rows cannot be counted without the rows.", do="Pass `shares=`."
            )
        else:
            even = balanced_sql(loggers, dict.fromkeys(loggers, 1.0 / len(loggers)), logger, quote)
            where = f"({even}) > 0" if log.where is None else f"({log.where}) AND ({even}) > 0"
            # rows that will be dropped are not counted
            shares = _shares(rows_by(log.but(where=where) if log.drop_bad_rows else log, logger), log)
        return log.but(propensity=balanced_sql(loggers, shares, logger, quote), logger=None, shares=None)


def _shares(rows: Mapping[str, int], log: Log) -> dict[str, float]:
    """The loggers' shares of the rows, of which each wrote so many."""
    names = tuple(log.loggers)
    unknown = [name for name in rows if name not in set(map(str, names))]
    if unknown and not log.drop_bad_rows:
        raise LogError(
            f"{sum(rows[name] for name in unknown):,} rows were written by {unknown[0]!r}, a logger that was not named.",
            do="`propensity=` needs a column for each logger, or drop such rows with `where=`.",
        )
    known = {name: rows.get(str(name), 0) for name in names}
    absent = [name for name, n in known.items() if not n]
    if absent:
        raise LogError(
            f"no row was written by {absent[0]!r}; the log has {', '.join(map(repr, rows))}.",
            do="Leave it out of `propensity=`, or give `shares=`.",
        )
    total = sum(known.values())
    return {name: n / total for name, n in known.items()}


def own_sql(propensity: Mapping[str, str], logger: str, quote: Quote) -> str:
    """The probability that the row's own logger gave the logged action.

    >>> own_sql({"a": "p_a", 2: "p_b"}, "who", '"{}"'.format)
    '(CASE WHEN "who" = \\'a\\' THEN "p_a" WHEN "who" = 2 THEN "p_b" END)'
    """
    cases = (f"WHEN {quote(logger)} = {_literal(name)} THEN {quote(column)}" for name, column in propensity.items())
    return f"(CASE {' '.join(cases)} END)"


def balanced_sql(propensity: Mapping[str, str], shares: Mapping[str, float], logger: str, quote: Quote) -> str:
    """Σ s·p over the loggers; null if one of the probabilities is invalid, or the row's own logger could not have written it."""
    columns = {name: quote(column) for name, column in propensity.items()}
    mixed = " + ".join(f"{shares[name]:.17e} * {column}" for name, column in columns.items())
    ranges = " AND ".join(f"{column} >= 0 AND {column} <= 1" for column in columns.values())
    return f"CASE WHEN {own_sql(propensity, logger, quote)} > 0 AND {ranges} THEN {mixed} END"


def _literal(name: object) -> str:
    if isinstance(name, bool):
        return "TRUE" if name else "FALSE"
    return repr(name) if isinstance(name, int | float) else "'" + str(name).replace("'", "''") + "'"
