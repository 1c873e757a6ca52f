"""The rows that a reward model can learn from, and what each counts."""

from __future__ import annotations

import numpy as np
import polars as pl

from counterpoise.log.good import is_number
from counterpoise.log.question import Question
from counterpoise.models.folds import FOLD
from counterpoise.moments import Floats


def good_rows(rows: pl.DataFrame, question: Question) -> pl.DataFrame:
    """The rows that a model can learn from."""
    reward = rows.get_column(question.log.reward[0]).cast(pl.Float64)
    known = rows.get_column(str(question.log.action)).is_not_null() & (rows.get_column(FOLD) >= 0)
    return rows.filter(is_number(reward).fill_null(False) & known)


def row_weights(rows: pl.DataFrame, question: Question) -> Floats:
    """w²(1 − p): the part of a row in the variance of the doubly robust estimate, given what the model gets wrong there."""
    p = rows.get_column(str(question.log.propensity)).cast(pl.Float64).to_numpy()
    t = rows.get_column(question.targets[0].column).cast(pl.Float64).to_numpy()
    with np.errstate(all="ignore"):
        found = np.square(t / p) * (1.0 - p)
    return np.where(np.isfinite(found), found, 0.0) + 1e-9  # no fold may be left without weight
