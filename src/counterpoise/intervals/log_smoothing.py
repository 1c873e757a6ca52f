"""Logarithmic smoothing: a lower bound on the value at any number of rows, however heavy the weights are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from counterpoise.errors import LogError, OptionError
from counterpoise.intervals.method import Evidence, Interval, Method, check_level
from counterpoise.moments.spread import Smoothed

GRID = tuple(4.0**k for k in range(-12, 5))


@dataclass(frozen=True)
class LogSmoothing(Method):
    """A lower bound for `ips` at any number of rows, if no reward is negative; weights need no bound, and there is no upper end.

    `scale` is the usual size of a reward. Any scale gives a valid bound if you choose it before you see the log, and the right one a
    tight bound.
    """

    scale: float = 1.0

    name: ClassVar[str] = "log_smoothing"
    about: ClassVar[str] = (
        "Logarithmic smoothing: lower bounds that are valid for any number of <rows> and any weights; they have no upper end."
    )
    allows_differences: ClassVar[bool] = False
    needs_known_propensities: ClassVar[bool] = True
    estimators: ClassVar[tuple[str, ...]] = ("ips",)
    smoothings: ClassVar[tuple[float, ...]] = GRID

    def __post_init__(self) -> None:
        scale = self.scale
        if isinstance(scale, bool) or not isinstance(scale, Real) or not 0 < scale < math.inf:
            raise OptionError(f"`scale={scale!r}` is not a positive number.")

    @property
    def score(self) -> None:
        """None, because the bound already allows for what was not seen."""
        return

    def check(self, *, rewards: tuple[float, float], max_weight: float, is_clustered: bool) -> None:
        """Check that no reward is negative and that rows are independent."""
        if rewards[0] < 0:
            raise LogError(
                f"the {self.name} interval is for rewards of 0 and more, and the log has one of {rewards[0]:g}.",
                do="If rewards have a known lowest value, add its size to all of them; or choose another interval.",
            )
        if is_clustered:
            raise OptionError(
                f"the {self.name} interval assumes independent rows, and clusters are not: use jackknife."
            )

    def interval(self, evidence: Evidence, level: float) -> Interval:
        """See `log_smoothing`."""
        if evidence.n and not evidence.smoothed.lambdas:
            raise OptionError(
                f"these moments do not have the sums that the {self.name} interval needs.",
                do=f"Evaluate the log itself with `interval={self.name!r}`.",
            )
        if math.isnan(evidence.value):
            return Interval(-math.inf, math.inf, level, self.name)
        return log_smoothing(evidence.smoothed, evidence.n, level, scale=float(self.scale))


def log_smoothing(smoothed: Smoothed, n: int, level: float = 0.95, *, scale: float = 1.0) -> Interval:
    r"""A lower bound on the value at confidence `level`, at every n and for weights of any size; the upper end is infinite.

    .. math:: V \ge \frac{e^{\lambda S} - 1}{\lambda} \ge S, \qquad
        S = \frac1n \sum_i \frac{\log(1 + \lambda w_i r_i)}{\lambda} - \frac{\log(1/\delta)}{\lambda n}, \qquad \delta = 1 - \text{level}

    For rewards of 0 and more, :math:`\prod_i (1 + \lambda w_i r_i)` is not negative and has mean :math:`(1 + \lambda V)^n`,
    because rows are independent and E[wr] = V. By Markov's inequality it is at most :math:`(1 + \lambda V)^n / \delta` with
    probability 1 − δ at least, and the logarithm of that is the bound. It needs neither bounds on weights nor a variance, but a λ
    chosen without looking at the rows: it is the power of 4 nearest to :math:`1/(\text{scale} \sqrt n)`. With weights that were
    cut off, E[wr] ≤ V, and the bound holds all the more. It is valid for one look, at an n chosen without regard to the rewards.

    Examples
    --------
    >>> import numpy as np
    >>> bound = log_smoothing(Smoothed.of(np.ones(10_000), GRID), 10_000)
    >>> round(bound.lower, 3), bound.upper
    (0.981, inf)

    References
    ----------
    Sakhi, Aouali, Alquier & Chopin, "Logarithmic smoothing for pessimistic off-policy evaluation, selection and learning", NeurIPS 2024.
    """
    check_level(level)
    if n < 1:
        return Interval(0.0, math.inf, level, LogSmoothing.name, "the log has no information")
    chosen, total = smoothed.nearest(1.0 / (scale * math.sqrt(n)))
    smallest = total / n + math.log1p(-level) / (chosen * n)
    lower = max(math.expm1(chosen * smallest) / chosen, 0.0)
    note = "a lower bound, valid at any n and for any weights; there is no upper end"
    return Interval(lower, math.inf, level, LogSmoothing.name, note)
