"""Logits as products of a context's features and of vectors of items: the last layers that very many actions need."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from counterpoise.learn.items.logits import Logits


class ItemScores(nn.Module):
    """Logits u·(M f) of a context vector u for items with features f; only M is learned, and the features are stored."""

    features: Tensor

    def __init__(self, dimension: int, features: Tensor) -> None:
        super().__init__()
        self.register_buffer("features", features)
        self.map = nn.Parameter(torch.empty(dimension, features.shape[1]))
        nn.init.kaiming_uniform_(self.map, a=5**0.5)

    def forward(self, u: Tensor) -> Tensor:
        """The logits, with (M f) computed for all items first: one matrix of item vectors, whatever the batch."""
        return u @ (self.features @ self.map.T).T


def product_of(scores: nn.Module, h: Tensor) -> Logits:
    """The logits of a linear last layer as a product; those of item features, u·(M f), are (Mᵀu)·f."""
    if isinstance(scores, ItemScores):
        return Logits(h @ scores.map, scores.features)
    assert isinstance(scores, nn.Linear)
    return Logits(h, scores.weight, scores.bias)
