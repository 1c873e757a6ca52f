"""This file holds the compiled loop: one pass over long arrays at the speed of memory, where numba is installed.

It computes what `query.aggregate` and the ranking of the largest weights compute, for logs without segments, groups, models and
controls. Everything else, every short log and every log with a bad row takes the embedded engine.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, cast

import numpy as np
import polars as pl

from counterpoise.moments import Floats
from counterpoise.sources.checks import LARGEST
from counterpoise.sources.request import LOGGING, Request
from counterpoise.tails import KEPT

SHORTEST = 1_000_000  # loading the compiled code takes longer than a shorter log
BLOCK = 2048  # rows whose weights stay in the first-level cache


def suits(frame: pl.DataFrame, request: Request) -> bool:
    """Whether the compiled loop can take this log."""
    return frame.height >= SHORTEST and all(not column.null_count() for column in frame) and answers(request)


def answers(request: Request) -> bool:
    """Whether the compiled loop answers such questions."""
    plain = request.groups == 1 and not (request.segment or request.model_value or request.control)
    return plain and _loop() is not None


def scan(frame: pl.DataFrame, request: Request, centre: float) -> tuple[dict[str, Floats], dict[str, Floats]] | None:
    """The sums under the names that `query.aggregate` gives them, and each target's largest weights; None if a row is bad."""
    columns = {name: np.ascontiguousarray(frame.get_column(name).to_numpy()) for name in request.numbers}
    numbers = {"n": np.array([frame.height])}
    largest = {}
    for k, (target, against) in enumerate(request.contrasts):
        t = f"t{request.targets.index(target)}"
        minus = "p" if against in ("", LOGGING) else f"t{request.targets.index(against)}"
        found = _in_threads(columns["p"], columns[t], columns[minus], columns["r"], centre)
        if found is None:
            return None
        sums, lowest, highest, weights = found
        names = ("s", f"u{k}", f"us{k}", "s_s", f"s_us{k}", f"u{k}_u{k}", f"u{k}_us{k}", f"us{k}_us{k}", f"zero{t[1:]}")
        numbers |= {name: np.array([value]) for name, value in zip(names, sums, strict=True)}
        numbers |= {"r_min": np.array([lowest]), "r_max": np.array([highest])}
        if not against:
            largest[t] = weights
    return numbers, largest


def _in_threads(p: Any, t: Any, minus: Any, r: Any, centre: float) -> tuple[Floats, float, float, Floats] | None:
    """Parts of the arrays on every core, and their results together."""
    loop, threads = cast(Callable[..., Any], _loop()), pl.thread_pool_size()
    ends = np.linspace(0, len(p), threads + 1, dtype=np.int64)
    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(loop, p[i:j], t[i:j], minus[i:j], r[i:j], centre) for i, j in pairwise(ends)]
        parts = [job.result() for job in jobs]
    if any(part[1] for part in parts):
        return None
    weights = np.sort(np.concatenate([part[4] for part in parts]))[::-1][:KEPT]
    sums = np.sum([part[0] for part in parts], axis=0)
    return sums, min(part[2] for part in parts), max(part[3] for part in parts), weights


@cache
def _loop() -> Callable[..., Any] | None:
    """The loop itself, compiled on first use and kept on disk for the next time where there is a place for it.

    None where numba is missing, or does not work with the NumPy that is there.
    """
    try:
        return _compile(keep=True)
    except ImportError:
        return None
    except RuntimeError:  # numba's word for "no folder to keep it in"
        return _compile(keep=False)


def _compile(*, keep: bool) -> Callable[..., Any]:
    import numba

    # Sums may be reordered into vector lanes, but comparisons must still see a NaN. Everything that would branch is a count,
    # which vectorises; the few blocks whose count is not 0 are looked at row by row.
    compiled = numba.njit(nogil=True, cache=keep, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")

    @compiled
    def add(p: Any, t: Any, minus: Any, r: Any, c: float, weights: Any, total: Any) -> None:
        s1 = u1 = us1 = ss = sus = uu = uus = usus = 0.0
        for k in range(len(p)):
            u, s = (np.float64(t[k]) - np.float64(minus[k])) / np.float64(p[k]), np.float64(r[k]) - c
            us = u * s
            weights[k] = u
            s1, u1, us1 = s1 + s, u1 + u, us1 + us
            ss, sus, uu, uus, usus = ss + s * s, sus + s * us, uu + u * u, uus + u * us, usus + us * us
        for k, x in enumerate((s1, u1, us1, ss, sus, uu, uus, usus)):
            total[k] += x

    @compiled
    def count(p: Any, t: Any, r: Any, u: Any, threshold: float, low: float, high: float) -> Any:
        good = zeros = outside = above = 0
        for k in range(len(p)):
            q, x, y = np.float64(p[k]), np.float64(t[k]), np.float64(r[k])
            good += 1 if (q > 0) & (q <= 1) & (x >= 0) & (x <= 1) & (x <= q * LARGEST) & (abs(y) <= LARGEST) else 0
            zeros += 1 if x == 0 else 0
            outside += 1 if (y < low) | (y > high) else 0
            above += 1 if u[k] > threshold else 0
        return good, zeros, outside, above

    @compiled
    def loop(p: Any, t: Any, minus: Any, r: Any, c: float) -> Any:
        total, good_rows = np.zeros(9), 0
        low, high = np.inf, -np.inf
        weights, kept = np.empty(BLOCK), np.empty(4 * KEPT)
        held, threshold = 0, -np.inf
        for i in range(0, len(p), BLOCK):
            j = min(i + BLOCK, len(p))
            u = weights[: j - i]
            add(p[i:j], t[i:j], minus[i:j], r[i:j], c, u, total)
            good, zeros, outside, above = count(p[i:j], t[i:j], r[i:j], u, threshold, low, high)
            good_rows, total[8] = good_rows + good, total[8] + zeros
            if outside:
                low, high = min(low, r[i:j].min()), max(high, r[i:j].max())
            if above:
                for x in u:
                    if x > threshold:
                        if held == len(kept):
                            kept[:KEPT] = np.sort(kept)[-KEPT:]
                            held, threshold = KEPT, kept[0]
                        kept[held] = x
                        held += 1
        return total, len(p) - good_rows, low, high, 1.0 + np.sort(kept[:held])[-KEPT:]

    return loop
