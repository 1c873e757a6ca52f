r"""Per-sample gradients of π(a|x): their squared norms and their weighted sums, by one rule per layer type.

Both come from a layer's inputs and the gradients of its outputs, row by row; we never compute any row's parameter gradient.

The parameter gradient of a linear layer on row i is :math:`\delta_i h_i^\top`, whose squared norm is
:math:`\lVert\delta_i\rVert^2 \lVert h_i\rVert^2` (Goodfellow 2015, "Efficient per-example gradient computations"). With
T positions in a row (a sequence, or several embeddings) it is :math:`\sum_{st} (h_s \cdot h_t)(\delta_s \cdot \delta_t)`.

For a row with probabilities π over actions and the logged action a, ∂π_a/∂z = π_a (e_a − π), so

.. math:: \lVert\partial\pi_a/\partial z\rVert^2 = \pi_a^2 (1 - 2\pi_a + \textstyle\sum_b \pi_b^2)

and with logits z = W h, the squared norm of the gradient of W is that times ‖h‖². We need nothing per sample beyond the probabilities
themselves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from counterpoise.errors import OptionError
from counterpoise.learn.actions import among, mask_of_places
from counterpoise.learn.blocks import ItemScores, product_of
from counterpoise.learn.policy import Policy
from counterpoise.learn.softmax import USUAL, Arithmetic, whole

Norms = Literal["last_layer", "all"]  # whose gradient's variance a baseline minimizes


# -- The softmax of logged actions: their probabilities and the size of their gradients, in one pass ---------------------


class _LoggedProbability(torch.autograd.Function):
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
    target, squares = _LoggedProbability.apply(logits, action)  # type: ignore[no-untyped-call]
    return target, squares


def logit_norms(target: Tensor, squares: Tensor) -> Tensor:
    """‖∂π_a/∂z‖², from what `logged_probability` returns."""
    t = target.detach()
    t2 = t * t
    # written so, and not 1 - 2π + Σπ², because it loses fewer digits where π_a is close to 1
    return (1 - t).square_().add_((squares - t2).clamp_(min=0)).mul_(t2)


def last_layer_norms(logit_norms: Tensor, features: Tensor, *, bias: bool = False) -> Tensor:
    """‖∇π_a‖² with respect to a linear last layer z = W h (+ b), with `features` h; exact for linear policies."""
    size = features.detach().square().sum(-1)
    return logit_norms * (size + 1 if bias else size)


# -- One rule per layer type -------------------------------------------------------------------------------------------

Gradients = dict[Tensor, Tensor]  # by parameter
Call = tuple[nn.Module, Tensor, Tensor]  # a layer, its input, and its output or the gradient of that


@dataclass(frozen=True)
class LayerRule:
    """`norms(layer, inputs, delta)` is per row; `weighted(layer, inputs, delta)` is summed over rows, with delta already weighted."""

    norms: Callable[[Any, Tensor, Tensor], Tensor]
    weighted: Callable[[Any, Tensor, Tensor], Gradients]


def _positions(x: Tensor) -> Tensor:
    """(rows, …, width) → (rows, T, width)."""
    return x.reshape(len(x), -1, x.shape[-1])


def _linear_norms(layer: nn.Linear, h: Tensor, delta: Tensor) -> Tensor:
    if h.ndim == 2:
        return delta.square().sum(1) * (h.square().sum(1) + float(layer.bias is not None))
    h, delta = _positions(h), _positions(delta)
    alike = h @ h.mT + float(layer.bias is not None)
    return (alike * (delta @ delta.mT)).sum((1, 2))


def _linear_weighted(layer: nn.Linear, h: Tensor, delta: Tensor) -> Gradients:
    flat = delta.reshape(-1, delta.shape[-1])
    gradients: Gradients = {layer.weight: flat.T @ h.reshape(-1, h.shape[-1])}
    if layer.bias is not None:
        gradients[layer.bias] = flat.sum(0)
    return gradients


def _normalized(layer: nn.LayerNorm, h: Tensor) -> Tensor:
    return nn.functional.layer_norm(h, layer.normalized_shape, eps=layer.eps)


def _layer_norm_norms(layer: nn.LayerNorm, h: Tensor, delta: Tensor) -> Tensor:
    norms = delta.new_zeros(len(delta))
    shape = (len(delta), -1, *layer.normalized_shape)
    for parameter, factor in ((layer.weight, _normalized(layer, h)), (layer.bias, torch.ones_like(h))):
        if parameter is not None:
            norms = norms + (factor * delta).reshape(shape).sum(1).flatten(1).square().sum(1)
    return norms


def _layer_norm_weighted(layer: nn.LayerNorm, h: Tensor, delta: Tensor) -> Gradients:
    rows = tuple(range(delta.ndim - len(layer.normalized_shape)))
    gradients: Gradients = {}
    if layer.weight is not None:
        gradients[layer.weight] = (_normalized(layer, h) * delta).sum(rows)
    if layer.bias is not None:
        gradients[layer.bias] = delta.sum(rows)
    return gradients


def _embedding_norms(layer: nn.Embedding, index: Tensor, delta: Tensor) -> Tensor:
    index, delta = index.reshape(len(index), -1), _positions(delta)
    if layer.padding_idx is not None:
        delta = delta * (index != layer.padding_idx)[..., None]
    same = (index[:, :, None] == index[:, None, :]).to(delta)
    return (same * (delta @ delta.mT)).sum((1, 2))


def _embedding_weighted(layer: nn.Embedding, index: Tensor, delta: Tensor) -> Gradients:
    flat = delta.reshape(-1, delta.shape[-1])
    if layer.padding_idx is not None:
        flat = flat * (index.reshape(-1, 1) != layer.padding_idx)
    return {layer.weight: torch.zeros_like(layer.weight).index_add_(0, index.reshape(-1), flat)}


def _item_norms(layer: ItemScores, u: Tensor, delta: Tensor) -> Tensor:
    """The gradient of M on a row is u (Fᵀδ)ᵀ."""
    return u.square().sum(1) * (delta @ layer.features).square().sum(1)


def _item_weighted(layer: ItemScores, u: Tensor, delta: Tensor) -> Gradients:
    return {layer.map: u.T @ (delta @ layer.features)}


RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: LayerRule(_linear_norms, _linear_weighted),
    nn.LayerNorm: LayerRule(_layer_norm_norms, _layer_norm_weighted),
    nn.Embedding: LayerRule(_embedding_norms, _embedding_weighted),
    ItemScores: LayerRule(_item_norms, _item_weighted),
}


# -- The last layer of a policy ----------------------------------------------------------------------------------------


LINEAR: tuple[type[nn.Module], ...] = (nn.Linear, ItemScores)  # a subclass may compute anything


def is_split(policy: Policy) -> bool:
    """Whether `body` and `scores` make up the whole policy, and `scores` is a last layer whose gradient norms are known."""
    return type(policy).forward is Policy.forward and _has_norms(policy.scores, policy)


def default_norms(policy: Policy) -> Norms:
    """The last layer if it has a closed form, which for a linear policy is everything."""
    return "last_layer" if is_split(policy) else "all"


def features_of(policy: Policy, context: Tensor, arithmetic: Arithmetic) -> Tensor:
    """What goes into the last layer, which computes in the precision of its parameters whatever that of the layers before it."""
    with arithmetic.lowered(context.device):
        h: Tensor = policy.body(context)
    return h.to(next(policy.scores.parameters()).dtype)


def last_layer(
    policy: Policy, context: Tensor, arithmetic: Arithmetic = USUAL
) -> tuple[Tensor, nn.Module | None, Tensor]:
    """The logits, the layer that produces them, and its input; None for a layer whose gradient norms have no closed form.

    A module says nothing about the order of its layers, so we watch the layers while it runs.
    """
    if is_split(policy):
        h = features_of(policy, context, arithmetic)
        return policy.scores(h), policy.scores, h
    linear = [layer for layer in policy.modules() if type(layer) in LINEAR]
    with calls_of(linear) as calls, arithmetic.lowered(context.device):
        logits: Tensor = policy(context)
    for layer, h, output in calls:
        # the gradient of a layer that is used twice has two parts, and that of a row with several positions has several
        once = sum(other is layer for other, _, _ in calls) == 1
        if output is logits and once and h.ndim == 2 and _has_norms(layer, policy):
            return whole(logits), layer, whole(h)
    return whole(logits), None, context


@contextmanager
def calls_of(layers: Iterable[nn.Module]) -> Iterator[list[Call]]:
    """The calls of layers, in their order, while this lasts."""
    calls: list[Call] = []

    def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append((layer, inputs[0], output))

    hooks = [layer.register_forward_hook(record) for layer in layers]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def needed(layer: nn.Module | None, policy: Policy) -> nn.Module:
    """The layer, or an error that says what to do if there is none."""
    if layer is None:
        raise OptionError(
            "`norms='last_layer'` needs logits that come straight from one linear layer, which is trained, used "
            f"once, and shares no parameters; {type(policy).__name__} has none.",
            do="Pass `norms='all'`.",
        )
    return layer


def _has_norms(layer: nn.Module, policy: Policy) -> bool:
    if type(layer) not in LINEAR:
        return False
    mine = [parameter for parameter in layer._parameters.values() if parameter is not None]
    if not all(parameter.requires_grad for parameter in mine):
        return False
    known = set(map(id, mine))  # every step asks, and parameters by name would take twice as long
    return not any(
        id(parameter) in known
        for other in policy.modules()
        if other is not layer
        for parameter in other._parameters.values()
    )


# -- All layers --------------------------------------------------------------------------------------------------------


ACROSS_ROWS = (nn.modules.batchnorm._BatchNorm,)  # rows of a batch affect each other: no gradient belongs to one row
CELLS = 2**26  # numbers of per-sample gradients that the fallback computes at a time


class SampleGradients:
    r"""The gradients :math:`\nabla\pi(a_i|x_i)` of every row: their squared norms, then any weighted sum of them.

    One forward pass and one backward pass to the layers' outputs serve both, so a step with exact norms of all layers
    costs little more than a plain one: the weights c_i = (r_i − β)/π₀ are known only after the norms, and then all that
    is left to do is to weight the rows of the output gradients.

    If a layer has no rule in `layers.RULES`, is called twice, or shares its parameters, it falls back to `torch.func`,
    which is right for those, too, and computes every row's gradient (with dropout, at another draw than that of the step, which
    leaves the gradient unbiased).

    Examples
    --------
    >>> from counterpoise.learn.policies import MLP
    >>> policy = MLP(3, 5, hidden=(4,))
    >>> context, action = torch.randn(6, 3), torch.arange(6) % 5
    >>> found = SampleGradients(policy, context, action)
    >>> torch.allclose(found.squared_norms, reference_norms(policy, context, action), atol=1e-6)
    True
    """

    def __init__(
        self,
        policy: Policy,
        context: Tensor,
        action: Tensor,
        arithmetic: Arithmetic = USUAL,
        candidates: Tensor | None = None,
    ) -> None:
        _check_rows_independent(policy)
        self._policy, self._context, self._action, self._candidates = policy, context, action, candidates
        self._calls: list[Call] = []
        if has_rules(policy):
            layers = owners_of(policy)
            with calls_of(layers) as calls:
                with arithmetic.lowered(context.device):
                    logits = policy(context)
                target, _ = logged_probability(among(whole(logits), candidates), action)
            if is_once_each(calls, layers):
                parts = zip(calls, torch.autograd.grad(target.sum(), [output for _, _, output in calls]), strict=True)
                self._calls = [(layer, whole(h.detach()), whole(delta)) for (layer, h, _), delta in parts]
                self.target = target.detach()
                self.squared_norms = torch.stack([RULES[type(c[0])].norms(*c) for c in self._calls]).sum(0)
                return
        with torch.no_grad():
            self.target, _ = logged_probability(among(policy(context), candidates), action)
        self.squared_norms = reference_norms(policy, context, action, candidates)

    @property
    def by_layer(self) -> bool:
        """Whether the layers' rules were enough."""
        return bool(self._calls)

    def weighted_sum(self, weight: Tensor) -> Gradients:
        r""":math:`\sum_i c_i \nabla\pi(a_i|x_i)`, by parameter."""
        if not self.by_layer:
            parameters = [parameter for parameter in self._policy.parameters() if parameter.requires_grad]
            target, _ = logged_probability(among(self._policy(self._context), self._candidates), self._action)
            total = (weight.detach() * target).sum()
            return dict(zip(parameters, torch.autograd.grad(total, parameters, materialize_grads=True), strict=True))
        gradients: Gradients = {}
        for layer, h, delta in self._calls:
            gradients |= RULES[type(layer)].weighted(layer, h, delta * weight.reshape(-1, *[1] * (delta.ndim - 1)))
        return gradients


