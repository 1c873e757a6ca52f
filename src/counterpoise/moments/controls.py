"""Least squares on the scatter of moments: the coefficients of control variates."""

from __future__ import annotations

import numpy as np

from counterpoise.moments.moments import Floats, Moments


def least_squares(moments: Moments, controls: Floats, responses: Floats) -> Floats:
    """The coefficients of the controls (rows of a matrix over the columns) that leave each response with the least scatter.

    Controls that have no variance, or repeat others, get the smallest coefficients that do the same (a pseudo-inverse of the
    correlations, so the units of the columns do not matter).
    """
    cross = controls @ moments.scatter @ np.swapaxes(controls, -1, -2)
    right = controls @ moments.scatter @ np.swapaxes(responses, -1, -2)
    inverse = inverse_sizes(moments, controls, cross)
    correlation = cross * inverse[..., :, None] * inverse[..., None, :]
    solved = np.linalg.pinv(correlation, rcond=1e-10, hermitian=True) @ (right * inverse[..., None])
    return np.asarray(solved * inverse[..., None])


def inverse_sizes(moments: Moments, controls: Floats, cross: Floats) -> Floats:
    """One over the root of each control's scatter; 0 where that is no more than rounding."""
    square = np.einsum("...ii->...i", cross)
    # what rounding alone can leave of a control that is constant: its columns may be large and cancel
    n = np.maximum(np.asarray(moments.n), 1)[..., None]
    terms = np.einsum("...ij,...j->...i", np.square(controls), np.einsum("...ii->...i", moments.scatter))
    means = np.einsum("...ij,...j->...i", controls, moments.mean)
    rounding = 1e-13 * (terms + n * np.square(means)) + n * 1e-30
    size = np.sqrt(np.where(square > rounding, square, 0.0))
    return np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
