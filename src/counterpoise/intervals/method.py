"""Intervals: what one is, what its method works from, what rows cannot show, and the simplest method."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from statistics import NormalDist
from typing import ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.errors import OptionError
from counterpoise.moments import Floats, Moments, Powers
from counterpoise.moments.spread import UNSMOOTHED, Smoothed, at_an_end, effective_sample_size, outcome_rows

# -- `Interval`: two ends, the level they hold at, and how they were made ----------------------------------------------


UNKNOWN = (-math.inf, math.inf)  # where nothing bounds rewards


@dataclass(frozen=True)
class Interval:
    """A confidence interval, and how it was made.

    `limits` are what is possible at all, such as 0 and 1 for the value of clicks: ends beyond them are moved there, whoever moved the
    ends. An interval that lies beyond them as a whole says nothing, and becomes all that is possible.

    >>> tuple(Interval(-0.2, 0.4, 0.95, "normal", limits=(0.0, 1.0)))
    (0.0, 0.4)
    """

    lower: float
    upper: float
    level: float
    method: str
    note: str = ""
    limits: tuple[float, float] = field(default=UNKNOWN, repr=False, compare=False)

    def __post_init__(self) -> None:
        low, high = self.limits
        if self.lower >= low and self.upper <= high:
            return
        rounding = 1e-9 * (high - low)
        if self.lower > high + rounding or self.upper < low - rounding:
            ends: tuple[float, ...] = low, high
            object.__setattr__(self, "note", "the estimate lies outside of what rewards allow: the weights are wrong")
        else:  # an end that says nothing still does
            ends = tuple(min(max(end, low), high) if math.isfinite(end) else end for end in self)
        for name, end in zip(("lower", "upper"), ends, strict=True):
            object.__setattr__(self, name, end)

    def __iter__(self) -> Iterator[float]:
        """Both ends, for `lower, upper = interval`."""
        return iter((self.lower, self.upper))

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    @property
    def width(self) -> float:
        """The distance between the ends; infinite if the log says nothing."""
        return self.upper - self.lower


def check_level(level: float) -> None:
    """Check that a confidence level lies strictly between 0 and 1, and not so near 1 that its quantile is infinite."""
    if not (isinstance(level, Real) and level > 0.0 and (1.0 + level) / 2.0 < 1.0):
        raise OptionError(
            f"`level={level!r}` does not lie strictly between 0 and 1.", do="For a 95 % interval, pass `level=0.95`."
        )


def normal_quantile(level: float) -> float:
    """How many standard errors to each side it takes to hold a share `level` of the normal distribution.

    >>> round(normal_quantile(0.95), 2)
    1.96
    """
    check_level(level)
    return NormalDist().inv_cdf((1 + level) / 2)


def symmetric(value: float, half: float, level: float, method: str) -> Interval:
    """value ± half, or the whole line if either is unknown."""
    if math.isnan(value) or not math.isfinite(half):
        return Interval(-math.inf, math.inf, level, method)
    return Interval(value - half, value + half, level, method)


# -- Scores: what is still open if rewards never vary, and the rows therefore show no error ----------------------------


class UnseenScore(Protocol):
    """How far the mean of rewards between 0 and 1 may lie from what the rows show."""

    words: ClassVar[str]

    def ends(self, share: float, n: float, level: float) -> tuple[float, float]:
        """The lowest and the highest mean that n rewards with the mean `share` leave open."""

    def reach(self, stderr: float, n: int, level: float) -> float:
        """How far off n rows may be if their standard error is known rather than estimated."""


@dataclass(frozen=True)
class Wilson:
    """Wilson's score, for one look at the log."""

    words: ClassVar[str] = "Wilson's score"

    def ends(self, share: float, n: float, level: float) -> tuple[float, float]:
        """See `wilson`."""
        return wilson(share, n, level)

    def reach(self, stderr: float, n: int, level: float) -> float:
        """The reach of the normal interval."""
        return normal_quantile(level) * stderr


