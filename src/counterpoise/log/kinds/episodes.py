"""Episodes: lists whose positions are steps, each with its own choice, given what came before."""

from __future__ import annotations

from counterpoise.log.kinds.lists import ListRows
from counterpoise.moments.columns import CUT, STEPS


class Episodes(ListRows):
    """Lists with `episode=`: their moments have their lengths, and which of them were cut off."""

    parts = ("episode", "step", "gamma", "done")
    columns = (*ListRows.columns, STEPS, CUT)
