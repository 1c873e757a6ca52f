"""Policies around models of other libraries: scores of all actions, as numbers come out of them."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterpoise.errors import OptionError, TrainingError
from counterpoise.learn.policies.policy import Policy

if TYPE_CHECKING:
    from counterpoise.learn.logs.encoding import Encoding

Scores = Callable[[NDArray[np.float32]], NDArray[Any]]


class ModelPolicy:
    """A softmax of the scores that a model of another library gives to actions, or the best of them at temperature 0."""

    def __init__(self, scores: Scores, n_actions: int) -> None:
        self.scores, self.n_actions = scores, n_actions
        self.temperature = 1.0
        self.context_: tuple[str, ...] = ()
        self.actions_: NDArray[Any] | None = None
        self.encoding_: Encoding | None = None
        self.candidates_: str | None = None

    @property
    def classes_(self) -> NDArray[Any]:
        """The actions, in the order of `predict_proba`'s columns."""
        return np.arange(self.n_actions) if self.actions_ is None else self.actions_

    def predict_proba(self, context: ArrayLike) -> NDArray[np.float64]:
        """The probabilities of all actions, one row per context."""
        return self._table(context, self.temperature, None)

    def sample(
        self,
        context: ArrayLike,
        *,
        temperature: float | None = None,
        mask: ArrayLike | None = None,
        seed: int | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """One action per row, drawn from the policy, and its probability, which your logger must record with it.

        `temperature` and `mask` (contexts × actions, or one row for all; True for what is allowed) are as in `Policy.sample`.
        """
        table = self._table(context, self.temperature if temperature is None else temperature, mask)
        drawn = np.random.default_rng(seed).random(len(table))[:, None]
        places = np.minimum((table.cumsum(axis=1) < drawn).sum(axis=1), table.shape[1] - 1)
        return self.classes_[places], table[np.arange(len(table)), places]

    def _table(self, context: ArrayLike, temperature: float, mask: ArrayLike | None) -> NDArray[np.float64]:
        """The probabilities of all actions that are allowed, at a temperature."""
        is_numbers = isinstance(context, np.ndarray) and context.dtype.kind in "biuf"
        if self.encoding_ is not None and not is_numbers:
            context = self.encoding_.table(context)
        scores = np.asarray(self.scores(np.array(context, dtype=np.float32, ndmin=2)), dtype=np.float64)
        if mask is not None:
            allowed = np.broadcast_to(np.asarray(mask, dtype=bool), scores.shape)
            if not allowed.any(axis=1).all():
                raise OptionError("the mask rules out every action of a context.", do="Allow at least one.")
            scores = np.where(allowed, scores, -np.inf)
        if temperature == 0:
            return np.asarray(scores.argmax(axis=1)[:, None] == np.arange(scores.shape[1]), dtype=np.float64)
        found = np.exp((scores - scores.max(axis=1, keepdims=True)) / temperature)
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def save(self, path: str | PathLike[str]) -> NoReturn:
        """Not possible: a model of another library would have to be pickled."""
        raise OptionError(
            "a policy around a model of another library cannot be saved here.",
            do="Save it the way that library does, or learn a network or a forest, which can be saved.",
        )


def as_policy(found: Any, n_actions: int) -> Policy | ModelPolicy:
    """What a contender learned as a policy: anything with `predict_proba` is one, with `classes_` if a column is not every action's.

    >>> class Second:
    ...     classes_ = [1]
    ...     def predict_proba(self, context):
    ...         return np.ones((len(context), 1))
    >>> as_policy(Second(), 3).predict_proba([[0.5], [0.7]]).tolist()
    [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    """
    if isinstance(found, Policy | ModelPolicy):
        return found
    if not hasattr(found, "predict_proba"):
        raise TrainingError(
            f"a contender learned a {type(found).__name__}, which has no predict_proba.",
            do="Return a policy, or anything that has it.",
        )
    known = np.asarray(getattr(found, "classes_", np.arange(n_actions)), dtype=np.int64)

    def scores(context: NDArray[np.float32]) -> NDArray[np.float64]:
        table = np.full((len(context), n_actions), -np.inf)
        with np.errstate(divide="ignore"):
            table[:, known] = np.log(found.predict_proba(context))
        return table

    return ModelPolicy(scores, n_actions)
