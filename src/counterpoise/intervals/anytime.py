"""Anytime-valid intervals, for people who look at a log every day while it grows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from counterpoise.errors import OptionError
from counterpoise.intervals.method import Evidence, Interval, Method, check_level, symmetric
from counterpoise.intervals.student import heavier
from counterpoise.moments.spread import below

FEWEST = 6  # rows with the outcome that matters, for an answer: benchmarks/intervals.py anytime
SURE = 0.999  # for the mean-weight test, whatever the interval's own level, so that levels nest


@dataclass(frozen=True)
class Anytime(Method):
    """Valid however often, and whenever, you look; narrowest near `tuned_for` rows, which you must choose before you look."""

    tuned_for: float = 10_000

    name: ClassVar[str] = "anytime"
    is_anytime: ClassVar[bool] = True
    about: ClassVar[str] = (
        "Anytime intervals: valid no matter how often you look while the log grows, and wider in return."
    )

    def __post_init__(self) -> None:
        _check_rows(self.tuned_for)

    @property
    def score(self) -> AnytimeScore:
        """A score that is valid at all times, too."""
        return AnytimeScore(self.tuned_for)

    def uses_groups(self, *, is_clustered: bool) -> bool:
        """Only if rows are clustered."""
        return is_clustered

    def unvaried(self, evidence: Evidence, level: float) -> Interval:
        """The score covers rewards that were not seen; the weights must have been."""
        note = self._unseen_weights(evidence)
        if note:
            return Interval(-math.inf, math.inf, level, self.name, note)
        return anytime(evidence.value, evidence.stderr, evidence.n, level, tuned_for=self.tuned_for)

    def interval(self, evidence: Evidence, level: float) -> Interval:
        r"""The interval of `anytime` with Student's tails, or the whole line while too few rows carry the answer.

        The theorem behind `anytime` is about many rows. Before that, the heavy rows that matter may not have come up, and then
        nothing in the log shows how far off it is. So there is no answer until six of them have the outcome that matters
        (`outcome_rows`), nor while the mean weight is further from 1 than chance allows. After that the normal tail at the factor
        of the confidence sequence becomes that of Student's distribution with :math:`\max(3, (E/5)^2)` degrees of freedom, as in
        `student`.
        """
        outcomes = evidence.outcomes
        note = (
            f"about {below(outcomes, FEWEST)} rows carry this answer; {FEWEST} or more are needed for an interval that holds at all times"
            if outcomes < FEWEST
            else self._unseen_weights(evidence)
        )
        if note:
            return Interval(-math.inf, math.inf, level, self.name, note)
        factor = anytime(0.0, 1.0, evidence.n, level, tuned_for=self.tuned_for).upper
        half = heavier(factor, float(evidence.freedom)) * evidence.stderr / (1 - evidence.leverage)
        return symmetric(evidence.value, half, level, self.name)

    def _unseen_weights(self, evidence: Evidence) -> str:
        """A note if the mean weight is further off than it would be with right propensities once the heavy rows have come up."""
        moments = evidence.moments
        if not evidence.mean_is_one or "u" not in moments.columns or not evidence.n:
            return ""
        rows = max(min(float(evidence.n), evidence.clusters), 1.0)
        error = math.sqrt(max(float(moments.covariance("u", "u")), 0.0) / rows)
        mean = float(moments.average("u"))
        if abs(mean) <= anytime(0.0, error, evidence.n, SURE, tuned_for=self.tuned_for).upper + 1e-12:
            return ""
        return f"the mean weight is off by {mean:+.3g}: either heavy rows have not come up yet, or the propensities are wrong"


@dataclass(frozen=True)
class AnytimeScore:
    """What rewards that never vary leave open, at all times at once."""

    tuned_for: float

    words: ClassVar[str] = "a score valid at all times"

    def ends(self, share: float, n: float, level: float) -> tuple[float, float]:
        """See `anytime_score`."""
        return anytime_score(share, n, level)

    def reach(self, stderr: float, n: int, level: float) -> float:
        """The reach of the anytime-valid interval."""
        return anytime(0.0, stderr, n, level, tuned_for=self.tuned_for).upper


def anytime(value: float, stderr: float, n: int, level: float = 0.95, *, tuned_for: float = 10_000) -> Interval:
    r"""An interval that stays valid however often, and whenever, you look while the log grows.

    .. math:: \hat V \pm \hat\sigma \sqrt{\frac{2 (n\rho^2 + 1)}{n^2 \rho^2} \log\frac{\sqrt{n\rho^2 + 1}}{1 - \text{level}}}

    This is an asymptotic confidence sequence: it covers at all times at once as the log grows, once rows are many (`Anytime` knows
    when they are not). It is narrowest, about 1.55 times the
    normal interval, near `tuned_for` rows, which you must choose before you look.

    Examples
    --------
    >>> from counterpoise.intervals.method import normal
    >>> round(anytime(0.0, 1.0, 10_000).width / normal(0.0, 1.0).width, 2)
    1.55

    References
    ----------
    Waudby-Smith, Arbour, Sinha, Kennedy & Ramdas, "Time-uniform central limit theory and asymptotic confidence sequences", Annals of
    Statistics 52 (2024), theorem 2.2 and its choice of ρ.
    """
    check_level(level)
    _check_rows(tuned_for)
    alpha = 1.0 - level
    best = -2.0 * math.log(alpha)
    # the closed form of the best ρ needs log(best) > −1; a level so low that it is not gets the narrowest sensible ρ
    squared = max(best + math.log(max(best, 1e-300)) + 1.0, 0.1) / tuned_for
    x = max(n, 1) * squared
    factor = math.sqrt(max(2.0 * (x + 1.0) / x * math.log(math.sqrt(x + 1.0) / alpha), 0.0))
    return symmetric(value, factor * stderr, level, Anytime.name)


def anytime_score(share: float, n: float, level: float = 0.95) -> tuple[float, float]:
    r"""Like Wilson's score, but valid at all n at once: all p that a bet on every other p, equally weighted, has not refuted.

    .. math:: \int_0^1 \left(\frac qp\right)^{n \hat p} \left(\frac{1 - q}{1 - p}\right)^{n (1 - \hat p)} dq < \frac{1}{1 - \text{level}}

    The left side is a martingale for clicks, and by the inequality of means a supermartingale for fractions.

    >>> from counterpoise.intervals.method import wilson
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


def _check_rows(tuned_for: float) -> None:
    if isinstance(tuned_for, bool) or not isinstance(tuned_for, Real) or not 0 < tuned_for < math.inf:
        raise OptionError(f"`tuned_for={tuned_for!r}` is not a positive number of rows.")
