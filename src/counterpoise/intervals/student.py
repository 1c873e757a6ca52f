"""Student's intervals with rows not seen yet: the default, made to cover even if few rows carry the answer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from counterpoise.intervals.jackknife import jackknife
from counterpoise.intervals.method import Evidence, Interval, Method, check_level, normal
from counterpoise.intervals.student_t import normal_share, t_quantile
from counterpoise.moments import Floats


@dataclass(frozen=True)
class Student(Method):
    """The default: wide where few rows carry the answer, and the normal interval where many do; right for clusters, too."""

    name: ClassVar[str] = "student"
    about: ClassVar[str] = (
        "Student's intervals: they allow for how few <rows> carry the answer, and for <a row> that has not come up yet."
    )

    def uses_groups(self, *, is_clustered: bool) -> bool:
        """Where rows are clustered."""
        return is_clustered

    def unvaried(self, evidence: Evidence, level: float) -> Interval:
        """The score covers rewards that were not seen, so no row is added for them."""
        if evidence.groups:
            plain = jackknife(evidence.value, evidence.stderr, evidence.groups, level, clusters=evidence.clusters)
        else:
            plain = normal(evidence.value, evidence.stderr, level)
        return replace(plain, method=self.name)

    def interval(self, evidence: Evidence, level: float) -> Interval:
        """See `student`."""
        return student(evidence, level)

    def ends(self, evidence: Evidence, level: float) -> tuple[Floats, Floats] | None:
        """See `student`."""
        return student_ends(evidence, level) if type(self).interval is Student.interval else None


def student(evidence: Evidence, level: float = 0.95) -> Interval:
    r"""The normal interval of a log with one row more, half of it at either extreme, and with tails as heavy as the log demands.

    To n rows whose terms have mean θ̂ and variance s², half a row each is added with the largest and the smallest term that a row may
    have: the log's largest weight with a high and a low reward. Then

    .. math:: \tilde\theta \pm t_\nu \, \tilde s / \sqrt{n + 1}, \qquad
        \nu = \max\left(3, (E/5)^2\right), \qquad s^2 \to s^2 / (1 - h)^2,

    where E is the number of rows that carry the variance (`carrying_rows`) and h = kurtosis(u)/n is the leverage of the rows that the
    baseline was fitted to. With clusters, the variance is the jackknife's, and ν is at most one less than the effective clusters.

    The half rows make the interval wide enough for a log without a click, or without one on a heavy row. The degrees of
    freedom are an empirical rule: `make statistics` shows the coverage it has.

    Examples
    --------
    Where rows are many, it is the normal interval:

    >>> from counterpoise.intervals.method import normal
    >>> many = Evidence(0.5, 0.001, n=1_000_000, carrying=1e5, extremes=(0.0, 2.0))
    >>> round(student(many).width / normal(0.5, 0.001).width, 3)
    1.0
    >>> few = Evidence(0.5, 0.1, n=100, carrying=5.0, extremes=(0.0, 2.0))
    >>> round(student(few).width / normal(0.5, 0.1).width, 1)
    1.6

    References
    ----------
    Student, "The probable error of a mean", Biometrika 6 (1908); added rows as in Agresti & Coull, The American Statistician 52 (1998).
    """
    lower, upper = student_ends(evidence, level)
    return Interval(float(lower), float(upper), level, Student.name)


def student_ends(evidence: Evidence, level: float) -> tuple[Floats, Floats]:
    """Both ends of `student`, of one estimate or of a stack of them."""
    check_level(level)
    value, stderr, n = (np.asarray(x, dtype=np.float64) for x in (evidence.value, evidence.stderr, evidence.n))
    is_known = np.isfinite(value) & np.isfinite(stderr) & (n >= 2)
    error = np.where(is_known, stderr, 0.0)
    has_extremes = np.isfinite(evidence.extremes[0]) & np.isfinite(evidence.extremes[1])
    low, high = (np.where(has_extremes, end, value) for end in evidence.extremes)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = (n * value + (low + high) / 2) / (n + 1)
        spread = np.square(n * error / (1 - evidence.leverage)) + n * np.square(value - mean)
        spread += (np.square(high - mean) + np.square(low - mean)) / 2
        half = t_quantile(evidence.freedom, (1 + level) / 2) * np.sqrt(spread) / (n + 1)
    return np.where(is_known, mean - half, -np.inf), np.where(is_known, mean + half, np.inf)


def heavier(factor: float, freedom: float) -> float:
    """The factor at which Student's distribution has the tail that the normal one has at this factor.

    >>> round(heavier(1.96, 1e9), 2), round(heavier(1.96, 3.0), 2)
    (1.96, 3.18)
    """
    return float(heavier_factors(factor, np.asarray(freedom)))


def heavier_factors(factor: float, freedom: Floats) -> Floats:
    """The same for a stack of degrees of freedom."""
    tail = normal_share(-factor)
    if not math.isfinite(factor) or tail < 1e-300:
        return np.full(freedom.shape, factor)
    is_finite = np.isfinite(freedom)
    return np.where(is_finite, np.maximum(-t_quantile(np.where(is_finite, freedom, 1.0), tail), factor), factor)
