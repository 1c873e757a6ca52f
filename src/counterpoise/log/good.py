"""The rule for a good row, written once, in plain arithmetic that narwhals, NumPy and numba all run as it is.

Every test is a range test, which is false for null and NaN on every engine, so it does not matter how an engine treats either.
"""

from __future__ import annotations

from typing import Any

LARGEST = 1e50  # squares of products of weights and rewards must stay finite


def is_propensity(p: Any) -> Any:
    """Whether this can be a propensity: the logging policy did take the logged action, so its probability is above 0."""
    return (p > 0) & (p <= 1)


def is_probability(t: Any) -> Any:
    """Whether this can be a target's probability: a target may take the logged action never, or always."""
    return (t >= 0) & (t <= 1)


def is_number(x: Any) -> Any:
    """Whether this is a finite number, small enough to be squared."""
    return (x <= LARGEST) & (x >= -LARGEST)


def is_believable(t: Any, p: Any) -> Any:
    """Whether the weight, too, is small enough to be squared."""
    return t <= p * LARGEST
