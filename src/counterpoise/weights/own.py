"""The user's own weight, from a column of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Own:
    """The column you name as `weight=` is the weight itself; it may be negative, and nothing is known about its mean.

    >>> Own().excess(-0.25, None)
    -1.25
    """

    mean_is_one = False
    may_be_negative = True
    needs_propensity = False
    part = "weight"

    def weight(self, target: Any, propensity: Any) -> Any:
        """The column itself."""
        return target

    def excess(self, target: Any, propensity: Any) -> Any:
        """w − 1."""
        return target - 1.0

    def difference(self, target: Any, other: Any, propensity: Any) -> Any:
        """The difference of two such weights."""
        return target - other
