"""Several loggers: the probability with which they took an action together, as SQL of their columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from counterpoise.errors import Argument, OptionError

Quote = Callable[[str], str]  # a column or an expression, as it stands inside an expression of the log's SQL


def check_loggers(propensity: Any, logger: Any, shares: Any) -> None:
    """Several loggers have a propensity each; who wrote a row is a question only for them."""
    several = isinstance(propensity, Mapping)
    if several and len(propensity) < 2:
        raise OptionError(
            [Argument("propensity"), f" maps {len(propensity)} logger to its column: name two or more, or one column."]
        )
    extra = "logger" if logger is not None else "shares" if shares is not None else None
    if extra and propensity is not None and not several:
        raise OptionError(
            [Argument(extra), " is about several loggers."],
            do=[Argument("propensity"), " then maps each of them to its probability of the logged action."],
        )


def checked_shares(shares: Any, names: tuple[Any, ...]) -> dict[Any, float]:
    """Shares by name, adding up to 1: 50 and 50 will do.

    >>> checked_shares({"a": 3, "b": 1}, ("a", "b"))
    {'a': 0.75, 'b': 0.25}
    """
    given = {str(name): share for name, share in shares.items()} if isinstance(shares, Mapping) else {}
    if set(given) != set(map(str, names)):
        asked, found = ", ".join(map(repr, names)), ", ".join(map(repr, given)) or repr(shares)
        raise OptionError([Argument("shares"), f" needs one entry for each of {asked}; found {found}."])
    is_number = (isinstance(one, int | float) and not isinstance(one, bool) for one in given.values())
    if not all(is_number) or not all(0 < one < math.inf for one in given.values()):
        raise OptionError([Argument("shares"), f" holds something that isn't a positive number: {given!r}."])
    total = sum(given.values())
    return {name: given[str(name)] / total for name in names}


def own_sql(propensity: Mapping[Any, str], logger: str, quote: Quote) -> str:
    """The probability that the row's own logger gave the logged action.

    >>> own_sql({"a": "p_a", 2: "p_b"}, "who", '"{}"'.format)
    '(CASE WHEN "who" = \\'a\\' THEN "p_a" WHEN "who" = 2 THEN "p_b" END)'
    """
    cases = (f"WHEN {quote(logger)} = {_literal(name)} THEN {quote(column)}" for name, column in propensity.items())
    return f"(CASE {' '.join(cases)} END)"


def balanced_sql(propensity: Mapping[Any, str], shares: Mapping[Any, float], logger: str, quote: Quote) -> str:
    """Σ s·p over the loggers; null where one of the probabilities is none, or the row's own logger could not have written it."""
    columns = {name: quote(column) for name, column in propensity.items()}
    mixed = " + ".join(f"{shares[name]:.17e} * {column}" for name, column in columns.items())
    ranges = " AND ".join(f"{column} >= 0 AND {column} <= 1" for column in columns.values())
    return f"CASE WHEN {own_sql(propensity, logger, quote)} > 0 AND {ranges} THEN {mixed} END"


def _literal(name: Any) -> str:
    if isinstance(name, bool):
        return "TRUE" if name else "FALSE"
    return repr(name) if isinstance(name, int | float) else "'" + str(name).replace("'", "''") + "'"
