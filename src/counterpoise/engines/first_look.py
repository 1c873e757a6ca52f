"""A first look at a log, before it is added up: how its rewards spread, how deep its lists are, how its columns are quoted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import polars as pl

from counterpoise.engines.pushdown import collect, prepare_there
from counterpoise.engines.query import Frame, center_of
from counterpoise.engines.registry import columns_of, engine_of, first_rows, over_scan
from counterpoise.engines.streaming import prepare, prepare_lazily
from counterpoise.errors import Argument, Blank, ColumnError, LogError, OptionError
from counterpoise.log.baseline import Feature, Kind, check_levels, features_of
from counterpoise.log.good import is_number
from counterpoise.log.lists import DEEPEST, Lists
from counterpoise.log.log import Log
from counterpoise.log.question import Question
from counterpoise.moments import Floats
from counterpoise.readers import connections, databases, files, frames, spark
from counterpoise.weights import Own

# -- A first look at a log's rewards: some of them, before the pass that adds them all up ------------------------------

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
            return _there(frame, names, lean, data.columns, lambda name: _in_quotes(name, "`"))
    if files.is_paths(data):
        return over_scan(lean, lambda scan: _look_at_scan(scan, lean))
    return _in_memory(engine_of(log).frame(data), lean)


def _there(frame: Frame, names: Mapping[str, str], question: Question, columns: Sequence[str], quote: Any) -> Look:
    (reward,) = question.log.reward
    is_boolean = frame.collect_schema()[names.get(reward, reward)] == nw.Boolean
    rows = collect(prepare_there(frame, question, names, ()).select(REWARD).head(ROWS))
    return _look(rows.to_series(), reward, columns, is_boolean, quote)


def _look_at_scan(scan: pl.LazyFrame, question: Question) -> Look:
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


def _in_quotes(name: str, sign: str = '"') -> str:
    return f"{sign}{name.replace(sign, sign * 2)}{sign}"


def _look(rewards: pl.Series, reward: str, columns: Sequence[str], is_boolean: bool, quote: Any = _in_quotes) -> Look:
    text = quote(reward) if reward in columns else f"({reward}\n)"
    if is_boolean:  # which not every database compares with numbers
        text = f"(CASE WHEN {text} THEN 1 ELSE 0 END)"
    numbers = rewards.cast(pl.Float64)
    return Look(numbers.filter(is_number(numbers)).to_numpy(), text)


# -- What the positions of a log's lists are: where they begin and end, and whether rewards seem to be theirs ----------


POSITION = "r0"  # the positions are looked at as rewards are
POSITION_ROWS = 2000
ENOUGH = 20  # lists with the same reward on all rows, before it seems to be one of the list's


def lists_of(log: Log) -> Lists:
    """The lists of a log, whose positions are looked at."""
    position = str(log.position)
    low, high = _ends(log, position)
    if low is None or high is None:
        raise LogError(f"the log has no rows with a position: {position!r} is null everywhere.")
    if low not in (0.0, 1.0) or high % 1 != 0:
        raise LogError(
            [f"position {position!r} must count from 0 or 1 in whole numbers; it goes from {low:g} to {high:g}. "],
            do="Do not leave out the rows at the top of a list: everything below depends on what is there.",
        )
    if high - low >= DEEPEST:
        raise OptionError(
            f"the longest list has {high - low + 1:,.0f} positions, and at most {DEEPEST} can be evaluated.",
            do=[
                "Look at the top of the lists: ",
                Argument("where", Blank(f"'{position} <= {DEEPEST + int(low) - 1}'")),
                ".",
            ],
        )
    lists = Lists(str(log.slate), position, str(log.propensity_of), log.discount, int(low), int(high))
    if lists.depth > 1:
        _check_rewards(log, lists)
    return lists


def _ends(log: Log, position: str) -> tuple[float | None, float | None]:
    """The smallest and the largest position."""
    lean = Question(_lean(log, reward=position), (), Own())
    wanted = [nw.col(POSITION).min().alias("low"), nw.col(POSITION).max().alias("high")]
    if connections.is_database(log.data):
        with connections.opened(log) as native:
            frame, names = databases.complete(native, lean)
            return _pair(collect(prepare_there(frame, lean, names).select(*wanted)))
    if spark.is_spark(log.data):
        with spark.errors_told():
            frame, names = spark.complete(lean)
            return _pair(collect(prepare_there(frame, lean, names).select(*wanted)))
    if files.is_paths(log.data):
        return over_scan(lean, lambda scan: _pair(_of_scan(frames.selected(scan, lean), position)))
    return engine_of(log).over_rows(lean, lambda batches: _pair(_together(batches, position)), None)


def _of_scan(frame: pl.LazyFrame, position: str) -> pl.DataFrame:
    column = pl.col(position).cast(pl.Float64).fill_nan(None)
    return frame.select(low=column.min(), high=column.max()).collect(engine="streaming")


def _together(batches: Iterable[pl.DataFrame], position: str) -> pl.DataFrame:
    parts = pl.concat([_of_scan(batch.lazy(), position) for batch in batches])
    return parts.select(pl.col("low").min(), pl.col("high").max())


def _pair(ends: pl.DataFrame) -> tuple[float | None, float | None]:
    low, high = ends.row(0)
    return (None if low is None else float(low)), (None if high is None else float(high))


def _lean(log: Log, reward: str) -> Log:
    lean = log.but(
        cluster=None,
        key=(),
        model_reward=None,
        model_value=None,
        control=None,
        groups=None,
        propensity=None,
        context=(),
        candidates=None,
    )
    return lean.but(reward=reward, slate=None, position=None, propensity_of=None, discount=None)


def _check_rewards(log: Log, lists: Lists) -> None:
    """Refuse a reward of the whole list that is repeated on each of its rows, which would be counted as often."""
    lean = Question(_lean(log, reward=log.reward[0]), (), Own(), segment=(lists.slate,))
    rows = first_rows(lean, POSITION_ROWS)
    r, slate = log.reward[0], lists.slate
    if r == slate or not rows.height:
        return
    values = rows.select(pl.col(slate), r=pl.col(r).cast(pl.Float64, strict=False))
    ends = values.group_by(slate).agg(low=pl.col("r").min(), high=pl.col("r").max(), n=pl.len()).filter(pl.col("n") > 1)
    same = ends.filter((pl.col("low") == pl.col("high")) & (pl.col("low") != 0))
    if same.height >= ENOUGH and ends.filter(pl.col("low") != pl.col("high")).is_empty():
        raise LogError(
            f"reward {r!r} is the same on all rows of every list, so it seems to be a reward of the whole list, which would be counted "
            "once for each position.",
            do=["Count it once: ", Argument("reward", Blank(f"'CASE WHEN {lists.position} = {lists.first} THEN {r} ELSE 0 END'")),
                ", with a weight of the whole list (standard or pseudo_inverse)."],
        )  # fmt: skip


# -- How to write a column of a log inside an expression of its SQL ----------------------------------------------------


def quoting(log: Log) -> Callable[[str], str]:
    """What a text is inside an expression: the quoted name of a column, or an expression in brackets.

    >>> quote = quoting(Log({"my p": [0.5]}))
    >>> quote("my p"), quote("p / 2")
    ('"my p"', '(p / 2)')
    """
    if log.data is None or (isinstance(log.data, str) and not log.data):  # a statement is written for a log elsewhere
        return lambda text: text if text.isidentifier() else f"({text})"
    if connections.is_database(log.data):
        with connections.opened(log) as native:
            names = {name: connections.quoted(native, name) for name in native.columns}
        return lambda text: names.get(text, f"({text})")
    if spark.is_spark(log.data):
        return lambda text: _quote(text, log.data.columns, "`")
    columns = columns_of(log.but(propensity=None, logger=None, shares=None))
    return lambda text: _quote(text, columns, '"')


def _quote(text: str, columns: Collection[str], sign: str) -> str:
    return _in_quotes(text, sign) if text in columns else f"({text})"


# -- What the columns of a context baseline are, seen in a log's first rows: numbers around some center, truth values or categories ---


FEATURE_ROWS = 1000


def baseline_features(log: Log, weight: Any) -> tuple[Feature, ...]:
    """The features of a log's baseline."""
    if not log.baseline:
        return ()
    lean = log.but(cluster=None, key=(), model_reward=None, model_value=None, control=None, groups=None)
    probe = Question(lean, (), weight, features=tuple(Feature(column, "truth") for column in log.baseline))
    rows = first_rows(probe, FEATURE_ROWS)
    for column, how in log.baseline.items():
        values = rows.get_column(column)
        if values.dtype != pl.Null:  # which tells nothing of the rows that follow
            check_levels(column, how, _kind(values))
    return tuple(
        feature
        for column, how in log.baseline.items()
        for feature in features_of(column, how, _kind(rows.get_column(column)), _center(rows.get_column(column)))
    )


def _kind(values: pl.Series) -> Kind:
    dtype = values.dtype
    if dtype == pl.Boolean:
        return "truth"
    if dtype.is_numeric() or dtype == pl.Null:
        return "number"
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        return "category"
    raise ColumnError(
        f"baseline {values.name!r} must hold numbers, text or truth values, but holds {dtype}. Pass an expression that makes one of it."
    )


def _center(values: pl.Series) -> float:
    return center_of(values.cast(pl.Float64)) if values.dtype.is_numeric() else 0.0
