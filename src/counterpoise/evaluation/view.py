"""`View`: one contrast of a log, first as a whole, then by segment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from counterpoise.evaluation.result import Segment
from counterpoise.intervals.jackknife import effective_clusters
from counterpoise.moments import Floats, Moments
from counterpoise.moments.effective import carrying_rows, usual_ends, usual_rewards
from counterpoise.moments.log_moments import Contrast, LogMoments
from counterpoise.moments.powers import Powers
from counterpoise.moments.smoothed import UNSMOOTHED, Smoothed
from counterpoise.moments.tails import Tail

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
        """A stack of places."""
        return self.groups.merge(axis=1)

    @cached_property
    def around_zero(self) -> tuple[Moments, Moments]:
        """The groups and the whole with the rewards of every place shifted to a mean of 0."""
        center = self.whole.center + self.whole.average("s")
        return self.groups.shifted(-center[:, None]), self.whole.shifted(-center)

    @cached_property
    def reward_range(self) -> tuple[Floats, Floats]:
        """The lowest and the highest reward of every place."""
        low, high = self.log.reward_min, self.log.reward_max
        parts = len(self.places) - 1
        return np.append(np.min(low), low[:parts]), np.append(np.max(high), high[:parts])

    @property
    def is_clustered(self) -> bool:
        """Whether the groups hold clusters rather than single rows."""
        return self.log.cluster is not None

    @cached_property
    def clusters(self) -> Floats:
        """The effective number of clusters in every place; if no cluster is named, every row is one."""
        rows = np.asarray(self.whole.n, dtype=np.float64)
        return np.minimum(effective_clusters(self.groups.n), rows) if self.is_clustered else rows

    @cached_property
    def excess(self) -> Powers:
        """The powers of the excess, a stack of places."""
        return self._of_places(self.log.excess[self.contrast])

    @cached_property
    def rewards(self) -> Powers:
        """The powers of the rewards, a stack of places."""
        return self._of_places(self.log.rewards)

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """Where the rewards of every place begin and end, as far as they tell."""
        return usual_ends(*self.reward_range)

    @cached_property
    def usual_rewards(self) -> tuple[Floats, Floats]:
        """A low and a high reward that a row not seen yet may well have, in every place."""
        return usual_rewards(self.rewards, self.ends)

    @cached_property
    def carrying(self) -> Floats:
        """How many rows carry the variance, in every place."""
        return np.asarray(carrying_rows(self.excess, self.rewards, self.ends))

    @cached_property
    def heavy(self) -> Floats:
        """The excess of a row that carries the variance; the largest weight there is, where too few rows do to tell; in every place."""
        square, fourth = self.excess.mean(2, 0.0), self.excess.mean(4, 0.0)
        is_known = (square > 1e-24) & (self.excess.n / self.excess.kurtosis >= FEW)
        own = [self.log.tails[name, ""] for name in self.contrast if (name, "") in self.log.tails]
        largest = np.full(len(self.log.segments), -math.inf)
        for tails in own:
            largest = np.maximum(largest, [one.weights[0] if len(one.weights) else -math.inf for one in tails])
        places = np.append(largest.max(), largest)[: len(self.places)]
        places = np.where(places == -math.inf, 1.0, places)
        most = places if len(own) > 1 else np.maximum(places - 1.0, 0.0)
        with np.errstate(invalid="ignore"):
            return np.where(is_known, np.sqrt(fourth / np.where(is_known, square, 1.0)), most)

    @cached_property
    def smoothed(self) -> list[Smoothed]:
        """The smoothed sums of every place, if they were asked for."""
        parts = self.log.smoothed.get(self.contrast, (UNSMOOTHED,) * len(self.log.segments))
        return [sum(parts, UNSMOOTHED), *(parts if self.log.segment_columns else ())]

    def _of_places(self, parts: tuple[Powers, ...]) -> Powers:
        return Powers.stack([Powers.total(parts), *(parts if self.log.segment_columns else ())])

    def tail(self, segment: Segment) -> Tail:
        """The largest weights of a place."""
        return self._whole_tail if segment is None else self.log.tails[self.contrast][self.place(segment) - 1]

    def place(self, segment: Segment) -> int:
        """The index of a segment among the places."""
        return self._known[segment]

    @cached_property
    def _whole_tail(self) -> Tail:
        return Tail.total(self.log.tails.get(self.contrast, ()))

    @cached_property
    def _known(self) -> dict[Segment, int]:
        return {label: k for k, label in enumerate(self.places)}
