"""The slopes of an estimate: how it follows the means of the moments' columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from counterpoise.estimators.estimate import Estimate
from counterpoise.moments import Floats, Moments

STEP = 1e-4  # standard deviations of a column


def gradient(estimator: Callable[[Moments], Estimate], moments: Moments) -> Floats:
    """∂value/∂mean of every column, by central differences; for a stack of groups, of a mean that moves in all of them.

    A column without variance has the slope 0.

    >>> from counterpoise.estimators.constant import ips
    >>> gradient(ips, Moments.of([0.5, 2.0, 1.0], [1, 0, 3], center=2.0)).round(6).tolist()
    [2.0, 1.0, 1.0]
    """
    count = np.asarray(moments.n)
    n, scatter = np.maximum(count, 1), np.einsum("...ii->...i", moments.scatter)
    step = STEP * np.sqrt(np.maximum(scatter, 0.0) / n[..., None])
    shape = np.shape(estimator(moments).value)
    if count.ndim > len(shape):
        step = np.broadcast_to(step.max(axis=-2, keepdims=True), step.shape)
    slopes = []
    for k in range(len(moments.columns)):
        move = step * (np.arange(len(moments.columns)) == k)
        up, down = (_value(estimator, moments, sign * move) for sign in (1.0, -1.0))
        size = step[..., k] if count.ndim == len(shape) else step[..., 0, k]
        slopes.append(np.divide(up - down, 2 * size, out=np.zeros(shape), where=size > 0))
    return np.stack(slopes, axis=-1)


def _value(estimator: Callable[[Moments], Estimate], moments: Moments, move: Floats) -> Floats:
    moved = Moments(moments.n, moments.mean + move, moments.scatter, moments.center, moments.columns)
    return np.asarray(estimator(moved).value)
