"""What the moments of a reward's bins give: the moments of rewards that depend on the bin, and of propensities with wrong odds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from operator import add

import numpy as np
from numpy.typing import NDArray

from counterpoise.moments.log_moments import Contrast, LogMoments
from counterpoise.moments.moments import Floats, Moments
from counterpoise.moments.spread import KEPT, NOTHING, Powers, Tail

# -- Rewards that depend on which bin another reward falls into ----------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """A reward made of another, r: value + slope·(r − at) if r lies in one of the first `bins` bins, and `beyond` otherwise."""

    bins: int
    value: float
    beyond: float
    slope: float = 0.0
    at: float = 0.0

    def of(self, reward: float) -> float:
        """The new reward for one in the first bins."""
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

    def side(*parts: Floats) -> Moments:
        count, total, product = (np.concatenate([np.zeros_like(x[:1]), np.cumsum(x, axis=0)]) for x in parts)
        return Moments.of_sums(count, total, product, center, stack.columns)

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
    plain = stack.mapped(np.diag([float(column == "s") for column in stack.columns]), stack.columns)
    rows = stack.n.sum(axis=1).tolist()
    ones = tuple(Tail(np.ones(min(n, KEPT)), 0) for n in rows)
    excess = tuple(Powers(n, 0.0, np.zeros(4)) for n in rows)
    return replace(
        log,
        moments={**log.moments, contrast: plain},
        tails={**log.tails, contrast: ones},
        excess={**log.excess, contrast: excess},
    )


# -- Moments of a log whose propensities are wrong in their odds, by bins of the reward, from those of three weights ---


@dataclass(frozen=True, eq=False)
class Worst:
    """The number of first bins, those of the lowest rewards, and the factor λ of the odds in them and in the others."""

    bins: int
    first: float
    others: float


@dataclass(frozen=True, eq=False)
class OddsBins:
    r"""One target on a log whose segments are the bins of its reward, in order, with the weights at λ = 1, 0 and 2 as its ladder.

    Rows are z = (u, s, u·s), linear in λ where w = t + λ(w − t). So Σz at any λ follows from two of the ladder's weights, and Σz·zᵀ from
    all three.
    """

    log: LogMoments
    target: str

    def __len__(self) -> int:
        return len(self.log.segments)

    def moments(self, worst: Worst) -> Moments:
        """The moments by group if the odds are wrong by one factor in the first bins, and by another in the others."""
        odds = np.where(np.arange(len(self)) < worst.bins, worst.first, worst.others)
        n, level, slope = self._sums
        constant, linear, quadratic = self._products
        sums = level.sum(axis=0) + np.tensordot(odds, slope, 1)
        products = constant.sum(axis=0) + np.tensordot(odds, linear, 1) + np.tensordot(odds**2, quadratic, 1)
        return Moments.of_sums(n.sum(axis=0), sums, products, self._center, self._columns)

    def extreme(self, gamma: float, *, upper: bool) -> Worst:
        """The odds within [1/Γ, Γ] at which the self-normalized value is largest, or smallest.

        Given the value V, a row counts for more if its reward is above V and its weight larger, or the other way round: a threshold in
        the reward, which is tried at the end of every bin (Zhao, Small & Bhattacharya 2019, section 4.4).
        """
        first, others = (1.0 / gamma, gamma) if upper else (gamma, 1.0 / gamma)
        n, total, below = self._by_threshold
        sums = total + first * below + others * (below[-1] - below)
        u, s, us = (self._columns.index(name) for name in ("u", "s", "us"))
        weight = n + sums[:, u]
        value = np.divide(sums[:, s] + sums[:, us], weight, out=np.zeros(len(weight)), where=weight > 0)
        return Worst(int(np.argmax(value) if upper else np.argmin(value)), first, others)

    @property
    def _columns(self) -> tuple[str, ...]:
        return self.log.ladder[0].moments[self._key].columns

    @property
    def _key(self) -> Contrast:
        return self.target, ""

    @cached_property
    def _center(self) -> float:
        whole = self.log.ladder[0].moments[self._key]
        return float(whole.merge(axis=0).merge(axis=0).center)

    @cached_property
    def _around(self) -> tuple[Moments, Moments, Moments]:
        """The moments at λ = 0, 1 and 2, by bin and group, from one center."""
        at_1, at_0, at_2 = (rung.moments[self._key].recenter(self._center) for rung in self.log.ladder)
        return at_0, at_1, at_2

    @cached_property
    def _sums(self) -> tuple[Floats, Floats, Floats]:
        """The rows, and Σz as level + λ·slope, by bin and group."""
        at_0, at_1, _ = (moments.n[..., None] * moments.mean for moments in self._around)
        return self._around[0].n, at_0, at_1 - at_0

    @cached_property
    def _by_threshold(self) -> tuple[float, Floats, Floats]:
        """The rows; the level of Σz in all bins; and its slope in the first of them, for every number of first bins."""
        n, level, slope = (part.sum(axis=1) for part in self._sums)  # over groups
        return (
            float(n.sum()),
            level.sum(axis=0),
            np.concatenate([np.zeros((1, slope.shape[1])), np.cumsum(slope, axis=0)]),
        )

    @cached_property
    def _products(self) -> tuple[Floats, Floats, Floats]:
        """Σz·zᵀ as constant + λ·linear + λ²·quadratic, by bin and group."""
        at_0, at_1, at_2 = (
            moments.scatter + moments.n[..., None, None] * moments.mean[..., :, None] * moments.mean[..., None, :]
            for moments in self._around
        )
        quadratic = (at_2 - 2.0 * at_1 + at_0) / 2.0
        return at_0, at_1 - at_0 - quadratic, quadratic


# -- Two policies on a log whose propensities are wrong in their odds: how far apart they could be, from sums by bin ---


Mix = tuple[float, float]  # how often the value of the target, and of the other, are counted
OWN_VALUE, DIFFERENCE = (1.0, 0.0), (1.0, -1.0)
STEPS, PRECISION = 200, 1e-9  # at most, a handful being the rule; and of a promised gain, below which it is rounding


@dataclass(frozen=True, eq=False)
class PairBins:
    r"""Sums of the rows of two targets, by bins in which all rows have the same λ.

    If the odds against a logged action are λ times what its propensity p says, the weights of both targets are their probabilities t and
    t' times the same :math:`m = 1 + \lambda (1 - p)/p`. So with y = (t, t·r, t', t'·r), the sums of m·y are linear in λ, and those of
    its products quadratic. `sums` has those of y and of y(1 − p)/p, by bin and group, and `products` those of the products of these
    eight columns, by bin. Rewards are taken around `center`.

    >>> pair = PairBins.of(np.zeros(2, int), np.zeros(2, int), *np.array([[1.0, 0.0], [0.5, 0.5], [0.8, 0.2], [0.3, 0.7]]), (1, 1), 0.0)
    >>> round(pair.value(pair.sums_at(np.ones(1)), DIFFERENCE).item(), 3)
    0.5
    """

    n: Floats  # rows by group
    sums: Floats
    products: Floats
    center: float

    @classmethod
    def of(
        cls,
        bins: NDArray[np.int64], groups: NDArray[np.int64], reward: Floats, propensity: Floats, target: Floats, other: Floats,
        shape: tuple[int, int], center: float,
    ) -> PairBins:  # fmt: skip
        """The sums of some rows, each of which has a bin and a group."""
        r, q = reward - center, (1.0 - propensity) / propensity
        y = [target, target * r, other, other * r]
        columns = [*y, *(q * column for column in y)]
        place, count = bins * shape[1] + groups, shape[0] * shape[1]
        sums: Floats = np.stack([np.bincount(place, column, count) for column in columns], axis=1).astype(np.float64)
        products = np.empty((shape[0], 8, 8))
        for i, a in enumerate(columns):
            for j, b in enumerate(columns[: i + 1]):
                products[:, i, j] = products[:, j, i] = np.bincount(bins, a * b, shape[0])
        return cls(
            np.bincount(groups, minlength=shape[1]).astype(np.float64), sums.reshape(*shape, 8), products, center
        )

    def __add__(self, other: PairBins) -> PairBins:
        sums, products = self.sums + other.sums, self.products + other.products
        return PairBins(self.n + other.n, sums, products, self.center)

    @cached_property
    def _whole(self) -> tuple[Floats, Floats]:
        """Σy and Σy(1 − p)/p by bin."""
        sums = self.sums.sum(axis=1)
        return sums[:, :4], sums[:, 4:]

    def sums_at(self, odds: Floats) -> Floats:
        """Σm·y over all rows, if the bins have these λ."""
        level, slope = self._whole
        return np.asarray(level.sum(axis=0) + odds @ slope)

    def others_at(self, odds: Floats) -> Floats:
        """The same without each of the groups."""
        each = self.sums[..., :4].sum(axis=0) + np.tensordot(odds, self.sums[..., 4:], 1)
        return np.asarray(each.sum(axis=0) - each)

    def value(self, sums: Floats, mix: Mix) -> Floats:
        """Σw·r/Σw of the target, or its difference from the other's."""
        return _height(sums, mix) + (mix[0] + mix[1]) * self.center

    def stderr(self, odds: Floats, mix: Mix) -> float:
        """The error of such a value with these λ, from what every row adds to it."""
        row = _slopes(self.sums_at(odds), mix)
        both = np.concatenate([np.broadcast_to(row, (len(odds), 4)), odds[:, None] * row], axis=1)
        return float(np.sqrt(max(np.einsum("bi,bij,bj->", both, self.products, both), 0.0)))

    def extreme(self, gamma: float, mix: Mix, *, upper: bool) -> Floats:
        r"""The λ within [1/Γ, Γ] of every bin at which a value or a difference is largest, or smallest.

        The difference grows with a row's λ if :math:`t (r - V)/\Sigma w > t' (r - V')/\Sigma w'`, where V and V' are the values
        of the two. Going to the end of [1/Γ, Γ] that this says changes the values, so we repeat until nothing moves, and also
        start from the ends that are best for either policy alone, since a difference of ratios may have several peaks.
        """
        sign = 1.0 if upper else -1.0
        first, second = sign * mix[0], sign * mix[1]
        start = np.ones(len(self.sums))
        starts = [start, self._climb(start, gamma, (first, 0.0)), self._climb(start, gamma, (0.0, second))]
        peaks = [self._climb(start, gamma, (first, second)) for start in starts]
        return max(peaks, key=lambda odds: float(_height(self.sums_at(odds), (first, second))))

    def _climb(self, odds: Floats, gamma: float, mix: Mix) -> Floats:
        """The λ from which no step leads further up.

        In each step the bins that gain most go to their end of [1/Γ, Γ], as many of them as help; or a single one goes as far as it helps.
        """
        slope, (low, high) = self._whole[1], (1.0 / gamma, gamma)
        for _ in range(STEPS):
            sums = self.sums_at(odds)
            uphill = slope @ _slopes(sums, mix)
            toward = np.where(uphill > 0.0, high, low)
            gain = uphill * (toward - odds)
            order = np.argsort(-gain)[: np.count_nonzero(gain > 0.0)]
            if not len(order):
                break
            steps = (toward - odds)[order, None] * slope[order]
            heights, now = _height(sums + np.cumsum(steps, axis=0), mix), _height(sums, mix)
            best = int(np.argmax(heights))
            if heights[best] > now:
                odds = np.copy(odds)
                odds[order[: best + 1]] = toward[order[: best + 1]]
                continue
            share = _furthest(sums, steps[0], mix)
            if not _height(sums + share * steps[0], mix) - now > PRECISION * gain[order[0]]:
                break
            odds = odds + share * np.where(np.arange(len(odds)) == order[0], toward - odds, 0.0)
        return odds


def _furthest(start: Floats, change: Floats, mix: Mix) -> float:
    """The share of a change of the sums that leads furthest up, by looking ever more closely."""
    low, high = 0.0, 1.0
    for _ in range(5):
        shares = np.linspace(low, high, 33)
        best = int(np.argmax(_height(start + shares[:, None] * change, mix)))
        low, high = shares[max(best - 1, 0)], shares[min(best + 1, 32)]
    return float(shares[best])


def _height(sums: Floats, mix: Mix) -> Floats:
    with np.errstate(all="ignore"):
        return np.asarray(mix[0] * sums[..., 1] / sums[..., 0] + mix[1] * sums[..., 3] / sums[..., 2])


def _slopes(sums: Floats, mix: Mix) -> Floats:
    """The derivatives of the same by the four sums."""
    with np.errstate(all="ignore"):
        w, wr, v, vr = sums
        return np.array([-mix[0] * wr / w**2, mix[0] / w, -mix[1] * vr / v**2, mix[1] / v])
