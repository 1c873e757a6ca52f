"""What every engine can do, and the one way to turn its answers into a log's moments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Protocol

import numpy as np
import polars as pl

from counterpoise.engines.query import (
    FIRST,
    Numbers,
    Query,
    center_of,
    is_well_centered,
    known_of,
    moments_of,
    places_of,
    rows_of,
    smoothed_lanes,
    smoothed_of,
    spread_of,
    total_of,
)
from counterpoise.errors import LogError, OptionError
from counterpoise.log.question import Lane, Names, Question
from counterpoise.log.rules import Problem, all_bad, refuse
from counterpoise.moments import Floats, LogMoments, Powers
from counterpoise.moments.log_moments import Label, as_label, in_order
from counterpoise.moments.spread import EMPTY, NOTHING, EachTail
from counterpoise.moments.weighed import Weighed
from counterpoise.weights.weight import Balanced

MOST_SEGMENTS = 1_000  # unless the log says otherwise
MOST_SUMS = 40_000_000  # of products, by segment and group: a third of a gigabyte for every contrast
_IS_NAME = re.compile(r"[A-Za-z_]\w*")  # which SQL takes without quotes

Largest = Mapping[Label, Floats]  # segment → its largest weights in descending order


@dataclass(frozen=True)
class Answer:
    """The sums of one query by segment and group, and how to rank the largest weights of a lane."""

    numbers: Numbers
    labels: Sequence[Label]
    rows: int  # that were looked at, bad ones included
    is_clean: bool
    largest: Callable[[Lane], Largest]
    keys: pl.DataFrame | None = None  # the segments' columns, where there are any


class Engine(Protocol):
    """The rows of one question, wherever they are: adds them up, ranks the largest weights (in the answer), finds the bad ones."""

    skips_bad_rows: bool  # whether every answer is of good rows only

    def centers(self, *, only_good: bool) -> tuple[float, ...]:
        """Something near the middle of each reward, from a few rows."""

    def aggregate(self, query: Query) -> Answer:
        """The sums that a query asks for."""

    def problems(self) -> list[Problem]:
        """Which rules are broken, how often, and where first."""

    def left_out(self, centers: Sequence[float]) -> tuple[Powers, ...]:
        """The good rewards of bad rows, around these centers."""

    def duplicates(self, n: int) -> int | None:
        """How many of `n` good rows have the key of another; None if no key was named."""


@dataclass
class Shortcut:
    """An engine with a faster way to add up plain logs, which leaves everything else to the engine it wraps."""

    make_inner: Callable[[], Engine]
    question: Question
    skips_bad_rows = False

    @cached_property
    def inner(self) -> Engine:
        """The engine that it wraps, made when it is needed."""
        return self.make_inner()

    def centers(self, *, only_good: bool) -> tuple[float, ...]:
        """The median of some rewards."""
        return self.inner.centers(only_good=only_good)

    def problems(self) -> list[Problem]:
        """The bad rows, by number."""
        return self.inner.problems()

    def left_out(self, centers: Sequence[float]) -> tuple[Powers, ...]:
        """The good rewards of bad rows."""
        return self.inner.left_out(centers)

    def duplicates(self, n: int) -> int | None:
        """Those that the wrapped engine counts."""
        return self.inner.duplicates(n)


@dataclass
class OnFrame(Shortcut):
    """A shortcut for a frame in memory, whose first rows are at hand without a query."""

    frame: pl.DataFrame

    def centers(self, *, only_good: bool) -> tuple[float, ...]:
        """The median of some rewards."""
        if only_good:
            return self.inner.centers(only_good=True)
        return tuple(center_of(self.frame.get_column(name).head(FIRST)) for name in self.question.names.rewards)


@dataclass(frozen=True)
class Summary:
    """What we know about some rows: the moments of each reward's good ones, and the problems of the others."""

    moments: tuple[LogMoments, ...]  # one per reward; none where bad rows are an error, or all are bad
    problems: tuple[Problem, ...]
    rows: int
    left_out: tuple[Powers, ...] = ()  # the good rewards of bad rows, if there are any


def summarize(engine: Engine, question: Question) -> tuple[LogMoments, ...]:
    """The moments of a log, one for each reward; raises an error if any row is bad, unless bad rows are to be dropped."""
    return finish(survey(engine, question), question, engine.duplicates)


