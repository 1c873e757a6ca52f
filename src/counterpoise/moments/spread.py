"""What spreads: powers of the weights and rewards, their largest values, sums that a logarithm smooths, and how many rows they leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterpoise.errors import MomentsError
from counterpoise.moments import stored
from counterpoise.moments.moments import Floats, Moments, Stacked, Truth

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
        x = x - c
        square = x * x  # a third or fourth power by `**` takes twenty times as long
        return cls(x.size, c, np.array([x.sum(), square.sum(), (square * x).sum(), (square * square).sum()]))

    @classmethod
    def stack(cls, parts: Sequence[Powers]) -> Powers:
        """Several of them as one, whose every field is an array; its properties then have one answer per member.

        >>> Powers.stack([Powers.of([0.0, 2.0]), Powers.of([1.0, 1.0])]).kurtosis.tolist()
        [1.0, 1.0]
        """
        if isinstance(parts, EachPowers):
            return parts.whole
        n, centers = np.array([part.n for part in parts]), np.array([part.center for part in parts], dtype=np.float64)
        return cls(n, centers, np.array([part.sums for part in parts]).reshape(-1, len(ORDERS)))

    @classmethod
    def total(cls, parts: Sequence[Powers]) -> Powers:
        """All of them merged at once, around the center of the largest.

        >>> Powers.total([Powers.of([0.0, 2.0]), Powers.of([4.0]), NOTHING]).kurtosis
        1.5
        """
        every = cls.stack(parts)
        known = np.flatnonzero(every.n)
        if len(known) < 2:
            return every[int(known[0])] if len(known) else NOTHING
        center = float(every.center[every.n.argmax()])
        return cls(int(every.n.sum()), center, np.array([every._around(k, center)[known].sum() for k in ORDERS]))

    @classmethod
    def concat(cls, stacks: Sequence[Powers]) -> Powers:
        """The members of several stacks as one stack."""
        return cls(*(np.concatenate([getattr(stack, name) for stack in stacks]) for name in ("n", "center", "sums")))

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

    def _around(self, order: int, center: ArrayLike) -> Floats:
        """The sum of one power around another center, by the binomial theorem."""
        shift, total, known = np.asarray(self.center - np.asarray(center)), self.n, self.sums[..., order - 1]
        if not shift.any():
            return known
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite sum stays one
            for j in range(1, order + 1):
                total = total * shift + math.comb(order, j) * self.sums[..., j - 1]
        return np.where(shift == 0.0, known, total)[()]

    def mean(self, order: int, center: ArrayLike) -> Floats:
        """The mean of (x − center) to a power."""
        mean: Floats = self._around(order, center) / np.maximum(self.n, 1)
        return mean

    @property
    def middle(self) -> Floats:
        """The mean."""
        mean: Floats = self.center + self.sums[..., 0] / np.maximum(self.n, 1)
        return mean

    @cached_property
    def skewness(self) -> Stacked:
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
    def kurtosis(self) -> Stacked:
        """Mean fourth power over squared variance: n at most, 1 at least, and 1 where the numbers do not vary."""
        center = self.middle
        variance = self.mean(2, center)
        varies = self._varies(variance, center)
        with np.errstate(over="ignore", invalid="ignore"):
            ratio = self.mean(4, center) / np.square(np.where(varies, variance, 1.0))
        bounded = np.where(varies, np.minimum(np.maximum(ratio, 1.0), self.n), 1.0)
        return bounded if bounded.ndim else float(bounded)

    def _varies(self, variance: Floats, center: Floats) -> NDArray[np.bool_]:
        """Whether the numbers differ by more than rounding."""
        scale: Floats = np.maximum(np.maximum(np.abs(center), np.abs(self.center)), 1.0)
        return variance > np.square(1e-13 * scale)

    def to_plain(self) -> list[object]:
        """These sums as plain numbers, ready for JSON."""
        return [self.n, self.center, *self.sums.tolist()]

    @classmethod
    def from_plain(cls, raw: object) -> Powers:
        """What `to_plain` returned; a ValueError says what is wrong with anything else."""
        n, *rest = stored.items(raw, "powers")
        numbers: Sequence[float] = stored.numbers(rest, "powers").tolist()
        if len(numbers) != 1 + len(ORDERS) or numbers[2] < 0 or numbers[4] < 0:
            raise ValueError("the sums of powers are damaged")
        return cls(stored.count(n, "powers"), numbers[0], np.array(numbers[1:]))


class EachPowers(Sequence[Powers]):
    """The members of a stack one by one, each made when somebody asks for it: of 100,000 segments, most are never looked at.

    >>> len(EachPowers(Powers.stack([Powers.of([0.0, 2.0]), Powers.of([4.0])])))
    2
    """

    def __init__(self, whole: Powers) -> None:
        self.whole = whole

    def __len__(self) -> int:
        return len(self.whole.n)

    @overload
    def __getitem__(self, place: int) -> Powers: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Powers, ...]: ...
    def __getitem__(self, place: int | slice) -> Powers | tuple[Powers, ...]:
        if isinstance(place, slice):
            return tuple(self.whole[k] for k in range(len(self))[place])
        return self.whole[place]


NOTHING = Powers(0, 0.0, np.zeros(len(ORDERS)))


# -- `Tail`: the largest weights of a log, which sums cannot show, and how heavy their tail is -------------------------


KEPT = 1000  # the 3√n that `pareto_k` fits, of a log of 110,000 rows; 8 kB for each target and segment


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
        if len(parts) == 1:
            return parts[0]
        each = parts if isinstance(parts, EachTail) else None
        weights = np.concatenate([np.empty(0), *([tail.weights for tail in parts] if each is None else each.weights)])
        few = np.partition(weights, -KEPT)[-KEPT:] if len(weights) > KEPT else weights
        return cls(np.sort(few)[::-1], sum([tail.zeros for tail in parts] if each is None else each.zeros))


class EachTail(Sequence[Tail]):
    """The largest weights of one segment after the other, as tails that are made when somebody asks for them."""

    def __init__(self, weights: Sequence[Floats], zeros: Sequence[int]) -> None:
        self.weights, self.zeros = weights, zeros

    def __len__(self) -> int:
        return len(self.weights)

    @overload
    def __getitem__(self, place: int) -> Tail: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Tail, ...]: ...
    def __getitem__(self, place: int | slice) -> Tail | tuple[Tail, ...]:
        if isinstance(place, slice):
            return tuple(map(Tail, self.weights[place], self.zeros[place]))
        return Tail(self.weights[place], self.zeros[place])


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
        """The largest k that the tail leaves open; for rewards without a variance, one log in a thousand gives less than 0.5."""
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
    if positive[0] <= 1.1 * threshold:  # effectively bounded: the differences may be mere rounding
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
        """The sums of weighted rewards in an array; negative ones, for which there is no bound, count as 0."""
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
    def from_plain(cls, raw: object) -> Smoothed:
        """What `to_plain` returned; a ValueError says what is wrong with anything else."""
        pairs = stored.numbers(stored.items(raw, "smoothed sums"), "smoothed sums").reshape(-1, 2)
        if (pairs[:, 0] <= 0).any() or (pairs[:, 1] < 0).any():
            raise ValueError("the smoothed sums are damaged")
        return cls(tuple(pairs[:, 0].tolist()), pairs[:, 1].copy())


UNSMOOTHED = Smoothed((), np.zeros(0))


# -- What the weights leave of a log: how many rows it is still worth, and where the rewards that count lie ------------


def effective_sample_size(moments: Moments) -> Stacked:
    """(Σw)²/Σw²: how many rows of equal weight the log is worth; for a stack, one answer per member.

    >>> effective_sample_size(Moments.of(weight=[2.0, 0.0, 2.0, 0.0], reward=[1, 0, 1, 0]))
    2.0
    """
    mean = np.maximum(1.0 + moments.average("u"), 0.0)
    square = np.square(mean)
    size = np.where(mean > 0, moments.n * square / np.where(mean > 0, square + moments.covariance("u", "u"), 1.0), 0.0)
    return size if size.ndim else float(size)


def at_an_end(moments: Moments, end: Stacked, width: Stacked) -> NDArray[np.bool_]:
    """Whether the reward of every row with a weight is at one `end` of a range of this `width`; for a stack, one answer per member."""
    return (width == 0) | (abs(mean_distance(moments, end, np.where(width > 0, width, 1.0))) <= 1e-12)  # rounding


def mean_distance(moments: Moments, end: Stacked, width: Stacked) -> Floats:
    """The mean of w·(r − end), in units of the rewards' width."""
    apart: Floats = np.subtract(moments.center, end)  # w·(r − end) = (1 + u)(s + apart) = apart + apart·u + s + u·s
    rest = moments.average("s") / width + moments.average("us") / width
    return apart / width * (1.0 + moments.average("u")) + rest


