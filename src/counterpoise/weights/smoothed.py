"""Weights with a larger divisor than the propensity: a power of it, or a constant added to it; less variance, some bias."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from counterpoise.log.good import Values
from counterpoise.weights.constants import check_constant
from counterpoise.weights.weight import Weight


@dataclass(frozen=True)
class ExponentialSmoothing(Weight):
    r"""The target's probability, divided by a power of the propensity.

    .. math:: \hat w = \pi(a \mid x) / \pi_0(a \mid x)^\alpha

    The larger the power α, the less bias; α = 1 is the importance weight itself.

    >>> ExponentialSmoothing(0.5).weight(0.9, 0.01), ExponentialSmoothing(0.5).excess(0.5, 0.25)
    (9.0, 0.0)

    References
    ----------
    Aouali, Brunel, Rohde & Korba, "Exponential smoothing for off-policy learning", ICML 2023.
    """

    power: float
    unbiased_at = 1.0
    ladder = (0.98, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.25)

    def __post_init__(self) -> None:
        check_constant(self.power, "ExponentialSmoothing takes the power α, a number from 0 to 1", 0.0, 1.0)

    def weight(self, target: Values, propensity: Values) -> Values:
        """π/π₀^α."""
        return target / propensity ** float(self.power)

    def excess(self, target: Values, propensity: Values) -> Values:
        """(π − π₀^α)/π₀^α."""
        divisor = propensity ** float(self.power)
        return (target - divisor) / divisor

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The difference of two such weights, in one division."""
        return (target - other) / propensity ** float(self.power)


@dataclass(frozen=True)
class ImplicitExploration(Weight):
    r"""The target's probability, divided by the propensity plus a constant, as if the log had explored that much more.

    .. math:: \hat w = \frac{\pi(a \mid x)}{\pi_0(a \mid x) + \gamma}

    No weight exceeds 1/γ. The smaller the constant γ, the less bias; γ = 0 is the importance weight itself.

    >>> round(ImplicitExploration(0.1).weight(0.9, 0.01), 3), round(ImplicitExploration(0.25).excess(0.5, 0.25), 3)
    (8.182, 0.0)

    References
    ----------
    Neu, "Explore no more: improved high-probability regret bounds for non-stochastic bandits", NeurIPS 2015; Gabbianelli, Neu & Papini,
    "Importance-weighted offline learning done right", ALT 2024.
    """

    added: float
    unbiased_at = 0.0
    ladder = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)

    def __post_init__(self) -> None:
        check_constant(self.added, "ImplicitExploration takes γ, a number of at least 0", 0.0, inf)

    def weight(self, target: Values, propensity: Values) -> Values:
        """π/(π₀ + γ)."""
        return target / (propensity + float(self.added))

    def excess(self, target: Values, propensity: Values) -> Values:
        """(π − π₀ − γ)/(π₀ + γ)."""
        return (target - propensity - float(self.added)) / (propensity + float(self.added))

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The difference of two such weights, in one division."""
        return (target - other) / (propensity + float(self.added))
