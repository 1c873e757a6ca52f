"""How good a policy is on rows it was not trained on, and the number that policies are chosen by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike

from counterpoise.diagnostics import judge
from counterpoise.diagnostics.diagnose import ROUNDING, WeightedRows, diagnose
from counterpoise.diagnostics.verdict import FEW_CARRYING, FEW_ROWS
from counterpoise.estimators.estimate import Estimate
from counterpoise.estimators.weighted import beta_ips
from counterpoise.intervals import Evidence, Interval
from counterpoise.intervals.method import normal
from counterpoise.intervals.student import Student, student
from counterpoise.learn.objectives import logarithm
from counterpoise.learn.policy import Policy
from counterpoise.learn.rows import Rows
from counterpoise.moments import Floats, Moments, Powers
from counterpoise.moments.spread import EMPTY, KEPT, NOTHING, UNSMOOTHED, Smoothed, Tail

if TYPE_CHECKING:
    from counterpoise.learn.source import Inspection

# -- By which number policies are chosen: their value where the rows measure it, and a bound from below where they do not ---

ERRORS = 3  # how many standard errors the mean weight may be off 1 for a value to count as measured
DELTA = 0.05  # how often the bound may be above the value
FACTORS = tuple(2.0**k for k in range(2, -6, -1))  # the λ that are tried, in units of 1/(√n · size of a reward)


@dataclass(frozen=True)
class Score:
    """How good a policy looks: β-IPS, a lower bound, its effective sample, and whether that is enough to measure it."""

    value: float
    stderr: float
    lower: float
    effective_sample_size: float
    is_measured: bool

    @property
    def criterion(self) -> float:
        """The number to choose by: the value less its standard error if it is measured, and the bound otherwise.

        >>> few, many = Score(0.9, 0.1, 0.2, 3.0, is_measured=False), Score(0.5, 0.01, 0.4, 800.0, is_measured=True)
        >>> few.criterion < many.criterion
        True
        """
        return self.value - self.stderr if self.is_measured else self.lower


def pessimistic_value(weight: ArrayLike, reward: ArrayLike) -> Score:
    r"""How good a policy looks on rows that neither trained nor chose it, from their weights π/π₀ and rewards.

    With a few large weights, β-IPS says next to nothing, and the largest of many such values is an accident. So the value only counts
    where it is measured: where the effective sample, (Σw)²/Σw², is 30 rows or more, and the mean weight, which should be 1, is within
    three standard errors of it. Otherwise a lower bound counts, which a few large weights cannot lift:

    .. math:: V \ge m + \max_\lambda \frac{e^{\lambda S_\lambda} - 1}{\lambda}, \qquad
        S_\lambda = \frac{1}{\lambda n} \Big(\sum_i \log(1 + \lambda w_i (r_i - m)) - \log \frac{K}{\delta}\Big)

    with m the lowest reward and δ = 0.05. For one λ it is that of `counterpoise.intervals.LogSmoothing`; because the best of K =
    8 is taken, δ is divided among them. They reach from 4 to 1/32 over √n times the root mean square of r − m. (Lowest reward and
    size come from these very rows, which the proof does not allow for; in simulations it makes no difference.) It trusts the
    propensities. If the mean weight is more than three standard errors *above* 1, which a few large weights cannot cause, they
    are wrong, and only m is certain.

    Examples
    --------
    What two rows with weight 500 promise hardly counts:

    >>> few = pessimistic_value([500.0, 500.0] + [0.0] * 998, [1.0, 1.0] + [0.0] * 998)
    >>> round(few.value, 3), few.is_measured, few.criterion < 0.05
    (1.0, False, True)
    >>> many = pessimistic_value([1.5, 0.5] * 500, [1.0, 0.0] * 500)
    >>> many.value, many.is_measured, round(many.effective_sample_size), 0.6 < many.lower < many.value
    (0.75, True, 800, True)

    Nor does what propensities that are 100 times too small promise:

    >>> pessimistic_value([150.0, 50.0] * 500, [1.0, 0.0] * 500).lower
    0.0

    References
    ----------
    Sakhi, Aouali, Alquier & Chopin, "Logarithmic smoothing for pessimistic off-policy evaluation, selection and learning", NeurIPS 2024.
    """
    w, r = np.asarray(weight, dtype=np.float64), np.asarray(reward, dtype=np.float64)
    if not len(r):
        return Score(math.nan, math.nan, math.nan, 0.0, False)
    lowest = float(r.min())
    lambdas = lambdas_of(len(r), float(np.sqrt(np.mean((r - lowest) ** 2))))
    return score_of(Moments.of(weight=w, reward=r), Smoothed.of(w * (r - lowest), lambdas), lowest)


def lambdas_of(rows: int, size: float) -> tuple[float, ...]:
    """The λ to try with so many rows, whose rewards are of this size above the lowest."""
    return tuple(factor / (math.sqrt(max(rows, 1)) * (size or 1.0)) for factor in FACTORS)


def score_of(moments: Moments, smoothed: Smoothed, lowest: float, times: float = 1.0) -> Score:
    """The same from sums, whatever the number of rows; `smoothed` is that of w·(r − lowest).

    The bound allows for a variance that is `times` as large as that of independent rows.
    """
    n = moments.n
    if not n:
        return Score(math.nan, math.nan, math.nan, 0.0, False)
    mean, scatter = 1.0 + float(moments.average("u")), float(moments.scatter[0, 0])
    squares = scatter + n * mean**2  # Σw²
    effective = n * mean * (n * mean / squares) if squares else 0.0
    error = math.sqrt(scatter / n / max(n - 1, 1))
    allowed = ERRORS * error + ROUNDING
    measured = effective >= FEW_ROWS and abs(mean - 1) <= allowed
    lower = lowest
    if mean - 1 <= allowed:
        price = times * math.log(len(smoothed.lambdas) / DELTA)
        sums = zip(smoothed.lambdas, smoothed.sums.tolist(), strict=True)
        lower += max(0.0, *(math.expm1(factor * ((total - price / factor) / n)) / factor for factor, total in sums))
    estimate = beta_ips(moments)
    return Score(float(estimate.value), float(estimate.stderr), lower, effective, bool(measured))


# -- While a policy trains: the moments of its weights, and what the held-out rows say of it ------------


MOST = 0.6  # share of its own fit that we attribute to a heavy list


@dataclass(frozen=True)
class HeldOut:
    """What the held-out rows say about a policy: β-IPS with its interval, its effective sample, and whether to believe it."""

    value: float
    stderr: float
    interval: Interval
    effective_sample_size: float
    verdict: str
    likelihood: float
    """The mean of log π(a|x)."""
    criterion: float
    """The number to choose policies by."""


def held_out_actions(
    policy: Policy, parts: Iterable[Rows], log: Inspection, level: float, temperature: float = 1.0
) -> HeldOut:
    """β-IPS with its interval and verdict on held-out rows, and the criterion; nan if there are none."""
    lowest, lambdas = log.rewards[0], lambdas_of(log.held_out, log.gain_size)
    smoothed, likelihood = [], []

    def moments() -> Iterator[tuple[Moments, Floats, Floats]]:
        for weight, reward, log_target in weights_of(policy, parts, temperature):
            smoothed.append(Smoothed.of(weight * (reward - lowest), lambdas))
            likelihood.append(float(log_target.sum()))
            yield Moments.of(weight=weight, reward=reward), weight - 1.0, reward

    sums = weighted_rows(moments())
    estimate, n = beta_ips(sums.moments), sums.moments.n
    interval = normal(estimate.value, estimate.stderr, level)
    criterion = score_of(sums.moments, sum(smoothed, UNSMOOTHED), lowest).criterion
    return held_out(estimate, interval, sums, criterion, sum(likelihood) / n if n else math.nan)


def held_out_lists(parts: Iterable[tuple[Moments, Floats, Floats]], level: float) -> HeldOut:
    """The same for lists, with an interval that allows for how few lists carry the answer, and is endless if there are too few."""
    sums = weighted_rows(parts, unit="ranking")
    estimate, n = beta_ips(sums.moments), sums.moments.n
    carrying, interval = diagnose(sums).carrying_rows, Interval(-math.inf, math.inf, level, Student.name)
    if n and carrying >= FEW_CARRYING:
        leverage = min(sums.excess.kurtosis / n, MOST)
        evidence = Evidence(estimate.value, estimate.stderr, n, sums.moments, carrying=carrying, leverage=leverage)
        interval = student(evidence, level)
    return held_out(estimate, interval, sums, interval.lower)


def weighted_rows(parts: Iterable[tuple[Moments, Floats, Floats]], unit: str = "row") -> WeightedRows:
    """What diagnostics need to know, from the moments of some rows or lists at a time, and the weight less 1 and the reward of each."""
    moments, tail, excess, rewards = Moments.empty(), EMPTY, NOTHING, NOTHING
    low, high = math.inf, -math.inf
    for some, u, reward in parts:
        moments, tail = moments + some, tail + Tail(1.0 + np.sort(u)[::-1][:KEPT], int((u == -1.0).sum()))
        excess, rewards = excess + Powers.of(u), rewards + Powers.of(reward)
        low, high = min(low, float(reward.min())), max(high, float(reward.max()))
    return WeightedRows(moments, tail, excess, rewards, (low, high), unit=unit)


def held_out(
    estimate: Estimate, interval: Interval, sums: WeightedRows, criterion: float, likelihood: float = math.nan
) -> HeldOut:
    """An estimate with its diagnostics."""
    diagnostics = diagnose(sums)
    effective, verdict = diagnostics.effective_sample_size, judge(diagnostics).verdict
    return HeldOut(estimate.value, estimate.stderr, interval, effective, verdict, likelihood, criterion)


def moments_of(policy: Policy, parts: Iterable[Rows]) -> Moments:
    """The moments of weights and rewards, however many rows there are."""
    return sum((Moments.of(weight=w, reward=r) for w, r, _ in weights_of(policy, parts)), Moments.empty())


def weights_of(
    policy: Policy, parts: Iterable[Rows], temperature: float = 1.0
) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Weights, rewards and log π of rows, some at a time, at a temperature."""
    for rows in filter(len, parts):
        known = policy.logged_probabilities(rows.context, rows.action, rows.candidates, temperatures=(temperature,))
        reward, propensity = (column.double().cpu().numpy() for column in (rows.reward, rows.propensity))
        yield known[:, 0] / propensity, reward, logarithm(torch.as_tensor(known[:, 0])).numpy()
