"""Whether actions were taken as often as the logged distribution of all actions says."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    from scipy.special import chdtrc

    own = np.diag(sums.mass) - sums.products
    merge, edges = _merged(np.diag(own))
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
        Bin(low, high, int(count), float(expected / count), float(seen / count), float(one))
        for (low, high), count, expected, seen, one in zip(edges, pairs, mass, taken, z, strict=True)
        if count
    )
    return Calibration(column, rows, impossible, bins, chi_square, freedom, p)


def _merged(variances: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[tuple[float, float]]]:
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
