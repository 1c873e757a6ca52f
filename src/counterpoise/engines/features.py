"""What the columns of a context baseline are, seen in a log's first rows: numbers around some center, truth values or categories."""

from __future__ import annotations

from typing import Any

import polars as pl

from counterpoise.engines.polars_frames import center_of
from counterpoise.engines.registry import first_rows
from counterpoise.errors import ColumnError
from counterpoise.log.baseline import Feature, Kind, check_levels, features_of
from counterpoise.log.log import Log
from counterpoise.log.question import Question

ROWS = 1000


def baseline_features(log: Log, weight: Any) -> tuple[Feature, ...]:
    """The features of a log's baseline."""
    if not log.baseline:
        return ()
    lean = log.but(cluster=None, key=(), model_reward=None, model_value=None, control=None, groups=None)
    probe = Question(lean, (), weight, features=tuple(Feature(column, "truth") for column in log.baseline))
    rows = first_rows(probe, ROWS)
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
