"""`Diagnostics`: what the weights and rewards of one target look like, measured from its moments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from counterpoise.display import ROWS, Block, Cell, Display, Number, PValue, Share, Table, Worded, percent
from counterpoise.intervals.method import degrees_of_freedom
from counterpoise.intervals.student_t import normal_share, t_share
from counterpoise.moments import Moments, Powers
from counterpoise.moments.columns import CUT
from counterpoise.moments.spread import NOTHING, Tail, carrying_rows, effective_sample_size, pareto_k, usual_ends

# -- Tests of means: that of weights is 1 where propensities and targets are right; and Holm's correction of many ------

ROUNDING = 1e-6  # of probabilities in single precision


def of_mean(mean: float, error: float, carrying: float, clusters: float = math.inf) -> float:
    """How often a mean whose true value is 0 comes out this far from it: Student's test, for few carrying rows or few clusters.

    >>> round(of_mean(0.1, 0.05, carrying=400), 4), of_mean(0.0, 0.0, carrying=400)
    (0.0455, 1.0)
    """
    if not (error > 0 and math.isfinite(error)):
        return 1.0
    return 2 * t_share(float(degrees_of_freedom(carrying, clusters)), -abs(mean / error))


def holm(p: Sequence[float], looks: int | None = None) -> list[float]:
    """Holm's corrected p values among at least this many tests; nan, where nothing could be tested, stays nan.

    >>> holm([0.01, 0.04, 0.03], 3)
    [0.03, 0.06, 0.06]

    References
    ----------
    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979).
    """
    left, most = max(looks or 0, len(p)), 0.0
    corrected = [math.nan] * len(p)
    for at in sorted((k for k in range(len(p)) if not math.isnan(p[k])), key=lambda k: p[k]):
        most = max(most, min(left * p[at], 1.0))
        corrected[at] = most
        left -= 1
    return corrected


@dataclass(frozen=True)
class MeanWeight:
    r"""A test of E[w] = 1 that allows for weights with a long tail.

    Weights are skewed, so their mean is more often too small than too large, and its error is too small along with it. Hall's
    transformation takes the skewness γ out of t = ū/s,

    .. math:: t + \gamma \left(\frac{t^2}{3} + \frac16\right) + \frac{\gamma^2 t^3}{27},

    with γ over √n, and Student's tails, with (E/5)² degrees of freedom (at least 3) where E = n/kurtosis rows carry the weights'
    variance, allow for the rest. With clusters, the error is the jackknife's, whose skewness is unknown.

    Examples
    --------
    >>> fair = Powers.of([-0.5, 0.5] * 100)
    >>> MeanWeight(fair, 0.5 / math.sqrt(200)).p_value
    1.0

    References
    ----------
    Hall, "On the removal of skewness by transformation", Journal of the Royal Statistical Society B 54 (1992).
    """

    excess: Powers
    error: float
    clusters: float = math.inf

    @property
    def p_value(self) -> float:
        """How often weights with a true mean of 1 average this far from it."""
        mean = float(self.excess.middle)
        if abs(mean) <= ROUNDING:  # which is no evidence
            return 1.0
        if self.error == 0.0 or not math.isfinite(self.error):
            return 0.0 if self.error == 0.0 else 1.0
        t = mean / self.error
        if not math.isfinite(self.clusters):
            skew = float(self.excess.skewness) / math.sqrt(self.excess.n)
            t += skew * (t * t / 3 + 1 / 6) + skew * skew * t**3 / 27
        return of_mean(t, 1.0, self.excess.n / self.excess.kurtosis, self.clusters)


# -- The test that dropped rows are like the rest, by their rewards ----------------------------------------------------


@dataclass(frozen=True)
class Dropped:
    r"""The good rewards of rows that were dropped for something else, next to the rewards of the rows that were kept.

    If bad rows came up at random, the mean of m dropped rewards would be that of all n + m, up to an error of

    .. math:: \sigma \sqrt{\frac1m - \frac1{n + m}}

    with a skewness of about γ/√m. Pearson's curve of type III, a gamma distribution moved to that mean, error and skewness, has the tails:
    those of the normal distribution where rows are many, and nearly those of counts where few of them are clicks.

    Examples
    --------
    Three in a hundred rows are dropped, and most clicks with them:

    >>> dropped = Dropped(left_out=Powers.of([1.0] * 20 + [0.0] * 10), kept=Powers.of([1.0] * 13 + [0.0] * 957))
    >>> round(dropped.shift, 3), dropped.p_value < 1e-6
    (0.02, True)

    References
    ----------
    Pearson, "Contributions to the mathematical theory of evolution II: skew variation in homogeneous material", Philosophical
    Transactions of the Royal Society A 186 (1895).
    """

    left_out: Powers = NOTHING
    kept: Powers = NOTHING

    @property
    def gap(self) -> float:
        """How much higher the mean reward of the dropped rows is."""
        return float(self.left_out.middle - self.kept.middle) if self.left_out.n and self.kept.n else 0.0

    @property
    def shift(self) -> float:
        """How much higher the mean reward would be with the dropped rows: their share times the gap."""
        return float(self.left_out.n / max(self.left_out.n + self.kept.n, 1) * self.gap)

    @property
    def p_value(self) -> float:
        """How often rows dropped at random differ this much from the others."""
        m, n = self.left_out.n, self.kept.n
        if not m or not n:
            return 1.0
        both = self.left_out + self.kept
        variance = float(both.mean(2, both.middle))
        if not variance > 0:
            return 1.0
        z = float(self.left_out.middle - both.middle) / math.sqrt(variance * (1 / m - 1 / (n + m)))
        skew = float(both.skewness) / math.sqrt(m)
        if skew < 0:
            z, skew = -z, -skew
        if skew < 1e-3:  # the gamma distribution's parameter would be too large to compute with
            return 2 * normal_share(-abs(z))
        from scipy.special import gammainc, gammaincc

        shape = 4 / skew**2
        at = max(shape + z * math.sqrt(shape), 0.0)
        return min(2 * float(min(gammainc(shape, at), gammaincc(shape, at))), 1.0)


# -- `Diagnostics`, and how they are made ------------------------------------------------------------------------------


FEW_WEIGHTS = 30  # rows that carry the weights' variance, for a test of their mean
MATTERS = 0.25  # standard errors by which a shift moves an interval of 95 % to less than 94.5 %
UNLIKE = 0.01  # p of the dropped rows' rewards
WRONG_PROPENSITIES = 0.001  # p of the mean weight
BEYOND_LUCK = 1e-6  # even where few rows carry the weights


WHOLE = 10.0  # as an error, so that numbers of rows have no decimals
TITLES = {
    "effective_sample_size": "effective",
    "mean_weight": "mean weight",
    "mean_weight_p": "p",
    "max_weight": "largest",
    "top_share": "top share",
    "pareto_k": "Pareto k",
    "zero_weight_share": "weight 0",
    "carrying_rows": "carrying",
}  # of the columns that show the weights of a target


@dataclass(frozen=True, repr=False)
class Diagnostics(Display):
    """What the weights and rewards of one target look like.

    `carrying_rows` is how many rows carry the variance of the estimate, those with large weights whose reward is the rarer one;
    `weight_rows` is how many carry the variance of the weights alone. `top_rows` is one row in a hundred, at least 1 and at most
    1,000; `top_share` is the share of the total weight that this many of the heaviest rows carry. `cluster_groups` is the number
    of hashed groups of clusters that have rows, and `effective_clusters` is how many clusters of equal size the clusters are
    worth, (Σm)²/Σm². Where the mean of a weight need not be 1 (`mean_is_one`), there is nothing to test, and `mean_weight_p` is
    nan. `dropped_rewards` counts the dropped rows whose reward is good, `dropped_shift` is by how much the mean reward would be
    higher with them, and `dropped_p` is how often rows dropped at random are as unlike the others; `unknown_share` is the share
    of all rows whose reward is unknown. `length_shift` is by about how many positions lists would be longer if the target chose,
    and `length_p` is how often it is this far from 0 if lengths were fixed before the choice; running products allow for either.
    `unit` is what `n` counts: rows, lists or episodes; `cut_off` is how many of these have no end, if the log says where they end.
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
    unknown_share: float = 0.0
    length_shift: float = 0.0
    length_p: float = 1.0
    unit: str = "row"  # what is counted
    cut_off: int = 0

    def cells(self) -> dict[str, Cell]:
        """The weights as a row of a table."""
        has_overlap = self.has_overlap
        return {
            "n": self.n,
            "effective_sample_size": Number(self.effective_sample_size if has_overlap else 0.0, WHOLE),
            "mean_weight": Number(self.mean_weight if has_overlap else 0.0, self.mean_weight_stderr),
            "mean_weight_p": PValue(self.mean_weight_p if self.mean_is_one else math.nan),
            "max_weight": self.max_weight,
            "top_share": Worded(self.top_share, f"{percent(self.top_share)} in {self.top_rows:,}"),
            "pareto_k": Number(self.pareto_k, 0.1),
            "zero_weight_share": Share(self.zero_weight_share),
            "carrying_rows": Number(self.carrying_rows, WHOLE),
        }

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """The weights in one row of a table."""
        yield Table([self.cells()], titles=TITLES | {"n": f"{self.unit}s"})

    @property
    def unknown_shift(self) -> float:
        """By how much the rows without a good reward could move the answer: their share, times a usual weight, times the rewards' range."""
        if not self.unknown_share > 0 or not self.effective_share > 0:
            return 0.0
        return self.unknown_share * (self.reward_max - self.reward_min) / math.sqrt(self.effective_share)

    @property
    def has_unknown_rewards(self) -> bool:
        """Whether the rows without a good reward could move the answer by more than an interval allows for."""
        return self.unknown_shift > MATTERS * self.mean_reward_stderr

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

    @property
    def is_below_one(self) -> bool:
        """Whether the mean weight is clearly below 1, where it should be 1."""
        luck = WRONG_PROPENSITIES if self.can_test_weights else BEYOND_LUCK
        return self.mean_is_one and self.mean_weight < 1.0 and self.mean_weight_p < luck


