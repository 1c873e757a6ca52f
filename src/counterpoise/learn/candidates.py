"""Candidates: which actions a policy may choose from in each row, and the softmax over those alone.

Inside, candidates are the places of actions, a row of them for each row of the log, filled up with −1; for users, they are a list of ids per
row, or a table of truth values with a column per action.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import Argument, ColumnError, LogError, OptionError

if TYPE_CHECKING:
    import polars as pl

Places = NDArray[np.int64]
Mask = NDArray[np.bool_]
NONE = -1  # where a row has fewer candidates than another
APART = "|"  # what stands between candidates in a text, as a CSV file has them


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits with −∞ wherever the mask is false, so that a softmax has probability 0 there; without a mask, as they are.

    >>> torch.softmax(masked(torch.zeros(1, 3), torch.tensor([[True, False, True]])), -1).tolist()
    [[0.5, 0.0, 0.5]]
    """
    return logits if mask is None else logits.masked_fill(~mask, -torch.inf)


def among(logits: Tensor, candidates: Tensor | None) -> Tensor:
    """Logits with −∞ for every action that is not among a row's candidates (places, filled up with −1).

    >>> among(torch.zeros(2, 3), torch.tensor([[0, 2], [1, -1]])).tolist()
    [[0.0, -inf, 0.0], [-inf, 0.0, -inf]]
    """
    return logits if candidates is None else masked(logits, mask_of_places(candidates, logits.shape[-1]))


def mask_of_places(candidates: Tensor, n_actions: int) -> Tensor:
    """Candidates by their places as a table of truth values with a column per action."""
    # a column more, which takes in what only fills up the rows
    wide = torch.zeros(len(candidates), n_actions + 1, dtype=torch.bool, device=candidates.device)
    places = torch.where(candidates < 0, n_actions, candidates)
    return wide.scatter_(1, places, True)[:, :n_actions]
