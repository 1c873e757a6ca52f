"""The estimates of one view of a log, with their errors and intervals, and what its weights look like."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from counterpoise.diagnostics import Caveat, Clusters, Diagnostics, Lost, WeightedRows, diagnose
from counterpoise.diagnostics.diagnose import of_mean
from counterpoise.diagnostics.verdict import Labels, Uneven, after_choice, judge_labels, labeled_shares
from counterpoise.errors import verbatim
from counterpoise.estimators import DIFFERENCES, ESTIMATORS, Estimate, Estimator, above_logging, gradient, unstack
from counterpoise.evaluation.choose import has_context, is_off
from counterpoise.evaluation.view import View
from counterpoise.intervals import Anytime, Evidence, Interval, Method, check_level, strategy
from counterpoise.intervals.bernstein import bounds_by_reward, check_reward_bounds, check_within
from counterpoise.intervals.jackknife import effective_clusters, jackknife_error
from counterpoise.intervals.method import UNKNOWN, Unseen, Unvaried, bounds_by_kind, unvaried, wilson
from counterpoise.intervals.quantity import MOST_LEVERAGE, Quantity, joint_level, over, share_width
from counterpoise.log.kinds import go_with, reduced, stands_for, with_rewards
from counterpoise.log.kinds.labeled import LABEL, PROXY, effective_labels, is_at_one_rate, label_gap
from counterpoise.log.parts import RewardBounds
from counterpoise.log.question import LOGGING
from counterpoise.moments import Floats, Moments
from counterpoise.moments.columns import CONTEXT, ROW
from counterpoise.moments.log_moments import Segment

if TYPE_CHECKING:
    from counterpoise.evaluation.result import Result

Key = TypeVar("Key")
Value = TypeVar("Value")
FloatOrFloats = TypeVar("FloatOrFloats", float, Floats)

BEYOND_DOUBT = 0.9999  # the level of what the logging policy may earn, where the ends of a lift depend on it


@dataclass(frozen=True)
class IntervalOptions:
    """How intervals are made: their level, their method, and the bounds of the rewards, if the log states them."""

    level: float
    method: Method
    reward_bounds: tuple[float, float] | None = None

    @classmethod
    def of(cls, result: Result, *, among: int = 1) -> IntervalOptions:
        """How those of a result are made, or of `among` quantities like its own, for all of them at once."""
        return cls(joint_level(result.level, among), result.interval_method, result.reward_bounds)

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
    reward_bounds: RewardBounds = None,
    **own: object,
) -> tuple[IntervalOptions, ...]:
    """How the intervals of each reward are made, from what a verb was given; `own` are options of single methods."""

    def of_reward(bounds: tuple[float, float] | None) -> IntervalOptions:
        method = strategy(interval, is_clustered=is_clustered, options={**own, "reward_bounds": bounds})
        return IntervalOptions(level, method, bounds)

    bounds = (None,) * len(rewards) if reward_bounds is None else bounds_by_reward(reward_bounds, rewards)
    return tuple(map(of_reward, bounds))


def for_looks(
    options: tuple[IntervalOptions, ...], interval: str | Method | None, looks: int
) -> tuple[IntervalOptions, ...]:
    """From the second look at a growing log on, intervals that hold at all looks, unless others were asked for."""
    if looks < 2 or interval is not None:
        return options
    return tuple(replace(each, method=Anytime()) for each in options)


class OnDemand(Mapping[Key, Value]):
    """Values that are made when they are first asked for: a log may have a hundred thousand segments, few of which anyone looks at.

    So are the keys, if they come from a function.

    >>> squares = OnDemand(range(10**5), lambda n: n * n)
    >>> squares[3], len(squares)
    (9, 100000)
    """

    def __init__(self, keys: Iterable[Key] | Callable[[], Iterable[Key]], make: Callable[[Key], Value]) -> None:
        self._keys_of, self._make, self._made = keys, make, dict[Key, Value]()

    @cached_property
    def _keys(self) -> dict[Key, None]:
        return dict.fromkeys(self._keys_of() if callable(self._keys_of) else self._keys_of)

    def __getitem__(self, key: Key) -> Value:
        if key not in self._made:
            if key not in self._keys:
                raise KeyError(key)
            self._made[key] = self._make(key)
        return self._made[key]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[type, tuple[dict[Key, Value]]]:
        return dict, (dict(self),)  # a pickle has the values themselves


EstimateKey = tuple[str, str, Segment]  # target, estimator, place


@dataclass(frozen=True, eq=False)
class Quantities:
    """Everything that is estimated about one contrast of a log: a `Quantity` by estimator and place.

    What all places have is computed at once, as a stack, when the first of them is asked for.
    """

    view: View
    estimators: Mapping[str, Estimator]
    options: IntervalOptions

    def __post_init__(self) -> None:
        """Check that the log keeps within the promised bounds, and meets the method's assumptions."""
        view, options = self.view, self.options
        low, high = view.reward_range
        rewards = float(low[0]), float(high[0])
        if options.reward_bounds is not None:
            check_within(options.reward_bounds, rewards)
        for place in filter(view.is_whole, view.places):
            weights = view.tail(place).weights
            largest = float(weights[0]) if len(weights) else 0.0
            options.method.check(rewards=rewards, max_weight=largest, is_clustered=view.is_clustered)

    @cached_property
    def stacks(self) -> Mapping[str, Stack]:
        """What every estimator says about all places."""
        view = self.view
        return OnDemand(
            self.estimators, lambda name: Stack(view, _consistent(view, self.estimators[name]), self.options)
        )

    def at(self, name: str, place: Segment = None) -> Quantity:
        """What an estimator says about one place, or the whole log."""
        k, options = self.view.place(place), self.options
        evidence = replace(self.stacks[name].evidence[k], smoothed=self.view.smoothed[k])
        return Quantity(evidence, options.method, options.level, self._unseen(name, k), self._limits(name, k))

    def estimate(self, name: str, place: Segment = None) -> Estimate:
        """The same as an estimate with its interval."""
        k, stack, options = self.view.place(place), self.stacks[name], self.options
        # the ends of all segments at once, if one of them is asked for; what is unseen makes them one by one
        ends = None if place is None or self._unseen(name, k).is_open else stack.ends
        if ends is None:
            interval = self.at(name, place).interval()
        else:
            low, high, limits = float(ends[0][k]), float(ends[1][k]), self._limits(name, k)
            interval = Interval(low, high, options.level, options.method.name, limits=limits)
        return replace(unstack(stack.own, k), name=name, interval=interval)

    def share(self, name: str, difference: Estimate, place: Segment = None) -> Estimate | None:
        """A difference (its estimate, or the bounds that are left of it) as a share of what the logging policy earned in that place.

        Where rewards have bounds, it ends where they do: nobody earns less than nothing.
        """
        k, rewards = self.view.place(place), reward_limits(self.view, self.options.reward_bounds)
        mean, error, wider = (float(each[k]) for each in (*self._logged, self._share_widths[name]))
        if not mean > 0:
            return None
        limits = UNKNOWN
        if rewards is not None:
            least, most = (end if end > 0 else mean for end in logged_range(self.view, k, rewards))
            limits = min(rewards[0] / least, rewards[0] / most) - 1, max(rewards[1] / least, rewards[1] / most) - 1
        made = over(difference, mean, error, wider=wider, limits=limits)
        return None if made is None else replace(made, name="relative")

    @cached_property
    def _logged(self) -> tuple[Floats, Floats]:
        """What the logging policy earned in every place, and the error of that."""
        whole = self.view.whole
        return np.asarray(whole.center + whole.average("s")), self.view.mean_error("s")

    @cached_property
    def _share_widths(self) -> Mapping[str, Floats]:
        view = self.view
        groups = (view.others, view.groups.n) if view.is_clustered else None

        def width(name: str) -> Floats:
            estimator, count = self.estimators[name], len(view.places)
            if estimator.needs != "groups" or not view.is_whole(view.places[-1]):
                return share_width(estimator, view.whole, groups)
            # which would take the places for its groups
            apart = (slice(k, k + 1) for k in range(count))
            parts = [
                share_width(estimator, view.whole[k], None if groups is None else (groups[0][k], groups[1][k]))
                for k in apart
            ]
            return np.concatenate(parts)

        return OnDemand(self.estimators, width)

    def _unseen(self, name: str, k: int) -> Unseen:
        """What stays hidden in a place because rewards never vary there."""
        estimator, first = self.estimators[name], self._unvaried
        if not estimator.uses_rewards:
            return Unseen()
        if not estimator.is_difference:
            return Unseen(first[k])
        return Unseen(first[k], self._unvaried_other[k], float(self._spread[k]), int(self.view.whole.n[k]))

    @cached_property
    def _unvaried(self) -> list[Unvaried | None]:
        return _unvaried(self.view, self.options, self.view.contrast[0])

    @cached_property
    def _unvaried_other(self) -> list[Unvaried | None]:
        return _unvaried(self.view, self.options, self.view.contrast[1])

    @cached_property
    def _spread(self) -> Floats:
        """The root of the mean square of the excess over the number of clusters, in every place."""
        spread = np.sqrt(self.view.squares / np.maximum(self.view.clusters, 1.0))
        return np.where(spread <= 1e-12, 0.0, spread)  # rounding: the policies never differ

    def _limits(self, name: str, k: int) -> tuple[float, float]:
        return limits_of(self.view, self.estimators[name].estimand, self.options.reward_bounds, k)


