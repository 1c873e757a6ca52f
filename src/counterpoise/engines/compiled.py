"""The compiled engine: one pass at the speed of memory, if numba is installed.

It computes what the aggregate query and the ranking of the largest weights compute, for plain importance weights and logs without
segments, groups, models, controls and context baselines. It leaves everything else, and every log with a bad row, to the engine that it
wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, pairwise
from threading import Lock

import numpy as np
import polars as pl

from counterpoise.engines.query import Query
from counterpoise.engines.summarize import Answer, Largest, OnFrame, Shortcut
from counterpoise.log.columns import PROPENSITY, ROWS
from counterpoise.log.question import Lane, Names, Question
from counterpoise.moments import Floats
from counterpoise.moments.spread import KEPT
from counterpoise.readers.progress import Report
from counterpoise.weights import Importance

SHORTEST = 5_000_000  # rows of arrays; loading the compiled loop takes longer than a shorter log
WIDE = 16  # columns; more of them at once would take too much memory
LANES = 50  # in one pass over a wide log: 0.6 GB, and ten a pass would take half as long again


def suits(frame: pl.DataFrame, question: Question) -> bool:
    """Whether the compiled loop is the fastest way to handle these rows in memory."""
    return frame.height >= SHORTEST and answers(question)


def answers(question: Question) -> bool:
    """Whether the compiled loop can answer such a question."""
    more = (question.segment, question.model_value, question.control, question.smoothings, question.features)
    is_known = all(kind.is_compiled for kind in question.kinds)
    is_plain = question.groups == 1 and is_known and not any(more)
    return is_plain and type(question.weight) is Importance and _loop() is not None


def is_started() -> bool:
    """Whether the loop was loaded before, so that it costs nothing to start."""
    return _loop.cache_info().currsize > 0


class InMemory(OnFrame):
    """The compiled loop over a frame, with parts of it on every core."""

    def aggregate(self, query: Query) -> Answer:
        """The sums, by the compiled loop if no row is bad."""
        if query.only_good:
            return self.inner.aggregate(query)
        running, threads, frame = Running(query, query.names.lanes), pl.thread_pool_size(), self.frame
        ends = np.linspace(0, frame.height, threads + 1, dtype=np.int64)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(running.see, [frame.slice(int(i), int(j - i)) for i, j in pairwise(ends)]))
        return running.answer() or self.inner.aggregate(query)


@dataclass
class OnScan(Shortcut):
    """The compiled loop on the pieces of a scan: one pass, or one per fifty lanes of a wide log."""

    frame: pl.LazyFrame
    report: Report | None = None

    def aggregate(self, query: Query) -> Answer:
        """The sums, by the compiled loop if no row is bad."""
        names, answers = query.names, list[Answer]()
        lanes = names.lanes
        size = LANES if len(names.question.numbers) > WIDE else len(lanes)
        for k in range(0, 0 if query.only_good else len(lanes), size):
            running = Running(query, lanes[k : k + size], None if answers else self.report)
            self.frame.select(running.expression()).collect(engine="streaming")
            answer = running.answer()
            if answer is None:
                break
            answers.append(answer)
        else:
            if answers:
                return _together(answers)
        return self.inner.aggregate(query)


def _together(answers: Sequence[Answer]) -> Answer:
    """Several answers, each about some lanes, joined into one about all of them."""
    numbers = {name: value for answer in answers for name, value in answer.numbers.items()}
    by_lane = [answer.largest for answer in answers]

    def largest(lane: Lane) -> Largest:
        return next(weights for largest_of in by_lane if (weights := largest_of(lane)))

    return Answer(numbers, [()], answers[0].rows, True, largest)


class Running:
    """The sums of a log's pieces, which several threads may bring in any order."""

    def __init__(self, query: Query, lanes: Sequence[Lane], report: Report | None = None) -> None:
        self._names, self._report = query.names, report
        own = query.own
        self._centers = query.centers if own is None else tuple(float(own[name][0]) for name in query.names.centers)
        self._parts = [_LaneSums(lane) for lane in lanes]
        columns = {name for part in self._parts for name in (part.target, part.minus, self._reward(part))}
        self._kept_with = query.names.question.kept_with
        columns |= {self._kept_with} if self._kept_with else set()
        self._columns = [PROPENSITY, *sorted(columns - {PROPENSITY})]
        self._loop, self._lock = _loop(), Lock()
        self._rows = self._bad = 0

    def expression(self) -> pl.Expr:
        """An expression that computes nothing, but gets to see every piece of a frame in passing."""
        whole = pl.struct(*self._columns)
        return whole.map_batches(self._see_struct, return_dtype=pl.Float64, is_elementwise=True).null_count()

    def see(self, piece: pl.DataFrame) -> None:
        """Add one more piece; after a bad row (a null is a NaN here), the rest is ignored."""
        if self._loop is None or self._bad:
            return
        columns = {name: np.ascontiguousarray(piece.get_column(name).to_numpy()) for name in self._columns}
        for part in self._parts:
            p, t, minus = columns[PROPENSITY], columns[part.target], columns[part.minus]
            r, center = columns[self._reward(part)], self._centers[part.lane.reward]
            kept = None if self._kept_with is None else columns[self._kept_with]
            sums = self._loop(p, t, minus, r, kept, center, part.threshold)
            with self._lock:
                self._bad += part.add(*sums)
        with self._lock:
            self._rows += piece.height
            if self._report is not None:
                self._report(piece.height)

    def answer(self) -> Answer | None:
        """The sums under the names that the aggregate gives them; None if a row is bad, or if there are no rows."""
        if self._bad or not self._rows:
            return None
        names = self._names
        numbers = {ROWS: np.array([float(self._rows)])}
        for part in self._parts:
            lane = part.lane
            order = _order(lane, names)
            numbers |= {name: np.array([value]) for name, value in zip(order, np.asarray(part.sums), strict=True)}
            reward = names.rewards[lane.reward]
            numbers |= {f"{reward}_min": np.array([part.low]), f"{reward}_max": np.array([part.high])}
            numbers[names.centers[lane.reward]] = np.array([self._centers[lane.reward]])
        largest: dict[Lane, Largest] = {part.lane: {(): part.largest()} for part in self._parts}
        return Answer(numbers, [()], self._rows, True, lambda lane: largest.get(lane, {}))

    def _reward(self, part: _LaneSums) -> str:
        return self._names.rewards[part.lane.reward]

    def _see_struct(self, piece: pl.Series) -> pl.Series:
        self.see(piece.struct.unnest())
        return piece.struct.field(PROPENSITY)


