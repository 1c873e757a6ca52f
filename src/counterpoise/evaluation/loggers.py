"""Logs that several policies wrote: their shares, their mixture as one propensity, and who carries an estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from counterpoise.errors import Argument, LogError, OptionError
from counterpoise.log.log import Log
from counterpoise.log.question import Question, ask
from counterpoise.moments import LogMoments, Moments
from counterpoise.moments.log_moments import Contrast, in_order
from counterpoise.moments.spread import EMPTY, NOTHING, UNSMOOTHED
from counterpoise.moments.weighed import PLAIN
from counterpoise.weights import Balanced, Own, Ratio, Weight

ONE = "2.0"  # a weight whose excess is 1


def by_value(log: Log, column: str, *, groups: int = 1, features: tuple[Any, ...] = ()) -> tuple[LogMoments, ...]:
    """The sums of the rewards by the values of a column, with an excess of 1 in every row; in one pass."""
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.registry import moments_of

    plain = log.but(propensity=None, logger=None, shares=None, model_reward=None, model_value=None, control=None)
    question = ask(plain, {column: ONE}, weight=Own(), segment=column, groups=groups, features=features)
    return moments_of(question)


def balanced(log: Log, weight: Weight) -> tuple[Log, Weight]:
    """The log with the mixture of its loggers as its propensity, and the weight that says so."""
    if type(weight) is not Ratio:
        raise OptionError(
            f"a log of several loggers has the balanced weight, and not {weight!r}: leave out the weight."
        )
    if log.logger is None:
        raise OptionError(
            [Argument("propensity"), " has several loggers."],
            do=["Say which of them wrote a row, with ", Argument("logger"), "."],
        )
    loggers, logger, quote = log.propensity, str(log.logger), quote_of(log)
    names = tuple(loggers)
    shares = _shares(with_names(log), names) if log.shares is None else checked_shares(log.shares, names)
    mixed = balanced_sql(loggers, shares, logger, quote)
    return log.but(propensity=mixed, logger=None, shares=None), Balanced(names, tuple(loggers.values()), logger)


def with_names(log: Log) -> Log:
    """A log of arrays as one of columns, so that expressions can be made of them."""
    return log.of(dict(log.data)) if log.is_arrays else log


def _shares(log: Log, names: tuple[Any, ...]) -> dict[Any, float]:
    """The loggers' shares of the rows, in a pass that looks at nothing else; rows that will be dropped are not counted."""
    if log.data is None or (isinstance(log.data, str) and not log.data):
        raise OptionError(
            ["without the rows, nobody knows the loggers' shares of them."], do=["Pass ", Argument("shares"), "."]
        )
    even = balanced_sql(log.propensity, dict.fromkeys(names, 1.0 / len(names)), str(log.logger), quote_of(log))
    good = log.but(where=even_where(log.where, even)) if log.drop_bad_rows else log
    moments = by_value(good.but(cluster=None, key=(), baseline=None), str(log.logger))[0]
    (stack,) = moments.moments.values()
    rows = {str(label[0]): int(n) for label, n in zip(moments.segments, stack.n.sum(axis=1), strict=True)}
    known = {name: rows.get(str(name), 0) for name in names}
    unknown = [name for name in rows if name not in set(map(str, names))]
    if unknown and not log.drop_bad_rows:
        raise LogError(
            f"{sum(rows[name] for name in unknown):,} rows were written by {unknown[0]!r}, of whom nothing is known.",
            do=[
                Argument("propensity"),
                " needs a column for each logger, or drop such rows with ",
                Argument("where"),
                ".",
            ],
        )
    absent = [name for name, n in known.items() if not n]
    if absent:
        raise LogError(
            f"no row was written by {absent[0]!r}; the log has {', '.join(map(repr, rows))}.",
            do=["Leave it out of ", Argument("propensity"), ", or give ", Argument("shares"), "."],
        )
    total = sum(known.values())
    return {name: n / total for name, n in known.items()}


def even_where(where: str | None, mixed: str) -> str:
    """A condition, and that a mixture is known."""
    return f"({mixed}) > 0" if where is None else f"({where}) AND ({mixed}) > 0"


def quote_of(log: Log) -> Any:
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.first_look import quoting

    return quoting(log)


def of_own_logger(question: Question) -> Question:
    """The same question, with the probability that a row's own logger gave its action: those weights average to 1 by logger."""
    weight = question.weight
    own = own_sql(dict(zip(weight.loggers, weight.columns, strict=True)), weight.logger, quote_of(question.log))
    return replace(question, log=question.log.but(propensity=own), weight=Ratio())


