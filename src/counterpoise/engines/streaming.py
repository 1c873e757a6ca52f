"""The embedded engine: polars adds up frames, in memory or scanned, so that no row of a file is ever held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.engines.lists import collapse
from counterpoise.engines.query import FIRST, Frame, Query, aggregate, broken_rules, center_of, is_clean, left_out
from counterpoise.engines.scatter import Scatter
from counterpoise.engines.summarize import Answer, Largest, labels_of, numbers_of
from counterpoise.log.baseline import Feature
from counterpoise.log.columns import GROUP, KEY, ROW_NUMBER, ROWS
from counterpoise.log.expressions import PolarsFrame
from counterpoise.log.expressions import column as exactly
from counterpoise.log.groups import checksum_of, integer_ids, with_groups
from counterpoise.log.question import Lane, Question
from counterpoise.log.rules import Problem, check_type, only_good, only_known, rules_of
from counterpoise.log.sequences import LIST
from counterpoise.moments import Floats, Powers
from counterpoise.moments.log_moments import Label, as_label
from counterpoise.moments.spread import KEPT
from counterpoise.readers.progress import Report

# -- A log's columns under internal names --------------------------------------------------------------------------------

PolarsColumn = TypeVar("PolarsColumn", pl.Series, pl.Expr)


def prepare(batch: pl.DataFrame, question: Question, first_row: int) -> pl.DataFrame:
    """A batch under internal names: numbers as float64 (or float32, widened when used), segments, groups, keys."""
    if question.makes_rows:
        # whose rows are anywhere in the batch, which is all there is of the log
        prepared: pl.DataFrame = prepare_lazily(batch.lazy(), question).collect(engine="streaming")
        return prepared
    for name in question.hashed:
        batch = batch.with_columns(integer_ids(batch.get_column(name).cast(pl.String)).alias(checksum_of(name)))
    chosen = list(_columns(batch.get_column, batch.schema, question))
    if question.groups > 1:
        cluster = question.log.cluster
        rows = pl.Series(np.arange(first_row, first_row + batch.height))
        chosen.append((rows if cluster is None else integer_ids(batch.get_column(cluster))).alias(GROUP))
    if question.log.key:
        chosen.append(batch.select(_key(batch.schema, question)).hash_rows().alias(KEY))
    return grouped(_only_known(pl.DataFrame(chosen), question), question)


def prepare_lazily(frame: pl.LazyFrame, question: Question) -> pl.LazyFrame:
    """The same for a lazy frame."""
    if question.makes_rows:
        made: pl.LazyFrame = collapse(nw.from_native(rows_in_order(frame, question)), question).to_native()
        return grouped(made, question)
    frame = frame.with_columns(
        exactly(name)
        .cast(pl.String)
        .map_batches(integer_ids, return_dtype=pl.Int64, is_elementwise=True)
        .alias(checksum_of(name))
        for name in question.hashed
    )
    schema = frame.collect_schema()
    chosen = list(_columns(exactly, schema, question))
    cluster = question.log.cluster
    if cluster is not None:
        ids = exactly(cluster).map_batches(integer_ids, return_dtype=pl.Int64, is_elementwise=True)
        chosen.append(ids.alias(GROUP))
    if question.log.key:
        chosen.append(pl.struct(_key(schema, question)).hash().alias(KEY))
    prepared = _only_known(frame.select(chosen), question)
    if question.groups > 1 and cluster is None:
        prepared = prepared.with_row_index(GROUP).with_columns(pl.col(GROUP).cast(pl.Int64))
    return grouped(prepared, question)


def rows_in_order(frame: pl.LazyFrame, question: Question) -> pl.LazyFrame:
    """The rows that others are made of, under internal names, with the ids of what they belong to and of clusters."""
    schema, whole = frame.collect_schema(), str(question.log.list_id)
    chosen = list(_columns(exactly, schema, question.of_rows))
    of = exactly(whole).alias(LIST)
    chosen.append(of.fill_nan(None) if schema[whole].is_float() else of)
    if question.groups > 1:
        ids = exactly(question.log.cluster or whole)
        chosen.append(ids.map_batches(integer_ids, return_dtype=pl.Int64, is_elementwise=True).alias(GROUP))
    return frame.select(chosen)


def _columns(get: Callable[[str], PolarsColumn], schema: pl.Schema, question: Question) -> Iterator[PolarsColumn]:
    """Numbers and segments, as series or expressions, whichever `get` returns."""
    for name, feature in zip(question.names.features, question.features, strict=True):
        if not feature.is_number:
            yield _indicator(get, feature).cast(pl.Float64).alias(name)
    features = dict(zip(question.names.features, question.features, strict=True))
    for name, (part, column) in question.numbers.items():
        if name in features and not features[name].is_number:
            continue
        dtype = schema[column]
        if not dtype.is_numeric():
            check_type(part, column, nw.from_native(pl.DataFrame(schema={column: dtype})).schema[column])
        value = get(column)
        is_kept = dtype == pl.Float64 or (dtype == pl.Float32 and isinstance(value, pl.Series))
        yield (value if is_kept else value.cast(pl.Float64)).alias(name)
    for name, column in zip(question.names.segments, question.segment, strict=True):
        value = get(column).alias(name)
        yield value.fill_nan(None) if schema[column].is_float() else value


def _key(schema: pl.Schema, question: Question) -> list[pl.Expr]:
    """The columns of a row's key; NaN counts as missing."""
    return [exactly(name).fill_nan(None) if schema[name].is_float() else exactly(name) for name in question.log.key]


