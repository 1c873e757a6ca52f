"""The test that weights have a mean of 1, as they must where propensities and target probabilities are right."""

from __future__ import annotations

import math
from dataclasses import dataclass

from counterpoise.moments import Powers

PACE, FEWEST = 5.0, 3.0  # as in Student's interval
ROUNDING = 1e-6  # of probabilities in single precision


def of_mean(mean: float, error: float, carrying: float, clusters: float = math.inf) -> float:
    """How often something whose true mean is 0 has one as far from it: Student's test, where few rows carry the weights, or few clusters.

    >>> round(of_mean(0.1, 0.05, carrying=400), 4), of_mean(0.0, 0.0, carrying=400)
    (0.0455, 1.0)
    """
    from scipy.special import stdtr

    if not (error > 0 and math.isfinite(error)):
        return 1.0
    freedom = max(1.0, min(max(FEWEST, (carrying / PACE) ** 2), clusters - 1.0))
    return float(2 * stdtr(freedom, -abs(mean / error)))


@dataclass(frozen=True)
class MeanWeight:
    r"""A test of E[w] = 1 that allows for weights with a long tail.

    Weights are skewed, so that their mean is more often too small than too large and its error too small with it. Hall's transformation
    takes the skewness γ out of t = ū/s,

    .. math:: t + \gamma \left(\frac{t^2}{3} + \frac16\right) + \frac{\gamma^2 t^3}{27},

    with γ over √n, and Student's tails, with (E/5)² degrees of freedom (at least 3) where E = n/kurtosis rows carry the weights'
    variance, allow for the rest. With clusters the error is the jackknife's, and nothing is known of its skewness.

    Examples
    --------
    >>> fair = Powers.of([-0.5, 0.5] * 100)
    >>> MeanWeight(fair, 0.5 / math.sqrt(200)).p_value
    1.0

    References
    ----------
    Hall, "On the removal of skewness by transformation", Journal of the Royal Statistical Society B 54 (1992).
    """

    excess: Powers
    error: float
    clusters: float = math.inf

    @property
    def p_value(self) -> float:
        """How often weights with a mean of 1 have one as far from it."""
        from scipy.special import stdtr

        mean = self.excess.center + float(self.excess.sums[0]) / max(self.excess.n, 1)
        if abs(mean) <= ROUNDING:  # which is no evidence
            return 1.0
        if self.error == 0.0 or not math.isfinite(self.error):
            return 0.0 if self.error == 0.0 else 1.0
        t = mean / self.error
        freedom = max(FEWEST, (self.excess.n / self.excess.kurtosis / PACE) ** 2)
        if math.isfinite(self.clusters):
            freedom = max(min(freedom, self.clusters - 1.0), 1.0)
        else:
            skew = self.excess.skewness / math.sqrt(self.excess.n)
            t += skew * (t * t / 3 + 1 / 6) + skew * skew * t**3 / 27
        return float(2 * stdtr(freedom, -abs(t)))
