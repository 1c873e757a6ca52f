"""Logs that training cannot read part by part, brought into memory: CSV and JSON lines, databases, Spark, and engines of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from counterpoise.errors import Argument, OptionError
from counterpoise.log.guess import ids_among
from counterpoise.log.lists import DCG
from counterpoise.log.log import Log, LogFields

if TYPE_CHECKING:
    import polars as pl

    from counterpoise.log.question import Question


def in_memory(log: Log, modeled: bool) -> Log:
    """The log with the rows that meet its condition in memory, unless training reads it as it is: arrays, frames and Parquet files."""
    if isinstance(log.data, Mapping) and log.table is None and log.query is None:
        return log
    # not before: a machine may have NumPy only, and then it has arrays only
    from counterpoise.engines.registry import Frames, engine_of

    engine = engine_of(log)
    if isinstance(engine, Frames):
        return log
    if modeled:
        raise OptionError(
            [Argument("model_rewards"), " only works with a log in memory."],
            do="Read the files into a frame, and pass that.",
        )
    if _is_parquet(log.data):
        return log
    # by what may tell that rows move together, they are judged
    ids = () if log.cluster is not None or log.rows_are_independent else tuple(ids_among(engine.columns(log)))
    found = engine.over_rows(_question(log, ids), _together, None)
    return log.of(found).but(where=None, table=None, query=None, external_access=False)


def _is_parquet(data: Any) -> bool:
    """Whether a log is in files of Parquet; those whose names say nothing are taken for some."""
    from counterpoise.readers.connections import is_database
    from counterpoise.readers.files import FORMATS, files_of, is_paths

    if is_database(data) or not is_paths(data):
        return False
    one = isinstance(data, str | PathLike)
    if not one and not data:
        return True
    names = [path.name.lower() for path in files_of(data)]
    return not any(name.endswith(ending) for name in names for ending, kind in FORMATS.items() if kind != "parquet")


def _question(log: Log, ids: tuple[str, ...]) -> Question:
    """A question that reads what training and judging look at."""
    from counterpoise.log.question import AsItIs, Question, RowWeight

    unread: LogFields = {
        "key": (), "model": None, "items": None, "value_samples": None, "model_reward": None, "model_value": None, "baseline": None,
        "slate": None, "position": None, "propensity_of": None, "discount": None,
    }  # fmt: skip
    others = [log.model_reward, log.slate, log.position, None if log.discount == DCG else log.discount, *ids]
    more = tuple(dict.fromkeys(name for name in others if name is not None))
    return Question(log.but(**unread), (), RowWeight(), segment=more, model=AsItIs())


def _together(batches: Iterator[pl.DataFrame]) -> pl.DataFrame:
    import polars as pl
    import polars.selectors as cs

    whole = list(batches)
    return pl.concat(whole).with_columns(cs.decimal().cast(pl.Float64)) if whole else pl.DataFrame()
