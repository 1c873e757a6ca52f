"""`Estimate`, and the one way to make it: a linear form of the rows, with its delta-method error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.display import number
from counterpoise.errors import OptionError
from counterpoise.moments import Floats, Moments
from counterpoise.moments.columns import SQUARE
from counterpoise.moments.moments import Stacked, Truth, inverse_sizes, least_squares

if TYPE_CHECKING:
    from counterpoise.intervals.method import Interval

Baseline = float | tuple[float, ...]
Baselines = Stacked | tuple[Stacked, ...]


@dataclass(frozen=True, repr=False)
class NoInterval:
    """Takes the place of an interval that has not been made yet; asking for its ends is an error."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # how Python and notebooks ask what an object can do
            raise AttributeError(name)
        _refuse()

    def __iter__(self) -> Iterator[float]:
        _refuse()

    def __contains__(self, value: object) -> bool:
        _refuse()

    def __repr__(self) -> str:
        return "none yet"


def _refuse() -> NoReturn:
    raise OptionError(
        "this estimate has no interval yet: an estimator gives a value and its error. Read it from the result of evaluate, or make one "
        "with interval() of a member of counterpoise.intervals."
    )


NONE_YET: Any = NoInterval()  # in the place of an `Interval`


@dataclass(frozen=True)
class Estimate:
    """What an estimator says: a value, its standard error, and the baseline(s) it used.

    If the log cannot tell the value, it is nan with an infinite standard error, and `identified` is False. For a stack of moments,
    every field holds arrays; `unstack` takes them apart. The estimates in a result have an `Interval`; estimators know nothing
    about intervals and leave it open.
    """

    name: str
    value: float
    stderr: float
    n: int
    baseline: Baseline
    interval: Interval = NONE_YET

    @property
    def identified(self) -> bool:
        """Whether the log says anything about this value."""
        return not math.isnan(self.value)

    def __str__(self) -> str:
        if not self.identified:
            return f"{self.name}: not identified (n = {self.n:,})"
        value, error = number(self.value, self.stderr), number(self.stderr, self.stderr)
        said = f"{self.name}: {value} ± {error}"
        if isinstance(self.interval, NoInterval):
            return f"{said} (n = {self.n:,})"
        lower, upper = (number(end, self.stderr) for end in self.interval)
        return f"{said} ({100 * self.interval.level:.4g} %: {lower} to {upper}, n = {self.n:,})"


def linear(
    name: str,
    moments: Moments,
    intercept: ArrayLike,
    coefficients: Mapping[str, ArrayLike] | Floats,
    *,
    baseline: Baselines,
    identified: Truth = True,
    fitted: int = 0,
    widening: Stacked = 1.0,
) -> Estimate:
    """The mean of intercept + Σ coefficient·column over the rows, and its standard error √(aᵀ·scatter·a)/n.

    Every estimator of the family has this form once its baseline is chosen. Coefficients come by column (0 for the others), or all of
    them in the columns' order. The variance divides by n (the paper's formula). It is infinite for one row, which says nothing about its
    own error, and if as many numbers were `fitted` to the rows as there are differences between them. It is never less than what
    rounding can hide when large terms cancel. `widening` multiplies the error.
    """
    a = np.zeros(moments.mean.shape)
    if isinstance(coefficients, Mapping):
        for column, coefficient in coefficients.items():
            a[..., moments.columns.index(column)] = coefficient
    else:
        a[...] = coefficients
    value = np.asarray(intercept) + (a * moments.mean).sum(axis=-1)
    square = np.einsum("...i,...ij,...j->...", a, moments.scatter, a)
    terms = np.einsum("...i,...ij,...j->...", np.abs(a), np.abs(moments.scatter), np.abs(a))
    root = np.sqrt(np.maximum(square, 4.0 * np.finfo(float).eps * terms))
    return estimate_of(
        name, value, root, moments.n, baseline=baseline, identified=identified, fitted=fitted, widening=widening
    )


def estimate_of(
    name: str,
    value: ArrayLike,
    root: ArrayLike,
    n: ArrayLike,
    *,
    baseline: Baselines,
    identified: Truth = True,
    fitted: int = 0,
    widening: Stacked = 1.0,
) -> Estimate:
    """An estimate from its value and the root of its summed squares; unknown values become nan with an infinite error."""
    known = np.asarray(identified) & (np.asarray(n) > 0) & ~np.isnan(value)
    stderr = np.where(known & (np.asarray(n) > 1 + fitted), np.asarray(root) / np.maximum(n, 1) * widening, np.inf)
    return _record(name, np.where(known, value, np.nan), stderr, n, baseline)


