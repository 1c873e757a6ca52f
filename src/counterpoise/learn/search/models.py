"""Policies around models of other libraries: scores of all actions, as numbers come out of them."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import TrainingError
from counterpoise.learn.logs.candidates import mask_of
from counterpoise.learn.policies.choices import Choices, checked_seed
from counterpoise.learn.policies.policy import Policy, known_places, table_of
from counterpoise.learn.policies.storage import foreign

if TYPE_CHECKING:
    from counterpoise.learn.logs.encoding import Encoding
    from counterpoise.log.sketches import Lesson

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
        self.lesson_: Lesson | None = None

    @property
    def classes_(self) -> NDArray[Any]:
        """The actions, in the order of `predict_proba`'s columns."""
        return np.arange(self.n_actions) if self.actions_ is None else self.actions_

    def predict_proba(
        self, context: Any, candidates: Any = None, *, temperature: float | None = None, mask: Any = None
    ) -> NDArray[np.float64]:
        """The probabilities of all actions, one row per context; the options are those of `Policy.predict_proba`."""
        return self._table(context, temperature, mask if candidates is None else candidates)

    def propensity(
        self, context: Any, action: Any, candidates: Any = None, *, temperature: float | None = None, mask: Any = None
    ) -> NDArray[np.float64]:
        """The probability of one action per context, which is 0 for an action that the policy does not know."""
        table = self._table(context, temperature, mask if candidates is None else candidates)
        at = known_places(self.classes_, action, len(table))
        return np.where(at < 0, 0.0, table[np.arange(len(table)), at])

    def greedy(self, context: Any, *, candidates: Any = None) -> NDArray[Any]:
        """The most probable action of every row."""
        return np.asarray(self.classes_[self._table(context, 0.0, candidates).argmax(axis=1)])

    def sample(
        self, context: Any, *, temperature: float | None = None, mask: Any = None, seed: int | None = None
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """One action per row, drawn from the policy, and its probability, which your logger must record with it.

        `temperature` and `mask` are as in `Policy.sample`.
        """
        random = np.random.default_rng(None if seed is None else checked_seed(seed) % 2**64)  # which takes none below 0
        table = self._table(context, temperature, mask)
        drawn = random.random(len(table))[:, None]
        places = np.minimum((table.cumsum(axis=1) < drawn).sum(axis=1), table.shape[1] - 1)
        return self.classes_[places], table[np.arange(len(table)), places]

    def _table(self, context: Any, temperature: float | None, mask: Any) -> NDArray[np.float64]:
        """The probabilities of all actions that are allowed, at a temperature or the policy's own."""
        served = Choices(self.temperature if temperature is None else temperature).temperature
        inputs = table_of(context, self.context_, self.encoding_).astype(np.float32)
        scores = np.asarray(self.scores(inputs), dtype=np.float64)
        if mask is not None:
            scores = np.where(mask_of(mask, self.classes_, len(scores)).numpy(), scores, -np.inf)
        if served == 0:
            return np.asarray(scores.argmax(axis=1)[:, None] == np.arange(scores.shape[1]), dtype=np.float64)
        found = np.exp((scores - scores.max(axis=1, keepdims=True)) / served)
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def save(self, path: str | PathLike[str]) -> NoReturn:
        """Not possible: a model of another library would have to be pickled."""
        raise foreign("saved")


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
