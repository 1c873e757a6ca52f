"""Context columns that leak the reward: what a simple model of one column alone knows of rows it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from counterpoise.log.good import is_number
from counterpoise.models.folds import folds_of, row_ids

CERTAIN = 0.95  # the share of the variance from which a column is too good to be known before the choice
BINS = 100
FEWEST = 50  # rows from which there is anything to say


@dataclass(frozen=True)
class Leak:
    """A column, and the share of the reward's variance that it explains out of fold."""

    column: str
    r2: float


def leaks(rows: pl.LazyFrame, reward: str, context: Sequence[str]) -> list[Leak]:
    """The context columns that tell the reward almost exactly.

    >>> rows = pl.LazyFrame({"r": [0.0, 1.0] * 100, "paid": ["no", "yes"] * 100, "age": list(range(200))})
    >>> [one.column for one in leaks(rows, "r", ["paid", "age"])]
    ['paid']
    """
    known = [name for name in context if name in rows.collect_schema().names() and name != reward]
    if not known:
        return []
    frame = rows.select(reward, *known).collect().filter(is_number(pl.col(reward).cast(pl.Float64)))
    r = frame.get_column(reward).cast(pl.Float64).to_numpy()
    if len(r) < FEWEST or r.std() <= 0:
        return []
    folds = folds_of(row_ids(frame, (), 0), 2)
    found = (Leak(name, _r2(frame.get_column(name), r, folds)) for name in known)
    return [one for one in found if one.r2 >= CERTAIN]


def _r2(values: pl.Series, r: np.ndarray, folds: np.ndarray) -> float:
    """The out-of-fold R² of the mean reward by bin of the column: by value, or by hundredths of the rows where values are many."""
    if values.dtype.is_nested():
        return 0.0
    codes = values.rank("dense").fill_null(0).cast(pl.Int64).to_numpy()
    if codes.max() > BINS:
        if not (values.dtype.is_numeric() or values.dtype.is_temporal()):
            return 0.0
        codes = (values.rank("average").fill_null(0).to_numpy() * BINS / (len(r) + 1)).astype(np.int64)
    predicted = np.empty(len(r))
    for fold in (0, 1):
        own = folds == fold
        n = np.bincount(codes[~own], minlength=codes.max() + 1)
        total = np.bincount(codes[~own], r[~own], minlength=codes.max() + 1)
        predicted[own] = ((total + r[~own].mean()) / (n + 1))[codes[own]]
    return float(1 - np.square(r - predicted).sum() / np.square(r - r.mean()).sum())
