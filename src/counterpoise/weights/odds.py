"""Weights for propensities that are wrong in their odds: what sensitivity bounds are made from."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from counterpoise.log.good import Values
from counterpoise.weights.weight import Ratio, Rungs, Weight, check_constant


@dataclass(frozen=True)
class Odds(Weight):
    r"""The importance weight if the odds against every logged action were λ times what the propensity says.

    .. math:: w_\lambda = t + \lambda (w - t), \qquad \frac{1 - p^*}{p^*} = \lambda \, \frac{1 - p}{p}

    λ = 1 is the importance weight itself, and λ = 0 the target's probability, as if the logged action had been certain. An action that
    was certain (p = 1) stays so.

    >>> Odds(2.0).weight(0.5, 0.25), Odds(0.0).weight(0.5, 0.25), Odds(2.0).excess(0.5, 1.0)
    (3.5, 0.5, -0.5)

    References
    ----------
    Tan, "A distributional approach for causal inference using propensity scores", JASA 101 (2006).
    """

    times: float

    def __post_init__(self) -> None:
        check_constant(self.times, "Odds takes λ, a number of at least 0", 0.0, inf)

    def weight(self, target: Values, propensity: Values) -> Values:
        """t(1 + λ(1 − p)/p)."""
        return target * (1.0 + float(self.times) * ((1.0 - propensity) / propensity))

    def excess(self, target: Values, propensity: Values) -> Values:
        """(w − 1) + (λ − 1)(w − t), which keeps the digits of weights near 1."""
        more = float(self.times) - 1.0
        return (target - propensity) / propensity + more * (target * ((1.0 - propensity) / propensity))

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The difference of two such weights, in one division."""
        return self.weight(target - other, propensity)


@dataclass(frozen=True)
class AllOdds(Rungs):
    """Three of these weights side by side; sums of any other follow from theirs, being linear in λ, and sums of squares quadratic.

    >>> AllOdds().rungs
    (Ratio(), Odds(times=0.0), Odds(times=2.0))
    """

    @property
    def rungs(self) -> tuple[Weight, ...]:
        """The weights at λ = 1, 0 and 2."""
        return (Ratio(), Odds(0.0), Odds(2.0))