def estimates(
    view: View, estimators: Mapping[str, Estimator], options: IntervalOptions
) -> OnDemand[EstimateKey, Estimate]:
    """Every estimate of one contrast, over the whole log and by segment."""
    quantities = Quantities(view, estimators, options)
    keys = [(view.contrast[0], name, place) for place in view.places for name in estimators]
    return OnDemand(keys, lambda key: quantities.estimate(*key[1:]))


def reward_limits(view: View, reward_bounds: tuple[float, float] | None) -> tuple[float, float] | None:
    """The bounds of the rewards, and so of every policy's mean reward, by what was promised or by their kind; None where there are none.

    A sum over the rows of a list or an episode has no such bounds, nor does a ratio, nor what weights of one's own add up to.
    """
    log = view.log
    if not log.means_rewards or log.weight.is_own:
        return None
    low, high = view.reward_range
    return check_reward_bounds(reward_bounds) if reward_bounds else bounds_by_kind(float(low[0]), float(high[0]))


def logged_range(view: View, k: int, rewards: tuple[float, float]) -> tuple[float, float]:
    """What the logging policy may earn in a place, beyond doubt, if rewards have these bounds."""
    (low, high), (mean, rows) = rewards, (float(known[k]) for known in view.logged)
    least, most = wilson(min(max((mean - low) / (high - low), 0.0), 1.0), rows, BEYOND_DOUBT)
    return low + least * (high - low), low + most * (high - low)


