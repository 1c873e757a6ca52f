"""A first look at a log's rewards: some of them, before the pass that adds them all up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import polars as pl

from counterpoise.engines.polars_frames import prepare, prepare_lazily
from counterpoise.engines.pushdown import collect
from counterpoise.engines.pushdown import prepare as prepare_there
from counterpoise.engines.query import Frame
from counterpoise.engines.registry import engine_of
from counterpoise.engines.scans import scanned
from counterpoise.log.good import is_number
from counterpoise.log.question import Question
from counterpoise.moments import Floats
from counterpoise.readers import connections, databases, files, frames, spark
from counterpoise.weights import Own

ROWS = 100_000
REWARD = "r0"


@dataclass(frozen=True)
class Look:
    """Some of the rewards, and how to write the reward in the SQL of the log."""

    rewards: Floats
    sql: str


def first_look(question: Question) -> Look:
    """The good rewards among 100,000 rows: evenly spaced ones if the log is in memory, and the first ones if it is not."""
    log = question.log.but(key=(), cluster=None, model_reward=None, control=None)
    lean = Question(log, (), Own())  # which needs no propensity
    data = log.data
    if connections.is_database(data):
        with connections.opened(log) as native:
            frame, names = databases.complete(native, lean)
            return _there(frame, names, lean, native.columns, lambda name: connections.quoted(native, name))
    connections.check_no_database(log)
    if spark.is_spark(data):
        with spark.errors_told():
            frame, names = spark.complete(lean)
            return _there(frame, names, lean, data.columns, lambda name: "`" + name.replace("`", "``") + "`")
    if files.is_paths(data):
        return scanned(lean, lambda scan: _scanned(scan, lean))
    return _in_memory(engine_of(log).frame(data), lean)


def _there(frame: Frame, names: Mapping[str, str], question: Question, columns: Sequence[str], quote: Any) -> Look:
    (reward,) = question.log.reward
    is_boolean = frame.collect_schema()[names.get(reward, reward)] == nw.Boolean
    rows = collect(prepare_there(frame, question, names, ()).select(REWARD).head(ROWS))
    return _look(rows.to_series(), reward, columns, is_boolean, quote)


def _scanned(scan: pl.LazyFrame, question: Question) -> Look:
    (reward,) = question.log.reward
    frame = frames.selected(scan, question)
    rows = prepare_lazily(frame, question).select(REWARD).head(ROWS).collect(engine="streaming")
    is_boolean = frame.collect_schema()[reward] == pl.Boolean
    return _look(rows.to_series(), reward, scan.collect_schema().names(), is_boolean)


def _in_memory(data: Any, question: Question) -> Look:
    (reward,) = question.log.reward
    batch = next(frames.batches(data, question))
    rewards = prepare(batch, question, 0).get_column(REWARD)
    columns = list(data) if isinstance(data, Mapping) else nw.from_native(data).collect_schema().names()
    step = max(-(-rewards.len() // ROWS), 1)
    return _look(rewards.gather_every(step), reward, columns, batch.schema[reward] == pl.Boolean)


def _doubly_quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _look(
    rewards: pl.Series, reward: str, columns: Sequence[str], is_boolean: bool, quote: Any = _doubly_quoted
) -> Look:
    text = quote(reward) if reward in columns else f"({reward}\n)"
    if is_boolean:  # which not every database compares with numbers
        text = f"(CASE WHEN {text} THEN 1 ELSE 0 END)"
    numbers = rewards.cast(pl.Float64)
    return Look(numbers.filter(is_number(numbers)).to_numpy(), text)
