"""`View`: the sums of one contrast of a log, read as a plain log's: first the whole log, then its segments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from counterpoise.estimators.weighted import longer_lists
from counterpoise.intervals.jackknife import effective_clusters, jackknife_error
from counterpoise.log.kinds import kinds_in, per_row, reduced, share_known, stands_for
from counterpoise.log.kinds.kind import RowKind
from counterpoise.moments import Floats, Moments
from counterpoise.moments.columns import LENGTH
from counterpoise.moments.log_moments import Contrast, LogMoments, Segment
from counterpoise.moments.spread import (
    ORDERS,
    UNSMOOTHED,
    Powers,
    Smoothed,
    Tail,
    carrying_rows,
    usual_ends,
    usual_rewards,
)

FEW = 10  # rows that carry the weights' variance


@dataclass(frozen=True, eq=False)
class View:
    """One contrast of a log: the whole log first, then its segments, each in its groups."""

    log: LogMoments
    contrast: Contrast

    @cached_property
    def places(self) -> list[Segment]:
        """The whole log, then its segments."""
        return [None, *(self.log.segments if self.log.segment_columns else ())]

    @cached_property
    def groups(self) -> Moments:
        """A stack of places × groups."""
        stack = self.log.moments[self.contrast]
        total = Moments.stack([stack.merge(axis=0)])
        return Moments.concat([total, stack]) if len(self.places) > 1 else total

    @cached_property
    def whole(self) -> Moments:
        """A stack of places, as a plain log has them."""
        return reduced(self.together, rows=self.log.known_rows)

    @cached_property
    def together(self) -> Moments:
        """The same before rows that say more are reduced to weights and rewards."""
        return self.groups.merge(axis=1)

    @cached_property
    def others(self) -> Moments:
        """For every group of every place, all the other groups, as a plain log has them."""
        return reduced(self.groups.others)

    @cached_property
    def kinds(self) -> tuple[RowKind, ...]:
        """The kinds of its rows."""
        return kinds_in(self.together.columns)

    @cached_property
    def counts(self) -> Floats:
        """How many rows a row stands for, on average, in every place."""
        return stands_for(self.together)

    @cached_property
    def labeled(self) -> Floats:
        """The share of the rows that would do, labeled, as much as those that are; 1 where the reward of every row is known."""
        return share_known(self.together)

    @cached_property
    def around_zero(self) -> tuple[Moments, Moments]:
        """The groups and the whole with the rewards of every place shifted to a mean of 0."""
        center = self.whole.center + self.whole.average("s")
        return self.groups.shifted(-center[:, None]), self.whole.shifted(-center)

    @cached_property
    def reward_range(self) -> tuple[Floats, Floats]:
        """The lowest and the highest reward of every place; of a ratio, over what rewards are divided by on average."""
        low, high = self.log.reward_min, self.log.reward_max
        parts = len(self.places) - 1
        low, high = np.append(np.fmin.reduce(low), low[:parts]), np.append(np.fmax.reduce(high), high[:parts])
        return low / self.per_row, high / self.per_row

    @cached_property
    def per_row(self) -> Floats:
        """What rewards are divided by, on average, in every place; 1 where they are not."""
        average = per_row(self.together)
        return np.where(average > 0, average, 1.0)

    @property
    def is_clustered(self) -> bool:
        """Whether the groups hold clusters rather than single rows."""
        return self.log.cluster is not None

    @cached_property
    def clusters(self) -> Floats:
        """The effective number of clusters in every place; if no cluster is named, every row is one."""
        rows = np.asarray(self.whole.n, dtype=np.float64)
        sizes = self.groups.n * stands_for(self.groups)
        return np.minimum(effective_clusters(sizes), rows) if self.is_clustered else rows

    @cached_property
    def excess(self) -> Powers:
        """The powers of the excess, a stack of places."""
        return _scaled(self.of_places(self.log.excess[self.contrast]), self.counts)

    @cached_property
    def rewards(self) -> Powers:
        """The powers of the rewards, a stack of places."""
        return _scaled(self.of_places(self.log.rewards), self.per_row)

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """Where the rewards of every place begin and end, as far as the log shows."""
        return usual_ends(*self.reward_range)

    @cached_property
    def usual_rewards(self) -> tuple[Floats, Floats]:
        """A plausible low and high reward of a row not seen yet, in every place."""
        return usual_rewards(self.rewards, self.ends)

    @cached_property
    def carrying(self) -> Floats:
        """How many rows carry the variance, in every place: at most as many as they are worth."""
        if not self.kinds:
            return np.asarray(carrying_rows(self.excess, self.rewards, self.ends))
        low, high = (self._over_kinds(kind.counted_twice(self, end) for kind in self.kinds) for end in self.ends)
        carrying = carrying_rows(self.excess, self.rewards, self.ends, (low, high)) * self.labeled
        return np.asarray(
            np.minimum(carrying, self._worth) / self._over_kinds(kind.uneven(self) for kind in self.kinds)
        )

    def _over_kinds(self, factors: Iterable[Floats]) -> Floats:
        """The product of what each kind says of every place."""
        return reduce(np.multiply, factors, np.ones(len(self.places)))

    @cached_property
    def _worth(self) -> Floats:
        """How many rows that count alike they are worth, in every place; infinite where they do."""
        worth = np.full(len(self.places), math.inf)
        return reduce(np.minimum, (kind.worth(self.together) for kind in self.kinds), worth)

    @cached_property
    def effective(self) -> Floats | None:
        """How many rows of equal weight they are worth, in every place; None where their weights alone tell."""
        worth = [weighed for kind in self.kinds if (weighed := kind.effective(self.together)) is not None]
        return np.min(worth, axis=0) if worth else None

    @cached_property
    def logged(self) -> tuple[Floats, Floats]:
        """The mean reward of every place, and how many independent rows it is worth."""
        mean = np.asarray(self.whole.center + self.whole.average("s"))
        return mean, np.minimum(np.minimum(self.clusters, self.whole.n * self.labeled), self._worth)

    @cached_property
    def squares(self) -> Floats:
        """The mean square of the excess in every place; 0 if the two policies agree on every row."""
        return np.asarray(self.whole.covariance("u", "u") + np.square(self.whole.average("u")))

    @cached_property
    def heavy(self) -> Floats:
        """The excess of a row that carries the variance, or the largest there is if too few rows do; in every place."""
        square, fourth = self.excess.mean(2, 0.0), self.excess.mean(4, 0.0)
        is_known = (square > 1e-24) & (self.excess.n / self.excess.kurtosis >= FEW)
        largest = self._largest / np.where(self.counts > 0, self.counts, 1.0)
        largest = np.where(largest == -math.inf, 1.0, largest)
        has_two = all((name, "") in self.log.tails for name in self.contrast)
        most = largest if has_two else np.maximum(largest - 1.0, 0.0)
        with np.errstate(invalid="ignore"):
            return np.where(is_known, np.sqrt(fourth / np.where(is_known, square, 1.0)), most)

    @cached_property
    def _largest(self) -> Floats:
        """The largest weight of every place, of whichever policy has it; −∞ where there is none."""
        own = [_heaviest(self.log.tails[name, ""]) for name in self.contrast if (name, "") in self.log.tails]
        largest = reduce(np.maximum, own, np.full(len(self.log.segments), -math.inf))
        return np.append(largest.max(), largest)[: len(self.places)]

    def rewards_around(self, baseline: Floats) -> tuple[Floats, Floats]:
        """The usual rewards; where rows do not count alike, as near to a baseline as those with such rewards are lighter than others."""
        if not self.kinds:
            return self.usual_rewards
        below, above = (self._over_kinds(kind.lighter(self, end) for kind in self.kinds) for end in self.ends[::-1])
        least, most = self.usual_rewards
        return baseline + below * (least - baseline), baseline + above * (most - baseline)

    def mean_error(self, column: str) -> Floats:
        """The error of a column's mean in every place: the delta method's, or the jackknife's where rows come in clusters."""
        if self.is_clustered:
            return jackknife_error(self.others.average(column), self.groups.n)[0]
        return np.asarray(np.sqrt(self.whole.covariance(column, column) / np.maximum(self.whole.n, 1)))

    @cached_property
    def weight_errors(self) -> tuple[Floats, Floats]:
        """The jackknife error of the mean weight, and the number of groups with rows, in every place."""
        return jackknife_error(self.others.average("u"), self.groups.n)

    @cached_property
    def lengths(self) -> tuple[Floats, Floats]:
        """By how much longer a target's lists would be than the logged ones, and the error of that, in every place."""
        if LENGTH not in self.whole.columns:
            return np.zeros(len(self.places)), np.zeros(len(self.places))
        longer = longer_lists(self.whole)
        values, errors = np.asarray(longer.value), np.asarray(longer.stderr)
        if self.is_clustered:
            errors = jackknife_error(np.asarray(longer_lists(self.others).value), self.groups.n)[0]
        return values, errors

    @cached_property
    def smoothed(self) -> list[Smoothed]:
        """The smoothed sums of every place, if they were asked for."""
        parts = self.log.smoothed.get(self.contrast, (UNSMOOTHED,) * len(self.log.segments))
        return [sum(parts, UNSMOOTHED), *(parts if self.log.segment_columns else ())]

    def of_places(self, parts: Sequence[Powers]) -> Powers:
        """The powers of every place, from those of every segment."""
        whole = Powers.stack([Powers.total(parts)])
        return Powers.concat([whole, Powers.stack(parts)]) if self.log.segment_columns else whole

    def is_whole(self, segment: Segment) -> bool:
        """Whether a place is the whole log."""
        return segment is None

    def tail(self, segment: Segment) -> Tail:
        """The largest weights of a place."""
        k = self.place(segment)
        tail = self._whole_tail if segment is None else self.log.tails[self.contrast][k - 1]
        return tail if self.counts[k] == 1.0 else Tail(tail.weights / self.counts[k], tail.zeros)

    def place(self, segment: Segment) -> int:
        """The index of a segment among the places."""
        return self._known[segment]

    @cached_property
    def _whole_tail(self) -> Tail:
        return Tail.total(self.log.tails.get(self.contrast, ()))

    @cached_property
    def _known(self) -> dict[Segment, int]:
        return {label: k for k, label in enumerate(self.places)}


