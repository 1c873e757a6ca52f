"""The five estimators and their variances as the paper's released code computes them.

They are our yardstick, floors, zeros and all, and we compare them with the published numbers digit by digit. The library's
own estimators agree with them wherever the value is identified, and say so where it is not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PUBLISHED = ("DM", "DR", "IPS", "SNIPS", "beta-IPS")


def published(
    weight: Floats, reward: Floats, model_reward: Floats, model_value: Floats
) -> dict[str, tuple[float, float]]:
    """The value and variance of every published estimator.

    If a log has no overlap (all weights are 0), IPS, SNIPS and beta-IPS have the value 0 and the variance 0, as published.

    >>> published(np.zeros(2), np.ones(2), np.ones(2), np.ones(2))["SNIPS"]
    (0.0, 0.0)
    """
    w, r = weight, reward
    extra = w * w - w
    beta = float(np.mean(r * extra)) / max(float(np.mean(extra)), 1e-11)
    return {
        "DM": _mean(model_value),
        "DR": _mean(model_value + w * (r - model_reward)),
        "IPS": _mean(w * r),
        "SNIPS": _self_normalized(w, r),
        "beta-IPS": _mean(beta + w * (r - beta)),
    }


def _mean(terms: Floats) -> tuple[float, float]:
    return float(terms.mean()), float(terms.var()) / terms.size


def _self_normalized(w: Floats, r: Floats) -> tuple[float, float]:
    value = float((w * r).mean()) / max(float(w.mean()), 1e-10)
    return value, float(np.square(w * (r - value)).sum()) / max(float(w.sum()), 1e-10) ** 2
