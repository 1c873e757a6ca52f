"""Rows that move together: whether an estimate's terms of one id are alike, and how much wider its interval then is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterpoise.diagnostics.caveats import Caveat
from counterpoise.errors import Argument, Sentence
from counterpoise.moments import Floats

CODE = "rows-move-together"
LEVEL = 0.005  # of a log's doubts, over all of its id columns: a right log in two hundred
WIDER = 1.1  # times as wide an interval is worth telling
PERMUTATIONS = 399
FEWEST = 20  # ids: fewer are a segment
ENDLESS = 10_000_000  # numbers that are permuted, at most


@dataclass(frozen=True)
class Together:
    """What one column of ids does: the interval is `factor` times as wide if its rows are kept together; `p` is for chance."""

    column: str
    factor: float
    p: float
    ids: int
    rows: int

    def caveat(self) -> Caveat:
        """What to tell whoever relies on the interval."""
        said = Sentence(
            [
                f"Rows with the same {self.column!r} move together, so the interval is too narrow. Pass ",
                Argument("cluster", self.column),
                f": it becomes about {self.factor:.1f} times as wide. If these rows are independent after all, pass ",
                Argument("cluster", False),
                ".",
            ]
        )
        numbers = {"factor": self.factor, "p": self.p, "ids": float(self.ids), "rows": float(self.rows)}
        return Caveat(CODE, "caution", said, numbers)


def moving_together(column: str, ids: NDArray[np.int64], terms: Floats, *, looks: int = 1) -> Together | None:
    r"""Whether the terms ψ of an estimate (whose mean is its value less the truth) are alike within ids; None where they are not.

    Rows that are independent have :math:`E \sum_{i \ne j} \psi_i \psi_j = 0` over the pairs of one id. The test's statistic adds up these
    products, divided by the root of the sum of their squares by id, so that no single id decides; its distribution is that of terms dealt
    out to the ids anew, which keeps their sizes. So it holds for terms of any distribution if they are exchangeable, and nearly so if
    their spread differs from id to id. The errors with and without clusters have the ratio

    .. math:: \sqrt{\sum_g \Big(\sum_{i \in g} \psi_i\Big)^2 \Big/ \sum_i \psi_i^2}.

    `ids` are numbers from 0; `looks` is how many columns are tried.

    >>> random = np.random.default_rng(0)
    >>> ids, alone = np.repeat(np.arange(100), 5), random.normal(size=500)
    >>> moving_together("user", ids, alone) is None, round(moving_together("user", ids, alone[ids]).factor ** 2)
    (True, 5)
    """
    psi = terms - terms.mean()
    total = float(psi @ psi)
    count = int(ids.max()) + 1
    if not total > 0 or not math.isfinite(total) or not FEWEST <= count < len(ids):
        return None
    factor = math.sqrt(float(np.square(np.bincount(ids, psi, count)).sum()) / total)
    level = LEVEL / looks
    if factor < WIDER or _statistic(psi, ids, count) < 1.0:
        return None
    p = _by_chance(psi, ids, count, level)
    return Together(column, factor, p * looks, count, len(ids)) if p <= level else None


def _statistic(psi: Floats, ids: NDArray[np.int64], count: int) -> float:
    """The sum of the products of an id's pairs, by the root of the sum of their squares."""
    pairs = np.square(np.bincount(ids, psi, count)) - np.bincount(ids, np.square(psi), count)
    size = math.sqrt(float(pairs @ pairs))
    return float(pairs.sum()) / size if size > 0 else 0.0


def _by_chance(psi: Floats, ids: NDArray[np.int64], count: int, level: float) -> float:
    """How often terms that are dealt out anew look as much alike; it stops where that is clear."""
    random, found = np.random.default_rng(0), _statistic(psi, ids, count)
    rounds = max(math.ceil(1.0 / level), min(PERMUTATIONS, ENDLESS // len(psi)))
    allowed = int(level * (rounds + 1)) - 1  # so many may be as large
    larger = 0
    dealt = psi.copy()
    for done in range(1, rounds + 1):
        random.shuffle(dealt)
        larger += _statistic(dealt, ids, count) >= found
        if larger > allowed:
            return (larger + 1) / (done + 1)
    return (larger + 1) / (rounds + 1)