def wilson(share: float, n: float, level: float = 0.95) -> tuple[float, float]:
    r"""Wilson's score interval of a mean of n rewards between 0 and 1: all p with :math:`|\hat p - p| \le z \sqrt{p (1 - p)/n}`.

    It has a width even if all rewards are the same: no click in n rows leaves rates up to z²/(n + z²) open. It also holds for fractions,
    whose variance is at most that of clicks with the same mean.

    Examples
    --------
    >>> [round(end, 5) for end in wilson(0.0, 1000)]
    [0.0, 0.00383]

    References
    ----------
    Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    z = normal_quantile(level)
    n = max(n, 1e-300)
    middle = (share * n + z * z / 2) / (n + z * z)
    half = z * math.sqrt(share * (1 - share) * n + z * z / 4) / (n + z * z)
    return max(min(middle - half, share), 0.0), min(max(middle + half, share), 1.0)


# -- What rewards that never vary leave open: how far a value or a difference may lie from what its rows show ----------


@dataclass(frozen=True)
class Unvaried:
    """The rewards that one policy's weights see, if all are equal: that reward, its bounds, and how many rows they are worth."""

    reward: float
    bounds: tuple[float, float]
    n: float

    def reach(self, level: float, score: UnseenScore) -> tuple[float, float]:
        """How far below and above that reward the policy's value may lie."""
        low, high = self.bounds
        width = high - low
        if not math.isfinite(width):
            return math.inf, math.inf
        share = (self.reward - low) / width
        lower, upper = score.ends(share, self.n, level)
        return (share - lower) * width, (upper - share) * width


@dataclass(frozen=True)
class Unseen:
    r"""What the rows cannot show about a value, or about the difference of two, added to an interval made from what they do show.

    The reward is r₀ in every row with a weight. If bounds on the rewards are known, the value lies within a score interval (`wilson`)
    at the effective sample size; if not, nothing is known about it. For a difference, both values are open: one upward, one downward.

    If neither policy sees any reward but r₀, the difference is also :math:`E[u (r - r_0)]` with :math:`E[u] = 0`, where u is the
    difference of the weights. Its positive part has mass :math:`\tau = E[u^+]` and an effective sample of at least :math:`n \tau^2/E[u^2]`
    rows, in which no other reward came up. So it is at most

    .. math:: \tau \cdot \frac{z^2}{n \tau^2 / E[u^2] + z^2} \cdot (b - a) \le \frac z2 \sqrt{\frac{E[u^2]}{n}} \, (b - a),

    the largest over all τ, which is not among the sums. That is the smaller bound if the policies are nearly alike, and it is 0 for two
    that never differ, whatever the rewards are.
    """

    first: Unvaried | None = None
    second: Unvaried | None = None
    spread: float = math.inf  # √(E[u²]/n) of a difference
    rows: int = 0

    @property
    def is_open(self) -> bool:
        """Whether there is anything that the rows cannot show."""
        return self.first is not None or self.second is not None

    def widen(self, interval: Interval, score: UnseenScore | None) -> Interval:
        """The interval with what is unseen added at both ends; without a score, the interval already includes it."""
        if score is None or not self.is_open:
            return interval
        level = interval.level
        down, up = self.first.reach(level, score) if self.first else (0.0, 0.0)
        if self.second:
            below, above = self.second.reach(level, score)
            down, up = down + above, up + below
        if self.first and self.second:
            most = self._most(self.first.bounds, level, score)
            down, up = min(down, most), min(up, most)
        if down == up == 0.0:
            return interval
        return replace(interval, lower=interval.lower - down, upper=interval.upper + up, note=self._note(score))

    def _most(self, bounds: tuple[float, float], level: float, score: UnseenScore) -> float:
        """The largest difference that two policies can have, given how much their weights differ."""
        if self.spread == 0.0:
            return 0.0
        low, high = bounds
        return score.reach((high - low) / 2 * self.spread, self.rows, level)

    def _note(self, score: UnseenScore) -> str:
        smaller = min((policy for policy in (self.first, self.second) if policy), key=lambda policy: policy.n)
        if not all(map(math.isfinite, smaller.bounds)):
            return f"every reward with a weight is {smaller.reward:g}, and nothing bounds what others could be"
        low, high = smaller.bounds
        return (
            f"every reward with a weight is {smaller.reward:g}: {score.words} for rewards from {low:g} to {high:g}, at an effective sample "
            f"of {smaller.n:,.4g}"
        )


def bounds_by_kind(low: float, high: float) -> tuple[float, float] | None:
    """The bounds of rewards that end at exactly 0 and 1, as clicks do and as shares and scores do that reach both; None of others.

    Amounts that happen to lie between 0 and 1 hardly ever end at both.

    >>> bounds_by_kind(0.0, 1.0), bounds_by_kind(0.0, 0.83)
    ((0.0, 1.0), None)
    """
    return (0.0, 1.0) if {low, high} <= {0.0, 1.0} else None


