"""The user's own weight, from a column of the log."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.log.good import Values
from counterpoise.weights.weight import Weight


@dataclass(frozen=True)
class Own(Weight):
    """The column you name as `weight=` is the weight itself; it may be negative, and nothing is known about its mean.

    >>> Own().excess(-0.25, None)
    -1.25
    """

    may_be_negative = True
    needs_propensity = False
    part = "weight"

    def weight(self, target: Values, propensity: Values) -> Values:
        """The column itself."""
        return target
