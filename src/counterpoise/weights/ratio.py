"""The importance weight, target / propensity."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.log.good import Values
from counterpoise.weights.weight import Weight


@dataclass(frozen=True)
class Ratio(Weight):
    r"""The importance weight, whose mean is 1.

    .. math:: w = \pi(a \mid x) / \pi_0(a \mid x)

    >>> Ratio().excess(0.75, 0.5)
    0.5
    """

    mean_is_one = True

    def weight(self, target: Values, propensity: Values) -> Values:
        """The ratio itself."""
        return target / propensity

    def excess(self, target: Values, propensity: Values) -> Values:
        """(t − p)/p rather than t/p − 1, because it keeps its digits for weights near 1."""
        return (target - propensity) / propensity

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The difference of two weights, in one division."""
        return (target - other) / propensity
