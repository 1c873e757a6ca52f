"""Logs in memory, whole or in batches: polars adds them up, but NumPy takes the short ones and the compiled loop the long ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations_with_replacement
from operator import add

import numpy as np
import polars as pl

from counterpoise.engines import compiled
from counterpoise.engines import lists as contiguous
from counterpoise.engines.query import (
    Query,
    as_counted,
    centered,
    is_fine,
    powers_of,
    products_of,
    smoothed_lanes,
    weighted_rewards,
)
from counterpoise.engines.scatter import gram
from counterpoise.engines.streaming import Streaming, good_rows, grouped, prepare, rows_in_order
from counterpoise.engines.summarize import Answer, Largest, OnFrame, Summary, finish, survey
from counterpoise.log.columns import KEY, PROPENSITY, ROWS
from counterpoise.log.good import is_believable
from counterpoise.log.question import Lane, Names, Question
from counterpoise.log.rules import Problem
from counterpoise.log.sequences import LENGTH, made_of
from counterpoise.moments import Floats, LogMoments, Powers
from counterpoise.moments.spread import KEPT, Smoothed
from counterpoise.readers.progress import Report

# -- Short logs in memory: NumPy has added them up before a query engine would have planned its query ------------------

LONGEST = 20_000  # rows; from there on polars is faster
LISTED = 100_000  # rows that are made into lists at a time, which stay in the cache
LISTS = 200_000  # the sums of their many columns are a product of matrices


def suits(frame: pl.DataFrame, question: Question) -> bool:
    """Whether there are so few rows, and the question is so plain, that NumPy is the fastest way."""
    return frame.height <= (LONGEST if question.sequences is None else LISTS) and is_plain(question)


def is_plain(question: Question) -> bool:
    """Whether each sum is one number, over all rows."""
    return not question.segment and question.groups == 1


class Short(OnFrame):
    """The engine for short logs; bad rows are left to the other engine."""

    def aggregate(self, query: Query) -> Answer:
        """The sums, by NumPy."""
        names, question = query.names, query.names.question
        if names.apart:
            return self.inner.aggregate(query)
        frame = good_rows(self.frame, question) if query.only_good else self.frame
        made = made_of(names) if question.makes_rows else ()
        columns = {
            name: frame.get_column(name).to_numpy().astype(np.float64, copy=False)
            for name in (*question.numbers, *made)
        }
        if not _is_clean(columns, names):
            return self.inner.aggregate(query)
        return _answer(columns, query, frame.height)


def _is_clean(columns: Mapping[str, Floats], names: Names) -> bool:
    """Whether every row obeys every rule; a null is a NaN here."""
    with np.errstate(invalid="ignore"):
        question = names.question
        is_unknown = columns[question.known] == 0 if question.known is not None else None
        for name, (part, _) in question.numbers.items():
            fine = is_fine(part, question, columns[name])
            if not (fine if part != "reward" or is_unknown is None else fine | is_unknown).all():
                return False
        if PROPENSITY not in columns:
            return True
        return all(is_believable(columns[name], columns[PROPENSITY]).all() for name in names.targets)


def _answer(columns: dict[str, Floats], query: Query, rows: int) -> Answer:
    names, lanes = query.names, query.names.lanes
    centers = query.centers if query.own is None else tuple(float(query.own[name][0]) for name in names.centers)
    columns |= dict(zip(names.centers, map(np.asarray, centers), strict=True))
    get = columns.__getitem__
    columns |= centered(query, lanes, get)
    columns |= as_counted(query, lanes, get)
    columns |= products_of(lanes, get)
    columns |= weighted_rewards(names, lanes, get)
    numbers: dict[str, float] = {ROWS: float(rows)} | dict(zip(names.centers, centers, strict=True))
    for name in names.rewards:
        numbers[f"{name}_min"] = np.fmin.reduce(columns[name]) if rows else np.nan  # a blank is not one of them
        numbers[f"{name}_max"] = np.fmax.reduce(columns[name]) if rows else np.nan
        if names.question.known is not None:
            numbers[f"{name}_count"] = columns[names.question.known].sum()
    for lane in lanes:
        numbers |= _sums(columns, lane, names)
        if lane.rung and not lane.contrast[1]:
            numbers[lane.peak] = columns[lane.watched].max() if rows else np.nan
        if not lane.contrast[1]:
            numbers[lane.zeros] = float(lane.weight.is_zero(columns[lane.target]).sum())
    for name, (column, order) in powers_of(names, lanes).items():
        numbers[name] = _power_sum(columns[column], order)
        if column not in numbers:  # what is no column of a lane where rows were sampled
            numbers[column] = float(columns[column].sum())
            numbers[names.product(column, column)] = float(columns[column] @ columns[column])
    for lane in smoothed_lanes(names, lanes):
        sums = Smoothed.of(columns[names.weighted(lane)], names.question.smoothings).sums
        numbers |= {names.smoothed(lane, k): total for k, total in enumerate(sums)}

    def largest(lane: Lane) -> Largest:
        return {(): 1.0 + np.sort(columns[lane.watched])[::-1][:KEPT]}

    answer = {name: np.array([total]) for name, total in numbers.items()}
    return Answer(answer, [()] if rows else [], rows, True, largest)


def _power_sum(x: Floats, order: int) -> float:
    square = x * x
    other = x if order == 3 else square
    # for more, BLAS takes several threads, which costs more than it saves where the engine has one on every core
    return float(square @ other if len(x) <= LONGEST else np.einsum("i,i->", square, other))


def _sums(columns: Mapping[str, Floats], lane: Lane, names: Names) -> dict[str, float]:
    """The sums of a lane's columns and of their products."""
    used = list(lane.columns.values())
    rows = np.stack([columns[name] for name in used])
    products = rows @ rows.T if rows.shape[1] <= LONGEST else gram(rows)
    sums = {}
    for i, j in combinations_with_replacement(range(len(used)), 2):
        sums[names.product(used[i], used[j])] = products[i, j]
    return sums | dict(zip(used, rows.sum(axis=1), strict=True))


