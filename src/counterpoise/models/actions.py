"""Actions as a model sees them: as categories, or by the features of their items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from counterpoise.errors import Argument, OptionError
from counterpoise.models.encoding import Encoder, codes_of, text_of
from counterpoise.readers.policies import item_ids

MANY = 30  # actions from which their columns of 0 and 1 are kept sparse
NATIVE = 250  # categories that histogram gradient boosting tells apart


@dataclass(frozen=True)
class Actions:
    """The actions that a model knows, in order; and what it knows of them, if there are items."""

    levels: tuple[str, ...]
    items: pl.DataFrame | None = None  # the features alone, in the order of the levels
    encoder: Encoder | None = None

    def codes(self, values: pl.Series) -> NDArray[np.int64]:
        """The number of each action, -1 for one that is not known.

        >>> Actions(("a", "b")).codes(pl.Series(["b", "c"])).tolist()
        [1, -1]
        """
        found = codes_of(text_of(values), self.levels)
        return np.where(np.isnan(found), -1, found).astype(np.int64)

    def features(self, *, native: bool) -> Any:
        """The features of every action, one row for each, and a last row for actions that are not known."""
        count = len(self.levels)
        if self.items is not None and self.encoder is not None:
            known = self.encoder.native(self.items) if native else self.encoder.plain(self.items)
            return np.vstack([known, np.full(known.shape[1], np.nan if native else 0.0)])
        if native:
            return np.append(np.where(np.arange(count) < NATIVE, np.arange(count, dtype=np.float64), np.nan), np.nan)[
                :, None
            ]
        table = sparse.eye(count + 1, count, format="csr")
        return table if count > MANY else table.toarray()

    def is_category(self) -> tuple[bool, ...]:
        """Which of the native features are categories."""
        return (True,) if self.encoder is None else self.encoder.is_category


def actions_of(logged: pl.Series, items: Any) -> Actions:
    """The actions of a log, the most frequent first; or those of the items, which must have all that were logged."""
    seen = text_of(logged).alias("action").value_counts(sort=True, name="count")
    if items is None:
        order = seen.sort(["count", "action"], descending=[True, False])
        return Actions(tuple(order.get_column("action").to_list()))
    ids, features = checked_items(items, logged.name)
    levels = text_of(ids)
    lost = seen.filter(~seen.get_column("action").is_in(levels.implode()))
    if lost.height:
        first = lost.get_column("action")[0]
        raise OptionError(
            [
                Argument("items"),
                f" lacks {lost.height:,} of the logged actions; one is {first!r}. Add a row for each of them.",
            ]
        )
    return Actions(tuple(levels.to_list()), features, Encoder.of(features, features.columns))


def checked_items(items: Any, action: str) -> tuple[pl.Series, pl.DataFrame]:
    """The ids of items, each there once, and their features."""
    frame = _frame(items)
    ids = item_ids(frame, action)
    levels = text_of(ids)
    if levels.null_count():
        raise OptionError(
            [Argument("items"), f" has {levels.null_count():,} rows without an id in {ids.name!r}: drop them."]
        )
    if levels.n_unique() < len(levels):
        twice = levels.filter(levels.is_duplicated())[0]
        raise OptionError(
            [Argument("items"), f" has the id {twice!r} more than once in {ids.name!r}: keep one row for each."]
        )
    features = frame.drop(ids.name)
    if not features.width:
        raise OptionError(
            [Argument("items"), " has ids and nothing else: leave it out, or add columns that describe the items."]
        )
    return ids, features


def _frame(items: Any) -> pl.DataFrame:
    if isinstance(items, pl.DataFrame):
        return items
    try:
        frame: pl.DataFrame = nw.from_native(items).lazy().collect("polars").to_native()
    except TypeError as error:
        raise OptionError(
            [Argument("items"), f" must be a frame with one row per action, found {type(items).__name__}."]
        ) from error
    return frame
