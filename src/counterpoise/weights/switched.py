"""The importance weight where it is small, and none where it is large: there a reward model speaks alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from sys import float_info

import numpy as np

from counterpoise.log.good import Values
from counterpoise.weights.constants import check_constant
from counterpoise.weights.weight import Weight


@dataclass(frozen=True)
class Switch(Weight):
    r"""The importance weight up to `most`, and 0 above it.

    .. math:: \hat w = w \cdot 1\{w \le \tau\}

    With a reward model, `dr` is then SWITCH-DR: rows with larger weights do not correct the model, so that the error is bounded and the
    model's bias on such rows stays. Without a model, rows with larger weights are simply lost: prefer `Clip` there.

    >>> Switch(10).weight(0.9, 0.01), Switch(10).excess(0.75, 0.5)
    (0.0, 0.5)

    References
    ----------
    Wang, Agarwal & Dudík, "Optimal and adaptive off-policy evaluation in contextual bandits", ICML 2017.
    """

    most: float
    unbiased_at = inf
    ladder = (1000.0, 500.0, 200.0, 100.0, 50.0, 20.0, 10.0, 5.0, 2.0, 1.0)

    def __post_init__(self) -> None:
        check_constant(self.most, "Switch takes the largest weight to keep, a positive number", float_info.min, inf)

    def weight(self, target: Values, propensity: Values) -> Values:
        """w, or 0."""
        return _unless(target / propensity, float(self.most), 0.0)

    def excess(self, target: Values, propensity: Values) -> Values:
        """w − 1, or −1."""
        return _unless((target - propensity) / propensity, self.most - 1.0, -1.0)


def _unless(values: Values, most: float, other: float) -> Values:
    """The values, with another one in the place of those that are too large, on any engine or in NumPy."""
    if isinstance(values, float):
        return values if values <= most else other
    if isinstance(values, np.ndarray):
        return np.where(values > most, other, values)
    import narwhals as nw

    return nw.when(values > most).then(nw.lit(other)).otherwise(values)
