"""The compiled loop itself, which needs numba; only `compiled` imports it.

The functions are at the top level of their own module because numba caches only such functions on disk. Inside another function, every
process would spend five seconds compiling them again.
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
from numpy.typing import NDArray

from counterpoise.log.checksums import Inputs, Output, compiled
from counterpoise.log.good import is_believable, is_number, is_probability, is_propensity
from counterpoise.moments import Floats
from counterpoise.moments.moments import Reals
from counterpoise.moments.spread import KEPT

Indices = NDArray[np.int64]
BLOCK = 2048  # rows whose weights stay in the first-level cache


def _compile(function: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
    """The function, compiled on first use and kept on disk for the next process if there is a place for it.

    Sums may be reordered into vector lanes, but comparisons must still see a NaN. Everything that would branch is a count,
    which vectorizes; the few blocks whose count is not 0 are checked row by row.
    """
    return compiled(function, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")


def _inline(rule: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
    """A rule for a good row, compiled into the loop."""
    inlined: Callable[Inputs, Output] = numba.njit(inline="always")(rule)
    return inlined


_propensity, _probability = _inline(is_propensity), _inline(is_probability)
_number, _believable = _inline(is_number), _inline(is_believable)


@_compile
def _add(p: Reals, t: Reals, minus: Reals, r: Reals, c: float, weights: Floats, total: Floats) -> None:
    s1 = u1 = us1 = ss = sus = uu = uus = usus = u3 = u4 = s3 = s4 = 0.0
    for k in range(len(p)):
        u, s = (np.float64(t[k]) - np.float64(minus[k])) / np.float64(p[k]), np.float64(r[k]) - c
        us = u * s
        weights[k] = u
        s1, u1, us1 = s1 + s, u1 + u, us1 + us
        square, other = u * u, s * s
        ss, sus, uu, uus, usus = ss + other, sus + s * us, uu + square, uus + u * us, usus + us * us
        u3, u4, s3, s4 = u3 + square * u, u4 + square * square, s3 + other * s, s4 + other * other
    for k, x in enumerate((s1, u1, us1, ss, sus, uu, uus, usus, u3, u4, s3, s4)):
        total[k] += x


@_compile
def _add_sampled(
    p: Reals, t: Reals, minus: Reals, r: Reals, kept: Reals, c: float, weights: Floats, total: Floats
) -> None:
    h1 = s1 = u1 = us1 = hh = hs = hu = hus = ss = su = sus = uu = uus = usus = u3 = u4 = r1 = r2 = r3 = r4 = 0.0
    for k in range(len(p)):
        h = 1.0 / np.float64(kept[k])
        u, alone = h * (np.float64(t[k]) - np.float64(minus[k])) / np.float64(p[k]), np.float64(r[k]) - c
        s, us = h * alone, u * alone
        weights[k] = u + (h - 1.0)
        h1, s1, u1, us1 = h1 + h, s1 + s, u1 + u, us1 + us
        square, other = u * u, alone * alone
        hh, hs, hu, hus = hh + h * h, hs + h * s, hu + h * u, hus + h * us
        ss, su, sus, uu, uus, usus = ss + s * s, su + s * u, sus + s * us, uu + square, uus + u * us, usus + us * us
        u3, u4 = u3 + square * u, u4 + square * square
        r1, r2, r3, r4 = r1 + alone, r2 + other, r3 + other * alone, r4 + other * other
    sums = (h1, s1, u1, us1, hh, hs, hu, hus, ss, su, sus, uu, uus, usus, u3, u4, r1, r2, r3, r4)
    for k, x in enumerate(sums):
        total[k] += x


@_compile
def _count(
    p: Reals, t: Reals, r: Reals, u: Floats, threshold: float, low: float, high: float
) -> tuple[int, int, int, int]:
    good = zeros = outside = above = 0
    for k in range(len(p)):
        q, x, y = np.float64(p[k]), np.float64(t[k]), np.float64(r[k])
        good += 1 if _propensity(q) & _probability(x) & _believable(x, q) & _number(y) else 0
        zeros += 1 if x == 0 else 0
        outside += 1 if (y < low) | (y > high) else 0
        above += 1 if u[k] > threshold else 0
    return good, zeros, outside, above


@_compile
def _count_kept(kept: Reals) -> int:
    good = 0
    for k in range(len(kept)):
        good += 1 if _propensity(np.float64(kept[k])) else 0
    return good


@_compile
def loop(
    p: Reals, t: Reals, minus: Reals, r: Reals, kept_with: Reals | None, c: float, threshold: float
) -> tuple[Floats, int, float, float, Floats]:
    """The sums of some rows, how many rows are bad, the extremes of the rewards, and every u above a threshold.

    It returns at most four times as many u as we keep for a whole log, and always the largest. Where rows were sampled, `kept_with` are
    the probabilities with which they were kept; elsewhere it is None, and the compiled loop does not know of it.
    """
    total, good_rows = np.zeros(13 if kept_with is None else 21), 0
    low, high = np.inf, -np.inf
    weights, kept = np.empty(BLOCK), np.empty(4 * KEPT)
    held = 0
    for i in range(0, len(p), BLOCK):
        j = min(i + BLOCK, len(p))
        u = weights[: j - i]
        if kept_with is None:
            _add(p[i:j], t[i:j], minus[i:j], r[i:j], c, u, total)
        else:
            _add_sampled(p[i:j], t[i:j], minus[i:j], r[i:j], kept_with[i:j], c, u, total)
        good, zeros, outside, above = _count(p[i:j], t[i:j], r[i:j], u, threshold, low, high)
        if kept_with is not None:
            good = min(good, _count_kept(kept_with[i:j]))
        good_rows, total[-1] = good_rows + good, total[-1] + zeros
        if outside:
            low, high = min(low, r[i:j].min()), max(high, r[i:j].max())
        if above:
            for x in u:
                if x > threshold:
                    if held == len(kept):
                        kept[:KEPT] = np.partition(kept, len(kept) - KEPT)[-KEPT:]
                        held, threshold = KEPT, kept[:KEPT].min()
                    kept[held] = x
                    held += 1
    return total, len(p) - good_rows, low, high, kept[:held].copy()


@_compile
def loop_by(
    p: Reals,
    t: Reals,
    minus: Reals,
    r: Reals,
    segment: Indices,
    group: Indices,
    groups: int,
    c: Floats,
    threshold: Floats,
) -> tuple[Floats, int, Floats, Floats, Indices, Floats]:
    """The same by segment and group: the sums of every cell (`cell = segment · groups + group`), with its zeros and its rows at the end.

    `c` and `threshold` have a number for every segment. Every u above its segment's threshold is returned, with its segment.
    """
    cells, good, held = len(c) * groups, 0, 0
    total, low, high = np.zeros((cells, 14)), np.full(cells, np.inf), np.full(cells, -np.inf)
    kept, of = np.empty(len(p)), np.empty(len(p), np.int64)
    for k in range(len(p)):
        q, x, y, j = np.float64(p[k]), np.float64(t[k]), np.float64(r[k]), segment[k]
        cell = j * groups + group[k]
        good += 1 if _propensity(q) & _probability(x) & _believable(x, q) & _number(y) else 0
        u, s = (x - np.float64(minus[k])) / q, y - c[j]
        us, square, other = u * s, u * u, s * s
        row = total[cell]
        row[0] += s
        row[1] += u
        row[2] += us
        row[3] += other
        row[4] += s * us
        row[5] += square
        row[6] += u * us
        row[7] += us * us
        row[8] += square * u
        row[9] += square * square
        row[10] += other * s
        row[11] += other * other
        row[12] += 1.0 if x == 0 else 0.0
        row[13] += 1.0
        low[cell], high[cell] = min(low[cell], y), max(high[cell], y)
        if u > threshold[j]:
            kept[held], of[held] = u, j
            held += 1
    return total, len(p) - good, low, high, of[:held].copy(), kept[:held].copy()


@_compile
def largest_by(of: Indices, u: Floats, segments: int) -> tuple[Indices, Floats]:
    """The largest u of every segment, in descending order, and where those of each begin."""
    ends = np.zeros(segments + 1, np.int64)
    for j in of:
        ends[j + 1] += 1
    ends = np.cumsum(ends)
    spots, together = ends[:-1].copy(), np.empty(len(u))
    for k in range(len(u)):
        together[spots[of[k]]] = u[k]
        spots[of[k]] += 1
    starts, held = np.zeros(segments + 1, np.int64), 0
    for j in range(segments):
        own = together[ends[j] : ends[j + 1]]
        own = np.sort(np.partition(own, len(own) - KEPT)[-KEPT:] if len(own) > KEPT else own)[::-1]
        together[held : held + len(own)] = own  # never ahead of what is still to be read
        held += len(own)
        starts[j + 1] = held
    return starts, together[:held].copy()
