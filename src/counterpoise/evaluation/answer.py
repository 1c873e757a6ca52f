"""This file holds the way from a log's moments to the answer: estimates with intervals, diagnostics and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from counterpoise.diagnostics import Diagnostics, Verdict, diagnose, judge
from counterpoise.errors import LogError, OptionError
from counterpoise.estimators import ESTIMATORS, Estimate, Estimator, unstack
from counterpoise.estimators.estimate import Interval, check_level
from counterpoise.evaluation.result import Segment
from counterpoise.intervals import (
    METHODS,
    Method,
    anytime,
    bernstein,
    check_bounds,
    check_reward_bounds,
    effective_clusters,
    jackknife,
    jackknife_error,
    normal,
)
from counterpoise.intervals.unseen import Unseen, Unvaried, unvaried
from counterpoise.moments import MODEL, ROW, Floats, Moments
from counterpoise.moments.log_moments import Contrast, LogMoments
from counterpoise.moments.tails import EMPTY, Tail


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
        elif self.reward_bounds is not None:
            check_reward_bounds(self.reward_bounds)


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

    @cached_property
    def reward_range(self) -> tuple[Floats, Floats]:
        """The lowest and the highest reward of every place."""
        low, high = self.log.reward_min, self.log.reward_max
        parts = len(self.places) - 1
        return np.append(np.min(low), low[:parts]), np.append(np.max(high), high[:parts])

    @property
    def is_clustered(self) -> bool:
        """Whether the groups hold clusters, not single rows."""
        return self.log.cluster is not None

    @cached_property
    def clusters(self) -> Floats:
        """The effective number of clusters of every place; every row is one where none are named."""
        rows = np.asarray(self.whole.n, dtype=np.float64)
        return np.minimum(effective_clusters(self.groups.n), rows) if self.is_clustered else rows

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
    _check_within_bounds(view, options)
    found = {}
    unseen = {estimand: _unseen(view, estimand, options) for estimand in {one.estimand for one in estimators.values()}}
    for name, estimator in estimators.items():
        own, groups = _own(view, estimator, options)
        for k, segment in enumerate(view.places):
            hidden = unseen[estimator.estimand][k] if estimator.uses_rewards else Unseen()
            interval = _interval(view, k, own[k], int(groups[k]), hidden, options)
            found[name, segment] = replace(own[k], name=name, interval=interval)
    # place by place, estimator by estimator: how a reader scans the table
    return {(view.contrast[0], name, segment): found[name, segment] for segment in view.places for name in estimators}


def interval_at(view: View, estimator: Estimator, options: Options) -> Callable[[float], Interval]:
    """The interval of the whole log as a function of its level."""
    own, groups = _own(view, estimator, options)
    unseen = _unseen(view, estimator.estimand, options)
    return lambda level: _interval(view, 0, own[0], int(groups[0]), unseen[0], replace(options, level=level))


def _own(view: View, estimator: Estimator, options: Options) -> tuple[list[Estimate], Floats]:
    """What the rows themselves show in every place, and the number of groups with rows."""
    together = estimator(view.groups if estimator.needs == "groups" else view.whole)
    found = [unstack(together, k) for k in range(len(view.places))]
    if not (options.method == "jackknife" or (options.method == "anytime" and view.is_clustered)):
        return found, np.zeros(len(found))
    stderr, groups = _jackknife(view, estimator)
    return [
        replace(one, stderr=float(e)) if one.identified else one for one, e in zip(found, stderr, strict=True)
    ], groups


def _unseen(view: View, estimand: str, options: Options) -> list[Unseen]:
    """What rewards that never vary hide in every place."""
    first = _unvaried(view, view.contrast[0], options)
    if estimand == "value":
        return [Unseen(one) for one in first]
    second = _unvaried(view, view.contrast[1], options)
    u = view.whole
    spread = np.sqrt((u.covariance("u", "u") + np.square(u.average("u"))) / np.maximum(view.clusters, 1.0))
    spread = np.where(spread <= 1e-12, 0.0, spread)  # rounding: the policies never differ
    return [Unseen(first[k], second[k], float(spread[k]), int(u.n[k])) for k in range(len(view.places))]


def _unvaried(view: View, target: str, options: Options) -> list[Unvaried | None]:
    """Where a policy sees one reward only. One without moments of its own is the logging policy, whose weights are 1."""
    if (target, "") not in view.log.moments:
        rewards = view.whole.recentre(view.reward_range[0])
        only = rewards.mean * np.array([name == "s" for name in rewards.columns])
        whole = Moments(rewards.n, only, np.zeros(rewards.scatter.shape), rewards.centre, rewards.columns)
        return unvaried(whole, view.reward_range, options.reward_bounds, view.clusters)
    one = View(view.log, (target, ""))
    weight = np.maximum(1.0 + one.groups.average("u"), 0.0) * one.groups.n
    clusters = effective_clusters(weight) if one.is_clustered else None
    return unvaried(one.whole, one.reward_range, options.reward_bounds, clusters)


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
    stderr, count = jackknife_error(np.nan_to_num(without), groups.n)
    return np.where(lost, np.inf, stderr), count


def _interval(view: View, place: int, own: Estimate, groups: int, unseen: Unseen, options: Options) -> Interval:
    value, stderr, level = own.value, own.stderr, options.level
    match options.method:
        case "jackknife":
            made = jackknife(value, stderr, groups, level, clusters=float(view.clusters[place]))
        case "anytime":
            made = anytime(value, stderr, own.n, level, tuned_for=options.tuned_for)
        case "bernstein":
            bounds: Any = options.reward_bounds, options.max_weight
            made = bernstein(view.whole[place], level, reward_bounds=bounds[0], max_weight=bounds[1])
        case _:
            made = normal(value, stderr, level)
    return made if not own.identified else unseen.widen(made, options.method, tuned_for=options.tuned_for)


def _check_within_bounds(view: View, options: Options) -> None:
    """The log keeps to the bounds it was promised to keep."""
    if options.reward_bounds is None:
        return
    low, high = check_reward_bounds(options.reward_bounds)
    lowest, highest = (float(ends[0]) for ends in view.reward_range)
    if lowest < low or highest > high:
        raise LogError(
            f"reward_bounds are ({low:g}, {high:g}), but the log has rewards from {lowest:g} to {highest:g}. "
            "Give bounds that hold for every possible reward."
        )
    if options.method != "bernstein":
        return
    most, weights = check_bounds(options.reward_bounds, options.max_weight)[1], view.tail(None).weights
    if len(weights) and weights[0] > most * (1 + 1e-12):  # 1/(1/3) may round to a little more than 3
        raise LogError(
            f"max_weight is {most:g}, but the log has a weight of {weights[0]:g}. A bound taken from the log itself is no bound: "
            "give the largest weight that the logging policy allows, 1/(its smallest propensity)."
        )
    if view.is_clustered:
        raise OptionError(
            "the bernstein interval takes rows to be independent, and clusters say they are not: use jackknife."
        )


def diagnostics(view: View) -> dict[Segment, Diagnostics]:
    """Diagnostics of one target, over the whole log and by segment."""
    log = view.log
    if view.is_clustered:
        error, count = jackknife_error(view.groups.others.average("u"), view.groups.n)
    low, high = view.reward_range
    found = {}
    for k, segment in enumerate(view.places):
        found[segment] = diagnose(
            view.whole[k],
            view.tail(segment),
            reward_range=(float(low[k]), float(high[k])),
            mean_weight_error=float(error[k]) if view.is_clustered else None,
            cluster_groups=int(count[k]) if view.is_clustered else None,
            effective_clusters=float(view.clusters[k]) if view.is_clustered else None,
            duplicates=log.duplicates if segment is None else None,
            dropped=log.dropped if segment is None else 0,
        )
    return found


def verdicts(found: Mapping[Segment, Diagnostics]) -> dict[Segment, Verdict]:
    """The verdict of each place."""
    return {segment: judge(one) for segment, one in found.items()}
