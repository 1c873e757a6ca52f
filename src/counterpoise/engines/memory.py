"""Logs in memory, whole or in batches: polars adds them up, but NumPy takes the short ones and the compiled loop the long ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from operator import add

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.engines import compiled
from counterpoise.engines import lists as contiguous
from counterpoise.engines.polars_frames import (
    answer_of,
    center_of,
    collect,
    grouped,
    prepare,
    rows_of_lists,
    weights_of,
    with_centers,
)
from counterpoise.engines.query import Query, aggregate, left_out, of_lists, powers_of, smoothed_lanes
from counterpoise.engines.scatter import Scatter, gram
from counterpoise.engines.summarize import Answer, Engine, Largest, Shortcut, Summary, finish, survey
from counterpoise.log.good import is_believable, is_number, is_probability, is_propensity
from counterpoise.log.lists import LENGTH
from counterpoise.log.question import KEY, MODEL_ERROR, MODEL_REWARD, PROPENSITY, ROWS, Lane, Names, Question
from counterpoise.log.rules import Problem, find_problems, only_good
from counterpoise.moments import Floats, LogMoments, Powers
from counterpoise.moments.log_moments import as_label
from counterpoise.moments.spread import KEPT, Smoothed
from counterpoise.readers.progress import Report

# -- Short logs in memory: NumPy has added them up before a query engine would have planned its query ------------------

LONGEST = 20_000  # rows; from there on polars is faster
LISTS = 200_000  # the sums of their many columns are a product of matrices


def suits(frame: pl.DataFrame, question: Question) -> bool:
    """Whether there are so few rows, and the question is so plain, that NumPy is the fastest way."""
    longest = LONGEST if question.lists is None else LISTS
    return frame.height <= longest and not question.segment and question.groups == 1


@dataclass
class Short(Shortcut):
    """The engine for short logs; bad rows are the other engine's business."""

    inner: Memory

    def aggregate(self, query: Query) -> Answer:
        """The sums, by NumPy."""
        frame = self.inner.good_rows() if query.only_good else self.inner.frame
        names = query.names
        if names.apart:
            return self.inner.aggregate(query)
        columns = {
            name: frame.get_column(name).to_numpy().astype(np.float64, copy=False)
            for name in (*names.question.numbers, *(names.made_of() if names.question.makes_lists else ()))
        }
        if not _is_clean(columns, names):
            return self.inner.aggregate(query)
        return _answer(columns, query, frame.height)


def _is_clean(columns: Mapping[str, Floats], names: Names) -> bool:
    """Whether every row obeys every rule; a null is a NaN here."""
    tests = {"propensity": is_propensity, "target": is_probability}
    with np.errstate(invalid="ignore"):
        for name, (part, _) in names.question.numbers.items():
            if not tests.get(part, is_number)(columns[name]).all():
                return False
        if PROPENSITY not in columns:
            return True
        return all(is_believable(columns[name], columns[PROPENSITY]).all() for name in names.targets)


def _answer(columns: dict[str, Floats], query: Query, rows: int) -> Answer:
    names, question = query.names, query.names.question
    centers = query.centers if query.own is None else tuple(float(query.own[name][0]) for name in names.centers)
    numbers = {ROWS: np.array([float(rows)])}
    for j, name in enumerate(names.rewards):
        columns[names.shifted[j]] = columns[name] - centers[j]
        low, high = (columns[name].min(), columns[name].max()) if rows else (np.nan, np.nan)
        numbers |= {f"{name}_min": np.array([low]), f"{name}_max": np.array([high])}
        numbers[names.centers[j]] = np.array([centers[j]])
    if names.values and not question.makes_lists:
        columns[MODEL_ERROR] = columns[names.rewards[0]] - columns[MODEL_REWARD]
    if names.values:
        for made, value in zip(names.centered_values, names.values, strict=True):
            columns[made] = columns[value] - centers[0]
        for made, (value, other) in names.value_differences.items():
            columns[made] = columns[value] - columns[other] - centers[0]
    for made, name, mean in zip(names.centered_controls, names.controls, question.control.values(), strict=True):
        columns[made] = columns[name] - mean
    for made, name, feature in zip(names.centered_features, names.features, question.features, strict=True):
        columns[made] = columns[name] - feature.center
    for lane in names.lanes:
        columns[lane.excess] = _excess(columns, lane)
        if question.makes_lists:
            columns |= of_lists(lane, names, centers[lane.reward], columns.__getitem__)
        if lane.rung:
            numbers[lane.peak] = np.array([columns[lane.excess].max() if rows else np.nan])
        for name, (first, second) in lane.products.items():
            columns[name] = columns[first] * columns[second]
        numbers |= _sums(columns, lane, names)
        for name, (column, order) in powers_of(names, [lane]).items():
            numbers.setdefault(name, np.array([_power_sum(columns[column], order)]))
        if smoothed_lanes(names, [lane]):
            weighted = (1.0 + columns[lane.excess]) * columns[names.rewards[lane.reward]]
            sums = Smoothed.of(weighted, question.smoothings).sums
            numbers |= {names.smoothed(lane, k): sums[k : k + 1] for k in range(len(sums))}
        if not lane.contrast[1]:
            numbers[lane.zeros] = np.array([float(lane.weight.is_zero(columns[lane.target]).sum())])

    def largest(lane: Lane) -> Largest:
        return {(): 1.0 + np.sort(columns[lane.excess])[::-1][:KEPT]}

    return Answer(numbers, [()] if rows else [], rows, True, largest)


