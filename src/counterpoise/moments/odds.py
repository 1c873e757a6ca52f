"""Moments of a log whose propensities are wrong in their odds, by bins of the reward, from those of three weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from counterpoise.moments.log_moments import Contrast, LogMoments
from counterpoise.moments.moments import Floats, Moments


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
        level, slope = (part.sum(axis=1) for part in self._sums[1:])  # over groups
        n = self._sums[0].sum()
        total = level.sum(axis=0)
        below = np.concatenate([np.zeros((1, slope.shape[1])), np.cumsum(slope, axis=0)])
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
        one, zero, two = (rung.moments[self._key].recenter(self._center) for rung in self.log.ladder)
        return zero, one, two

    @cached_property
    def _sums(self) -> tuple[Floats, Floats, Floats]:
        """The rows, and Σz as level + λ·slope, by bin and group."""
        zero, one, _ = (each.n[..., None] * each.mean for each in self._around)
        return self._around[0].n, zero, one - zero

    @cached_property
    def _products(self) -> tuple[Floats, Floats, Floats]:
        """Σz·zᵀ as constant + λ·linear + λ²·quadratic, by bin and group."""
        zero, one, two = (
            each.scatter + each.n[..., None, None] * each.mean[..., :, None] * each.mean[..., None, :]
            for each in self._around
        )
        quadratic = (two - 2.0 * one + zero) / 2.0
        return zero, one - zero - quadratic, quadratic
