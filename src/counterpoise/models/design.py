"""How a model sees a context and an action: their numbers side by side, the action as a category or by the features of its item."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from counterpoise.errors import OptionError
from counterpoise.features import Encoder
from counterpoise.features.encoder import codes_of, text_of
from counterpoise.moments import Floats
from counterpoise.readers.policies import frame_of, item_ids

if TYPE_CHECKING:
    Matrix = Floats | sparse.csr_matrix[np.float64]

Codes = NDArray[np.int64]
MANY = 30  # from this many actions on, their columns of 0 and 1 are sparse
NATIVE = 250  # the most categories that histogram gradient boosting takes


@dataclass(frozen=True)
class Actions:
    """The actions that a model knows, in order, and what it knows about them if there are items."""

    levels: tuple[str, ...]
    items: pl.DataFrame | None = None  # the features alone, in the order of the levels
    encoder: Encoder | None = None

    def codes(self, values: pl.Series) -> Codes:
        """The number of each action, -1 for one that is not known.

        >>> Actions(("a", "b")).codes(pl.Series(["b", "c"])).tolist()
        [1, -1]
        """
        return codes_of(text_of(values), self.levels)

    def features(self, *, is_native: bool) -> Matrix:
        """The features of every action, one row for each, and a last row for actions that are not known."""
        count = len(self.levels)
        if self.items is not None and self.encoder is not None:
            numbers = self.encoder.numbers(self.items, is_native=is_native)
            return np.vstack([numbers, np.full(numbers.shape[1], np.nan if is_native else 0.0)])
        if is_native:
            codes = np.arange(count + 1, dtype=np.float64)
            return np.where(codes < min(count, NATIVE), codes, np.nan)[:, None]
        table = sparse.eye(count + 1, count, format="csr")
        return table if count > MANY else table.toarray()

    def is_category(self) -> tuple[bool, ...]:
        """Which of the native features are categories."""
        return (True,) if self.encoder is None else self.encoder.is_category


def actions_of(logged: pl.Series, items: object) -> Actions:
    """The actions of a log, the most frequent first; or those of the items, which must include all that were logged."""
    counts = text_of(logged).alias("action").value_counts(sort=True, name="count")
    if items is None:
        order = counts.sort(["count", "action"], descending=[True, False])
        return Actions(tuple(order.get_column("action").to_list()))
    ids, features = read_items(items, logged.name)
    levels = text_of(ids)
    lost = counts.filter(~counts.get_column("action").is_in(levels.implode()))
    if lost.height:
        first = lost.get_column("action")[0]
        what = f"`items=` lacks {lost.height:,} of the logged actions; one is {first!r}."
        raise OptionError(what, do="Add a row for each of them.")
    return Actions(tuple(levels.to_list()), features, Encoder.of(features, features.columns))


def read_items(items: object, action: str) -> tuple[pl.Series, pl.DataFrame]:
    """The ids of items, each once, and their features."""
    frame = frame_of(items)
    ids = item_ids(frame, action)
    levels = text_of(ids)
    if levels.null_count():
        what = f"`items=` has {levels.null_count():,} rows without an id in {ids.name!r}."
        raise OptionError(what, do="Drop them.")
    if levels.n_unique() < len(levels):
        twice = levels.filter(levels.is_duplicated())[0]
        what = f"`items=` has the id {twice!r} more than once in {ids.name!r}."
        raise OptionError(what, do="Keep one row for each.")
    features = frame.drop(ids.name)
    if not features.width:
        what = "`items=` has ids and nothing else."
        raise OptionError(what, do="Leave it out, or add columns that describe the items.")
    return ids, features


@dataclass(frozen=True)
class Design:
    """What a model is given: the numbers of a context, and behind them those of an action."""

    context: tuple[bool, ...]  # for every number of a context, whether it is the code of a category
    actions: Actions
    is_native: bool = False  # the model takes categories and missing values as they are
    is_dense: bool = False  # dense columns of 0 and 1 even for many actions, for a model that takes no sparse table

    @cached_property
    def features(self) -> Matrix:
        """The features of the actions, one row for each; the last row, -1, is for actions that are not known."""
        features = self.actions.features(is_native=self.is_native)
        return features if isinstance(features, np.ndarray) or not self.is_dense else features.toarray()

    @property
    def is_sparse(self) -> bool:
        """Whether pairs of contexts and actions are a sparse table."""
        return not isinstance(self.features, np.ndarray)

    def pairs(self, x: Floats, codes: Codes) -> Matrix:
        """What the model is given: contexts and actions, side by side."""
        features = self.features[codes]
        if isinstance(features, np.ndarray):
            return np.concatenate([x, features], axis=1)
        table: sparse.csr_matrix[np.float64] = sparse.hstack([sparse.csr_matrix(x), features], format="csr")
        return table

    @property
    def is_category(self) -> tuple[bool, ...]:
        """Which columns of the native form are categories."""
        return self.context + self.actions.is_category()


def blocks(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size`, until `count` is reached.

    >>> list(blocks(5, 3))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
