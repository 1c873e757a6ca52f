"""How a model sees a context and an action: their numbers side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from counterpoise.models.actions import Actions
from counterpoise.models.encoding import Category, Encoder, Vector
from counterpoise.moments import Floats


@dataclass(frozen=True)
class Design:
    """The encoders of contexts and actions, and whether the model takes categories and missing values as they are."""

    context: Encoder
    actions: Actions
    is_native: bool = False
    is_dense: bool = False  # many actions are columns of 0 and 1 even so, for a model that takes no sparse table

    def contexts(self, rows: pl.DataFrame) -> Floats:
        """The contexts of some rows, as numbers."""
        return self.context.native(rows) if self.is_native else self.context.plain(rows)

    @cached_property
    def features(self) -> Any:
        """The features of the actions, one row for each; the last row, -1, is for actions that are not known."""
        found: Any = self.actions.features(native=self.is_native)
        return found.toarray() if self.is_dense and hasattr(found, "toarray") else found

    @property
    def is_sparse(self) -> bool:
        """Whether pairs of contexts and actions are a sparse table."""
        return bool(sparse.issparse(self.features))

    def pairs(self, x: Floats, codes: NDArray[np.int64]) -> Any:
        """What the model is given: contexts and actions, side by side."""
        features = self.features[codes]
        if sparse.issparse(features):
            stack: Any = sparse.hstack
            return stack([sparse.csr_matrix(x), features], format="csr")
        return np.concatenate([x, features], axis=1)

    @property
    def context_width(self) -> int:
        """How many columns a context has."""
        return int(self.contexts(_nothing(self.context)).shape[1])

    @property
    def is_category(self) -> tuple[bool, ...]:
        """Which columns of the native form are categories."""
        return self.context.is_category + self.actions.is_category()


def _nothing(encoder: Encoder) -> pl.DataFrame:
    """No rows, with the columns of an encoder."""
    kinds: dict[type, pl.DataType] = {Category: pl.String(), Vector: pl.List(pl.Float64)}
    types = {one.name: kinds.get(type(one), pl.Float64()) for one in encoder.columns}
    return pl.DataFrame(schema=types)


def blocks(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size`, until `count` is reached.

    >>> list(blocks(5, 3))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
