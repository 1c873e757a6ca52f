"""The compiled engine: one pass at the speed of memory, if numba is installed.

It computes what the aggregate query and the ranking of the largest weights compute, for plain importance weights and logs without
models, controls and context baselines. It leaves everything else, and every log with a bad row, to the engine that it wraps.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations_with_replacement, pairwise
from threading import Lock
from types import ModuleType

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.engines.query import Query
from counterpoise.engines.summarize import Answer, Largest, OnFrame, Shortcut, labels_of
from counterpoise.log.columns import GROUP, PROPENSITY, ROWS
from counterpoise.log.question import Lane, Names, Question
from counterpoise.moments import Floats
from counterpoise.moments.log_moments import Label
from counterpoise.moments.spread import KEPT
from counterpoise.readers.progress import Report
from counterpoise.weights import Importance

SHORTEST = 5_000_000  # rows of arrays; loading the compiled loop takes longer than a shorter log
BY_SEGMENT = 1_000_000  # the same where rows have segments or groups, which take polars longer
LONGEST = 20_000  # rows that NumPy adds up sooner; once the loop has started, it takes all longer logs
PENDING = 20 * KEPT  # weights that are held before the largest are chosen among them
CELLS = 200_000  # of segments and groups; every piece of a log has sums for all of them, as polars has not
PLACE = "place"
WIDE = 16  # columns; more of them at once would take too much memory
LANES = 50  # in one pass over a wide log: 0.6 GB, and ten a pass would take half as long again


def suits(frame: pl.DataFrame, question: Question) -> bool:
    """Whether the compiled loop is the fastest way to handle these rows in memory."""
    least = BY_SEGMENT if question.names.keys else SHORTEST
    least = min(least, LONGEST) if is_started() else least
    return frame.height >= least and answers(question)


def answers(question: Question) -> bool:
    """Whether the compiled loop can answer such a question."""
    more = (question.model_value, question.control, question.smoothings, question.features)
    is_known = all(kind.is_compiled for kind in question.kinds) and not any(more)
    if question.names.keys:
        is_known &= not question.kinds and len(question.numbers) <= WIDE
    return is_known and type(question.weight) is Importance and start()


def is_started() -> bool:
    """Whether the loop was loaded before, so that it costs nothing to start."""
    return _loops.cache_info().currsize > 0


def start() -> bool:
    """Load the loop, if numba is there; whether it is."""
    return _loops() is not None


class InMemory(OnFrame):
    """The compiled loop over a frame, with parts of it on every core."""

    def aggregate(self, query: Query) -> Answer:
        """The sums, by the compiled loop if no row is bad."""
        if query.only_good:
            return self.inner.aggregate(query)
        running, threads, frame = _running(query, query.names.lanes), pl.thread_pool_size(), self.frame
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
            running = _running(query, lanes[k : k + size], None if answers else self.report)
            self.frame.select(running.expression()).collect(engine="streaming")
            answer = running.answer()
            if answer is None:
                break
            answers.append(answer)
        else:
            if answers:
                return answers[0] if len(answers) == 1 else _together(answers)
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
        self._lock = Lock()
        self._rows = self._bad = 0

    def expression(self) -> pl.Expr:
        """An expression that computes nothing, but gets to see every piece of a frame in passing."""
        whole = pl.struct(*self._columns)
        return whole.map_batches(self._see_struct, return_dtype=pl.Float64, is_elementwise=True).null_count()

    def see(self, piece: pl.DataFrame) -> None:
        """Add one more piece; after a bad row (a null is a NaN here), the rest is ignored."""
        loops = _loops()
        if loops is None or self._bad:
            return
        columns = {name: np.ascontiguousarray(piece.get_column(name).to_numpy()) for name in self._columns}
        for part in self._parts:
            p, t, minus = columns[PROPENSITY], columns[part.target], columns[part.minus]
            r, center = columns[self._reward(part)], self._centers[part.lane.reward]
            kept = None if self._kept_with is None else columns[self._kept_with]
            sums = loops.loop(p, t, minus, r, kept, center, part.threshold)
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


class RunningBy(Running):
    """The same by segment and group: every row has a cell, and every segment its largest weights."""

    def __init__(self, query: Query, lanes: Sequence[Lane], report: Report | None = None) -> None:
        super().__init__(query, lanes, report)
        names, own = self._names, query.own
        self._segments, self._groups = list(names.segments), names.question.groups
        self._known = None if own is None or not self._segments else own.select(self._segments).with_row_index(PLACE)
        columns = names.centers if own is not None and self._segments else ()
        self._own = {name: own[name].to_numpy() for name in columns} if own is not None else {}
        self._by = [_CellSums(part, self._groups) for part in self._parts]
        self._columns += names.keys

    def see(self, piece: pl.DataFrame) -> None:
        """Add one more piece; after a row that is bad or has no cluster, or with too many segments, the rest is ignored."""
        loops = _loops()
        if loops is None or self._bad or not piece.height:
            return
        if any(dtype.is_nested() for dtype in piece.select(self._segments).dtypes):  # which polars cannot join
            self._bad = 1
            return
        group = np.zeros(piece.height, dtype=np.int64)
        if self._groups > 1:
            if piece.get_column(GROUP).null_count():
                self._bad = 1
                return
            group = piece.get_column(GROUP).cast(pl.Int64).to_numpy()
        segment, count = self._places(piece)
        if count * self._groups > CELLS:
            self._bad = 1
            return
        columns = {
            name: piece.get_column(name).cast(pl.Float64).to_numpy()
            for name in self._columns
            if name != GROUP and name not in self._segments
        }
        for part, cells in zip(self._parts, self._by, strict=True):
            p, t, minus, r = (columns[name] for name in (PROPENSITY, part.target, part.minus, self._reward(part)))
            center = self._center(part.lane.reward, count)
            with self._lock:
                limits = cells.limits(count)
            sums = loops.loop_by(p, t, minus, r, segment, group, self._groups, center, limits)
            with self._lock:
                self._bad += cells.add(*sums)
        with self._lock:
            self._rows += piece.height
            if self._report is not None:
                self._report(piece.height)

    def answer(self) -> Answer | None:
        """The sums of every cell with rows, under the names that the aggregate gives them."""
        if self._bad or not self._rows:
            return None
        names, known = self._names, self._known
        cells = np.flatnonzero(self._by[0].total[:, -1])
        segment = cells // self._groups
        numbers = {ROWS: self._by[0].total[cells, -1], GROUP: (cells % self._groups).astype(np.float64)}
        labels: list[Label] = [()] if known is None else labels_of(known, names)
        sums = {part.lane: by for part, by in zip(self._parts, self._by, strict=True)}
        for part, by in zip(self._parts, self._by, strict=True):
            lane = part.lane
            numbers |= dict(zip(_order(lane, names), by.total[cells].T, strict=False))
            reward = names.rewards[lane.reward]
            numbers |= {f"{reward}_min": by.low[cells], f"{reward}_max": by.high[cells]}
            numbers[names.centers[lane.reward]] = self._center(lane.reward, len(labels))[segment]
        keys = None if known is None else known.select(self._segments)[segment]
        return Answer(
            numbers, [labels[k] for k in segment], self._rows, True, lambda lane: sums[lane].largest(labels), keys
        )

    def _center(self, reward: int, count: int) -> Floats:
        """The center of every segment."""
        name = self._names.centers[reward]
        return self._own[name] if name in self._own else np.full(count, self._centers[reward])

    def _places(self, piece: pl.DataFrame) -> tuple[NDArray[np.int64], int]:
        """The number of every row's segment, in the order in which segments came up, and how many there are so far."""
        if not self._segments:
            return np.zeros(piece.height, dtype=np.int64), 1
        keys = piece.select(self._segments)
        match = partial(keys.join, on=self._segments, how="left", nulls_equal=True, maintain_order="left")
        known = self._known
        place = None if known is None else match(known).get_column(PLACE)
        if known is None or place is None or place.null_count():
            with self._lock:
                known = keys.head(0).with_row_index(PLACE) if self._known is None else self._known
                new = keys.unique().join(known, on=self._segments, how="anti", nulls_equal=True)
                known = self._known = pl.concat([known, new.with_row_index(PLACE, known.height)])
            place = match(known).get_column(PLACE)
        return place.cast(pl.Int64).to_numpy(), known.height