def _order(lane: Lane, names: Names) -> list[str]:
    """The names of what the loop adds up for a lane, in its order."""
    u, s, us = lane.columns["u"], lane.columns["s"], lane.columns["us"]
    if not lane.counts:
        pairs = [(s, s), (s, us), (u, u), (u, us), (us, us)]
        powers = [names.power(x, k) for x in (u, s) for k in (3, 4)]
        return [s, u, us, *(names.product(a, b) for a, b in pairs), *powers, lane.zeros]
    columns, alone = (lane.counts, s, u, us), lane.shifted
    products = [names.product(a, b) for a, b in combinations_with_replacement(columns, 2)]
    powers = [names.power(u, 3), names.power(u, 4), alone, names.product(alone, alone)]
    return [*columns, *products, *powers, names.power(alone, 3), names.power(alone, 4), lane.zeros]


class _LaneSums:
    """The sums of one lane, and the largest weights so far."""

    def __init__(self, lane: Lane) -> None:
        self.lane, self.target, self.minus = lane, lane.target, lane.other or PROPENSITY
        self.sums: Floats | float = 0.0
        self.low, self.high, self.threshold = np.inf, -np.inf, -np.inf
        self.kept: list[Floats] = []

    def add(self, sums: Floats, bad: int, low: float, high: float, above: Floats) -> int:
        """Add what the loop found in a piece, and return how many of its rows are bad."""
        self.sums = self.sums + sums
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.kept.append(above)
        if sum(map(len, self.kept)) > 4 * KEPT:
            top = np.partition(np.concatenate(self.kept), -KEPT)[-KEPT:]
            self.kept, self.threshold = [top], float(top.min())
        return bad

    def largest(self) -> Floats:
        """The largest weights, in descending order."""
        return 1.0 + np.sort(np.concatenate(self.kept))[::-1][:KEPT]


Loop = Callable[[Floats, Floats, Floats, Floats, Floats | None, float, float], tuple[Floats, int, float, float, Floats]]


@cache
def _loop() -> Loop | None:
    """The loop; None if numba is missing, or does not work with the installed NumPy."""
    try:
        from counterpoise.engines.loop import loop
    except ImportError:
        return None
    return loop
