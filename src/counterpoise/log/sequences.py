"""Rows that count together, each at its place: what their columns mean, and the names of what they are made into.

The positions of a ranking are such rows, and so are the steps of an episode, whose propensities are given what came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log2
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import LogError
from counterpoise.moments.columns import EXCESS, REWARD

if TYPE_CHECKING:
    from counterpoise.log.kinds.lists import ListRows
    from counterpoise.log.question import Names

DCG = "dcg"
DEEPEST = 50  # positions; the sums of powers of two that show missing ones are exact up to here

# internal names: the list of a row, its position, what its reward counts, and the faults of a list
LIST, POSITION, DISCOUNT, LENGTH, BITS, FAULT = "list", "position", "discount", "length", "bits", "fault"
DONE, DONE_AT, CUT_OFF = "done", "done_at", "cut_off"  # of an episode: whether and where it ended, or that it did not


@dataclass(frozen=True)
class Sequences:
    """Rows that count together, in an order: which those are, what their propensities mean, and what the reward at each place counts.

    >>> from counterpoise.log.kinds import LISTS
    >>> Sequences(LISTS, "query", "rank", "item_at_position", DCG, first=0, last=2).depth
    3
    """

    kind: ListRows = field(compare=False)
    id: str
    place: str
    propensity_of: str
    discount: str | None = None
    first: int = 1
    last: int = 1
    discount_factor: float = 1.0
    done: str | None = None

    @property
    def numbers(self) -> dict[str, tuple[str, str]]:
        """Internal name → (part, column) for what its rows have besides weights and rewards."""
        parts = {POSITION: (self.kind.place_part, self.place)}
        parts |= {} if self.done is None else {DONE: ("done", self.done)}
        return parts | ({} if self.discount_column is None else {DISCOUNT: ("discount", self.discount_column)})

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

        >>> from counterpoise.log.kinds import EPISODES, LISTS
        >>> lists = Sequences(LISTS, "query", "rank", "item_at_position", DCG)
        >>> episodes = Sequences(EPISODES, "game", "move", "item_given_above", discount_factor=0.5)
        >>> lists.counts(3), episodes.counts(3)
        (0.5, 0.25)
        """
        return 1.0 / log2(rank + 1.0) if self.discount == DCG else self.discount_factor ** (rank - 1)

    @property
    def shares(self) -> dict[int, float]:
        """How much each rank counts in a list's mean weight: the same in every list, wherever it ends, so that the mean is 1.

        >>> from counterpoise.log.kinds import LISTS
        >>> Sequences(LISTS, "query", "rank", "item_at_position", first=0, last=1).shares
        {1: 0.5, 2: 0.5}
        """
        counts = {k: self.counts(k) for k in range(1, self.depth + 1)}
        return {k: count / sum(counts.values()) for k, count in counts.items()}


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
                f"a ranking policy looks at one context per ranking, and row {column[there][odd[0]]:,} has another than the top row of "
                "its ranking.",
                do="Leave out columns that describe items, or fix the log.",
            )


# -- The columns of a list inside a query, and what is added up of them ----------------------------------------------------


def gain_of(target: str, reward: int) -> str:
    """A list's weighted reward less its reward, for one target."""
    return f"{target}_d{reward}"


def excess_of(target: str, rank: int) -> str:
    """The excess at one position of a ranking."""
    return f"{target}_u{rank}"


def length_of(target: str) -> str:
    """The length of a list times the sum of its excesses."""
    return f"{target}_length"


def reward_of(target: str, reward: int, rank: int) -> str:
    """The weighted reward at one position of a ranking."""
    return f"{target}_y{reward}_{rank}"


def made_of(names: Names, targets: Sequence[str] | None = None) -> list[str]:
    """The columns that a list has besides its numbers, for all targets or some of them."""
    question, rewards = names.question, range(len(names.rewards))
    columns = [] if question.sequences is None else [*question.sequences.kind.of_whole(question.log)]
    for target in names.targets if targets is None else targets:
        columns += [gain_of(target, j) for j in rewards]
        columns += [excess_of(target, k) for k in question.ranks]
        columns += [reward_of(target, j, k) for j in rewards for k in question.ranks]
        columns += [f"{target}_e", f"{target}_ue"] if names.values else []
        columns += [length_of(target)] if question.keeps_lengths else []
    return columns
