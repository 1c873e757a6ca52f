"""`PlackettLuce`: a policy that shows lists, drawn without replacement by the scores of another policy."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from counterpoise.errors import Argument, Blank, OptionError
from counterpoise.learn.actions import Ids, placed
from counterpoise.learn.policy import Policy, cooled, generator_of, noisy, serving
from counterpoise.learn.ranking.probabilities import ABSENT, at_slots, pools
from counterpoise.log.lists import CONDITIONAL, MARGINAL

Floats = NDArray[np.float64]
FAR = 1e3  # between logits of which the larger always wins


class Shown(NamedTuple):
    """Lists that a policy drew, and the probabilities that your logger must record with them."""

    items: NDArray[np.int64]
    """The ids of the items, lists × slots."""
    given_above: Floats
    """The probability of every item given those above it: `propensity_of="item_given_above"`."""
    propensity: Floats
    """The probability of every list as a whole, the product of those."""

    def columns(self, *, first_list: int = 0) -> dict[str, NDArray[Any]]:
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
        self.context_, self.actions_ = scores.context_, scores.actions_

    def config(self) -> dict[str, Any]:
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
        """The probability of every item at its slot, whatever stands elsewhere, differentiable; see `ranking.marginals`."""
        return at_slots(self(context), self._places(items))[0]

    def _best(self, context: Tensor, candidates: Tensor | None) -> Tensor:
        """The items with the largest scores, which are the most probable list."""
        self._check_enough(candidates)
        return torch.topk(self.logits_among(context, candidates), self.slots).indices

    @property
    def item_ids(self) -> Ids | None:
        """The ids of the items, unless they are 0, 1, 2, …; those of a ranker are whole numbers."""
        if self._ids is not None and self._ids.dtype == object:
            raise OptionError("the items of a ranker must be whole numbers.", do="Number them first.")
        return cast("Ids | None", self._ids)

    def sample(  # type: ignore[override]
        self,
        context: ArrayLike | Tensor,
        candidates: Any = None,
        *,
        temperature: float | None = None,
        mask: Any = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Shown:
        """One list per context, drawn from the policy, with its propensities: the largest of logits with Gumbel noise, in order.

        `temperature` and `mask` are those of `Policy.sample`; at temperature 0, lists are the most probable ones, with propensity 1.
        """
        inputs = self.inputs(context)
        served, allowed = self._served(len(inputs), candidates, mask, temperature)
        self._check_enough(allowed)
        random = generator_of(seed, generator, inputs.device)
        lists, parts = [], []
        with serving(self):
            for part, some in self._parts(inputs, allowed):
                logits = self._served_logits(part, some, served)
                lists.append(torch.topk(noisy(logits, random), self.slots).indices)
                parts.append(pools(logits, lists[-1]).log_given)
        log_given, items = torch.cat(parts).cpu(), self._named(torch.cat(lists)).cpu()
        return Shown(items.numpy(), log_given.exp().numpy(), log_given.sum(1).exp().numpy())

    def list_probabilities(self, context: ArrayLike, items: ArrayLike, propensity_of: str = CONDITIONAL) -> Floats:
        """The probabilities of logged lists, lists × slots, as `evaluate` asks for them where this policy is a `target`.

        They are of every item given those above it, or at its position whatever stands elsewhere. `items` are ids, with −1 below the
        end of a list; an item that the policy does not know has probability 0.
        """
        if propensity_of not in (MARGINAL, CONDITIONAL):
            raise OptionError([Argument("propensity_of", propensity_of), f" is not one of {MARGINAL}, {CONDITIONAL}."])
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
                [
                    Argument("mask"),
                    f" must allow {self.slots} items, as many as there are slots: in {few:,} rows it does not.",
                ]
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
            f"this policy shows {policy.slots} items, and these lists have up to {depth}.",
            do=[
                "Look at the top of the lists, such as ",
                Argument("where", Blank(f"'position <= {policy.slots}'")),
                ", or give the policy more slots.",
            ],
        )
