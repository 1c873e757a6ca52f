"""The importance weight, averaged harmonically with 1: less variance, some bias."""

from __future__ import annotations

from dataclasses import dataclass
from math import nextafter

from counterpoise.log.good import Values
from counterpoise.weights.constants import check_constant
from counterpoise.weights.weight import Weight


@dataclass(frozen=True)
class Harmonic(Weight):
    r"""The λ-harmonic importance weight, whose estimates concentrate like those of bounded (sub-Gaussian) rows.

    .. math:: \hat w = \frac{w}{1 - \lambda + \lambda w}

    The weighted harmonic mean of w and 1; none exceeds 1/λ. The smaller the constant λ, the less bias; λ = 0 is the importance weight
    itself, and λ = 1 (which is not allowed, as 0/0 would be the weight of an action that the target never takes) would be the mean
    logged reward.

    >>> round(Harmonic(0.1).weight(0.9, 0.01), 3), Harmonic(0.1).excess(0.5, 0.5)
    (9.091, 0.0)

    References
    ----------
    Metelli, Russo & Restelli, "Subgaussian and differentiable importance sampling for off-policy evaluation and learning", NeurIPS 2021
    (their s = −1).
    """

    constant: float
    unbiased_at = 0.0
    ladder = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9)

    def __post_init__(self) -> None:
        check_constant(self.constant, "Harmonic takes λ, a number from 0 to less than 1", 0.0, nextafter(1.0, 0.0))

    def weight(self, target: Values, propensity: Values) -> Values:
        """w/(1 − λ + λw), as one division."""
        return target / self._mean(target, propensity)

    def excess(self, target: Values, propensity: Values) -> Values:
        """ŵ − 1 = (1 − λ)(t − p)/((1 − λ)p + λt), which keeps its digits for weights near 1."""
        return (1.0 - float(self.constant)) * (target - propensity) / self._mean(target, propensity)

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The difference of two such weights."""
        return self.excess(target, propensity) - self.excess(other, propensity)

    def _mean(self, target: Values, propensity: Values) -> Values:
        """(1 − λ)p + λt: the probabilities that the propensity gives way to."""
        return (1.0 - float(self.constant)) * propensity + float(self.constant) * target
