"""What a run depends on: the part of a checkpoint that must be the same for the run to resume."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from counterpoise.learn.gradients.norms import ACROSS_ROWS
from counterpoise.learn.policies.policy import Policy

HOW = {"params", "foreach", "fused", "capturable", "differentiable"}  # how an optimizer computes, not what it computes
SHOWN = 4  # differences listed in an error


def settings_of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's class, and all options of all groups of parameters."""
    groups = optimizer.param_groups
    found: dict[str, Any] = {"optimizer": type(optimizer).__name__}
    found["optimizer's division into groups of parameters"] = [len(group["params"]) for group in groups]
    for k, group in enumerate(groups):
        where = f" of group {k + 1}" if k else ""
        found |= {f"optimizer's {name}{where}": plain(group[name]) for name in sorted(group.keys() - HOW)}
    return found


def settings_of_scheduler(scheduler: Any) -> dict[str, Any]:
    """The scheduler's class and options, before its first epoch."""
    if scheduler is None:
        return {}
    found = {f"scheduler's {name}": plain(value) for name, value in sorted(scheduler.state_dict().items())}
    return {"scheduler": type(scheduler).__name__} | found


def settings_of_policy(policy: Policy) -> dict[str, Any]:
    """The policy's layers with their options, its precision, and the numbers that training leaves alone."""
    found: dict[str, Any] = {f"layer {name!r}": text for name, text in _layers(policy)}
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in policy.state_dict().values()}
    found["precision"] = ", ".join(sorted(kinds))
    found["digest of what the policy does not learn"] = _digest(_fixed(policy))
    return found


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How two runs differ, in words; empty if they do not."""
    names = [name for name in dict.fromkeys([*now, *saved]) if saved.get(name) != now.get(name)]
    said = [f"its {name} is {saved.get(name)!r}, now it is {now.get(name)!r}" for name in names[:SHOWN]]
    more = [f"and {len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
    return "; ".join(said + more)


def plain(value: Any) -> Any:
    """An option as JSON would return it."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__name__


def _layers(policy: Policy) -> Iterator[tuple[str, str]]:
    for name, layer in policy.named_modules():
        own = [f"{part} {tuple(tensor.shape)}" for part, tensor in layer.named_parameters(recurse=False)]
        if name and next(layer.children(), None) is None:
            yield name, re.sub(r" at 0x[0-9a-f]+", "", " ".join(repr(layer).split()))
        elif own:
            yield name or "itself", f"{type(layer).__name__} with {', '.join(own)}"


def _fixed(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Frozen parameters and buffers, such as the features of items, but not the averages that some layers keep."""
    for name, parameter in policy.named_parameters():
        if not parameter.requires_grad:
            yield name, parameter
    for place, layer in policy.named_modules():
        if not isinstance(layer, ACROSS_ROWS):
            yield from ((f"{place}.{name}", buffer) for name, buffer in layer.named_buffers(recurse=False))


def _digest(tensors: Iterator[tuple[str, Tensor]]) -> str:
    found = hashlib.sha256()
    for name, tensor in tensors:
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]
