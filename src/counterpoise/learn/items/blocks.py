r"""The exact softmax over items in blocks of PyTorch operations, on any device and in any precision.

The first pass keeps for every row the largest logit m so far and sums relative to it, :math:`\sum e^{z-m}`, :math:`\sum e^{2(z-m)}` and
:math:`\sum e^{z-m} v`; where a block has a larger logit, the sums so far fade (the online softmax of Milakov & Gimelshein 2018). The second
pass computes the logits again, because remembering them would take a (rows × items) array.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from counterpoise.learn.items.logits import BITS, Logits, Summary

LEAST = 2**12  # items of a part
PARTS = 32  # at most, whatever the number of threads, so that this does not change the result

T = TypeVar("T")


@dataclass(frozen=True)
class _Sums:
    """What a part of the items adds to every row: its largest logit, in bits, and sums relative to that."""

    top: Tensor
    total: Tensor
    squares: Tensor
    mean: Tensor | None


@torch.no_grad()
def summary(logits: Logits, action: Tensor, *, mean: bool) -> Summary:
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
    return Summary(logits.of(action), log_total, squares, torch.stack(means).sum(0) if mean else None)


@torch.no_grad()  # which every thread has to say for itself
def _sums(logits: Logits, mean: bool) -> _Sums:
    """In place as far as possible: blocks are small, so that every operation counts."""
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
    return _Sums(top, total, squares, means)


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

    PyTorch would rather share every operation among the threads, and have them wait for each other after every one. Blocks are small, and
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
