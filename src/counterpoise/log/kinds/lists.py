"""Lists in long form, one row per position: what their columns mean, and the names of what lists are made of.

An episode is a list, too: its steps are the positions, and propensities are given what came before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import LogError, OptionError
from counterpoise.log.kinds.kind import OR_DROP, Conflict, Row, RowKind, Term
from counterpoise.moments.columns import CUT, EXCESS, REWARD, ROW, STEPS
from counterpoise.moments.columns import LENGTH as WEIGHTED_LENGTH

if TYPE_CHECKING:
    from counterpoise.log.log import Log
    from counterpoise.log.question import Lane, Names

MARGINAL, CONDITIONAL = "item_at_position", "item_given_above"
DCG = "dcg"
EPISODE = "episode"
DEEPEST = 50  # positions; the sums of powers of two that show missing ones are exact up to here

# internal names: the list of a row, its position, what its reward counts, and the faults of a list
LIST, POSITION, DISCOUNT, LENGTH, BITS, FAULT = "list", "position", "discount", "length", "bits", "fault"
DONE, DONE_AT, CUT_OFF = "done", "done_at", "cut_off"  # of an episode: whether and where it ended, or that it did not


_WHOLE = (
    "A condition that drops single rows does that, and so does a ranking that is there twice: drop whole rankings, or all rows below a "
    f"position{OR_DROP}"
)
_WHOLE_EPISODES = (
    "A condition that drops single rows does that, and so does an episode that is there twice: drop whole episodes, or all rows after a "
    f"step{OR_DROP}"
)
GOES_ON = f"An episode that goes on after its end is two: give each an id of its own{OR_DROP}"
AT_END = "be 1 at the last step of an episode alone"


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
    unit: str = "ranking"
    discount_factor: float = 1.0
    done: str | None = None

    @property
    def is_of_episodes(self) -> bool:
        """Whether lists are episodes, and positions their steps."""
        return self.unit == EPISODE

    @property
    def shows_several(self) -> bool:
        """Whether several items are shown at once; an episode takes one action after the other."""
        return not self.is_of_episodes

    @property
    def one_of_them(self) -> str:
        """A list, in words."""
        return "an episode" if self.is_of_episodes else "a ranking"

    @property
    def along(self) -> str:
        """Which way places are counted, in words."""
        return "in" if self.is_of_episodes else "down"

    @property
    def advice(self) -> str:
        """What to do where places are missing, or there twice."""
        return _WHOLE_EPISODES if self.is_of_episodes else _WHOLE

    @property
    def numbers(self) -> dict[str, tuple[str, str]]:
        """Internal name → (part, column) for what its rows have besides weights and rewards."""
        parts = {POSITION: (self.place_part, self.position)}
        parts |= {} if self.done is None else {DONE: ("done", self.done)}
        return parts | ({} if self.discount_column is None else {DISCOUNT: ("discount", self.discount_column)})

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
    columns = list(of_whole_lists(names))
    for target in names.targets if targets is None else targets:
        columns += [gain_of(target, j) for j in rewards]
        columns += [excess_of(target, k) for k in question.ranks]
        columns += [reward_of(target, j, k) for j in rewards for k in question.ranks]
        columns += [f"{target}_e", f"{target}_ue"] if names.values else []
        columns += [length_of(target)] if question.keeps_lengths else []
    return columns


def of_whole_lists(names: Names) -> dict[str, str]:
    """The columns of a list that no target changes, by those of moments: of an episode, its length and whether it was cut off."""
    lists = names.question.lists
    if lists is None or not lists.is_of_episodes:
        return {}
    return {LENGTH: STEPS} | ({CUT_OFF: CUT} if lists.done is not None else {})


def about_decisions(what: str, by: str, rows: str, *verbs: str) -> dict[str, Conflict]:
    """What counts every row as a decision of its own, and so does not go with lists, or with episodes."""

    def refused(who: str = "{who}") -> Conflict:
        why = f"{who} does not work with {what} yet, and this log has {by}."
        return Conflict(f"{why} Don't just leave that out: the {rows} are not decisions of their own.")

    single = Conflict(f"`{{part}}=` is about single rows and does not work with {what} yet: leave it out.")
    return {
        **dict.fromkeys(("control", "baseline", "key"), single),
        "per": refused("`per=`, a ratio of sums,"),
        "cross_fit": refused(),
        **{verb: refused(verb) for verb in ("ab_test", "distribution", "sensitivity", "sql")},
        **dict.fromkeys((*verbs, "learn_policy", "PolicyLearner", "a log of several policies"), refused()),
        **dict.fromkeys(("a propensity model", "a reward model that is fitted here"), refused()),
        "exploration": Conflict(
            "`actions=` is for what exploring would save, which is not known for rankings and episodes yet: leave it out."
        ),
    }


class ListRows(RowKind):
    """Lists with `slate=`: engines make one row of every list, with a weight of its own and, if asked for, one for each position."""

    parts = ("slate", "position", "propensity_of", "discount")
    conflicts: ClassVar[Mapping[str, Conflict]] = about_decisions(
        "rankings", "`slate=`", "positions of a ranking"
    ) | dict.fromkeys(
        ("learn_policy", "PolicyLearner"),
        Conflict("{who} does not work with rankings, and this log has `slate=`: use RankingLearner."),
    )
    columns: tuple[str, ...] = (WEIGHTED_LENGTH,)
    is_made = True

    def check(self, log: Log) -> None:
        """Check that a list has an order, and that its propensities have a meaning."""
        others = [part for part in self.parts if getattr(log, part) is not None]
        if others and log.slate is None:
            raise OptionError(
                f"`{others[0]}=` is about rankings, and `slate=` is missing.",
                do="Pass `slate=`, the column with the ranking's id.",
            )
        if others and log.position is None:
            raise OptionError(
                f"`slate={log.slate!r}` groups rows into rankings, and their order is missing.",
                do="Pass `position=`, the column with a row's position in its ranking.",
            )
        if others and log.propensity_of not in (MARGINAL, CONDITIONAL):
            raise OptionError(
                "with rankings, `propensity_of=` is required: its two meanings need different weights, and no check of the weights can "
                f"tell them apart. Pass `propensity_of={MARGINAL!r}` if a propensity is that of the item at this position, whatever "
                f"stands elsewhere, or `propensity_of={CONDITIONAL!r}` if it is that of the item given those above it. The target's "
                "column means the same."
            )

    def kept(self, log: Log) -> dict[str, object]:
        """All parts, since what is not there has a meaning, too."""
        return {part: getattr(log, part) for part in self.parts}

    def lane(self, lane: Lane, names: Names) -> Lane:
        """What a list is made into, in place of products: u·s, the model's, and what every position has."""
        question, j, own = names.question, lane.reward, lane.target
        whole = {moment: column for column, moment in of_whole_lists(names).items()}
        columns = {name: lane.columns[name] for name in ROW}
        if lane.contrast[1]:
            whole.pop(CUT, None)
            ranks = {k: f"{lane.shared}at{k}" if lane.other else excess_of(own, k) for k in question.ranks}
            columns |= whole | {excess_at(k): column for k, column in ranks.items()}
            return replace(lane, columns=columns, factors={})
        columns |= {"e": f"{own}_e", "ue": f"{own}_ue", "v": lane.columns["v"]} if names.values else {}
        columns |= {WEIGHTED_LENGTH: length_of(own)} if question.keeps_lengths else {}
        columns |= whole | {excess_at(k): excess_of(own, k) for k in question.ranks}
        columns |= {reward_at(k): reward_of(own, j, k) for k in question.ranks}
        return replace(lane, columns=columns, factors={})

    def terms(self, row: Row[Term]) -> dict[str, Term]:
        """What takes the place of u·s: Σ(w − 1)·r over positions less the center times u; and differences of single positions."""
        columns, get = dict[str, Term](), row.get
        for lane in row.lanes:
            j, other, center = lane.reward, lane.other, row.centers[lane.reward]
            gain, u = get(gain_of(lane.target, j)), get(lane.target)
            if other is None:
                columns[lane.columns["us"]] = gain - center * u
                continue
            columns[lane.columns["us"]] = (gain - get(gain_of(other, j))) - center * (u - get(other))
            for k in row.names.question.ranks:
                columns[f"{lane.shared}at{k}"] = get(excess_of(lane.target, k)) - get(excess_of(other, k))
        return columns
