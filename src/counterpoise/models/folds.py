"""What a row's identity decides, never its content: its fold, and the actions that are drawn for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.errors import OptionError
from counterpoise.log.groups import STEP, folds_of, row_ids, uniform
from counterpoise.readers.batches import identity
from counterpoise.readers.policies import Reals

# -- folds -------------------------------------------------------------------------------------------------------------

FOLD = "counterpoise fold"


class HasFolds(Protocol):
    """Which model to fit, and on how many folds."""

    @property
    def folds(self) -> int:
        """How many."""


M = TypeVar("M", bound=HasFolds)


@dataclass(frozen=True)
class CrossFit(Generic[M]):
    """A model whose fits have each seen all folds but one, and predict that one, as readers and engines see it."""

    model: M  # a `Reward` or a `Propensity`
    identity: tuple[str, ...]  # the columns that tell rows apart; none if row numbers do

    @property
    def described(self) -> str:
        """What it is, as text that stays the same from day to day."""
        text = identity(self.model)
        if text is None:
            raise OptionError(
                "the model has something in it that cannot be looked at (a connection or a lock, say), so that a state could not tell it "
                "from another model.",
                do="Pass one of scikit-learn's own.",
            )
        return text

    def folds(self, frame: pl.DataFrame, first_row: int) -> NDArray[np.int64]:
        """The fold of every row of a batch."""
        return folds_of(row_ids(frame, self.identity, first_row), self.model.folds)


# -- draws -------------------------------------------------------------------------------------------------------------


def draw_actions(probabilities: Reals, ids: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
    """So many actions for every row, at equal distances along the row's probabilities from one uniform start.

    Each action is drawn in proportion to its probability, so the average over the draws is unbiased for any number of them; equal
    distances leave it with less variance than independent draws.

    >>> draw_actions(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([1, 2]), 2).tolist()
    [[0, 1], [1, 1]]
    """
    # Two steps, since adding up all of a long row in order is slow: which stretch of actions a point falls into, then which action.
    n, actions = probabilities.shape
    short = max(int((actions / samples) ** 0.5), 1)
    width = next((w for w in range(short, 2 * short) if actions % w == 0), short)
    if actions % width:  # the last stretch ends with actions that have no probability
        probabilities = np.pad(probabilities, ((0, 0), (0, -actions % width)))
    table = np.ascontiguousarray(probabilities).reshape(n, -1, width)
    count = table.shape[1]
    ones = np.ones(width, dtype=table.dtype)
    ends = np.cumsum(table @ ones, axis=1, dtype=np.float64)
    rows, scale = np.arange(n)[:, None], ends[:, -1:]
    starts = uniform((ids.astype(np.uint64) + np.uint64(1)) * STEP)[:, None]
    points = (starts + np.arange(samples)) / samples * scale
    # a single search in all rows, one behind the other
    places = np.searchsorted((ends / scale + rows).reshape(-1), (points / scale + rows).reshape(-1), side="right")
    stretch = np.clip(places.reshape(points.shape) - rows * count, 0, count - 1)
    place = (stretch + rows * count).reshape(-1)
    before = np.where(stretch > 0, ends.reshape(-1)[place.reshape(n, -1) - 1], 0.0)
    each = table.reshape(-1, width)[place]
    # the sums up to every action, by the fastest way there is
    within = each @ np.triu(np.ones((width, width), dtype=table.dtype))
    rest = (points - before).reshape(-1, 1).astype(table.dtype)
    passed = ((within <= rest).astype(table.dtype) @ ones).astype(np.int64)
    over = np.flatnonzero(passed == width)  # by rounding: the last action of the stretch that has a probability
    passed[over] = width - 1 - np.argmax(each[over][:, ::-1] > 0, axis=1)
    return np.asarray(stretch * width + passed.reshape(n, -1))
