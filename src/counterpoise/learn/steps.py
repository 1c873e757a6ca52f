"""One training step: the gradient of an objective on a batch, its baseline, and its variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from counterpoise.learn.actions import among, are_few, logits_at
from counterpoise.learn.baselines import baseline_of, gradient_sums
from counterpoise.learn.blocks import ItemScores
from counterpoise.learn.norms import (
    LINEAR,
    RULES,
    ItemSampleGradients,
    LoggedItems,
    SampleGradients,
    features_of,
    has_rules,
    is_split,
    last_layer,
    last_layer_norms,
    logged_probability,
    logit_norms,
    needed,
    squared_sum,
)
from counterpoise.learn.objectives import OBJECTIVES, Objective
from counterpoise.learn.policy import Policy
from counterpoise.learn.rows import Batch
from counterpoise.learn.softmax import USUAL, Arithmetic

Norms = Literal["last_layer", "all"]
BETA_IPS = OBJECTIVES["beta_ips"]
UNKNOWN = torch.tensor(torch.nan)


@dataclass(frozen=True)
class Step:
    """What a step did: its β, the two sums that β* comes from, and its gradient's variance."""

    baseline: Tensor
    sums: Tensor
    variance: Tensor


class Logged(nn.Module):
    """A policy as a function of logged rows; it is a module so that DistributedDataParallel can wrap it."""

    def __init__(self, policy: Policy, arithmetic: Arithmetic = USUAL) -> None:
        super().__init__()
        self.policy, self.arithmetic = policy, arithmetic
        self.last: tuple[nn.Module, ...] = ()  # of the last call; a tuple, so that it is no module of this one

    def forward(self, context: Tensor, action: Tensor, candidates: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """π(a|x), and the squared norms of its gradient with respect to the last layer."""
        if candidates is not None and _takes_few(self.policy, candidates):
            return self._among_few(context, action, candidates)
        many = candidates is None and self.arithmetic.by_items(len(context), self.policy.n_actions)
        if many and is_split(self.policy):
            items = LoggedItems(self.policy, context, action, self.arithmetic)
            self.last = (items.layer,)
            return items.target, items.squared_norms
        logits, layer, h = last_layer(self.policy, context, self.arithmetic)
        self.last = (needed(layer, self.policy),)
        logits = among(logits, candidates)
        target, squares = logged_probability(logits, action)
        if isinstance(layer, ItemScores):
            return target, _map_norms(layer, logits, action, h)
        return target, last_layer_norms(logit_norms(target, squares), h, bias=_has_bias(layer))

    def _among_few(self, context: Tensor, action: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """The same, without the logits of actions that are no candidates."""
        layer, h = self.policy.scores, features_of(self.policy, context, self.arithmetic)
        assert isinstance(layer, nn.Linear)
        self.last = (layer,)
        place = (candidates == action[:, None]).int().argmax(1)
        target, squares = logged_probability(logits_at(layer, h, candidates), place)
        return target, last_layer_norms(logit_norms(target, squares), h, bias=_has_bias(layer))


def _takes_few(policy: Policy, candidates: Tensor | None) -> bool:
    return are_few(candidates, policy.n_actions) and type(policy.scores) is nn.Linear and is_split(policy)


def _map_norms(layer: ItemScores, logits: Tensor, action: Tensor, h: Tensor) -> Tensor:
    """‖∇π_a‖² with respect to the map of item features."""
    probabilities = torch.softmax(logits.detach(), -1)
    target = probabilities.gather(1, action[:, None])
    delta = (probabilities * -target).scatter_add_(1, action[:, None], target)
    return RULES[ItemScores].norms(layer, h.detach(), delta)


def _has_bias(layer: nn.Module | None) -> bool:
    return isinstance(layer, nn.Linear) and layer.bias is not None


def default_norms(policy: Policy) -> Norms:
    """The last layer if it has a closed form, which for a linear policy is everything."""
    return "last_layer" if is_split(policy) else "all"


def backward(
    policy: Policy,
    batch: Batch,
    baseline: Tensor | float | None,
    *,
    objective: Objective = BETA_IPS,
    norms: Norms = "last_layer",
    logged: nn.Module | None = None,
    processes: int = 1,
    measure: bool = True,
    arithmetic: Arithmetic = USUAL,
) -> Step:
    r"""Put the gradient of an objective's negative on a batch into the parameters' `.grad`, which must be empty.

    `baseline` is what the objective subtracts from the rewards; None means β* of this very batch. With `norms="all"`, β* minimizes the
    variance of the gradient of all parameters; with ``"last_layer"``, that of the last layer (for item features, of their map M).
    The variance is that of the same parameters, over the rows of all processes. Without `measure`, the variance is nan and the step is a
    little cheaper. `arithmetic` says in which precision to compute, and `logged` must have the same; very many actions are not written out.
    """
    if objective.is_of_score:
        return _backward_score(policy, batch, objective, processes, measure, arithmetic)
    if objective.needs_model_rewards or objective.needs_score:
        return _backward_logits(policy, batch, baseline, objective, processes, arithmetic)
    if norms == "all":
        return _backward_all(policy, batch, baseline, objective, processes, measure, arithmetic)
    many = batch.candidates is None and arithmetic.by_items(len(batch.action), policy.n_actions)
    fits = processes == 1 and not many and not _takes_few(policy, batch.candidates)
    if fits and type(policy.scores) is nn.Linear and is_split(policy):
        return _backward_linear(policy, policy.scores, batch, baseline, objective, measure, arithmetic)
    logged = Logged(policy, arithmetic) if logged is None else logged
    target, squared_norms = logged(batch.context, batch.action, batch.candidates)
    weight, beta, sums = _weights(target, squared_norms, batch, baseline, objective, processes)
    # DistributedDataParallel takes the mean over processes, and their parts of the batch may differ by a row
    torch.autograd.backward(target, weight * (-processes / batch.total))
    if not measure:
        return Step(beta, sums, UNKNOWN)
    inner: Any = getattr(logged, "module", logged)  # what DistributedDataParallel wraps
    gradients = _gradients(inner.last[0])
    return Step(beta, sums, _variance(squared_norms, weight, batch, gradients, processes))


def _gradients(layer: nn.Module | None) -> list[Tensor | None]:
    """The gradients of a linear last layer."""
    return [parameter.grad for parameter in layer.parameters()] if layer is not None and type(layer) in LINEAR else []


def _backward_linear(
    policy: Policy,
    scores: nn.Linear,
    batch: Batch,
    baseline: Tensor | float | None,
    objective: Objective,
    measure: bool,
    arithmetic: Arithmetic,
) -> Step:
    """The last layer's gradient is written out, Σ c π_a (e_a − π) hᵀ, which is cheaper than autograd; autograd does the rest."""
    h = features_of(policy, batch.context, arithmetic)
    with torch.no_grad():
        features, action = h.detach(), batch.action[:, None]
        probabilities = torch.softmax(among(scores(features), batch.candidates), -1)
        target = probabilities.gather(1, action)[:, 0]
        if measure or objective.learns_baseline:
            logits = logit_norms(target, squared_sum(probabilities))
            squared_norms = last_layer_norms(logits, features, bias=scores.bias is not None)
        else:
            squared_norms = torch.zeros_like(target)  # which nobody looks at
        weight, beta, sums = _weights(target, squared_norms, batch, baseline, objective, 1)
        coefficient = (target * weight).mul_(1 / batch.total)[:, None]
        outer = probabilities.mul_(coefficient).scatter_add_(1, action, -coefficient)
        # in this order, because BLAS is slow at the other where there are few features
        scores.weight.grad = (features.T @ outer).T.contiguous()
        if scores.bias is not None:
            scores.bias.grad = outer.sum(0)
    if h.requires_grad:
        torch.autograd.backward(h, outer @ scores.weight.detach())
    if not measure:
        return Step(beta, sums, UNKNOWN)
    return Step(beta, sums, _variance(squared_norms, weight, batch, [p.grad for p in scores.parameters()], 1))


def _backward_logits(
    policy: Policy,
    batch: Batch,
    baseline: Tensor | float | None,
    objective: Objective,
    processes: int,
    arithmetic: Arithmetic,
) -> Step:
    """For objectives of the probabilities of all actions; the variance is the last layer's, or the logits' if that is not linear."""
    logits, layer, h = last_layer(policy, batch.context, arithmetic)
    possible = among(logits, batch.candidates)
    target, squares = logged_probability(possible, batch.action)
    sums = _over_processes(gradient_sums(logit_norms(target, squares), batch.reward, batch.propensity), processes)
    beta = _as_baseline(baseline, sums, batch.reward)
    known = {} if batch.model_rewards is None else {"model_rewards": batch.model_rewards}
    value = objective(
        target,
        batch.reward,
        batch.propensity,
        baseline=beta,
        probabilities=torch.softmax(possible, -1),
        action=batch.action,
        score=possible.gather(1, batch.action[:, None])[:, 0],
        **known,
    )
    gradients: list[Tensor] = []
    logits.register_hook(gradients.append)  # type: ignore[no-untyped-call]
    # a mean over the rows that this process has, of which the last batch may leave it none
    share = value * (len(batch.action) / batch.total) if len(batch.action) else logits.sum()
    (-share).backward()  # type: ignore[no-untyped-call]
    delta = gradients[0] * batch.total
    _share_gradients(policy, processes)
    norms = delta.square().sum(1) if layer is None else RULES[type(layer)].norms(layer, h.detach(), delta)
    variance = _variance(norms, torch.ones_like(norms), batch, _gradients(layer), processes)
    return Step(beta, sums, variance)


def _backward_score(
    policy: Policy, batch: Batch, objective: Objective, processes: int, measure: bool, arithmetic: Arithmetic
) -> Step:
    """For objectives of the logged action's logit alone: no other logit is computed where the last layer is linear."""
    scores, action = policy.scores, batch.action
    zero = batch.reward.new_zeros(())
    if type(scores) is nn.Linear and is_split(policy):
        h = features_of(policy, batch.context, arithmetic)
        with torch.no_grad():
            features, weights = h.detach(), scores.weight[action]
            score = (features * weights).sum(1)
            if scores.bias is not None:
                score += scores.bias[action]
            slope = objective.slopes(score, batch.reward, batch.propensity, zero)
            each = (slope * (-1 / batch.total))[:, None]
            scores.weight.grad = torch.zeros_like(scores.weight).index_add_(0, action, features * each)
            if scores.bias is not None:
                scores.bias.grad = torch.zeros_like(scores.bias).index_add_(0, action, each[:, 0])
        if h.requires_grad:
            torch.autograd.backward(h, weights * each)
        layer: nn.Module | None = scores
        norms = last_layer_norms(torch.ones_like(score), features, bias=scores.bias is not None) if measure else zero
    else:
        if isinstance(scores, ItemScores) and is_split(policy):
            h = features_of(policy, batch.context, arithmetic)
            score = (h * (scores.features[action] @ scores.map.T)).sum(1)
        else:
            score = policy(batch.context).gather(1, action[:, None])[:, 0]
        slope = objective.slopes(score.detach(), batch.reward, batch.propensity, zero)
        torch.autograd.backward(score, slope * (-1 / batch.total))
        layer, norms = None, torch.ones_like(slope)
    _share_gradients(policy, processes)
    sums = batch.reward.new_zeros(2)
    if not measure:
        return Step(zero, sums, UNKNOWN)
    return Step(zero, sums, _variance(norms, slope, batch, _gradients(layer), processes))


def _share_gradients(policy: Policy, processes: int) -> None:
    """Add up every parameter's gradient over the processes."""
    if processes > 1:
        for parameter in policy.parameters():
            if parameter.requires_grad:
                own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = _over_processes(own, processes)


def _backward_all(
    policy: Policy,
    batch: Batch,
    baseline: Tensor | float | None,
    objective: Objective,
    processes: int,
    measure: bool,
    arithmetic: Arithmetic,
) -> Step:
    many = batch.candidates is None and arithmetic.by_items(len(batch.action), policy.n_actions)
    rows: SampleGradients | ItemSampleGradients
    if many and is_split(policy) and has_rules(policy):
        rows = ItemSampleGradients(policy, batch.context, batch.action, arithmetic)
    else:
        rows = SampleGradients(policy, batch.context, batch.action, arithmetic, batch.candidates)
    weight, beta, sums = _weights(rows.target, rows.squared_norms, batch, baseline, objective, processes)
    gradients = rows.weighted_sum(weight / -batch.total)
    for parameter, gradient in gradients.items():
        parameter.grad = _over_processes(gradient, processes)
    if not measure:
        return Step(beta, sums, UNKNOWN)
    variance = _variance(rows.squared_norms, weight, batch, [p.grad for p in gradients], processes)
    return Step(beta, sums, variance)


def _weights(
    target: Tensor,
    squared_norms: Tensor,
    batch: Batch,
    baseline: Tensor | float | None,
    objective: Objective,
    processes: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The c of each row in the gradient Σ c ∇π; β; and the two sums that β* comes from."""
    sums = _over_processes(gradient_sums(squared_norms, batch.reward, batch.propensity), processes)
    beta = _as_baseline(baseline, sums, batch.reward)
    return objective.slopes(target.detach(), batch.reward, batch.propensity, beta), beta, sums


def _as_baseline(baseline: Tensor | float | None, sums: Tensor, like: Tensor) -> Tensor:
    return torch.as_tensor(baseline_of(sums) if baseline is None else baseline, dtype=like.dtype, device=like.device)


def _variance(norms: Tensor, weight: Tensor, batch: Batch, gradients: list[Tensor | None], processes: int) -> Tensor:
    """(mean(‖∇π‖²c²) − ‖mean(c∇π)‖²)/B; if there are no gradients at hand, the second and smaller term is left out."""
    second_moment = _over_processes((norms * weight.square()).sum(), processes) / batch.total
    for gradient in gradients:
        if gradient is not None:
            second_moment = second_moment - _squared(gradient)
    return second_moment / batch.total


def _squared(gradient: Tensor) -> Tensor:
    """‖g‖², without a tensor of squares as large as the gradient."""
    numbers = gradient.coalesce().values() if gradient.is_sparse else gradient
    size: Tensor = torch.linalg.vector_norm(numbers)
    return size.square()


def _over_processes(x: Tensor, processes: int) -> Tensor:
    """The sum over all processes."""
    if processes > 1:
        torch.distributed.all_reduce(x)
    return x