def _record(name: str, value: Floats, stderr: Floats, n: ArrayLike, baseline: Baselines) -> Estimate:
    if value.ndim:
        arrays: Any = (value, stderr, n, baseline)  # of a stack
        return Estimate(name, *arrays)
    numbers: Baseline = tuple(map(float, baseline)) if isinstance(baseline, tuple) else float(baseline)
    return Estimate(name, float(value), float(stderr), int(np.asarray(n)), numbers)


def unstack(estimate: Estimate, index: int) -> Estimate:
    """One member of an estimate made from a stack of moments; a field that is the same for all may be a single number."""

    def pick(part: ArrayLike) -> Floats:
        whole = np.asarray(part)
        return whole[index] if whole.ndim else whole

    baseline = tuple(map(pick, estimate.baseline)) if isinstance(estimate.baseline, tuple) else pick(estimate.baseline)
    return _record(estimate.name, pick(estimate.value), pick(estimate.stderr), pick(estimate.n), baseline)


# -- The slopes of an estimate: how it follows the means of the moments' columns ---------------------------------------


MOVED = 10**6  # numbers of scatters that are moved at once
STEP = 1e-4  # standard deviations of a column: what is curved adds its square to a slope, rounding 1e-16 divided by it


def gradient(estimator: Callable[[Moments], Estimate], moments: Moments) -> Floats:
    """∂value/∂mean of every column, by central differences; for a stack of groups, of a mean that moves in all of them.

    A column without variance has the slope 0.

    >>> from counterpoise.estimators.weighted import ips
    >>> gradient(ips, Moments.of([0.5, 2.0, 1.0], [1, 0, 3], center=2.0)).round(6).tolist()
    [2.0, 1.0, 1.0]
    """
    return slopes(lambda moved: (np.asarray(estimator(moved).value),), moments)[0]


