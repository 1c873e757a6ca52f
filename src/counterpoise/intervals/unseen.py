"""What rewards that never vary leave open: how far a value or a difference may lie from what its rows show."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from counterpoise.intervals.method import Interval, Score
from counterpoise.moments import Floats, Moments
from counterpoise.moments.effective import at_an_end, effective_sample_size

UNKNOWN = (-math.inf, math.inf)


@dataclass(frozen=True)
class Unvaried:
    """The rewards that one policy's weights see, if all are equal: that reward, its bounds, and how many rows they are worth."""

    reward: float
    bounds: tuple[float, float]
    n: float

    def reach(self, level: float, score: Score) -> tuple[float, float]:
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

    def widen(self, interval: Interval, score: Score | None) -> Interval:
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

    def _most(self, bounds: tuple[float, float], level: float, score: Score) -> float:
        """The largest difference that two policies can have, given how much their weights differ."""
        if self.spread == 0.0:
            return 0.0
        low, high = bounds
        return score.reach((high - low) / 2 * self.spread, self.rows, level)

    def _note(self, score: Score) -> str:
        smaller = min((policy for policy in (self.first, self.second) if policy), key=lambda policy: policy.n)
        if not all(map(math.isfinite, smaller.bounds)):
            return f"every reward with a weight is {smaller.reward:g}, and nothing bounds what others could be"
        low, high = smaller.bounds
        return (
            f"every reward with a weight is {smaller.reward:g}: {score.words} for rewards from {low:g} to {high:g}, at an effective sample "
            f"of {smaller.n:,.4g}"
        )


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
    effective = effective_sample_size(moments)
    effective = effective if clusters is None else np.minimum(effective, clusters)
    for k in np.flatnonzero(at_low | at_high).tolist():
        ends = float(low[k]), float(high[k])
        usual = (0.0, 1.0) if set(ends) <= {0.0, 1.0} else ends if ends[0] < ends[1] else UNKNOWN
        rewards[k] = Unvaried(ends[0] if at_low[k] else ends[1], reward_bounds or usual, float(effective[k]))
    return rewards
