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
    # Two steps, since adding up all of a long row in order is slow: which stretch of actions a point falls into, then which action.
    n, actions = probabilities.shape
    width = max(int((actions / samples) ** 0.5), 1)
    starts, rows = np.arange(0, actions, width), np.arange(n)[:, None]
    ends = np.cumsum(np.add.reduceat(probabilities, starts, axis=1), axis=1, dtype=np.float64)
    points = (uniform(ids)[:, None] + np.arange(samples)) / samples * ends[:, -1:]
    before = np.concatenate([np.zeros((n, 1)), ends], axis=1)
    stretch = _stretches(ends, points)
    rest = points - before[rows, stretch]
    place = starts[stretch][:, :, None] + np.arange(width)
    each = probabilities.reshape(-1).take(np.minimum(place, actions - 1) + rows[:, :, None] * actions)
    if actions % width:
        each[place >= actions] = 0.0
    passed = (np.cumsum(each, axis=2) <= rest[:, :, None]).sum(axis=2)
    over = passed == width  # by rounding: the last action of the stretch that has a probability
    passed[over] = width - 1 - np.argmax(each[over][:, ::-1] > 0, axis=1)
    return np.asarray(starts[stretch] + passed)


def _stretches(ends: Floats, points: Floats) -> NDArray[np.int64]:
    """The place of every point among the ends of its row: a single search in all rows, one behind the other."""
    n, count = ends.shape
    rows, scale = np.arange(n)[:, None], ends[:, -1:]
    found = np.searchsorted((ends / scale + rows).reshape(-1), (points / scale + rows).reshape(-1), side="right")
    return np.asarray(np.clip(found.reshape(points.shape) - rows * count, 0, count - 1))


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