def survey(engine: Engine, question: Question) -> Summary:
    """One pass over clean rows; more if some are bad, or if rewards lie far from where they began."""
    is_apart = len(question.log.reward) > 1 and question.sequences is None
    names = Names(question, apart=engine.skips_bad_rows and is_apart)
    query = Query(names, engine.centers(only_good=False))
    answer = engine.aggregate(query)
    problems: list[Problem] = []
    # nothing to report
    is_settled = engine.skips_bad_rows and question.log.drop_bad_rows and bool(answer.labels)
    if answer.rows and not answer.is_clean and not is_settled:
        problems = engine.problems()
    if problems and not question.log.drop_bad_rows:
        return Summary((), tuple(problems), answer.rows)
    rows = answer.rows
    left_out = engine.left_out(query.centers) if rows and not answer.is_clean else ()
    if problems and not engine.skips_bad_rows:
        names = Names(question, apart=is_apart)
        query = Query(names, engine.centers(only_good=True), only_good=True)
        answer = engine.aggregate(query)
    if not answer.labels:
        return Summary((), tuple(problems), rows, left_out)
    check_segments(question, answer.labels, answer.keys, in_database=engine.skips_bad_rows)
    labels = [()] * len(answer.labels) if question.is_binned else answer.labels
    if not is_well_centered(answer.numbers, labels, names):
        # segments with very different rewards, or first rows unlike the rest: center every segment on its own mean
        query = query.around(_own_centers(answer, query))
        answer = engine.aggregate(query)
    return Summary(assemble(answer, query, rows), tuple(problems), rows, left_out)


def finish(
    summary: Summary, question: Question, duplicates: Callable[[int], int | None] = lambda n: None
) -> tuple[LogMoments, ...]:
    """The moments, or the error that says what is wrong with the rows."""
    if not summary.rows:
        raise LogError("the log has no rows.")
    if summary.problems and not question.log.drop_bad_rows:
        refuse(summary.problems, summary.rows)
    if not summary.moments or any(moments.n == 0 for moments in summary.moments):
        raise all_bad(summary.problems, summary.rows)
    check_segments(question, summary.moments[0].segments)  # of all batches together
    counted = duplicates(summary.moments[0].n)
    left_out = summary.left_out or (NOTHING,) * len(summary.moments)
    known = (replace(moments, dropped=summary.rows - moments.n, duplicates=counted) for moments in summary.moments)
    return tuple(
        finished(replace(moments, left_out=own), question) for moments, own in zip(known, left_out, strict=True)
    )


def finished(moments: LogMoments, question: Question) -> LogMoments:
    """The moments with what the log says beside its rows."""
    return reduce(lambda known, kind: kind.finished(known, question), question.kinds, moments)


def check_segments(
    question: Question, labels: Iterable[Label], keys: pl.DataFrame | None = None, *, in_database: bool = False
) -> None:
    """Ask before answering for thousands of segments, and refuse more sums than memory is likely to hold.

    `keys` are the segments' columns, if at hand: their types tell us what to propose.
    """
    if question.is_binned or not question.segment:
        return
    columns = question.segment
    if isinstance(question.weight, Balanced) and question.weight.is_by_policy(columns):
        columns = columns[:-1]  # which nobody asked for
    is_by_all = len(columns) == len(question.segment)
    count = len(set(labels if is_by_all else [label[: len(columns)] for label in labels]))
    limit = question.log.max_segments
    if count > (limit or MOST_SEGMENTS):
        segment = f"`segment={columns[0]!r}`" if len(columns) == 1 else "`segment=`"
        why = f"more than {MOST_SEGMENTS:,} need `max_segments=`" if limit is None else f"{limit:,} may be made"
        raise OptionError(
            f"{segment} makes {count:,} segments, and {why}.",
            do=f"Pass `max_segments={count}` to get them all, or {_coarser(columns, keys, in_database)}",
        )
    numbers = count * question.groups * len(question.moment_columns) ** 2
    if question.groups > 1 and numbers > MOST_SUMS:
        groups = MOST_SUMS // (count * len(question.moment_columns) ** 2)
        raise OptionError(
            f"{count:,} segments in {question.groups:,} groups of clusters make {numbers:,} sums, and {MOST_SUMS:,} are the most we keep.",
            do=f"Pass `groups={groups}`, or name a column with fewer values as `segment=`."
            if groups >= 20
            else "Name a column with fewer values as `segment=`.",
        )


def _coarser(columns: Sequence[str], keys: pl.DataFrame | None, in_database: bool) -> str:
    """What to segment by instead: the week or the day, for dates and times."""
    for column, dtype in [] if keys is None else zip(columns, keys.dtypes, strict=False):
        if dtype.is_temporal() and _IS_NAME.fullmatch(column):
            by_week = f"date_trunc('week', {column})" if in_database else f"strftime({column}, '%G-W%V')"
            week, day = f"`segment={by_week!r}`", f"`segment='cast({column} as date)'`"
            return f"the week: {week}." if dtype == pl.Date else f"the week or the day: {week} or {day}."
    return "name a column with fewer values as `segment=`."


def _own_centers(answer: Answer, query: Query) -> pl.DataFrame:
    """Each segment's columns and mean rewards, from sums around centers that were too far away for anything more."""
    names = query.names
    at, count = places_of(answer.labels)
    means = {}
    for j, center in enumerate(names.centers):
        n = total_of(known_of(answer.numbers, names, j), at, count)
        total = total_of(answer.numbers[names.shifted[j]], at, count)
        means[center] = query.centers[j] + total / np.maximum(n, 1)
    own = pl.DataFrame(means)
    if answer.keys is None:
        return own
    first = pl.Series(np.unique(at, return_index=True)[1])
    return answer.keys[first].hstack(own)


