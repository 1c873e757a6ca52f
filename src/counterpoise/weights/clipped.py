"""The importance weight, cut off at a constant: less variance, some bias."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from sys import float_info

import numpy as np

from counterpoise.log.good import Values
from counterpoise.weights.constants import check_constant
from counterpoise.weights.weight import Weight


@dataclass(frozen=True)
class Clip(Weight):
    r"""The importance weight, at most `most`.

    .. math:: w = \min\{\pi(a \mid x) / \pi_0(a \mid x),\; c\}

    Its mean falls short of 1 by the weight that was cut off, and so does the value of what it stands for: read the estimate as that of
    a policy that takes its rarest actions less often. The test of the mean weight does not apply.

    >>> float(Clip(10).excess(0.9, 0.01)), float(Clip(10).excess(0.75, 0.5))
    (9.0, 0.5)

    References
    ----------
    Ionides, "Truncated importance sampling", Journal of Computational and Graphical Statistics, 2008.
    """

    most: float
    unbiased_at = inf
    ladder = (1000.0, 500.0, 200.0, 100.0, 50.0, 20.0, 10.0, 5.0, 2.0, 1.0)

    def __post_init__(self) -> None:
        what = "Clip takes the largest weight to keep, a positive number"
        check_constant(self.most, what, float_info.min, inf)

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
