"""Logs that several policies wrote: answers over all of them, who carries an estimate, and the loggers side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from counterpoise.diagnostics import Caveat
from counterpoise.display import Cell, Share, Table, estimate_cells
from counterpoise.errors import OptionError
from counterpoise.estimators import Estimate
from counterpoise.evaluation.answer import evaluation_of
from counterpoise.evaluation.asking import RewardMoments, Stored, of_own_logger, read
from counterpoise.evaluation.estimates import options_of
from counterpoise.evaluation.result import Result
from counterpoise.intervals.method import normal
from counterpoise.log.question import Question, lean
from counterpoise.moments import LogMoments, Moments
from counterpoise.moments.log_moments import in_order
from counterpoise.moments.spread import EMPTY, NOTHING, UNSMOOTHED
from counterpoise.moments.weighed import PLAIN
from counterpoise.weights import Balanced

if TYPE_CHECKING:
    import polars as pl

BETA_IPS = "beta_ips"

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
    """Moments by logger and their question, added up over the loggers that wrote the log."""
    question = whole.question
    merged = None if question is None else replace(question, segment=question.segment[:-1])
    return replace(whole, moments=tuple(map(_without_loggers, whole.moments)), question=merged)


def _without_loggers(log: LogMoments) -> LogMoments:
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


def with_carriers(result: Result, by_logger: LogMoments) -> Result:
    """A result whose verdicts say which logger carries the estimate, from moments by logger."""
    verdicts = dict(result.verdicts)
    for target, other in by_logger.moments:
        if not other:
            verdicts[target, None] = verdicts[target, None].with_caveats([_carrier(by_logger, target)])
    others = {name: with_carriers(answer, by_logger) for name, answer in result.others.items()}
    return replace(result, verdicts=verdicts, others=others)


def _carrier(log: LogMoments, target: str) -> Caveat:
    """The logger whose rows carry most of a target's weight."""
    carried, rows = _weights_of(log, target), dict.fromkeys(_loggers(log), 0)
    for name, n in zip(_loggers(log), log.moments[target, ""].n.sum(axis=1), strict=True):
        rows[name] += int(n)
    most = max(carried, key=carried.__getitem__)
    weight, share = carried[most] / max(sum(carried.values()), 1e-300), rows[most] / log.n
    much = "Most of the weight" if weight > 0.5 else "The largest part of the weight"
    text = f"{much} comes from logger {most}: {100 * weight:.0f} %, on {100 * share:.0f} % of the rows."
    return Caveat("carrying-logger", text, {"weight_share": weight, "row_share": share})


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
    # imported here, so that importing counterpoise does not import polars
    from counterpoise.evaluation.table import frame

    question = result.asked()
    weight = question.weight
    if not isinstance(weight, Balanced):
        raise OptionError(
            "nothing says that more than one policy wrote this log.",
            do="For several, pass `propensity={'a': …, 'b': …}` and `logger=`.",
        )
    balanced = result[target, BETA_IPS]
    plain = replace(lean(question), segment=())
    (moments,) = read(by_logger(plain), Stored(), False).moments
    carried = _weights_of(moments, target)
    naive = replace(of_own_logger(plain), segment=(weight.logger,))
    options = options_of(
        result.interval_method,
        result.level,
        (result.reward,),
        is_clustered=moments.cluster is not None,
        reward_bounds=result.reward_bounds,
    )
    apart = evaluation_of(read(naive, Stored(), False), options, (BETA_IPS,))
    each = {str(name): apart[target, BETA_IPS, name] for name in weight.loggers}
    total = sum(carried.values()) or math.nan
    rows = [
        _row("balanced", balanced),
        _row("naive pooling", apart[target, BETA_IPS]),
        _row("inverse variance", _mean(list(each.values()), result.level)),
    ]
    rows += [
        _row(f"{name} alone", estimate) | {"weight_share": Share(carried[name] / total)}
        for name, estimate in each.items()
    ]
    return frame(Table([{name: row.get(name) for name in COLUMNS} for row in rows]))


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
