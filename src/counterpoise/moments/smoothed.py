r"""`Smoothed`: sums of log(1 + λwr)/λ for several λ, which bound a value from below however heavy the weights are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.errors import MomentsError
from counterpoise.moments import stored
from counterpoise.moments.moments import Floats

SMALL = 1e-3  # up to here, five terms of the series have more digits than the logarithm of 1 + x


@dataclass(frozen=True, eq=False)
class Smoothed:
    r""":math:`\sum_i \log(1 + \lambda w_i r_i) / \lambda` for each of several λ. `+` merges.

    >>> day, night = Smoothed.of([0.0, 2.0], (0.5, 1.0)), Smoothed.of([4.0], (0.5, 1.0))
    >>> (day + night).sums.tolist() == Smoothed.of([0.0, 2.0, 4.0], (0.5, 1.0)).sums.tolist()
    True
    """

    lambdas: tuple[float, ...]
    sums: Floats

    @classmethod
    def of(cls, weighted: ArrayLike, lambdas: tuple[float, ...]) -> Smoothed:
        """The sums of weighted rewards in an array; one below 0, which no bound is made of, counts as 0."""
        x = np.maximum(np.asarray(weighted, dtype=np.float64), 0.0)
        return cls(lambdas, np.array([np.log1p(one * x).sum() / one for one in lambdas]))

    def __add__(self, other: Smoothed) -> Smoothed:
        if not isinstance(other, Smoothed):
            return NotImplemented
        if not self.lambdas or not other.lambdas:
            return self if self.lambdas else other
        if self.lambdas != other.lambdas:
            what = f"sums that were smoothed differently cannot be added: {self.lambdas} and {other.lambdas}."
            raise MomentsError(what, do="Evaluate both logs the same way.")
        return Smoothed(self.lambdas, self.sums + other.sums)

    def nearest(self, wanted: float) -> tuple[float, float]:
        """The λ nearest to the wanted one, by their ratio, and its sum."""
        k = int(np.argmin(np.abs(np.log(np.array(self.lambdas) / wanted))))
        return self.lambdas[k], float(self.sums[k])

    def to_plain(self) -> list[list[float]]:
        """Pairs of λ and its sum, ready for JSON."""
        return [[one, total] for one, total in zip(self.lambdas, self.sums.tolist(), strict=True)]

    @classmethod
    def from_plain(cls, raw: Any) -> Smoothed:
        """What `to_plain` returned; a ValueError says what is wrong with anything else."""
        pairs = stored.numbers(stored.items(raw, "smoothed sums"), "smoothed sums").reshape(-1, 2)
        if (pairs[:, 0] <= 0).any() or (pairs[:, 1] < 0).any():
            raise ValueError("the smoothed sums are damaged")
        return cls(tuple(pairs[:, 0].tolist()), pairs[:, 1].copy())


UNSMOOTHED = Smoothed((), np.zeros(0))
