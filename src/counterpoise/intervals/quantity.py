"""`Quantity`: whatever is estimated. Its intervals, alone or among several, its p-value and the rows it needs are decided here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from counterpoise.estimators import Estimate
from counterpoise.estimators.estimate import slopes
from counterpoise.intervals.jackknife import jackknife_error
from counterpoise.intervals.method import UNKNOWN, Evidence, Interval, Method, Normal, Unseen, normal_quantile
from counterpoise.intervals.student_t import t_quantile
from counterpoise.moments import Floats, Moments

SMALLEST = 1e-15  # p-values below it are given as it
MOST_LEVERAGE = 0.6  # share of its own fit that we attribute to a heavy row
MOST_ROWS = 10**15
POWER = 0.8  # the chance to see a difference, where nobody says
SURE = 5.0  # errors above 0 of a mean, from which a share of it has an error that the delta method knows


@dataclass(frozen=True)
class Quantity:
    """Something that is estimated: a value, a difference, the mean of some days. Whoever wants to know how sure it is asks here.

    `evidence` is what its rows show (the value and its standard error among it) and `unseen` what they cannot. `limits` are what is
    possible at all, and `moved` is by how much actions that the log lacks move the ends of the interval.

    Examples
    --------
    >>> lift = Quantity(Evidence(0.02, 0.01, n=10_000))
    >>> [round(end, 4) for end in lift.interval()], [round(end, 4) for end in lift.interval(among=10)]
    ([0.0004, 0.0396], [-0.0081, 0.0481])
    >>> round(lift.p_value(), 4)
    0.0455
    >>> lift.rows_needed(0.01), lift.rows_needed(0.01, power=0.8)
    (38415.0, 78489.0)
    """

    evidence: Evidence
    method: Method = field(default_factory=Normal)
    level: float = 0.95
    unseen: Unseen = field(default_factory=Unseen)
    limits: tuple[float, float] = UNKNOWN
    moved: tuple[float, float] = (0.0, 0.0)

    @property
    def value(self) -> float:
        """The estimate itself."""
        return self.evidence.value

    @property
    def stderr(self) -> float:
        """Its standard error."""
        return self.evidence.stderr

    @property
    def endless(self) -> Quantity:
        """The same wherever rewards end: neither a p-value nor a reach in standard errors depends on that."""
        return replace(self, limits=UNKNOWN)

    def interval(self, level: float | None = None, *, among: int = 1) -> Interval:
        """The interval at a level (its own, unless you name another); `among` several, one that holds for all of them at once."""
        level = joint_level(self.level if level is None else level, among)
        method = self.method
        made = (method.unvaried if self.unseen.is_open else method.interval)(self.evidence, level)
        if not math.isnan(self.value):
            made = self.unseen.widen(made, method.score)
        down, up = self.moved
        return replace(made, lower=made.lower + down, upper=made.upper + up, limits=self.limits)

    def p_value(self) -> float:
        """The smallest 1 − level at which the interval excludes 0, by bisection of its logarithm."""
        low, high, endless = math.log(SMALLEST), math.log(1 - 1e-9), self.endless
        if 0.0 in endless.interval(1 - math.exp(high)):
            return 1.0
        if 0.0 not in endless.interval(1 - SMALLEST):
            return SMALLEST
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if 0.0 not in endless.interval(1 - math.exp(middle)) else (middle, high)
        return math.exp(high)

    def rows_needed(
        self, difference: float, *, power: float | None = None, freedom: float = math.inf, variance: float = 1.0
    ) -> float:
        """The fewest rows like these at which the interval reaches no further than the `difference` to either side.

        With a `power`, those at which it leaves 0 with this chance if the truth is the `difference`, which may be negative. The error is an
        estimate with so many degrees of `freedom`; `variance` is a factor of its square. Infinite if no number of rows is enough.
        """
        evidence = replace(self.evidence, stderr=self.stderr * math.sqrt(variance))
        if not math.isfinite(evidence.stderr):
            return math.inf

        luck = 0.0 if power is None else _errors_of_luck(power, freedom)

        def is_enough(rows: int) -> bool:
            grown = _grow(evidence, rows)
            if power is not None:
                return self._shows(grown, difference, luck)
            return self.method.interval(grown, self.level).width <= 2 * difference

        low, high = 1, 2
        while not is_enough(high):
            if high > MOST_ROWS:
                return math.inf
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_enough(middle) else (middle, high)
        return float(high)

    def _shows(self, evidence: Evidence, difference: float, errors: float) -> bool:
        """Whether the interval leaves 0 if the truth is this difference, and the log is so many errors short of it.

        A log without luck has too few of the rare, large terms, and so a smaller variance, too. If terms have mean 0 and two values, their
        third moment is their variance times the sum of the two.
        """
        sign, size, luck = math.copysign(1.0, difference), abs(difference), errors * evidence.stderr
        low, high = (sign * end for end in evidence.extremes)
        skew = low + high - 2 * size if math.isfinite(low + high) else 0.0
        # the variance of the terms is n·stderr², and moves by skew·luck
        left = max(1.0 - skew * luck / (evidence.n * evidence.stderr**2), 0.25) if evidence.stderr > 0 else 1.0
        short = replace(evidence, value=sign * (size - luck), stderr=evidence.stderr * math.sqrt(left))
        interval = self.method.interval(short, self.level)
        return interval.lower > 0.0 if sign > 0 else interval.upper < 0.0


def joint_level(level: float, among: int) -> float:
    """The level at which each of several intervals is made for all of them to hold at once (Bonferroni).

    >>> round(joint_level(0.95, 5), 6)
    0.99
    """
    return level if among == 1 else 1 - (1 - level) / among


def joint_width(level: float, among: int) -> float:
    """How many times as wide normal intervals become if several are to hold at once.

    >>> round(joint_width(0.95, 5), 3)
    1.314
    """
    return normal_quantile(joint_level(level, among)) / normal_quantile(level)


def times_to_show(difference: float, stderr: float, level: float, power: float = POWER) -> float:
    """How many times as many rows show a difference with this power, by normal intervals; infinite if there is none.

    >>> round(times_to_show(0.02, 0.02, 0.95), 2)
    7.85
    """
    return (
        ((normal_quantile(level) + normal_quantile(2 * power - 1)) * stderr / difference) ** 2
        if difference
        else math.inf
    )


def variance_range(level: float, freedom: float) -> tuple[float, float]:
    """By what factors a variance with so many degrees of freedom may be smaller and larger than estimated.

    >>> [round(factor, 2) for factor in variance_range(0.95, 10.0)]
    [0.49, 3.08]
    """
    from scipy.special import chdtri

    low, high = (freedom / float(chdtri(freedom, (1 + side * level) / 2)) for side in (-1, 1))
    return low, high


def _errors_of_luck(power: float, freedom: float) -> float:
    """How many errors too low an estimate may be: Student's, since the error is an estimate, too."""
    return float(t_quantile(freedom, power)) if math.isfinite(freedom) else NormalDist().inv_cdf(power)


