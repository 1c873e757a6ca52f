r"""Plackett–Luce, slot by slot: how likely an item stands at a slot whatever stands elsewhere, with its gradient.

Items race, each with an exponential time at rate :math:`\theta_a = e^{z_a}`; the order of arrival is a Plackett–Luce draw. An item is at
slot k if k − 1 others are there before it:

.. math:: P(a, k) = \int_0^\infty \theta_a e^{-\theta_a t} \Pr(\text{exactly } k - 1 \text{ others by } t) \, dt

With t = eʸ the integrand is analytic and falls off at both ends, so that the trapezoidal rule converges geometrically: in double
precision this is exact to ten digits for any number of items, where a sum over lists would have n!/(n − k)! terms; in single precision, in
which policies train, to five. The work grows with items × slots² for a list.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from counterpoise.learn.ranking.conditionals import ABSENT

NODES = {torch.float64: 160, torch.float32: 72}
EARLY = {torch.float64: 30.0, torch.float32: 18.0}  # how far before anybody arrives the integrand still counts, in y
LATE = 3.8  # and how far after the item itself
CELLS = 2**23  # numbers in memory at a time


def at_slots(logits: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """P(a, k) of the item at every slot (1 below the end of a list), differentiable, and ∂P/∂z, lists × slots × items, which is not.

    Without a gradient to compute, the second is lists × slots × 0.

    >>> found, _ = at_slots(torch.tensor([[0.0, 0.0, 2.0]], dtype=torch.float64).log1p(), torch.tensor([[2, 0, ABSENT]]))
    >>> [round(p, 4) for p in found[0].tolist()]
    [0.6, 0.35, 1.0]
    """
    found: tuple[Tensor, Tensor] = _AtSlots.apply(logits, items)  # type: ignore[no-untyped-call]
    return found


class _AtSlots(torch.autograd.Function):
    """The probabilities, keeping their gradients for the backward pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = _integrated(logits.detach(), items, slopes=ctx.needs_input_grad[0])
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(slope)
        return value, slope

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return (gradients[0][:, :, None] * slope).sum(1), None


def _integrated(logits: Tensor, items: Tensor, *, slopes: bool) -> tuple[Tensor, Tensor]:
    """Values and slopes, some slots at a time; every slot has a copy of the logits, so that one backward pass tells them apart."""
    lists, slots = items.shape
    own, width = items.reshape(-1), logits.shape[1] if slopes else 0
    value, slope = logits.new_ones(lists * slots), logits.new_zeros(lists * slots, width)
    there = torch.nonzero(own != ABSENT).flatten()
    cells = NODES[logits.dtype] * slots * logits.shape[1]
    for part in there.split(max(1, CELLS // cells)):  # type: ignore[no-untyped-call]
        with torch.set_grad_enabled(slopes):
            z = logits[part // slots].requires_grad_(slopes)
            found = _race(z, own[part], part % slots, slots)
            if slopes:
                (slope[part],) = torch.autograd.grad(found.sum(), z)
        value[part] = found.detach()
    return value.reshape(lists, slots), slope.reshape(lists, slots, width)


def _race(z: Tensor, own: Tensor, slot: Tensor, slots: int) -> Tensor:
    mine, nodes = z.gather(1, own[:, None]), NODES[z.dtype]
    with torch.no_grad():
        first, last = -torch.logsumexp(z, 1, keepdim=True) - EARLY[z.dtype], LATE - mine
        step = (last - first) / (nodes - 1)
        y = first + step * torch.arange(nodes, device=z.device)
    before = torch.zeros(len(z), slots, nodes, dtype=z.dtype, device=z.device)
    before[:, 0] = 1.0  # how likely so many of the others have arrived
    for b in range(z.shape[1]):
        arrived = -torch.expm1(-torch.exp(z[:, b, None] + y))
        arrived = torch.where((own == b)[:, None], 0.0, arrived)[:, None]
        moved = torch.nn.functional.pad(before[:, :-1], (0, 0, 1, 0))
        before = before + (moved - before) * arrived
    hazard = mine + y
    density = torch.exp(hazard - torch.exp(hazard))
    places = slot[:, None, None].expand(-1, 1, nodes)
    return (before.gather(1, places)[:, 0] * density * step).sum(1)
