"""What weights with a constant share: the check of that constant, and the order of several from the least biased on."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from numbers import Real
from typing import Any

from counterpoise.errors import OptionError


def check_constant(constant: Any, what: str, low: float, high: float) -> None:
    """Raise an error that says `what` a weight takes, unless its constant is a finite number in [low, high]."""
    is_number = isinstance(constant, Real) and not isinstance(constant, bool)
    if not is_number or not (isfinite(constant) and low <= constant <= high):
        raise OptionError(f"{what}; found {constant!r}.")


def least_biased_first(constants: Sequence[float], unbiased_at: float) -> tuple[float, ...]:
    """Constants in order of their distance from the one that changes nothing.

    >>> least_biased_first([1, 100, 10], float("inf")), least_biased_first([0.5, 0.01], 0.0)
    ((100.0, 10.0, 1.0), (0.01, 0.5))
    """
    numbers = [float(one) for one in constants]
    return tuple(sorted(numbers, key=lambda one: abs(one - unbiased_at) if isfinite(unbiased_at) else -one))