def limits_of(view: View, estimand: str, reward_bounds: tuple[float, float] | None, k: int = 0) -> tuple[float, float]:
    """What the rewards' bounds leave possible in a place: of a value, those bounds; of a difference, theirs less what the other earns."""
    rewards = reward_limits(view, reward_bounds)
    if rewards is None or estimand == "value":
        return rewards or UNKNOWN
    low, high = rewards
    if view.contrast[1] not in ("", LOGGING):
        return low - high, high - low
    least, most = logged_range(view, k, rewards)
    return low - most, high - least


@dataclass(frozen=True, eq=False)
class Stack:
    """What one estimator says about all places of a view: values, errors, and what their intervals are made from."""

    view: View
    estimator: Estimator
    options: IntervalOptions

    @cached_property
    def own(self) -> Estimate:
        """What the rows themselves show, with errors by the delta method, or by the jackknife where rows come in clusters."""
        view, estimator = self.view, self.estimator
        moments = view.groups if estimator.needs == "groups" else view.whole
        together, widened, estimated = estimator(moments), np.ones(len(view.places)), view.log.estimated
        if estimated is not None:  # estimating the propensities changes the errors
            slopes = gradient(estimator, moments.recenter(estimated.center))
            factors = (estimated.factor(view.contrast, place, slopes[k]) for k, place in enumerate(view.places))
            widened = np.array(list(factors))
        stderr: Any = together.stderr * widened
        if self.is_by_groups:
            stderr = np.where(np.isnan(together.value), together.stderr, self._jackknife * widened)
        return replace(together, stderr=stderr)

    @property
    def is_by_groups(self) -> bool:
        """Whether errors come from the jackknife over groups."""
        return self.options.method.uses_groups(is_clustered=self.view.is_clustered)

    @property
    def _jackknife(self) -> Floats:
        """Jackknife errors of all places.

        Rewards far from 0 are shifted there first if the estimator shifts along, because small differences of large values lose their
        digits. If a value is not identified without one of the groups, it rests on that group alone and its error is unknown.
        """
        view, estimator = self.view, self.estimator
        groups, whole = view.around_zero if estimator.follows_rewards else (view.groups, view.whole)
        value = np.asarray(estimator(groups if estimator.needs == "groups" else whole).value)
        without = estimator.without_each(groups)
        lost = (np.isnan(without) & (groups.n > 0)).any(axis=1) | np.isnan(value)
        return np.where(lost, np.inf, jackknife_error(np.nan_to_num(without), groups.n)[0])

    @cached_property
    def evidence(self) -> Evidence:
        """What the intervals are made from: a stack of places."""
        view, estimator, own = self.view, self.estimator, self.own
        value, stderr, n = (np.broadcast_to(np.asarray(x), len(view.places)) for x in (own.value, own.stderr, own.n))
        groups = (view.groups.n > 0).sum(axis=-1) if self.is_by_groups else np.zeros(len(view.places))
        is_bare = np.isnan(value) | (n == 0) | (not estimator.uses_rewards)
        baseline, heavy = self._constants(value), view.heavy
        # a difference from what was logged has an excess of −1 at least; one of two policies may have either sign
        least = np.minimum(heavy, 1.0) if view.contrast[1] in ("", LOGGING) else heavy
        with np.errstate(over="ignore", invalid="ignore"):
            excess = None if estimator.estimand == "value" else -least
            low, high = extremes(view.rewards_around(baseline), baseline, excess, heavy)
            # a labeled row stands for those that are not
            middle = baseline if excess is None else 0.0
            low, high = (middle + (end - middle) / np.maximum(view.labeled, 1e-12) for end in (low, high))
        leverage = view.excess.kurtosis / np.maximum(n * view.labeled, 1)
        leverage = np.where(groups > 0, 0.0, np.minimum(leverage, MOST_LEVERAGE))
        parts: Any = {
            "value": value,
            "stderr": stderr,
            "n": n,
            "moments": view.whole,
            "groups": groups,
            "clusters": view.clusters,
            "carrying": np.where(is_bare, np.inf, view.carrying),
            "extremes": (np.where(is_bare, np.nan, low), np.where(is_bare, np.nan, high)),
            "leverage": np.where(is_bare, 0.0, leverage),
            "spread": (view.excess, view.rewards, view.ends),
            "labeled": view.labeled,
        }
        return Evidence(**parts, mean_is_one=estimator.uses_rewards and view.log.weight.mean_is_one)

    @cached_property
    def ends(self) -> tuple[Floats, Floats] | None:
        """The ends of the intervals of all places, if the method makes them at once."""
        return self.options.method.ends(self.evidence, self.options.level)

    def _constants(self, value: Floats) -> Floats:
        """The baselines of a row like any other, in every place; of several coefficients, those of a context baseline begin with it."""
        view, estimator, own = self.view, self.estimator, self.own
        several = own.baseline if isinstance(own.baseline, tuple) else None
        if several is not None and view.whole.ranks and estimator.needs != "model":
            # one for every position: where all weights of a list are equal, they count together
            total = np.asarray(sum(several))
            return np.where(np.isfinite(total), total, value)
        other = value if estimator.estimand == "value" else view.whole.center + view.whole.average("s")
        is_constant = several is None or estimator.needs == "context" or estimator.is_difference
        if not is_constant or estimator.needs == "model":
            return other
        first = np.asarray(own.baseline if several is None else several[0])
        return np.where(np.isfinite(first), first, other)


