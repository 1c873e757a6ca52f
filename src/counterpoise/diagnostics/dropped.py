"""The test that dropped rows are like the rest, by their rewards."""

from __future__ import annotations

import math
from dataclasses import dataclass

from counterpoise.moments import Powers
from counterpoise.moments.powers import NOTHING


@dataclass(frozen=True)
class Dropped:
    r"""The good rewards of rows that were dropped for something else, next to the rewards of the rows that were kept.

    If bad rows came up at random, the mean of m dropped rewards would be that of all n + m, up to an error of

    .. math:: \sigma \sqrt{\frac1m - \frac1{n + m}}

    with a skewness of about γ/√m. Pearson's curve of type III, a gamma distribution moved to that mean, error and skewness, has the tails:
    those of the normal distribution where rows are many, and nearly those of counts where few of them are clicks.

    Examples
    --------
    Three in a hundred rows are dropped, and most clicks with them:

    >>> found = Dropped(left_out=Powers.of([1.0] * 20 + [0.0] * 10), kept=Powers.of([1.0] * 13 + [0.0] * 957))
    >>> round(found.shift, 3), found.p_value < 1e-6
    (0.02, True)

    References
    ----------
    Pearson, "Contributions to the mathematical theory of evolution II: skew variation in homogeneous material", Philosophical
    Transactions of the Royal Society A 186 (1895).
    """

    left_out: Powers = NOTHING
    kept: Powers = NOTHING

    @property
    def gap(self) -> float:
        """How much higher the mean reward of the dropped rows is."""
        return _mean(self.left_out) - _mean(self.kept) if self.left_out.n and self.kept.n else 0.0

    @property
    def shift(self) -> float:
        """By how much the mean reward would be higher with the dropped rows: their share times the gap."""
        return float(self.left_out.n / max(self.left_out.n + self.kept.n, 1) * self.gap)

    @property
    def p_value(self) -> float:
        """How often rows dropped at random are as unlike the others."""
        from scipy.special import gammainc, gammaincc, ndtr

        m, n = self.left_out.n, self.kept.n
        if not m or not n:
            return 1.0
        both = self.left_out + self.kept
        variance = both.mean(2, _mean(both))
        if not variance > 0:
            return 1.0
        z = (_mean(self.left_out) - _mean(both)) / math.sqrt(variance * (1 / m - 1 / (n + m)))
        skew = both.skewness / math.sqrt(m)
        if skew < 0:
            z, skew = -z, -skew
        if skew < 1e-3:  # the gamma distribution's parameter would be too large to compute with
            return float(2 * ndtr(-abs(z)))
        shape = 4 / skew**2
        at = max(shape + z * math.sqrt(shape), 0.0)
        return min(2 * float(min(gammainc(shape, at), gammaincc(shape, at))), 1.0)


def _mean(powers: Powers) -> float:
    return float(powers.middle)
