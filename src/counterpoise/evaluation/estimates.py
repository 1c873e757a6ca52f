"""The estimates for one view of a log, with their errors and intervals, and what its weights look like."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from counterpoise.diagnostics import Clusters, Diagnostics, Lost, Seen, diagnose
from counterpoise.diagnostics.before_choice import after_choice
from counterpoise.estimators import Estimate, Estimator, gradient, unstack
from counterpoise.evaluation.result import Segment
from counterpoise.evaluation.view import View
from counterpoise.intervals import Evidence, Interval, Method, check_level, strategy
from counterpoise.intervals.bounds import bounds_by_reward, check_reward_bounds, check_within
from counterpoise.intervals.jackknife import effective_clusters, jackknife_error
from counterpoise.intervals.unseen import Unseen, Unvaried, unvaried
from counterpoise.log.question import LOGGING
from counterpoise.moments import Floats, Moments
from counterpoise.moments.effective import usual_rewards
from counterpoise.moments.moments import CONTEXT

MOST = 0.6  # of its own fit that a heavy row is taken to make


@dataclass(frozen=True)
class Options:
    """How intervals are made: their level, their method, and the bounds of the rewards, if the log states them."""

    level: float
    method: Method
    reward_bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_level(self.level)
        if self.reward_bounds is not None:
            check_reward_bounds(self.reward_bounds)


def options_of(
    interval: str | Method | None,
    level: float,
    rewards: Sequence[str | None],
    *,
    is_clustered: bool,
    reward_bounds: Any = None,
    **own: Any,
) -> tuple[Options, ...]:
    """How the intervals of each reward are made, from what a verb was given; `own` are options of single methods."""

    def one(bounds: tuple[float, float] | None) -> Options:
        method = strategy(interval, is_clustered=is_clustered, options={**own, "reward_bounds": bounds})
        return Options(level, method, bounds)

    return tuple(map(one, bounds_by_reward(reward_bounds, rewards)))


def estimates(
    view: View, estimators: Mapping[str, Estimator], options: Options
) -> dict[tuple[str, str, Segment], Estimate]:
    """Every estimate of one contrast, over the whole log and by segment."""
    _check_log(view, options)
    found = {}
    seen_by = cache(partial(_unvaried, view, options))
    unseen = {estimand: _unseen(view, estimand, seen_by) for estimand in {one.estimand for one in estimators.values()}}
    for name, estimator in estimators.items():
        own, groups = _own(view, estimator, options)
        for k, segment in enumerate(view.places):
            hidden = unseen[estimator.estimand][k] if estimator.uses_rewards else Unseen()
            evidence = replace(_evidence(view, k, own[k], int(groups[k]), estimator), smoothed=view.smoothed[k])
            interval = _interval(evidence, hidden, options)
            found[name, segment] = replace(own[k], name=name, interval=interval)
    # place by place, estimator by estimator: how a reader scans the table
    return {(view.contrast[0], name, segment): found[name, segment] for segment in view.places for name in estimators}


def interval_at(view: View, estimator: Estimator, options: Options) -> Callable[[float], Interval]:
    """The interval of the whole log as a function of its level."""
    own, groups = _own(view, estimator, options)
    unseen = _unseen(view, estimator.estimand, partial(_unvaried, view, options))
    evidence = _evidence(view, 0, own[0], int(groups[0]), estimator)
    return lambda level: _interval(evidence, unseen[0], replace(options, level=level))


def _own(view: View, estimator: Estimator, options: Options) -> tuple[list[Estimate], Floats]:
    """What the rows themselves show in every place, and the number of groups with rows."""
    together = estimator(view.groups if estimator.needs == "groups" else view.whole)
    found = [unstack(together, k) for k in range(len(view.places))]
    factors = _of_propensities(view, estimator)
    if not options.method.uses_groups(is_clustered=view.is_clustered):
        return [replace(one, stderr=one.stderr * factor) for one, factor in zip(found, factors, strict=True)], np.zeros(
            len(found)
        )
    stderr, groups = _jackknife(view, estimator)
    errors = zip(found, stderr * factors, strict=True)
    return [replace(one, stderr=float(e)) if one.identified else one for one, e in errors], groups


def _of_propensities(view: View, estimator: Estimator) -> Floats:
    """By how much the errors of all places change because the propensities were estimated; 1 where they were logged."""
    estimated = view.log.estimated
    if estimated is None:
        return np.ones(len(view.places))
    slopes = gradient(
        estimator, (view.groups if estimator.needs == "groups" else view.whole).recenter(estimated.center)
    )
    return np.array([estimated.factor(view.contrast, place, slopes[k]) for k, place in enumerate(view.places)])


def _unseen(view: View, estimand: str, seen_by: Callable[[str], list[Unvaried | None]]) -> list[Unseen]:
    """What stays hidden in every place because rewards never vary there."""
    first = seen_by(view.contrast[0])
    if estimand == "value":
        return [Unseen(one) for one in first]
    second = seen_by(view.contrast[1])
    u = view.whole
    spread = np.sqrt((u.covariance("u", "u") + np.square(u.average("u"))) / np.maximum(view.clusters, 1.0))
    spread = np.where(spread <= 1e-12, 0.0, spread)  # rounding: the policies never differ
    return [Unseen(first[k], second[k], float(spread[k]), int(u.n[k])) for k in range(len(view.places))]


def _unvaried(view: View, options: Options, target: str) -> list[Unvaried | None]:
    """The places in which a policy sees only one reward. A policy without moments of its own is the logging policy, whose weights are 1."""
    if (target, "") not in view.log.moments:
        rewards = view.whole.recenter(view.reward_range[0])
        only = rewards.mean * np.array([name == "s" for name in rewards.columns])
        whole = Moments(rewards.n, only, np.zeros(rewards.scatter.shape), rewards.center, rewards.columns)
        return unvaried(whole, view.reward_range, options.reward_bounds, view.clusters)
    one = view if view.contrast == (target, "") else View(view.log, (target, ""))
    weight = np.maximum(1.0 + one.groups.average("u"), 0.0) * one.groups.n
    clusters = effective_clusters(weight) if one.is_clustered else None
    return unvaried(one.whole, one.reward_range, options.reward_bounds, clusters)


def _jackknife(view: View, estimator: Estimator) -> tuple[Floats, Floats]:
    """Jackknife errors of all places, and the number of groups with rows.

    Rewards far from 0 are shifted there first if the estimator shifts along, because small differences of large values lose their digits.
    If a value is not identified without one of the groups, it rests on that group alone, and its error is unknown.
    """
    groups, whole = view.groups, view.whole
    if estimator.follows_rewards:
        center = whole.center + whole.average("s")
        groups, whole = groups.shifted(-center[:, None]), whole.shifted(-center)
    value = np.asarray(estimator(groups if estimator.needs == "groups" else whole).value)
    without = estimator.without_each(groups)
    lost = (np.isnan(without) & (groups.n > 0)).any(axis=1) | np.isnan(value)
    stderr, count = jackknife_error(np.nan_to_num(without), groups.n)
    return np.where(lost, np.inf, stderr), count


def _evidence(view: View, place: int, own: Estimate, groups: int, estimator: Estimator) -> Evidence:
    """What the interval of an estimate is made from."""
    if not own.identified or not own.n or not estimator.uses_rewards:
        return Evidence(
            own.value, own.stderr, own.n, view.each[place], groups, float(view.clusters[place]),
            mean_is_one=estimator.uses_rewards and view.log.weight.mean_is_one,
        )  # fmt: skip
    low, high = usual_rewards(view.rewards[place], view.ends[place])
    baseline = _constant(view, place, own, estimator)
    heavy = view.heavy(place)
    if estimator.estimand == "value":
        terms = [baseline + (1.0 + heavy) * (reward - baseline) for reward in (low, high)]
    else:  # a difference from what was logged has an excess of −1 at least; one of two policies may have either sign
        least = min(heavy, 1.0) if view.contrast[1] in ("", LOGGING) else heavy
        terms = [excess * (reward - baseline) for reward in (low, high) for excess in (-least, heavy)]
    leverage = 0.0 if groups else min(view.excess[place].kurtosis / own.n, MOST)
    return Evidence(
        own.value, own.stderr, own.n, view.each[place], groups, float(view.clusters[place]),
        view.carrying[place], (min(terms), max(terms)), leverage, view.log.weight.mean_is_one,
    )  # fmt: skip


def _constant(view: View, place: int, own: Estimate, estimator: Estimator) -> float:
    """The baseline of a row like any other; of several coefficients, those of a context baseline begin with it."""
    if isinstance(own.baseline, tuple) and len(view.whole.ranks) and estimator.needs != "model":
        # one for every position: where all weights of a list are equal, they count together
        return sum(own.baseline) if all(map(math.isfinite, own.baseline)) else own.value
    first = own.baseline[0] if isinstance(own.baseline, tuple) else own.baseline
    is_constant = isinstance(own.baseline, float) or estimator.needs == "context" or estimator.is_difference
    if is_constant and estimator.needs != "model" and math.isfinite(first):
        return first
    if estimator.estimand == "value":
        return own.value
    return float(view.whole.center[place] + view.whole.average("s")[place])


def _interval(evidence: Evidence, unseen: Unseen, options: Options) -> Interval:
    method = options.method
    made = (method.unvaried if unseen.is_open else method.interval)(evidence, options.level)
    return made if math.isnan(evidence.value) else unseen.widen(made, options.method.score)


def _check_log(view: View, options: Options) -> None:
    """Check that the log keeps within the bounds that were promised, and to what the method takes for granted."""
    low, high = view.reward_range
    rewards, weights = (float(low[0]), float(high[0])), view.tail(None).weights
    if options.reward_bounds is not None:
        check_within(options.reward_bounds, rewards)
    largest = float(weights[0]) if len(weights) else 0.0
    options.method.check(rewards=rewards, max_weight=largest, is_clustered=view.is_clustered)


def doubtful_baselines(view: View) -> dict[Segment, list[str]]:
    """What is wrong with the columns of a context baseline, over the whole log and by segment."""
    whole = view.whole
    means = {name.removeprefix(CONTEXT): whole.average(name) for name in whole.context}
    errors = {
        name.removeprefix(CONTEXT): jackknife_error(view.groups.others.average(name), view.groups.n)[0]
        if view.is_clustered
        else np.sqrt(whole.covariance(name, name) / np.maximum(whole.n, 1))
        for name in whole.context
    }
    return {
        place: after_choice(
            {name: (float(mean[k]), float(errors[name][k])) for name, mean in means.items()},
            view.excess[k].n / view.excess[k].kurtosis if view.excess[k].n else 0.0,
            float(view.clusters[k]) if view.is_clustered else math.inf,
        )
        for k, place in enumerate(view.places)
    }


def diagnostics(view: View) -> dict[Segment, Diagnostics]:
    """The diagnostics of one target, over the whole log and by segment."""
    log = view.log
    if view.is_clustered:
        error, count = jackknife_error(view.groups.others.average("u"), view.groups.n)
    low, high = view.reward_range
    unknown = (log.dropped - log.left_out.n) / max(log.n + log.dropped, 1)  # nobody knows in which segments
    found = {}
    for k, segment in enumerate(view.places):
        rows = view.each[k], view.tail(segment), view.excess[k], view.rewards[k]
        clusters = Clusters(int(count[k]), float(view.clusters[k]), float(error[k])) if view.is_clustered else None
        lost = Lost(unknown_share=unknown)
        if segment is None:
            lost = Lost(log.dropped, log.left_out, log.duplicates, unknown)
        seen = Seen(*rows, (float(low[k]), float(high[k])), log.weight.mean_is_one)
        found[segment] = diagnose(seen, clusters=clusters, lost=lost)
    return found
