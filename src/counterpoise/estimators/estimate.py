"""This file holds `Estimate`, and the one way to make it: a linear form of the rows, with its delta-method error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from statistics import NormalDist
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.errors import OptionError
from counterpoise.moments import Floats, Moments

Baseline = float | tuple[float, ...]


@dataclass(frozen=True)
class Interval:
    """A confidence interval, and how it was made."""

    lower: float
    upper: float
    level: float
    method: str
    note: str = ""

    def __iter__(self) -> Any:
        """So that `lower, upper = interval`."""
        return iter((self.lower, self.upper))

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    @property
    def width(self) -> float:
        """From end to end; infinite where the log says nothing."""
        return self.upper - self.lower


@dataclass(frozen=True)
class Estimate:
    """What an estimator says: a value, its standard error, and the baseline(s) it used.

    A value that the log cannot give is nan with an infinite standard error, and `identified` is False. For a stack of
    moments every field holds arrays; `unstack` takes them apart.
    """

    name: str
    value: float
    stderr: float
    n: int
    baseline: Baseline
    interval: Interval

    @property
    def identified(self) -> bool:
        """Whether the log holds any information on this value."""
        return not math.isnan(self.value)

    def __str__(self) -> str:
        if not self.identified:
            return f"{self.name}: not identified (n = {self.n:,})"
        lower, upper = self.interval
        level = f"{100 * self.interval.level:.4g} %"
        return (
            f"{self.name}: {self.value:.6g} ± {self.stderr:.2g} ({level}: {lower:.6g} to {upper:.6g}, n = {self.n:,})"
        )


def check_level(level: float) -> None:
    """A confidence level lies strictly between 0 and 1, and not so near 1 that its quantile is that of 1."""
    if not (isinstance(level, Real) and level > 0.0 and (1.0 + level) / 2.0 < 1.0):
        raise OptionError(
            f"level must lie strictly between 0 and 1, found {level!r}. For a 95 % interval pass level=0.95."
        )


def symmetric(value: float, half: float, level: float, method: str) -> Interval:
    """value ± half, and the whole line where either is unknown."""
    if math.isnan(value) or not math.isfinite(half):
        return Interval(-math.inf, math.inf, level, method)
    return Interval(value - half, value + half, level, method)


def normal(value: float, stderr: float, level: float = 0.95) -> Interval:
    """Value ± z·stderr, by the central limit theorem.

    >>> lower, upper = normal(1.0, 0.1)
    >>> round(lower, 3), round(upper, 3)
    (0.804, 1.196)
    """
    check_level(level)
    return symmetric(value, NormalDist().inv_cdf((1 + level) / 2) * stderr, level, "normal")


def linear(
    name: str,
    moments: Moments,
    intercept: ArrayLike,
    coefficients: Mapping[str, ArrayLike],
    *,
    baseline: Any,
    identified: Any = True,
    fitted: int = 0,
) -> Estimate:
    """The mean of intercept + Σ coefficient·column over the rows, and its standard error √(aᵀ·scatter·a)/n.

    Every estimator of the family is such a form once its baseline is chosen. The variance divides by n (the paper's
    formula). It is infinite for one row, which says nothing about its own error, and where as many numbers were `fitted` to the rows
    as there are differences between them; and it is never less than what rounding can hide where large terms cancel.
    """
    a = np.zeros(moments.mean.shape)
    for column, coefficient in coefficients.items():
        a[..., moments.columns.index(column)] = coefficient
    value = np.asarray(intercept) + (a * moments.mean).sum(axis=-1)
    square = np.einsum("...i,...ij,...j->...", a, moments.scatter, a)
    terms = np.einsum("...i,...ij,...j->...", np.abs(a), np.abs(moments.scatter), np.abs(a))
    root = np.sqrt(np.maximum(square, 4.0 * np.finfo(float).eps * terms))
    return estimate_of(name, value, root, moments.n, baseline=baseline, identified=identified, fitted=fitted)


def estimate_of(
    name: str, value: Any, root: Any, n: Any, *, baseline: Any, identified: Any = True, fitted: int = 0
) -> Estimate:
    """An estimate from its value and the root of its summed squares; unknown values become nan with an infinite error."""
    known = np.asarray(identified) & (np.asarray(n) > 0)
    stderr = np.where(known & (np.asarray(n) > 1 + fitted), np.asarray(root) / np.maximum(n, 1), np.inf)
    return _record(name, np.where(known, value, np.nan), stderr, n, baseline)


def _record(name: str, value: Floats, stderr: Floats, n: Any, baseline: Any) -> Estimate:
    if value.ndim:
        nowhere = cast(Any, None)  # a stack has no single interval; `unstack` makes one each
        return Estimate(name, cast(Any, value), cast(Any, stderr), n, baseline, nowhere)
    numbers: Baseline = tuple(float(b) for b in baseline) if isinstance(baseline, tuple) else float(baseline)
    point, error = float(value), float(stderr)
    return Estimate(name, point, error, int(n), numbers, normal(point, error))


def unknown(estimate: Estimate) -> Estimate:
    """The estimate as one that the log cannot give."""
    nowhere = replace(estimate.interval, lower=-math.inf, upper=math.inf)
    return replace(estimate, value=math.nan, stderr=math.inf, interval=nowhere)


def unstack(estimate: Estimate, index: int) -> Estimate:
    """One member of an estimate made from a stack of moments."""
    shape = np.shape(estimate.value)

    def pick(part: Any) -> Any:
        return np.broadcast_to(part, shape)[index]

    baseline = tuple(map(pick, estimate.baseline)) if isinstance(estimate.baseline, tuple) else pick(estimate.baseline)
    return _record(estimate.name, pick(estimate.value), pick(estimate.stderr), pick(estimate.n), baseline)
