"""Rows that say more than a weight and a reward, reduced to those: what estimators, intervals and diagnostics then see is a plain log.

A log whose rows were sampled, or whose rewards are divided by something, has longer rows in its moments. They add up like all others.
Only then does a linear map, whose coefficients come from the means themselves, turn them into the rows z = (u, s, u·s) of `Moments`: to
first order, what remains is the influence of each row on the means, so that every estimator of the family, its baseline and its error
hold as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from counterpoise.moments.columns import INVERSE, PER, RIVAL, ROW, SQUARE, WEIGHTED_PER
from counterpoise.moments.moments import Floats, Moments

FAR = 4.0  # errors, which chance exceeds once in 16,000 logs


@dataclass(frozen=True)
class ShorterRows:
    """A linear map of longer rows to shorter ones, whose coefficients are already chosen: constant + turn·row, around a new center."""

    turn: Floats
    constant: Floats
    center: Floats
    columns: tuple[str, ...]

    def __call__(self, moments: Moments) -> Moments:
        """The moments of the shorter rows."""
        mean = self.constant + (self.turn @ moments.mean[..., None])[..., 0]
        scatter = self.turn @ moments.scatter @ np.swapaxes(self.turn, -1, -2)
        squares = np.einsum("...ii->...i", scatter)
        np.maximum(squares, 0.0, out=squares)  # rounding
        return Moments(moments.n, mean, scatter, np.broadcast_to(self.center, moments.shape), self.columns)


def reduced(moments: Moments, like: Moments | None = None, *, rows: int | None = None) -> Moments:
    """The moments as those of a plain log; of a plain log, they are what they were.

    Parts of a log whose rows are mapped `like` those of the whole add up to it. If it is known how many `rows` there were before
    sampling, the first member of a stack is of all of them.

    >>> plain = Moments.of(weight=[0.5, 1.5], reward=[1, 3])
    >>> reduced(plain) is plain
    True
    """
    for column, made_for in ((INVERSE, _of_sampled), (PER, _of_ratios)):
        if column in moments.columns:
            if like is not None:
                moments = moments.recenter(np.broadcast_to(like.center, moments.shape))
            shorter = made_for(moments if like is None else like)
            sampled, moments, like = moments, shorter(moments), None if like is None else shorter(like)
            if column == INVERSE and rows is not None:
                moments = _with_known_rows(moments, sampled, rows)
    return moments


def counts_of(moments: Moments) -> Floats:
    """How many rows there were before sampling, on average, for each that was kept; 1 where none were left out."""
    return moments.average(INVERSE) if INVERSE in moments.columns else np.ones(moments.shape)


def squared_counts(moments: Moments) -> Floats:
    """The sum of the squares of how many rows each row stands for."""
    if INVERSE not in moments.columns:
        return np.asarray(moments.n, dtype=np.float64)
    place = moments.columns.index(INVERSE)
    return np.asarray(moments.scatter[..., place, place] + moments.n * np.square(moments.mean[..., place]))


def sampling_error(moments: Moments) -> Floats:
    r"""The error of Σ1/k as the number of rows before sampling, if they were kept one by one: :math:`\sqrt{\sum_i h_i (h_i - 1)}`."""
    total = moments.n * counts_of(moments)
    return np.asarray(np.sqrt(np.maximum(squared_counts(moments) - total, 0.0)))


def is_miscounted(total: float, error: float, rows: int) -> bool:
    """Whether sampled rows stand for a total that is further from the number of rows there were than chance allows."""
    return abs(total - rows) > FAR * error + 0.5


def _of_sampled(moments: Moments) -> ShorterRows:
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
    own = [k for k in range(len(moments.columns)) if k != place]
    h = moments.mean[..., place, None]
    h = np.where(h > 0, h, 1.0)
    mean = moments.mean[..., own] / h
    turn = np.zeros((*moments.shape, len(own), len(moments.columns)))
    turn[..., range(len(own)), own] = 1.0
    turn[..., place] = -mean
    constant = mean
    if SQUARE in columns:  # of rows as heavy as sampling made them: (hu/h̄)², around its own mean
        square = columns.index(SQUARE)
        constant = np.where(np.arange(len(columns)) == square, 0.0, mean)
        turn[..., square, place] = 0.0
        turn[..., square, :] /= h
    return ShorterRows(turn / h[..., None], constant, np.asarray(moments.center), columns)


def _with_known_rows(moments: Moments, sampled: Moments, rows: int) -> Moments:
    r"""The moments, the first of which are of a log that had so many `rows` before it was `sampled`.

    Σh/N − 1 is then a control variate with mean 0 and variance Σh(h − 1)/N²:

    .. math:: \bar z \to \bar z - \gamma \left(\frac{\sum_i h_i}{N} - 1\right), \qquad
        \gamma = \frac{\sum_i h_i^2 (z_i - \bar z)}{\sum_i h_i (h_i - 1)}

    References
    ----------
    The regression estimator of Särndal, Swensson & Wretman, Model Assisted Survey Sampling (1992), ch. 6.
    """
    first, h = sampled[0], float(counts_of(sampled)[0])
    error, total = float(sampling_error(first)), float(first.n * h)
    if error**2 <= 1e-9 * squared_counts(first) or is_miscounted(total, error, rows):
        return moments
    turn = _of_sampled(first).turn
    with_counts = turn @ first.scatter[:, sampled.columns.index(INVERSE)]  # Σh²(z − z̄)/h̄
    mean, scatter = moments.mean.copy(), moments.scatter.copy()
    mean[0] -= with_counts * h / error**2 * (total / rows - 1.0)
    scatter[0] -= np.outer(with_counts, with_counts) / error**2
    return Moments(moments.n, mean, scatter, moments.center, moments.columns)


def per_row(moments: Moments) -> Floats:
    """What rewards are divided by, on average; 1 where they are not."""
    average = moments.average(PER) / counts_of(moments) if PER in moments.columns else np.ones(moments.shape)
    return np.asarray(average)


def _of_ratios(moments: Moments) -> ShorterRows:
    r"""Rewards r and what they are divided by, d: the answer of a policy is R = Σwr/Σwd.

    .. math:: r' = R + \frac{r - R d}{D}, \qquad D = \frac{\sum_i w_i d_i}{\sum_i w_i}

    is a reward whose self-normalized mean is R itself, and whose other estimates, with their baselines and errors, are those of R to first
    order: what R and D are off by cancels. What ran has its own, with w = 1. For the difference of two policies, a row is R₁ − R₂ plus
    what it adds to either.

    References
    ----------
    The delta method, as for ratio metrics in Deng, Knoblich & Lu, "Applying the delta method in metric analytics", KDD 2018.
    """
    form, center = moments.form, np.asarray(moments.center)[..., None]

    def ratio(*excess: tuple[str, ...]) -> tuple[Floats, Floats, Floats]:
        """Of a policy whose weight is 1 plus the first of these columns (the others are s and d times it): R, and w·(r − R·d)/D,
        of which the constant comes first; nan where it is divided by nothing."""
        weighted = sum((form(us) + center * form(u) for u, us, _ in excess), form("s") + 0.0 * center)
        divided = sum((form(ud) for _, _, ud in excess), form(PER))
        weight = 1.0 + sum((moments.average(u) for u, _, _ in excess), np.zeros(moments.shape))
        total = (moments.mean * divided).sum(axis=-1)
        total = np.where((total > 0) & (weight > 0), total, np.nan)
        value = (center[..., 0] + (moments.mean * weighted).sum(axis=-1)) / total
        average = total / np.where(weight > 0, weight, 1.0)
        return value, center[..., 0] / average, (weighted - value[..., None] * divided) / average[..., None]

    own = ("u", "us", WEIGHTED_PER)
    ran, ran_constant, ran_row = ratio()
    if set(RIVAL) <= set(moments.columns):
        first, constant, row = ratio(own, RIVAL)
        second, other_constant, other_row = ratio(RIVAL)
        constant, row = first - second + constant - other_constant, row - other_row
    else:
        # r' of the target times its weight, less r' of what ran, and less the center of the latter, R, times u
        first, constant, row = ratio(own)
        row = row - ran_row + (first - ran)[..., None] * form("u")
        constant = first - ran + constant - ran_constant
    turn = np.stack(np.broadcast_arrays(form("u") + 0.0 * row, ran_row, row), axis=-2)
    constants = np.stack(np.broadcast_arrays(np.zeros(moments.shape), ran_constant, constant), axis=-1)
    return ShorterRows(turn, constants, ran, ROW)
