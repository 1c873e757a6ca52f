"""Candidates: which actions a policy may choose from in each row, and the softmax over those alone."""

from __future__ import annotations

import torch
from torch import Tensor


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits with −∞ wherever the mask is false, so that a softmax has probability 0 there; without a mask, as they are.

    >>> torch.softmax(masked(torch.zeros(1, 3), torch.tensor([[True, False, True]])), -1).tolist()
    [[0.5, 0.0, 0.5]]
    """
    return logits if mask is None else logits.masked_fill(~mask, -torch.inf)