def assemble(answer: Answer, query: Query, rows: int) -> tuple[LogMoments, ...]:
    """The moments of each reward, from the sums and the largest weights."""
    question, rewards = query.names.question, range(len(query.names.rewards))
    if len(question.rungs) == 1:
        return tuple(_of_reward(answer, query, j, rows) for j in rewards)
    ladders = [[_of_reward(answer, query, j, rows, rung) for rung in range(len(question.rungs))] for j in rewards]
    weight = Weighed.of(question.weight)
    return tuple(replace(ladder[0], weight=weight, ladder=tuple(ladder)) for ladder in ladders)


def _of_reward(answer: Answer, query: Query, reward: int, rows: int, rung: int = 0) -> LogMoments:
    names, numbers, question = query.names, answer.numbers, query.names.question
    segments = in_order(answer.labels)
    place = dict(zip(segments, range(len(segments)), strict=True))
    at = np.fromiter(map(place.__getitem__, answer.labels), np.int64, len(answer.labels))
    lowest, highest = np.full(len(segments), np.inf), np.full(len(segments), -np.inf)
    np.fmin.at(lowest, at, numbers[f"{names.rewards[reward]}_min"])
    np.fmax.at(highest, at, numbers[f"{names.rewards[reward]}_max"])
    lowest, highest = (np.where(np.isinf(ends), np.nan, ends) for ends in (lowest, highest))  # where no reward is known
    tails = {}
    for lane in names.lanes_of(reward, rung):
        if not lane.contrast[1]:
            zeros = total_of(numbers[lane.zeros], at, len(segments))
            largest = _peaks(answer, lane) if rung else answer.largest(lane)
            none = EMPTY.weights
            weights = [largest.get(label, none) for label in segments]
            tails[lane.contrast] = EachTail(weights, zeros.astype(np.int64).tolist())
    center = np.full((len(segments), 1), query.centers[reward])
    if query.own is not None:
        center[at, 0] = np.nan_to_num(numbers[names.centers[reward]])
    moments = moments_of(numbers, names, reward, center, at, len(segments), rung)
    count = rows_of(numbers, names, reward)
    known = known_of(numbers, names, reward)
    rewards = spread_of(numbers, names, names.shifted[reward], known, center[:, 0], at)
    excess = {
        lane.contrast: spread_of(numbers, names, lane.excess, count, np.zeros(len(segments)), at)
        for lane in names.lanes_of(reward, rung)
    }
    smoothed = {
        lane.contrast: smoothed_of(numbers, names, lane, at, len(segments))
        for lane in smoothed_lanes(names, names.lanes_of(reward, rung))
    }
    divisor = names.lanes_of(reward, rung)[0].divisor
    return LogMoments(
        moments,
        tails,
        excess,
        segments,
        lowest,
        highest,
        rewards,
        question.segment,
        question.log.cluster,
        tuple(question.control.items()),
        dropped=rows - int(count.sum()),
        weight=Weighed.of(question.rungs[rung]),
        smoothed=smoothed,
        features=tuple((feature.name, feature.center) for feature in question.features),
        per=spread_of(numbers, names, divisor, count, np.zeros(len(segments)), at) if divisor else (),
    )


def _peaks(answer: Answer, lane: Lane) -> Largest:
    """The largest weight of every segment, from the sums themselves: ranking those of every rung would take a query for each."""
    largest: dict[Label, Floats] = {}
    for label, peak in zip(answer.labels, 1.0 + answer.numbers[lane.peak], strict=True):
        if not np.isnan(peak):
            largest[label] = np.maximum(largest.get(label, -np.inf), [peak])
    return largest


def numbers_of(answer: pl.DataFrame, names: Names) -> dict[str, Floats]:
    """The answer's columns as float64, with nan for null; some engines' sums are decimals."""
    wanted = [name for name in answer.columns if name not in names.segments]
    return {name: answer.get_column(name).cast(pl.Float64).to_numpy() for name in wanted}


def labels_of(answer: pl.DataFrame, names: Names) -> list[Label]:
    """The segment of each of the answer's rows."""
    keys = list(names.segments)
    if not keys:
        return [()] * answer.height
    rows: list[Label] = answer.select(keys).rows()
    if all(dtype.is_integer() or dtype in (pl.String, pl.Boolean) for dtype in answer.select(keys).dtypes):
        return rows  # which JSON can store as they are
    if names.question.groups == 1 or any(dtype.is_nested() for dtype in answer.select(keys).dtypes):
        return [as_label(row) for row in rows]
    known = {row: as_label(row) for row in set(rows)}  # by group, a segment has many rows
    return [known[row] for row in rows]
