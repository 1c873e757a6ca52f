r"""Plackett–Luce: the probability of every item given those above it, or at its slot whatever stands elsewhere, with gradients.

With logits z, the item at slot k is drawn from the softmax of what is left, :math:`p_k(b) = e^{z_b} / Z_k` over the pool
:math:`R_k` of items that are not above, so that

.. math:: \frac{\partial \log \pi(a_k \mid a_{<k})}{\partial z} = s_k = e_{a_k} - p_k, \qquad
    \nabla_z \log \pi(a_1, \dots, a_k) = t_k = \sum_{j \le k} s_j

Inner products of the scores need two sums over each pool, :math:`Z_k = \sum_{R_k} e^{z_b}` and :math:`S_k = \sum_{R_k} e^{2 z_b}`:

.. math:: \langle s_k, s_k \rangle = 1 - 2 p_k(a_k) + S_k / Z_k^2, \qquad
    \langle s_j, s_k \rangle = \frac{S_k / Z_k - e^{z_{a_k}}}{Z_j} \quad (j < k)

because :math:`a_j` is not in the pool of k, while all of that pool is in that of j. Nothing here has a number per slot and item.

Items race, each with an exponential time at rate :math:`\theta_a = e^{z_a}`; the order of arrival is a Plackett–Luce draw. An item is at
slot k if k − 1 others are there before it:

.. math:: P(a, k) = \int_0^\infty \theta_a e^{-\theta_a t} \Pr(\text{exactly } k - 1 \text{ others by } t) \, dt

With t = eʸ the integrand is analytic and falls off at both ends, so that the trapezoidal rule converges geometrically: in double
precision this is exact to ten digits for any number of items, where a sum over lists would have n!/(n − k)! terms; in single precision, in
which policies train, to five. The work grows with items × slots² for a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# -- Items given those above them --------------------------------------------------------------------------------------

ABSENT = -1  # instead of an item, below the end of a list


@dataclass(frozen=True)
class Pools:
    """The items of lists and what was left at each slot: every tensor has a row per list and a column per slot."""

    there: Tensor  # whether the list has this slot
    is_repeated: Tensor  # whether the item is above already, which no Plackett–Luce policy would do
    score: Tensor  # the item's logit
    log_total: Tensor  # log Z
    log_squares: Tensor | None = None  # log S

    @property
    def counts(self) -> Tensor:
        """Where there is an item that could be drawn."""
        return self.there & ~self.is_repeated

    @property
    def log_given(self) -> Tensor:
        """log π(a_k | a_1, …, a_{k−1}): 0 below the end of a list, and −∞ for an item that is above already."""
        log_given = torch.where(self.there, self.score - self.log_total, 0.0)
        return torch.where(self.is_repeated, -torch.inf, log_given)


def pools(logits: Tensor, items: Tensor, *, squares: bool = False) -> Pools:
    """What was left at each slot of lists of places in `logits`; `squares` adds log S, which has no gradient.

    >>> left = pools(torch.zeros(1, 4), torch.tensor([[2, 0, ABSENT]]))
    >>> [round(p, 3) for p in left.log_given[0].exp().tolist()]
    [0.25, 0.333, 1.0]
    """
    there = items != ABSENT
    same = (items[:, :, None] == items[:, None, :]) & there[:, :, None]
    is_repeated = same.tril(-1).any(2)
    place = torch.where(there, items, items.max(1, keepdim=True).values.clamp(min=0))
    score = logits.gather(1, place)
    # what is shown further down plus what is not shown at all: a difference of sums would lose all digits of a sharp policy
    is_shown = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, place, True)
    lowest = torch.finfo(logits.dtype).min / 8
    low = torch.where(there & ~is_repeated, score, lowest)
    rest = logits.masked_fill(is_shown, lowest)
    total = _left(low, rest, lowest)
    if not squares:
        return Pools(there, is_repeated, score, total)
    return Pools(there, is_repeated, score, total, _left(2 * low.detach(), 2 * rest.detach(), lowest))


def _left(shown: Tensor, rest: Tensor, lowest: float) -> Tensor:
    """The log-sum-exp over the pool of every slot."""
    slots = shown.shape[1]
    above = torch.ones(slots, slots, dtype=torch.bool, device=shown.device).tril(-1)
    below = shown[:, None, :].masked_fill(above, lowest)
    others = torch.logsumexp(rest, 1)[:, None, None].expand(-1, slots, 1)
    return torch.logsumexp(torch.cat([below, others], 2), 2)


def prefix_products(left: Pools) -> Tensor:
    r"""The inner products :math:`\langle t_j, t_k \rangle` of the gradients of log π(a_1, …, a_k), lists × slots × slots."""
    assert left.log_squares is not None
    score, total, squares = left.score.detach(), left.log_total.detach(), left.log_squares
    log_own = score - total
    own, share = log_own.exp(), (squares - 2 * total).exp()
    # written so, and not 1 − 2p + S/Z², because it loses fewer digits where p is close to 1
    diagonal = (1 - own).square() + (share - own.square()).clamp(min=0)
    apart = (squares[:, None, :] - total[:, :, None] - total[:, None, :]).exp() - (
        score[:, None, :] - total[:, :, None]
    ).exp()
    upper = apart.triu(1)
    scores = upper + upper.transpose(1, 2) + torch.diag_embed(diagonal)
    counts = left.counts
    scores = torch.where(counts[:, :, None] & counts[:, None, :], scores, 0.0)
    return scores.cumsum(1).cumsum(2)


# -- Items at their slots, whatever stands elsewhere -------------------------------------------------------------------


NODES = {torch.float64: 160, torch.float32: 72}
EARLY = {torch.float64: 30.0, torch.float32: 18.0}  # how far before anybody arrives the integrand still counts, in y
LATE = 3.8  # and how far after the item itself
CELLS = 2**23  # numbers in memory at a time


def at_slots(logits: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """P(a, k) of the item at every slot (1 below the end of a list), differentiable, and ∂P/∂z, lists × slots × items, which is not.

    Without a gradient to compute, the second is lists × slots × 0.

    >>> value, _ = at_slots(torch.tensor([[0.0, 0.0, 2.0]], dtype=torch.float64).log1p(), torch.tensor([[2, 0, ABSENT]]))
    >>> [round(p, 4) for p in value[0].tolist()]
    [0.6, 0.35, 1.0]
    """
    value, slope = _AtSlots.apply(logits, items)  # type: ignore[no-untyped-call]
    return value, slope


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
            probability = _race(z, own[part], part % slots, slots)
            if slopes:
                (slope[part],) = torch.autograd.grad(probability.sum(), z)
        value[part] = probability.detach()
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
