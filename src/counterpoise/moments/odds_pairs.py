"""Two policies on a log whose propensities are wrong in their odds: how far apart they could be, from sums by bin."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterpoise.moments.moments import Floats

Mix = tuple[float, float]  # how often the value of the target, and of the other, are counted
VALUE, DIFFERENCE = (1.0, 0.0), (1.0, -1.0)
STEPS, PRECISION = 200, 1e-9  # at most; a handful are the rule


@dataclass(frozen=True, eq=False)
class PairBins:
    r"""Sums of the rows of two targets, by bins in which all rows have the same λ.

    If the odds against a logged action are λ times what its propensity p says, the weights of both targets are their probabilities t and
    t' times the same :math:`m = 1 + \lambda (1 - p)/p`. So with y = (t, t·r, t', t'·r), the sums of m·y are linear in λ, and those of
    its products quadratic. `sums` has those of y and of y(1 − p)/p, by bin and group, and `products` those of the products of these
    eight columns, by bin. Rewards are taken around `center`.

    >>> one = PairBins.of(np.zeros(2, int), np.zeros(2, int), *np.array([[1.0, 0.0], [0.5, 0.5], [0.8, 0.2], [0.3, 0.7]]), (1, 1), 0.0)
    >>> round(one.value(one.sums_at(np.ones(1)), DIFFERENCE).item(), 3)
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
        columns = [*y, *(q * one for one in y)]
        place, count = bins * shape[1] + groups, shape[0] * shape[1]
        sums: Floats = np.stack([np.bincount(place, one, count) for one in columns], axis=1).astype(np.float64)
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
        """Σw·r/Σw of the target, or what it is more than that of the other."""
        return _height(sums, mix) + (mix[0] + mix[1]) * self.center

    def stderr(self, odds: Floats, mix: Mix) -> float:
        """The error of such a value with these λ: that of the sum of what every row adds to it."""
        row = _slopes(self.sums_at(odds), mix)
        both = np.concatenate([np.broadcast_to(row, (len(odds), 4)), odds[:, None] * row], axis=1)
        return float(np.sqrt(max(np.einsum("bi,bij,bj->", both, self.products, both), 0.0)))

    def extreme(self, gamma: float, mix: Mix, *, upper: bool) -> Floats:
        r"""The λ within [1/Γ, Γ] of every bin at which a value or a difference is largest, or smallest.

        The difference grows with a row's λ if :math:`t (r - V)/\Sigma w > t' (r - V')/\Sigma w'`, where V and V' are the values of the
        two. Going to the end of [1/Γ, Γ] that this says changes the values, so it is done again until nothing moves; and from the ends
        that are best for either policy alone, too, since a difference of ratios may have several peaks.
        """
        sign = 1.0 if upper else -1.0
        one, two = sign * mix[0], sign * mix[1]
        start = np.ones(len(self.sums))
        starts = [start, self._climb(start, gamma, (one, 0.0)), self._climb(start, gamma, (0.0, two))]
        found = [self._climb(start, gamma, (one, two)) for start in starts]
        return max(found, key=lambda odds: float(_height(self.sums_at(odds), (one, two))))

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
