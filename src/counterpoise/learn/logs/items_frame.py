"""What is known of the items: a frame with one row for each, as the features of a policy's actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import Argument, OptionError


@dataclass(frozen=True)
class Items:
    """The actions in ascending order, and the features of each in the same order."""

    classes: NDArray[Any]
    features: Tensor


def item_features(items: Any, *, action: str = "action") -> Items:
    """The items of a frame as a policy takes them: `classes` in ascending order, and `features` with a row for each.

    Their ids are in the column called as the log's action is, or else in the first. Numbers are standardized, text becomes a column per
    level, and lists of numbers (embeddings) stay as they are. Ids that are missing or there twice are refused.

    Examples
    --------
    >>> import polars as pl
    >>> items = item_features(pl.DataFrame({"item": ["tea", "jam"], "price": [1.0, 3.0], "kind": ["drink", "food"]}), action="item")
    >>> items.classes.tolist(), items.features.tolist()
    (['jam', 'tea'], [[1.0, 0.0, 1.0], [-1.0, 1.0, 0.0]])
    """
    import polars as pl

    from counterpoise.models.actions import checked_items
    from counterpoise.models.encoding import Encoder

    ids, described = checked_items(items, action)
    if ids.dtype.is_integer():
        classes: NDArray[Any] = ids.cast(pl.Int64).to_numpy()
        if len(classes) and classes.min() < 0:
            raise OptionError(
                [
                    Argument("items"),
                    f" has the id {classes.min()} in {ids.name!r}: ids are text, or whole numbers from 0 on.",
                ]
            )
    elif ids.dtype in (pl.String, pl.Categorical, pl.Enum):
        classes = np.array(ids.cast(pl.String).to_list(), dtype=object)
    else:
        raise OptionError(
            [
                Argument("items"),
                f" has ids of type {ids.dtype} in {ids.name!r}: ids are text, or whole numbers from 0 on.",
            ]
        )
    order = np.argsort(classes)
    table = Encoder.of(described, described.columns).plain(described)[order]
    return Items(classes[order], torch.as_tensor(table, dtype=torch.float32))
