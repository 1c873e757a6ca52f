"""What the weights leave of a log: how many rows it is still worth, and where the rewards that count lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoise.moments.moments import Moments


def effective_sample_size(moments: Moments) -> float:
    """(Σw)²/Σw²: how many rows of equal weight the log is worth.

    >>> effective_sample_size(Moments.of(weight=[2.0, 0.0, 2.0, 0.0], reward=[1, 0, 1, 0]))
    2.0
    """
    mean = max(1.0 + float(moments.average("u")), 0.0)
    return moments.n * mean**2 / (mean**2 + float(moments.covariance("u", "u"))) if mean > 0 else 0.0


def at_an_end(moments: Moments, end: Any, width: Any) -> Any:
    """Whether the reward of every row with a weight is at one `end` of a range of this `width`; for a stack, one answer per member."""
    return (width == 0) | (abs(mean_distance(moments, end, np.where(width > 0, width, 1.0))) <= 1e-12)  # rounding


def mean_distance(moments: Moments, end: Any, width: Any) -> Any:
    """The mean of w·(r − end), in units of the rewards' width."""
    apart = moments.center - end  # w·(r − end) = (1 + u)(s + apart) = apart + apart·u + s + u·s
    rest = moments.average("s") / width + moments.average("us") / width
    return apart / width * (1.0 + moments.average("u")) + rest
