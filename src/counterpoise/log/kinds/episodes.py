"""Episodes: lists whose positions are steps, each with its own choice, given what came before."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, ClassVar

from counterpoise.errors import OptionError
from counterpoise.log.kinds.kind import Conflict
from counterpoise.log.kinds.lists import ListRows, about_decisions
from counterpoise.moments.columns import CUT, STEPS

if TYPE_CHECKING:
    from counterpoise.log.log import Log


class Episodes(ListRows):
    """Lists with `episode=`: their moments have their lengths, and which of them were cut off."""

    parts = ("episode", "step", "discount_factor", "done")
    conflicts: ClassVar[Mapping[str, Conflict]] = about_decisions(
        "episodes", "`episode=`", "steps of an episode", "RankingLearner"
    )
    columns = (*ListRows.columns, STEPS, CUT)

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
