"""The checks that all environments share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import Argument, OptionError


def check_at_least(name: str, found: int, least: int) -> None:
    """Check that an argument is large enough."""
    if found < least:
        raise OptionError([Argument(name, found), f" is too small; it must be at least {least:,}."])


def check_seed(seed: int) -> None:
    """Check that NumPy's legacy generator accepts this seed."""
    if not 0 <= seed < 2**32:
        raise OptionError([Argument("seed", seed), " is out of range; a seed is a whole number from 0 to 2³² − 1."])


def check_probabilities(whose: str, found: NDArray[np.float64], shape: tuple[int, int], first: int = 0) -> None:
    """Check that every row of contexts got a row of probabilities; the first of them is row `first` of the log."""
    if found.shape != shape:
        raise OptionError(
            f"{whose} must return {shape[1]} probabilities per row, an array of shape {shape}; found {found.shape}."
        )
    total = found.sum(axis=1)
    off = np.flatnonzero(~((found >= 0).all(axis=1) & (np.abs(total - 1) < 1e-6)))  # written like this, NaN is off too
    if off.size:
        raise OptionError(
            f"the probabilities of {whose} must be at least 0 and sum to 1, and in {off.size:,} of {len(found):,} rows they "
            f"do not; the first is row {first + off[0]}, where the smallest is {found[off[0]].min():.6g} and the sum is "
            f"{total[off[0]]:.6g}."
        )
