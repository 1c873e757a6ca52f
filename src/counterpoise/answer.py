"""This file holds the way from a log's moments to the answer: estimates with intervals, diagnostics and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from counterpoise.diagnostics import Diagnostics, Verdict, diagnose, judge
from counterpoise.errors import LogError, OptionError
from counterpoise.estimators import ESTIMATORS, Estimate, Estimator, unstack
from counterpoise.estimators.estimate import Interval, check_level
from counterpoise.intervals import METHODS, Method, anytime, bernstein, check_bounds, jackknife, jackknife_error, normal
from counterpoise.log_moments import Contrast, LogMoments
from counterpoise.moments import MODEL, ROW, Floats, Moments
from counterpoise.results import Segment
from counterpoise.tails import EMPTY, Tail


@dataclass(frozen=True)
class Options:
    """How intervals are made."""

    level: float = 0.95
    method: Method = "normal"
    reward_bounds: tuple[float, float] | None = None
    max_weight: float | None = None
    tuned_for: float = 10_000

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
            if not isinstance(name, str) or name not in ESTIMATORS:
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


@dataclass(frozen=True, eq=False)
class View:
    """One contrast of a log: the whole log first, then its segments, each in its groups."""

    log: LogMoments
    contrast: Contrast

    @property
    def places(self) -> list[Segment]:
        """The whole log, then its segments."""
        return [None, *(self.log.segments if self.log.segment_columns else ())]

    @cached_property
    def groups(self) -> Moments:
        """A stack of places × groups."""
        stack = self.log.moments[self.contrast]
        total = stack.merge(axis=0)
        return Moments.stack([total, *(stack[k] for k in range(len(self.places) - 1))])

    @cached_property
    def whole(self) -> Moments:
        """A stack of places."""
        return self.groups.merge(axis=1)

    @property
    def is_clustered(self) -> bool:
        """Whether the groups hold clusters, not single rows."""
        return self.log.cluster is not None

    def tail(self, segment: Segment) -> Tail:
        """The largest weights of a place."""
        tails = self.log.tails.get(self.contrast, ())
        return sum(tails, EMPTY) if segment is None else tails[self.place(segment)]

    def place(self, segment: Segment) -> int:
        """Which of the log's segments one is."""
        return self._known[segment]

    @cached_property
    def _known(self) -> dict[Segment, int]:
        return {label: k for k, label in enumerate(self.log.segments)}


def estimates(
    view: View, estimators: Mapping[str, Estimator], options: Options
) -> dict[tuple[str, str, Segment], Estimate]:
    """Every estimate of one contrast, over the whole log and by segment."""
    if options.method == "bernstein":
        _check_within_bounds(view, options)
    found = {}
    for name, estimator in estimators.items():
        together = estimator(view.groups if estimator.needs == "groups" else view.whole)
        stderr, count = None, np.zeros(len(view.places))
        if options.method == "jackknife" or (options.method == "anytime" and view.is_clustered):
            stderr, count = _jackknife(view, estimator)
        for k, segment in enumerate(view.places):
            one = replace(unstack(together, k), name=name)
            if stderr is not None and one.identified:
                one = replace(one, stderr=float(stderr[k]))
            interval = _interval(one, int(count[k]), options, view.whole[k])
            found[name, segment] = replace(one, interval=interval)
    # place by place, estimator by estimator: how a reader scans the table
    return {(view.contrast[0], name, segment): found[name, segment] for segment in view.places for name in estimators}


def _jackknife(view: View, estimator: Estimator) -> tuple[Floats, Floats]:
    """Jackknife errors of all places, and the number of groups with rows.

    Rewards far from 0 are moved there first, where the estimator moves along: small differences of large values lose their digits.
    A value that is not identified without one of the groups rests on that group alone, and its error is unknown.
    """
    groups, whole = view.groups, view.whole
    if estimator.follows_rewards:
        centre = whole.centre + whole.average("s")
        groups, whole = groups.shifted(-centre[:, None]), whole.shifted(-centre)
    value = np.asarray(estimator(groups if estimator.needs == "groups" else whole).value)
    without = estimator.without_each(groups)
    lost = (np.isnan(without) & (groups.n > 0)).any(axis=1) | np.isnan(value)
    stderr, count = jackknife_error(np.nan_to_num(value), np.nan_to_num(without), groups.n)
    return np.where(lost, np.inf, stderr), count


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


def _check_within_bounds(view: View, options: Options) -> None:
    """The log keeps to the bounds it was promised to keep."""
    (low, high), most = check_bounds(options.reward_bounds, options.max_weight)
    weights = view.tail(None).weights
    if len(weights) and weights[0] > most * (1 + 1e-12):  # 1/(1/3) may round to a little more than 3
        raise LogError(
            f"max_weight is {most:g}, but the log has a weight of {weights[0]:g}. A bound taken from the log itself is no bound: "
            "give the largest weight that the logging policy allows, 1/(its smallest propensity)."
        )
    lowest, highest = float(np.min(view.log.reward_min)), float(np.max(view.log.reward_max))
    if lowest < low or highest > high:
        raise LogError(
            f"reward_bounds are ({low:g}, {high:g}), but the log has rewards from {lowest:g} to {highest:g}. "
            "Give bounds that hold for every possible reward."
        )
    if view.is_clustered:
        raise OptionError(
            "the bernstein interval takes rows to be independent, and clusters say they are not: use jackknife."
        )


def diagnostics(view: View) -> dict[Segment, Diagnostics]:
    """Diagnostics of one target, over the whole log and by segment."""
    log = view.log
    error, count = None, None
    if view.is_clustered:
        error, count = jackknife_error(view.whole.average("u"), view.groups.others.average("u"), view.groups.n)
    found = {}
    for k, segment in enumerate(view.places):
        at = slice(None) if segment is None else view.place(segment)
        found[segment] = diagnose(
            view.whole[k],
            view.tail(segment),
            reward_range=(float(np.min(log.reward_min[at])), float(np.max(log.reward_max[at]))),
            mean_weight_error=None if error is None else float(error[k]),
            cluster_groups=None if count is None else int(count[k]),
            duplicates=log.duplicates if segment is None else None,
            dropped=log.dropped if segment is None else 0,
        )
    return found


def verdicts(found: Mapping[Segment, Diagnostics]) -> dict[Segment, Verdict]:
    """The verdict of each place."""
    return {segment: judge(one) for segment, one in found.items()}
