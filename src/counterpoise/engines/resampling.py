"""Logs like a given one: its clusters, rows or blocks drawn again with replacement, many times, without another look at the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.engines.query import Numbers, Query, aggregate, powers_of, singles_of, squares_of
from counterpoise.engines.rows import over_good_rows
from counterpoise.engines.summarize import Answer, assemble
from counterpoise.log.columns import GROUP, PROPENSITY, ROWS
from counterpoise.log.groups import with_groups
from counterpoise.log.question import Lane, Names, Question
from counterpoise.moments import Floats, LogMoments
from counterpoise.moments.log_moments import Label

# -- What is drawn again when logs like a given one are drawn: its clusters, its rows, or blocks of its rows, each as its sums ---

MOST = 20_000  # units: drawing logs from this many takes seconds
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
    are_distinct = rows <= MOST if grouped else True

    def work(batches: Iterator[pl.DataFrame]) -> Units:
        distinct: pl.DataFrame | None = pl.DataFrame() if are_distinct else None
        blocks = pl.DataFrame()
        for batch in batches:
            if distinct is not None:
                distinct = _distinct(distinct, batch, equal=not grouped)
                distinct = None if distinct.height > MOST else distinct
            if rows > MOST:
                dealt = pl.Series(GROUP, random.integers(MOST, size=batch.height))
                blocks = _add_up([blocks, _sums(batch.with_columns(dealt), query)])
        if distinct is None:
            return _units(question, center, blocks, np.ones(blocks.height), "blocks of rows")
        mass = distinct.get_column(COPIES).to_numpy().astype(np.float64)
        sums = _sums(distinct.drop(COPIES).with_columns(pl.int_range(pl.len()).alias(GROUP)), query).sort(GROUP)
        return _units(question, center, sums, mass, "rows")

    return over_good_rows(question, work)


def _by_cluster(batches: Iterator[pl.DataFrame], query: Query) -> pl.DataFrame:
    whole, is_hashed = pl.DataFrame(), False
    for batch in batches:
        sums = _sums(batch.rename({CLUSTER: GROUP}), query)
        whole = _add_up([whole, _hash_units(sums) if is_hashed else sums])
        if whole.height > MOST and not is_hashed:
            whole, is_hashed = _add_up([_hash_units(whole)]), True
    return whole


def _hash_units(frame: pl.DataFrame) -> pl.DataFrame:
    hashed: pl.DataFrame = with_groups(nw.from_native(frame, eager_only=True), MOST).to_native()
    return hashed


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
    sums: pl.DataFrame = aggregate(rows, query, peaks=list(peaks)).to_native().collect()
    return sums


def peak(target: str) -> str:
    """The name of a unit's largest weight."""
    return f"{target}_peak"


def _add_up(parts: list[pl.DataFrame]) -> pl.DataFrame:
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
    column = {name: np.full(len(mass), average) for name, average in mean.items()}
    for lane in names.lanes:
        own = lane.columns
        column |= {own["u"]: u[lane.excess], own["s"]: s, own["us"]: u[lane.excess] * s}
        column |= {own["e"]: s + (mean[own["e"]] - mean[own["s"]])} if "e" in own else {}
        products = {own[name]: factor for name, factor in lane.factors.items() if factor in column}
        column |= {name: u[lane.excess] * column[factor] for name, factor in products.items()}
    more = {ROWS: np.ones(len(mass))} | column
    more |= {name: column[a] * column[b] for name, (a, b) in squares_of(names, names.lanes).items()}
    more |= {name: column[a] ** order for name, (a, order) in powers_of(names, names.lanes).items()}
    high = dict.fromkeys(units.highest, reward) | {peak(t): weights[t] for t in names.targets}
    return replace(
        units,
        sums={name: np.append(column, more[name]) for name, column in units.sums.items()},
        lowest={name: np.append(column, reward) for name, column in units.lowest.items()},
        highest={name: np.append(column, high[name]) for name, column in units.highest.items()},
        mass=np.append(units.mass, mass),
    )


# -- Logs like a given one: its units drawn again with replacement, many times, and summed without another look at the rows ---


CELLS = 4_000_000  # of the matrix of counts that is in memory at a time
DRAWN = "log drawn again"
FARTHEST = 30.0  # a unit's mass changes by e to this power at most


