"""What dropping bad rows leaves out: the rewards of those whose reward was good."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.engines.query import Frame
from counterpoise.log.good import is_number
from counterpoise.log.question import Question
from counterpoise.log.rules import is_good
from counterpoise.moments import Powers
from counterpoise.moments.powers import ORDERS


def left_out(
    rows: Frame,
    question: Question,
    centers: Sequence[float],
    collect: Callable[[Frame], pl.DataFrame],
    *,
    targets: Sequence[str] | None = None,
) -> tuple[Powers, ...]:
    """The powers of each reward over the rows that are bad for another reason, from rows under internal names.

    `targets` are those whose rules tell all bad rows; by default, all of them.
    """
    rewards = question.names.rewards
    marked = rows.with_columns(bad=~is_good(question, targets).fill_null(False))
    made = {
        f"{name}_1": nw.when(nw.col("bad") & is_number(nw.col(name))).then(nw.col(name).cast(nw.Float64) - center)
        for name, center in zip(rewards, centers, strict=True)
    }
    marked = marked.select(**made)
    for order in ORDERS[1:]:  # step by step, since some databases cannot add up what is not a column
        marked = marked.with_columns(**{f"{x}_{order}": nw.col(f"{x}_{order - 1}") * nw.col(f"{x}_1") for x in rewards})
    wanted = [nw.col(f"{name}_{order}").sum() for name in rewards for order in ORDERS]
    counts = [nw.col(f"{name}_1").count().alias(f"{name}_count") for name in rewards]
    found = collect(marked.select(*wanted, *counts)).cast(pl.Float64).row(0, named=True)
    return tuple(
        Powers(
            int(found[f"{name}_count"] or 0), center, np.array([found[f"{name}_{order}"] or 0.0 for order in ORDERS])
        )
        for name, center in zip(rewards, centers, strict=True)
    )
