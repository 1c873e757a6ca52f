"""Coefficients of control variates, fitted on the scatter: by least squares, and for a context baseline by ridge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from counterpoise.moments import Floats, Moments
from counterpoise.moments.moments import SQUARE


@dataclass(frozen=True, eq=False)
class Fit:
    """What is left of a response when its control variates are taken from it.

    `rest` is that as a linear form of the moments' columns. `fixed` are the coefficients of the controls that least squares fits alone,
    before the context is looked at, and `context` those of the columns u·φ. `widening` is what the error of the rest takes for having
    been fitted to the same rows.
    """

    rest: Floats
    fixed: Floats
    context: Floats
    widening: Floats


def fit(moments: Moments, fixed: Floats, response: Floats) -> Fit:
    """The response (a linear form of the columns) less its `fixed` controls (rows of a matrix over them), and less the context's columns.

    The fixed ones are fitted by least squares. Of what they leave, the context's columns take their share by ridge on their correlations,
    whose penalty follows from the same sums. Let a direction of the correlations, with eigenvalue Λ, explain z² of the scatter T that the
    response has left. If the context had nothing to say, z² would be ν = κT/n on average, where κ says how few rows carry the weights'
    variance. Coefficients with variance τ² make that ν + Λτ²; so τ² is what all directions explain beyond ν each, over
    the sum of their Λ, and the penalty is ν/τ²: infinite where they explain no more than noise would.
    """
    shape, d = moments.shape, len(moments.columns)
    names = moments.context
    x = np.eye(d)[[moments.columns.index(name) for name in names]]
    both = least_squares(moments, fixed, np.concatenate([response[None], x]))
    left = np.concatenate([response[None], x]) - np.swapaxes(both, -1, -2) @ fixed
    rest, x = left[..., 0, :], left[..., 1:, :]
    if not names:
        return Fit(rest, both[..., 0], np.zeros((*shape, 0)), np.ones(shape))
    cross = x @ moments.scatter @ np.swapaxes(x, -1, -2)
    inverse = _inverse_sizes(moments, x, cross)
    values, turned = np.linalg.eigh(cross * inverse[..., :, None] * inverse[..., None, :])
    kept = values > 1e-10 * len(names)
    values = np.where(kept, values, 1.0)
    right = np.einsum("...ij,...jk,...k->...i", x, moments.scatter, rest) * inverse
    along = np.where(kept, np.einsum("...ji,...j->...i", turned, right), 0.0)
    explained = (np.square(along) / values).sum(axis=-1)
    total = np.einsum("...i,...ij,...j->...", rest, moments.scatter, rest)
    terms = np.einsum("...i,...ij,...j->...", np.abs(rest), np.abs(moments.scatter), np.abs(rest))
    explained = np.where(
        total > 1e-12 * terms, np.minimum(explained, total), 0.0
    )  # of rounding there is nothing to explain
    share = spread(moments, response[moments.columns.index("s")]) / np.maximum(np.asarray(moments.n), 1)
    noise, rank = share * total, kept.sum(axis=-1)
    signal = np.maximum(explained - _expected(rank) * noise, 0.0) / np.maximum((values * kept).sum(axis=-1), 1.0)
    signal, noise = signal[..., None], noise[..., None]
    trusted = np.divide(values * signal, values * signal + noise, out=np.zeros(values.shape), where=kept & (signal > 0))
    coefficients = np.einsum("...ij,...j->...i", turned, trusted * along / values) * inverse
    rest = rest - np.einsum("...i,...ij->...j", coefficients, x)
    return Fit(rest, both[..., 0], coefficients, 1.0 + share * trusted.sum(axis=-1))


def _expected(rank: Floats) -> Floats:
    """How many times the noise of one direction so many directions have to explain before they are believed."""
    return rank + np.sqrt(2.0 * rank)


def spread(moments: Moments, share: float) -> Floats:
    """κ = E[u²v²]/(E[u²]E[v²]), at least 1 and at most n, where a reward counts v times in the response: w = u + 1 times, or u times.

    A row's noise ε adds u·φ·vε to Σu·φ·(response), whose variance is κ times what it would be if all weights were alike.
    """
    first, second = moments.average("u"), moments.average(SQUARE)
    third = moments.covariance("u", SQUARE) + first * second
    fourth = moments.covariance(SQUARE, SQUARE) + np.square(second)
    together = fourth + share * (2.0 * third + second)
    apart = second * (second + share * (2.0 * first + 1.0))
    ratio = np.divide(together, apart, out=np.ones(moments.shape), where=apart > 0)
    return np.asarray(np.clip(ratio, 1.0, np.maximum(np.asarray(moments.n), 1)))


def least_squares(moments: Moments, controls: Floats, responses: Floats) -> Floats:
    """The coefficients of the controls (rows of a matrix over the columns) that leave each response with the least scatter.

    Controls that have no variance, or repeat others, get the smallest coefficients that do the same (a pseudo-inverse of the
    correlations, so the units of the columns do not matter).
    """
    cross = controls @ moments.scatter @ controls.T
    right = controls @ moments.scatter @ responses.T
    inverse = _inverse_sizes(moments, controls, cross)
    correlation = cross * inverse[..., :, None] * inverse[..., None, :]
    solved = np.linalg.pinv(correlation, rcond=1e-10, hermitian=True) @ (right * inverse[..., None])
    return np.asarray(solved * inverse[..., None])


def _inverse_sizes(moments: Moments, controls: Floats, cross: Floats) -> Floats:
    """One over the root of each control's scatter; 0 where that is no more than rounding."""
    square = np.einsum("...ii->...i", cross)
    # what rounding alone can leave of a control that is constant: its columns may be large and cancel
    n = np.maximum(np.asarray(moments.n), 1)[..., None]
    terms = np.einsum("...ij,...j->...i", np.square(controls), np.einsum("...ii->...i", moments.scatter))
    means = np.einsum("...ij,...j->...i", controls, moments.mean)
    rounding = 1e-13 * (terms + n * np.square(means)) + n * 1e-30
    size = np.sqrt(np.where(square > rounding, square, 0.0))
    return np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
