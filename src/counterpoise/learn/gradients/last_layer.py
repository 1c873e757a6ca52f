"""The last layer of a policy: where the logits come from, and what goes into it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from counterpoise.errors import Argument, OptionError
from counterpoise.learn.items.arithmetic import USUAL, Arithmetic, whole
from counterpoise.learn.items.scores import ItemScores
from counterpoise.learn.policies.policy import Policy

LINEAR: tuple[type[nn.Module], ...] = (nn.Linear, ItemScores)  # a subclass may compute anything


def is_split(policy: Policy) -> bool:
    """Whether `body` and `scores` make up the whole policy, and `scores` is a last layer whose gradient norms are known."""
    return type(policy).forward is Policy.forward and _has_norms(policy.scores, policy)


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
    calls: list[tuple[nn.Module, Tensor, Any]] = []

    def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        calls.append((layer, inputs[0], output))

    hooks = [layer.register_forward_hook(record) for layer in policy.modules() if type(layer) in LINEAR]
    try:
        with arithmetic.lowered(context.device):
            logits: Tensor = policy(context)
    finally:
        for hook in hooks:
            hook.remove()
    for layer, h, output in calls:
        # the gradient of a layer that is used twice has two parts, and that of a row with several positions has several
        once = sum(other is layer for other, _, _ in calls) == 1
        if output is logits and once and h.ndim == 2 and _has_norms(layer, policy):
            return whole(logits), layer, whole(h)
    return whole(logits), None, context


def needed(layer: nn.Module | None, policy: Policy) -> nn.Module:
    """The layer, or an error that says what to do without one."""
    if layer is None:
        raise OptionError(
            [
                Argument("norms", "last_layer"),
                " needs logits that come straight from one linear layer, which is trained, used once, and shares no parameters; "
                f"{type(policy).__name__} has none.",
            ],
            do=["Pass ", Argument("norms", "all"), "."],
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
