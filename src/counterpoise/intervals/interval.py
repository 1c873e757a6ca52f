"""`Interval`: two ends, the level they hold at, and how they were made."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from statistics import NormalDist

from counterpoise.errors import Argument, OptionError


@dataclass(frozen=True)
class Interval:
    """A confidence interval, and how it was made."""

    lower: float
    upper: float
    level: float
    method: str
    note: str = ""

    def __iter__(self) -> Iterator[float]:
        """Both ends, for `lower, upper = interval`."""
        return iter((self.lower, self.upper))

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    @property
    def width(self) -> float:
        """The distance between the ends; infinite if the log says nothing."""
        return self.upper - self.lower


def check_level(level: float) -> None:
    """Check that a confidence level lies strictly between 0 and 1, and not so near 1 that its quantile is infinite."""
    if not (isinstance(level, Real) and level > 0.0 and (1.0 + level) / 2.0 < 1.0):
        raise OptionError(
            [Argument("level", level), " does not lie strictly between 0 and 1."],
            do=["For a 95 % interval, pass ", Argument("level", 0.95), "."],
        )


def normal_quantile(level: float) -> float:
    """How many standard errors to each side it takes to hold a share `level` of the normal distribution.

    >>> round(normal_quantile(0.95), 2)
    1.96
    """
    check_level(level)
    return NormalDist().inv_cdf((1 + level) / 2)


def symmetric(value: float, half: float, level: float, method: str) -> Interval:
    """value ± half, or the whole line if either is unknown."""
    if math.isnan(value) or not math.isfinite(half):
        return Interval(-math.inf, math.inf, level, method)
    return Interval(value - half, value + half, level, method)
