"""What the engines on polars frames share: columns under internal names, and turning a small result into an `Answer`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.engines.lists import collapse
from counterpoise.engines.query import Query, is_clean
from counterpoise.engines.scatter import Scatter
from counterpoise.engines.summarize import Answer, Largest, labels_of, numbers_of
from counterpoise.log.baseline import Feature
from counterpoise.log.expressions import column as exactly
from counterpoise.log.good import is_number
from counterpoise.log.groups import checksum_of, integer_ids, with_groups
from counterpoise.log.lists import LIST
from counterpoise.log.question import GROUP, KEY, PROPENSITY, ROWS, Lane, Question
from counterpoise.log.rules import check_type

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)


def prepare(batch: pl.DataFrame, question: Question, first_row: int) -> pl.DataFrame:
    """A batch under internal names: numbers as float64 (or float32, widened when used), segments, groups, keys."""
    if question.makes_lists:
        # a list has rows anywhere in the batch, which is all there is of the log
        prepared: pl.DataFrame = prepare_lazily(batch.lazy(), question).collect(engine="streaming")
        return prepared
    hashes = {checksum_of(name): integer_ids(batch.get_column(name).cast(pl.String)) for name in question.hashed}
    batch = batch.with_columns(ids.alias(name) for name, ids in hashes.items())
    chosen: list[pl.Series] = list(_columns(batch.get_column, batch.schema, question))
    if question.groups > 1:
        cluster = question.log.cluster
        rows = pl.Series(np.arange(first_row, first_row + batch.height))
        chosen.append((rows if cluster is None else integer_ids(batch.get_column(cluster))).alias(GROUP))
    if question.log.key:
        chosen.append(batch.select(_key(batch.schema, question)).hash_rows().alias(KEY))
    return grouped(pl.DataFrame(chosen), question)


def prepare_lazily(frame: pl.LazyFrame, question: Question) -> pl.LazyFrame:
    """The same for a lazy frame."""
    if question.makes_lists:
        lists: pl.LazyFrame = collapse(nw.from_native(rows_of_lists(frame, question)), question).to_native()
        return grouped(lists, question)
    frame = frame.with_columns(
        exactly(name)
        .cast(pl.String)
        .map_batches(integer_ids, return_dtype=pl.Int64, is_elementwise=True)
        .alias(checksum_of(name))
        for name in question.hashed
    )
    schema = frame.collect_schema()
    chosen: list[pl.Expr] = list(_columns(exactly, schema, question))
    cluster = question.log.cluster
    if cluster is not None:
        ids = exactly(cluster).map_batches(integer_ids, return_dtype=pl.Int64, is_elementwise=True)
        chosen.append(ids.alias(GROUP))
    if question.log.key:
        chosen.append(pl.struct(_key(schema, question)).hash().alias(KEY))
    prepared = frame.select(chosen)
    if question.groups > 1 and cluster is None:
        prepared = prepared.with_row_index(GROUP).with_columns(pl.col(GROUP).cast(pl.Int64))
    return grouped(prepared, question)


def rows_of_lists(frame: pl.LazyFrame, question: Question) -> pl.LazyFrame:
    """The rows that lists are made of, under internal names, with the ids of their lists and clusters."""
    schema, slate = frame.collect_schema(), str(question.log.slate)
    chosen: list[pl.Expr] = list(_columns(exactly, schema, question.of_rows))
    of = exactly(slate).alias(LIST)
    chosen.append(of.fill_nan(None) if schema[slate].is_float() else of)
    if question.groups > 1:
        ids = exactly(question.log.cluster or slate)
        chosen.append(ids.map_batches(integer_ids, return_dtype=pl.Int64, is_elementwise=True).alias(GROUP))
    return frame.select(chosen)


def _columns(get: Callable[[str], Any], schema: pl.Schema, question: Question) -> Iterator[Any]:
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


def _indicator(get: Callable[[str], Any], feature: Feature) -> Any:
    """Where a feature is 1, which it is not where its column is null."""
    if feature.kind == "bucket":
        return (get(checksum_of(feature.column)) % feature.buckets == feature.bucket).fill_null(False)
    if feature.kind == "truth":
        return get(feature.column).fill_null(False)
    return (get(feature.column) == feature.level).fill_null(False)


def grouped(frame: Frame, question: Question) -> Frame:
    """The rows with the ids of clusters hashed to groups, if there are any."""
    hashed: Frame = with_groups(nw.from_native(frame), question.groups).to_native() if question.groups > 1 else frame
    return hashed


def center_of(rewards: pl.Series) -> float:
    """The median of some rewards, which is near the others whatever a broken row may contain."""
    middle = rewards.filter(is_number(rewards)).median()
    return float(middle) if isinstance(middle, float) else 0.0


def with_centers(frame: pl.LazyFrame, query: Query) -> pl.LazyFrame:
    """The rows with each segment's own center, if the query has those."""
    if query.own is None:
        return frame
    keys = list(query.names.segments)
    if not keys:
        return frame.with_columns(pl.lit(query.own[name][0]).alias(name) for name in query.names.centers)
    return frame.join(query.own.lazy(), on=keys, how="left", nulls_equal=True)


def weights_of(frame: pl.LazyFrame, lane: Lane, query: Query) -> pl.LazyFrame:
    """The weights of a lane in the column w, next to the segments, without the rows on which its reward is bad."""
    names, weight = query.names, query.names.question.weight
    t = nw.col(lane.target).cast(nw.Float64)
    p = nw.col(PROPENSITY).cast(nw.Float64) if weight.needs_propensity else None
    rows = nw.from_native(frame)
    if names.apart:
        rows = rows.filter(~nw.col(names.rewards[lane.reward]).is_null())
    return rows.select(*names.segments, w=weight.weight(t, p)).to_native()


def collect(frame: nw.LazyFrame[Any]) -> pl.DataFrame:
    """A small answer."""
    answer: pl.DataFrame = frame.to_native().collect(engine="streaming")
    return answer


def answer_of(sums: pl.DataFrame, query: Query, largest: Callable[[Lane], Largest], scatter: Scatter) -> Answer:
    """The small answer of the aggregate, with the sums of a context baseline."""
    names = query.names
    numbers, labels = scatter.numbers(sums) | numbers_of(sums, names), labels_of(sums, names)
    keys = sums.select(names.segments) if names.segments else None
    rows = int(numbers[ROWS].sum())
    return Answer(numbers, labels if rows else [], rows, is_clean(numbers, names), largest, keys)