def owners_of(module: nn.Module) -> list[nn.Module]:
    """The layers that have parameters of their own."""
    return [layer for layer in module.modules() if any(True for _ in layer.parameters(recurse=False))]


def is_once_each(calls: list[Call], layers: list[nn.Module]) -> bool:
    """Whether each of the layers was called, and none twice."""
    return sorted(id(layer) for layer, _, _ in calls) == sorted(map(id, layers))


def has_rules(module: nn.Module) -> bool:
    """Whether every layer with parameters has a rule, and none of its parameters are shared or frozen."""
    owners = owners_of(module)
    owned = [parameter for layer in owners for parameter in layer.parameters(recurse=False)]
    return (
        all(type(layer) in RULES for layer in owners)
        and len({id(parameter) for parameter in owned}) == len(owned)
        and all(parameter.requires_grad for parameter in owned)
    )


def reference_norms(policy: Policy, context: Tensor, action: Tensor, candidates: Tensor | None = None) -> Tensor:
    """‖∇π(a|x)‖² per row by `torch.func`, or row by row: slow, and right for any module without state across rows."""
    _check_rows_independent(policy)
    mask = (
        torch.ones(len(context), policy.n_actions, dtype=torch.bool, device=context.device)
        if candidates is None
        else mask_of_places(candidates, policy.n_actions)
    )
    try:
        # without the fused kernels of recurrent layers, which torch.func would call row after row
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "TF32 acceleration", UserWarning
            )  # of the flag itself, without an Intel GPU
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            with torch.backends.mkldnn.flags(enabled=False), torch.backends.cudnn.flags(enabled=False):
                return _batched_norms(policy, context, action, mask)
    except RuntimeError:  # torch.func cannot batch everything, such as a module that looks at the numbers while it runs
        return torch.stack([_row_norm(policy, *row) for row in zip(context, action, mask, strict=True)])


