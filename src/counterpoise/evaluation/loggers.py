"""Logs that several policies wrote: answers over all of them, who carries an estimate, and the loggers side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from counterpoise.diagnostics import Caveat
from counterpoise.display import Cell, Share, Table, estimate_cells
from counterpoise.engines.first_look import quoting
from counterpoise.engines.registry import moments_of
from counterpoise.errors import LogError, OptionError
from counterpoise.estimators import ESTIMATORS, Estimate
from counterpoise.evaluation.estimates import estimates, options_of
from counterpoise.evaluation.view import View
from counterpoise.intervals.method import normal
from counterpoise.log.baseline import Feature
from counterpoise.log.log import Log
from counterpoise.log.question import Question, ask
from counterpoise.moments import LogMoments, Moments
from counterpoise.moments.log_moments import as_label, in_order
from counterpoise.moments.spread import EMPTY, NOTHING, UNSMOOTHED, Powers, Smoothed, Tail
from counterpoise.moments.weighed import PLAIN
from counterpoise.weights import Balanced, Importance, Own, Weight

if TYPE_CHECKING:
    import polars as pl

    from counterpoise.evaluation.checks import RewardMoments
    from counterpoise.evaluation.result import Result

BETA_IPS = "beta_ips"

# -- Logs that several policies wrote: their shares, and their mixture as one propensity --------------------------------


ONE = "2.0"  # a weight whose excess is 1


def by_value(log: Log, column: str, *, groups: int = 1, features: tuple[Feature, ...] = ()) -> tuple[LogMoments, ...]:
    """The sums of the rewards by the values of a column, with an excess of 1 in every row; in one pass."""
    plain = log.without("model_reward", "model_value", "control").without_propensities()
    question = ask(plain, {column: ONE}, weight=Own(), segment=column, groups=groups, features=features)
    return moments_of(question)


def balanced(log: Log, weight: Weight) -> tuple[Log, Weight]:
    """The log with the mixture of its loggers as its propensity, and the weight that says so."""
    if type(weight) is not Importance:
        raise OptionError(
            f"a log of several loggers has the balanced weight, and not {type(weight).__name__}: leave out `weight=`."
        )
    if log.logger is None:
        raise OptionError(
            "`propensity=` has several loggers.", do="Name the column with each row's logger with `logger=`."
        )
    loggers, logger, quote = log.loggers, str(log.logger), quoting(log)
    names = tuple(loggers)
    shares = _shares(with_names(log), names) if log.shares is None else checked_shares(log.shares, names)
    mixed = balanced_sql(loggers, shares, logger, quote)
    return log.but(propensity=mixed, logger=None, shares=None), Balanced(names, tuple(loggers.values()), logger)


def with_names(log: Log) -> Log:
    """A log of arrays turned into columns, so that expressions can use them."""
    return log.of(dict(log.data)) if log.is_arrays else log


def _shares(log: Log, names: tuple[str, ...]) -> dict[str, float]:
    """The loggers' shares of the rows, in a pass of its own; rows that will be dropped are not counted."""
    if log.data is None or (isinstance(log.data, str) and not log.data):
        raise OptionError("the loggers' shares of the rows cannot be counted without the rows.", do="Pass `shares=`.")
    even = balanced_sql(log.loggers, dict.fromkeys(names, 1.0 / len(names)), str(log.logger), quoting(log))
    good = log.but(where=even_where(log.where, even)) if log.drop_bad_rows else log
    moments = by_value(good.but(cluster=None, key=(), baseline=None), str(log.logger))[0]
    (stack,) = moments.moments.values()
    rows = {str(label[0]): int(n) for label, n in zip(moments.segments, stack.n.sum(axis=1), strict=True)}
    known = {name: rows.get(str(name), 0) for name in names}
    unknown = [name for name in rows if name not in set(map(str, names))]
    if unknown and not log.drop_bad_rows:
        raise LogError(
            f"{sum(rows[name] for name in unknown):,} rows were written by {unknown[0]!r}, a logger that was not named.",
            do="`propensity=` needs a column for each logger, or drop such rows with `where=`.",
        )
    absent = [name for name, n in known.items() if not n]
    if absent:
        raise LogError(
            f"no row was written by {absent[0]!r}; the log has {', '.join(map(repr, rows))}.",
            do="Leave it out of `propensity=`, or give `shares=`.",
        )
    total = sum(known.values())
    return {name: n / total for name, n in known.items()}