def unvaried(
    moments: Moments,
    reward_range: tuple[Floats, Floats],
    reward_bounds: tuple[float, float] | None,
    clusters: Floats | None = None,
) -> list[Unvaried | None]:
    """The one reward that a policy's weights see, or None if they see several, for each member of a stack of moments.

    `clusters` are the effective clusters by weight: the rewards of a cluster may be alike for reasons of its own.

    >>> log = Moments.stack([Moments.of(weight=[2.0, 0.0], reward=[0, 0]), Moments.of(weight=[2.0, 0.5], reward=[0, 1])])
    >>> unvaried(log, (np.array([0.0, 0.0]), np.array([0.0, 1.0])), None)
    [Unvaried(reward=0.0, bounds=(0.0, 1.0), n=1.0), None]
    """
    low, high = reward_range
    at_low, at_high = (at_an_end(moments, end, high - low) & (np.asarray(moments.n) > 0) for end in (low, high))
    rewards: list[Unvaried | None] = [None] * len(low)
    effective = np.minimum(effective_sample_size(moments), np.inf if clusters is None else clusters)
    for k in np.flatnonzero(at_low | at_high).tolist():
        ends = float(low[k]), float(high[k])
        usual = bounds_by_kind(*ends) or (ends if ends[0] < ends[1] else UNKNOWN)
        rewards[k] = Unvaried(ends[0] if at_low[k] else ends[1], reward_bounds or usual, float(effective[k]))
    return rewards


# -- `Method`: what every way of making intervals can be asked ---------------------------------------------------------


FEWEST = 3.0  # degrees of freedom, however few rows carry the answer
PACE = 5.0  # (E/5)² of them, by simulation: benchmarks/intervals.py jackknife


def degrees_of_freedom(carrying: ArrayLike, clusters: ArrayLike = math.inf) -> Floats:
    """Degrees of freedom, from the rows that carry an error and the clusters they come from; both may be arrays.

    >>> float(degrees_of_freedom(100.0)), float(degrees_of_freedom(100.0, clusters=11.0))
    (400.0, 10.0)
    """
    rows = np.maximum(FEWEST, np.square(np.asarray(carrying) / PACE))
    return np.maximum(np.minimum(rows, np.asarray(clusters) - 1.0), 1.0)[()]


@dataclass(frozen=True)
class Evidence:
    """What an interval is made from: one estimate, and the rows behind it.

    `groups` is the number of hashed groups with rows, or 0 if the error does not come from them; `clusters` is how many clusters of equal
    size the rows are worth. `carrying` is how many rows carry the variance, `extremes` are the smallest and the largest term that a
    row may have, and `leverage` is a heavy row's share in its own fit. `mean_is_one` says whether the mean of the weights must be 1,
    `smoothed` are the sums for a method's `smoothings`, and `spread` are the powers of the excess and of the rewards, and their ends.
    `labeled` is the share of the rows that labels are worth, where the reward is known for some only.
    """

    value: float
    stderr: float
    n: int
    moments: Moments = field(default_factory=Moments.empty)
    groups: int = 0
    clusters: float = math.inf
    carrying: float = math.inf
    extremes: tuple[float, float] = (math.nan, math.nan)
    leverage: float = 0.0
    mean_is_one: bool = True
    smoothed: Smoothed = UNSMOOTHED
    spread: tuple[Powers, Powers, tuple[float, float]] | None = None
    labeled: float = 1.0

    def __getitem__(self, place: int) -> Evidence:
        """The evidence of one member of a stack, whose fields are arrays; `smoothed` sums are not among them."""

        def pick(part: ArrayLike) -> float:
            return float(np.asarray(part)[place])

        spread = self.spread
        if spread is not None:
            excess, rewards, (low, high) = spread
            spread = excess[place], rewards[place], (pick(low), pick(high))
        return replace(
            self,
            value=pick(self.value),
            stderr=pick(self.stderr),
            n=int(pick(self.n)),
            moments=self.moments[place],
            groups=int(pick(self.groups)),
            clusters=pick(self.clusters),
            carrying=pick(self.carrying),
            extremes=(pick(self.extremes[0]), pick(self.extremes[1])),
            leverage=pick(self.leverage),
            spread=spread,
            labeled=pick(self.labeled),
        )

    @property
    def outcomes(self) -> float:
        """How many rows with a large weight have the outcome that matters, however much each contributes; see `outcome_rows`."""
        if self.spread is None or math.isinf(self.carrying):
            return self.carrying
        return float(outcome_rows(*self.spread) * self.labeled * self.n / max(self.spread[0].n, 1))

    @property
    def freedom(self) -> Floats:
        """The degrees of freedom of the error; where that comes from groups, there are at most as many clusters as groups."""
        groups = np.asarray(self.groups)
        return degrees_of_freedom(self.carrying, np.where(groups > 0, np.minimum(groups, self.clusters), np.inf))