def _consistent(view: View, estimator: Estimator) -> Estimator:
    """The estimator itself; where the mean weight is not 1, a lift over the logging policy is the value less the mean reward.

    What weights leave out is filled in with the baseline, and the value and the lift would contradict each other if each had its own. Only
    if the kind of weight allows that, and by more than luck.
    """
    whole, is_of_logging = view.whole, view.contrast[1] in ("", LOGGING)
    if view.log.weight.mean_is_one or not is_of_logging or whole.ranks:
        return estimator
    if estimator not in (ESTIMATORS["lift"], DIFFERENCES["beta_ips"], DIFFERENCES["context_ips"]) or not is_off(view):
        return estimator
    if view.log.weight.is_own and estimator == ESTIMATORS["lift"]:
        return above_logging(ESTIMATORS["ips" if go_with(view.kinds, "estimator='ips'") else "snips"])
    return above_logging(ESTIMATORS["context_ips" if whole.context else "beta_ips"])


def _unvaried(view: View, options: IntervalOptions, target: str) -> list[Unvaried | None]:
    """The places in which a policy sees only one reward. A policy without moments of its own is the logging policy, whose weights are 1."""
    if (target, "") not in view.log.moments:
        rewards = view.whole.recenter(view.reward_range[0])
        only = rewards.mean * np.array([name == "s" for name in rewards.columns])
        whole = Moments(rewards.n, only, np.zeros(rewards.scatter.shape), rewards.center, rewards.columns)
        return unvaried(
            whole, view.reward_range, options.reward_bounds, np.minimum(view.clusters, rewards.n * view.labeled)
        )
    single = view if view.contrast == (target, "") else View(view.log, (target, ""))
    weight = np.maximum(1.0 + reduced(single.groups).average("u"), 0.0) * single.groups.n * stands_for(single.groups)
    clusters = effective_clusters(weight) if single.is_clustered else None
    if single.effective is not None:
        clusters = np.minimum(single.effective, np.inf if clusters is None else clusters)
    return unvaried(with_rewards(single.together), single.reward_range, options.reward_bounds, clusters)