def _excess(columns: Mapping[str, Floats], lane: Lane) -> Floats:
    weight, t, p = lane.weight, columns[lane.target], columns.get(PROPENSITY)
    excess = weight.excess(t, p) if lane.other is None else weight.difference(t, columns[lane.other], p)
    return np.asarray(excess, dtype=np.float64)


def _power_sum(x: Floats, order: int) -> float:
    square = x * x
    other = x if order == 3 else square
    # for more, BLAS takes several threads, which costs more than it saves where the engine has one on every core
    return float(square @ other if len(x) <= LONGEST else np.einsum("i,i->", square, other))


def _sums(columns: Mapping[str, Floats], lane: Lane, names: Names) -> dict[str, Floats]:
    used = list(lane.columns.values())
    rows = np.stack([columns[name] for name in used])
    products = rows @ rows.T if rows.shape[1] <= LONGEST else gram(rows)
    sums = {name: np.array([total]) for name, total in zip(used, rows.sum(axis=1), strict=True)}
    for i, j in combinations_with_replacement(range(len(used)), 2):
        sums.setdefault(names.product(used[i], used[j]), np.array([products[i, j]]))
    return sums


# ----------------------------------------------------------------------------------------------------------------------


SAMPLE = 100_000


@dataclass
class Batches:
    """What we know after some batches: their moments so far, the problems of bad rows, the keys of good ones."""

    question: Question
    total: tuple[LogMoments, ...] = ()
    problems: list[Problem] = field(default_factory=list)
    rows: int = 0
    keys: list[pl.Series] = field(default_factory=list)
    left_out: tuple[Powers, ...] = ()
    has_order: bool = True  # rows have numbers

    def add(self, batch: pl.DataFrame) -> None:
        """Add one more batch."""
        if batch.height == 0:
            return
        first_row = self.rows if self.has_order else None
        engine = Memory(prepare(batch, self.question, self.rows), self.question, first_row)
        self.add_summary(engine.survey())
        if self.question.log.key:
            self.keys.append(engine.good_rows().get_column(KEY))

    def add_summary(self, summary: Summary) -> None:
        """Add what is known about some more rows."""
        if summary.moments:
            self.total = tuple(map(add, self.total, summary.moments)) if self.total else summary.moments
        if summary.left_out:
            self.left_out = tuple(map(add, self.left_out, summary.left_out)) if self.left_out else summary.left_out
        self.rows += summary.rows
        self.problems += summary.problems

    @property
    def summary(self) -> Summary:
        """Everything we know so far."""
        return Summary(self.total, tuple(self.problems), self.rows, self.left_out)

    def finish(self) -> tuple[LogMoments, ...]:
        """The moments of all batches; raises an error if any row is bad, unless bad rows are to be dropped."""
        return finish(self.summary, self.question, self._duplicates)

    def _duplicates(self, n: int) -> int | None:
        return n - pl.concat(self.keys).n_unique() if self.keys else None


def summarize_batches(
    batches: Iterable[pl.DataFrame], question: Question, *, has_order: bool = True
) -> tuple[LogMoments, ...]:
    """The moments of all batches together, whose rows may come in another order next time."""
    whole = Batches(question, has_order=has_order)
    if question.makes_lists:
        rows = pl.concat(batches)  # the rows of a list may be in several
        moments = summarize_in_order(lambda: iter([rows_of_lists(rows.lazy(), question).collect()]), question)
        if moments is not None:
            return moments
        batches = [rows]
    for batch in batches:
        whole.add(batch)
    return whole.finish()


