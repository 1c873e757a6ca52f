"""Spots rows that were logged twice, where no key tells rows apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl
from scipy.special import bdtrc, pdtr

from counterpoise.engines.rows import collect
from counterpoise.log.expressions import column, columns

SURE = 0.001


@dataclass(frozen=True)
class Repeats:
    r"""How many different rows came up once, twice, … (`times`), and whether chance alone makes them so.

    Rows with few coarse columns repeat by chance: independent ones each come up a Poisson number of times, with a mean λ of its own. But
    then an even number of times (two or more) is the rarer case, because :math:`(1 - e^{-\lambda})^2 \le 1 - e^{-2\lambda}`, and pairs need
    triples beside them: whatever the means are, their moments obey the inequality of Cauchy and Schwarz, so that

    .. math:: E[f_2]^2 \le \tfrac32 \, E[f_1] \, E[f_3],

    with :math:`f_k` the number of different rows that came up k times. A file that was read twice breaks the first rule, and rows that a
    logger sent again break the second.

    Examples
    --------
    >>> Repeats({1: 900, 2: 200}).is_odd, Repeats({2: 20}).is_odd, Repeats({1: 300, 2: 75, 3: 12, 4: 2}).is_odd
    (True, True, False)
    """

    times: Mapping[int, int]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(k * count for k, count in self.times.items())

    @property
    def distinct(self) -> int:
        """How many different ones."""
        return sum(self.times.values())

    @property
    def repeated(self) -> int:
        """How many repeat another one."""
        return self.rows - self.distinct

    @property
    def is_odd(self) -> bool:
        """Whether so many pairs, or so many even numbers, hardly ever come by chance."""
        even = sum(count for k, count in self.times.items() if k % 2 == 0)
        if even and bdtrc(even - 1, self.distinct, 0.5) < SURE:
            return True
        once, twice, thrice = (self.times.get(k, 0) for k in (1, 2, 3))
        # two standard deviations of both counts to the safe side
        pairs, singles = max(twice - 2 * twice**0.5, 0.0), once + 2 * once**0.5 + 4
        return bool(pdtr(thrice, pairs**2 / (1.5 * singles)) < SURE)


def repeats(frame: pl.LazyFrame, schema: pl.Schema) -> Repeats | None:
    """How often each row comes up, by all columns that can be compared; None if there is no such column."""
    chosen = [name for name in schema.names() if not schema[name].is_nested()]
    if not chosen:
        return None
    each = frame.select(row=pl.struct(columns(chosen)).hash()).group_by("row").agg(times=pl.len())
    return Repeats(dict(collect(each.group_by("times").agg(count=pl.len())).rows()))


def tells_apart(frame: pl.LazyFrame, schema: pl.Schema, counts: Repeats) -> bool:
    """Whether a single column tells almost all rows apart, as an id or a time does, except for the repeated ones."""
    chosen = [name for name in schema.names() if not schema[name].is_nested()]
    finest = collect(frame.select(column(name).n_unique() for name in chosen)).row(0)
    return bool(max(finest) > 0.9 * counts.distinct and counts.distinct > 0.5 * counts.rows)