def extremes(
    rewards: tuple[FloatOrFloats, FloatOrFloats],
    baseline: FloatOrFloats,
    least: FloatOrFloats | None,
    heavy: FloatOrFloats,
) -> tuple[FloatOrFloats, FloatOrFloats]:
    """The smallest and the largest term of a row: of a value, or of a difference whose excess is at `least` so small."""
    if least is None:
        terms = [baseline + (1.0 + heavy) * (reward - baseline) for reward in rewards]
    else:
        terms = [excess * (reward - baseline) for reward in rewards for excess in (least, heavy)]
    return np.minimum.reduce(terms), np.maximum.reduce(terms)


def doubtful_baselines(view: View) -> Mapping[Segment, list[Caveat]]:
    """What is wrong with the columns of a context baseline, over the whole log and by segment."""
    if not has_context(view.log.moments[view.contrast].columns):
        return {place: [] for place in view.places}
    whole = view.whole
    means = {name.removeprefix(CONTEXT): whole.average(name) for name in whole.context}
    errors = {name.removeprefix(CONTEXT): view.mean_error(name) for name in whole.context}

    def doubts(place: Segment) -> list[Caveat]:
        k = view.place(place)
        columns = {name: (float(mean[k]), float(errors[name][k])) for name, mean in means.items()}
        carrying = float(view.excess.n[k] / np.asarray(view.excess.kurtosis)[k])
        return list(after_choice(columns, carrying, float(view.clusters[k]) if view.is_clustered else math.inf))

    return OnDemand(view.places, doubts)


