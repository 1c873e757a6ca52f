"""Lists in long form, one row per position."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from counterpoise.errors import OptionError
from counterpoise.log.good import is_number
from counterpoise.log.kinds.kind import OR_DROP, Conflict, Row, RowKind, Rule, Term
from counterpoise.log.parts import CONDITIONAL, MARGINAL
from counterpoise.log.sequences import (
    BITS,
    DISCOUNT,
    DONE,
    LENGTH,
    LIST,
    POSITION,
    Sequences,
    excess_at,
    excess_of,
    gain_of,
    length_of,
    reward_at,
    reward_of,
)
from counterpoise.moments.columns import CUT, ROW
from counterpoise.moments.columns import LENGTH as WEIGHTED_LENGTH

if TYPE_CHECKING:
    import narwhals as nw

    from counterpoise.log.log import Log
    from counterpoise.log.question import Lane, Names

_DROP = f"Fix the logger{OR_DROP}"


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
        "single rows": Conflict(
            "this looks at single rows, and the rows of this log are positions of rankings, which only evaluate, compare and rank add up."
        ),
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

    # -- what its rows are called, and what is said of them ------------------------------------------------------------------

    unit = "ranking"
    one_of_them = "a ranking"
    along = "down"  # which way places are counted
    shows_several = True  # items at once
    counts_rows = False  # whether one and the same reward on every row may be meant: it counts them

    # columns that sound like the id and the place
    ids = re.compile(
        r"(.*_)?(list|slate|ranking|carousel|feed|query|search|request|impression|session|page|page_?view)(_?(id|key|uuid|hash))?"
    )
    places = re.compile(r"(.*_)?(position|pos|rank|slot)(_(id|index|number|no|nr))?")

    told_by = "Pass `slate=`, `position=` and `propensity_of=`."
    unnamed = Conflict(  # where another tool's files have them, whose columns we name
        "this log has rankings, with one row per position, and their rows are not independent.",
        "Pass `slate='slate'`, `position='position'` and `propensity_of='item_given_above'`, or read it with `cp.read`.",
    )
    number_them = "Keep the rows at the top of a ranking: everything below depends on what is there."
    its_top = "top of the rankings"
    whole_weights = "standard or pseudo_inverse"
    keep_whole = (
        "A condition that drops single rows does that, and so does a ranking that is there twice: drop whole rankings, or all rows below a "
        f"position{OR_DROP}"
    )
    looks_like = ("a position in a ranking", "positions")
    if_so = (
        "Rows can stand on their own only if their propensity is the item's chance of that position, whatever is above it. If it is the "
        "chance given what is above, the answer will be wrong and no check will show it. Evaluate them as rankings: name both columns as "
        "slate and position, and pass propensity_of for which of the two it is. See “Rankings” in the documentation."
    )

    @property
    def id_part(self) -> str:
        """The part of the log that says which rows belong together."""
        return self.parts[0]

    @property
    def place_part(self) -> str:
        """The part of the log that has a row's place."""
        return self.parts[1]

    def sounds_like(self, place: str, of: str | None) -> bool:
        """Whether the names of two columns, if there is one for the id, are as those of its rows often are."""
        return self.places.fullmatch(place) is not None and (of is None or self.ids.fullmatch(of) is not None)

    # -- its rows, and what is made of them ----------------------------------------------------------------------------------

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

    def rules_of_rows(self, sequences: Sequences) -> list[Rule]:
        """What a row must say about its place."""
        import narwhals as nw  # the command line imports kinds for their names alone

        place, counts, done = nw.col(POSITION), nw.col(DISCOUNT), nw.col(DONE)
        is_place = (place >= sequences.first) & (place <= sequences.last) & (place % 1 == 0)
        holds = {
            POSITION: ("be a whole number", is_place),
            DONE: ("be 0 or 1", (done == 0.0) | (done == 1.0)),
            DISCOUNT: ("be positive", (counts > 0) & is_number(counts)),
        }
        rules = [Rule(self.id_part, sequences.id, "be given", ~nw.col(LIST).is_null(), LIST, _DROP)]
        named = sequences.numbers.items()
        return rules + [Rule(part, column, *holds[name], name, _DROP) for name, (part, column) in named]

    def rules(self, sequences: Sequences, bad: nw.Expr) -> list[Rule]:
        """What a list must be like as a whole, judged only where none of its rows is `bad`, so that all have a place."""
        import narwhals as nw

        complete = nw.lit(-1.0)
        for n in range(1, sequences.depth + 1):
            complete = nw.when(nw.col(LENGTH) == n).then(nw.lit(2.0**n - 1.0)).otherwise(complete)
        holds, first = (nw.col(BITS) == complete) | (bad > 0), sequences.first
        expected = f"run {first}, {first + 1}, … {self.along} every {self.unit}, with none missing or twice"
        return [Rule(self.place_part, sequences.place, expected, holds, LIST, self.keep_whole, unit=self.unit)]

    def of_whole(self, log: Log) -> dict[str, str]:
        """The columns of a list that no target changes, by those of moments."""
        return {}

    def lane(self, lane: Lane, names: Names) -> Lane:
        """What a list is made into, in place of products: u·s, the model's, and what every position has."""
        question, j, own = names.question, lane.reward, lane.target
        whole = {moment: column for column, moment in self.of_whole(question.log).items()}
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