def _indicator(get: Callable[[str], PolarsColumn], feature: Feature) -> PolarsColumn:
    """Where a feature is 1; null counts as 0."""
    if feature.kind == "bucket":
        return (get(checksum_of(feature.column)) % feature.buckets == feature.bucket).fill_null(False)
    if feature.kind == "truth":
        return get(feature.column).fill_null(False)
    return get(feature.column).eq(feature.level).fill_null(False)


def _only_known(frame: PolarsFrame, question: Question) -> PolarsFrame:
    """The rows, without rewards that are not known."""
    if question.known is None:
        return frame
    known: PolarsFrame = only_known(nw.from_native(frame), question).to_native()
    return known


def grouped(frame: PolarsFrame, question: Question) -> PolarsFrame:
    """The rows with the ids of clusters hashed to groups, if there are any."""
    if question.groups == 1:
        return frame
    hashed: PolarsFrame = with_groups(nw.from_native(frame), question.groups).to_native()
    return hashed


def good_rows(frame: PolarsFrame, question: Question) -> PolarsFrame:
    """The rows that break no rule."""
    good: PolarsFrame = only_good(nw.from_native(frame), question).to_native()
    return good


# -- Watches a stream: it sees every value in passing, and remembers the largest ones exactly --------------------------

PENDING = 20 * KEPT  # rows held before the largest are chosen among them


class Watcher:
    """Remembers the `KEPT` largest values of a column in every segment, while an engine streams pieces of it through `see`.

    Ranking them in a second query would read the file twice. The threshold below which a value cannot be among the largest rises
    quickly, so most rows cost only one comparison. Several threads may call it.
    """

    def __init__(self, column: str, keys: list[str]) -> None:
        self._column, self._keys = column, keys
        self._lock = Lock()
        self._threshold = -np.inf
        self._kept: list[Floats] = []
        self._least: pl.DataFrame | None = None  # by segment
        self._rows: list[pl.DataFrame] = []
        self._held = self._most = 0

    def see(self, piece: pl.DataFrame) -> None:
        """Look at one more piece."""
        if self._keys:
            self._see_segments(piece.select(*self._keys, x=self._column))
        else:
            self._see(piece.get_column(self._column).to_numpy())

    def largest(self) -> dict[Label, Floats]:
        """The largest values of each segment, in descending order."""
        if not self._keys:
            return {(): np.sort(np.concatenate([np.empty(0), *self._kept]))[::-1][:KEPT]}
        largest: dict[Label, Floats] = {}
        for row in self._ranks().rows() if self._rows else []:
            label = as_label(row[:-1])
            values = np.concatenate([largest.get(label, np.empty(0)), np.asarray(row[-1], dtype=np.float64)])
            largest[label] = np.sort(values)[::-1][:KEPT]
        return largest

    def _see(self, x: Floats) -> None:
        few = x[x > self._threshold]  # one equal to the least of those kept would change nothing
        with self._lock:
            if len(few):
                self._kept.append(few)
                self._held += len(few)
            if self._held > PENDING:
                top = np.partition(np.concatenate(self._kept), -KEPT)[-KEPT:]
                self._kept, self._held, self._threshold = [top], KEPT, float(top.min())

    def _see_segments(self, piece: pl.DataFrame) -> None:
        few, least = piece.filter(pl.col("x").is_not_nan()), self._least
        if least is not None:
            few = few.join(least, on=self._keys, how="left", nulls_equal=True)
            few = few.filter(pl.col("least").is_null() | (pl.col("x") > pl.col("least"))).drop("least")
        with self._lock:
            self._rows.append(few)
            self._held += few.height
            if self._held > max(PENDING, 2 * self._most):  # which grows with what is kept: ranking stays a small part
                ranked = self._ranks()
                self._least = ranked.filter(pl.col("x").list.len() == KEPT).select(
                    *self._keys, least=pl.col("x").list.min()
                )
                self._rows = [ranked.explode("x")]
                self._held = self._most = self._rows[0].height

    def _ranks(self) -> pl.DataFrame:
        return pl.concat(self._rows).group_by(self._keys).agg(pl.col("x").top_k(KEPT))


# -- The engine --------------------------------------------------------------------------------------------------------------


