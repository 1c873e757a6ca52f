"""Lists in long form, one row per position: what their columns mean, and the names of what lists are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import Any

from counterpoise.errors import Argument, OptionError
from counterpoise.moments.moments import EXCESS, REWARD

MARGINAL, CONDITIONAL = "item_at_position", "item_given_above"
DCG = "dcg"
DEEPEST = 50  # positions; the sums of powers of two that show missing ones are exact up to here

# internal names: of the list a row belongs to, its position, what its reward counts, and the faults of a list
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


def check_lists(found: Mapping[str, Any]) -> None:
    """Check that the parts of a log that describe lists go together."""
    slate = found.get("slate")
    alone = [part for part in ("position", "propensity_of", "discount") if found.get(part) is not None]
    if slate is None:
        if alone:
            raise OptionError(
                [Argument(alone[0]), " is about lists, but nothing says which rows belong to the same list."],
                do=["Pass ", Argument("slate"), ", the column with the list's id."],
            )
        return
    if found.get("position") is None:
        raise OptionError(
            [Argument("slate", slate), " says which rows are a list, but not in which order."],
            do=["Pass ", Argument("position"), ", the column with a row's place in its list."],
        )
    if found.get("propensity_of") not in (MARGINAL, CONDITIONAL):
        raise OptionError(
            [
                "with lists, say what a row's propensity is the probability of, because the two need different weights and no check "
                "of the weights can tell: ",
                Argument("propensity_of", MARGINAL),
                ", that the item stands at this position, whatever stands elsewhere; or ",
                Argument("propensity_of", CONDITIONAL),
                ", that it was chosen given the items above it. The target's column means the same.",
            ]
        )
    for part in ("control", "baseline", "key"):
        if found.get(part):
            raise OptionError([Argument(part), " is about single rows and does not work with lists yet: leave it out."])


def excess_at(rank: int) -> str:
    """The moments' column of the excess at a position."""
    return f"{EXCESS}{rank}"


def reward_at(rank: int) -> str:
    """The moments' column of the weighted reward at a position."""
    return f"{REWARD}{rank}"


def refuse_lists(slate: str | None, what: str) -> None:
    """Raise an error if a log is one of lists, with which something does not work yet."""
    if slate is not None:
        raise OptionError(
            [f"{what} does not work with lists yet: leave out ", Argument("slate"), " and what goes with it."]
        )
