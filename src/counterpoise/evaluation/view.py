"""`View`: one contrast of a log, first as a whole, then by segment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from counterpoise.evaluation.result import Segment
from counterpoise.intervals.jackknife import effective_clusters
from counterpoise.moments import Floats, Moments
from counterpoise.moments.effective import carrying_rows, usual_ends
from counterpoise.moments.log_moments import Contrast, LogMoments
from counterpoise.moments.powers import NOTHING, Powers
from counterpoise.moments.smoothed import UNSMOOTHED, Smoothed
from counterpoise.moments.tails import EMPTY, Tail

FEW = 10  # rows that carry the weights' variance


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
    def each(self) -> list[Moments]:
        """The moments of every place."""
        return [self.whole[k] for k in range(len(self.places))]

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
    def excess(self) -> list[Powers]:
        """The powers of the excess of every place."""
        return self._of_places(self.log.excess[self.contrast])

    @cached_property
    def rewards(self) -> list[Powers]:
        """The powers of the rewards of every place."""
        return self._of_places(self.log.rewards)

    @cached_property
    def ends(self) -> list[tuple[float, float]]:
        """Where the rewards of every place begin and end, as far as they tell."""
        return [usual_ends(float(low), float(high)) for low, high in zip(*self.reward_range, strict=True)]

    @cached_property
    def carrying(self) -> list[float]:
        """How many rows carry the variance, in every place."""
        return [carrying_rows(*one) for one in zip(self.excess, self.rewards, self.ends, strict=True)]

    def heavy(self, place: int) -> float:
        """The excess of a row that carries the variance; the largest weight there is, where too few rows do to tell."""
        excess = self.excess[place]
        square = excess.mean(2, 0.0)
        if square > 1e-24 and excess.n / excess.kurtosis >= FEW:
            return math.sqrt(excess.mean(4, 0.0) / square)
        names = [name for name in self.contrast if (name, "") in self.log.tails]
        tails = [View(self.log, (name, "")).tail(self.places[place]).weights for name in names]
        largest = max((float(weights[0]) for weights in tails if len(weights)), default=1.0)
        return largest if len(names) > 1 else max(largest - 1.0, 0.0)

    @cached_property
    def smoothed(self) -> list[Smoothed]:
        """The smoothed sums of every place, if they were asked for."""
        parts = self.log.smoothed.get(self.contrast, (UNSMOOTHED,) * len(self.log.segments))
        return [sum(parts, UNSMOOTHED), *(parts if self.log.segment_columns else ())]

    def _of_places(self, parts: tuple[Powers, ...]) -> list[Powers]:
        return [sum(parts, NOTHING), *(parts if self.log.segment_columns else ())]

    def tail(self, segment: Segment) -> Tail:
        """The largest weights of a place."""
        return self._whole_tail if segment is None else self.log.tails[self.contrast][self.place(segment)]

    def place(self, segment: Segment) -> int:
        """The index of a segment among the log's segments."""
        return self._known[segment]

    @cached_property
    def _whole_tail(self) -> Tail:
        return sum(self.log.tails.get(self.contrast, ()), EMPTY)

    @cached_property
    def _known(self) -> dict[Segment, int]:
        return {label: k for k, label in enumerate(self.log.segments)}
