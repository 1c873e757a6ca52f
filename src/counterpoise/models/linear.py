"""Linear models of context and action: the score is f(x) + g(a), and no pair of the two is ever made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from counterpoise.models.design import Design
from counterpoise.models.fits import Alone, Codes, Constant, PerAction
from counterpoise.moments import Floats

Link = Callable[[NDArray[Any]], NDArray[Any]]


def identity(scores: NDArray[Any]) -> NDArray[Any]:
    """The score itself."""
    return scores


def sigmoid(scores: NDArray[Any]) -> NDArray[Any]:
    """1/(1 + exp(−score)), in the array's own memory.

    >>> sigmoid(np.array([0.0, -1000.0])).tolist()
    [0.5, 0.0]
    """
    np.negative(scores, out=scores)
    with np.errstate(over="ignore"):  # 1/∞ is 0
        np.exp(scores, out=scores)
    scores += 1.0
    found: NDArray[Any] = np.reciprocal(scores, out=scores)
    return found


def exponential(scores: NDArray[Any]) -> NDArray[Any]:
    """exp(score), in the array's own memory."""
    found: NDArray[Any] = np.exp(scores, out=scores)
    return found


LINKS: tuple[Link, ...] = (identity, sigmoid, exponential)


@dataclass(frozen=True)
class Scale:
    """Rewards from scores: a link, and for a classifier the two rewards that it tells apart."""

    link: Link
    low: float = 0.0
    high: float = 1.0

    def __call__(self, scores: NDArray[Any]) -> NDArray[Any]:
        found = self.link(scores)
        return found if (self.low, self.high) == (0.0, 1.0) else self.low + (self.high - self.low) * found

    def score(self, reward: float) -> float:
        """The score of which a reward is made."""
        share = (reward - self.low) / (self.high - self.low)
        if self.link is identity:
            return share
        with np.errstate(all="ignore"):
            return float(special.logit(share) if self.link is sigmoid else np.log(share))


def scales_of(estimator: Any) -> list[Scale]:
    """How an estimator may make rewards of scores; which one it is, a comparison tells."""
    classes = getattr(estimator, "classes_", None)
    if classes is None:
        return [Scale(link) for link in LINKS]
    return [Scale(sigmoid, float(classes[0]), float(classes[1]))] if len(classes) == 2 else []


@dataclass(frozen=True)
class Linear:
    """One linear model of context and action, taken apart: the weights of the context, and the score of every action."""

    weights: Floats
    scores: Floats
    scale: Scale

    def pairs(self, x: Floats, codes: Codes) -> Floats:
        """The scale of f(x) + g(a)."""
        return self.scale(x @ self.weights + self.scores[codes])

    def table(self, x: Floats, codes: Codes) -> NDArray[Any]:
        """The same for all actions."""
        f, g = (x @ self.weights).astype(np.float32), self.scores[codes].astype(np.float32)
        return self.scale(f[:, None] + g)


@dataclass(frozen=True)
class Stacked:
    """A linear model for every action: all scores at once are a product of matrices."""

    weights: Floats  # of the context, a column for each action
    scores: Floats
    scale: Scale

    def pairs(self, x: Floats, codes: Codes) -> Floats:
        """Each row with the weights of its action."""
        return self.scale(np.einsum("ij,ij->i", x, self.weights.T[codes]) + self.scores[codes])

    def table(self, x: Floats, codes: Codes) -> NDArray[Any]:
        """All rows with all weights."""
        return self.scale(x @ self.weights[:, codes] + self.scores[codes])


def linear(estimator: Any, design: Design) -> list[Linear]:
    """A linear model taken apart, in as many ways as it may have a link; nothing, if it is not linear."""
    coefficients = _coefficients(estimator)
    if coefficients is None:
        return []
    w, b = coefficients
    d = len(w) - design.features.shape[1]
    return [Linear(w[:d], np.asarray(design.features @ w[d:]) + b, scale) for scale in scales_of(estimator)]


def stacked(fit: PerAction) -> list[Stacked]:
    """Linear models of all actions in one, if they all are linear and alike."""
    models = [one.estimator for one in fit.models if isinstance(one, Alone)]
    found = {id(one): _coefficients(one.estimator) for one in fit.models if isinstance(one, Alone)}
    if not models or None in found.values():
        return []
    width = np.size(models[0].coef_)
    made = []
    for scale in scales_of(models[0]):
        pairs = [
            (np.zeros(width), scale.score(one.value))
            if isinstance(one, Constant)
            else found[id(one)] or (np.zeros(0), 0.0)
            for one in fit.models
        ]
        made.append(Stacked(np.column_stack([w for w, _ in pairs]), np.array([b for _, b in pairs]), scale))
    return made


def _coefficients(estimator: Any) -> tuple[Floats, float] | None:
    w, b = getattr(estimator, "coef_", None), getattr(estimator, "intercept_", None)
    if w is None or b is None or np.size(b) != 1 or np.ndim(w) > 2 or (np.ndim(w) == 2 and np.shape(w)[0] != 1):
        return None
    return np.asarray(w, dtype=np.float64).reshape(-1), float(np.asarray(b).reshape(-1)[0])