def even_where(where: str | None, mixed: str) -> str:
    """A condition that also requires the mixture to be known."""
    return f"({mixed}) > 0" if where is None else f"({where}) AND ({mixed}) > 0"


def of_own_logger(question: Question) -> Question:
    """The same question, with the probability that a row's own logger gave its action, so that weights average 1 by logger."""
    weight = question.weight
    own = own_sql(dict(zip(weight.loggers, weight.columns, strict=True)), weight.logger, quoting(question.log))
    return replace(question, log=question.log.but(propensity=own), weight=Importance())


# -- The probability with which several loggers took an action together, as SQL of their columns -----------------------


Quote = Callable[[str], str]  # a column or an expression, as it stands inside an expression of the log's SQL


def checked_shares(shares: object, names: tuple[str, ...]) -> dict[str, float]:
    """Shares by name, scaled to add up to 1: 50 and 50 will do.

    >>> checked_shares({"a": 3, "b": 1}, ("a", "b"))
    {'a': 0.75, 'b': 0.25}
    """
    by_name = {str(name): share for name, share in shares.items()} if isinstance(shares, Mapping) else {}
    if set(by_name) != set(map(str, names)):
        expected, entries = ", ".join(map(repr, names)), ", ".join(map(repr, by_name)) or repr(shares)
        raise OptionError(f"`shares=` needs one entry for each of {expected}; found {entries}.")
    is_number = (isinstance(share, int | float) and not isinstance(share, bool) for share in by_name.values())
    if not all(is_number) or not all(0 < share < math.inf for share in by_name.values()):
        raise OptionError(f"`shares=` holds something that isn't a positive number: {by_name!r}.")
    total = sum(by_name.values())
    return {name: by_name[str(name)] / total for name in names}


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


# -- Moments by logger, and over all of them ---------------------------------------------------------------------------


def by_logger(question: Question) -> Question:
    """The same question; if several loggers wrote the log, its last segment is the logger."""
    weight = question.weight
    if not isinstance(weight, Balanced):
        return question
    if weight.logger in question.segment:
        raise OptionError(
            f"`segment={weight.logger!r}` is the logger, by which balanced weights do not average to 1.",
            do="See result.loggers() for each logger's own estimate.",
        )
    return replace(question, segment=(*question.segment, weight.logger))


def over_loggers(whole: RewardMoments) -> RewardMoments:
    """Moments by logger and their question, added up over the loggers that wrote the log; those of one policy are what they were."""
    if not whole.is_by_logger:
        return whole
    question = whole.question
    merged = None if question is None else replace(question, segment=question.segment[:-1])
    return replace(whole, moments=tuple(map(_without_loggers, whole.moments)), question=merged)


Sum = TypeVar("Sum", Tail, Powers, Smoothed)


def _without_loggers(log: LogMoments) -> LogMoments:
    """Moments by logger, added up over the loggers."""
    segments = in_order([label[:-1] for label in log.segments])
    places = {label: [k for k, segment in enumerate(log.segments) if segment[:-1] == label] for label in segments}

    def added(parts: Sequence[Sum], nothing: Sum) -> tuple[Sum, ...]:
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
        reward_min=np.array([np.fmin.reduce(log.reward_min[own]) for own in places.values()]),
        reward_max=np.array([np.fmax.reduce(log.reward_max[own]) for own in places.values()]),
        weight=PLAIN,
    )