def by_logger(question: Question) -> Question:
    """The same question; if several loggers wrote the log, its last segment is the logger."""
    weight = question.weight
    if not isinstance(weight, Balanced):
        return question
    if weight.logger in question.segment:
        raise OptionError(
            [Argument("segment", weight.logger), " is the logger, by which balanced weights do not average to 1."],
            do="See result.loggers() for each logger's own estimate.",
        )
    return replace(question, segment=(*question.segment, weight.logger))


@dataclass(frozen=True)
class Carrier:
    """The logger whose rows have most of a target's weight."""

    name: str
    weight: float  # its share of all weights
    rows: float  # its share of all rows

    def __str__(self) -> str:
        much = "Most of the weight" if self.weight > 0.5 else "The largest part of the weight"
        return (
            f"{much} comes from logger {self.name}: {100 * self.weight:.0f} %, on {100 * self.rows:.0f} % of the rows."
        )


def is_by_logger(log: LogMoments) -> bool:
    """Whether the last segment of these moments is the logger."""
    said = log.weight.how
    return (
        bool(log.segment_columns)
        and said.startswith(f"{Balanced.__name__}(")
        and said.endswith(f"logger={log.segment_columns[-1]!r})")
    )


def without_loggers(log: LogMoments) -> LogMoments:
    """Moments by logger, added up over the loggers."""
    segments = in_order([label[:-1] for label in log.segments])
    places = {label: [k for k, segment in enumerate(log.segments) if segment[:-1] == label] for label in segments}

    def added(parts: Sequence[Any], nothing: Any) -> tuple[Any, ...]:
        return tuple(sum((parts[k] for k in own), nothing) for own in places.values())

    return replace(
        log,
        moments={
            key: Moments.stack([stack[own].merge(axis=0) for own in places.values()])
            for key, stack in log.moments.items()
        },
        tails={key: added(tails, EMPTY) for key, tails in log.tails.items()},
        excess={key: added(powers, NOTHING) for key, powers in log.excess.items()},
        smoothed={key: added(sums, UNSMOOTHED) for key, sums in log.smoothed.items()},
        rewards=added(log.rewards, NOTHING),
        segments=segments,
        segment_columns=log.segment_columns[:-1],
        reward_min=np.array([np.nanmin(log.reward_min[own]) for own in places.values()]),
        reward_max=np.array([np.nanmax(log.reward_max[own]) for own in places.values()]),
        weight=PLAIN,
    )


def carrier(log: LogMoments, contrast: Contrast) -> Carrier:
    """Who carries the value of a target, from moments by logger."""
    stack = log.moments[contrast].merge(axis=1)
    weight = stack.n * (1.0 + stack.average("u"))
    names = [str(label[-1]) for label in log.segments]
    weights = {name: sum(float(weight[k]) for k, logger in enumerate(names) if logger == name) for name in names}
    rows = {name: sum(int(stack.n[k]) for k, logger in enumerate(names) if logger == name) for name in names}
    most = max(weights, key=lambda name: weights[name])
    return Carrier(most, weights[most] / max(sum(weights.values()), 1e-300), rows[most] / log.n)


# -- The probability with which several loggers took an action together, as SQL of their columns -----------------------


Quote = Callable[[str], str]  # a column or an expression, as it stands inside an expression of the log's SQL


def checked_shares(shares: Any, names: tuple[Any, ...]) -> dict[Any, float]:
    """Shares by name, adding up to 1: 50 and 50 will do.

    >>> checked_shares({"a": 3, "b": 1}, ("a", "b"))
    {'a': 0.75, 'b': 0.25}
    """
    by_name = {str(name): share for name, share in shares.items()} if isinstance(shares, Mapping) else {}
    if set(by_name) != set(map(str, names)):
        expected, entries = ", ".join(map(repr, names)), ", ".join(map(repr, by_name)) or repr(shares)
        raise OptionError([Argument("shares"), f" needs one entry for each of {expected}; found {entries}."])
    is_number = (isinstance(share, int | float) and not isinstance(share, bool) for share in by_name.values())
    if not all(is_number) or not all(0 < share < math.inf for share in by_name.values()):
        raise OptionError([Argument("shares"), f" holds something that isn't a positive number: {by_name!r}."])
    total = sum(by_name.values())
    return {name: by_name[str(name)] / total for name in names}


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
