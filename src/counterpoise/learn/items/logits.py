"""Logits of many items as a product that is never written out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

CELLS = 2**22  # logits that a step may hold at once: 16 MB of float32, from where on blocks are faster
LEAST_ITEMS = (
    2**12
)  # with fewer items than this, a long batch has many logits but no long rows, and blocks gain nothing
BLOCK = {"cpu": 2**19, "cuda": 2**24}  # logits of a block: what stays in a core's cache, or keeps a GPU busy
ROWS = 1024  # of a block at most
BITS = 1 / math.log(2)


def too_many(rows: int, items: int) -> bool:
    """Whether so many logits had better never be in memory at once.

    >>> too_many(rows=1024, items=1000), too_many(rows=1024, items=1_000_000)
    (False, True)
    """
    return items >= LEAST_ITEMS and rows * items > CELLS


@dataclass(frozen=True)
class Logits:
    """The logits c·v + b of some contexts c and of items with vectors v, block by block.

    >>> logits = Logits(torch.ones(2, 3), torch.arange(12.0).reshape(4, 3))
    >>> [block.tolist() for _, _, block in logits.blocks(rows=1, items=2)]
    [[[3.0, 12.0]], [[21.0, 30.0]], [[3.0, 12.0]], [[21.0, 30.0]]]
    """

    contexts: Tensor
    items: Tensor
    bias: Tensor | None = None
    unit: float = 1.0  # what contexts are multiplied with already, and biases are when their block comes

    @property
    def size(self) -> tuple[int, torch.device]:
        """How many items there are, and where."""
        return len(self.items), self.items.device

    def cooled(self, temperature: float) -> Logits:
        """The same logits, divided by a temperature above 0."""
        if temperature == 1:
            return self
        return Logits(self.contexts / temperature, self.items, None if self.bias is None else self.bias / temperature)

    def part(self, items: slice) -> Logits:
        """The logits of some of the items."""
        return Logits(self.contexts, self.items[items], None if self.bias is None else self.bias[items], self.unit)

    def in_bits(self) -> Logits:
        """The same logits divided by log 2, whose powers of 2 are those of e, and cost less."""
        return Logits(self.contexts * BITS, self.items, self.bias, self.unit * BITS)

    def of(self, action: Tensor) -> Tensor:
        """The logit of one item per context."""
        logit: Tensor = torch.linalg.vecdot(self.contexts, self.items[action])
        return logit if self.bias is None else logit + self.bias[action] * self.unit

    def blocks(self, *, rows: int | None = None, items: int | None = None) -> Iterator[tuple[slice, slice, Tensor]]:
        """Rows, items and their logits, in a buffer that the next block overwrites; all blocks of some rows before those of others."""
        n, n_items = len(self.contexts), len(self.items)
        rows = min(n, ROWS) if rows is None else rows
        items = max(1, BLOCK[self.items.device.type] // max(1, rows)) if items is None else items
        buffer = self.contexts.new_empty(rows * min(items, n_items))
        for at in range(0, n, rows):
            contexts = self.contexts[at : at + rows]
            for start in range(0, n_items, items):
                vectors = self.items[start : start + items]
                out = buffer[: len(contexts) * len(vectors)].view(len(contexts), len(vectors))
                if self.bias is None:
                    torch.mm(contexts, vectors.T, out=out)
                else:
                    bias = self.bias[start : start + items]
                    torch.addmm(bias if self.unit == 1 else bias * self.unit, contexts, vectors.T, out=out)
                yield slice(at, at + len(contexts)), slice(start, start + len(vectors)), out


@dataclass(frozen=True)
class Summary:
    """What one pass over the items finds out about the softmax π of every row."""

    logged: Tensor  # the logit of the logged action
    log_total: Tensor  # the log-sum-exp of all logits
    squares: Tensor  # Σ π²
    mean: Tensor | None  # Σ π v, the mean item vector


# -- Last layers whose logits are such products ------------------------------------------------------------------------


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
