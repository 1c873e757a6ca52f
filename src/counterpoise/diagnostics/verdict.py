"""The checks on a log, and the verdict: can its estimates be believed, and if not, why, in plain words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from counterpoise.errors import Argument, Pieces, Sentence
from counterpoise.moments import Moments
from counterpoise.moments.effective import at_an_end, effective_sample_size, mean_distance
from counterpoise.moments.tails import Tail, pareto_k

VerdictWord = Literal["ok", "caution", "not identified"]

FEW_ROWS = 100
FEW_REWARDS = 30
FEW_CLUSTERS = 20
HEAVY_TAIL = 0.7
WRONG_PROPENSITIES = 0.001
CONCENTRATED = 0.5
UNSUPPORTED = 0.5
MANY_DROPPED = 0.05


@dataclass(frozen=True)
class Diagnostics:
    """What the weights and rewards of one target look like.

    `top_rows` is one row in a hundred, at least 1 and at most 1,000, and `top_share` is the share of the total weight that this many of
    the heaviest rows carry. `effective_rewards` is the number of rows whose rewards carry the estimate: weighted clicks or non-clicks,
    whichever are fewer; nan if all rewards are the same. `cluster_groups` is the number of hashed groups of clusters that have rows, and
    `effective_clusters` is how many clusters of equal size the clusters are worth, (Σm)²/Σm². Where the mean of a weight need not be 1
    (`mean_is_one`), there is nothing to test, and `mean_weight_p` is nan.
    """

    n: int
    effective_sample_size: float
    effective_share: float
    mean_weight: float
    mean_weight_stderr: float
    mean_weight_p: float
    max_weight: float
    top_rows: int
    top_share: float
    pareto_k: float
    zero_weight_share: float
    reward_min: float
    reward_max: float
    effective_rewards: float
    cluster_groups: int | None = None
    duplicates: int | None = None
    dropped: int = 0  # of the whole log
    effective_clusters: float | None = None
    mean_is_one: bool = True  # under right propensities, by the kind of weight

    @property
    def has_equal_rewards(self) -> bool:
        """Whether there are rows and all of them have the same reward."""
        return self.n > 0 and self.reward_min == self.reward_max

    @property
    def has_overlap(self) -> bool:
        """Whether any row has a positive weight."""
        return self.n > 0 and self.mean_weight > 1e-15


@dataclass(frozen=True)
class Verdict:
    """`ok`, `caution` or `not identified`, and why."""

    verdict: VerdictWord
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return self.verdict + (": " + " ".join(self.reasons) if self.reasons else "")


def diagnose(
    moments: Moments,
    tail: Tail,
    *,
    reward_range: tuple[float, float],
    mean_weight_error: float | None = None,
    cluster_groups: int | None = None,
    effective_clusters: float | None = None,
    duplicates: int | None = None,
    dropped: int = 0,
    mean_is_one: bool = True,
) -> Diagnostics:
    """The diagnostics of one target; `mean_weight_error` replaces the standard error of the mean weight if rows are clustered.

    >>> import numpy as np
    >>> log = Moments.of(weight=[2.0, 0.0, 1.0, 1.0], reward=[1, 0, 1, 0])
    >>> found = diagnose(log, Tail(np.array([2.0, 1.0, 1.0, 0.0]), zeros=1), reward_range=(0.0, 1.0))
    >>> round(found.effective_sample_size, 2), found.zero_weight_share
    (2.67, 0.25)
    """
    n = moments.n
    if n == 0:
        return Diagnostics(
            0,
            0.0,
            0.0,
            math.nan,
            math.inf,
            1.0,
            0.0,
            0,
            0.0,
            math.nan,
            0.0,
            math.nan,
            math.nan,
            math.nan,
            cluster_groups,
            duplicates,
            dropped,
            effective_clusters,
            mean_is_one,
        )
    excess = float(moments.average("u"))
    mean = max(1.0 + excess, 0.0)  # if all weights are 0, their mean may come out as −2e-16
    spread = float(moments.covariance("u", "u"))
    effective = effective_sample_size(moments)
    error = mean_weight_error if mean_weight_error is not None else math.sqrt(spread / n)
    top = min(max(1, n // 100), len(tail.weights))
    total = n * mean
    return Diagnostics(
        n=n,
        effective_sample_size=effective,
        effective_share=effective / n,
        mean_weight=mean,
        mean_weight_stderr=error,
        mean_weight_p=_two_sided(excess, error) if mean_is_one else math.nan,
        max_weight=float(tail.weights[0]) if len(tail.weights) else 0.0,
        top_rows=top,
        top_share=min(float(tail.weights[:top].sum()) / total, 1.0) if total > 0 else 0.0,
        pareto_k=pareto_k(tail, n),
        zero_weight_share=tail.zeros / n,
        reward_min=reward_range[0],
        reward_max=reward_range[1],
        effective_rewards=min(_effective_rewards(moments, end, reward_range) for end in reward_range),
        cluster_groups=cluster_groups,
        duplicates=duplicates,
        dropped=dropped,
        effective_clusters=effective_clusters,
        mean_is_one=mean_is_one,
    )


def _effective_rewards(moments: Moments, end: float, reward_range: tuple[float, float]) -> float:
    r"""(Σ w d)²/Σ (w d)²: the effective number of rows whose rewards lie away from one end of the range, d = |r − end|.

    This is the effective sample size of the weights w·d: for clicks and the end 0, it counts weighted clicks.
    """
    width = reward_range[1] - reward_range[0]
    if not width > 0:
        return math.nan
    mean = float(mean_distance(moments, end, width))
    if at_an_end(moments, end, width):
        return 0.0
    apart = float(moments.center) - end
    parts = {"u": apart, "s": 1.0, "us": 1.0}
    spread = sum(
        float(moments.covariance(a, b)) / width * x / width * y for a, x in parts.items() for b, y in parts.items()
    )
    return float(moments.n) * mean**2 / (mean**2 + max(spread, 0.0))


def judge(found: Diagnostics) -> Verdict:
    """The verdict on every estimate that relies on these weights (all but `dm`).

    >>> import numpy as np
    >>> log = Moments.of(weight=[0.0, 0.0], reward=[1, 0])
    >>> print(judge(diagnose(log, Tail(np.zeros(2), zeros=2), reward_range=(0.0, 1.0))))
    not identified: No row has a positive weight: the log never took an action that the target would take.
    """
    fatal = _fatal(found)
    if fatal:
        return Verdict("not identified", (fatal,))
    reasons = tuple(_doubts(found))
    return Verdict("caution" if reasons else "ok", reasons)


def _fatal(found: Diagnostics) -> str:
    if found.n == 0:
        return "There are no rows."
    if not found.has_overlap:
        return "No row has a positive weight: the log never took an action that the target would take."
    if found.n == 1:
        return "A single row says nothing about its own error."
    if found.mean_is_one and found.mean_weight + 3.3 * found.mean_weight_stderr < UNSUPPORTED:  # 3.3 errors: p = 0.001
        return (
            f"The mean weight is {found.mean_weight:.3g} and should be 1: either the log shows less than half of what the target would "
            "do, or the propensities are wrong."
        )
    return ""


def _doubts(found: Diagnostics) -> list[str]:
    doubts = []
    if found.effective_sample_size < FEW_ROWS:
        doubts.append(
            f"The weights leave an effective sample of {found.effective_sample_size:.3g} rows out of {found.n:,}, "
            "too few for a reliable standard error."
        )
    if not found.mean_is_one:
        doubts.append(
            f"These are not plain importance weights. Their mean is {found.mean_weight:.4g}, and its distance from 1 is bias that the "
            "interval does not cover."
        )
    elif found.mean_weight_p < WRONG_PROPENSITIES:
        doubts.append(
            f"The mean weight is {found.mean_weight:.4g} and should be 1 (p {p_value(found.mean_weight_p)}): either the propensities or "
            "target probabilities are wrong, or the log lacks actions that the target takes."
        )
    # Weights with a heavy tail grow faster than √n; a fit can also look bad because it straddles a gap between bounded weights.
    if found.pareto_k > HEAVY_TAIL and found.max_weight > math.sqrt(found.n) * found.mean_weight / 4:
        doubts.append(
            f"The weights have a heavy tail (Pareto k = {found.pareto_k:.2f}, above {HEAVY_TAIL}): "
            "rows not seen yet could move the estimate by more than its interval."
        )
    if found.n >= FEW_ROWS and found.top_share > CONCENTRATED:
        doubts.append(
            f"The {found.top_rows:,} largest weights carry {found.top_share:.0%} of the total, so a few rows decide the answer."
        )
    if found.has_equal_rewards:
        unless: Pieces = (
            ["The interval assumes that rewards are 0 or 1; if they can be more, pass ", Argument("reward_bounds"), "."]
            if found.reward_min in (0.0, 1.0)
            else ["The interval is unbounded unless you pass ", Argument("reward_bounds"), "."]
        )
        what = f"Every reward is {found.reward_min:g}, so the rows do not show how rewards vary. "
        doubts.append(Sentence([what, *unless]))
    if found.effective_rewards < FEW_REWARDS:
        doubts.append(
            f"Only about {found.effective_rewards:.2g} rows carry the outcomes that matter, and it takes {FEW_REWARDS} for a reliable "
            "standard error."
        )
    if found.dropped > MANY_DROPPED * (found.n + found.dropped):
        doubts.append(
            f"{found.dropped:,} of {found.n + found.dropped:,} rows were dropped as bad, and the rest may not be like them."
        )
    if found.cluster_groups is not None and found.cluster_groups < FEW_CLUSTERS:
        doubts.append(
            f"The rows fall into only {found.cluster_groups} groups of clusters, and cluster-robust errors need at least {FEW_CLUSTERS}."
        )
    elif found.effective_clusters is not None and found.effective_clusters < FEW_CLUSTERS:
        doubts.append(
            f"A few large clusters hold most of the rows. All clusters together are worth about {found.effective_clusters:.2g} clusters "
            f"of equal size, and cluster-robust errors need at least {FEW_CLUSTERS}."
        )
    if found.duplicates:
        repeat = "row repeats" if found.duplicates == 1 else "rows repeat"
        doubts.append(f"{found.duplicates:,} {repeat} the key of another row, so the log may contain rows twice.")
    return doubts


def p_value(p: float) -> str:
    """A p-value to two digits, or a bound if it is too small to mean anything.

    >>> p_value(0.0123), p_value(0.0)
    ('= 0.012', '< 1e-12')
    """
    return f"= {p:.2g}" if p > 1e-12 else "< 1e-12"


def _two_sided(excess: float, error: float) -> float:
    """The p-value of the z-test that the mean excess is 0; rounding in weights that are all 1 is not evidence."""
    if abs(excess) <= 1e-12:
        return 1.0
    if error == 0.0 or not math.isfinite(error):
        return 0.0 if error == 0.0 else 1.0
    return math.erfc(abs(excess) / error / math.sqrt(2.0))
