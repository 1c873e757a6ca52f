r"""The softmax of logged actions: their probabilities and the size of their gradients, in one pass.

For a row with probabilities π over actions and the logged action a, ∂π_a/∂z = π_a (e_a − π), so

.. math:: \lVert\partial\pi_a/\partial z\rVert^2 = \pi_a^2 (1 - 2\pi_a + \textstyle\sum_b \pi_b^2)

and with logits z = W h, the gradient of W is the outer product with h, so its squared norm is that times ‖h‖². We need
nothing per sample beyond the probabilities themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Logged(torch.autograd.Function):
    """π(a|x) and Σπ², keeping the probabilities for the backward pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = torch.softmax(logits, dim=-1)
        target = probabilities.gather(-1, action[..., None])[..., 0]
        squares = squared_sum(probabilities)
        ctx.save_for_backward(probabilities, action, target)
        ctx.mark_non_differentiable(squares)
        return target, squares

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        probabilities, action, target = ctx.saved_tensors
        scale = gradients[0] * target
        slope = probabilities * -scale[..., None]
        return slope.scatter_add_(-1, action[..., None], scale[..., None]), None


def squared_sum(probabilities: Tensor) -> Tensor:
    """Σ_b π(b|x)² for every row, without a matrix of squares."""
    size: Tensor = torch.linalg.vector_norm(probabilities, dim=-1)
    return size.square_()


def logged_probability(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """π(a|x) of the logged actions, differentiable, and Σ_b π(b|x)², which is not.

    >>> target, squares = logged_probability(torch.zeros(1, 4), torch.tensor([2]))
    >>> target.item(), squares.item()
    (0.25, 0.25)
    """
    target, squares = _Logged.apply(logits, action)  # type: ignore[no-untyped-call]
    return target, squares


def cooled(logits: Tensor, temperature: float) -> Tensor:
    """Logits at a temperature: divided by it; at 0, all but the largest are ruled out, or but the first of the largest.

    >>> torch.softmax(cooled(torch.tensor([1.0, 3.0]).log().double(), 0.5), -1).numpy().round(3).tolist()
    [0.1, 0.9]
    >>> torch.softmax(cooled(torch.tensor([1.0, 4.0]), 0), -1).tolist()
    [0.0, 1.0]
    """
    if temperature == 1:
        return logits
    if temperature == 0:
        return torch.full_like(logits, -torch.inf).scatter(-1, logits.argmax(-1, keepdim=True), 0.0)
    # minus the largest, because what is divided by a tiny temperature must not overflow
    return (logits - logits.amax(-1, keepdim=True)) / temperature


def probability_of(logits: Tensor, action: Tensor, temperature: float = 1.0) -> Tensor:
    """π(a|x) of one action per row at a temperature, differentiable above 0, for when Σπ² is of no use."""
    if temperature == 0:
        return (logits.argmax(-1) == action).to(logits.dtype)
    return torch.softmax(cooled(logits, temperature), -1).gather(-1, action[..., None])[..., 0]


def logit_norms(target: Tensor, squares: Tensor) -> Tensor:
    """‖∂π_a/∂z‖², from what `logged_probability` returns."""
    t = target.detach()
    t2 = t * t
    # written so, and not 1 - 2π + Σπ², because it loses fewer digits where π_a is close to 1
    return (1 - t).square_().add_((squares - t2).clamp_(min=0)).mul_(t2)


def logit_norms_of(logits: Tensor, action: Tensor) -> Tensor:
    """The same from logits, with two log-sum-exps, for a training loop of yours that has no use for `logged_probability`."""
    total = torch.logsumexp(logits, dim=-1)
    target = (logits.gather(-1, action[..., None])[..., 0] - total).exp()
    squares = (torch.logsumexp(2 * logits, dim=-1) - 2 * total).exp()
    return logit_norms(target, squares)


def last_layer_norms(logit_norms: Tensor, features: Tensor, *, bias: bool = False) -> Tensor:
    """‖∇π_a‖² with respect to a linear last layer z = W h (+ b), with `features` h; exact for linear policies."""
    size = features.detach().square().sum(-1)
    return logit_norms * (size + 1 if bias else size)