@dataclass(frozen=True)
class WeightedRows:
    """What is known about the rows of one target: their moments, their largest weights, and the powers of weights and rewards."""

    moments: Moments
    tail: Tail
    excess: Powers
    rewards: Powers
    reward_range: tuple[float, float]
    mean_is_one: bool = True
    carrying: float | None = None  # rows, if that is known already
    effective: float | None = None  # rows, where they do not count alike
    unit: str = "row"
    length: tuple[float, float] = (0.0, 0.0)  # by how much longer the target's lists would be, and the error of that


@dataclass(frozen=True)
class Clusters:
    """The hashed groups of clusters: how many have rows, what they are worth, and the error of the mean weight that they show."""

    groups: int
    effective: float
    mean_weight_error: float


@dataclass(frozen=True)
class Lost:
    """Rows that are missing or repeated: dropped ones, with their good rewards, and duplicates."""

    dropped: int = 0
    rewards: Powers = NOTHING
    duplicates: int | None = None
    unknown_share: float = 0.0  # of all rows, whose reward is bad


def diagnose(rows: WeightedRows, *, clusters: Clusters | None = None, lost: Lost | None = None) -> Diagnostics:
    """The diagnostics of one target.

    >>> import numpy as np
    >>> weight, reward = np.array([2.0, 0.0, 1.0, 1.0]), np.array([1.0, 0.0, 1.0, 0.0])
    >>> tail, excess = Tail(np.sort(weight)[::-1], zeros=1), Powers.of(weight - 1)
    >>> diagnostics = diagnose(WeightedRows(Moments.of(weight, reward), tail, excess, Powers.of(reward), (0.0, 1.0)))
    >>> round(diagnostics.effective_sample_size, 2), diagnostics.zero_weight_share, diagnostics.carrying_rows
    (2.67, 0.25, 1.0)
    """
    moments, tail, excess, lost = rows.moments, rows.tail, rows.excess, lost or Lost()
    n = moments.n
    known = Diagnostics(
        n,
        dropped=lost.dropped,
        duplicates=lost.duplicates,
        unknown_share=lost.unknown_share,
        mean_is_one=rows.mean_is_one,
        unit=rows.unit,
        cut_off=round(moments.average(CUT) * n) if CUT in moments.columns else 0,
        cluster_groups=clusters.groups if clusters else None,
        effective_clusters=clusters.effective if clusters else None,
    )
    if n == 0:
        return known
    mean = max(1.0 + float(moments.average("u")), 0.0)  # if all weights are 0, their mean may come out as −2e-16
    effective = float(effective_sample_size(moments)) if rows.effective is None else rows.effective
    error = clusters.mean_weight_error if clusters else math.sqrt(float(moments.covariance("u", "u")) / n)
    top = min(max(1, n // 100), len(tail.weights))
    total = n * mean
    unlike = Dropped(lost.rewards, rows.rewards)
    test = MeanWeight(excess, error, clusters.effective if clusters else math.inf)
    return replace(
        known,
        effective_sample_size=effective,
        effective_share=effective / n,
        mean_weight=mean,
        mean_weight_stderr=error,
        mean_weight_p=test.p_value if rows.mean_is_one else math.nan,
        max_weight=float(tail.weights[0]) if len(tail.weights) else 0.0,
        top_rows=top,
        top_share=min(float(tail.weights[:top].sum()) / total, 1.0) if total > 0 else 0.0,
        pareto_k=pareto_k(tail, n),
        zero_weight_share=tail.zeros / n,
        reward_min=rows.reward_range[0],
        reward_max=rows.reward_range[1],
        carrying_rows=float(carrying_rows(excess, rows.rewards, usual_ends(*rows.reward_range)))
        if rows.carrying is None
        else rows.carrying,
        weight_rows=excess.n / excess.kurtosis,
        mean_reward=float(moments.center + moments.average("s")),
        mean_reward_stderr=math.sqrt(float(moments.covariance("s", "s")) / effective) if effective else math.inf,
        dropped_rewards=lost.rewards.n,
        dropped_shift=unlike.shift,
        dropped_p=unlike.p_value,
        length_shift=rows.length[0],
        length_p=of_mean(*rows.length, excess.n / excess.kurtosis, clusters.effective if clusters else math.inf),
    )
