"""Rewards that depend on which bin another reward falls into: their moments, from those of the bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import add
from typing import Any

import numpy as np

from counterpoise.moments.log_moments import Contrast, LogMoments
from counterpoise.moments.moments import Floats, Moments
from counterpoise.moments.spread import KEPT, NOTHING, Powers, Tail


@dataclass(frozen=True)
class Cut:
    """A reward made of another, r: value + slope·(r − at) if r lies in one of the first `bins` bins, and `beyond` otherwise."""

    bins: int
    value: float
    beyond: float
    slope: float = 0.0
    at: float = 0.0

    def of(self, reward: Any) -> Any:
        """What it makes of a reward in one of the first bins."""
        return self.value + self.slope * (reward - self.at)


def is_below(bins: int) -> Cut:
    """1 in the first bins, 0 in the others: its mean is the distribution function at their end."""
    return Cut(bins, value=1.0, beyond=0.0)


def shortfall(bins: int, threshold: float, q: float) -> Cut:
    """t − (t − r)₊/q for a threshold t at the end of the first bins; at the q-quantile, its mean is the CVaR.

    Rockafellar & Uryasev, "Optimization of conditional value-at-risk", Journal of Risk 2 (2000).
    """
    return Cut(bins, value=threshold, beyond=threshold, slope=1.0 / q, at=threshold)


@dataclass(frozen=True, eq=False)
class Bins:
    """A log whose segments are the bins of one reward, in order, and the moments of any `Cut` of that reward.

    >>> from counterpoise import evaluate
    >>> rows = {"r": [1.0, 2.0, 3.0], "p": [0.5, 0.5, 0.5], "t": [0.4, 0.5, 0.6]}
    >>> bins = Bins(evaluate(rows, reward="r", propensity="p", target="t", segment="r").moments)
    >>> round(float(bins.reward(is_below(2), "t")["t"].center), 3)
    0.667
    """

    log: LogMoments

    def __len__(self) -> int:
        return len(self.log.segments)

    @property
    def seen(self) -> tuple[float, float]:
        """The smallest and the largest reward."""
        return float(self.log.reward_min.min()), float(self.log.reward_max.max())

    def reward(self, cut: Cut, target: str) -> LogMoments:
        """The moments of one reward and one target, over the whole log."""
        return replace(self.rewards([cut], target), segments=((),), segment_columns=())

    def rewards(self, cuts: Sequence[Cut], target: str) -> LogMoments:
        """The moments of several rewards and one target: each reward as a segment, and all of them over all rows."""
        log, key, count = self.log, (target, ""), len(cuts)
        ends = np.array([self._ends(cut) for cut in cuts]).reshape(-1, 2)
        return replace(
            log,
            moments={key: self._moments(cuts, key)},
            tails={key: (self._tails[key],) * count},
            excess={key: (Powers.total(log.excess[key]),) * count},
            segments=tuple((k,) for k in range(count)),
            reward_min=ends[:, 0],
            reward_max=ends[:, 1],
            rewards=tuple(_powers(cut, self._powers[cut.bins], log.n) for cut in cuts),
            segment_columns=("reward",),
        )

    def _moments(self, cuts: Sequence[Cut], key: Contrast) -> Moments:
        """A stack of rewards × groups: the first bins of each, with a reward of their own, and the others."""
        bins = [cut.bins for cut in cuts]
        first, others = (side[bins] for side in self._sides[key])
        value, beyond, slope, at = (np.array([getattr(cut, name) for cut in cuts])[:, None] for name in _NUMBERS)
        low = _scale(first, slope, value + slope * (first.center - at))
        return low + _scale(others, np.zeros_like(slope), np.broadcast_to(beyond, others.shape))

    @cached_property
    def _sides(self) -> dict[Contrast, tuple[Moments, Moments]]:
        return {contrast: _sides(stack) for contrast, stack in self.log.moments.items()}

    @cached_property
    def _tails(self) -> dict[Contrast, Tail]:
        return {contrast: Tail.total(tails) for contrast, tails in self.log.tails.items()}

    @cached_property
    def _powers(self) -> list[Powers]:
        return list(accumulate(self.log.rewards, add, initial=NOTHING))

    def _ends(self, cut: Cut) -> tuple[float, float]:
        """The smallest and the largest of such rewards."""
        low, high = self.log.reward_min[: cut.bins], self.log.reward_max[: cut.bins]
        ends = [cut.of(low.min()), cut.of(high.max())] if cut.bins else []
        ends += [cut.beyond] if cut.bins < len(self) else []
        return min(ends), max(ends)


_NUMBERS = ("value", "beyond", "slope", "at")


def _sides(stack: Moments) -> tuple[Moments, Moments]:
    """The rows of the first bins and those of the others, for every number of first bins; by group."""
    center = float(stack.merge(axis=0).merge(axis=0).center)
    around = stack.recenter(center)
    n, sums = around.n, around.n[..., None] * around.mean
    products = around.scatter + sums[..., :, None] * around.mean[..., None, :]

    def running(values: Any) -> Any:
        return np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)])

    def side(count: Any, total: Floats, product: Floats) -> Moments:
        return Moments.of_sums(running(count), running(total), running(product), center, stack.columns)

    return side(n, sums, products), side(n[::-1], sums[::-1], products[::-1])[::-1]


def _scale(moments: Moments, slope: Floats, center: Floats) -> Moments:
    """The moments with the rewards' distance from the center multiplied, and with that center put elsewhere."""
    is_reward = np.array([column in ("s", "us") for column in moments.columns])
    factor = np.where(is_reward, slope[..., None], 1.0)
    scatter = moments.scatter * factor[..., :, None] * factor[..., None, :]
    return Moments(moments.n, moments.mean * factor, scatter, center, moments.columns)


def _powers(cut: Cut, first: Powers, n: int) -> Powers:
    scaled = Powers(first.n, cut.of(first.center), first.sums * cut.slope ** np.arange(1, 5))
    return scaled + Powers(n - first.n, cut.beyond, np.zeros(4))


def with_unweighted(log: LogMoments, name: str) -> LogMoments:
    """The same log with one target more, whose weights are all 1: the policy that wrote it."""
    contrast: Contrast = (name, "")
    if contrast in log.moments:
        return log
    stack = next(iter(log.moments.values()))
    kept = np.array([column == "s" for column in stack.columns], dtype=np.float64)
    plain = Moments(stack.n, stack.mean * kept, stack.scatter * kept[:, None] * kept, stack.center, stack.columns)
    rows = stack.n.sum(axis=1).tolist()
    ones = tuple(Tail(np.ones(min(n, KEPT)), 0) for n in rows)
    excess = tuple(Powers(n, 0.0, np.zeros(4)) for n in rows)
    return replace(
        log,
        moments={**log.moments, contrast: plain},
        tails={**log.tails, contrast: ones},
        excess={**log.excess, contrast: excess},
    )
