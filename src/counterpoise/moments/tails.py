"""`Tail`: the largest weights of a log, which sums cannot show, and how heavy their tail is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from counterpoise.moments.moments import Floats

KEPT = 1000


@dataclass(frozen=True, eq=False)
class Tail:
    """The `KEPT` largest weights in descending order, and how many weights are 0. `+` merges two of them.

    >>> (Tail(np.array([3.0, 1.0]), zeros=1) + Tail(np.array([2.0]), zeros=0)).weights.tolist()
    [3.0, 2.0, 1.0]
    """

    weights: Floats
    zeros: int

    def __add__(self, other: Tail) -> Tail:
        weights = np.sort(np.concatenate([self.weights, other.weights]))[::-1]
        return Tail(weights[:KEPT], self.zeros + other.zeros)

    @classmethod
    def total(cls, parts: Sequence[Tail]) -> Tail:
        """All of them merged at once."""
        weights = np.concatenate([np.empty(0), *(one.weights for one in parts)])
        few = np.partition(weights, -KEPT)[-KEPT:] if len(weights) > KEPT else weights
        return cls(np.sort(few)[::-1], sum(one.zeros for one in parts))


EMPTY = Tail(np.empty(0), 0)


def pareto_k(tail: Tail, n: int) -> float:
    """The shape k of the generalized Pareto distribution that fits the largest weights: moments up to order 1/k exist.

    Below 0.5 the weights have a variance; above 0.7 standard errors cannot be trusted. The fit uses the largest min(n/5, 3√n) weights, at
    most `KEPT`; it is nan if fewer than five of them differ from the smallest, and −1 if the largest are within a tenth of each other.

    >>> u = (np.arange(10_000) + 0.5) / 10_000
    >>> round(pareto_k(Tail(np.sort(u**-0.8)[::-1][:KEPT], 0), 10_000), 1)  # a Pareto tail of k = 0.8
    0.8

    References
    ----------
    Vehtari, Simpson, Gelman, Yao & Gabry, "Pareto smoothed importance sampling", JMLR 25 (2024); the fit is that of
    Zhang & Stephens, Technometrics 51 (2009).
    """
    return _shape(tail.weights, n).k


@dataclass(frozen=True)
class Shape:
    """The Pareto k of a tail, and its standard error; nan if there is no tail to speak of."""

    k: float = math.nan
    error: float = math.nan

    @property
    def most(self) -> float:
        """The largest k that the tail leaves open; of rewards without a variance, one log in a thousand says less than 0.5."""
        return self.k + 4.0 * self.error


def tail_shapes(values: Floats) -> tuple[Shape, Shape]:
    """The tails of some numbers below and above their median; they have a variance if both k are below 0.5.

    >>> u = (np.arange(10_000) + 0.5) / 10_000
    >>> below, above = tail_shapes(u**-0.6)
    >>> round(below.k, 1), round(above.k, 1), round(above.error, 2)
    (-1.0, 0.6, 0.09)
    """
    if not len(values):
        return Shape(), Shape()
    apart = values - np.median(values)
    below, above = (np.sort(side * apart)[: -KEPT - 1 : -1] for side in (-1.0, 1.0))
    return _shape(below, len(values)), _shape(above, len(values))


def _shape(largest: Floats, n: int) -> Shape:
    """The shape of the largest of n numbers, in descending order."""
    positive = largest[largest > 0]
    size = int(min(n / 5, 3 * math.sqrt(n), KEPT - 1, len(positive) - 1))
    if size < 5:
        return Shape()
    threshold = positive[size]
    if positive[0] <= 1.1 * threshold:  # as good as bounded: the differences may be nothing but rounding
        return Shape(-1.0, 0.0)
    x = np.sort(positive[:size] - threshold)
    x = x[x > 1e-6 * threshold]  # anything closer is the same weight, rounded
    if len(x) < 5:
        return Shape()
    k = _generalized_pareto_shape(x)
    return Shape(k, max(1.0 + k, 0.0) / math.sqrt(len(x)))  # of the likeliest k, for k above −0.5


def _generalized_pareto_shape(x: Floats) -> float:
    """Zhang & Stephens' quasi-Bayesian estimate, pulled toward 0.5 with the weight of ten observations as in Vehtari et al."""
    m = len(x)
    grid = 30 + int(math.sqrt(m))
    quartile = x[int(m / 4 + 0.5) - 1]
    theta = 1.0 / x[-1] + (1.0 - np.sqrt(grid / (np.arange(grid) + 0.5))) / (3.0 * quartile)
    theta = theta[theta != 0]
    shape = np.log1p(-theta[:, None] * x).mean(axis=1)
    likelihood = m * (np.log(-theta / shape) - shape - 1.0)
    posterior = np.exp(likelihood - likelihood.max())
    best = float((theta * posterior).sum() / posterior.sum())
    k = float(np.log1p(-best * x).mean())
    return (m * k + 10 * 0.5) / (m + 10)
