"""The checks of a log, and the verdict: whether an estimate can be believed, in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from counterpoise.diagnostics.dropped import Dropped
from counterpoise.diagnostics.mean_weight import MeanWeight
from counterpoise.errors import Argument, Pieces, Sentence
from counterpoise.moments import Moments, Powers
from counterpoise.moments.effective import carrying_rows, effective_sample_size, usual_ends
from counterpoise.moments.powers import NOTHING
from counterpoise.moments.tails import Tail, pareto_k

VerdictWord = Literal["ok", "caution", "not identified"]

FEW_ROWS = 30  # effective
FEW_CARRYING = 7  # by simulation, benchmarks/coverage_grid.py
FEW_DIFFERING = 3  # of a difference, whose terms have both signs
FEW_CLUSTERS = 20
FEW_WEIGHTS = 30  # rows that carry the weights' variance, for a test of their mean
WRONG_PROPENSITIES = 0.001
BEYOND_LUCK = 1e-6  # even where few rows carry the weights
HEAVY_TAIL = 0.7  # Pareto k
UNSUPPORTED = 0.5
MANY_DROPPED = 0.05
UNLIKE = 0.01  # p of the dropped rows' rewards
MATTERS = 0.25  # standard errors by which a shift moves an interval of 95 % to less than 94.5 %


@dataclass(frozen=True)
class Diagnostics:
    """What the weights and rewards of one target look like.

    `carrying_rows` is how many rows carry the variance of the estimate, those with large weights whose reward is the rarer one;
    `weight_rows` is how many carry the variance of the weights alone. `top_rows` is one row in a hundred, at least 1 and at most 1,000;
    `top_share` is the share of the total weight that this many of the heaviest rows carry. `cluster_groups` is the number of hashed
    groups of clusters that have rows, and `effective_clusters` is how many clusters of equal size the clusters are worth, (Σm)²/Σm².
    Where the mean of a weight need not be 1 (`mean_is_one`), there is nothing to test, and `mean_weight_p` is nan. `dropped_rewards`
    counts the dropped rows whose reward is good, `dropped_shift` is by how much the mean reward would be higher with them, and `dropped_p`
    is how often rows dropped at random are as unlike the others.
    """

    n: int
    effective_sample_size: float = 0.0
    effective_share: float = 0.0
    mean_weight: float = math.nan
    mean_weight_stderr: float = math.inf
    mean_weight_p: float = 1.0
    max_weight: float = 0.0
    top_rows: int = 0
    top_share: float = 0.0
    pareto_k: float = math.nan
    zero_weight_share: float = 0.0
    reward_min: float = math.nan
    reward_max: float = math.nan
    carrying_rows: float = 0.0
    weight_rows: float = 0.0
    cluster_groups: int | None = None
    duplicates: int | None = None
    dropped: int = 0  # of the whole log
    effective_clusters: float | None = None
    mean_is_one: bool = True
    mean_reward: float = math.nan
    mean_reward_stderr: float = math.inf  # at the effective sample
    dropped_rewards: int = 0
    dropped_shift: float = 0.0
    dropped_p: float = 1.0

    @property
    def lost_rewards(self) -> bool:
        """Whether the dropped rows are so unlike the others that the answer may be off."""
        return self.dropped_p < UNLIKE and abs(self.dropped_shift) > MATTERS * self.mean_reward_stderr

    @property
    def has_equal_rewards(self) -> bool:
        """Whether there are rows and all of them have the same reward."""
        return self.n > 0 and self.reward_min == self.reward_max

    @property
    def has_overlap(self) -> bool:
        """Whether any row has a positive weight."""
        return self.n > 0 and self.mean_weight > 1e-15

    @property
    def can_test_weights(self) -> bool:
        """Whether enough rows carry the weights' variance for a test of their mean."""
        return self.weight_rows >= FEW_WEIGHTS


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
    excess: Powers,
    rewards: Powers,
    reward_range: tuple[float, float],
    mean_weight_error: float | None = None,
    cluster_groups: int | None = None,
    effective_clusters: float | None = None,
    duplicates: int | None = None,
    dropped: int = 0,
    left_out: Powers = NOTHING,
    mean_is_one: bool = True,
) -> Diagnostics:
    """The diagnostics of one target; `mean_weight_error` replaces the standard error of the mean weight if rows are clustered.

    >>> import numpy as np
    >>> weight, reward = np.array([2.0, 0.0, 1.0, 1.0]), np.array([1.0, 0.0, 1.0, 0.0])
    >>> log, tail = Moments.of(weight, reward), Tail(np.sort(weight)[::-1], zeros=1)
    >>> found = diagnose(log, tail, excess=Powers.of(weight - 1), rewards=Powers.of(reward), reward_range=(0.0, 1.0))
    >>> round(found.effective_sample_size, 2), found.zero_weight_share, found.carrying_rows
    (2.67, 0.25, 1.0)
    """
    n = moments.n
    known = {"duplicates": duplicates, "dropped": dropped, "mean_is_one": mean_is_one}
    clusters = {"cluster_groups": cluster_groups, "effective_clusters": effective_clusters}
    if n == 0:
        return Diagnostics(0, **known, **clusters)  # type: ignore[arg-type]
    mean = max(1.0 + float(moments.average("u")), 0.0)  # if all weights are 0, their mean may come out as −2e-16
    effective = effective_sample_size(moments)
    error = math.sqrt(float(moments.covariance("u", "u")) / n) if mean_weight_error is None else mean_weight_error
    top = min(max(1, n // 100), len(tail.weights))
    total = n * mean
    lost = Dropped(left_out, rewards)
    test = MeanWeight(excess, error, math.inf if effective_clusters is None else effective_clusters)
    return Diagnostics(
        n=n,
        effective_sample_size=effective,
        effective_share=effective / n,
        mean_weight=mean,
        mean_weight_stderr=error,
        mean_weight_p=test.p_value if mean_is_one else math.nan,
        max_weight=float(tail.weights[0]) if len(tail.weights) else 0.0,
        top_rows=top,
        top_share=min(float(tail.weights[:top].sum()) / total, 1.0) if total > 0 else 0.0,
        pareto_k=pareto_k(tail, n),
        zero_weight_share=tail.zeros / n,
        reward_min=reward_range[0],
        reward_max=reward_range[1],
        carrying_rows=carrying_rows(excess, rewards, usual_ends(*reward_range)),
        weight_rows=excess.n / excess.kurtosis,
        mean_reward=float(moments.center + moments.average("s")),
        mean_reward_stderr=math.sqrt(float(moments.covariance("s", "s")) / effective) if effective else math.inf,
        dropped_rewards=left_out.n,
        dropped_shift=lost.shift,
        dropped_p=lost.p_value,
        **known,  # type: ignore[arg-type]
        **clusters,  # type: ignore[arg-type]
    )


def judge(found: Diagnostics) -> Verdict:
    """The verdict on every estimate that relies on these weights (all but `dm`).

    >>> print(judge(Diagnostics(2, mean_weight=0.0)))
    not identified: No row has a positive weight: the log never took an action that the target would take.
    """
    fatal = _fatal(found)
    if fatal:
        return Verdict("not identified", (fatal,))
    reasons = (*_of_weights(found), *_of_evidence(found), *_of_log(found))
    return Verdict("caution" if reasons else "ok", reasons)


def judge_difference(policies: Mapping[str, Diagnostics], carrying: float, differing: float) -> Verdict:
    """The verdict on a difference: what is wrong with either policy's weights, and the rows that carry the difference itself.

    `carrying` are those rows, and `differing` is the mean square of the difference of the weights, 0 where no row tells the policies
    apart. What the two share cancels, so that a difference may be sure where neither value is.
    """
    fatal = [(name, _fatal(one)) for name, one in policies.items()]
    if any(reason for _, reason in fatal):
        return Verdict("not identified", tuple(f"{name}: {reason}" for name, reason in fatal if reason))
    reasons: list[str] = [f"{name}: {reason}" for name, one in policies.items() for reason in _of_weights(one)]
    shared = next(iter(policies.values()))
    if differing <= 1e-24 and len(policies) > 1:  # weights that are all 1 are those of the logging policy itself
        reasons.append(
            "The policies agree on every row of this log. If they differ at all, then on rows that it has not seen."
        )
    elif differing > 1e-24 and carrying < FEW_DIFFERING and not shared.has_equal_rewards:
        reasons.append(
            f"About {carrying:.2g} rows carry the difference, and it takes {FEW_DIFFERING} for an interval to be relied on: the policies "
            "differ on too few rows, or on too few with the outcome that matters."
        )
    if shared.has_equal_rewards:
        reasons.append(_equal_rewards(shared))
    reasons += _of_log(shared)
    return Verdict("caution" if reasons else "ok", tuple(reasons))


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


def _of_weights(found: Diagnostics) -> list[str]:
    """What is wrong with the weights."""
    doubts = []
    if found.effective_sample_size < FEW_ROWS:
        doubts.append(
            f"The weights leave an effective sample of {found.effective_sample_size:.3g} rows out of {found.n:,}, too few for a reliable "
            "standard error."
        )
    if not found.mean_is_one:
        doubts.append(
            "These are not plain importance weights: expect a bias, which the interval does not cover. Their mean is "
            f"{found.mean_weight:.4g}, where that of plain weights is 1."
        )
    elif found.mean_weight_p < WRONG_PROPENSITIES:
        what = f"The mean weight is {found.mean_weight:.4g} and should be 1 (p {p_value(found.mean_weight_p)})"
        doubts.append(
            f"{what}: either the propensities or target probabilities are wrong, or the log lacks actions that the target takes."
            if found.can_test_weights or found.mean_weight_p < BEYOND_LUCK
            else f"{what}, but so few rows carry the weights that this log cannot tell a wrong propensity from bad luck."
        )
    return doubts


def _of_evidence(found: Diagnostics) -> list[str]:
    """What is wrong with the rows that carry a value."""
    if found.has_equal_rewards:
        return [_equal_rewards(found)]
    if found.carrying_rows >= FEW_CARRYING:
        return []
    needed = f"About {found.carrying_rows:.2g} rows carry this answer, and it takes {FEW_CARRYING} for an interval to be relied on"
    if found.weight_rows < FEW_WEIGHTS:
        heavy = f" (Pareto k = {found.pareto_k:.2f})" if found.pareto_k > HEAVY_TAIL else ""
        return [f"{needed}: a few rows have most of the weight{heavy}, and rows not seen yet could move it."]
    return [f"{needed}: the outcome that matters is too rare among the rows with large weights."]


def _of_log(found: Diagnostics) -> list[str]:
    """What is wrong with the log, whatever is asked of it."""
    doubts = []
    if found.lost_rewards:
        doubts.append(_lost_rewards(found))
    elif found.dropped > MANY_DROPPED * (found.n + found.dropped):
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


def _lost_rewards(found: Diagnostics) -> str:
    m, n, mean = found.dropped_rewards, found.n, found.mean_reward
    whole = mean + found.dropped_shift
    total = whole * (n + m)
    lost = total - mean * n
    share = f", and {lost / total:.0%} of the reward with them" if found.reward_min >= 0 and lost > 0 else ""
    return (
        f"{found.dropped:,} of {n + found.dropped:,} rows ({_percent(found.dropped / (n + found.dropped))}) were dropped as bad{share}. "
        f"The mean reward is {mean:.4g} and would be {whole:.4g} with those whose reward is good (p {p_value(found.dropped_p)} if rows "
        "were bad at random), so the answer is about other rows than the log's."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def _equal_rewards(found: Diagnostics) -> str:
    unless: Pieces = (
        ["The interval assumes that rewards are 0 or 1; if they can be more, pass ", Argument("reward_bounds"), "."]
        if found.reward_min in (0.0, 1.0)
        else ["The interval is unbounded unless you pass ", Argument("reward_bounds"), "."]
    )
    return Sentence([f"Every reward is {found.reward_min:g}, so the rows do not show how rewards vary. ", *unless])


def p_value(p: float) -> str:
    """A p-value to two digits, or a bound if it is too small to mean anything.

    >>> p_value(0.0123), p_value(0.0)
    ('= 0.012', '< 1e-12')
    """
    return f"= {p:.2g}" if p > 1e-12 else "< 1e-12"
