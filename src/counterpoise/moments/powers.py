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

    n: Any  # int, or an integer array for a stack
    center: Any  # float, or a float array for a stack
    sums: Floats

    @classmethod
    def of(cls, values: ArrayLike, center: float | None = None) -> Powers:
        """The powers of numbers in an array."""
        x = np.asarray(values, dtype=np.float64)
        c = center if center is not None else float(x.mean()) if x.size else 0.0
        return cls(x.size, c, np.array([((x - c) ** k).sum() for k in ORDERS]))

    @classmethod
    def stack(cls, parts: Sequence[Powers]) -> Powers:
        """Several of them as one, whose every field is an array; its properties then have one answer per member.

        >>> Powers.stack([Powers.of([0.0, 2.0]), Powers.of([1.0, 1.0])]).kurtosis.tolist()
        [1.0, 1.0]
        """
        n, centers = np.array([one.n for one in parts]), np.array([one.center for one in parts], dtype=np.float64)
        return cls(n, centers, np.array([one.sums for one in parts]).reshape(-1, len(ORDERS)))

    @classmethod
    def total(cls, parts: Sequence[Powers]) -> Powers:
        """All of them merged at once, around the center of the largest.

        >>> Powers.total([Powers.of([0.0, 2.0]), Powers.of([4.0]), NOTHING]).kurtosis
        1.5
        """
        known = [one for one in parts if one.n]
        if len(known) < 2:
            return known[0] if known else NOTHING
        every = cls.stack(known)
        center = float(every.center[every.n.argmax()])
        return cls(int(every.n.sum()), center, np.array([every._around(k, center).sum() for k in ORDERS]))

    def __getitem__(self, place: int) -> Powers:
        """One member of a stack, with what is known of it already."""
        one = Powers(int(self.n[place]), float(self.center[place]), self.sums[place])
        for name in ("kurtosis", "skewness"):
            if name in self.__dict__:
                one.__dict__[name] = float(self.__dict__[name][place])
        return one

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
        """The same numbers seen from another center."""
        return Powers(self.n, center, np.stack([self._around(k, center) for k in ORDERS], axis=-1))

    def _around(self, order: int, center: Any) -> Any:
        """The sum of one power around another center, by the binomial theorem."""
        shift, total, known = self.center - center, self.n, self.sums[..., order - 1]
        if np.all(shift == 0.0):
            return known
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite sum stays one
            for j in range(1, order + 1):
                total = total * shift + math.comb(order, j) * self.sums[..., j - 1]
        return np.where(shift == 0.0, known, total)[()]

    def mean(self, order: int, center: Any) -> Any:
        """The mean of (x − center) to a power."""
        return self._around(order, center) / np.maximum(self.n, 1)

    @property
    def middle(self) -> Any:
        """The mean."""
        return self.center + self.sums[..., 0] / np.maximum(self.n, 1)

    @cached_property
    def skewness(self) -> Any:
        """Mean third power over the standard deviation to the third: 0 where the numbers do not vary.

        >>> round(Powers.of([0.0, 0.0, 0.0, 4.0]).skewness, 4)
        1.1547
        """
        center = self.middle
        variance = self.mean(2, center)
        varies = self._varies(variance, center)
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.where(varies, self.mean(3, center) / np.where(varies, variance, 1.0) ** 1.5, 0.0)
        return found if found.ndim else float(found)

    @cached_property
    def kurtosis(self) -> Any:
        """Mean fourth power over squared variance: n at most, 1 at least, and 1 where the numbers do not vary."""
        center = self.middle
        variance = self.mean(2, center)
        varies = self._varies(variance, center)
        with np.errstate(over="ignore", invalid="ignore"):
            ratio = self.mean(4, center) / np.square(np.where(varies, variance, 1.0))
        found = np.where(varies, np.minimum(np.maximum(ratio, 1.0), self.n), 1.0)
        return found if found.ndim else float(found)

    def _varies(self, variance: Any, center: Any) -> Any:
        """Whether the numbers differ by more than rounding."""
        scale = np.maximum(np.maximum(np.abs(center), np.abs(self.center)), 1.0)
        return variance > np.square(1e-13 * scale)

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
