"""Gradients of π(a|x) with respect to a last layer over very many items, and to all layers of such a policy, row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.errors import Argument, OptionError
from counterpoise.learn.items.arithmetic import Arithmetic, whole
from counterpoise.learn.items.logits import ItemScores, product_of
from counterpoise.learn.norms import (
    RULES,
    Gradients,
    calls_of,
    features_of,
    is_once_each,
    last_layer_norms,
    logit_norms,
    owners_of,
)
from counterpoise.learn.policy import Policy


class LoggedItems:
    """π(a|x) of the logged actions, differentiable, and what its gradients are made of; no array has all logits.

    `squared_norms` are those of the last layer. For a linear one they are as in `norms`; the gradient of the map M of item features is
    π_a u (f_a − Σπf)ᵀ, so its squared norm is π_a² ‖f_a − Σπf‖² ‖u‖².
    """

    def __init__(self, policy: Policy, context: Tensor, action: Tensor, arithmetic: Arithmetic) -> None:
        self.layer = policy.scores
        h = features_of(policy, context, arithmetic)
        self._logits, self._action = product_of(self.layer, h), action
        log_target, squares, self._mean = arithmetic.log_probability(
            self._logits, action, mean=isinstance(self.layer, ItemScores)
        )
        self.target = log_target.exp()
        if isinstance(self.layer, ItemScores):
            self.squared_norms = self.of_contexts.square().sum(1) * h.detach().square().sum(1)
        else:
            bias = self._logits.bias is not None
            self.squared_norms = last_layer_norms(logit_norms(self.target, squares), h, bias=bias)

    @property
    def of_contexts(self) -> Tensor:
        """∂π_a/∂c of every row, with c what is multiplied with the items: π_a (v_a − Σπv)."""
        assert self._mean is not None
        return self.target.detach()[:, None] * (self._logits.items.detach()[self._action] - self._mean)

    def of_layers(self, outputs: list[Tensor]) -> tuple[Tensor, ...]:
        """∂π_a/∂y for outputs y of earlier layers."""
        slopes: tuple[Tensor, ...] = torch.autograd.grad(
            self._logits.contexts, outputs, self.of_contexts, retain_graph=True
        )
        return slopes


class ItemSampleGradients:
    """What `SampleGradients` does for few actions: squared norms of the gradients of all layers, and weighted sums of these gradients."""

    def __init__(self, policy: Policy, context: Tensor, action: Tensor, arithmetic: Arithmetic) -> None:
        owners = owners_of(policy.body)
        with calls_of(owners) as calls:
            self._logged = LoggedItems(policy, context, action, arithmetic)
        if not is_once_each(calls, owners):
            raise OptionError(
                [Argument("norms", "all"), " with so many actions needs layers that are each used once."],
                do=["Pass ", Argument("norms", "last_layer"), "."],
            )
        self._policy = policy
        self.target, self.squared_norms = self._logged.target.detach(), self._logged.squared_norms
        if calls:
            deltas = self._logged.of_layers([output for _, _, output in calls])
            for (layer, h, _), delta in zip(calls, deltas, strict=True):
                self.squared_norms = self.squared_norms + RULES[type(layer)].norms(
                    layer, whole(h.detach()), whole(delta)
                )

    def weighted_sum(self, weight: Tensor) -> Gradients:
        """Σ c ∇π, by parameter."""
        parameters = [parameter for parameter in self._policy.parameters() if parameter.requires_grad]
        total = (weight.detach() * self._logged.target).sum()
        return dict(zip(parameters, torch.autograd.grad(total, parameters), strict=True))