@runtime_checkable
class Method(Protocol):
    """A way of making intervals. Inherit from it, give it a `name` and an `interval`, and override whatever else is different.

    Examples
    --------
    >>> from counterpoise.intervals import INTERVALS, symmetric
    >>> class Chebyshev(Method):
    ...     name = "chebyshev"
    ...
    ...     def interval(self, evidence, level):
    ...         return symmetric(evidence.value, evidence.stderr / math.sqrt(1 - level), level, self.name)
    >>> round(Chebyshev().interval(Evidence(0.0, 1.0, n=100), 0.95).upper, 2)
    4.47

    With ``INTERVALS["chebyshev"] = Chebyshev``, you can use the name wherever an interval is asked for.
    """

    name: ClassVar[str]
    about: ClassVar[str] = ""  # one sentence for those who read the report
    needs_groups: ClassVar[bool] = False  # rows or clusters must be hashed into groups
    allows_differences: ClassVar[bool] = True  # not just values
    is_anytime: ClassVar[bool] = False  # it holds however often one looks while the log grows
    needs_known_propensities: ClassVar[bool] = False  # it bounds weights rather than estimating their error
    estimators: ClassVar[tuple[str, ...]] = ()  # the only estimators it works with; empty: all
    smoothings: ClassVar[tuple[float, ...]] = ()  # every λ whose sum of log(1 + λwr)/λ it needs

    @classmethod
    def from_options(cls, options: Mapping[str, object] | None = None) -> Self:
        """The method behind a name; a front end that takes options separately passes all of them."""
        own = getattr(cls, "__dataclass_fields__", {})
        chosen = {name: value for name, value in (options or {}).items() if name in own and value is not None}
        return cls(**chosen)

    @property
    def score(self) -> UnseenScore | None:
        """What rewards that never vary leave open, to be added to the interval; None if the interval already includes it."""
        return Wilson()

    def uses_groups(self, *, is_clustered: bool) -> bool:
        """Whether standard errors come from the jackknife over groups rather than from the delta method."""
        return self.needs_groups

    def check(self, *, rewards: tuple[float, float], max_weight: float, is_clustered: bool) -> None:
        """Raise an error if the log's extreme rewards or its largest weight violate the method's assumptions."""
        return

    def unvaried(self, evidence: Evidence, level: float) -> Interval:
        """What the rows themselves show where rewards never vary, before the `score` is added."""
        return self.interval(evidence, level)

    def ends(self, evidence: Evidence, level: float) -> tuple[Floats, Floats] | None:
        """Both ends for a whole stack of estimates, whose evidence has arrays in its fields; None if each is made on its own."""
        return None

    @abstractmethod
    def interval(self, evidence: Evidence, level: float) -> Interval:
        """The interval of one estimate."""


# -- Normal intervals, by the central limit theorem --------------------------------------------------------------------


@dataclass(frozen=True)
class Normal(Method):
    """Right for large logs of independent rows."""

    name: ClassVar[str] = "normal"
    about: ClassVar[str] = "Normal intervals: right for large logs with independent <rows>."

    def interval(self, evidence: Evidence, level: float) -> Interval:
        """See `normal`."""
        return normal(evidence.value, evidence.stderr, level)


def normal(value: float, stderr: float, level: float = 0.95) -> Interval:
    """Value ± z·stderr, by the central limit theorem.

    >>> lower, upper = normal(1.0, 0.1)
    >>> round(lower, 3), round(upper, 3)
    (0.804, 1.196)
    """
    return symmetric(value, normal_quantile(level) * stderr, level, Normal.name)
