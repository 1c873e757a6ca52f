"""Rows that move together: whether an estimate's terms are alike within ids, and how much wider that makes its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterpoise.diagnostics.verdict import TOGETHER, Caveat
from counterpoise.moments import Floats

LEVEL = 0.005  # of the doubts of a log, over all of its id columns: benchmarks/verdicts.py rows
WIDER = 1.1  # an interval this many times as wide is worth reporting
PERMUTATIONS = 399  # one of which may be as large: p = 2/400 is the level
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
        """What to say to someone who relies on the interval."""
        do = (
            f"Pass `cluster={self.column!r}`: it becomes about {self.factor:.1f} times as wide. "
            "If these <rows> are independent after all, pass `cluster=False`."
        )
        text = f"<Rows> with the same {self.column!r} move together, so the interval is too narrow."
        numbers = {"factor": self.factor, "p": self.p, "ids": float(self.ids), "rows": float(self.rows)}
        return Caveat(TOGETHER, text, numbers, do)


def moving_together(column: str, ids: NDArray[np.int64], terms: Floats, *, looks: int = 1) -> Together | None:
    r"""Whether the terms ψ of an estimate (whose mean is its value less the truth) are alike within ids; None if they are not.

    Rows that are independent have :math:`E \sum_{i \ne j} \psi_i \psi_j = 0` over the pairs of one id, and this sum has the
    variance :math:`2 \sum_{i \ne j} E\psi_i^2 E\psi_j^2`, however the terms are distributed. We find its distribution under
    chance in two ways and use the more cautious one: with signs redrawn, which keeps every id's spread, and with terms reassigned
    to ids, which keeps their skewness. The errors with and without clusters have the ratio

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
    if factor < WIDER or _sureness(psi, ids, count) < 1.0:
        return None
    p = _by_chance(psi, ids, count, level)
    return Together(column, factor, min(p * looks, 1.0), count, len(ids)) if p <= level else None


def are_smooth(ids: NDArray[np.int64], terms: Floats) -> bool:
    r"""Whether rows of neighboring ids are about as alike as those of one, as of ages or hours, which measure something.

    .. math:: \frac{\sum_g S_g S_{g + 1}}{\sum_g n_g n_{g + 1}} \ge
        \frac{1}{2} \frac{\sum_g S_g^2 - \sum_i \psi_i^2}{\sum_g n_g (n_g - 1)}, \qquad S_g = \sum_{i \in g} \psi_i

    `ids` are numbers in the order of the values.

    >>> random = np.random.default_rng(0)
    >>> ids, noise = random.integers(0, 60, 3000), random.normal(size=3000)
    >>> are_smooth(ids, noise + 0.03 * ids), are_smooth(ids, noise + random.normal(size=60)[ids])
    (True, False)
    """
    psi = terms - terms.mean()
    sums, sizes = np.bincount(ids, psi), np.bincount(ids)
    within = (float(sums @ sums) - float(psi @ psi)) / max(float(sizes @ (sizes - 1)), 1.0)
    return float(sums[:-1] @ sums[1:]) / max(float(sizes[:-1] @ sizes[1:]), 1.0) >= within / 2.0


def sureness(values: Floats, ids: NDArray[np.int64]) -> float:
    """How many standard errors the values of one id are alike beyond chance."""
    with np.errstate(over="ignore", invalid="ignore"):  # of amounts that are too large to be squared
        psi = values - values.mean()
        return _sureness(psi, ids, int(ids.max()) + 1)


def _sureness(psi: Floats, ids: NDArray[np.int64], count: int) -> float:
    """The sum of the products of an id's pairs, by its standard error."""
    squares = np.square(psi)
    within = np.bincount(ids, squares, count)
    size = 2.0 * (float(within @ within) - float(squares @ squares))
    return (
        (float(np.square(np.bincount(ids, psi, count)).sum()) - float(squares.sum())) / math.sqrt(size)
        if size > 0
        else 0.0
    )


def _by_chance(psi: Floats, ids: NDArray[np.int64], count: int, level: float) -> float:
    """How often terms look this much alike by chance; it stops once that is clear."""
    # not one of the seeds that people simulate their logs with, whose numbers would come again here
    random, sureness = np.random.default_rng([7_919, 104_729, 1_299_709]), _sureness(psi, ids, count)
    whole = float(np.square(np.bincount(ids, psi, count)).sum())
    rounds = max(math.ceil(1.0 / level), min(PERMUTATIONS, ENDLESS // len(psi)))
    allowed = int(level * (rounds + 1)) - 1  # so many may be as large
    flipped = dealt = 0
    terms = psi.copy()
    for done in range(1, rounds + 1):
        signs = 2.0 * random.integers(0, 2, len(psi)) - 1.0
        flipped += float(np.square(np.bincount(ids, psi * signs, count)).sum()) >= whole
        random.shuffle(terms)
        dealt += _sureness(terms, ids, count) >= sureness
        if max(flipped, dealt) > allowed:
            return (max(flipped, dealt) + 1) / (done + 1)
    return (max(flipped, dealt) + 1) / (rounds + 1)
