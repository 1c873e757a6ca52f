"""`Curve`: a distribution function on bins, made monotone, with its intervals; and how to read quantiles off it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from counterpoise.intervals import Interval
from counterpoise.moments import Floats


@dataclass(frozen=True, eq=False)
class Curve:
    r"""The distribution function F(t) of the rewards under one policy: its estimate and interval at the end of every bin.

    `value`, `lower` and `upper` have one entry more than there are bins: the first is F below the lowest reward. `lowest` and `highest`
    are the rewards at either end of every bin; where they are equal, the bin is a step.

    Estimates at neighboring thresholds need not be in order, so that all three are sorted, which brings them no further from a monotone
    truth (Chernozhukov, Fernández-Val & Galichon, Biometrika 96, 2009), and kept within 0 and 1.
    """

    value: Floats
    lower: Floats
    upper: Floats
    lowest: Floats
    highest: Floats

    @classmethod
    def of(cls, value: Floats, lower: Floats, upper: Floats, lowest: Floats, highest: Floats) -> Curve:
        """The curve that these estimates make, once they are in order."""
        value, lower, upper = (np.clip(np.sort(each), 0.0, 1.0) for each in (value, lower, upper))
        return cls(value, lower, upper, lowest, highest)

    def bins_below(self, q: float) -> int:
        """How many bins lie wholly below the q-quantile."""
        return self._first(self.value, q)

    def quantile(self, q: float) -> float:
        """The smallest reward t with F(t) ≥ q; within a bin of several rewards, F is taken to rise evenly."""
        return self._reaches(self.value, q)

    def interval(self, q: float, ends: tuple[float, float]) -> tuple[float, float]:
        """Where the quantile lies, given where rewards themselves must lie: the ends of all t at which F(t) may be q.

        Woodruff, "Confidence intervals for medians and other position measures", JASA 47 (1952). The quantile is at least the point
        at which the upper ends of F reach q and at most the one at which the lower ends do, for discrete rewards, too.
        """
        low = self._reaches(self.upper, q) if self.upper[0] < q else ends[0]
        high = self._reaches(self.lower, q) if self.lower[-1] >= q else ends[1]
        return low, high

    def share(self, k: int) -> float:
        """The share of the k-th bin."""
        return float(self.value[k + 1] - self.value[k])

    def _first(self, curve: Floats, q: float) -> int:
        return min(int(np.searchsorted(curve[1:], q, side="left")), len(self.highest) - 1)

    def _reaches(self, curve: Floats, q: float) -> float:
        k = self._first(curve, q)
        low, high, before, after = self.lowest[k], self.highest[k], curve[k], curve[k + 1]
        rise = after - before
        if low == high or not rise > 0:
            return float(high)
        return float(low + (high - low) * min(max((q - before) / rise, 0.0), 1.0))


def error_of(interval: Interval) -> float:
    """Half the width of an interval in units of the normal's: what Woodruff's interval says about the standard error."""
    from statistics import NormalDist

    width = interval.upper - interval.lower
    return width / (2 * NormalDist().inv_cdf((1 + interval.level) / 2)) if math.isfinite(width) else math.inf
