"""This file holds the confidence intervals: what each promises, and when."""

from __future__ import annotations

import math
from numbers import Real
from typing import Literal

import numpy as np

from counterpoise.errors import OptionError
from counterpoise.estimators.constant import ips
from counterpoise.estimators.estimate import Interval, check_level, normal, symmetric
from counterpoise.moments import Floats, Moments

Method = Literal["normal", "jackknife", "anytime", "bernstein"]
METHODS: tuple[Method, ...] = ("normal", "jackknife", "anytime", "bernstein")

__all__ = ["METHODS", "Method", "anytime", "bernstein", "jackknife", "jackknife_error", "normal"]


def jackknife_error(value: Floats, without: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    r"""Standard error from the values without each group (last axis), and how many groups have rows.

    For groups of unequal size m of n, with h = n/m and pseudo-values h·θ − (h − 1)·θ₋ₘ. Groups that hold whole clusters make it
    cluster-robust, for any smooth function of the moments.

    Examples
    --------
    For a mean over groups of one row it is the textbook error, sd/√n:

    >>> rows = np.array([1.0, 2.0, 3.0, 6.0])
    >>> error, groups = jackknife_error(rows.mean(), (rows.sum() - rows) / 3, np.ones(4))
    >>> round(float(error), 12) == round(float(rows.std(ddof=1) / 2), 12)
    True

    References
    ----------
    Busing, Meijer & van der Leeden, "Delete-m jackknife for unequal m", Statistics and Computing 9 (1999).
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    present = sizes > 0
    groups = present.sum(axis=-1)
    total = sizes.sum(axis=-1, keepdims=True)
    h = np.where(present, total / np.where(present, sizes, 1.0), 2.0)
    whole = np.asarray(value)[..., None]
    left_out = np.where(present, without, whole)
    centre = whole[..., 0] * groups - np.where(present, (1.0 - 1.0 / h) * left_out, 0.0).sum(axis=-1)
    pseudo = h * whole - (h - 1.0) * left_out
    usable = present & (h > 1.0)
    spread = np.where(usable, np.square(pseudo - centre[..., None]) / np.where(usable, h - 1.0, 1.0), 0.0).sum(axis=-1)
    return np.where(groups > 1, np.sqrt(spread / np.maximum(groups, 1)), np.inf), groups


def jackknife(value: float, stderr: float, groups: int, level: float = 0.95) -> Interval:
    """Value ± t·stderr with a t quantile of groups − 1 degrees of freedom.

    >>> jackknife(0.0, 1.0, 11).width > normal(0.0, 1.0).width
    True
    """
    from scipy.special import stdtrit

    check_level(level)
    if groups < 2:
        return Interval(-math.inf, math.inf, level, "jackknife")
    return symmetric(value, float(stdtrit(groups - 1, (1 + level) / 2)) * stderr, level, "jackknife")


def anytime(value: float, stderr: float, n: int, level: float = 0.95, *, tuned_for: float = 10_000) -> Interval:
    r"""An interval that stays valid however often, and whenever, one looks while the log grows.

    .. math:: \hat V \pm \hat\sigma \sqrt{\frac{2 (n\rho^2 + 1)}{n^2 \rho^2} \log\frac{\sqrt{n\rho^2 + 1}}{1 - \text{level}}}

    An asymptotic confidence sequence: it covers at all times at once as the log grows. Narrowest, about 1.55 times the normal
    interval, near `tuned_for` rows, which must be chosen before looking.

    Examples
    --------
    >>> round(anytime(0.0, 1.0, 10_000).width / normal(0.0, 1.0).width, 2)
    1.55

    References
    ----------
    Waudby-Smith, Arbour, Sinha, Kennedy & Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences", Annals of
    Statistics 52 (2024), theorem 2.2 and its choice of ρ.
    """
    check_level(level)
    if isinstance(tuned_for, bool) or not isinstance(tuned_for, Real) or not 0 < tuned_for < math.inf:
        raise OptionError(f"tuned_for must be a positive number of rows, found {tuned_for!r}.")
    alpha = 1.0 - level
    best = -2.0 * math.log(alpha)
    # the closed form of the best ρ needs log(best) > −1; a level so low that it is not gets the narrowest sensible ρ
    squared = max(best + math.log(max(best, 1e-300)) + 1.0, 0.1) / tuned_for
    x = max(n, 1) * squared
    factor = math.sqrt(max(2.0 * (x + 1.0) / x * math.log(math.sqrt(x + 1.0) / alpha), 0.0))
    return symmetric(value, factor * stderr, level, "anytime")


def bernstein(
    moments: Moments, level: float = 0.95, *, reward_bounds: tuple[float, float], max_weight: float
) -> Interval:
    r"""An interval for IPS that holds at every n, for rewards and weights with bounds known beforehand.

    .. math:: \frac1n\sum_i w_i r_i \pm \left( \sqrt{\frac{2 S^2 L}{n}} + \frac{7 R L}{3 (n - 1)} \right)

    L is log(4/(1 − level)), S² the sample variance of w·r and R its range. It makes no appeal to large numbers, and pays for it:
    the second term alone is R·10/n at 95 %, often several times the normal interval. Its `note` says how many.

    Examples
    --------
    >>> log = Moments.of(weight=np.tile([0.5, 1.5], 500), reward=np.tile([1, 0, 0, 1], 250))
    >>> print(bernstein(log, reward_bounds=(0, 1), max_weight=1.5).note)
    valid at any n; 1.9 times as wide as the normal interval

    References
    ----------
    Maurer & Pontil, "Empirical Bernstein bounds and sample variance penalization", COLT 2009, theorem 4 on both sides.
    """
    check_level(level)
    (low, high), max_weight = check_bounds(reward_bounds, max_weight)
    estimate = ips(moments)
    if not estimate.identified or moments.n < 2:
        return Interval(low, high, level, "bernstein", "the log says nothing; these are the bounds themselves")
    reach = max_weight * (max(high, 0.0) - min(low, 0.0))
    n, log_term = moments.n, math.log(4.0 / (1.0 - level))
    variance = estimate.stderr**2 * n * n / (n - 1)
    half = math.sqrt(2.0 * variance * log_term / n) + 7.0 * reach * log_term / (3.0 * (n - 1))
    usual = normal(estimate.value, estimate.stderr, level).width / 2
    note = f"valid at any n; {half / usual:.1f} times as wide as the normal interval" if usual > 0 else "valid at any n"
    # the value itself is a mean of rewards, so it cannot leave their bounds
    lower, upper = max(estimate.value - half, low), min(estimate.value + half, high)
    if lower > upper:
        return Interval(low, high, level, "bernstein", "the estimate lies outside the bounds: the weights are wrong")
    return Interval(lower, upper, level, "bernstein", note)


def check_bounds(
    reward_bounds: tuple[float, float] | None, max_weight: float | None
) -> tuple[tuple[float, float], float]:
    """Bounds that the finite-sample interval can use."""
    if reward_bounds is None or max_weight is None:
        raise OptionError(
            "the bernstein interval needs reward_bounds=(low, high) and max_weight, both known before seeing the log; "
            "max_weight is 1/(the smallest propensity the logging policy can give)."
        )
    try:
        low, high, max_weight = (float(x) for x in (*reward_bounds, max_weight))
    except (TypeError, ValueError) as error:
        raise OptionError(f"reward_bounds must be (low, high) and max_weight a number: {error}.") from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high and math.isfinite(max_weight) and max_weight > 0):
        raise OptionError(
            f"reward_bounds must be (low, high) and max_weight positive; found {reward_bounds!r} and {max_weight!r}."
        )
    return (low, high), max_weight
