"""What spreads: powers of the weights and rewards, their largest values, and sums that a logarithm smooths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.errors import MomentsError
from counterpoise.moments import stored
from counterpoise.moments.moments import Floats

# -- `Powers`: sums of the first four powers of one column, which tell how few rows carry its variance -----------------

ORDERS = (1, 2, 3, 4)


@dataclass(frozen=True, eq=False)
class Powers:
    r"""How many numbers there are, and :math:`\sum_i (x_i - c)^k` for k = 1 to 4 around a center c near them. `+` merges.

    >>> day, night = Powers.of([0.0, 2.0]), Powers.of([4.0])
    >>> (day + night).kurtosis == Powers.of([0.0, 2.0, 4.0]).kurtosis == 1.5
    True
    """

    n: Any  # int, or an integer array for a stack
    center: Any  # float, or a float array for a stack
    sums: Floats

    @classmethod
    def of(cls, values: ArrayLike, center: float | None = None) -> Powers:
        """The powers of numbers in an array."""
        x = np.asarray(values, dtype=np.float64)
        c = center if center is not None else float(x.mean()) if x.size else 0.0
        return cls(x.size, c, np.array([((x - c) ** k).sum() for k in ORDERS]))

    @classmethod
    def stack(cls, parts: Sequence[Powers]) -> Powers:
        """Several of them as one, whose every field is an array; its properties then have one answer per member.

        >>> Powers.stack([Powers.of([0.0, 2.0]), Powers.of([1.0, 1.0])]).kurtosis.tolist()
        [1.0, 1.0]
        """
        n, centers = np.array([part.n for part in parts]), np.array([part.center for part in parts], dtype=np.float64)
        return cls(n, centers, np.array([part.sums for part in parts]).reshape(-1, len(ORDERS)))

    @classmethod
    def total(cls, parts: Sequence[Powers]) -> Powers:
        """All of them merged at once, around the center of the largest.

        >>> Powers.total([Powers.of([0.0, 2.0]), Powers.of([4.0]), NOTHING]).kurtosis
        1.5
        """
        known = [part for part in parts if part.n]
        if len(known) < 2:
            return known[0] if known else NOTHING
        every = cls.stack(known)
        center = float(every.center[every.n.argmax()])
        return cls(int(every.n.sum()), center, np.array([every._around(k, center).sum() for k in ORDERS]))

    def __getitem__(self, place: int) -> Powers:
        """One member of a stack, with what is known of it already."""
        member = Powers(int(self.n[place]), float(self.center[place]), self.sums[place])
        for name in ("kurtosis", "skewness"):
            if name in self.__dict__:
                member.__dict__[name] = float(self.__dict__[name][place])
        return member

    def __add__(self, other: Powers) -> Powers:
        if not isinstance(other, Powers):
            return NotImplemented
        if not self.n or not other.n:
            return self if self.n else other
        large, small = (self, other) if self.n >= other.n else (other, self)
        return Powers(self.n + other.n, large.center, large.sums + small.around(large.center).sums)

    def __radd__(self, other: object) -> Powers:
        return self if other == 0 else NotImplemented  # so that sum() works

    def around(self, center: float) -> Powers:
        """The same numbers seen from another center."""
        return Powers(self.n, center, np.stack([self._around(k, center) for k in ORDERS], axis=-1))

    def _around(self, order: int, center: Any) -> Any:
        """The sum of one power around another center, by the binomial theorem."""
        shift, total, known = np.asarray(self.center - center), self.n, self.sums[..., order - 1]
        if not shift.any():
            return known
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite sum stays one
            for j in range(1, order + 1):
                total = total * shift + math.comb(order, j) * self.sums[..., j - 1]
        return np.where(shift == 0.0, known, total)[()]

    def mean(self, order: int, center: Any) -> Any:
        """The mean of (x − center) to a power."""
        return self._around(order, center) / np.maximum(self.n, 1)

    @property
    def middle(self) -> Any:
        """The mean."""
        return self.center + self.sums[..., 0] / np.maximum(self.n, 1)

    @cached_property
    def skewness(self) -> Any:
        """Mean third power over the standard deviation to the third: 0 where the numbers do not vary.

        >>> round(Powers.of([0.0, 0.0, 0.0, 4.0]).skewness, 4)
        1.1547
        """
        center = self.middle
        variance = self.mean(2, center)
        varies = self._varies(variance, center)
        with np.errstate(over="ignore", invalid="ignore"):
            ratio = np.where(varies, self.mean(3, center) / np.where(varies, variance, 1.0) ** 1.5, 0.0)
        return ratio if ratio.ndim else float(ratio)

    @cached_property
    def kurtosis(self) -> Any:
        """Mean fourth power over squared variance: n at most, 1 at least, and 1 where the numbers do not vary."""
        center = self.middle
        variance = self.mean(2, center)
        varies = self._varies(variance, center)
        with np.errstate(over="ignore", invalid="ignore"):
            ratio = self.mean(4, center) / np.square(np.where(varies, variance, 1.0))
        bounded = np.where(varies, np.minimum(np.maximum(ratio, 1.0), self.n), 1.0)
        return bounded if bounded.ndim else float(bounded)

    def _varies(self, variance: Any, center: Any) -> Any:
        """Whether the numbers differ by more than rounding."""
        scale = np.maximum(np.maximum(np.abs(center), np.abs(self.center)), 1.0)
        return variance > np.square(1e-13 * scale)

    def to_plain(self) -> list[Any]:
        """These sums as plain numbers, ready for JSON."""
        return [self.n, self.center, *self.sums.tolist()]

    @classmethod
    def from_plain(cls, raw: Any) -> Powers:
        """What `to_plain` returned; a ValueError says what is wrong with anything else."""
        n, *rest = stored.items(raw, "powers")
        numbers: Sequence[float] = stored.numbers(rest, "powers").tolist()
        if len(numbers) != 1 + len(ORDERS) or numbers[2] < 0 or numbers[4] < 0:
            raise ValueError("the sums of powers are damaged")
        return cls(stored.count(n, "powers"), numbers[0], np.array(numbers[1:]))


NOTHING = Powers(0, 0.0, np.zeros(len(ORDERS)))


# -- `Tail`: the largest weights of a log, which sums cannot show, and how heavy their tail is -------------------------


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
        weights = np.concatenate([np.empty(0), *(tail.weights for tail in parts)])
        few = np.partition(weights, -KEPT)[-KEPT:] if len(weights) > KEPT else weights
        return cls(np.sort(few)[::-1], sum(tail.zeros for tail in parts))


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


# -- `Smoothed`: sums of log(1 + λwr)/λ for several λ, which bound a value from below however heavy the weights are ----


SMALL = 1e-3  # up to here, five terms of the series have more digits than the logarithm of 1 + x


@dataclass(frozen=True, eq=False)
class Smoothed:
    r""":math:`\sum_i \log(1 + \lambda w_i r_i) / \lambda` for each of several λ. `+` merges.

    >>> day, night = Smoothed.of([0.0, 2.0], (0.5, 1.0)), Smoothed.of([4.0], (0.5, 1.0))
    >>> (day + night).sums.tolist() == Smoothed.of([0.0, 2.0, 4.0], (0.5, 1.0)).sums.tolist()
    True
    """

    lambdas: tuple[float, ...]
    sums: Floats

    @classmethod
    def of(cls, weighted: ArrayLike, lambdas: tuple[float, ...]) -> Smoothed:
        """The sums of weighted rewards in an array; one below 0, which no bound is made of, counts as 0."""
        x = np.maximum(np.asarray(weighted, dtype=np.float64), 0.0)
        return cls(lambdas, np.array([np.log1p(smoothing * x).sum() / smoothing for smoothing in lambdas]))

    def __add__(self, other: Smoothed) -> Smoothed:
        if not isinstance(other, Smoothed):
            return NotImplemented
        if not self.lambdas or not other.lambdas:
            return self if self.lambdas else other
        if self.lambdas != other.lambdas:
            what = f"sums that were smoothed differently cannot be added: {self.lambdas} and {other.lambdas}."
            raise MomentsError(what, do="Evaluate both logs the same way.")
        return Smoothed(self.lambdas, self.sums + other.sums)

    def nearest(self, wanted: float) -> tuple[float, float]:
        """The λ nearest to the wanted one, by their ratio, and its sum."""
        k = int(np.argmin(np.abs(np.log(np.array(self.lambdas) / wanted))))
        return self.lambdas[k], float(self.sums[k])

    def to_plain(self) -> list[list[float]]:
        """Pairs of λ and its sum, ready for JSON."""
        return [[smoothing, total] for smoothing, total in zip(self.lambdas, self.sums.tolist(), strict=True)]

    @classmethod
    def from_plain(cls, raw: Any) -> Smoothed:
        """What `to_plain` returned; a ValueError says what is wrong with anything else."""
        pairs = stored.numbers(stored.items(raw, "smoothed sums"), "smoothed sums").reshape(-1, 2)
        if (pairs[:, 0] <= 0).any() or (pairs[:, 1] < 0).any():
            raise ValueError("the smoothed sums are damaged")
        return cls(tuple(pairs[:, 0].tolist()), pairs[:, 1].copy())


UNSMOOTHED = Smoothed((), np.zeros(0))