@dataclass
class Streaming:
    """The engine for a frame that can be read again, under internal names."""

    frame: pl.LazyFrame
    question: Question
    report: Report | None = None
    first_row: int | None = 0  # the number of the first row; None where rows have no numbers
    skips_bad_rows = False

    @classmethod
    def of(cls, frame: pl.DataFrame, question: Question, first_row: int | None = 0) -> Streaming:
        """The engine for a frame in memory, whose numbers may be float32."""
        return cls(frame.lazy().with_columns(pl.col(*question.numbers).cast(pl.Float64)), question, None, first_row)

    def centers(self, *, only_good: bool) -> tuple[float, ...]:
        """The median of the first rewards."""
        frame = good_rows(self.frame, self.question) if only_good else self.frame
        rewards = list(self.question.names.rewards)
        first = frame.select(rewards).head(FIRST).collect(engine="streaming")
        return tuple(center_of(first.get_column(name)) for name in rewards)

    def aggregate(self, query: Query) -> Answer:
        """The sums, with the largest weights remembered in passing."""
        names = query.names
        watched = [lane.watched for lane in names.lanes if not (lane.contrast[1] or lane.rung)]
        watchers = {column: Watcher(column, list(names.segments)) for column in watched}
        scatter = Scatter(names)
        report, lock = self.report, Lock()
        self.report = None  # rows are reported once, however often they are read

        def see(piece: pl.DataFrame) -> pl.DataFrame:
            for watcher in watchers.values():
                watcher.see(piece)
            scatter.see(piece)
            if report is not None:
                with lock:  # the engine calls from several threads
                    report(piece.height)
            return piece

        def watch(rows: Frame) -> Frame:
            # A whole piece at a time: a function inside an expression costs a tenth of the query, whatever it does.
            native: pl.LazyFrame = rows.to_native()
            return nw.from_native(native.map_batches(see, streamable=True, validate_output_schema=False))

        def largest(lane: Lane) -> Largest:
            return {label: 1.0 + u for label, u in watchers[lane.watched].largest().items()}

        frame = _with_centers(good_rows(self.frame, self.question) if query.only_good else self.frame, query)
        # polars adds up truth values as they are, in no time
        whole = aggregate(nw.from_native(frame), query, watch=watch, counted=lambda condition: condition, context=False)
        return _answer_of(whole.to_native().collect(engine="streaming"), query, largest, scatter)

    def problems(self) -> list[Problem]:
        """Which rules are broken, how often, and where first: two more passes, neither of which keeps rows."""
        rules = rules_of(self.question)
        if (
            self.question.makes_rows
        ):  # which come in another order in every pass: an id is taken in the pass that counts
            return broken_rules(nw.from_native(self.frame), rules, _collect)
        bad = {f"rule{k}": ~rule.holds.fill_null(False) for k, rule in enumerate(rules)}
        indexed = self.frame.with_row_index(ROW_NUMBER, self.first_row or 0)
        rows = nw.from_native(indexed).with_columns(**bad).to_native()
        counts = rows.select(
            *(pl.col(name).sum().alias(f"{name}_count") for name in bad),
            *(pl.when(pl.col(name)).then(pl.col(ROW_NUMBER)).min().alias(f"{name}_row") for name in bad),
        )
        answer = counts.collect(engine="streaming").row(0, named=True)
        first = {answer[f"rule{k}_row"] for k in range(len(rules))} - {None}
        shown = rows.filter(pl.col(ROW_NUMBER).is_in(sorted(first))).collect(engine="streaming")
        problems = []
        for k, rule in enumerate(rules):
            count, row = answer[f"rule{k}_count"], answer[f"rule{k}_row"]
            if count:
                value = shown.filter(pl.col(ROW_NUMBER) == row).get_column(rule.shows).item()
                problems.append(Problem(rule, int(count), None if self.first_row is None else int(row), value))
        return problems

    def left_out(self, centers: Sequence[float]) -> tuple[Powers, ...]:
        """The good rewards of bad rows: one more pass."""
        return left_out(nw.from_native(self.frame), self.question, centers, _collect)

    def duplicates(self, n: int) -> int | None:
        """How many good rows have the key of another row; this is the one query that needs memory for every distinct key."""
        if not self.question.log.key:
            return None
        return n - int(
            good_rows(self.frame, self.question).select(pl.col(KEY).n_unique()).collect(engine="streaming").item()
        )


def _with_centers(frame: pl.LazyFrame, query: Query) -> pl.LazyFrame:
    """The rows with each segment's own center, if the query has those."""
    if query.own is None:
        return frame
    keys = list(query.names.segments)
    if not keys:
        return frame.with_columns(pl.lit(query.own[name][0]).alias(name) for name in query.names.centers)
    return frame.join(query.own.lazy(), on=keys, how="left", nulls_equal=True)


def _collect(frame: Frame) -> pl.DataFrame:
    answer: pl.DataFrame = frame.to_native().collect(engine="streaming")
    return answer


def _answer_of(sums: pl.DataFrame, query: Query, largest: Callable[[Lane], Largest], scatter: Scatter) -> Answer:
    """The small answer of the aggregate, with the sums of a context baseline."""
    names = query.names
    numbers, labels = scatter.numbers(sums) | numbers_of(sums, names), labels_of(sums, names)
    keys = sums.select(names.segments) if names.segments else None
    rows = int(numbers[ROWS].sum())
    return Answer(numbers, labels if rows else [], rows, is_clean(numbers, names), largest, keys)