def usual_ends(lowest: Stacked, highest: Stacked) -> tuple[Floats, Floats]:
    """The range of rewards as far as the log shows: 0 and 1 if it has nothing else, or else what it has seen."""
    low, high = np.asarray(lowest), np.asarray(highest)
    is_click = ((low == 0) | (low == 1)) & ((high == 0) | (high == 1))
    return np.where(is_click, 0.0, low)[()], np.where(is_click, 1.0, high)[()]


def carrying_rows(
    excess: Powers, rewards: Powers, ends: tuple[Stacked, Stacked], worth: tuple[Stacked, Stacked] | None = None
) -> Stacked:
    r"""How many rows carry the variance of a value or a difference: clicks (or other rewards) among the rows with large weights.

    .. math:: E = \frac{n}{\text{kurtosis}(u)} \cdot \min_{\text{ends}} \frac{\text{mean}(d^2)^2}{\text{mean}(d^4)}

    with u the excess of the weights (or the difference of two policies' weights) and d the distance of a reward from either end.
    The first factor counts the rows that carry the weights' variance, the second is the share of them whose reward differs from
    the usual one: the click rate, for clicks. Both are of the marginal distributions, so a click on a heavy row counts even if
    none has come up. Rewards of more than two values have a tail of which the log has seen only a part: they count half.

    Where rows were sampled by their rewards, the weights of those that are left are uneven for the same reason as their rewards, which
    would count twice: `worth` has the factor by which it does, for both ends.

    Examples
    --------
    A thousand rows of two equally frequent weights, and ten clicks:

    >>> round(carrying_rows(Powers.of([-0.5, 0.5] * 500), Powers.of([1.0] * 10 + [0.0] * 990), (0.0, 1.0)), 9)
    10.0
    """
    width = np.asarray(ends[1] - ends[0])
    shares = []
    with np.errstate(over="ignore", invalid="ignore"):
        for k, end in enumerate(ends):
            square, fourth = rewards.mean(2, end), rewards.mean(4, end)
            is_there = fourth > (1e-7 * width) ** 4  # rounding
            share = np.square(square) / np.where(is_there, fourth, 1.0)
            if worth is not None:
                share = share * worth[k]
            shares.append(np.where(is_there, share, 0.0))
    factor = np.where(has_two_values(rewards, ends), 1.0, 0.5)
    rows = factor * excess.n / excess.kurtosis * np.minimum(*shares)
    carrying = np.where((np.asarray(excess.n) > 0) & (width > 0), rows, 0.0)
    return carrying if carrying.ndim else float(carrying)


