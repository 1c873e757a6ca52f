"""`Method`: what every way of making intervals can be asked."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from counterpoise.intervals.interval import Interval
from counterpoise.intervals.scores import Score, Wilson
from counterpoise.moments import Floats, Moments, Powers
from counterpoise.moments.effective import outcome_rows
from counterpoise.moments.smoothed import UNSMOOTHED, Smoothed


@dataclass(frozen=True)
class Evidence:
    """What an interval is made from: one estimate, and the rows behind it.

    `groups` is the number of hashed groups with rows, or 0 if the error does not come from them; `clusters` is how many clusters of equal
    size the rows are worth. `carrying` is how many rows carry the variance, `extremes` are the smallest and the largest term that a
    row may have, and `leverage` is how much of its own fit a heavy row makes. `mean_is_one` says whether the mean of the weights must be 1,
    `smoothed` are the sums for a method's `smoothings`, and `spread` are the powers of the excess and of the rewards, and their ends.
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

    @property
    def outcomes(self) -> float:
        """How many rows with a large weight have the outcome that matters, however much each of them carries; see `outcome_rows`."""
        if self.spread is None or math.isinf(self.carrying):
            return self.carrying
        return float(outcome_rows(*self.spread) * self.n / max(self.spread[0].n, 1))


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
    allows_differences: ClassVar[bool] = True  # and not values alone
    needs_known_propensities: ClassVar[bool] = False  # it bounds weights rather than estimating their error
    estimators: ClassVar[tuple[str, ...]] = ()  # the only ones it is for; none: all
    smoothings: ClassVar[tuple[float, ...]] = ()  # every λ whose sum of log(1 + λwr)/λ it needs

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | None = None) -> Self:
        """The method that its name stands for; a front end that takes a method's options separately passes all of them."""
        own = getattr(cls, "__dataclass_fields__", {})
        given = {name: value for name, value in (options or {}).items() if name in own and value is not None}
        return cls(**given)

    @property
    def score(self) -> Score | None:
        """What rewards that never vary leave open, to be added to the interval; None if the interval already includes it."""
        return Wilson()

    def uses_groups(self, *, is_clustered: bool) -> bool:
        """Whether standard errors come from the jackknife over groups rather than from the delta method."""
        return self.needs_groups

    def check(self, *, rewards: tuple[float, float], max_weight: float, is_clustered: bool) -> None:
        """Raise an error if the log's extreme rewards or its largest weight break what the method takes for granted."""
        return

    def unvaried(self, evidence: Evidence, level: float) -> Interval:
        """What the rows themselves show where rewards never vary, before the `score` is added."""
        return self.interval(evidence, level)

    def ends(self, evidence: Evidence, level: float) -> tuple[Floats, Floats] | None:
        """Both ends for a stack of estimates at once, whose evidence has arrays in its fields; None if each is made on its own."""
        return None

    @abstractmethod
    def interval(self, evidence: Evidence, level: float) -> Interval:
        """The interval of one estimate."""