def with_carriers(result: Result, by_logger: LogMoments) -> Result:
    """A result whose verdicts say which logger carries the estimate, from moments by logger."""
    verdicts = dict(result.verdicts)
    for target, other in by_logger.moments:
        if not other:
            carried = _weights_of(by_logger, target)
            most = max(carried, key=carried.__getitem__)
            counts = zip(_loggers(by_logger), by_logger.moments[target, ""].n.sum(axis=1), strict=True)
            rows = sum(int(n) for name, n in counts if name == most)
            weight, share = carried[most] / max(sum(carried.values()), 1e-300), rows / by_logger.n
            much = "Most of the weight" if weight > 0.5 else "The largest part of the weight"
            text = f"{much} comes from logger {most}: {100 * weight:.0f} %, on {100 * share:.0f} % of the <rows>."
            caveat = Caveat("carrying-logger", text, {"weight_share": weight, "row_share": share})
            verdicts[target, None] = verdicts[target, None].with_caveats([caveat])
    others = {name: with_carriers(answer, by_logger) for name, answer in result.others.items()}
    return replace(result, verdicts=verdicts, others=others)


def _weights_of(log: LogMoments, target: str) -> dict[str, float]:
    """The sum of a target's weights by logger."""
    stack = log.moments[target, ""].merge(axis=1)
    carried = dict.fromkeys(_loggers(log), 0.0)
    for name, weight in zip(_loggers(log), stack.n * (1.0 + stack.average("u")), strict=True):
        carried[name] += float(weight)
    return carried


def _loggers(log: LogMoments) -> list[str]:
    return [str(label[-1]) for label in log.segments]


# -- The loggers side by side: balanced, naively pooled, each alone, and all by inverse variance -----------------------


def logger_table(result: Result, target: str) -> pl.DataFrame:
    """See `Result.loggers`."""
    question = result.asked()
    weight = question.weight
    if not isinstance(weight, Balanced):
        raise OptionError(
            "this log has no `logger=`, and so a single logging policy.",
            do="For several, pass `propensity={'a': …, 'b': …}` and `logger=`.",
        )
    balanced = result[target, BETA_IPS]
    plain = question.slim("cluster", "key")
    (moments,) = moments_of(by_logger(plain))
    carried = _weights_of(moments, target)
    (naive,) = moments_of(replace(of_own_logger(plain), segment=(weight.logger,)))
    (options,) = options_of(
        result.interval_method,
        result.level,
        (result.reward,),
        is_clustered=moments.cluster is not None,
        reward_bounds=result.reward_bounds,
    )
    apart = estimates(View(naive, (target, "")), {BETA_IPS: ESTIMATORS[BETA_IPS]}, options)
    each = {
        str(name): apart[target, BETA_IPS, as_label(name)]
        for name in weight.loggers
        if as_label(name) in naive.segments
    }
    total = sum(carried.values()) or math.nan
    rows = [
        _row("balanced", balanced),
        _row("naive pooling", apart[target, BETA_IPS, None]),
        _row("inverse variance", _mean(list(each.values()), result.level)),
    ]
    rows += [
        _row(f"{name} alone", estimate) | {"weight_share": Share(carried[name] / total)}
        for name, estimate in each.items()
    ]
    return Table([{name: row.get(name) for name in COLUMNS} for row in rows]).frame()


COLUMNS = ("how", "value", "stderr", "lower", "upper", "n", "weight_share")


def _row(how: str, estimate: Estimate) -> dict[str, Cell]:
    return {"how": how, **estimate_cells(estimate.value, estimate.stderr, estimate.interval), "n": estimate.n}


def _mean(parts: Sequence[Estimate], level: float) -> Estimate:
    """The mean of estimates by inverse variance; those variances are estimates, and too small for loggers with few large weights."""
    known = [part for part in parts if part.identified and 0 < part.stderr < math.inf]
    mass = sum(part.stderr**-2 for part in known)
    value = sum(part.value * part.stderr**-2 for part in known) / mass if mass else math.nan
    error = mass**-0.5 if mass else math.inf
    return Estimate(BETA_IPS, value, error, sum(part.n for part in known), (), normal(value, error, level))
