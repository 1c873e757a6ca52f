"""Folds: which part of the log a row belongs to, always the same one, and never by what happened in it."""

from __future__ import annotations

from collections.abc import Sequence

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.log.expressions import columns
from counterpoise.log.groups import integer_ids, with_groups

FOLD = "counterpoise fold"


def row_ids(frame: pl.DataFrame, identity: Sequence[str], first_row: int) -> pl.Series:
    """What tells rows apart: the integer ids of their cluster or key; without either, their number in the log.

    It is never their content: rows of one context and one reward are alike, and would all land in one fold.

    >>> row_ids(pl.DataFrame({"user": [7, 8]}), ["user"], 0).to_list(), row_ids(pl.DataFrame({"user": [7, 8]}), [], 5).to_list()
    ([7, 8], [5, 6])
    """
    if not identity:
        return pl.Series(np.arange(first_row, first_row + frame.height))
    chosen = frame.select(columns(identity))
    if len(identity) == 1:
        return integer_ids(chosen.to_series())
    return integer_ids(chosen.select(pl.concat_str(pl.all().cast(pl.String), separator="\x1f")).to_series())


def folds_of(ids: pl.Series, folds: int) -> NDArray[np.int64]:
    """The fold of every row, by the hash that groups clusters; -1 where a row has no id.

    >>> found = folds_of(pl.Series([1, 2, 3, 1, None]), 2)
    >>> bool(found[0] == found[3]), int(found[4])
    (True, -1)
    """
    hashed = with_groups(nw.from_native(pl.DataFrame({"g": ids.cast(pl.Int64)}), eager_only=True), folds).to_native()
    found: NDArray[np.int64] = hashed.get_column("g").fill_null(-1).cast(pl.Int64).to_numpy()
    return found