def summarize_in_order(
    batches: Callable[[], Iterable[pl.DataFrame]], question: Question, report: Report | None = None
) -> tuple[LogMoments, ...] | None:
    """The moments of lists whose rows, under internal names, stand together and in order; None where they do not."""
    if not contiguous.suits(question):
        return None
    whole = Batches(question)
    try:
        for lists in contiguous.in_order(batches(), question):
            whole.add_summary(Memory(grouped(lists, question), question).survey())
            if report is not None:
                report(int(lists.get_column(LENGTH).sum()))
    except contiguous.OutOfOrderError:
        return None
    return whole.finish() if whole.rows else None


@dataclass
class Memory:
    """The engine for rows in memory, under internal names."""

    frame: pl.DataFrame
    question: Question
    first_row: int | None = 0  # None where rows have no numbers
    skips_bad_rows = False

    def survey(self) -> Summary:
        """What is in the rows, by whichever engine is fastest for so many."""
        fastest: Engine = self
        if suits(self.frame, self.question):
            fastest = Short(self)
        elif compiled.suits(self.frame, self.question):
            fastest = compiled.InMemory(self)
        return survey(fastest, self.question)

    def good_rows(self) -> pl.DataFrame:
        """The rows that break no rule."""
        good: pl.DataFrame = only_good(nw.from_native(self.frame, eager_only=True), self.question).to_native()
        return good

    def centers(self, *, only_good: bool) -> tuple[float, ...]:
        """The median of some rewards."""
        frame = self.good_rows() if only_good else self.frame
        return tuple(center_of(frame.get_column(reward).head(1000)) for reward in self.question.names.rewards)

    def aggregate(self, query: Query) -> Answer:
        """The sums, by polars."""
        frame = self.good_rows() if query.only_good else self.frame
        lazy = with_centers(frame.lazy(), query)
        rows = nw.from_native(lazy).with_columns(nw.col(*self.question.numbers).cast(nw.Float64))
        scatter = Scatter(query.names)
        watched = aggregate(rows, query, watch=scatter.watch, context=False).to_native().collect(engine="streaming")
        return answer_of(watched, query, lambda lane: _largest(frame, lane, query), scatter)

    def problems(self) -> list[Problem]:
        """The bad rows, by number."""
        return find_problems(nw.from_native(self.frame, eager_only=True), self.question, self.first_row)

    def left_out(self, centers: Sequence[float]) -> tuple[Powers, ...]:
        """The good rewards of bad rows."""
        return left_out(nw.from_native(self.frame.lazy()), self.question, centers, collect)

    def duplicates(self, n: int) -> int | None:
        """Counted over all batches, by `Batches`."""
        return None


def _largest(frame: pl.DataFrame, lane: Lane, query: Query) -> Largest:
    """The largest weights of every segment, in descending order."""
    keys = list(query.names.segments)
    lazy = weights_of(frame.lazy(), lane, query)
    if keys:
        grouped = lazy.group_by(keys).agg(pl.col("w").top_k(KEPT)).collect(engine="streaming")
        return {as_label(row[:-1]): np.sort(np.asarray(row[-1], dtype=np.float64))[::-1] for row in grouped.rows()}
    if frame.height > 10 * SAMPLE:
        # A threshold from a sample leaves few rows to rank; ranking all of them would cost as much as all the sums.
        few = lazy.filter(pl.col("w") >= _threshold(frame, lane, query)).collect(engine="streaming").to_series()
        if few.len() >= KEPT:
            return {(): np.sort(few.top_k(KEPT).to_numpy())[::-1]}
    top = lazy.top_k(KEPT, by="w").collect(engine="streaming").to_series()
    return {(): np.sort(top.to_numpy())[::-1]}


def _threshold(frame: pl.DataFrame, lane: Lane, query: Query) -> float:
    """A weight that few rows exceed, but as a rule more than `KEPT`: the 40th largest in a sample from all over a long frame."""
    pieces, length = 64, min(SAMPLE, 20 * frame.height // KEPT) // 64
    starts = np.linspace(0, frame.height - length, pieces, dtype=np.int64)
    sample = pl.concat([frame.slice(int(k), length) for k in starts])
    weights: Floats = weights_of(sample.lazy(), lane, query).collect().to_series().to_numpy()
    return float(np.partition(weights, -40)[-40:].min())
