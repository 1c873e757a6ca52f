"""What the identity of a row decides, always alike and never by what happened in it: its fold, and the actions that are drawn for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.errors import OptionError
from counterpoise.log.expressions import columns
from counterpoise.log.groups import integer_ids, with_groups
from counterpoise.log.identity import identity
from counterpoise.moments import Floats

# -- folds -------------------------------------------------------------------------------------------------------------

FOLD = "counterpoise fold"


@dataclass(frozen=True)
class CrossFit:
    """A model whose fits have each seen all folds but one, and predict that one: what readers and engines know of it."""

    model: Any  # a `Reward` or a `Propensity`
    identity: tuple[str, ...]  # the columns that tell rows apart; none, where their number does

    @property
    def described(self) -> str:
        """What it is, as a text that stays the same tomorrow."""
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


def row_ids(frame: pl.DataFrame, names: Sequence[str], first_row: int) -> pl.Series:
    """What tells rows apart: the integer ids of their cluster or key; without either, their number in the log.

    It is never their content: rows of one context and one reward are alike, and would all land in one fold.

    >>> row_ids(pl.DataFrame({"user": [7, 8]}), ["user"], 0).to_list(), row_ids(pl.DataFrame({"user": [7, 8]}), [], 5).to_list()
    ([7, 8], [5, 6])
    """
    if not names:
        return pl.Series(np.arange(first_row, first_row + frame.height))
    chosen = frame.select(columns(names))
    if len(names) == 1:
        return integer_ids(chosen.to_series())
    return integer_ids(chosen.select(pl.concat_str(pl.all().cast(pl.String), separator="\x1f")).to_series())


def folds_of(ids: pl.Series, folds: int) -> NDArray[np.int64]:
    """The fold of every row, by the hash that groups clusters; -1 where a row has no id.

    >>> folds = folds_of(pl.Series([1, 2, 3, 1, None]), 2)
    >>> bool(folds[0] == folds[3]), int(folds[4])
    (True, -1)
    """
    hashed = with_groups(nw.from_native(pl.DataFrame({"g": ids.cast(pl.Int64)}), eager_only=True), folds).to_native()
    numbers: NDArray[np.int64] = hashed.get_column("g").fill_null(-1).cast(pl.Int64).to_numpy()
    return numbers


# -- draws -------------------------------------------------------------------------------------------------------------


def draw_actions(probabilities: NDArray[Any], ids: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
    """So many actions for every row, at equal distances along the row's probabilities from one uniform start.

    Each action is drawn as often on average as its probability says, so that the mean over the draws has the right mean whatever
    the number of them; equal distances leave it with less variance than independent draws.

    >>> draw_actions(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([1, 2]), 2).tolist()
    [[0, 1], [1, 1]]
    """
    # Two steps, since adding up all of a long row in order is slow: which stretch of actions a point falls into, then which action.
    n, actions = probabilities.shape
    table = _in_stretches(probabilities, max(int((actions / samples) ** 0.5), 1))
    count, width = table.shape[1:]
    ones = np.ones(width, dtype=table.dtype)
    ends = np.cumsum(table @ ones, axis=1, dtype=np.float64)
    points = (uniform(ids)[:, None] + np.arange(samples)) / samples * ends[:, -1:]
    stretch = _stretches(ends, points)
    place = (stretch + np.arange(n)[:, None] * count).reshape(-1)
    before = np.where(stretch > 0, ends.reshape(-1)[place.reshape(n, -1) - 1], 0.0)
    each = table.reshape(-1, width)[place]
    within = each @ np.triu(
        np.ones((width, width), dtype=table.dtype)
    )  # the sums up to every action, by the fastest way there is
    rest = (points - before).reshape(-1, 1).astype(table.dtype)
    passed = ((within <= rest).astype(table.dtype) @ ones).astype(np.int64)
    over = np.flatnonzero(passed == width)  # by rounding: the last action of the stretch that has a probability
    passed[over] = width - 1 - np.argmax(each[over][:, ::-1] > 0, axis=1)
    return np.asarray(stretch * width + passed.reshape(n, -1))


def _in_stretches(probabilities: NDArray[Any], width: int) -> NDArray[Any]:
    """The rows cut into stretches of about so many actions, the last of which may end with some that have no probability."""
    n, actions = probabilities.shape
    exact = [w for w in range(width, 2 * width) if actions % w == 0]
    if exact:
        return np.ascontiguousarray(probabilities).reshape(n, -1, exact[0])
    padded = np.zeros((n, -(-actions // width) * width), dtype=probabilities.dtype)
    padded[:, :actions] = probabilities
    return padded.reshape(n, -1, width)


def _stretches(ends: Floats, points: Floats) -> NDArray[np.int64]:
    """The place of every point among the ends of its row: a single search in all rows, one behind the other."""
    n, count = ends.shape
    rows, scale = np.arange(n)[:, None], ends[:, -1:]
    places = np.searchsorted((ends / scale + rows).reshape(-1), (points / scale + rows).reshape(-1), side="right")
    return np.asarray(np.clip(places.reshape(points.shape) - rows * count, 0, count - 1))


def uniform(ids: NDArray[np.int64]) -> Floats:
    """A number in [0, 1) for every id, by the finalizer of SplitMix64.

    >>> bool(abs(uniform(np.arange(10_000)).mean() - 0.5) < 0.01)
    True
    """
    with np.errstate(over="ignore"):
        z = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return np.asarray((z >> np.uint64(11)) / 2.0**53)
