"""A first look at a log, before it is added up: how its rewards spread, how deep its lists are, how its columns are quoted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from counterpoise.engines.query import FIRST, center_of
from counterpoise.engines.registry import engine_of
from counterpoise.engines.sampling import First, Peek
from counterpoise.engines.streaming import prepare
from counterpoise.errors import ColumnError, LogError, OptionError
from counterpoise.log.baseline import Feature, Kind, check_levels, features_of
from counterpoise.log.good import is_number
from counterpoise.log.kinds.lists import DEEPEST, EPISODE, Lists
from counterpoise.log.log import Log
from counterpoise.log.question import Question
from counterpoise.moments import Floats
from counterpoise.weights import Own, Weight

# -- A first look at a log's rewards: some of them, before the pass that adds them all up ------------------------------

ROWS = 100_000  # of which the share below any reward is known to 0.2 %


@dataclass(frozen=True)
class Look:
    """Some of the rewards, and how to write the reward in the SQL of the log."""

    rewards: Floats
    sql: str


def first_look(question: Question) -> Look:
    """The good rewards among 100,000 rows: evenly spaced ones if the log is in memory, and the first ones if it is not."""
    log = question.slim().log
    lean = Question(log, (), Own())  # which needs no propensity
    rows = engine_of(log).take(lean, Peek(ROWS))
    (reward,) = log.reward
    sql = quoting(log)(reward)
    if rows.schema[reward] == pl.Boolean:  # which not every database compares with numbers
        sql = f"(CASE WHEN {sql} THEN 1 ELSE 0 END)"
    rewards = prepare(rows, lean, 0).get_column(lean.names.rewards[0]).cast(pl.Float64)
    return Look(rewards.filter(is_number(rewards)).to_numpy(), sql)


# -- What the positions of a log's lists are: where they begin and end, and whether rewards seem to be theirs ----------


POSITION_ROWS = 2000  # 40 of the longest lists, twice `ENOUGH`
ENOUGH = 20  # lists with the same reward on all rows before it looks like a reward of the whole list


def lists_of(log: Log) -> Lists:
    """The lists or episodes of a log, whose positions are looked at."""
    position = str(log.list_place)
    place, unit = ("position", "ranking") if log.episode is None else ("step", EPISODE)
    number = (
        "Keep the rows at the top of a ranking: everything below depends on what is there."
        if log.episode is None
        else "Number the steps of each episode: its first row is 1, the next one 2, and so on."
    )
    looked_at = Question(log.only().but(reward=position), (), Own())  # as rewards are
    dtype = engine_of(log).take(looked_at, First(1)).schema[position]
    if dtype.is_temporal() or dtype in (pl.String, pl.Categorical, pl.Enum):
        raise ColumnError(
            f"{place} {position!r} must count from 0 or 1 in whole numbers, and holds {dtype}.", do=number
        )
    low, high = engine_of(log).ends(looked_at)
    if low is None or high is None:
        raise LogError(f"the log has no rows with a {place}: {position!r} is null everywhere.")
    if low not in (0.0, 1.0) or high % 1 != 0:
        raise LogError(
            f"{place} {position!r} must count from 0 or 1 in whole numbers; it goes from {low:g} to {high:g}.",
            do=number,
        )
    if high - low >= DEEPEST:
        top = f"{position} <= {DEEPEST + int(low) - 1}"
        raise OptionError(
            f"the longest {unit} has {high - low + 1:,.0f} {place}s, and at most {DEEPEST} can be evaluated.",
            do=f"Look at the {'top of the rankings' if log.episode is None else 'first steps'}: `where={top!r}`.",
        )
    lists = Lists(
        str(log.list_id),
        position,
        str(log.list_meaning),
        log.discount,
        int(low),
        int(high),
        unit,
        float(log.discount_factor or 1.0),
        log.done,
    )
    if lists.depth > 1:
        _check_rewards(log, lists)
    return lists


def _check_rewards(log: Log, lists: Lists) -> None:
    """Refuse a reward of the whole list that is repeated on each of its rows, and would be counted once per row."""
    lean = Question(log.only().but(reward=log.reward[0]), (), Own(), segment=(lists.slate,))
    rows = engine_of(log).take(lean, First(POSITION_ROWS))
    r, slate = log.reward[0], lists.slate
    if r == slate or not rows.height:
        return
    values = rows.select(pl.col(slate), r=pl.col(r).cast(pl.Float64, strict=False))
    ends = values.group_by(slate).agg(low=pl.col("r").min(), high=pl.col("r").max(), n=pl.len()).filter(pl.col("n") > 1)
    same = ends.filter((pl.col("low") == pl.col("high")) & (pl.col("low") != 0))
    # one reward for every step of every episode counts how long it lasts
    counts_steps = lists.is_of_episodes and same.get_column("low").n_unique() == 1
    if same.height >= ENOUGH and ends.filter(pl.col("low") != pl.col("high")).is_empty() and not counts_steps:
        once = f"CASE WHEN {lists.position} = {lists.first} THEN {r} ELSE 0 END"
        raise LogError(
            f"reward {r!r} is the same on all rows of every {lists.unit}, so it seems to be a reward of the whole {lists.unit}, which "
            f"would be counted once for each {lists.place_part}.",
            do=f"Count it once: `reward={once!r}`, with a weight of the whole {lists.unit} "
            f"({'trajectory' if lists.is_of_episodes else 'standard or pseudo_inverse'}).",
        )


# -- How to write a column of a log inside an expression of its SQL ----------------------------------------------------


def quoting(log: Log) -> Callable[[str], str]:
    """What a text is inside an expression: the quoted name of a column, or an expression in brackets.

    >>> quote = quoting(Log({"my p": [0.5]}))
    >>> quote("my p"), quote("p / 2")
    ('"my p"', '(p / 2)')
    """
    if log.data is None or (isinstance(log.data, str) and not log.data):  # a statement for a log elsewhere
        return lambda text: text if text.isidentifier() else f"({text})"
    names = engine_of(log).quoted_columns(log.without_propensities())
    # behind a comment, a bracket would be part of it
    return lambda text: names.get(text) or (f"({text}\n)" if "--" in text else f"({text})")


# -- What the columns of a context baseline are, seen in a log's first rows: numbers around some center, truth values or categories ---


def baseline_features(log: Log, weight: Weight) -> tuple[Feature, ...]:
    """The features of a log's baseline."""
    if not log.baseline:
        return ()
    lean = log.but(cluster=None, key=(), model_reward=None, model_value=None, control=None, groups=None)
    probe = Question(lean, (), weight, features=tuple(Feature(column, "truth") for column in log.baseline))
    rows = engine_of(log).take(probe, First(FIRST))
    for column, how in log.baseline.items():
        values = rows.get_column(column)
        if values.dtype != pl.Null:  # says nothing about the rows that follow
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
        f"baseline {values.name!r} must hold numbers, text or truth values, but holds {dtype}.",
        do="Pass an expression that turns it into one of these.",
    )


def _center(values: pl.Series) -> float:
    return center_of(values.cast(pl.Float64)) if values.dtype.is_numeric() else 0.0
