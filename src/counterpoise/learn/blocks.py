r"""Logits of very many items as a product that is never written out, and their exact softmax in blocks, on any device and in any precision.

The first pass keeps for every row the largest logit m so far and sums relative to it, :math:`\sum e^{z-m}`, :math:`\sum e^{2(z-m)}` and
:math:`\sum e^{z-m} v`; where a block has a larger logit, the sums so far fade (the online softmax of Milakov & Gimelshein 2018). The second
pass computes the logits again, because remembering them would take a (rows × items) array. `kernels` has the same two passes for a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

BLOCK = {"cpu": 2**19, "cuda": 2**24}  # logits of a block: what stays in a core's cache, or keeps a GPU busy
ROWS = 1024  # of a block at most
LEAST = 2**12  # items of a part
PARTS = 32  # at most, whatever the number of threads, so that the result does not depend on it
BITS = 1 / math.log(2)

T = TypeVar("T")


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
    unit: float = 1.0  # already applied to contexts; biases get it when their block comes

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
class ItemSummary:
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


# -- Their softmax, in blocks ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PartialSums:
    """What a part of the items adds to every row: its largest logit, in bits, and sums relative to that."""

    top: Tensor
    total: Tensor
    squares: Tensor
    mean: Tensor | None


@torch.no_grad()
def summary(logits: Logits, action: Tensor, *, mean: bool) -> ItemSummary:
    """The first pass; the mean item vector only if asked for.

    >>> sums = summary(Logits(torch.zeros(1, 2), torch.ones(4, 2)), torch.tensor([3]), mean=True)
    >>> round(sums.log_total.exp().item(), 4), sums.squares.item(), sums.mean.tolist()
    (4.0, 0.25, [[1.0, 1.0]])
    """
    bits = logits.in_bits()
    parts = in_parts(lambda part: _sums(bits.part(part), mean), *logits.size)
    top = torch.stack([part.top for part in parts])
    highest = top.amax(0)
    fade = (top - highest).exp2_()
    total = (torch.stack([part.total for part in parts]) * fade).sum(0)
    squares = (torch.stack([part.squares for part in parts]) * fade.square()).sum(0) / total.square()
    means = [part.mean * (f / total)[:, None] for part, f in zip(parts, fade, strict=True) if part.mean is not None]
    log_total = (highest + total.log2()) / BITS
    return ItemSummary(logits.of(action), log_total, squares, torch.stack(means).sum(0) if mean else None)


@torch.no_grad()  # each thread has to say so for itself
def _sums(logits: Logits, mean: bool) -> _PartialSums:
    """The sums of one part, in place where possible: blocks are small, so every operation counts."""
    contexts = logits.contexts
    top = torch.full_like(contexts[:, 0], -torch.inf)
    total, squares = torch.zeros_like(top), torch.zeros_like(top)
    means = torch.zeros_like(contexts) if mean else None
    for rows, items, z in logits.blocks():
        before, highest = top[rows], torch.maximum(top[rows], z.amax(1))
        fade = before.sub_(highest).exp2_()
        p = z.sub_(highest[:, None]).exp2_()
        total[rows].mul_(fade).add_(p.sum(1))
        if means is not None:
            means[rows].mul_(fade[:, None]).addmm_(p, logits.items[items])
        squares[rows].mul_(fade.square_()).add_(torch.linalg.vector_norm(p, dim=1).square_())
        top[rows] = highest
    return _PartialSums(top, total, squares, means)


@torch.no_grad()
def item_gradients(logits: Logits, log_total: Tensor, scale: Tensor) -> tuple[Tensor, Tensor | None]:
    """The second pass: −Σ_rows s π c for every item, and −Σ_rows s π for its bias, with `scale` s for every row."""
    gradient = torch.empty_like(logits.items)
    bias = None if logits.bias is None else torch.empty_like(logits.bias)
    scaled = logits.contexts * -scale[:, None]
    bits, log2_total = logits.in_bits(), log_total * BITS

    @torch.no_grad()
    def fill(part: slice) -> None:
        into, biases = gradient[part], None if bias is None else bias[part]
        for rows, items, z in bits.part(part).blocks():
            p = z.sub_(log2_total[rows, None]).exp2_()
            # in this order, because BLAS is slow at the other where there are few features
            slopes = (scaled[rows].T @ p).T
            into[items] = slopes if rows.start == 0 else into[items] + slopes
            if biases is not None:
                sums = torch.mv(p.T, -scale[rows])
                biases[items] = sums if rows.start == 0 else biases[items] + sums

    in_parts(fill, *logits.size)
    return gradient, bias


@torch.no_grad()
def greedy(logits: Logits) -> Tensor:
    """The most probable item of every row."""
    return _largest(logits, None, draw=False)[0]


@torch.no_grad()
def draw(logits: Logits, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """An item per row, drawn from the softmax, and its probability."""
    return _largest(logits, generator, draw=True)


def _largest(logits: Logits, generator: torch.Generator | None, *, draw: bool) -> tuple[Tensor, Tensor]:
    """The item with the largest logit, to which we add Gumbel noise for a draw, and its probability (of a draw only)."""
    first = logits.contexts[:, 0]
    place = torch.zeros_like(first, dtype=torch.int64)
    best, chosen = torch.full_like(first, -torch.inf), torch.full_like(first, -torch.inf)
    log_total = torch.full_like(first, -torch.inf)
    for rows, items, z in logits.blocks():
        noisy = z
        if draw:
            log_total[rows] = torch.logaddexp(log_total[rows], torch.logsumexp(z, 1))
            noisy = z - torch.empty_like(z).exponential_(generator=generator).log_()
        value, at = noisy.max(1)
        better = value > best[rows]
        best[rows] = torch.where(better, value, best[rows])
        place[rows] = torch.where(better, at + items.start, place[rows])
        chosen[rows] = torch.where(better, z.gather(1, at[:, None])[:, 0], chosen[rows])
    return place, (chosen - log_total).exp_()


def in_parts(work: Callable[[slice], T], items: int, device: torch.device) -> list[T]:
    """What `work` finds in parts of the items, in their order, each in a thread of its own; on a GPU, all of them are one part.

    PyTorch would split every operation among the threads, which then wait for each other after each one. Blocks are small, and
    where other programs keep the processors busy, that waiting takes most of the time.
    """
    # a power of 2, and all of one size, because two threads with three parts take as long as with four
    count = 1 if device.type != "cpu" else 2 ** (min(PARTS, max(1, items // LEAST)).bit_length() - 1)
    size = max(1, -(-items // count))
    parts = [slice(at, min(at + size, items)) for at in range(0, items, size)]
    threads = min(torch.get_num_threads(), len(parts))
    if threads == 1:
        return [work(part) for part in parts]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(work, parts))
    finally:
        torch.set_num_threads(before)
