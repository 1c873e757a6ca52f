"""What the positions of a log's lists are: where they begin and end, and whether rewards seem to be theirs."""

from __future__ import annotations

from collections.abc import Iterable

import narwhals as nw
import polars as pl

from counterpoise.engines.pushdown import collect, prepare
from counterpoise.engines.registry import engine_of, first_rows
from counterpoise.engines.scans import scanned
from counterpoise.errors import Argument, Blank, LogError, OptionError
from counterpoise.log.lists import DEEPEST, Lists
from counterpoise.log.log import Log
from counterpoise.log.question import Question
from counterpoise.readers import connections, databases, files, frames, spark
from counterpoise.weights import Own

POSITION = "r0"  # the positions are looked at as rewards are
ROWS = 2000
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
    found = Lists(str(log.slate), position, str(log.propensity_of), log.discount, int(low), int(high))
    if found.depth > 1:
        _check_rewards(log, found)
    return found


def _ends(log: Log, position: str) -> tuple[float | None, float | None]:
    """The smallest and the largest position."""
    lean = Question(_lean(log, reward=position), (), Own())
    wanted = [nw.col(POSITION).min().alias("low"), nw.col(POSITION).max().alias("high")]
    if connections.is_database(log.data):
        with connections.opened(log) as native:
            frame, names = databases.complete(native, lean)
            return _pair(collect(prepare(frame, lean, names).select(*wanted)))
    if spark.is_spark(log.data):
        with spark.errors_told():
            frame, names = spark.complete(lean)
            return _pair(collect(prepare(frame, lean, names).select(*wanted)))
    if files.is_paths(log.data):
        return scanned(lean, lambda scan: _pair(_of_scan(frames.selected(scan, lean), position)))
    return engine_of(log).over_rows(lean, lambda batches: _pair(_together(batches, position)), None)


def _of_scan(frame: pl.LazyFrame, position: str) -> pl.DataFrame:
    column = pl.col(position).cast(pl.Float64).fill_nan(None)
    return frame.select(low=column.min(), high=column.max()).collect(engine="streaming")


def _together(batches: Iterable[pl.DataFrame], position: str) -> pl.DataFrame:
    parts = pl.concat([_of_scan(batch.lazy(), position) for batch in batches])
    return parts.select(pl.col("low").min(), pl.col("high").max())


def _pair(found: pl.DataFrame) -> tuple[float | None, float | None]:
    low, high = found.row(0)
    return (None if low is None else float(low)), (None if high is None else float(high))


def _lean(log: Log, reward: str) -> Log:
    lean = log.but(
        cluster=None, key=(), model_reward=None, model_value=None, control=None, groups=None, propensity=None, context=(), candidates=None
    )
    return lean.but(reward=reward, slate=None, position=None, propensity_of=None, discount=None)


def _check_rewards(log: Log, lists: Lists) -> None:
    """Refuse a reward of the whole list that is repeated on each of its rows, which would be counted as often."""
    lean = Question(_lean(log, reward=log.reward[0]), (), Own(), segment=(lists.slate,))
    rows = first_rows(lean, ROWS)
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
