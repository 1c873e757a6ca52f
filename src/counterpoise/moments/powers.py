"""`Powers`: sums of the first four powers of one column, which tell how few rows carry its variance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.moments import stored
from counterpoise.moments.moments import Floats

ORDERS = (1, 2, 3, 4)


@dataclass(frozen=True, eq=False)
class Powers:
    r"""How many numbers there are, and :math:`\sum_i (x_i - c)^k` for k = 1 to 4 around a center c near them. `+` merges.

    >>> day, night = Powers.of([0.0, 2.0]), Powers.of([4.0])
    >>> (day + night).kurtosis == Powers.of([0.0, 2.0, 4.0]).kurtosis == 1.5
    True
    """

    n: int
    center: float
    sums: Floats

    @classmethod
    def of(cls, values: ArrayLike, center: float | None = None) -> Powers:
        """The powers of numbers in an array."""
        x = np.asarray(values, dtype=np.float64)
        c = center if center is not None else float(x.mean()) if x.size else 0.0
        return cls(x.size, c, np.array([((x - c) ** k).sum() for k in ORDERS]))

    def __add__(self, other: Powers) -> Powers:
        if not isinstance(other, Powers):
            return NotImplemented
        if not self.n or not other.n:
            return self if self.n else other
        large, small = (self, other) if self.n >= other.n else (other, self)
        return Powers(self.n + other.n, large.center, large.sums + small.around(large.center).sums)

    def __radd__(self, other: object) -> Powers:
        return self if other == 0 else NotImplemented  # so that sum() works

    def around(self, center: float) -> Powers:
        """The same numbers seen from another center, by the binomial theorem."""
        shift = self.center - center
        if shift == 0.0:
            return self
        sums = (float(self.n), *self.sums.tolist())
        moved = [sum(math.comb(k, j) * shift ** (k - j) * sums[j] for j in range(k + 1)) for k in ORDERS]
        return Powers(self.n, center, np.array(moved))

    def mean(self, order: int, center: float) -> float:
        """The mean of (x − center) to a power."""
        return float(self.around(center).sums[order - 1]) / max(self.n, 1)

    @property
    def skewness(self) -> float:
        """Mean third power over the standard deviation to the third: 0 where the numbers do not vary.

        >>> round(Powers.of([0.0, 0.0, 0.0, 4.0]).skewness, 4)
        1.1547
        """
        center = self.center + float(self.sums[0]) / max(self.n, 1)
        variance = self.mean(2, center)
        return self.mean(3, center) / variance**1.5 if self._varies(variance, center) else 0.0

    @cached_property
    def kurtosis(self) -> float:
        """Mean fourth power over squared variance: n at most, 1 at least, and 1 where the numbers do not vary."""
        if not self.n:
            return 1.0
        center = self.center + float(self.sums[0]) / self.n
        variance, fourth = self.mean(2, center), self.mean(4, center)
        return min(max(fourth / variance**2, 1.0), float(self.n)) if self._varies(variance, center) else 1.0

    def _varies(self, variance: float, center: float) -> bool:
        """Whether the numbers differ by more than rounding."""
        return variance > (1e-13 * max(abs(center), abs(self.center), 1.0)) ** 2

    def to_plain(self) -> list[Any]:
        """These sums as plain numbers, ready for JSON."""
        return [self.n, self.center, *self.sums.tolist()]

    @classmethod
    def from_plain(cls, raw: Any) -> Powers:
        """What `to_plain` returned; a ValueError says what is wrong with anything else."""
        n, *rest = stored.items(raw, "powers")
        numbers: Sequence[float] = stored.numbers(rest, "powers").tolist()
        if len(numbers) != 1 + len(ORDERS) or numbers[2] < 0 or numbers[4] < 0:
            raise ValueError("the sums of powers are damaged")
        return cls(stored.count(n, "powers"), numbers[0], np.array(numbers[1:]))


NOTHING = Powers(0, 0.0, np.zeros(len(ORDERS)))
