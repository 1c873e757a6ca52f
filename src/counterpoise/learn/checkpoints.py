"""This file holds checkpoints: everything a run needs to go on after a kill as if nothing had happened."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.errors import PolicyFileError
from counterpoise.learn.policies import Policy
from counterpoise.learn.storage import fit_tensors, read_tensors, write_tensors

FORMAT = "counterpoise checkpoint 1"


@dataclass
class State:
    """A run between two epochs."""

    policy: Policy
    optimiser: torch.optim.Optimizer
    sums: Tensor  # of the running baseline
    best: dict[str, Tensor]
    progress: dict[str, Any]  # epochs done, history, best epoch: what JSON can hold


def save_checkpoint(path: str | PathLike[str], state: State, settings: dict[str, Any]) -> None:
    """Write a run; `settings` say which run it is."""
    moments = state.optimiser.state_dict()
    tensors = {f"policy.{name}": tensor for name, tensor in state.policy.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in state.best.items()}
    tensors |= {"sums": state.sums, "random": torch.get_rng_state()}
    plain: dict[str, dict[str, Any]] = {}
    for index, values in moments["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{index}.{name}"] = value
            else:
                plain.setdefault(str(index), {})[name] = value
    described = {"format": FORMAT, "settings": settings, "progress": state.progress}
    described |= {"groups": moments["param_groups"], "plain": plain}
    write_tensors(path, tensors, described)


def restore_checkpoint(path: str | PathLike[str], state: State, settings: dict[str, Any]) -> bool:
    """Put a run back where it was, and say whether there was anything to put back."""
    if not Path(path).exists():
        return False
    tensors, described = read_tensors(path)
    if described.get("format") != FORMAT:
        raise PolicyFileError(f"{str(path)!r} holds {described.get('format')!r}, not a checkpoint: name another file.")
    for name, value in settings.items():
        if described["settings"].get(name) != value:
            raise PolicyFileError(
                f"{str(path)!r} is the checkpoint of another run: its {name} is {described['settings'].get(name)!r}, now it "
                f"is {value!r}. Move it away, or name another checkpoint."
            )
    fit_tensors(state.policy, _under("policy.", tensors), path)
    state.best = _under("best.", tensors)
    state.sums = tensors["sums"]
    moments: dict[str, Any] = {"param_groups": described["groups"], "state": {}}
    for name, tensor in _under("optimiser.", tensors).items():
        index, _, part = name.partition(".")
        moments["state"].setdefault(int(index), {})[part] = tensor
    for index, values in described["plain"].items():
        moments["state"].setdefault(int(index), {}).update(values)
    try:
        state.optimiser.load_state_dict(moments)
    except (KeyError, ValueError) as error:
        raise PolicyFileError(f"{str(path)!r} is of another optimiser: {error}. Name another checkpoint.") from error
    torch.set_rng_state(tensors["random"])
    state.progress = described["progress"]
    return True


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def copy_of(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module as they are now."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
