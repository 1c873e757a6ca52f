"""Baselines of lists, one for every position, solved together for the value of the list; and of episodes, whose steps share them."""

from __future__ import annotations

import numpy as np

from counterpoise.estimators.estimate import Estimate, linear
from counterpoise.moments import Floats, Moments
from counterpoise.moments.columns import EXCESS, LENGTH, REWARD
from counterpoise.moments.moments import Stacked, Truth, least_squares


def controls_of(moments: Moments) -> Floats:
    """The control variates that every log has: u, and the excess at each position of lists, as rows over the columns."""
    # of an episode's steps, few may reach the last, whose coefficients would fit those few
    ranks = () if moments.has_steps else moments.ranks
    return np.eye(len(moments.columns))[[moments.columns.index(name) for name in ("u", *ranks)]]


def joint_baselines(
    name: str, around: Moments, intercept: Stacked, response: tuple[str, ...], identified: Truth
) -> Estimate:
    r"""The value of lists with the baselines of all positions that leave it the least variance together.

    .. math:: \hat V = \frac1n \sum_i \sum_k \left[ w_{ik} r_{ik} - \beta_k (w_{ik} - 1) \right]

    Every w_k − 1 has mean 0, so that any β is unbiased. The best is one least-squares fit of the lists' weighted rewards: since
    positions of a ranking are correlated, it differs from what is best for each position alone, and is never worse for the list.
    """
    form = around.form(*response)
    u, *positions = controls = controls_of(around)
    each = least_squares(around, controls[1:], np.stack([form, u]))
    center = np.asarray(around.center)[..., None]
    rest, left = (
        row - np.einsum("...i,ij->...j", each[..., k], np.stack(positions)) for k, row in enumerate((form, u))
    )
    # u, a mean of the positions' excess, has nothing left, unless days whose lists are of other lengths have other means
    is_left = np.einsum("...i,...ij,...j->...", left, around.scatter, left) > 1e-12 * around.scatter[..., 0, 0]
    rest = rest + np.where(is_left[..., None], center * left, 0.0)
    beta = each[..., 0] + center * each[..., 1]
    return linear(
        name,
        around,
        intercept,
        rest,
        baseline=tuple(np.moveaxis(beta, -1, 0)),
        identified=identified,
        fitted=len(around.ranks),
    )


def shared_baselines(name: str, moments: Moments, response: Floats, intercept: Stacked, identified: Truth) -> Estimate:
    r"""The value of episodes with baselines that all steps share: those of `step_baselines`.

    .. math:: \hat V = \frac1n \sum_i \sum_t \left[ W_{i,1:t} \, r_{it} - \beta_t (W_{i,1:t} - 1) \right]

    Since a weight stays what it is after the end of its episode, Σ βₜ(W₁:ₜ − 1) is Σ bₜ(W₁:ₜ − W₁:ₜ₋₁) over the steps that were reached,
    with bₜ = βₜ + βₜ₊₁ + …, and has mean 0 for any β.
    """
    beta, fitted = step_baselines(moments, response)
    rest = np.zeros(moments.mean.shape) + response
    rest[..., [moments.columns.index(rank) for rank in moments.ranks]] -= beta
    return linear(
        name, moments, intercept, rest, baseline=tuple(np.moveaxis(beta, -1, 0)), identified=identified, fitted=fitted
    )


def step_baselines(moments: Moments, response: Floats) -> tuple[Floats, int]:
    r"""A baseline for every step of episodes from two fitted numbers, βₜ = λ·vₜ + μ, and how many were fitted.

    Here v is what a step earns by `self_normalized`: λ = 0 is `ips` and λ = 1 is `snips`, which are mixed for the least variance. A
    coefficient of its own for every step, as lists have, would fit the few episodes that reach the last ones: on logs of 2,000 episodes
    with up to 20 steps, it had twice the squared error of `ips` (`benchmarks/kinds.py episodes`). Differences of two policies, whose
    moments have no rewards by step, have μ alone.
    """
    place = [moments.columns.index(rank) for rank in moments.ranks]
    shape = np.ones((*moments.shape, 1, len(place)))
    if REWARD + moments.ranks[0].removeprefix(EXCESS) in moments.columns:
        shape = np.concatenate([step_values(moments)[0][..., None, :], shape], axis=-2)
    controls = np.zeros((*shape.shape[:-1], len(moments.columns)))
    controls[..., place] = shape
    fitted = least_squares(moments, controls, np.broadcast_to(response, moments.mean.shape)[..., None, :])[..., 0]
    return np.einsum("...i,...ik->...k", fitted, shape), shape.shape[-2]


def step_values(moments: Moments) -> tuple[Floats, Floats, Truth]:
    """What every position earns, self-normalized, its mean weight, and whether all are known."""
    weight = np.stack([1.0 + moments.average(name) for name in moments.ranks], axis=-1)
    known = (weight > 1e-15).all(axis=-1)
    weight = np.where(weight > 1e-15, weight, 1.0)
    rewards = [moments.average(REWARD + name.removeprefix(EXCESS)) for name in moments.ranks]
    return np.stack(rewards, axis=-1) / weight, weight, known


def rewards_of_steps(moments: Moments) -> Floats:
    """The weighted rewards of all steps together, as a form over the columns."""
    return moments.form(*(REWARD + name.removeprefix(EXCESS) for name in moments.ranks))


def self_normalized(moments: Moments) -> Estimate:
    r"""Every position divided by its own mean weight; a list that ends above a position has the weight of its end and reward 0 there.

    .. math:: \hat V = \sum_k \frac{\sum_i w_{ik} r_{ik}}{\sum_i w_{ik}}
    """
    names = moments.ranks
    rewards = [REWARD + name.removeprefix(EXCESS) for name in names]
    by_rank = step_values(moments)
    (value, weight), known = (np.moveaxis(part, -1, 0) for part in by_rank[:2]), by_rank[2]
    coefficients = dict(zip(rewards, 1.0 / weight, strict=True)) | dict(zip(names, -value / weight, strict=True))
    intercept = (value * (weight - 1.0) / weight).sum(axis=0)
    return linear("snips", moments, intercept, coefficients, baseline=tuple(value), identified=known)


def longer_lists(moments: Moments) -> Estimate:
    r"""By how many positions, to first order, lists would be longer if the target chose; its true value is 0 if lengths were fixed before.

    .. math:: \hat\Delta = \frac1n \sum_i \sum_k (L_i - \beta_k) (w_{ik} - 1)

    The baselines β remove what the weights explain by themselves: nothing is left if all lists have the same length L.
    """
    form, at = moments.form(LENGTH), moments.columns.index(LENGTH)
    u, *positions = controls_of(moments)
    controls = np.stack(positions or [u])
    each = least_squares(moments, controls, form[None])
    rest = form - each[..., 0] @ controls
    square = np.einsum("...i,...ij,...j->...", rest, moments.scatter, rest)
    varies = square > 1e-12 * moments.scatter[..., at, at]
    rest = np.where(varies[..., None], rest, 0.0)
    return linear("longer_lists", moments, 0.0, rest, baseline=())
