"""Scores: what is still open if rewards never vary, and the rows therefore show no error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

from counterpoise.intervals.interval import normal_quantile


class Score(Protocol):
    """How far the mean of rewards between 0 and 1 may lie from what the rows show."""

    words: ClassVar[str]

    def ends(self, share: float, n: float, level: float) -> tuple[float, float]:
        """The lowest and the highest mean that n rewards with the mean `share` leave open."""

    def reach(self, stderr: float, n: int, level: float) -> float:
        """How far off n rows may be if their standard error is known rather than estimated."""


@dataclass(frozen=True)
class Wilson:
    """Wilson's score, for one look at the log."""

    words: ClassVar[str] = "Wilson's score"

    def ends(self, share: float, n: float, level: float) -> tuple[float, float]:
        """See `wilson`."""
        return wilson(share, n, level)

    def reach(self, stderr: float, n: int, level: float) -> float:
        """The reach of the normal interval."""
        return normal_quantile(level) * stderr


def wilson(share: float, n: float, level: float = 0.95) -> tuple[float, float]:
    r"""Wilson's score interval of a mean of n rewards between 0 and 1: all p with :math:`|\hat p - p| \le z \sqrt{p (1 - p)/n}`.

    It has a width even if all rewards are the same: no click in n rows leaves rates up to z²/(n + z²) open. It also holds for fractions,
    whose variance is at most that of clicks with the same mean.

    Examples
    --------
    >>> [round(end, 5) for end in wilson(0.0, 1000)]
    [0.0, 0.00383]

    References
    ----------
    Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    z = normal_quantile(level)
    n = max(n, 1e-300)
    middle = (share * n + z * z / 2) / (n + z * z)
    half = z * math.sqrt(share * (1 - share) * n + z * z / 4) / (n + z * z)
    return max(min(middle - half, share), 0.0), min(max(middle + half, share), 1.0)
