"""The search for the rows that drive a difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from counterpoise.rows import asked_rows, collect
from counterpoise.sources.arguments import arrange
from counterpoise.sources.columns import column
from counterpoise.sources.request import LOGGING

ROW = "row number in the log"  # a name that no log has


@dataclass(frozen=True)
class Row:
    """A row, its weights under both policies, and its part of the difference."""

    row: int
    reward: float
    propensity: float
    weight: float
    other_weight: float
    part: float


@dataclass(frozen=True)
class Heaviest:
    """The rows with the largest parts, and the share of all parts (by size) that the largest one in a hundred carry."""

    n: int
    rows: tuple[Row, ...]
    top_rows: int
    top_share: float


def heaviest(
    log: Any,
    *,
    reward: str,
    propensity: str,
    target: str,
    against: str = LOGGING,
    baseline: float,
    count: int = 10,
    where: str | None = None,
    table: str | None = None,
    query: str | None = None,
    external_access: bool = False,
) -> Heaviest:
    """The rows whose parts (w₁ − w₂)(r − β)/n of a difference are largest; bad rows are left out.

    >>> log = pl.DataFrame({"r": [1.0, 0.0, 9.0], "p": [0.5, 0.5, 0.1], "new": [0.5, 0.4, 0.8]})
    >>> found = heaviest(log, reward="r", propensity="p", target="new", baseline=0.0, count=1)
    >>> found.rows[0].row, round(found.rows[0].part, 6)
    (2, 21.0)
    """
    request = arrange(log, reward=reward, propensity=propensity, target=target, against=against, where=where)[1]
    numbered = asked_rows(log, request, table=table, query=query, external_access=external_access, number=ROW)
    named = {name: column for name, (_, column) in request.numbers.items()}
    rows = numbered.select(ROW, *(column(own).cast(pl.Float64).alias(name) for name, own in named.items()))
    r, p = pl.col("r"), pl.col("p")
    other = pl.lit(1.0) if against == LOGGING else pl.col("t1") / p
    probabilities = [pl.col(name).is_between(0, 1) for name in named if name[0] == "t"]
    good = rows.filter(p.is_between(0, 1, closed="right"), r.is_finite(), *probabilities)
    parts = good.select(ROW, "r", "p", w=pl.col("t0") / p, v=other).with_columns(
        part=(pl.col("w") - pl.col("v")) * (r - baseline)
    )
    n, total = collect(parts.select(pl.len(), pl.col("part").abs().sum().alias("total"))).row(0)
    size = pl.col("part").abs()
    first = min(max(1, n // 100), 100_000)
    top = collect(parts.sort(size, descending=True).head(max(first, count)))
    carried = float(top.head(first).select(size.sum()).item())
    found = tuple(Row(int(k), reward, p0, w, v, part / n) for k, reward, p0, w, v, part in top.head(count).iter_rows())
    return Heaviest(n, found, first, carried / total if total > 0 else 0.0)