def _batched_norms(policy: Policy, context: Tensor, action: Tensor, mask: Tensor) -> Tensor:
    parameters = {name: p.detach() for name, p in policy.named_parameters() if p.requires_grad}
    frozen = {name: p.detach() for name, p in policy.named_parameters() if not p.requires_grad}
    frozen |= dict(policy.named_buffers())
    # functional_call does not restore a layer that is used under two names, so it gets a copy to spoil
    shared = len(list(policy.named_parameters(remove_duplicate=False))) > len(list(policy.named_parameters()))
    module = deepcopy(policy) if shared else policy

    def probability(values: dict[str, Tensor], x: Tensor, a: Tensor, possible: Tensor) -> Tensor:
        logits = torch.func.functional_call(module, values | frozen, (x[None],))
        return torch.softmax(among(logits[0], possible), -1).gather(-1, a[None])[0]

    # Every row has weights of its own (views, not copies): a recurrent layer adds a row's numbers in place to a state that it makes
    # from the weights, so with weights that all rows share, the state has no room for them.
    per_row = torch.func.vmap(torch.func.grad(probability), randomness="different")
    size = max(1, CELLS // max(1, sum(p.numel() for p in parameters.values())))
    norms = []
    parts = (torch.split(context, size), torch.split(action, size), torch.split(mask, size))
    for x, a, possible in zip(*parts, strict=True):
        gradients = per_row({name: p.expand(len(x), *p.shape) for name, p in parameters.items()}, x, a, possible)
        norms.append(torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0))
    return torch.cat(norms)


def _row_norm(policy: Policy, x: Tensor, a: Tensor, possible: Tensor) -> Tensor:
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    target, _ = logged_probability(among(policy(x[None]), possible), a[None])
    gradients = torch.autograd.grad(target[0], parameters, materialize_grads=True)
    return torch.stack([gradient.square().sum() for gradient in gradients]).sum()


def _check_rows_independent(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, ACROSS_ROWS):
            raise OptionError(
                f"{layer} mixes the rows of a batch, so no gradient belongs to one row.", do="Use LayerNorm instead."
            )


# -- A last layer over very many items ---------------------------------------------------------------------------------


class LoggedItems:
    """π(a|x) of the logged actions, differentiable, and what its gradients are made of; no array has all logits.

    `squared_norms` are those of the last layer. For a linear one they are those of `last_layer_norms`; the gradient of the map M of item
    features is π_a u (f_a − Σπf)ᵀ, so its squared norm is π_a² ‖f_a − Σπf‖² ‖u‖².
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
                "`norms='all'` with so many actions needs layers that are each used once.",
                do="Pass `norms='last_layer'`.",
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
