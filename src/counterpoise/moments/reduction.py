"""Rows that say more than a weight and a reward, reduced to those: what estimators, intervals and diagnostics then see is a plain log.

A log whose rows were sampled, whose rewards are divided by something, or are known for some rows only, has longer rows in its moments. They
add up like all others. Only then does a linear map, whose coefficients come from the means (and the scatter) themselves, turn them into the
rows z = (u, s, u·s) of `Moments`: to first order, what remains is the influence of each row on the means, so that every estimator of the
family, its baseline and its error hold as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterpoise.moments.columns import COMPARED, INVERSE, LABEL, LABELED, PER, PROXY, RIVAL, ROW, SQUARE, WEIGHTED_PER
from counterpoise.moments.moments import Floats, Moments, least_squares

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
    for column, made_for in ((INVERSE, _of_sampled), (PER, _of_ratios), (LABEL, _of_labeled)):
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


# -- A proxy for every row, and the reward for some ---------------------------------------------------------------------

FEW_LABELS = 50  # effective, below which the coefficient of the proxy is not fitted


def effective_labels(moments: Moments) -> tuple[Floats, Floats]:
    """How many labels of equal weight the labels are worth: as they are, and with the weights of a target."""
    o = moments.form(LABEL)
    forms = np.stack([o, o + moments.form(moments.columns[moments.columns.index(LABEL) + 1])])
    mean = np.einsum("ki,...i->k...", forms, moments.mean)
    square = np.einsum("ki,...ij,kj->k...", forms, moments.scatter, forms) / np.maximum(moments.n, 1) + np.square(mean)
    first, second = moments.n * np.divide(np.square(mean), square, out=np.zeros(mean.shape), where=square > 0)
    return first, second


def labels_alone(moments: Moments) -> Moments:
    """The moments of the labeled rows, whose weights are wO/ō, without what the proxy says; where all rewards are known, of all rows."""
    if LABEL not in moments.columns:
        return reduced(moments)
    place, per = moments.columns.index(LABEL), _per_label(moments)[..., None]
    _, s, us = (moments.form(name) for name in ROW)
    rows = np.stack(
        [per * (moments.form(LABEL) + moments.form(moments.columns[place + 1])), per * s, per * us], axis=-2
    )
    mean = _mean(moments, rows)
    mean[..., 0] -= 1.0
    return Moments(moments.n, mean, rows @ moments.scatter @ np.swapaxes(rows, -1, -2), moments.center, ROW)


def label_gap(moments: Moments, column: str) -> tuple[Floats, Floats, Floats]:
    """The mean of the proxy or the excess u among labeled rows (counted by 1/e) and among all, and the error of their difference."""
    product = "label×proxy" if column == PROXY else moments.columns[moments.columns.index(LABEL) + 1]
    per = _per_label(moments)
    labeled = moments.average(product) * per
    form = per[..., None] * (moments.form(product) - labeled[..., None] * moments.form(LABEL)) - moments.form(column)
    square = np.einsum("...i,...ij,...j->...", form, moments.scatter, form)
    return labeled, moments.average(column), np.sqrt(np.maximum(square, 0.0)) / np.maximum(moments.n, 1)


def is_at_one_rate(moments: Moments) -> NDArray[np.bool_]:
    """Whether every label counts alike: no probability of being labeled was named, or it is 1."""
    mean = moments.average(LABEL)
    return np.asarray(np.abs(moments.covariance(LABEL, LABEL) + np.square(mean) - mean) <= 1e-9 * mean)


def _per_label(moments: Moments) -> Floats:
    """How many rows there are for each that is labeled."""
    label = moments.average(LABEL)
    return 1.0 / np.where(label > 0, label, 1.0)


def _of_labeled(moments: Moments) -> ShorterRows:
    r"""Rows whose reward r is known with probability e, where O = 1, and which all have a proxy g.

    .. math:: \hat V = \frac1n \sum_i \left[ \frac{O_i}{\bar o} w_i r_i - \gamma w_i K_i g_i - \kappa w_i K_i - \lambda K_i \right],
        \qquad K_i = \frac{O_i}{\bar o} - 1

    with ō the mean of O (of O/e, where e is known row by row). wKg, wK and K have mean 0 whatever the proxy is worth, so any γ is
    right; the one that leaves the least variance comes from the scatter, by least squares with the baseline's u beside it. The mean reward
    of the log has w = 1 and its own coefficients, and a difference of two policies has the difference of their weights for w.

    That ō is estimated, too, costs nothing to first order: it moves the other terms by −E[w(r − γg − κ)]·mean(K), and least squares finds
    just that as λ, since Cov(wO(r − γg − κ)/e, K) = E[w(r − γg − κ)]·Var(K). The mean of K is 0, so λ leaves the value as it is.

    With few effective labels, (Σwo)²/Σ(wo)², γ is 1 and κ the weighted mean of r − g among them: the proxy's value, and its mean error. A
    proxy that makes even that worse, as one on another scale does, is left out: γ is 0.

    References
    ----------
    Cassel, Särndal & Wretman, Biometrika 63 (1976); Angelopoulos et al., "Prediction-powered inference", Science 382 (2023), and with a
    fitted γ, Angelopoulos, Duchi & Zrnic, "PPI++" (2023).
    """
    is_compared = COMPARED[1] in moments.columns
    names = (*ROW, *(COMPARED if is_compared else LABELED))
    per = _per_label(moments)[..., None]
    u, s, us, o, uo, g, ug, og, uog = (moments.form(name) for name in names)
    s, us, k, kg = per * s, per * us, per * o, per * og - g  # K has also a constant, −1
    uk, ukg = per * uo - u, per * uog - ug
    labels, weighted = effective_labels(moments)
    none = np.zeros(moments.shape)

    def error(gamma: float) -> Floats:
        """The mean of O(r − γg)/ō, seen from the center of the rewards."""
        return _mean(moments, s - gamma * (kg + g))

    def of_value(gamma: float) -> tuple[Floats, ...]:
        total = _mean(moments, k + uk + u)
        both = error(gamma) + _mean(moments, us - gamma * (ukg + ug))
        return np.full(moments.shape, gamma), np.divide(both, total, out=none.copy(), where=total > 0), none

    def of_difference(gamma: float) -> tuple[Floats, ...]:
        off = _mean(moments, us - gamma * (ukg + ug)) - error(gamma) * _mean(moments, uk + u)
        return np.full(moments.shape, gamma), error(gamma), off

    logged = _left(moments, s, (kg, k), lambda gamma: (np.full(moments.shape, gamma), error(gamma)), labels)
    if is_compared:
        rest = _left(moments, us, (ukg, uk, k), of_difference, weighted)
    else:
        rest = _left(moments, s + us, (kg + ukg, k + uk, k), of_value, weighted) - logged
    more = [moments.form(name) for name in moments.columns if name not in names]
    rows = np.stack([np.broadcast_to(row, s.shape) for row in (u, logged, rest, *more)], axis=-2)
    # K is made of O, and has a constant besides
    constant = np.zeros(rows.shape[:-1])
    constant[..., 1:3] = -rows[..., 1:3, moments.columns.index(LABEL)] / per
    constant[..., 1] = np.where(labels > 0, constant[..., 1], np.nan)
    constant[..., 2] = np.where(weighted > 0, constant[..., 2], np.nan)
    columns = (*ROW, *(name for name in moments.columns if name not in names))
    return ShorterRows(rows, constant, np.asarray(moments.center), columns)


def _mean(moments: Moments, form: Floats) -> Floats:
    """The mean of a form of the columns, or of several."""
    return np.asarray((form * (moments.mean if form.ndim == moments.mean.ndim else moments.mean[..., None, :])).sum(-1))


def _left(
    moments: Moments,
    response: Floats,
    controls: tuple[Floats, ...],
    fixed: Callable[[float], tuple[Floats, ...]],
    labels: Floats,
) -> Floats:
    """What controls leave of a response: with fitted coefficients, or with those for γ = 1 or 0, as labels are many or few."""
    every = np.stack([*controls, np.broadcast_to(moments.form("u"), response.shape)], axis=-2)
    fitted = least_squares(moments, every, response[..., None, :])[..., :-1, 0]
    choices = [fitted, *(np.stack(fixed(gamma), axis=-1) for gamma in (1.0, 0.0))]
    many, trusting, alone = (response - np.einsum("...k,...ki->...i", c, every[..., :-1, :]) for c in choices)
    scatter = [np.einsum("...i,...ij,...j->...", form, moments.scatter, form) for form in (trusting, alone)]
    few = np.where((scatter[0] <= scatter[1])[..., None], trusting, alone)
    return np.asarray(np.where((labels >= FEW_LABELS)[..., None], many, few))
