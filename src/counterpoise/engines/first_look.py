"""A first look at a log, before it is added up: how its rewards spread, how many places its rows have, how its columns are quoted."""

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
from counterpoise.log.kinds import IN_ORDER
from counterpoise.log.log import Log
from counterpoise.log.question import Question
from counterpoise.log.sequences import DEEPEST, Sequences
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


# -- Where the places of rows that count together begin and end, and whether rewards seem to be theirs -----------------


PLACED_ROWS = 2000  # 40 of the longest lists, twice `ENOUGH`
ENOUGH = 20  # lists with the same reward on all rows before it looks like a reward of the whole list


def sequences_of(log: Log) -> Sequences | None:
    """Which rows of a log count together, and in which order, whose places are looked at; None where rows stand on their own."""
    kind = next((kind for kind in IN_ORDER if kind.is_of(log)), None)
    if kind is None:
        return None
    place, part = str(log.list_place), kind.place_part
    looked_at = Question(log.only().but(reward=place), (), Own())  # as rewards are
    dtype = engine_of(log).take(looked_at, First(1)).schema[place]
    if dtype.is_temporal() or dtype in (pl.String, pl.Categorical, pl.Enum):
        raise ColumnError(
            f"{part} {place!r} must count from 0 or 1 in whole numbers, and holds {dtype}.", do=kind.number_them
        )
    low, high = engine_of(log).ends(looked_at)
    if low is None or high is None:
        raise LogError(f"the log has no rows with a {part}: {place!r} is null everywhere.")
    if low not in (0.0, 1.0) or high % 1 != 0:
        raise LogError(
            f"{part} {place!r} must count from 0 or 1 in whole numbers; it goes from {low:g} to {high:g}.",
            do=kind.number_them,
        )
    if high - low >= DEEPEST:
        top = f"{place} <= {DEEPEST + int(low) - 1}"
        raise OptionError(
            f"the longest {kind.unit} has {high - low + 1:,.0f} {part}s, and at most {DEEPEST} can be evaluated.",
            do=f"Look at the {kind.its_top}: `where={top!r}`.",
        )
    sequences = Sequences(
        kind, str(log.list_id), place, str(log.list_meaning), log.discount, int(low), int(high),
        float(log.discount_factor or 1.0), log.done,
    )  # fmt: skip
    if sequences.depth > 1:
        _check_rewards(log, sequences)
    return sequences


def _check_rewards(log: Log, sequences: Sequences) -> None:
    """Refuse a reward of the whole that is repeated on each of its rows, and would be counted once per row."""
    lean = Question(log.only().but(reward=log.reward[0]), (), Own(), segment=(sequences.id,))
    rows = engine_of(log).take(lean, First(PLACED_ROWS))
    r, of, kind = log.reward[0], sequences.id, sequences.kind
    if r == of or not rows.height:
        return
    values = rows.select(pl.col(of), r=pl.col(r).cast(pl.Float64, strict=False))
    ends = values.group_by(of).agg(low=pl.col("r").min(), high=pl.col("r").max(), n=pl.len()).filter(pl.col("n") > 1)
    same = ends.filter((pl.col("low") == pl.col("high")) & (pl.col("low") != 0))
    counts_rows = kind.counts_rows and same.get_column("low").n_unique() == 1
    if same.height >= ENOUGH and ends.filter(pl.col("low") != pl.col("high")).is_empty() and not counts_rows:
        once = f"CASE WHEN {sequences.place} = {sequences.first} THEN {r} ELSE 0 END"
        raise LogError(
            f"reward {r!r} is the same on all rows of every {kind.unit}, so it seems to be a reward of the whole {kind.unit}, which "
            f"would be counted once for each {kind.place_part}.",
            do=f"Count it once: `reward={once!r}`, with a weight of the whole {kind.unit} ({kind.whole_weights}).",
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
