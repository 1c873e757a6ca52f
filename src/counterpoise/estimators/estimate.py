"""`Estimate`, and the one way to make it: a linear form of the rows, with its delta-method error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.errors import OptionError
from counterpoise.moments import Floats, Moments

Baseline = float | tuple[float, ...]


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


@dataclass(frozen=True)
class Estimate:
    """What an estimator says: a value, its standard error, and the baseline(s) it used.

    If the log cannot give the value, it is nan with an infinite standard error, and `identified` is False. For a stack of moments,
    every field holds arrays; `unstack` takes them apart. The estimates in a result have an `Interval`; estimators know nothing
    about intervals and leave it open.
    """

    name: str
    value: float
    stderr: float
    n: int
    baseline: Baseline
    interval: Any = NoInterval()

    @property
    def identified(self) -> bool:
        """Whether the log says anything about this value."""
        return not math.isnan(self.value)

    def __str__(self) -> str:
        if not self.identified:
            return f"{self.name}: not identified (n = {self.n:,})"
        said = f"{self.name}: {self.value:.6g} ± {self.stderr:.2g}"
        if isinstance(self.interval, NoInterval):
            return f"{said} (n = {self.n:,})"
        lower, upper = self.interval
        return f"{said} ({100 * self.interval.level:.4g} %: {lower:.6g} to {upper:.6g}, n = {self.n:,})"


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

    Every estimator of the family has this form once its baseline is chosen. The variance divides by n (the paper's formula). It is
    infinite for one row, which says nothing about its own error, and if as many numbers were `fitted` to the rows as there are
    differences between them. It is never less than what rounding can hide when large terms cancel.
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
        return Estimate(name, cast(Any, value), cast(Any, stderr), n, baseline)
    numbers: Baseline = tuple(float(b) for b in baseline) if isinstance(baseline, tuple) else float(baseline)
    return Estimate(name, float(value), float(stderr), int(n), numbers)


def unstack(estimate: Estimate, index: int) -> Estimate:
    """One member of an estimate made from a stack of moments; a field that is the same for all may be a single number."""

    def pick(part: Any) -> Any:
        return part[index] if np.ndim(part) else part

    baseline = tuple(map(pick, estimate.baseline)) if isinstance(estimate.baseline, tuple) else pick(estimate.baseline)
    return _record(estimate.name, pick(estimate.value), pick(estimate.stderr), pick(estimate.n), baseline)
