"""`View`: the sums of one contrast of a log, read as a plain log's: first the whole log, then its segments."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from counterpoise.estimators.lists import longer_lists
from counterpoise.intervals.jackknife import effective_clusters, jackknife_error
from counterpoise.moments import Floats, Moments
from counterpoise.moments.columns import (
    INVERSE,
    LABEL,
    LENGTH,
)
from counterpoise.moments.log_moments import Contrast, LogMoments, Segment
from counterpoise.moments.reduction import (
    counts_of,
    effective_labels,
    per_row,
    reduced,
)
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
        return reduced(self.together, rows=None if self.is_clustered else self.log.rows_before)

    @cached_property
    def together(self) -> Moments:
        """The same before rows that say more are reduced to weights and rewards."""
        return self.groups.merge(axis=1)

    @cached_property
    def others(self) -> Moments:
        """For every group of every place, all the other groups, as a plain log has them."""
        return reduced(self.groups.others)

    @cached_property
    def counts(self) -> Floats:
        """How many rows before sampling a row stands for, on average, in every place."""
        return counts_of(self.together)

    @cached_property
    def labeled(self) -> Floats:
        """The share of the rows that would do, labeled, as much as those that are; 1 where the reward of every row is known."""
        rows = self.together
        if LABEL not in rows.columns:
            return np.ones(len(self.places))
        return np.asarray(effective_labels(rows)[0] / np.maximum(rows.n, 1))

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
        sizes = self.groups.n * counts_of(self.groups)
        return np.minimum(effective_clusters(sizes), rows) if self.is_clustered else rows

    @cached_property
    def excess(self) -> Powers:
        """The powers of the excess, a stack of places."""
        return _scaled(self._of_places(self.log.excess[self.contrast]), self.counts)

    @cached_property
    def rewards(self) -> Powers:
        """The powers of the rewards, a stack of places."""
        return _scaled(self._of_places(self.log.rewards), self.per_row)

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
        """How many rows carry the variance, in every place; where rows were sampled, at most as many as they are worth."""
        return np.asarray(self._carrying / self._more_uneven)

    @cached_property
    def _more_uneven(self) -> Floats:
        r"""By how much fewer rows carry the variance of a ratio than that of its rewards.

        Were both parts of r − R·d independent, with the shares a and b of its variance, its kurtosis would be about a²κ(r) + b²κ(d).
        """
        if not self.log.per:
            return np.ones(len(self.places))
        per, rewards = self._of_places(self.log.per), self._of_places(self.log.rewards)
        residual = self.whole.covariance("s", "s") * np.square(self.per_row)
        ratio = np.asarray(self.whole.center + self.whole.average("s"))
        with np.errstate(divide="ignore", invalid="ignore"):
            a = np.minimum(np.nan_to_num(rewards.mean(2, rewards.middle) / residual, posinf=1.0), 1.0)
            b = np.minimum(np.nan_to_num(np.square(ratio) * per.mean(2, per.middle) / residual, posinf=1.0), 1.0)
        return np.asarray(np.maximum(np.square(a) + np.square(b) * per.kurtosis / rewards.kurtosis, 1.0))

    @cached_property
    def _carrying(self) -> Floats:
        """How many rows carry the variance of the weighted rewards."""
        rows = self.together
        if INVERSE not in rows.columns:
            return np.asarray(carrying_rows(self.excess, self.rewards, self.ends) * self.labeled)
        counts = np.broadcast_to(rows.form(**{INVERSE: 1.0}), rows.mean.shape)
        low, high = (self._counted_twice(end, counts) for end in self.ends)
        carrying = carrying_rows(self.excess, self.rewards, self.ends, (low, high))
        return np.minimum(carrying, np.asarray(rows.n) * _evenness(rows, counts))

    def _counted_twice(self, end: Floats, counts: Floats) -> Floats:
        r"""By how much sampling by the reward makes the weights hu more uneven, of which the rewards' own unevenness is a part, too.

        .. math:: \kappa = \frac{\pi a^2 + (1 - \pi) b^2}{(\pi a + (1 - \pi) b)^2}

        if a share π of the rows has a reward apart from this end, and a and b are the means of h² of those and of the others.
        """
        rows, rewards, end = self.together, self._of_places(self.log.rewards), end * self.per_row
        apart = rows.form("s") + np.asarray(rows.center - end)[:, None] * counts
        first, second = np.asarray(rewards.mean(1, end)), np.asarray(rewards.mean(2, end))
        is_known = second > 0
        share = np.where(is_known, np.minimum(np.square(first) / np.where(is_known, second, 1.0), 1.0), 1.0)
        whole = _mean_and_square(rows, counts)[1]
        of_apart = np.where(is_known, _mean_and_square(rows, apart)[1] / np.where(is_known, second, 1.0), whole)
        rest = np.maximum(whole - share * of_apart, 0.0)  # (1 − π)b
        with np.errstate(divide="ignore", invalid="ignore"):
            square = np.where(share < 1.0 - 1e-9, np.square(rest) / (1.0 - share), 0.0)
            factor = (share * np.square(of_apart) + square) / np.square(share * of_apart + rest)
        return np.where(np.isfinite(factor), np.maximum(factor, 1.0), 1.0)

    @cached_property
    def effective(self) -> Floats | None:
        """How many rows of equal weight those that were sampled are worth, in every place; None if they were not sampled."""
        rows = self.together
        if INVERSE not in rows.columns:
            return None
        weights = np.broadcast_to(rows.form("u", **{INVERSE: 1.0}), rows.mean.shape)
        return np.asarray(rows.n * _evenness(rows, weights))

    @cached_property
    def logged(self) -> tuple[Floats, Floats]:
        """The mean reward of every place, and how many independent rows it is worth."""
        rows, mean = self.together, np.asarray(self.whole.center + self.whole.average("s"))
        worth = np.minimum(self.clusters, self.whole.n * self.labeled)
        if INVERSE in rows.columns:
            counts = np.broadcast_to(rows.form(**{INVERSE: 1.0}), rows.mean.shape)
            worth = np.minimum(worth, np.asarray(rows.n) * _evenness(rows, counts))
        return mean, worth

    @cached_property
    def squares(self) -> Floats:
        """The mean square of the excess in every place; 0 if the two policies agree on every row."""
        return np.asarray(self.whole.covariance("u", "u") + np.square(self.whole.average("u")))

    @cached_property
    def heavy(self) -> Floats:
        """The excess of a row that carries the variance, or the largest there is if too few rows do; in every place."""
        square, fourth = self.excess.mean(2, 0.0), self.excess.mean(4, 0.0)
        is_known = (square > 1e-24) & (self.excess.n / self.excess.kurtosis >= FEW)
        own = [self.log.tails[name, ""] for name in self.contrast if (name, "") in self.log.tails]
        largest = np.full(len(self.log.segments), -math.inf)
        for tails in own:
            largest = np.maximum(largest, [tail.weights[0] if len(tail.weights) else -math.inf for tail in tails])
        places = np.append(largest.max(), largest)[: len(self.places)] / np.where(self.counts > 0, self.counts, 1.0)
        places = np.where(places == -math.inf, 1.0, places)
        most = places if len(own) > 1 else np.maximum(places - 1.0, 0.0)
        with np.errstate(invalid="ignore"):
            return np.where(is_known, np.sqrt(fourth / np.where(is_known, square, 1.0)), most)

    def rewards_around(self, baseline: Floats) -> tuple[Floats, Floats]:
        r"""The usual rewards; where rows were sampled, as near to a baseline as such rows are lighter than others.

        .. math:: \frac{\sum (hwd)^2}{\sum hwd} \Big/ \frac{\sum (hw)^2}{\sum hw}

        with d the distance of a reward from the other end. Sampling may keep every click and few of the others: then no click counts for
        as many rows as they do.
        """
        rows, (low, high) = self.together, (end * self.per_row for end in self.ends)
        if INVERSE not in rows.columns:
            return self.usual_rewards
        all_rows = rows.form("u", **{INVERSE: 1.0})

        def size(end: Floats) -> Floats:
            apart = np.asarray(rows.center - end)[:, None]
            return _size_weighted(rows, rows.form("s", "us") + apart * all_rows) / np.maximum(high - low, 1e-300)

        whole = _size_weighted(rows, np.broadcast_to(all_rows, rows.mean.shape))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = [np.abs(size(end)) / whole for end in (high, low)]
        below, above = (np.where(np.isfinite(ratio) & (ratio > 0), np.minimum(ratio, 1.0), 1.0) for ratio in ratios)
        # rows that count alike are as heavy as without sampling
        are_alike = rows.covariance(INVERSE, INVERSE) <= 1e-12 * np.square(rows.average(INVERSE))
        below, above = (np.where(are_alike, 1.0, factor) for factor in (below, above))
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

    def _of_places(self, parts: tuple[Powers, ...]) -> Powers:
        return Powers.stack([Powers.total(parts), *(parts if self.log.segment_columns else ())])

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


def _scaled(powers: Powers, by: Floats) -> Powers:
    """The powers of the same numbers, divided by one in every place."""
    if (by == 1.0).all():
        return powers
    by = np.where(by > 0, by, 1.0)
    return replace(powers, center=powers.center / by, sums=powers.sums / by[:, None] ** np.array(ORDERS))


def _mean_and_square(rows: Moments, form: Floats) -> tuple[Floats, Floats]:
    """The mean of a linear form of the columns, and of its square."""
    mean = np.asarray((form * rows.mean).sum(axis=-1))
    square = np.einsum("...i,...ij,...j->...", form, rows.scatter, form) / np.maximum(rows.n, 1)
    return mean, np.asarray(square + np.square(mean))


def _size_weighted(rows: Moments, form: Floats) -> Floats:
    """The mean of a linear form of the columns, in which every row counts as much as it has of it."""
    mean, square = _mean_and_square(rows, form)
    return np.divide(square, mean, out=np.zeros(mean.shape), where=mean != 0)


def _evenness(rows: Moments, form: Floats) -> Floats:
    """The share of the rows that would do as much, if each had as much of a linear form of the columns as any other."""
    mean, square = _mean_and_square(rows, form)
    return np.divide(np.square(mean), square, out=np.zeros(mean.shape), where=square > 0)
