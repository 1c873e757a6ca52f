r"""One training step on lists: the gradient of an objective, with a baseline for every position that has a weight of its own.

A list adds :math:`\sum_k w_k (r_k - \beta_k) + \beta_k` to the value, and to its gradient :math:`g = \sum_k (r_k - \beta_k) \nabla w_k`. As
every :math:`\nabla w_k` has mean 0, the mean of g is the same for any β, and the β of least gradient variance solves

.. math:: \sum_k \mathbb E \langle \nabla w_j, \nabla w_k \rangle \beta_k = \sum_k \mathbb E \langle \nabla w_j, \nabla w_k \rangle r_k

jointly for all positions j; with one weight per list, that is the β* of single rows. Where lists end early, a running product and its
gradient stay below the end what they are there, or their means would depend on who leaves. All slots of a list share the input h of a
linear last layer z = W h, so that inner products with respect to W are those with respect to z, times ‖h‖² (plus 1 if it has a bias).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.errors import OptionError
from counterpoise.learn.gradients.baselines import RunningBaseline
from counterpoise.learn.gradients.last_layer import last_layer
from counterpoise.learn.gradients.objectives import Objective
from counterpoise.learn.policies.softmax import last_layer_norms
from counterpoise.learn.ranking.conditionals import ABSENT, pools, prefix_products
from counterpoise.learn.ranking.marginals import at_slots
from counterpoise.learn.ranking.plackett_luce import PlackettLuce
from counterpoise.weights.lists import ListWeight


@dataclass(frozen=True)
class Weighed:
    """The weights of lists, lists × terms, differentiable, and the inner products of their gradients, lists × terms × terms.

    There is a term for each position, or one for the whole list; `products` are those with respect to the logits.
    """

    weight: Tensor
    products: Tensor


def weighed(logits: Tensor, items: Tensor, propensity: Tensor, weight: ListWeight) -> Weighed:
    """The weights of lists of places in `logits`, whose propensities (1 below the end of a list) mean what the weight needs."""
    if not weight.is_running:
        target, slope = at_slots(logits, items)
        slope = slope / propensity[:, :, None]
        return Weighed(torch.where(items != ABSENT, target / propensity, 1.0), slope @ slope.transpose(1, 2))
    left = pools(logits, items, squares=True)
    # as logarithms, because probabilities of long lists leave the range of single precision
    found = (left.log_given - propensity.log()).cumsum(1).exp()
    products = prefix_products(left)
    size = found.detach()
    if not weight.by_position:
        return Weighed(found[:, -1:], products[:, -1:, -1:] * size[:, -1:, None].square())
    # below the end of a list the product stays what it is there, and so does its gradient: both have their means wherever lists end
    return Weighed(found, products * size[:, :, None] * size[:, None, :])


def list_sums(products: Tensor, reward: Tensor) -> Tensor:
    """Both sides of the equations of the baselines, terms × (terms + 1), in double precision."""
    double = products.double()
    right = (double @ reward.double()[:, :, None]).sum(0)
    return torch.cat([double.sum(0), right], 1)


def list_baselines(sums: Tensor) -> Tensor:
    """The baselines from their equations; 0 in directions in which no list has a gradient, where one is as good as another.

    >>> list_baselines(torch.tensor([[4.0, 0.0, 6.0], [0.0, 0.0, 0.0]], dtype=torch.float64)).tolist()
    [1.5, 0.0]
    """
    left, right = sums[:, :-1], sums[:, -1]
    # positions far down may have weights larger by orders of magnitude: bring all to one scale first
    size = left.diagonal().sqrt()
    size = torch.where(size > 0, size, 1.0)
    inverse: Tensor = torch.linalg.pinv(left / size[:, None] / size, hermitian=True, rtol=1e-9)
    return (inverse @ (right / size)) / size


class RunningBaselines(RunningBaseline):
    """The baselines from earlier batches only, so that the gradient of the current batch is unbiased."""

    def __init__(self, terms: int, *, decay: float) -> None:
        super().__init__(decay=decay)
        self.sums = torch.zeros(terms, terms + 1, dtype=torch.float64)

    @property
    def value(self) -> Tensor:
        """The baselines to use now; 0 before the first batch."""
        return list_baselines(self.sums)


class LoggedLists(nn.Module):
    """A policy as a function of logged lists, with the weight that says what their rewards depend on."""

    def __init__(self, policy: PlackettLuce, weight: ListWeight) -> None:
        super().__init__()
        self.policy, self.weight = policy, weight

    def rewards(self, reward: Tensor) -> Tensor:
        """What each term earned: a position, or the whole list."""
        return reward if self.weight.by_position else reward.sum(1, keepdim=True)

    def forward(self, context: Tensor, items: Tensor, propensity: Tensor) -> tuple[Weighed, nn.Module | None]:
        """The weights, with the inner products of the last layer's gradients, and that layer; of the logits' if it is not linear."""
        logits, layer, h = last_layer(self.policy.scores, context)
        found = weighed(logits, items, propensity.to(logits.dtype), self.weight)
        if layer is None:
            return found, None
        has_bias = isinstance(layer, nn.Linear) and layer.bias is not None
        size = last_layer_norms(torch.ones_like(logits[:, 0]), h, bias=has_bias)
        return Weighed(found.weight, found.products * size[:, None, None]), layer

    def backward(
        self, batch: Any, baseline: Tensor | float | None, objective: Objective, measure: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Put the gradient of the objective's negative into the parameters; returns β of the list as a whole, sums and variance.

        An objective is computed position by position and added up. It gets the weight as `target`, and 1 as `propensity`.
        """
        found, layer = self(batch.context, batch.action, batch.propensity)
        w, reward = found.weight, self.rewards(batch.reward).to(found.weight.dtype)
        sums = list_sums(found.products, reward)
        chosen = list_baselines(sums) if baseline is None else baseline
        beta = torch.as_tensor(chosen, dtype=w.dtype, device=w.device).expand(w.shape[1])
        slope = _slopes(w.detach(), reward, beta, objective)
        torch.autograd.backward(w, slope * (-1 / batch.total))
        if not measure:
            return beta.sum(), sums, torch.tensor(torch.nan)
        second = torch.einsum("ij,ijk,ik->", slope, found.products, slope) / batch.total
        for parameter in layer.parameters() if isinstance(layer, nn.Linear) else ():
            if parameter.grad is not None:
                second = second - parameter.grad.square().sum()
        return beta.sum(), sums, second / batch.total


def as_lists(logged: nn.Module | None) -> LoggedLists:
    """What a step on lists needs, or an error for one on single rows."""
    if not isinstance(logged, LoggedLists):
        raise OptionError("this policy shows lists, which are not learned from single rows.", do="Use RankingLearner.")
    return logged


def _slopes(w: Tensor, reward: Tensor, beta: Tensor, objective: Objective) -> Tensor:
    """n ∂value/∂w for every list and term."""
    one = torch.ones_like(w)
    if objective.slope is not None:
        return objective.slope(w, reward, one, beta)
    with torch.enable_grad():
        free = w.clone().requires_grad_()
        terms = [objective(*(x[:, k] for x in (free, reward, one)), baseline=beta[k]) for k in range(w.shape[1])]
        (slope,) = torch.autograd.grad(torch.stack(terms).sum(), free)
    return slope * len(w)
