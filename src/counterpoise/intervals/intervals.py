"""This file holds the confidence intervals: what each promises, and when."""

from __future__ import annotations

import math
from numbers import Real
from statistics import NormalDist
from typing import Literal

import numpy as np

from counterpoise.errors import OptionError
from counterpoise.estimators.constant import ips
from counterpoise.estimators.estimate import Interval, check_level, normal, symmetric
from counterpoise.moments import Floats, Moments

Method = Literal["normal", "jackknife", "anytime", "bernstein"]
METHODS: tuple[Method, ...] = ("normal", "jackknife", "anytime", "bernstein")

__all__ = [
    "METHODS",
    "Method",
    "anytime",
    "anytime_score",
    "bernstein",
    "effective_clusters",
    "jackknife",
    "jackknife_error",
    "normal",
    "wilson",
]


def jackknife_error(without: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    r"""Standard error from the values without each group (last axis), and how many groups have rows.

    .. math:: \hat\sigma^2 = \frac{G - 1}{G} \sum_g \left(\hat\theta_{-g} - \bar\theta_{-}\right)^2

    Groups that hold whole clusters make it cluster-robust, for any smooth function of the moments and whatever their sizes. (The
    delete-m formula for unequal sizes takes a group's variance to fall with its size, which is untrue where one user makes a group
    large.)

    Examples
    --------
    For a mean over groups of one row it is the textbook error, sd/√n:

    >>> rows = np.array([1.0, 2.0, 3.0, 6.0])
    >>> error, groups = jackknife_error((rows.sum() - rows) / 3, np.ones(4))
    >>> round(float(error), 12) == round(float(rows.std(ddof=1) / 2), 12)
    True

    References
    ----------
    Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), section 11.5.
    """
    present = np.asarray(sizes) > 0
    groups = present.sum(axis=-1)
    left_out = np.where(present, without, 0.0)
    centre = left_out.sum(axis=-1) / np.maximum(groups, 1)
    spread = np.square(np.where(present, left_out - centre[..., None], 0.0)).sum(axis=-1)
    return np.where(groups > 1, np.sqrt(spread * (groups - 1) / np.maximum(groups, 1)), np.inf), groups


def effective_clusters(sizes: Floats) -> Floats:
    r"""How many clusters of equal size the hashed groups' sizes (last axis) are worth, :math:`(\sum m)^2 / \sum m^2`.

    Clusters are not counted one by one. Hashed into G groups of sizes M, two of them meet with chance 1/G, so that

    .. math:: E \sum_g M_g^2 = \sum_c m_c^2 \left(1 - \frac1G\right) + \frac{N^2}{G},

    which gives :math:`\sum m^2` to about √(2/G), 14 % for 100 groups. Sizes may be sums of weights instead of rows.

    Examples
    --------
    Four clusters of five rows in eight groups, two of which share one:

    >>> float(effective_clusters(np.array([10, 0, 5, 0, 0, 0, 5, 0])).round(2))
    3.5
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    groups, total = sizes.shape[-1], sizes.sum(axis=-1)
    # ΣM² − N²/G, without its cancellation
    squares = np.square(sizes - total[..., None] / groups).sum(axis=-1) / max(1.0 - 1.0 / groups, 1e-300)
    known = (squares > 0) & (groups > 1)
    return np.where(known, np.maximum(np.square(total) / np.where(known, squares, 1.0), 1.0), np.inf)


def jackknife(value: float, stderr: float, groups: int, level: float = 0.95, *, clusters: float = math.inf) -> Interval:
    """Value ± t·stderr, with one degree of freedom less than there are groups or effective `clusters`, whichever are fewer.

    >>> jackknife(0.0, 1.0, 11).width > normal(0.0, 1.0).width
    True
    >>> jackknife(0.0, 1.0, 100, clusters=11.0).width == jackknife(0.0, 1.0, 11).width
    True
    """
    from scipy.special import stdtrit

    check_level(level)
    if groups < 2:
        return Interval(-math.inf, math.inf, level, "jackknife")
    freedom = max(min(groups, clusters) - 1.0, 1.0)
    return symmetric(value, float(stdtrit(freedom, (1 + level) / 2)) * stderr, level, "jackknife")


def wilson(share: float, n: float, level: float = 0.95) -> tuple[float, float]:
    r"""Wilson's score interval of a mean of n rewards between 0 and 1: all p with :math:`|\hat p - p| \le z \sqrt{p (1 - p)/n}`.

    It has a width where all rewards are the same: no click in n rows leaves rates up to z²/(n + z²) open. It holds for fractions, too,
    whose variance is at most that of clicks with the same mean.

    Examples
    --------
    >>> [round(end, 5) for end in wilson(0.0, 1000)]
    [0.0, 0.00383]

    References
    ----------
    Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    check_level(level)
    z = NormalDist().inv_cdf((1 + level) / 2)
    n = max(n, 1e-300)
    middle = (share * n + z * z / 2) / (n + z * z)
    half = z * math.sqrt(share * (1 - share) * n + z * z / 4) / (n + z * z)
    return max(min(middle - half, share), 0.0), min(max(middle + half, share), 1.0)


def anytime_score(share: float, n: float, level: float = 0.95) -> tuple[float, float]:
    r"""As `wilson`, but valid at all n at once: all p that a bet on every other p, equally weighted, has not refuted.

    .. math:: \int_0^1 \left(\frac qp\right)^{n \hat p} \left(\frac{1 - q}{1 - p}\right)^{n (1 - \hat p)} dq < \frac{1}{1 - \text{level}}

    The left side is a martingale for clicks, and by the inequality of means a supermartingale for fractions.

    >>> anytime_score(0.0, 1000)[1] > wilson(0.0, 1000)[1]
    True

    References
    ----------
    Robbins, "Statistical methods related to the law of the iterated logarithm", Annals of Mathematical Statistics 41 (1970).
    """
    check_level(level)
    ones, zeros = share * n, (1 - share) * n
    log_integral = math.lgamma(ones + 1) + math.lgamma(zeros + 1) - math.lgamma(n + 2)
    limit = math.log1p(-level) + log_integral

    def is_open(p: float) -> bool:
        return (ones * math.log(p) if ones else 0.0) + (zeros * math.log1p(-p) if zeros else 0.0) > limit

    def end(outside: float) -> float:
        """Where the open p end between the share and one of 0 and 1, by bisection."""
        inside = share
        for _ in range(60):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if is_open(middle) else (inside, middle)
        return outside

    return 0.0 if share <= 0 else end(0.0), 1.0 if share >= 1 else end(1.0)


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
        max_weight = float(max_weight)
    except (TypeError, ValueError) as error:
        raise OptionError(f"max_weight must be a number: {error}.") from error
    if not (math.isfinite(max_weight) and max_weight > 0):
        raise OptionError(f"max_weight must be a positive number, found {max_weight!r}.")
    return check_reward_bounds(reward_bounds), max_weight


def check_reward_bounds(reward_bounds: tuple[float, float]) -> tuple[float, float]:
    """The least and the largest reward there can be."""
    try:
        low, high = (float(x) for x in reward_bounds)
    except (TypeError, ValueError) as error:
        raise OptionError(f"reward_bounds must be (low, high), two numbers: {error}.") from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise OptionError(
            f"reward_bounds must be (low, high), two finite numbers with low < high; found {reward_bounds!r}."
        )
    return low, high
