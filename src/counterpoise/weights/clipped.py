"""The importance weight, cut off at a constant: less variance, some bias."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from numbers import Real

import numpy as np

from counterpoise.errors import OptionError
from counterpoise.log.good import Values
from counterpoise.weights.weight import Weight


@dataclass(frozen=True)
class Clip(Weight):
    r"""The importance weight, at most `most`.

    .. math:: w = \min\{\pi(a \mid x) / \pi_0(a \mid x),\; c\}

    Its mean falls short of 1 by the weight that was cut off, and so does the value of what it stands for: read the estimate as that of
    a policy that takes its rarest actions less often. The test of the mean weight does not apply.

    >>> float(Clip(10).excess(0.9, 0.01)), float(Clip(10).excess(0.75, 0.5))
    (9.0, 0.5)
    """

    most: float

    def __post_init__(self) -> None:
        if (
            isinstance(self.most, bool)
            or not isinstance(self.most, Real)
            or not (self.most > 0 and isfinite(self.most))
        ):
            raise OptionError(f"Clip takes the largest weight to keep, a positive number; found {self.most!r}.")

    def weight(self, target: Values, propensity: Values) -> Values:
        """min(w, c)."""
        return _smaller(target / propensity, float(self.most))

    def excess(self, target: Values, propensity: Values) -> Values:
        """min(w, c) − 1."""
        return _smaller((target - propensity) / propensity, self.most - 1.0)

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The difference of two cut-off weights."""
        return self.excess(target, propensity) - self.excess(other, propensity)


def _smaller(u: Values, limit: float) -> Values:
    """The smaller of a column and a number, on any engine or in NumPy."""
    if isinstance(u, float | np.ndarray):
        return np.minimum(u, limit)
    import narwhals as nw

    return nw.when(u > limit).then(nw.lit(limit)).otherwise(u)
