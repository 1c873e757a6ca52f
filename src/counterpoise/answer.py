"""This file holds the way from a log's moments to the answer: estimates with intervals, diagnostics and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from counterpoise.diagnostics import Diagnostics, Verdict, diagnose, judge
from counterpoise.errors import LogError, OptionError
from counterpoise.estimators import ESTIMATORS, Estimate, Estimator, unstack
from counterpoise.estimators.estimate import Interval, check_level
from counterpoise.intervals import METHODS, Method, anytime, bernstein, check_bounds, jackknife, jackknife_error, normal
from counterpoise.log_moments import Contrast, LogMoments
from counterpoise.moments import MODEL, ROW, Moments
from counterpoise.results import Segment
from counterpoise.tails import EMPTY, Tail


@dataclass(frozen=True)
class Options:
    """How intervals are made."""

    level: float = 0.95
    method: Method = "normal"
    reward_bounds: tuple[float, float] | None = None
    max_weight: float | None = None
    tuned_for: int = 10_000

    def __post_init__(self) -> None:
        check_level(self.level)
        if self.method not in METHODS:
            raise OptionError(f"interval must be one of {', '.join(METHODS)}; found {self.method!r}.")
        if self.method == "bernstein":
            check_bounds(self.reward_bounds, self.max_weight)


def choose(asked: tuple[str, ...], columns: tuple[str, ...], groups: int, method: Method) -> dict[str, Estimator]:
    """The estimators asked for, or all that the columns allow."""
    has_model = set(MODEL) <= set(columns)
    missing = {"model": not has_model, "groups": groups < 2, "": False}
    if method == "bernstein":
        if not set(asked) <= {"ips"}:
            raise OptionError(
                "the bernstein interval is for ips alone: other estimators have no bounds known beforehand."
            )
        return {"ips": ESTIMATORS["ips"]}
    if asked:
        for name in asked:
            if name not in ESTIMATORS:
                raise OptionError(f"no estimator {name!r}; there are {', '.join(ESTIMATORS)}.")
            if missing[ESTIMATORS[name].needs]:
                what = (
                    "model_reward and model_value" if ESTIMATORS[name].needs == "model" else "groups: pass groups=100"
                )
                raise OptionError(f"{name} needs {what}.")
        return {name: ESTIMATORS[name] for name in asked}
    has_controls = has_model or set(columns) > set(ROW)
    redundant = {"constant_dr"} if has_controls else {"constant_dr", "optimal_dr"}  # without controls both are beta_ips
    return {name: entry for name, entry in ESTIMATORS.items() if name not in redundant and not missing[entry.needs]}


def places(log: LogMoments) -> list[Segment]:
    """The whole log, then its segments."""
    return [None, *(log.segments if log.segment_columns else ())]


def estimates(
    log: LogMoments, contrast: Contrast, estimators: Mapping[str, Estimator], options: Options
) -> dict[tuple[str, str, Segment], Estimate]:
    """Every estimate of one contrast, over the whole log and by segment."""
    if options.method == "bernstein":
        _check_within_bounds(log, contrast, options)
    stack = _with_total(log, contrast)
    whole = stack.merge(axis=1)
    found = {}
    for name, estimator in estimators.items():
        together = estimator(stack if estimator.needs == "groups" else whole)
        stderr, groups = None, np.zeros(len(stack.n))
        if options.method == "jackknife" or (options.method == "anytime" and log.grouped_by not in ("", "row")):
            value = np.nan_to_num(np.asarray(together.value))
            stderr, groups = jackknife_error(value, np.nan_to_num(estimator.without_each(stack)), stack.n)
        for k, segment in enumerate(places(log)):
            one = replace(unstack(together, k), name=name)
            if stderr is not None and one.identified:
                one = replace(one, stderr=float(stderr[k]))
            interval = _interval(one, int(groups[k]), options, whole[k])
            found[contrast[0], name, segment] = replace(one, interval=interval)
    # targets in the order given, then segments, then estimators: how a reader scans the table
    return {key: found[key] for segment in places(log) for key in found if key[2] == segment}


def _interval(estimate: Estimate, groups: int, options: Options, moments: Moments) -> Interval:
    value, stderr, level = estimate.value, estimate.stderr, options.level
    match options.method:
        case "jackknife":
            return jackknife(value, stderr, groups, level)
        case "anytime":
            return anytime(value, stderr, estimate.n, level, tuned_for=options.tuned_for)
        case "bernstein":
            bounds: Any = options.reward_bounds, options.max_weight
            return bernstein(moments, level, reward_bounds=bounds[0], max_weight=bounds[1])
        case _:
            return normal(value, stderr, level)


def _check_within_bounds(log: LogMoments, contrast: Contrast, options: Options) -> None:
    """The log keeps to the bounds it was promised to keep."""
    (low, high), most = check_bounds(options.reward_bounds, options.max_weight)
    largest = max((float(tail.weights[0]) for tail in log.tails[contrast] if len(tail.weights)), default=0.0)
    if largest > most:
        raise LogError(
            f"max_weight is {most:g}, but the log has a weight of {largest:g}. A bound taken from the log itself is no bound: "
            "give the largest weight that the logging policy allows, 1/(its smallest propensity)."
        )
    lowest, highest = float(np.min(log.reward_min)), float(np.max(log.reward_max))
    if lowest < low or highest > high:
        raise LogError(
            f"reward_bounds are ({low:g}, {high:g}), but the log has rewards from {lowest:g} to {highest:g}. "
            "Give bounds that hold for every possible reward."
        )
    if log.grouped_by not in ("", "row"):
        raise OptionError(
            "the bernstein interval takes rows to be independent, and clusters say they are not: use jackknife."
        )


def diagnostics(log: LogMoments, contrast: Contrast) -> dict[Segment, Diagnostics]:
    """Diagnostics of one target, over the whole log and by segment."""
    stack = _with_total(log, contrast)
    whole = stack.merge(axis=1)
    clustered = log.grouped_by not in ("", "row")
    error, groups = (
        jackknife_error(whole.average("u"), stack.leave_one_out().average("u"), stack.n) if clustered else (None, None)
    )
    found = {}
    for k, segment in enumerate(places(log)):
        at = slice(None) if segment is None else log.segments.index(segment)
        ends = (float(np.min(log.reward_min[at])), float(np.max(log.reward_max[at])))
        found[segment] = diagnose(
            whole[k],
            _tail(log, contrast, segment),
            reward_range=ends,
            mean_weight_error=None if error is None else float(error[k]),
            clusters=None if groups is None else int(groups[k]),
            duplicates=log.duplicates if segment is None else None,
        )
    return found


def verdicts(found: Mapping[Segment, Diagnostics]) -> dict[Segment, Verdict]:
    """The verdict of each place."""
    return {segment: judge(one) for segment, one in found.items()}


def _with_total(log: LogMoments, contrast: Contrast) -> Moments:
    """The stack (segments × groups) of a contrast, the whole log before its segments."""
    stack = log.moments[contrast]
    total = stack.merge(axis=0)
    if not log.segment_columns:
        return Moments.stack([total])
    return Moments.stack([total, *(stack[k] for k in range(len(log.segments)))])


def _tail(log: LogMoments, contrast: Contrast, segment: Segment) -> Tail:
    tails = log.tails.get(contrast, ())
    if segment is not None:
        return tails[log.segments.index(segment)] if tails else EMPTY
    return sum(tails, EMPTY)
