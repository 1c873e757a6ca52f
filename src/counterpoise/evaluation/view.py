"""`View`: one contrast of a log, first as a whole, then by segment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from counterpoise.evaluation.result import Segment
from counterpoise.intervals.jackknife import effective_clusters
from counterpoise.moments import Floats, Moments
from counterpoise.moments.log_moments import Contrast, LogMoments
from counterpoise.moments.tails import EMPTY, Tail


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
