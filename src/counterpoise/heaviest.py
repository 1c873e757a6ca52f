"""The search for the rows that drive a difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from counterpoise.rows import over_good_rows
from counterpoise.sources.request import LOGGING, Request

ROW = "row number in the log"  # a name that no log has
MOST = 100_000  # rows among which the largest one in a hundred are told


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
    request: Request,
    *,
    target: str,
    against: str = LOGGING,
    baseline: float,
    count: int = 10,
    table: str | Sequence[str] | None = None,
    query: str | None = None,
    external_access: bool = False,
) -> Heaviest:
    """The rows whose parts (w₁ − w₂)(r − β)/n of a difference are largest, among those that the request's estimates rest on.

    >>> from counterpoise import compare
    >>> log = pl.DataFrame({"r": [1.0, 0.0, 9.0], "p": [0.5, 0.5, 0.1], "new": [0.5, 0.4, 0.8]})
    >>> asked = compare(log, reward="r", propensity="p", target="new").request
    >>> found = heaviest(log, asked, target="new", baseline=0.0, count=1)
    >>> found.rows[0].row, round(found.rows[0].part, 6)
    (2, 21.0)
    """
    weight = {name: pl.col(f"t{k}") / pl.col("p") for k, name in enumerate(request.targets)}
    w, v = weight[target], pl.lit(1.0) if against == LOGGING else weight[against]
    part = (w - v) * (pl.col("r") - baseline)
    columns = [pl.col(ROW), pl.col("r"), pl.col("p"), w.alias("w"), v.alias("v"), part.alias("part")]
    size = pl.col("part").abs()
    order = [size, pl.col(ROW)]  # of rows with equal parts the first

    def largest(batches: Iterator[pl.DataFrame]) -> Heaviest:
        n, total, top = 0, 0.0, pl.DataFrame()
        for batch in batches:
            parts = batch.select(columns)
            n, total = n + parts.height, total + float(parts.select(size.sum()).item())
            top = pl.concat([top, parts] if top.width else [parts]).top_k(
                max(MOST, count), by=order, reverse=[False, True]
            )
        top = top.sort(order, descending=[True, False])
        first = min(max(1, n // 100), MOST)
        carried = float(top.head(first).select(size.sum()).item())
        rows = (Row(int(k), r, p, w, v, part / n) for k, r, p, w, v, part in top.head(count).iter_rows())
        return Heaviest(n, tuple(rows), first, carried / total if total > 0 else 0.0)

    return over_good_rows(log, request, largest, table=table, query=query, external_access=external_access, number=ROW)