def _grow(evidence: Evidence, rows: int) -> Evidence:
    """The evidence of so many rows of the same kind."""
    times = rows / evidence.n
    return replace(
        evidence,
        n=rows,
        stderr=evidence.stderr / math.sqrt(times),
        carrying=evidence.carrying * times,
        clusters=evidence.clusters * times,
        leverage=min(evidence.leverage / times, MOST_LEVERAGE),
    )


# -- A difference as a share of what it is over ------------------------------------------------------------------------


def stretched(estimate: Estimate, wider: float) -> Estimate:
    """An estimate whose interval is wider by a factor."""
    value, (lower, upper) = estimate.value, estimate.interval
    lower, upper = value - wider * (value - lower), value + wider * (upper - value)
    return replace(estimate, interval=replace(estimate.interval, lower=lower, upper=upper))


def over(
    difference: Estimate, mean: float, error: float, *, wider: float, limits: tuple[float, float] = UNKNOWN
) -> Estimate | None:
    """A difference as a share of a mean with this error: 0.78 is +78 %; None if the mean is not clearly above 0.

    The interval of the difference is stretched by how much `wider` it is for the mean's error, so that it keeps its kind and its level;
    bounds without a value stay as they are, and so does what lies outside of what is possible.
    """
    if not mean > SURE * error or not math.isfinite(wider):
        return None
    value, (lower, upper) = difference.value, difference.interval
    if value in difference.interval:
        lower, upper = value - wider * (value - lower), value + wider * (upper - value)
    interval = replace(difference.interval, lower=lower / mean, upper=upper / mean, limits=limits)
    return replace(difference, value=value / mean, stderr=wider * difference.stderr / mean, interval=interval)


def share_width(
    difference: Callable[[Moments], Estimate], whole: Moments, groups: tuple[Moments, Floats] | None
) -> Floats:
    r"""How much wider the interval of a difference becomes as a share of the mean reward, since that has an error, too; of a stack.

    .. math:: \operatorname{Var}(\hat\Delta / \bar r) \approx \operatorname{Var}(\hat\Delta - \rho \bar r) / \bar r^2, \qquad
        \rho = \hat\Delta / \bar r

    By the delta method; where rows come in clusters, by the jackknife over the `groups`: moments without each of them, and their sizes.
    """

    def values(moments: Moments) -> tuple[Floats, Floats]:
        value, mean = np.asarray(difference(moments).value), np.asarray(moments.center + moments.average("s"))
        shared = value.reshape(
            *value.shape, *(1,) * (mean.ndim - value.ndim)
        )  # an estimator by groups takes places for them
        return value, shared / np.where(mean == 0, np.nan, mean)

    def error(slope: Floats) -> Floats:
        square = np.einsum("...i,...ij,...j->...", slope, whole.scatter, slope)
        return np.asarray(np.sqrt(np.maximum(square, 0.0)) / np.maximum(np.asarray(whole.n), 1))

    with np.errstate(invalid="ignore", over="ignore"):  # a place all of whose rows are in one group has no others
        if groups is None:
            alone, together = map(error, slopes(values, whole))
        else:
            others, sizes = groups
            alone, together = (jackknife_error(np.nan_to_num(each), sizes)[0] for each in values(others))
        together = together * np.abs(whole.center + whole.average("s"))
        return np.where(alone > 0, together / np.where(alone > 0, alone, 1.0), 1.0)
