"""The audit of propensities: mean weights of parts of a log against 1, corrected for looking at many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, stdtrit

from counterpoise.diagnostics.diagnose import FEW_WEIGHTS, MeanWeight, holm
from counterpoise.diagnostics.findings import Finding
from counterpoise.display import p_value
from counterpoise.intervals.method import degrees_of_freedom
from counterpoise.moments import Powers

# -- Whether actions were taken as often as the logged distribution of all actions says --------------------------------

EDGES = (0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
VARIANCE = 25.0  # of the count in a bin, from which it is normal enough; smaller bins join the next one
UNITS = 10  # clusters per bin that their covariance needs


@dataclass(frozen=True)
class Bin:
    """Pairs of a row and an action whose logged probability lies in (low, high]: their mean probability, and how often it was taken."""

    low: float
    high: float
    pairs: int
    predicted: float
    observed: float
    z: float


@dataclass(frozen=True)
class Calibration:
    """The bins, and a chi-square test of all of them; p is nan where there is too little to tell."""

    column: str
    rows: int
    impossible: int
    bins: tuple[Bin, ...]
    chi_square: float
    freedom: int
    p: float
    corrected_p: float = math.nan


@dataclass(frozen=True, eq=False)
class BinSums:
    """What adding up rows gives, for every bin between `EDGES`.

    `mass` is the sum of P, the probability that a row's action falls into a bin; `products` the sums of P Pᵀ; `residual` the sum of
    d = 1{it does} − P; and `spread`, with clusters only, the sums of d dᵀ over the `units`, each the total of one cluster.
    """

    pairs: NDArray[np.float64]
    taken: NDArray[np.float64]
    mass: NDArray[np.float64]
    products: NDArray[np.float64]
    spread: NDArray[np.float64] | None = None
    units: int = 0


def calibrate(column: str, rows: int, impossible: int, sums: BinSums) -> Calibration:
    r"""The test that actions fall into bins of probability as often as their distribution says.

    .. math:: \chi^2 = d^\top V^- d, \qquad d = \sum_i (Y_i - P_i), \qquad V = \sum_i \operatorname{diag}(P_i) - P_i P_i^\top

    Given the contexts, Y is multinomial with exactly these P, so that V has nothing estimated in it. With clusters, V is the sum of
    the squares of their totals. The rank of V counts the degrees of freedom.

    References
    ----------
    Hosmer & Lemeshow, "Goodness of fit tests for the multiple logistic regression model", Communications in Statistics 9 (1980).
    """
    own = np.diag(sums.mass) - sums.products
    merge, edges = _merge_bins(np.diag(own))
    pairs, taken, mass = merge @ sums.pairs, merge @ sums.taken, merge @ sums.mass
    variance = merge @ (own if sums.spread is None else sums.spread) @ merge.T
    residual = taken - mass
    freedom = int(np.linalg.matrix_rank(variance, tol=1e-9 * max(float(np.trace(variance)), 1e-300), hermitian=True))
    chi_square = float(residual @ np.linalg.pinv(variance, rcond=1e-9, hermitian=True) @ residual)
    is_enough = freedom > 0 and (sums.spread is None or sums.units >= UNITS * freedom)
    p = float(chdtrc(freedom, chi_square)) if is_enough else math.nan
    error = np.sqrt(np.maximum(np.diag(variance), 0.0))
    z = np.divide(residual, error, out=np.zeros_like(residual), where=error > 0)
    bins = tuple(
        Bin(low, high, int(count), float(expected / count), float(actual / count), float(score))
        for (low, high), count, expected, actual, score in zip(edges, pairs, mass, taken, z, strict=True)
        if count
    )
    return Calibration(column, rows, impossible, bins, chi_square, freedom, p)


def _merge_bins(variances: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[tuple[float, float]]]:
    """Which bins to put together, by their probabilities alone, so that the choice says nothing about the actions taken."""
    joined: list[list[int]] = [[]]
    for k in range(len(variances)):
        joined[-1].append(k)
        if variances[joined[-1]].sum() >= VARIANCE:
            joined.append([])
    small = joined.pop()
    if small and joined:
        joined[-1] += small
    elif small:
        joined = [small]
    merge = np.zeros((len(joined), len(variances)))
    for row, members in enumerate(joined):
        merge[row, members] = 1.0
    return merge, [(EDGES[members[0]], EDGES[members[-1] + 1]) for members in joined]


# -- Mean weights of parts of a log against 1, and what to say about them ----------------------------------------------


Status = Literal["fine", "too large", "too small", "cannot tell", "not always eligible"]

ACTION = "action"
ALARMS: tuple[Status, ...] = ("too large", "too small")
LEVEL = 0.01  # of the doctor's alarms: a log in a hundred with right propensities may be doubted
SURER = 0.1  # means too small must be so much surer: rows with small propensities that have not come up yet make them small too
FAR = 0.5  # actions with a mean below this are more likely to have been ineligible in some rows than to have propensities twice too large


@dataclass(frozen=True)
class Check:
    """The mean weight of one part of a log: a segment or a day under a target, or 1{A = a}/p of an action a over all rows.

    `p` is the test's own, `corrected_p` allows for all the other checks. Both are nan where too few rows carry the weights to tell.
    """

    by: str
    part: str
    target: str | None
    rows: int
    mean: float
    lower: float
    upper: float
    p: float
    corrected_p: float = math.nan
    status: Status = "cannot tell"


@dataclass(frozen=True)
class Audit:
    """Every check of the propensities, and how many parts of the log they were chosen from."""

    checks: tuple[Check, ...]
    looks: int
    calibration: Calibration | None = None
    level: float = LEVEL

    @property
    def alarms(self) -> tuple[Check, ...]:
        """The checks that speak against the propensities."""
        return tuple(test for test in self.checks if test.status in ALARMS)

    @property
    def in_order(self) -> list[Check]:
        """The checks with a finite interval: alarms first, then those that can be told, each by kind and name."""
        known = [test for test in self.checks if math.isfinite(test.lower + test.upper)]
        order = (*ALARMS, "fine")
        return sorted(
            known, key=lambda test: (test.status not in order, test.status not in ALARMS, test.target or "", test.by)
        )


def check(by: str, part: str, target: str | None, rows: int, excess: Powers) -> Check:
    r"""The test that a mean weight is 1, from the powers of the excess :math:`\sum_{i \in c} (w_i - 1)` of every unit c.

    A unit is a row or, with clusters, all rows of one cluster. Units are independent and their excess has mean 0, whatever their sizes,
    so that the test of `MeanWeight` holds for both.

    >>> check("country", "NO", "pi_new", 200, Powers.of([-0.5, 0.5] * 100, 0.0)).mean
    1.0
    """
    excess = excess.around(0.0)
    total = float(excess.sums[0])
    if rows == 0 or excess.n < 2 or not np.isfinite(excess.sums).all():
        return Check(by, part, target, rows, 1.0 + total / rows if rows else math.nan, -math.inf, math.inf, math.nan)
    mean = total / excess.n
    variance = max(excess.mean(2, mean), 0.0) * excess.n / (excess.n - 1)
    error = math.sqrt(variance / excess.n)
    carrying = excess.n / excess.kurtosis
    reach = float(stdtrit(degrees_of_freedom(carrying), 0.975)) * error * excess.n / rows
    p = MeanWeight(excess, error).p_value if carrying >= FEW_WEIGHTS else math.nan
    per_row = 1.0 + total / rows
    return Check(by, part, target, rows, per_row, per_row - reach, per_row + reach, p)


def settle(
    checks: Sequence[Check], looks: int, calibration: Calibration | None = None, *, level: float = LEVEL
) -> Audit:
    """The checks with their corrected p and status.

    `looks` counts every part of the log, those too small to be told of included: a rare action that came up often enough to be tested
    came up too often, and that choice must be paid for too.
    """
    raw = [test.p for test in checks] + ([] if calibration is None else [calibration.p])
    corrected = holm(raw, looks + (calibration is not None))
    settled = [
        replace(test, corrected_p=p, status=_status(test, p, level)) for test, p in zip(checks, corrected, strict=False)
    ]
    if calibration is not None:
        calibration = replace(calibration, corrected_p=corrected[-1])
    return Audit(tuple(settled), looks, calibration, level)


def about_audit(audit: Audit, propensity: str) -> list[Finding]:
    """What the audit says about the propensities, one finding for each way to look at them."""
    findings = []
    for by, target in dict.fromkeys((test.by, test.target) for test in audit.checks):
        alarms = [test for test in audit.alarms if (test.by, test.target) == (by, target)]
        if alarms:
            worst = min(alarms, key=lambda test: test.p)
            said = _of_actions(alarms, worst) if target is None else _of_parts(alarms, worst, by)
            findings.append(Finding("look", propensity, f"{said} {_what_to_do(alarms, target)}"))
    calibration = audit.calibration
    if calibration is not None and calibration.corrected_p <= audit.level:
        worst_bin = max(calibration.bins, key=lambda bin_: abs(bin_.z))
        said = (
            f"actions with a logged probability of about {worst_bin.predicted:.3g} were taken in {worst_bin.observed:.3g} of the cases "
            f"(p {p_value(calibration.corrected_p)} for all bins together): the logged distribution is not the one that actions were drawn "
            "from. Log the probabilities that the choice was really made with."
        )
        findings.append(Finding("look", propensity, said))
    if calibration is not None and calibration.impossible:
        said = (
            f"in {calibration.impossible:,} rows the probabilities of all actions do not sum to 1, or give 0 to the action that was taken. "
            "Log the whole distribution, as it was when the choice was made."
        )
        findings.append(Finding("look", propensity, said))
    return findings


def _of_actions(alarms: Sequence[Check], worst: Check) -> str:
    large = sum(test.status == "too large" for test in alarms)
    few = ((large, "large"), (len(alarms) - large, "small"))
    counts = " and ".join(
        f"too {word} for {count:,} {'action' if count == 1 else 'actions'}" for count, word in few if count
    )
    return (
        f"the mean of 1{{action}}/propensity over all rows is {counts}: for {worst.part} it is {worst.mean:.3g}, and it should be 1 if "
        f"{worst.part} could be chosen in every row (p {p_value(worst.corrected_p)}, corrected for all looks)."
    )


def _of_parts(alarms: Sequence[Check], worst: Check, by: str) -> str:
    return (
        f"{worst.target}: the mean weight is not 1 for {len(alarms):,} {'value' if len(alarms) == 1 else 'values'} of {by}: where {by} is "
        f"{worst.part}, it is {worst.mean:.3g} "
        f"(p {p_value(worst.corrected_p)}, corrected for all looks)."
    )


def _what_to_do(alarms: Sequence[Check], target: str | None) -> str:
    if target is not None:
        return "Look at how propensities were logged there, and whether the target takes actions there that the log never took."
    if all(test.status == "too small" for test in alarms):
        return "Either these actions were not always eligible, which is fine, or their propensities are too large."
    return (
        "A mean above 1 says that propensities are too small, or that rows of other actions were lost. Log the propensities that the "
        "choice was really made with."
    )


def _status(test: Check, corrected: float, level: float) -> Status:
    if math.isnan(test.p):
        return "cannot tell"
    if test.mean > 1.0:
        return "too large" if corrected <= level else "fine"
    if corrected > SURER * level:
        return "fine"
    return "not always eligible" if test.target is None and test.mean < FAR else "too small"
