"""The rule for a good row, written once, in plain arithmetic that narwhals, NumPy and numba all run as it is.

Every test is a range test, which is false for null and NaN on every engine, so it does not matter how an engine treats either.
"""

from __future__ import annotations

from typing import Any

Values = Any  # a column as an expression of narwhals or polars, an array of NumPy, or a number: whatever has arithmetic

LARGEST = 1e50  # squares of products of weights and rewards must stay finite


def is_propensity(p: Values) -> Values:
    """Whether this can be a propensity: the logging policy did take the logged action, so its probability is above 0."""
    return (p > 0) & (p <= 1)


def is_probability(t: Values) -> Values:
    """Whether this can be a target's probability: a target may take the logged action never, or always."""
    return (t >= 0) & (t <= 1)


def is_truth(o: Values) -> Values:
    """Whether this says yes or no, as 1 or 0."""
    return (o == 0) | (o == 1)


def is_number(x: Values) -> Values:
    """Whether this is a finite number, small enough to be squared."""
    return (x <= LARGEST) & (x >= -LARGEST)


def is_believable(t: Values, p: Values) -> Values:
    """Whether the weight, too, is small enough to be squared."""
    return t <= p * LARGEST


def is_amount(x: Values) -> Values:
    """Whether this is a finite number from 0 on, small enough to be squared."""
    return (x >= 0) & (x <= LARGEST)