def doubtful_labels(view: View) -> Mapping[Segment, list[Caveat]]:
    """What is wrong with the labels, where the reward is known for some rows only, over the whole log and by segment."""
    if LABEL not in view.log.moments[view.contrast].columns:
        return {place: [] for place in view.places}
    rows = view.together
    labels, effective = effective_labels(rows)

    def gap(column: str) -> tuple[Floats, Floats, Floats]:
        mean, of_all, error = label_gap(rows, column)
        if view.is_clustered:
            without, of_all_without, _ = label_gap(view.groups.others, column)
            error = jackknife_error(without - of_all_without, view.groups.n)[0]
        return mean, of_all, error

    proxies, excesses, at_one_rate = gap(PROXY), gap(ROW[0]), is_at_one_rate(rows)
    is_of_one = view.contrast[1] in ("", LOGGING)

    def by_weight(k: int, clusters: float) -> Uneven:
        mean, of_all, error = (float(each[k]) for each in excesses)
        p = of_mean(mean - of_all, error, min(float(labels[k]), float(effective[k])), clusters)
        first, second = map(verbatim, view.contrast)
        text = f"the mean weight of {first} is {1 + mean:.3g} in labeled rows, and {1 + of_all:.3g} in all"
        if not is_of_one:
            what = f"the weights of {first} and {second} differ by"
            text = f"{what} {mean:.3g} on average in labeled rows, and by {of_all:.3g} in all"
        return Uneven(text, {"weight": mean + is_of_one, "weight_of_all": of_all + is_of_one}, p)

    def doubts(place: Segment) -> list[Caveat]:
        k = view.place(place)
        worth, proxy, of_all, off = (float(by_place[k]) for by_place in (effective, *proxies))
        clusters = float(view.clusters[k]) if view.is_clustered else math.inf
        others = by_weight(k, clusters), *(_labels_by_segment(view, rows) if place is None else ())
        return list(judge_labels(Labels(worth, proxy, of_all, off, bool(at_one_rate[k]), clusters, others)))

    return OnDemand(view.places, doubts)


def _labels_by_segment(view: View, rows: Moments) -> Iterator[Uneven]:
    """Whether some segment has more labels than the whole log, or fewer: the one that chance explains least."""
    share, n = rows.average(LABEL), np.maximum(np.asarray(rows.n, dtype=np.float64), 1.0)
    if len(view.places) < 3 or not share[0] > 0:
        return
    off = share / share[0] - 1.0
    if view.is_clustered:
        without = view.groups.others.average(LABEL)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = jackknife_error(np.nan_to_num(without / without[:1] - 1.0), view.groups.n)[0]
    else:  # as if labels were spread evenly, since those of a small segment show little of their own spread
        error = np.sqrt(rows.covariance(LABEL, LABEL)[0] * np.maximum(1.0 / n - 1.0 / n[0], 0.0)) / share[0]
    carrying = float(effective_labels(rows)[0][0]) * np.minimum(n, n[0] - n) / n[0]
    clusters = view.clusters if view.is_clustered else np.full(n.shape, math.inf)
    tested = list(zip(off, error, carrying, clusters, strict=True))[1:]
    p = [of_mean(*map(float, each)) for each in tested]
    k = 1 + int(np.argmin(p))
    rest = (n[0] * share[0] - n[k] * share[k]) / max(n[0] - n[k], 1.0)
    where = " and ".join(
        f"{name} is {value}" for name, value in zip(view.log.segment_columns, view.places[k] or (), strict=True)
    )
    text = labeled_shares(float(share[k]), float(rest), where, at_one_rate=bool(is_at_one_rate(rows)[0]))
    yield Uneven(text, {"share": float(share[k]), "share_of_others": float(rest)}, min(1.0, p[k - 1] * len(p)))


def diagnosis(view: View, segment: Segment = None) -> Diagnostics:
    """The diagnostics of one target over the whole log, or in a segment."""
    log, k, (low, high), (longer, longer_error) = view.log, view.place(segment), view.reward_range, view.lengths
    unknown = (log.dropped - log.left_out.n) / max(log.n + log.dropped, 1)  # segments unknown
    unknown = unknown if log.labels is None else 0.0  # most rows have none to begin with
    clusters = None
    if view.is_clustered:
        error, count = view.weight_errors
        clusters = Clusters(int(count[k]), float(view.clusters[k]), float(error[k]))
    whole = Lost(log.dropped, log.left_out, log.duplicates, unknown)
    _ = view.excess.kurtosis, view.excess.skewness  # of all places at once
    rows = WeightedRows(
        view.whole[k],
        view.tail(segment),
        view.excess[k],
        view.rewards[k],
        (float(low[k]), float(high[k])),
        log.weight.mean_is_one,
        float(view.carrying[k]),
        None if view.effective is None else float(view.effective[k]),
        log.weight.unit,
        (float(longer[k]), float(longer_error[k])),
    )
    return diagnose(rows, clusters=clusters, lost=whole if view.is_whole(segment) else Lost(unknown_share=unknown))
