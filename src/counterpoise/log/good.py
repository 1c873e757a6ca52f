"""The rule for a good row, written once: plain arithmetic that narwhals, NumPy and numba all run as it stands.

Every test is a range test, false for null and NaN on every engine, so that no engine's notion of either matters.
"""

from __future__ import annotations

from typing import Any

Values = Any  # a column as an expression of narwhals or polars, an array of NumPy, or a number: whatever has arithmetic

LARGEST = 1e50  # squares of products of weights and rewards must stay finite


def is_propensity(p: Values) -> Values:
    """The logging policy took the logged action, so that its probability is above 0."""
    return (p > 0) & (p <= 1)


def is_probability(t: Values) -> Values:
    """A target may never take the logged action, or always."""
    return (t >= 0) & (t <= 1)


def is_number(x: Values) -> Values:
    """A finite number, small enough to be squared."""
    return (x <= LARGEST) & (x >= -LARGEST)


def is_believable(t: Values, p: Values) -> Values:
    """The weight, too, is small enough to be squared."""
    return t <= p * LARGEST