class _CellSums:
    """The sums of one lane in every cell, and the largest weights of every segment so far, which grow as segments come up."""

    def __init__(self, part: _LaneSums, groups: int) -> None:
        self._is_ranked, self._groups = not part.lane.contrast[1], groups
        self.total, self.low, self.high = np.zeros((0, 14)), np.zeros(0), np.zeros(0)
        self._limits = np.zeros(0)
        self._of, self._kept = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
        self._held = self._most = 0

    def limits(self, segments: int) -> Floats:
        """What a weight of each segment must be above to be among the largest."""
        if len(self._limits) < segments:
            start = np.full(segments, -np.inf if self._is_ranked else np.inf)
            start[: len(self._limits)] = self._limits
            self._limits = start
        return self._limits[:segments]

    def add(self, total: Floats, bad: int, low: Floats, high: Floats, of: NDArray[np.int64], kept: Floats) -> int:
        """Add what the loop found in a piece, and return how many of its rows are bad."""
        if len(self.total) > len(total):  # found before another thread's piece brought more segments
            more = len(self.total) - len(total)
            total = np.vstack([total, np.zeros((more, 14))])
            low, high = np.append(low, np.full(more, np.inf)), np.append(high, np.full(more, -np.inf))
        if len(self.total):
            k = len(self.total)
            total[:k] += self.total
            low[:k], high[:k] = np.minimum(low[:k], self.low), np.maximum(high[:k], self.high)
        self.total, self.low, self.high = total, low, high
        self._of.append(of)
        self._kept.append(kept)
        self._held += len(kept)
        # more than twice what was kept, so that ranking stays a small part, and only where a segment has more than are kept
        is_much = self._held > max(PENDING, 2 * self._most)
        if is_much and total[:, -1].reshape(-1, self._groups).sum(axis=1).max() > KEPT:
            starts, kept = self._ranked(len(self._limits))
            counts = np.diff(starts)
            self._of, self._kept = [np.repeat(np.arange(len(counts)), counts)], [kept]
            self._held = self._most = len(kept)
            full = np.flatnonzero(counts == KEPT)
            limits = self._limits.copy()
            limits[full] = kept[starts[full + 1] - 1]
            self._limits = limits
        return bad

    def largest(self, labels: Sequence[Label]) -> Largest:
        """The largest weights of every segment, in descending order."""
        if not self._is_ranked:
            return {}
        starts, kept = self._ranked(len(labels))
        kept, ends = kept + 1.0, starts.tolist()
        return {label: kept[i:j] for label, (i, j) in zip(labels, pairwise(ends), strict=True)}

    def _ranked(self, segments: int) -> tuple[NDArray[np.int64], Floats]:
        loops = _loops()
        assert loops is not None
        starts, kept = loops.largest_by(np.concatenate(self._of), np.concatenate(self._kept), segments)
        return starts, kept


def _running(query: Query, lanes: Sequence[Lane], report: Report | None = None) -> Running:
    """The sums of a log's pieces, by segment and group if there are any."""
    return (RunningBy if query.names.keys else Running)(query, lanes, report)


@cache
def _loops() -> ModuleType | None:
    """The loops; None if numba is missing, or does not work with the installed NumPy."""
    try:
        from counterpoise.engines import loop
    except ImportError:
        return None
    return loop
