r"""This file holds the objectives: what a policy is trained to maximise, as pure functions of tensors.

`target` is π(a|x) of the logged action and carries the gradient; `propensity` is π₀(a|x). Each returns a scalar to
*maximise* (an optimiser that minimises takes its negative). Equations are those of Gupta, Jeunen, Oosterhuis & de Rijke,
RecSys 2024.

>>> import torch
>>> reward, propensity = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
>>> target = torch.tensor([0.75, 0.25], requires_grad=True)
>>> ips(target, reward, propensity).item(), snips(target, reward, propensity).item()
(0.75, 0.75)
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR = 1e-11  # of the published baseline's denominator


def ips(target: Tensor, reward: Tensor, propensity: Tensor) -> Tensor:
    r"""Inverse propensity scoring.

    .. math:: \hat V = \frac1n \sum_i \frac{\pi(a_i|x_i)}{\pi_0(a_i|x_i)} r_i

    Unbiased, and a sum over rows, so that mini-batches are fine; its gradient has the most variance of all here.
    """
    return (target / propensity * reward).mean()


def lambda_ips(target: Tensor, reward: Tensor, propensity: Tensor, *, shift: float | Tensor) -> Tensor:
    r"""BanditNet: IPS of rewards translated by λ, the Lagrange multiplier of a constraint on the mean weight.

    .. math:: \hat V_\lambda = \frac1n \sum_i w_i (r_i - \lambda)

    λ is a hyper-parameter, tuned by SNIPS. Its gradient is that of `beta_ips` at β = λ (eq. `banditnet_grad`).
    """
    return (target / propensity * (reward - shift)).mean()


def beta_ips(target: Tensor, reward: Tensor, propensity: Tensor, *, baseline: float | Tensor) -> Tensor:
    r"""Baseline-corrected IPS: subtract β from every reward, add it back once.

    .. math:: \hat V_\beta = \beta + \frac1n \sum_i w_i (r_i - \beta)

    Unbiased for any β that does not depend on these rows. `baselines` has the β of least gradient variance, which
    depends on them a little when taken from the same batch. A `baseline` that carries a gradient is differentiated
    through: see `value_baseline`.

    Examples
    --------
    With a constant reward and β equal to it the gradient vanishes: there is nothing to learn.

    >>> target = torch.tensor([0.2, 0.9], requires_grad=True)
    >>> beta_ips(target, torch.tensor([3.0, 3.0]), torch.tensor([0.5, 0.5]), baseline=3.0).backward()
    >>> target.grad.tolist()
    [0.0, 0.0]
    """
    return baseline + (target / propensity * (reward - baseline)).mean()


def value_baseline(target: Tensor, reward: Tensor, propensity: Tensor) -> Tensor:
    r"""The β of least value variance, Cov(wr, w) / Var(w), differentiable; for full batches.

    0 where the weights do not vary: every β is then as good. A ratio of means, so mini-batches would bias its gradient.
    """
    w = target / propensity
    u = w - w.mean()
    spread = (u * u).mean()
    found = (w * reward * u).mean() / torch.where(spread > 0, spread, torch.ones_like(spread))
    return torch.where(spread > 0, found, torch.zeros_like(found))


def published_value_baseline(target: Tensor, reward: Tensor, propensity: Tensor) -> Tensor:
    r"""The same optimum as the paper's experiments took it, which uses E[w] = 1 (eq. `optimal_offpolicy_beta`).

    .. math:: \beta = \frac{\mathrm{mean}(r (w^2 - w))}{\max(\mathrm{mean}(w^2 - w), 10^{-11})}

    It explodes where target and logging policy are close; `value_baseline` does not.
    """
    w = target / propensity
    extra = w * w - w
    return (reward * extra).mean() / extra.mean().clamp(min=FLOOR)


def snips(target: Tensor, reward: Tensor, propensity: Tensor) -> Tensor:
    r"""Self-normalised IPS, for full batches: Σ w r / Σ w.

    Its gradient compares pairs of rows, :math:`\sum_{ij} w_i \nabla w_j (r_j - r_i) / (\sum w)^2`, and does not split
    into a sum over rows: mini-batches bias it (eq. `SNIPS_gradient`).
    """
    w = target / propensity
    return (w * reward).sum() / w.sum()


def dr(
    target: Tensor,
    reward: Tensor,
    propensity: Tensor,
    *,
    probabilities: Tensor,
    model_rewards: Tensor,
    action: Tensor,
) -> Tensor:
    r"""Doubly robust: IPS of what a reward model leaves over, plus the model's value of the policy.

    .. math:: \hat V = \frac1n \sum_i w_i (r_i - \hat r(a_i, x_i)) + \sum_a \pi(a|x_i)\, \hat r(a, x_i)

    `probabilities` and `model_rewards` have a row per context and a column per action (eq. `DR`).
    """
    model_reward = model_rewards.gather(1, action[:, None])[:, 0]
    return (target / propensity * (reward - model_reward) + (probabilities * model_rewards).sum(1)).mean()


def constant_dr(target: Tensor, reward: Tensor, propensity: Tensor, *, model_reward: float | Tensor) -> Tensor:
    """Doubly robust with one number as the reward model; the probabilities sum to 1, so that it is `beta_ips`."""
    return model_reward + (target / propensity * (reward - model_reward)).mean()


def reinforce(log_target: Tensor, reward: Tensor, *, baseline: float | Tensor = 0.0) -> Tensor:
    r"""On-policy: its gradient is that of the value of the policy that drew these very actions.

    .. math:: \nabla V \approx \frac1n \sum_i (r_i - \beta) \nabla \log \pi(a_i|x_i)

    Only the gradient means something. β is 0, the mean reward (Williams 1988), or `baselines.on_policy_sums`' optimum;
    taken from the same rows it costs a bias of order 1/n (eq. `onpolicy_grad`).
    """
    return ((reward - baseline) * log_target).mean()