def _heaviest(tails: Iterable[Tail]) -> Floats:
    return np.array([tail.weights[0] if len(tail.weights) else -math.inf for tail in tails])


@dataclass(frozen=True, eq=False)
class Abreast(View):
    """The values of several targets, each over the whole log: its places are not segments but the targets' contrasts.

    What is an array for the places of a `View` is then one for all targets. Plain rows alone can be looked at in this way.
    """

    contrasts: tuple[Contrast, ...]

    @classmethod
    def of(cls, log: LogMoments) -> Abreast | None:
        """Every target of a log with plain rows; None if it has others, or what is known of one target decides how it is estimated."""
        contrasts = tuple(contrast for contrast in log.moments if not contrast[1])
        is_plain = contrasts and not kinds_in(log.moments[contrasts[0]].columns) and log.known_rows is None
        is_same = len({log.moments[contrast].columns for contrast in contrasts}) == 1
        if not (is_plain and is_same and log.weight.mean_is_one and log.estimated is None and not log.ladder):
            return None
        return cls(log, contrasts[0], contrasts)

    @cached_property
    def places(self) -> list[Segment]:
        """The contrasts of the targets."""
        return list(self.contrasts)

    @cached_property
    def groups(self) -> Moments:
        """A stack of targets × groups."""
        return Moments.stack([self.log.moments[contrast].merge(axis=0) for contrast in self.contrasts])

    @cached_property
    def reward_range(self) -> tuple[Floats, Floats]:
        """The lowest and the highest reward, which all targets have in common."""
        low, high = np.fmin.reduce(self.log.reward_min), np.fmax.reduce(self.log.reward_max)
        return np.full(len(self.contrasts), low), np.full(len(self.contrasts), high)

    @cached_property
    def excess(self) -> Powers:
        """The powers of every target's excess."""
        return Powers.stack([Powers.total(self.log.excess[contrast]) for contrast in self.contrasts])

    @cached_property
    def rewards(self) -> Powers:
        """The powers of the rewards, once for every target."""
        return Powers.stack([Powers.total(self.log.rewards)] * len(self.contrasts))

    @cached_property
    def _largest(self) -> Floats:
        return np.array([_heaviest(self.log.tails[contrast]).max() for contrast in self.contrasts])

    @cached_property
    def smoothed(self) -> list[Smoothed]:
        """The smoothed sums of every target, if they were asked for."""
        return [sum(self.log.smoothed.get(contrast, ()), UNSMOOTHED) for contrast in self.contrasts]

    def is_whole(self, segment: Segment) -> bool:
        """Each of them is."""
        return True

    def tail(self, segment: Segment) -> Tail:
        """The largest weights of a target."""
        return Tail.total(self.log.tails[self.contrasts[self.place(segment)]])


def _scaled(powers: Powers, by: Floats) -> Powers:
    """The powers of the same numbers, divided by one in every place."""
    if (by == 1.0).all():
        return powers
    by = np.where(by > 0, by, 1.0)
    return replace(powers, center=powers.center / by, sums=powers.sums / by[:, None] ** np.array(ORDERS))
