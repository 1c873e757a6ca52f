"""Rows that say more than a weight and a reward, reduced to those: what estimators, intervals and diagnostics then see is a plain log.

A log whose rows were sampled has longer rows in its moments. They add up like all others. Only then does a linear map, whose
coefficients come from the means themselves, turn them into the rows z = (u, s, u·s) of `Moments`: to first order, what remains is the
influence of each row on the means, so that every estimator of the family, its baseline and its error hold as they are.
"""

from __future__ import annotations

import numpy as np

from counterpoise.moments.columns import INVERSE
from counterpoise.moments.moments import Floats, Moments


def reduced(moments: Moments) -> Moments:
    """The moments as those of a plain log; of a plain log, they are what they were.

    >>> plain = Moments.of(weight=[0.5, 1.5], reward=[1, 3])
    >>> reduced(plain) is plain
    True
    """
    return _of_sampled(moments) if INVERSE in moments.columns else moments


def counts_of(moments: Moments) -> Floats:
    """How many rows there were before sampling, on average, for each that was kept; 1 where none were left out."""
    return moments.average(INVERSE) if INVERSE in moments.columns else np.ones(moments.shape)


def _of_sampled(moments: Moments) -> Moments:
    r"""Rows kept with probability k, each of which stands for h = 1/k of those there were.

    .. math:: \bar z = \frac{\sum_i h_i z_i}{\sum_i h_i}, \qquad
        \operatorname{Cov}(\bar z) \approx \frac{\sum_i h_i^2 (z_i - \bar z)(z_i - \bar z)^\top}{\left(\sum_i h_i\right)^2}

    The columns of the moments are h·z and h, so that h·(z − z̄)/h̄ is linear in them. Sums use h, products h²: dividing every sum by k
    alike would forget that a row that stands for many is still a single row. k may depend on the reward.

    References
    ----------
    Hájek, "Comment on a paper by D. Basu" (1971); Särndal, Swensson & Wretman, Model Assisted Survey Sampling (1992), ch. 5.
    """
    columns = tuple(name for name in moments.columns if name != INVERSE)
    place = moments.columns.index(INVERSE)
    h = moments.mean[..., place]
    is_there = h > 0
    h = np.where(is_there, h, 1.0)[..., None]
    own = [k for k in range(len(moments.columns)) if k != place]
    mean = np.where(is_there[..., None], moments.mean[..., own] / h, 0.0)
    turn = np.zeros((*moments.shape, len(own), len(moments.columns)))
    turn[..., range(len(own)), own] = 1.0
    turn[..., place] = -mean
    turn /= h[..., None]
    scatter = turn @ moments.scatter @ np.swapaxes(turn, -1, -2)
    return Moments(moments.n, mean, scatter, moments.center, columns)
