"""The importance weight, shrunk toward 0 the more the larger it is: less variance, some bias."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from sys import float_info

from counterpoise.log.good import Values
from counterpoise.weights.constants import check_constant
from counterpoise.weights.weight import Weight


@dataclass(frozen=True)
class Shrink(Weight):
    r"""Optimistic shrinkage of the importance weight.

    .. math:: \hat w = \frac{\lambda w}{w^2 + \lambda}

    Weights far below √λ stay as they are, none exceeds √λ/2, and those far above √λ fall back to 0. The larger the constant λ, the less
    bias; λ = ∞ is the importance weight itself.

    >>> Shrink(100).weight(0.9, 0.09), Shrink(100).excess(0.5, 0.5)  # w = 10 = √λ, and w = 1
    (5.0, -0.009900990099009901)

    References
    ----------
    Su, Dimakopoulou, Krishnamurthy & Dudík, "Doubly robust off-policy evaluation with shrinkage", ICML 2020.
    """

    constant: float
    unbiased_at = inf
    ladder = (1e6, 1e5, 1e4, 3e3, 1e3, 300.0, 100.0, 30.0, 10.0, 3.0)

    def __post_init__(self) -> None:
        check_constant(self.constant, "Shrink takes λ, a positive number", float_info.min, inf)

    def weight(self, target: Values, propensity: Values) -> Values:
        """λw/(w² + λ)."""
        w, constant = target / propensity, float(self.constant)
        return constant * w / (w * w + constant)

    def excess(self, target: Values, propensity: Values) -> Values:
        """λw/(w² + λ) − 1 = (λ(w − 1) − w²)/(w² + λ)."""
        w, constant = target / propensity, float(self.constant)
        return (constant * ((target - propensity) / propensity) - w * w) / (w * w + constant)
