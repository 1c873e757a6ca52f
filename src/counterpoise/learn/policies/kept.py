"""What a saved policy keeps of its columns: the encoding of contexts, the names of actions, and the column of candidates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.learn.logs.actions import Names
from counterpoise.learn.policies.policy import Policy
from counterpoise.log.sketches import Lesson


def kept_columns(policy: Policy) -> dict[str, Any]:
    """The part of a policy's description that is about its columns; empty if it looks at plain numbers and all actions."""
    found: dict[str, Any] = {}
    if policy.encoding_ is not None:
        found["encoding"] = policy.encoding_.described()
    if policy.candidates_ is not None:
        found["candidates"] = policy.candidates_
    if policy.lesson_ is not None:
        found["lesson"] = policy.lesson_.to_plain()
    return found


def restore_columns(policy: Policy, config: Mapping[str, Any]) -> None:
    """Give a policy what `kept_columns` said of it; a ValueError if that makes no sense."""
    if config.get("encoding") is not None:
        # not before it is needed: a machine may have NumPy only
        from counterpoise.learn.logs.encoding import encoding_of

        policy.encoding_ = encoding_of(config["encoding"])
        if list(policy.encoding_.names) != config["context"]:
            raise ValueError("its encoding is of other columns than its context")
    if config.get("lesson") is not None:
        policy.lesson_ = Lesson.from_plain(config["lesson"])
    candidates = config.get("candidates")
    if candidates is not None and not isinstance(candidates, str):
        raise ValueError("the name of its candidates is not text")
    policy.candidates_ = candidates


def bytes_of(names: list[str]) -> Tensor:
    """Names as a tensor of bytes.

    >>> names_of(bytes_of(["jam", "tea"])).tolist()
    ['jam', 'tea']
    """
    return torch.as_tensor(np.frombuffer(json.dumps(names).encode(), dtype=np.uint8).copy())


def names_of(stored: Tensor) -> Names:
    """The names that a tensor of bytes has; a ValueError if it has none."""
    found = json.loads(stored.numpy().tobytes())
    if not isinstance(found, list):
        raise ValueError("the names of its actions are not a list")
    return np.array(found, dtype=object)