def outcome_rows(excess: Powers, rewards: Powers, ends: tuple[float, float]) -> float:
    r"""How many of the rows that carry the weights' variance have another reward than the usual one, whatever its size.

    .. math:: \frac{n}{\text{kurtosis}(u)} \cdot \min_{\text{ends}} \frac{\text{mean}(d)^3 \, \text{mean}(d^3)}{\text{mean}(d^2)^3}

    The share is exact for clicks, where this is `carrying_rows`, and for amounts of a lognormal distribution, however wide: fewer of
    those carry the variance, but those that do not have come up, too. As there, rewards of more than two values count half.

    >>> spends = [0.0] * 850 + np.exp(np.random.default_rng(0).normal(size=150)).tolist()
    >>> known = Powers.of([-0.5, 0.5] * 500), Powers.of(spends), (0.0, max(spends))
    >>> round(outcome_rows(*known)), round(carrying_rows(*known))  # of 150 that were paid
    (57, 17)
    """
    if not excess.n or not ends[1] > ends[0]:
        return 0.0
    shares = []
    for end in ends:
        first, square, third = (abs(float(rewards.mean(order, end))) for order in (1, 2, 3))
        # in this order, no power of tiny rewards is rounded to 0
        share = (first / square * first) * (third / square * (first / square)) if square > 0 else 0.0
        shares.append(min(share, 1.0))
    factor = 1.0 if has_two_values(rewards, ends) else 0.5
    return float(factor * excess.n / excess.kurtosis * min(shares))


def has_two_values(rewards: Powers, ends: tuple[Stacked, Stacked]) -> Truth:
    """Whether rewards are at one end or the other, as clicks are: then, and only then, their mean square distance is width times mean.

    >>> has_two_values(Powers.of([0.0, 1.0, 1.0]), (0.0, 1.0)), has_two_values(Powers.of([0.0, 0.5, 1.0]), (0.0, 1.0))
    (True, False)
    """
    low, high = ends
    with np.errstate(over="ignore", invalid="ignore"):
        is_either = np.abs(rewards.mean(2, low) - (high - low) * rewards.mean(1, low)) <= 1e-9 * np.square(high - low)
    return is_either if np.ndim(is_either) else bool(is_either)


def usual_rewards(rewards: Powers, ends: tuple[Stacked, Stacked]) -> tuple[Floats, Floats]:
    """A high and a low reward that a row not seen yet may well have: from either end, the size-weighted mean distance of the others.

    >>> float(usual_rewards(Powers.of([0.0, 0.0, 0.0, 10.0, 30.0]), (0.0, 30.0))[1])
    25.0
    """
    low, high = ends
    usual = []
    for end, other in ((low, high), (high, low)):
        first, second = rewards.mean(1, end), rewards.mean(2, end)
        is_apart = np.abs(first) > 1e-12 * (high - low)
        with np.errstate(over="ignore", invalid="ignore"):
            usual.append(np.where(is_apart, end + second / np.where(is_apart, first, 1.0), other)[()])
    return usual[1], usual[0]


def below(count: float, limit: float) -> str:
    """A number below a limit, with enough digits to show that it is.

    >>> below(2.34, 7), below(6.96, 7), below(6.9996, 7)
    ('2.3', '6.96', '6.9996')
    """
    return next((text for digits in range(2, 16) if float(text := f"{count:.{digits}g}") < limit), repr(count))
