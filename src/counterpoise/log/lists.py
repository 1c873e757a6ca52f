"""Lists in long form, one row per position: what their columns mean, and the names of what lists are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import LogError, OptionError
from counterpoise.moments.columns import EXCESS, REWARD

MARGINAL, CONDITIONAL = "item_at_position", "item_given_above"
DCG = "dcg"
DEEPEST = 50  # positions; the sums of powers of two that show missing ones are exact up to here

# internal names: the list of a row, its position, what its reward counts, and the faults of a list
LIST, POSITION, DISCOUNT, LENGTH, BITS, FAULT = "list", "position", "discount", "length", "bits", "fault"


@dataclass(frozen=True)
class Lists:
    """Which rows make a list, what their propensities mean, and what the reward at each position counts.

    >>> Lists("query", "rank", MARGINAL, DCG, first=0, last=2).depth
    3
    """

    slate: str
    position: str
    propensity_of: str
    discount: str | None = None
    first: int = 1
    last: int = 1

    @property
    def depth(self) -> int:
        """How many positions the longest list has."""
        return self.last - self.first + 1

    @property
    def discount_column(self) -> str | None:
        """The column that says what a row's reward counts, if one does."""
        return None if self.discount in (None, DCG) else self.discount

    def counts(self, rank: int) -> float:
        """What the reward at a rank, from 1 on, counts where no column says it.

        >>> Lists("query", "rank", MARGINAL, DCG).counts(3)
        0.5
        """
        return 1.0 / log2(rank + 1.0) if self.discount == DCG else 1.0

    @property
    def shares(self) -> dict[int, float]:
        """How much each rank counts in a list's mean weight: the same in every list, wherever it ends, so that the mean is 1.

        >>> Lists("query", "rank", MARGINAL, first=0, last=1).shares
        {1: 0.5, 2: 0.5}
        """
        counts = {k: self.counts(k) for k in range(1, self.depth + 1)}
        return {k: count / sum(counts.values()) for k, count in counts.items()}


def check_lists(parts: Mapping[str, object]) -> None:
    """Check that the parts of a log that describe lists go together."""
    slate = parts.get("slate")
    alone = [part for part in ("position", "propensity_of", "discount") if parts.get(part) is not None]
    if slate is None:
        if alone:
            raise OptionError(
                f"`{alone[0]}=` is about lists, but nothing says which rows belong to the same list.",
                do="Pass `slate=`, the column with the list's id.",
            )
        return
    if parts.get("position") is None:
        raise OptionError(
            f"`slate={slate!r}` says which rows are a list, but not in which order.",
            do="Pass `position=`, the column with a row's place in its list.",
        )
    if parts.get("propensity_of") not in (MARGINAL, CONDITIONAL):
        raise OptionError(
            "with lists, say what a row's propensity is the probability of, because the two need different weights "
            f"and no check of the weights can tell: `propensity_of={MARGINAL!r}`, that the item stands at this "
            f"position, whatever stands elsewhere; or `propensity_of={CONDITIONAL!r}`, that it was chosen given the "
            "items above it. The target's column means the same."
        )
    for part in ("control", "baseline", "key"):
        if parts.get(part):
            raise OptionError(f"`{part}=` is about single rows and does not work with lists yet: leave it out.")


def excess_at(rank: int) -> str:
    """The moments' column of the excess at a position."""
    return f"{EXCESS}{rank}"


def reward_at(rank: int) -> str:
    """The moments' column of the weighted reward at a position."""
    return f"{REWARD}{rank}"


def rows_by_list(lists: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which row is where, lists × ranks, from the number of every row's list and its rank there, both from 0; −1 where there is none.

    >>> rows_by_list(np.array([0, 1, 0]), np.array([1, 0, 0])).tolist()
    [[2, 0], [1, -1]]
    """
    shape = (int(lists.max(initial=-1)) + 1, int(ranks.max(initial=-1)) + 1)
    rows = np.full(shape, -1, dtype=np.int64)
    rows[lists, ranks] = np.arange(len(lists))
    return rows


def check_same_context(context: NDArray[np.generic], rows: NDArray[np.int64]) -> None:
    """Check that every row of a list has the context of its top row: a ranking is made once, before anything is shown."""
    for column in rows.T[1:]:
        there = column >= 0
        odd = np.flatnonzero((context[column[there]] != context[rows[there, 0]]).any(axis=1))
        if len(odd):
            raise LogError(
                f"a ranking policy looks at one context per list, and row {column[there][odd[0]]:,} has another than the top row of "
                "its list.",
                do="Leave out columns that describe items, or fix the log.",
            )


def refuse_lists(slate: str | None, what: str, instead: str = "") -> None:
    """Raise an error if the log contains lists and something does not work with them (yet); `instead` is what does."""
    if slate is not None and instead:
        raise OptionError(f"{what} does not work with lists, which `slate=` says these are: use {instead}.")
    if slate is not None:
        raise OptionError(
            f"{what} does not work with lists yet, which `slate=` says these are. Don't just leave that out: "
            "the positions of a list are not decisions of their own."
        )