def survey_frame(frame: pl.DataFrame, question: Question, first_row: int | None = 0) -> Summary:
    """The summary of a frame under internal names, by whichever engine is fastest for its size."""
    embedded = partial(Streaming.of, frame, question, first_row)
    if suits(frame, question):
        return survey(Short(embedded, question, frame), question)
    if compiled.suits(frame, question):
        return survey(compiled.InMemory(embedded, question, frame), question)
    return survey(embedded(), question)


# -- Logs in batches -----------------------------------------------------------------------------------------------------


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
        frame = prepare(batch, self.question, self.rows)
        self.add_summary(survey_frame(frame, self.question, first_row))
        if self.question.log.key:
            self.keys.append(good_rows(frame, self.question).get_column(KEY))

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
        """The moments of all batches; raises an error if any row is bad, unless bad rows may be dropped."""
        return finish(self.summary, self.question, self._duplicates)

    def _duplicates(self, n: int) -> int | None:
        return n - pl.concat(self.keys).n_unique() if self.keys else None


def summarize_batches(
    batches: Iterable[pl.DataFrame], question: Question, *, has_order: bool = True
) -> tuple[LogMoments, ...]:
    """The moments of all batches together, whose rows may come in another order next time."""
    whole = Batches(question, has_order=has_order)
    if question.makes_rows:
        rows = pl.concat(batches)  # the rows of a list may be in several
        of_lists = rows_in_order(rows.lazy(), question).collect()
        moments = summarize_in_order(lambda: of_lists.iter_slices(LISTED), question)
        if moments is None and contiguous.suits(question):
            of_lists = contiguous.in_sequence(of_lists, question)
            moments = summarize_in_order(lambda: of_lists.iter_slices(LISTED), question)
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
            whole.add_summary(survey_frame(grouped(lists, question), question))
            if report is not None:
                report(int(lists.get_column(LENGTH).sum()))
    except contiguous.OutOfOrderError:
        return None
    return whole.finish() if whole.rows else None
