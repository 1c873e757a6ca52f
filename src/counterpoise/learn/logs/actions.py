"""Actions: the ids they have in a log, and their places in a policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import Argument, LogError, OptionError

Ids = NDArray[np.int64]
Names = NDArray[np.object_]
MOST = 10_000_000  # distinct ids in a log; more are hardly actions, and every one of them costs a logit per row


def as_ids(column: NDArray[Any]) -> Ids:
    """Whole numbers as they are, and −1 for anything that cannot be an id, so that no id is rounded into another."""
    if column.dtype.kind == "O" and all(type(one) is int and abs(one) < 2**63 for one in column):
        return column.astype(np.int64)
    if column.dtype.kind == "u":
        return np.where(column < 2**63, column, 0).astype(np.int64) - (column >= 2**63)
    if column.dtype.kind in "bi":
        return column.astype(np.int64)
    numbers = column.astype(np.float64)
    # from 2^53 on a float stands for several whole numbers
    known = np.isfinite(numbers) & (np.floor(numbers) == numbers) & (np.abs(numbers) < 2**53)
    return np.where(known, numbers, -1).astype(np.int64)


class DistinctIds:
    """The distinct ids of a log, collected part by part; memory grows with the ids, not with the rows.

    >>> ids = DistinctIds("item")
    >>> for part in ([5, 5, 1000], [7, 5]):
    ...     ids.add(np.array(part))
    >>> ids.found.tolist(), ids.have_gaps
    ([5, 7, 1000], True)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: Ids = np.empty(0, dtype=np.int64)

    def add(self, action: Ids) -> None:
        """Take in some rows; anything that is not an id is reported elsewhere."""
        some = np.unique(action)
        fresh = some[(places(self.found, some) < 0) & (some >= 0)]
        if len(fresh):
            self.found = np.sort(np.concatenate([self.found, fresh]))
        if len(self.found) > MOST:
            raise LogError(
                f"{self.name!r} has more than {MOST:,} distinct actions. Is it the column of the logged action?",
                do=["For a catalog as large as that, pass ", Argument("n_actions"), " or a policy."],
            )

    @property
    def have_gaps(self) -> bool:
        """Whether they are anything but 0, 1, 2, …"""
        return len(self.found) > 0 and int(self.found[-1]) != len(self.found) - 1


def places(ids: Ids, action: Ids) -> Ids:
    """The places of actions among sorted ids; −1 for those that are not there."""
    if not len(ids):
        return np.full(len(action), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(ids, action), len(ids) - 1)
    return np.where(ids[place] == action, place, -1)


def placed(ids: Ids | None, action: Tensor) -> Tensor:
    """The same for a tensor; without ids, an action is its own place."""
    if ids is None:
        return action
    return (
        torch.as_tensor(places(ids, action.detach().cpu().numpy().reshape(-1))).reshape(action.shape).to(action.device)
    )


def checked_ids(ids: NDArray[Any], n_actions: int) -> Ids | Names:
    """Ids or names, checked to be ones that a policy can have: one for each of its actions, in their order."""
    if ids.dtype.kind in "UOT" and ids.shape == (n_actions,) and all(isinstance(one, str) for one in ids):
        names = ids.astype(object)
        if (names[:-1] < names[1:]).all():
            return names
        raise OptionError(f"actions_ must be {n_actions:,} different names in ascending order.")
    if (
        ids.shape != (n_actions,)
        or ids.dtype.kind not in "iu"
        or (ids[:-1] >= ids[1:]).any()
        or not 0 <= ids[0] < 2**63
    ):
        raise OptionError(
            f"actions_ must be {n_actions:,} different whole numbers from 0 on, or names, in ascending order; found {ids.dtype} of shape "
            f"{ids.shape}."
        )
    return ids.astype(np.int64)
