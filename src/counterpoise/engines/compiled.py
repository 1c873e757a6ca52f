"""This file holds the compiled engine: one pass at the speed of memory, where numba is installed.

It computes what `query.aggregate` and the ranking of the largest weights compute, for logs without segments, groups, models and
controls. Everything else, every short log and every log with a bad row takes another engine.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import polars as pl

from counterpoise.engines.assemble import Largest
from counterpoise.log.request import LOGGING, Request
from counterpoise.moments import Floats
from counterpoise.moments.tails import KEPT
from counterpoise.readers.progress import Report

SHORTEST = 5_000_000  # rows of arrays; loading the compiled loop takes longer than a shorter log

Sums = tuple[dict[str, Floats], dict[str, Largest]]


def suits(frame: pl.DataFrame, request: Request) -> bool:
    """Whether the compiled loop can take this log."""
    return frame.height >= SHORTEST and answers(request)


def answers(request: Request) -> bool:
    """Whether the compiled loop answers such questions."""
    plain = request.groups == 1 and not (request.segment or request.model_value or request.control)
    return plain and _loop() is not None


def scan(frame: pl.DataFrame, request: Request, centre: float) -> Sums | None:
    """The result of `Running` for a frame in memory, parts of it on every core."""
    running, threads = Running(request, centre), pl.thread_pool_size()
    ends = np.linspace(0, frame.height, threads + 1, dtype=np.int64)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(running.see, [frame.slice(i, j - i) for i, j in pairwise(ends)]))
    return running.result()


class Running:
    """The sums of a log's pieces, which several threads may show in any order."""

    def __init__(self, request: Request, centre: float, report: Report | None = None) -> None:
        self._request, self._centre, self._report = request, centre, report
        self._parts = [_Part(*_columns(request, k)) for k in range(len(request.contrasts))]
        self._loop, self._lock = _loop(), Lock()
        self._rows = self._bad = 0

    def expression(self) -> pl.Expr:
        """An expression that computes nothing, but shows every piece of a frame of the request's columns in passing."""
        whole = pl.struct(*self._request.numbers)
        return whole.map_batches(self._see_struct, return_dtype=pl.Float64, is_elementwise=True).null_count()

    def see(self, piece: pl.DataFrame) -> None:
        """One more piece; after a bad row (a null is a NaN here) the rest is not looked at."""
        if self._loop is None or self._bad:
            return
        columns = {name: np.ascontiguousarray(piece.get_column(name).to_numpy()) for name in self._request.numbers}
        for part in self._parts:
            p, t, minus, r = (columns[name] for name in ("p", part.target, part.minus, "r"))
            found = self._loop(p, t, minus, r, self._centre, part.threshold)
            with self._lock:
                self._bad += part.add(*found)
        with self._lock:
            self._rows += piece.height
            if self._report is not None:
                self._report(piece.height)

    def result(self) -> Sums | None:
        """The sums under the names that `query.aggregate` gives them, and each target's largest weights.

        None if a row is bad, or there are none.
        """
        if self._bad or not self._rows:
            return None
        numbers = {"n": np.array([self._rows])}
        largest: dict[str, Largest] = {}
        for k, ((_, against), part) in enumerate(zip(self._request.contrasts, self._parts, strict=True)):
            of_u = (f"u{k}", f"us{k}", "s_s", f"s_us{k}", f"u{k}_u{k}", f"u{k}_us{k}", f"us{k}_us{k}")
            names = ("s", *of_u, f"zero{part.target[1:]}")
            numbers |= {name: np.array([value]) for name, value in zip(names, part.sums, strict=True)}
            numbers |= {"r_min": np.array([part.low]), "r_max": np.array([part.high])}
            if not against:
                largest[part.target] = {(): 1.0 + np.sort(np.concatenate(part.kept))[::-1][:KEPT]}
        return numbers, largest

    def _see_struct(self, piece: pl.Series) -> pl.Series:
        self.see(piece.struct.unnest())
        return piece.struct.field("r")


class _Part:
    """The sums of one contrast, and the largest weights so far."""

    def __init__(self, target: str, minus: str) -> None:
        self.target, self.minus = target, minus
        self.sums: Floats = np.zeros(9)
        self.low, self.high, self.threshold = np.inf, -np.inf, -np.inf
        self.kept: list[Floats] = []

    def add(self, sums: Floats, bad: int, low: float, high: float, above: Floats) -> int:
        """What the loop found in a piece; gives back how many of its rows are bad."""
        self.sums += sums
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.kept.append(above)
        if sum(map(len, self.kept)) > 4 * KEPT:
            top = np.partition(np.concatenate(self.kept), -KEPT)[-KEPT:]
            self.kept, self.threshold = [top], float(top.min())
        return bad


def _columns(request: Request, contrast: int) -> tuple[str, str]:
    """The columns whose difference is a contrast's u, times p."""
    target, against = request.contrasts[contrast]
    minus = "p" if against in ("", LOGGING) else f"t{request.targets.index(against)}"
    return f"t{request.targets.index(target)}", minus


@cache
def _loop() -> Callable[..., Any] | None:
    """The loop; None where numba is missing, or does not work with the NumPy that is there."""
    try:
        from counterpoise.engines.loop import loop
    except ImportError:
        return None
    return loop
