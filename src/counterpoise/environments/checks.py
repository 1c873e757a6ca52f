"""This file holds the checks that the environments share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import OptionError


def check_at_least(name: str, found: int, least: int) -> None:
    """A count that is large enough."""
    if found < least:
        raise OptionError(f"{name} must be at least {least:,}; found {found:,}.")


def check_seed(seed: int) -> None:
    """A legacy generator takes 0 … 2³² − 1."""
    if not 0 <= seed < 2**32:
        raise OptionError(f"seed must lie in 0 … 2³² − 1; found {seed}.")


def check_probabilities(whose: str, found: NDArray[np.float64], shape: tuple[int, int], first: int = 0) -> None:
    """A row of probabilities per row of contexts, of which row `first` is the first."""
    if found.shape != shape:
        raise OptionError(f"{whose} must give {shape[1]} probabilities per row, shape {shape}; found {found.shape}.")
    total = found.sum(axis=1)
    off = np.flatnonzero(~((found >= 0).all(axis=1) & (np.abs(total - 1) < 1e-6)))  # so written, NaN is off too
    if off.size:
        raise OptionError(
            f"the probabilities of {whose} must be at least 0 and sum to 1: {off.size:,} of {len(found):,} rows do "
            f"not; the first is row {first + off[0]}, with a smallest of {found[off[0]].min():.6g} and a sum of "
            f"{total[off[0]]:.6g}."
        )
