"""Lists in long form, one row per position: what their columns mean, and the names of what lists are made of.

An episode is a list, too: its steps are the positions, and propensities are given what came before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from numbers import Real
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import LogError, OptionError
from counterpoise.moments.columns import EXCESS, REWARD

MARGINAL, CONDITIONAL = "item_at_position", "item_given_above"
DCG = "dcg"
EPISODE = "episode"
DEEPEST = 50  # positions; the sums of powers of two that show missing ones are exact up to here

# internal names: the list of a row, its position, what its reward counts, and the faults of a list
LIST, POSITION, DISCOUNT, LENGTH, BITS, FAULT = "list", "position", "discount", "length", "bits", "fault"
DONE, DONE_AT, CUT_OFF = "done", "done_at", "cut_off"  # of an episode: whether and where it ended, or that it did not


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
    unit: str = "list"
    discount_factor: float = 1.0
    done: str | None = None

    @property
    def is_of_episodes(self) -> bool:
        """Whether lists are episodes, and positions their steps."""
        return self.unit == EPISODE

    @property
    def id_part(self) -> str:
        """The part of the log that says which rows belong together."""
        return "episode" if self.is_of_episodes else "slate"

    @property
    def place_part(self) -> str:
        """The part of the log that has a row's place."""
        return "step" if self.is_of_episodes else "position"

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

        >>> Lists("query", "rank", MARGINAL, DCG).counts(3), Lists("game", "move", CONDITIONAL, discount_factor=0.5).counts(3)
        (0.5, 0.25)
        """
        return 1.0 / log2(rank + 1.0) if self.discount == DCG else self.discount_factor ** (rank - 1)

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
    if any(parts.get(part) is not None for part in ("episode", "step", "discount_factor", "done")):
        _check_episodes(parts)
        return
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
    _check_of_rows(parts, "lists")


def _check_episodes(parts: Mapping[str, object]) -> None:
    """Check that the parts of a log that describe episodes go together."""
    episode, factor = parts.get("episode"), parts.get("discount_factor")
    if episode is None:
        alone = next(part for part in ("step", "discount_factor", "done") if parts.get(part) is not None)
        raise OptionError(
            f"`{alone}=` is about episodes, but nothing says which rows belong to the same one.",
            do="Pass `episode=`, the column with the episode's id.",
        )
    for part in ("slate", "position", "propensity_of", "discount"):
        if parts.get(part) is not None:
            instead = {"slate": "", "position": "`step=`", "discount": "`discount_factor=`"}.get(part, "")
            raise OptionError(
                f"`{part}=` is about lists, and `episode={episode!r}` says that these rows are steps of episodes: leave out one of them.",
                do=f"Of episodes, it is {instead}." if instead else "",
            )
    if parts.get("step") is None:
        raise OptionError(
            f"`episode={episode!r}` says which rows are an episode, but not in which order.",
            do="Pass `step=`, the column that numbers the steps of an episode.",
        )
    if factor is not None and not (
        isinstance(factor, Real) and not isinstance(factor, bool) and 0 < float(factor) <= 1
    ):
        raise OptionError(f"`discount_factor={factor!r}` must be a number above 0 and at most 1.")
    _check_of_rows(parts, "episodes")


def _check_of_rows(parts: Mapping[str, object], what: str) -> None:
    for part in ("control", "baseline", "key"):
        if parts.get(part):
            raise OptionError(f"`{part}=` is about single rows and does not work with {what} yet: leave it out.")


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


class MaybeListed(Protocol):
    """A log, as far as lists are concerned."""

    @property
    def slate(self) -> str | None:
        """The column of a row's list."""

    @property
    def episode(self) -> str | None:
        """The column of a row's episode."""


def refuse_lists(log: MaybeListed, what: str, instead: str = "") -> None:
    """Raise an error if the log contains lists and something does not work with them (yet); `instead` is what does."""
    if log.episode is not None:
        raise OptionError(
            f"{what} does not work with episodes yet, which `episode=` says these are. Don't just leave that out: "
            "the steps of an episode are not decisions of their own."
        )
    if log.slate is not None and instead:
        raise OptionError(f"{what} does not work with lists, which `slate=` says these are: use {instead}.")
    if log.slate is not None:
        raise OptionError(
            f"{what} does not work with lists yet, which `slate=` says these are. Don't just leave that out: "
            "the positions of a list are not decisions of their own."
        )
