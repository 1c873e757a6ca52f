"""The importance weight, target / propensity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ratio:
    r"""The importance weight, whose mean is 1.

    .. math:: w = \pi(a \mid x) / \pi_0(a \mid x)

    >>> Ratio().excess(0.75, 0.5)
    0.5
    """

    mean_is_one = True
    may_be_negative = False
    needs_propensity = True
    part = "target"

    def weight(self, target: Any, propensity: Any) -> Any:
        """The ratio itself."""
        return target / propensity

    def excess(self, target: Any, propensity: Any) -> Any:
        """(t − p)/p rather than t/p − 1, because it keeps its digits for weights near 1."""
        return (target - propensity) / propensity

    def difference(self, target: Any, other: Any, propensity: Any) -> Any:
        """The difference of two weights, in one division."""
        return (target - other) / propensity
