"""Actions drawn from a target, the same ones for a row whenever it is read, whatever action was logged."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.moments import Floats


def drawn(probabilities: NDArray[Any], ids: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
    """So many actions for every row, at equal distances along the row's probabilities from one uniform start.

    Each action is drawn as often on average as its probability says, so that the mean over the draws has the right mean whatever
    the number of them; equal distances leave it with less variance than independent draws.

    >>> drawn(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([1, 2]), 2).tolist()
    [[0, 1], [1, 1]]
    """
    n, actions = probabilities.shape
    ends = np.cumsum(probabilities, axis=1, dtype=np.float64)
    ends /= ends[:, -1:]
    ends += np.arange(n)[:, None]  # one increasing row of numbers, in which a single search finds all
    points = np.arange(n)[:, None] + (uniform(ids)[:, None] + np.arange(samples)) / samples
    found = np.searchsorted(ends.reshape(-1), points.reshape(-1), side="right").reshape(n, samples)
    last = np.arange(n)[:, None] * actions
    return np.asarray(np.clip(found - last, 0, actions - 1))


def uniform(ids: NDArray[np.int64]) -> Floats:
    """A number in [0, 1) for every id, by the finalizer of SplitMix64.

    >>> bool(abs(uniform(np.arange(10_000)).mean() - 0.5) < 0.01)
    True
    """
    with np.errstate(over="ignore"):
        z = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return np.asarray((z >> np.uint64(11)) / 2.0**53)
