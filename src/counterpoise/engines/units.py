"""What is drawn again when logs like a given one are drawn: its clusters, its rows, or blocks of its rows, each as its sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.engines.query import Numbers, Query, aggregate, powers_of, singles_of, squares_of
from counterpoise.engines.rows import over_good_rows
from counterpoise.log.groups import with_groups
from counterpoise.log.names import GROUP, PROPENSITY, ROWS
from counterpoise.log.question import Question
from counterpoise.moments import Floats
from counterpoise.moments.moments import SQUARE

MOST = 20_000  # units: so many times so many drawn logs are a matter of seconds
COPIES = "copies of this row"  # names that no log has
CLUSTER = "the cluster's id"


@dataclass(frozen=True, eq=False)
class Units:
    """The sums of every unit, and how often each is there.

    `sums` add up over the units that are drawn; of `lowest` (rewards) and `highest` (rewards and each target's weights), extremes count.
    """

    question: Question
    center: float
    sums: Numbers
    lowest: Numbers
    highest: Numbers
    mass: Floats
    are: str  # what people call them

    def __len__(self) -> int:
        return len(self.mass)


def units_of(question: Question, *, rows: int, center: float, random: np.random.Generator, grouped: bool) -> Units:
    """One pass over the good rows of a log of about so many `rows`.

    Rows with equal numbers are one unit with many copies. A log of more than `MOST` different rows is dealt at random into that many
    blocks, and one of more than `MOST` clusters into that many hashed groups of clusters: a sum over draws of blocks has the variance of
    a sum over draws of rows, because rows within a block are independent. `grouped` rows are not counted as copies, since each copy may
    fall into another group.
    """
    lean = replace(question, segment=(), groups=2)  # so that the aggregate is by unit
    query = Query(lean.names, (center,))
    if question.log.cluster is not None:
        whole = over_good_rows(question, lambda batches: _by_cluster(batches, query), cluster=CLUSTER)
        return _units(question, center, whole, np.ones(whole.height), "clusters")
    keep = rows <= MOST if grouped else True

    def work(batches: Iterator[pl.DataFrame]) -> Units:
        distinct: pl.DataFrame | None = pl.DataFrame() if keep else None
        blocks = pl.DataFrame()
        for batch in batches:
            if distinct is not None:
                distinct = _distinct(distinct, batch, equal=not grouped)
                distinct = None if distinct.height > MOST else distinct
            if rows > MOST:
                dealt = pl.Series(GROUP, random.integers(MOST, size=batch.height))
                blocks = _added([blocks, _sums(batch.with_columns(dealt), query)])
        if distinct is None:
            return _units(question, center, blocks, np.ones(blocks.height), "blocks of rows")
        mass = distinct.get_column(COPIES).to_numpy().astype(np.float64)
        one = _sums(distinct.drop(COPIES).with_columns(pl.int_range(pl.len()).alias(GROUP)), query).sort(GROUP)
        return _units(question, center, one, mass, "rows")

    return over_good_rows(question, work)


def _by_cluster(batches: Iterator[pl.DataFrame], query: Query) -> pl.DataFrame:
    whole, is_hashed = pl.DataFrame(), False
    for batch in batches:
        one = _sums(batch.rename({CLUSTER: GROUP}), query)
        whole = _added([whole, _hashed(one) if is_hashed else one])
        if whole.height > MOST and not is_hashed:
            whole, is_hashed = _added([_hashed(whole)]), True
    return whole


def _hashed(frame: pl.DataFrame) -> pl.DataFrame:
    found: pl.DataFrame = with_groups(nw.from_native(frame, eager_only=True), MOST).to_native()
    return found


def _distinct(known: pl.DataFrame, batch: pl.DataFrame, *, equal: bool) -> pl.DataFrame:
    """The different rows so far, and how often each came up."""
    more = batch.with_columns(pl.lit(1, dtype=pl.Int64).alias(COPIES))
    together = pl.concat([known, more]) if known.width else more
    if not equal:
        return together
    return together.group_by(batch.columns, maintain_order=True).agg(pl.col(COPIES).sum())


def _sums(frame: pl.DataFrame, query: Query) -> pl.DataFrame:
    """The sums and extremes of every unit, whose number is in the column of groups."""
    names = query.names
    weight = names.question.weight
    p = nw.col(PROPENSITY) if weight.needs_propensity else None
    peaks = {peak(target): weight.weight(nw.col(target), p) for target in names.targets}
    rows = nw.from_native(frame.lazy()).with_columns(**peaks)
    found: pl.DataFrame = aggregate(rows, query, peaks=list(peaks)).to_native().collect()
    return found


def peak(target: str) -> str:
    """The name of a unit's largest weight."""
    return f"{target}_peak"


def _added(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """The sums of units that are in several parts."""
    known = [part for part in parts if part.width]
    whole = pl.concat(known)
    ends = {"min": pl.Expr.min, "max": pl.Expr.max, "peak": pl.Expr.max}
    makers = {name: ends.get(name.rpartition("_")[2], pl.Expr.sum) for name in whole.columns if name != GROUP}
    added = whole.group_by(GROUP).agg(make(pl.col(name)) for name, make in makers.items())
    return added.sort(GROUP)  # the same draws from the same log, whatever order an engine answers in


def _units(question: Question, center: float, whole: pl.DataFrame, mass: Floats, are: str) -> Units:
    names = question.names
    lanes = names.lanes
    wanted = [ROWS, *singles_of(lanes), *squares_of(names, lanes), *powers_of(names, lanes)]
    numbers = {name: whole.get_column(name).cast(pl.Float64).to_numpy() for name in whole.columns if name != GROUP}
    low, high = f"{names.rewards[0]}_min", f"{names.rewards[0]}_max"
    highest = {high: numbers[high]} | {peak(t): numbers[peak(t)] for t in names.targets}
    return Units(question, center, {name: numbers[name] for name in wanted}, {low: numbers[low]}, highest, mass, are)


def with_unseen(units: Units, u: dict[str, Floats], weights: dict[str, Floats], reward: Floats, mass: Floats) -> Units:
    """The units and rows that did not come up: their excess in every lane, their weights, their rewards and how often they are there.

    What a reward model says of them, and their control variates, are what those are on average.
    """
    names, rows = units.question.names, float(units.mass @ units.sums[ROWS])
    s = reward - units.center
    mean = {name: float(units.mass @ units.sums[name]) / rows for name in singles_of(names.lanes)}
    column = {name: np.full(len(mass), one) for name, one in mean.items()}
    for lane in names.lanes:
        own = lane.columns
        column |= {own["u"]: u[lane.excess], own["s"]: s, own["us"]: u[lane.excess] * s}
        if SQUARE in own:
            column[own[SQUARE]] = np.square(u[lane.excess])
        if "e" in own:
            e = s + (mean[own["e"]] - mean[own["s"]])
            column |= {own["e"]: e, own["ue"]: u[lane.excess] * e}
    more = {ROWS: np.ones(len(mass))} | column
    more |= {name: column[a] * column[b] for name, (a, b) in squares_of(names, names.lanes).items()}
    more |= {name: column[a] ** order for name, (a, order) in powers_of(names, names.lanes).items()}
    high = dict.fromkeys(units.highest, reward) | {peak(t): weights[t] for t in names.targets}
    return replace(
        units,
        sums={name: np.append(one, more[name]) for name, one in units.sums.items()},
        lowest={name: np.append(one, reward) for name, one in units.lowest.items()},
        highest={name: np.append(one, high[name]) for name, one in units.highest.items()},
        mass=np.append(units.mass, mass),
    )
