r"""`PlackettLuce`: a policy that shows lists, drawn without replacement by the scores of another policy; and the probabilities of lists.

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
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from counterpoise.errors import OptionError
from counterpoise.learn.actions import ActionIds, Candidates, ids_in, placed
from counterpoise.learn.policy import Contexts, Policy, cooled, generator_of, noisy, serving
from counterpoise.log.parts import CONDITIONAL, MARGINAL
from counterpoise.moments import Floats

FAR = 1e3  # between logits of which the larger always wins

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
        (lists, slots), slopes = items.shape, ctx.needs_input_grad[0]
        own, width = items.reshape(-1), logits.shape[1] if slopes else 0
        value, slope = logits.new_ones(lists * slots), logits.new_zeros(lists * slots, width)
        there = torch.nonzero(own != ABSENT).flatten()
        cells = NODES[logits.dtype] * slots * logits.shape[1]
        # some slots at a time; each has a copy of the logits, so that one backward pass tells them apart
        for part in there.split(max(1, CELLS // cells)):  # type: ignore[no-untyped-call]
            with torch.set_grad_enabled(slopes):
                z = logits.detach()[part // slots].requires_grad_(slopes)
                probability = _race(z, own[part], part % slots, slots)
                if slopes:
                    (slope[part],) = torch.autograd.grad(probability.sum(), z)
            value[part] = probability.detach()
        value, slope = value.reshape(lists, slots), slope.reshape(lists, slots, width)
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(slope)
        return value, slope

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return (gradients[0][:, :, None] * slope).sum(1), None


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


# -- The policy --------------------------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """Lists that a policy drew, and the probabilities that your logger must record with them."""

    items: NDArray[np.int64]
    """The ids of the items, rankings × positions."""
    given_above: Floats
    """The probability of every item given those above it: `propensity_of="item_given_above"`."""
    propensity: Floats
    """The probability of every ranking as a whole, the product of those."""

    def columns(self, *, first_list: int = 0) -> dict[str, NDArray[np.int64] | Floats]:
        """One row per position, as a log of lists has them; positions count from 1.

        >>> Shown(np.array([[7, 3]]), np.array([[0.5, 0.25]]), np.array([0.125])).columns()["position"].tolist()
        [1, 2]
        """
        lists, slots = self.items.shape
        return {
            "list": np.repeat(np.arange(first_list, first_list + lists), slots),
            "position": np.tile(np.arange(1, slots + 1), lists),
            "item": self.items.ravel(),
            "propensity": self.given_above.ravel(),
        }


class PlackettLuce(Policy):
    r"""Shows `slots` items, one after the other, each drawn from the softmax of the scores of those that are left.

    .. math:: \pi(a_1, \dots, a_K \mid x) = \prod_k \frac{e^{f(x, a_k)}}{\sum_{a \notin \{a_1, \dots, a_{k-1}\}} e^{f(x, a)}}

    `scores` is any policy with a logit per item: `LinearSoftmax`, `MLP`, `TwoTower`, `ModulePolicy`, or one of yours. Lists are tensors
    with a row per context and a column per slot; a list may be shorter than that, and has `ABSENT` (−1) below its end.
    `predict_proba` is what a list begins with: the probabilities of the first slot.

    Examples
    --------
    >>> from counterpoise.learn import LinearSoftmax
    >>> policy = PlackettLuce(LinearSoftmax(context_dimension=2, n_actions=4), slots=2)
    >>> shown = policy.sample(np.zeros((3, 2)), seed=0)
    >>> shown.items.shape, shown.given_above[0].round(3).tolist(), round(float(shown.propensity[0]), 3)
    ((3, 2), [0.25, 0.333], 0.083)
    """

    scores: Policy

    def __init__(self, scores: Policy, slots: int) -> None:
        super().__init__()
        if not isinstance(scores, Policy) or isinstance(scores, PlackettLuce):
            raise OptionError(
                f"scores must be a Policy with a logit per item; found {type(scores).__name__}.",
                do="Wrap a module that gives a logit per item in a ModulePolicy.",
            )
        whole = isinstance(slots, int) and not isinstance(slots, bool)
        if not whole or not 1 <= slots <= scores.n_actions:
            raise OptionError(
                f"slots must be a whole number from 1 to the {scores.n_actions:,} items that there are; found {slots!r}."
            )
        self.body, self.scores = nn.Identity(), scores
        self.slots, self.n_actions, self.context_dimension = slots, scores.n_actions, scores.context_dimension
        self.context_, self.action_, self.actions_ = scores.context_, scores.action_, scores.actions_

    def config(self) -> dict[str, object]:
        return {"slots": self.slots, "kind": type(self.scores).__name__, "arguments": self.scores.config()}

    def log_given_above(self, context: Tensor, items: Tensor) -> Tensor:
        """log π(a_k | x, a_1, …, a_{k−1}) at every slot, differentiable."""
        return pools(self(context), self._places(items)).log_given

    def log_target(self, context: Tensor, action: Tensor) -> Tensor:
        """log π of whole lists, differentiable."""
        return self.log_given_above(context, action).sum(-1)

    def target(self, context: Tensor, action: Tensor) -> Tensor:
        """π of whole lists, differentiable."""
        return self.log_target(context, action).exp()

    def at_position(self, context: Tensor, items: Tensor) -> Tensor:
        """The probability of every item at its slot, whatever stands elsewhere, differentiable; see `at_slots`."""
        return at_slots(self(context), self._places(items))[0]

    def _best(self, context: Tensor, candidates: Tensor | None) -> Tensor:
        """The items with the largest scores, which are the most probable list."""
        self._check_enough(candidates)
        return torch.topk(self.logits_among(context, candidates), self.slots).indices

    @property
    def item_ids(self) -> ActionIds | None:
        """The ids of the items, unless they are 0, 1, 2, …; those of a ranker are whole numbers."""
        if self._ids is not None and self._ids.dtype == object:
            raise OptionError("the items of a ranker must be whole numbers.", do="Number them first.")
        return ids_in(self._ids)

    def sample(  # type: ignore[override]
        self,
        context: Contexts,
        candidates: Candidates = None,
        *,
        temperature: float | None = None,
        mask: Candidates = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Shown:
        """One list per context, drawn from the policy, with its propensities: the largest of logits with Gumbel noise, in order.

        `temperature` and `mask` are those of `Policy.sample`; at temperature 0, lists are the most probable ones, with propensity 1.
        """
        inputs, served, allowed = self._served(context, candidates, mask, temperature)
        self._check_enough(allowed)
        random = generator_of(seed, generator, inputs.device)
        lists, parts = [], []
        with serving(self):
            for part, some in self._parts(inputs, allowed):
                logits = self._served_logits(part, some, served)
                lists.append(torch.topk(noisy(logits, random), self.slots).indices)
                parts.append(pools(logits, lists[-1]).log_given)
        log_given, places, ids = torch.cat(parts).cpu(), torch.cat(lists).cpu().numpy(), self.item_ids
        items = places if ids is None else ids[places]
        return Shown(items, log_given.exp().numpy(), log_given.sum(1).exp().numpy())

    def list_probabilities(self, context: Contexts, items: ArrayLike, propensity_of: str = CONDITIONAL) -> Floats:
        """The probabilities of logged lists, lists × slots, as `evaluate` asks for them where this policy is a `target`.

        They are of every item given those above it, or at its position whatever stands elsewhere. `items` are ids, with −1 below the
        end of a list; an item that the policy does not know has probability 0.
        """
        if propensity_of not in (MARGINAL, CONDITIONAL):
            raise OptionError(f"`propensity_of={propensity_of!r}` is not one of {MARGINAL}, {CONDITIONAL}.")
        logged = torch.as_tensor(np.array(items, dtype=np.int64))
        check_depth(self, logged.shape[-1])
        places = placed(self.item_ids, logged)
        places = torch.where((places < 0) | (places >= self.n_actions), ABSENT, places)
        probabilities, inputs = [], self.inputs(context)
        with serving(self):
            for part, shown in self._parts(inputs, places):
                logits = self._served_logits(part, None, self.temperature)
                is_given = propensity_of == CONDITIONAL
                probabilities.append(pools(logits, shown).log_given.exp() if is_given else at_slots(logits, shown)[0])
        known = torch.cat(probabilities).cpu().clamp(max=1.0)
        return torch.where((places == ABSENT) & (logged != ABSENT), 0.0, known).numpy()

    def _served_logits(self, context: Tensor, candidates: Tensor | None, temperature: float) -> Tensor:
        """As for single actions; but at temperature 0, each item is next for sure, the second as well as the first."""
        logits = self.logits_among(context, candidates).double()
        if temperature:
            return cooled(logits, temperature)
        rank: Tensor = logits.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        return -FAR * rank.double()

    def _check_enough(self, mask: Tensor | None) -> None:
        """Check that every mask allows as many items as there are slots."""
        few = 0 if mask is None else int((mask.sum(-1) < self.slots).sum())
        if few:
            raise OptionError(
                f"`mask=` must allow {self.slots} items, one for each position: in {few:,} rows it does not."
            )

    def _places(self, action: Tensor) -> Tensor:
        """The columns of the logits that belong to items; what is absent stays so."""
        there = action != ABSENT
        some = 0 if self._ids is None else int(self._ids[0])
        return torch.where(there, super()._places(torch.where(there, action, some)), ABSENT)


def check_depth(policy: PlackettLuce, depth: int) -> None:
    """Check that a policy shows as many items as lists have."""
    if depth > policy.slots:
        raise OptionError(
            f"this policy shows {policy.slots} items, and these rankings have up to {depth}.",
            do=f"Look at the top of the rankings, such as `where='position <= {policy.slots}'`, or pass the policy more `slots=`.",
        )
