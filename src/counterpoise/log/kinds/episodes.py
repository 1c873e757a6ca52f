"""Episodes: lists whose positions are steps, each with its own choice, given what came before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, ClassVar

from counterpoise.errors import OptionError
from counterpoise.log.kinds.kind import OR_DROP, Conflict, Rule
from counterpoise.log.kinds.lists import ListRows, about_decisions
from counterpoise.log.sequences import CUT_OFF, DONE, DONE_AT, LENGTH, LIST, Sequences
from counterpoise.moments.columns import CUT, STEPS

if TYPE_CHECKING:
    import narwhals as nw

    from counterpoise.log.log import Log


class Episodes(ListRows):
    """Lists with `episode=`: their moments have their lengths, and which of them were cut off."""

    parts = ("episode", "step", "discount_factor", "done")
    conflicts: ClassVar[Mapping[str, Conflict]] = about_decisions(
        "episodes", "`episode=`", "steps of an episode", "RankingLearner"
    )
    columns = (*ListRows.columns, STEPS, CUT)

    unit = "episode"
    one_of_them = "an episode"
    along = "in"
    shows_several = False
    counts_rows = True  # a reward of 1 for every step counts how long the episode lasts

    ids = re.compile(
        r"(.*_)?(episode|session|trajectory|conversation|dialog|dialogue|game|rollout)(_?(id|key|uuid|hash))?"
    )
    places = re.compile(r"t|(.*_)?(step|turn|move|stage|time_?step)(_(id|index|number|no|nr))?")

    told_by = "Pass `episode=` and `step=`."
    number_them = "Number the steps of each episode: its first row is 1, the next one 2, and so on."
    its_top = "first steps"
    whole_weights = "trajectory"
    keep_whole = (
        "A condition that drops single rows does that, and so does an episode that is there twice: drop whole episodes, or all rows after "
        f"a step{OR_DROP}"
    )
    looks_like = ("a step of episodes", "steps")
    if_so = (
        "Rows can stand on their own only if no choice changes what comes after it. If one does, the answer will be wrong and no check "
        "will show it. Evaluate them as episodes: name both columns as episode and step. See “Sessions and episodes” in the documentation."
    )

    def check(self, log: Log) -> None:
        """Check that an episode has an order, and is no list beside."""
        others = [part for part in self.parts if getattr(log, part) is not None]
        if not others:
            return
        if log.episode is None:
            raise OptionError(
                f"`{others[0]}=` is about episodes, and `episode=` is missing.",
                do="Pass `episode=`, the column with the episode's id.",
            )
        for part in ListRows.parts:
            if getattr(log, part) is not None:
                instead = {"position": "`step=`", "discount": "`discount_factor=`"}.get(part)
                raise OptionError(
                    f"`{part}=` is about rankings, and `episode={log.episode!r}` makes these rows steps of episodes: leave out one of "
                    "them.",
                    do=f"Of episodes, it is {instead}." if instead else "",
                )
        if log.step is None:
            raise OptionError(
                f"`episode={log.episode!r}` groups rows into episodes, and their order is missing.",
                do="Pass `step=`, the column that numbers the steps of an episode.",
            )
        factor = log.discount_factor
        is_number = isinstance(factor, Real) and not isinstance(factor, bool)
        if factor is not None and not (is_number and 0 < float(factor) <= 1):
            raise OptionError(f"`discount_factor={factor!r}` must be a number above 0 and at most 1.")

    def rules(self, sequences: Sequences, bad: nw.Expr) -> list[Rule]:
        """An episode that ends does so at its last step."""
        import narwhals as nw

        rules = super().rules(sequences, bad)
        if sequences.done is None:
            return rules
        at_end = (nw.col(DONE_AT) == nw.col(DONE) * nw.col(LENGTH)) | (bad > 0)
        expected = "be 1 at the last step of an episode alone"
        advice = f"An episode that goes on after its end is two: give each an id of its own{OR_DROP}"
        return [*rules, Rule("done", sequences.done, expected, at_end, LIST, advice, unit=self.unit)]

    def of_whole(self, log: Log) -> dict[str, str]:
        """The length of an episode, and whether it was cut off."""
        return {LENGTH: STEPS} | ({CUT_OFF: CUT} if log.done is not None else {})
