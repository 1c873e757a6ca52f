"""`ClassificationBandit`: any classification data set as a bandit with a known truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterpoise.environments.feedback import (
    Feedback,
    Floats,
    check_at_least,
    check_probabilities,
    check_seed,
    sample_actions,
)
from counterpoise.errors import OptionError


class LabelPredictor(Protocol):
    """Anything that has been fitted and predicts labels from contexts, as scikit-learn's classifiers do."""

    def predict(self, X: Floats, /) -> ArrayLike: ...  # noqa: N803


class ClassificationBandit:
    """A classification data set seen as a bandit: the actions are the labels; the right one earns 1, the others 0.

    We know every row's label, and therefore the true value of any policy: its accuracy. We also know the probabilities of the
    policy that logs the rows, so the propensities are exact.

    Examples
    --------
    The value of a policy is its accuracy:

    >>> world = ClassificationBandit([[0.0], [1.0], [2.0], [3.0]], ["a", "b", "b", "b"], seed=1)
    >>> world.labels.tolist(), world.draw().value(np.array([1, 1, 1, 1]))
    (['a', 'b'], 0.75)

    With scikit-learn: ``ClassificationBandit(*load_digits(return_X_y=True))``.

    References
    ----------
    Dudík, Langford & Li, "Doubly robust policy evaluation and learning", ICML 2011, section 4.1.
    """

    def __init__(self, context: ArrayLike, label: ArrayLike, *, seed: int = 0) -> None:
        self.context = np.asarray(context, dtype=np.float64)
        labels = np.asarray(label)
        if self.context.ndim != 2 or labels.ndim != 1 or len(self.context) != len(labels):
            raise OptionError(
                "a classification data set needs a matrix of contexts and one label per row; "
                f"found contexts of shape {self.context.shape} and labels of shape {labels.shape}."
            )
        check_seed(seed)
        self.labels: NDArray[np.generic]
        self.labels, action = np.unique(labels, return_inverse=True)
        if len(self.labels) < 2:
            raise OptionError(f"a bandit needs at least 2 different labels to choose from; found {len(self.labels)}.")
        self._truth = action.astype(np.int64)
        self._random = np.random.default_rng(seed)

    @property
    def n_actions(self) -> int:
        return len(self.labels)

    def draw(self, n: int | None = None, *, logging: Callable[[Floats], ArrayLike] | None = None) -> Feedback:
        """Log every row once, or `n` rows drawn with replacement, with the policy `logging` (contexts → probabilities) or uniformly."""
        if n is None:
            context, truth = self.context, self._truth
        else:
            check_at_least("n", n, 1)
            rows = self._random.integers(len(self.context), size=n)
            context, truth = self.context[rows], self._truth[rows]
        shape = (len(context), self.n_actions)
        if logging is None:
            probability = np.full(shape, 1.0 / self.n_actions)
        else:
            probability = np.asarray(logging(context), dtype=np.float64)
            check_probabilities("the logging policy", probability, shape)
        action, _ = sample_actions(probability.T.copy(), self._random.random(len(context)))
        everyone = np.arange(self.n_actions)
        return Feedback(
            context=context,
            action=action,
            reward=(action == truth).astype(np.float64),
            propensity=probability[np.arange(len(action)), action],
            n_actions=self.n_actions,
            expected=lambda rows: (truth[rows, None] == everyone).astype(np.float64),
        )

    def policy_of(self, classifier: LabelPredictor, *, exploration: float = 0.0) -> Callable[[Floats], Floats]:
        """A fitted classifier as a policy: the label it predicts with probability 1 − exploration, otherwise one at random."""
        if not 0 <= exploration <= 1:
            raise OptionError(f"`exploration={exploration!r}` is not a probability; it must lie in [0, 1].")

        def policy(context: Floats) -> Floats:
            predicted = np.asarray(classifier.predict(context))
            action = np.minimum(np.searchsorted(self.labels, predicted), self.n_actions - 1)
            unknown = np.flatnonzero(self.labels[action] != predicted)
            if unknown.size:
                raise OptionError(
                    f"the classifier predicts {predicted[unknown].tolist()[0]!r}, a label that the data set does not have; "
                    f"its labels are {', '.join(map(str, self.labels[:10]))}{' …' if self.n_actions > 10 else ''}.",
                    do="Fit the classifier on labels of this data set.",
                )
            probability = np.full((len(context), self.n_actions), exploration / self.n_actions)
            probability[np.arange(len(context)), action] += 1.0 - exploration
            return probability

        return policy
