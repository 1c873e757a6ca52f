"""The rule for a good row, written once: plain arithmetic that narwhals, NumPy and numba all run as it stands.

Every test is a range test, false for null and NaN on every engine, so that no engine's notion of either matters.
"""

from __future__ import annotations

from typing import Any

LARGEST = 1e50  # squares of products of weights and rewards must stay finite


def is_propensity(p: Any) -> Any:
    """The logging policy took the logged action, so that its probability is above 0."""
    return (p > 0) & (p <= 1)


def is_probability(t: Any) -> Any:
    """A target may never take the logged action, or always."""
    return (t >= 0) & (t <= 1)


def is_number(x: Any) -> Any:
    """A finite number, small enough to be squared."""
    return (x <= LARGEST) & (x >= -LARGEST)


def is_believable(t: Any, p: Any) -> Any:
    """The weight, too, is small enough to be squared."""
    return t <= p * LARGEST