def tilted(units: Units, excess: str) -> Units:
    r"""The units with other masses, as near to their own as possible, under which the weights have mean 1.

    .. math:: m_k \to m_k e^{-\lambda u_k}, \qquad \sum_k m_k e^{-\lambda u_k} u_k = 0

    In the world that wrote the log, E[w] = 1, and estimators rely on it. In the log itself the mean may be 0.9 or 1.1, so in logs
    drawn from it a baseline would add an error that it does not have in the world.

    References
    ----------
    Hall & Presnell, "Intentionally biased bootstrap methods", Journal of the Royal Statistical Society B 61 (1999).
    """
    u, rows = units.sums[excess], units.sums[ROWS]
    size = np.abs(u).max()
    if not u.min() < 0.0 < u.max():
        return units  # no masses at all give a mean of 1
    scaled = u / size
    low, high = -FARTHEST, FARTHEST
    for _ in range(100):
        middle = (low + high) / 2
        total = float((units.mass * np.exp(-middle * scaled) * scaled).sum())
        low, high = (middle, high) if total > 0 else (low, middle)
    mass = units.mass * np.exp(-middle * scaled)
    return replace(units, mass=mass * (round(float(units.mass @ rows)) / float(mass @ rows)))


def drawn_again(
    units: Units, runs: int, *, groups: int, random: np.random.Generator, report: Callable[[int], None] | None = None
) -> LogMoments:
    """The moments of logs that were drawn again, one per segment; the first is of the units themselves, each as often as it is there.

    As many units are drawn as there are, with replacement and in proportion to their masses. Where there are `groups`, every unit that is
    drawn falls into one of them at random, as a cluster that is hashed.
    """
    step = max(1, CELLS // (len(units) + (groups - 1) * len(units.sums)))
    parts = [_sums_of_logs(units, units.mass[None, :], groups, random)]
    share = units.mass / units.mass.sum()
    for start in range(0, runs, step):
        counts = random.multinomial(round(units.mass.sum()), share, size=min(step, runs - start))
        parts.append(_sums_of_logs(units, counts.astype(np.float64), groups, random))
        if report is not None:
            report(len(counts))
    together = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return _as_moments(units, together, groups)


def _sums_of_logs(units: Units, counts: Floats, groups: int, random: np.random.Generator) -> dict[str, Floats]:
    """The sums of some drawn logs, logs × groups, and their extremes."""
    columns = np.stack(list(units.sums.values()), axis=1)
    sums = (counts @ columns)[:, None] if groups == 1 else _by_group(counts, columns, groups, random)
    numbers = {name: sums[..., k] for k, name in enumerate(units.sums)}
    there = counts > 0
    numbers |= {name: np.where(there, column, np.inf).min(axis=1) for name, column in units.lowest.items()}
    return numbers | {name: np.where(there, column, -np.inf).max(axis=1) for name, column in units.highest.items()}


def _by_group(counts: Floats, columns: Floats, groups: int, random: np.random.Generator) -> Floats:
    """Puts every copy of a unit into a group of its own; fractions of the log itself stay together."""
    from scipy.sparse import csr_array

    logs, units = counts.shape
    log, unit = np.nonzero(counts)
    often = counts[log, unit]
    copies = np.maximum(often.astype(np.int64), 1)
    log, unit, each = np.repeat(log, copies), np.repeat(unit, copies), np.repeat(often / copies, copies)
    spot = log * groups + random.integers(groups, size=len(log))
    summed = csr_array((each, (spot, unit)), shape=(logs * groups, units)) @ columns
    return np.asarray(summed).reshape(logs, groups, -1)


def _as_moments(units: Units, sums: Mapping[str, Floats], groups: int) -> LogMoments:
    """Sums of logs × groups as moments, as an engine's answer would be."""
    names = Names(replace(units.question, segment=(DRAWN,), groups=groups))
    logs = len(sums[ROWS])
    peaks = {target: sums[peak(target)] for target in names.targets}
    labels: list[Label] = [(k,) for k in range(logs) for _ in range(groups)]

    def largest(lane: Lane) -> dict[Label, Floats]:
        return {(k,): peaks[lane.target][k : k + 1] for k in range(logs)}

    numbers = {name: np.repeat(column, groups) if column.ndim == 1 else column.ravel() for name, column in sums.items()}
    numbers |= {lane.zeros: np.zeros(logs * groups) for lane in names.lanes}
    numbers |= {GROUP: np.tile(np.arange(groups, dtype=np.float64), logs), ROWS: np.rint(numbers[ROWS])}
    rows = int(numbers[ROWS].sum())
    return assemble(Answer(numbers, labels, rows, True, largest), Query(names, (units.center,)), rows)[0]