def slopes(
    values: Callable[[Moments], Sequence[Floats]], moments: Moments, *, is_by_groups: bool = False
) -> list[Floats]:
    """The same of each of several `values` of a stack: what is moved is a stack, too, so that all means are moved at once."""
    count, d = np.asarray(moments.n), len(moments.columns)
    n, scatter = np.maximum(count, 1), np.einsum("...ii->...i", moments.scatter)
    step = STEP * np.sqrt(np.maximum(scatter, 0.0) / n[..., None])
    if is_by_groups:
        step = np.broadcast_to(step.max(axis=-2, keepdims=True), step.shape)
    made: list[list[Floats]] = []
    at_once = max(MOVED // max(moments.scatter.size, 1), 1)
    for first in range(0, d, at_once):
        columns = np.arange(first, min(first + at_once, d))
        move = step * np.expand_dims(np.eye(d)[columns], tuple(range(1, count.ndim + 1)))
        shape = (2 * len(columns), *count.shape)
        moved = Moments(
            np.broadcast_to(count, shape),
            np.concatenate([moments.mean + move, moments.mean - move]),
            np.broadcast_to(moments.scatter, (*shape, d, d)),
            np.broadcast_to(moments.center, shape),
            moments.columns,
        )
        size = np.moveaxis((step[..., 0, :] if is_by_groups else step)[..., columns], -1, 0)
        both = values(moved)
        if both[0].ndim <= count.ndim and not is_by_groups:
            return slopes(values, moments, is_by_groups=True)
        made.append([])
        for up, down in (np.split(value, 2) for value in both):
            by = size.reshape(*size.shape, *(1,) * (up.ndim - size.ndim))
            made[-1].append(np.divide(up - down, 2 * by, out=np.zeros(up.shape), where=by > 0))
    return [np.moveaxis(np.concatenate(parts), 0, -1) for parts in zip(*made, strict=True)]


# -- Coefficients of control variates, fitted on the scatter: by least squares, and for a context baseline by ridge ----


@dataclass(frozen=True, eq=False)
class ControlFit:
    """What is left of a response when its control variates are taken from it.

    `rest` is that as a linear form of the moments' columns. `fixed` are the coefficients of the controls that least squares fits alone,
    before the context is looked at, and `context` those of the columns u·φ. `widening` is what the error of the rest takes for having
    been fitted to the same rows.
    """

    rest: Floats
    fixed: Floats
    context: Floats
    widening: Floats


def fit(moments: Moments, fixed: Floats, response: Floats) -> ControlFit:
    """The response (a linear form of the columns) less its `fixed` controls (rows of a matrix over them), and less the context's columns.

    The fixed ones are fitted by least squares. Of what they leave, the context's columns take their share by ridge on their correlations,
    whose penalty follows from the same sums. Let a direction of the correlations, with eigenvalue Λ, explain z² of the scatter T that the
    response has left. If the context explained nothing, z² would be ν = κT/n on average, where κ says how few rows carry the weights'
    variance. Coefficients with variance τ² make that ν + Λτ²; so τ² is what all directions explain beyond ν each, over
    the sum of their Λ, and the penalty is ν/τ²: infinite where they explain no more than noise would.
    """
    shape, names = moments.shape, moments.context
    x = np.eye(len(moments.columns))[[moments.columns.index(name) for name in names]]
    responses = np.concatenate([response[None], x])
    both = least_squares(moments, fixed, responses)
    left = responses - np.swapaxes(both, -1, -2) @ fixed
    rest, x = left[..., 0, :], left[..., 1:, :]
    if not names:
        return ControlFit(rest, both[..., 0], np.zeros((*shape, 0)), np.ones(shape))
    cross = x @ moments.scatter @ np.swapaxes(x, -1, -2)
    inverse = inverse_sizes(moments, x, cross)
    values, turned = np.linalg.eigh(cross * inverse[..., :, None] * inverse[..., None, :])
    kept = values > 1e-10 * len(names)
    values = np.where(kept, values, 1.0)
    right = np.einsum("...ij,...jk,...k->...i", x, moments.scatter, rest) * inverse
    along = np.where(kept, np.einsum("...ji,...j->...i", turned, right), 0.0)
    explained = (np.square(along) / values).sum(axis=-1)
    total = np.einsum("...i,...ij,...j->...", rest, moments.scatter, rest)
    terms = np.einsum("...i,...ij,...j->...", np.abs(rest), np.abs(moments.scatter), np.abs(rest))
    explained = np.where(
        total > 1e-12 * terms, np.minimum(explained, total), 0.0
    )  # nothing but rounding is left to explain
    share = spread(moments, response[moments.columns.index("s")]) / np.maximum(np.asarray(moments.n), 1)
    noise, rank = share * total, kept.sum(axis=-1)
    signal = np.maximum(explained - _expected(rank) * noise, 0.0) / np.maximum((values * kept).sum(axis=-1), 1.0)
    signal, noise = signal[..., None], noise[..., None]
    trusted = np.divide(values * signal, values * signal + noise, out=np.zeros(values.shape), where=kept & (signal > 0))
    coefficients = np.einsum("...ij,...j->...i", turned, trusted * along / values) * inverse
    rest = rest - np.einsum("...i,...ij->...j", coefficients, x)
    return ControlFit(rest, both[..., 0], coefficients, 1.0 + share * trusted.sum(axis=-1))


def _expected(rank: Floats) -> Floats:
    """How much this many directions must explain, in units of one direction's noise, before we believe them."""
    return rank + np.sqrt(2.0 * rank)


def spread(moments: Moments, share: float) -> Floats:
    """κ = E[u²v²]/(E[u²]E[v²]), at least 1 and at most n, where a reward counts v times in the response: w = u + 1 times, or u times.

    A row's noise ε adds u·φ·vε to Σu·φ·(response), whose variance is κ times what it would be if all weights were alike.
    """
    first, second = moments.average("u"), moments.average(SQUARE)
    third = moments.covariance("u", SQUARE) + first * second
    fourth = moments.covariance(SQUARE, SQUARE) + np.square(second)
    together = fourth + share * (2.0 * third + second)
    apart = second * (second + share * (2.0 * first + 1.0))
    ratio = np.divide(together, apart, out=np.ones(moments.shape), where=apart > 0)
    return np.asarray(np.clip(ratio, 1.0, np.maximum(np.asarray(moments.n), 1)))
