"""Finds the rows that drive a difference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import polars as pl

from counterpoise.display import ROWS, Block, Display, Number, Table, finite, percent
from counterpoise.engines.rows import over_good_rows
from counterpoise.log.question import LOGGING, PROPENSITY, Question

ROW = "row number in the log"  # a name that no log has
WEIGHT, OTHER = "its weight", "the other weight"
MOST = 100_000  # rows among which the largest one in a hundred are told


@dataclass(frozen=True)
class Row:
    """A row, its weights under both policies, and its part in the difference."""

    row: int
    reward: float
    propensity: float
    weight: float
    other_weight: float
    part: float


@dataclass(frozen=True, repr=False)
class Heaviest(Display):
    """The rows with the largest parts, and the share of all parts (by size) that the largest one percent of rows carry."""

    n: int
    rows: tuple[Row, ...]
    top_rows: int
    top_share: float
    target: str = ""

    def document(self) -> dict[str, Any]:
        """What `counterpoise compare --rows` adds to a document."""
        return {"heaviest": finite(self)}

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """How much the largest rows carry, and what they are."""
        yield (
            f"The {self.top_rows:,} heaviest of {self.n:,} rows carry {percent(self.top_share)} of what moves the difference of "
            f"{self.target}. The heaviest, numbered from 0:"
        )
        cells = [vars(row) | {"part": Number(row.part, is_signed=True)} for row in self.rows]
        yield Table(cells, titles={"other_weight": "other weight"}).first(rows)


def heaviest(question: Question, *, target: str, against: str = LOGGING, baseline: float, count: int = 10) -> Heaviest:
    """The rows whose parts (w₁ − w₂)(r − β)/n in a difference are largest, among the rows behind the question's estimates.

    >>> from counterpoise import compare
    >>> log = pl.DataFrame({"r": [1.0, 0.0, 9.0], "p": [0.5, 0.5, 0.1], "new": [0.5, 0.4, 0.8]})
    >>> asked = compare(log, reward="r", propensity="p", target="new").question
    >>> heavy = heaviest(asked, target="new", baseline=0.0, count=1)
    >>> heavy.rows[0].row, round(heavy.rows[0].part, 6)
    (2, 21.0)
    """
    columns = dict(zip(question.target_names, question.names.targets, strict=True))
    r, p, w, v = (nw.col(name) for name in (question.names.rewards[0], PROPENSITY, WEIGHT, OTHER))
    made = {WEIGHT: question.weight.weight(nw.col(columns[target]), p)}
    made[OTHER] = nw.lit(1.0) if against == LOGGING else question.weight.weight(nw.col(columns[against]), p)
    wanted = [nw.col(ROW), r.alias("r"), p.alias("p"), w, v, ((w - v) * (r - baseline)).alias("part")]
    size = pl.col("part").abs()
    order = [size, pl.col(ROW)]  # of rows with equal parts the first

    def largest(batches: Iterator[pl.DataFrame]) -> Heaviest:
        n, total, top = 0, 0.0, pl.DataFrame()
        for batch in batches:
            parts = nw.from_native(batch).with_columns(**made).select(*wanted).to_native()
            n, total = n + parts.height, total + float(parts.select(size.sum()).item())
            top = pl.concat([top, parts] if top.width else [parts]).top_k(
                max(MOST, count), by=order, reverse=[False, True]
            )
        top = top.sort(order, descending=[True, False])
        first = min(max(1, n // 100), MOST)
        carried = float(top.head(first).select(size.sum()).item())
        rows = (Row(int(k), r, p, w, v, part / n) for k, r, p, w, v, part in top.head(count).iter_rows())
        return Heaviest(n, tuple(rows), first, carried / total if total > 0 else 0.0, target)

    return over_good_rows(question, largest, number=ROW)
