"""Short logs in memory: NumPy has added them up before a query engine would have planned its query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from counterpoise.engines.query import Query, of_lists, powers_of, smoothed_lanes
from counterpoise.engines.scatter import gram
from counterpoise.engines.summarize import Answer, Largest
from counterpoise.log.good import is_believable, is_number, is_probability, is_propensity
from counterpoise.log.names import MODEL_ERROR, MODEL_REWARD, PROPENSITY, ROWS, Lane, Names
from counterpoise.log.question import Question
from counterpoise.log.rules import Problem
from counterpoise.moments import Floats, Powers
from counterpoise.moments.smoothed import Smoothed
from counterpoise.moments.tails import KEPT

if TYPE_CHECKING:
    from counterpoise.engines.memory import Memory

LONGEST = 20_000  # rows; from there on polars is faster
LISTS = 200_000  # the sums of their many columns are a product of matrices


def suits(frame: pl.DataFrame, question: Question) -> bool:
    """Whether there are so few rows, and the question is so plain, that NumPy is the fastest way."""
    longest = LONGEST if question.lists is None else LISTS
    return frame.height <= longest and not question.segment and question.groups == 1


@dataclass
class Short:
    """The engine for short logs; bad rows are the other engine's business."""

    inner: Memory
    skips_bad_rows = False

    def centers(self, *, only_good: bool) -> tuple[float, ...]:
        """The median of some rewards."""
        return self.inner.centers(only_good=only_good)

    def aggregate(self, query: Query) -> Answer:
        """The sums, by NumPy."""
        frame = self.inner.good_rows() if query.only_good else self.inner.frame
        names = query.names
        if names.apart:
            return self.inner.aggregate(query)
        columns = {
            name: frame.get_column(name).to_numpy().astype(np.float64, copy=False)
            for name in (*names.question.numbers, *(names.made_of() if names.question.makes_lists else ()))
        }
        if not _is_clean(columns, names):
            return self.inner.aggregate(query)
        return _answer(columns, query, frame.height)

    def problems(self) -> list[Problem]:
        """The bad rows, by number."""
        return self.inner.problems()

    def left_out(self, centers: Sequence[float]) -> tuple[Powers, ...]:
        """The good rewards of bad rows."""
        return self.inner.left_out(centers)

    def duplicates(self, n: int) -> int | None:
        """Counted over all batches."""
        return None


def _is_clean(columns: Mapping[str, Floats], names: Names) -> bool:
    """Whether every row obeys every rule; a null is a NaN here."""
    tests = {"propensity": is_propensity, "target": is_probability}
    with np.errstate(invalid="ignore"):
        for name, (part, _) in names.question.numbers.items():
            if not tests.get(part, is_number)(columns[name]).all():
                return False
        if PROPENSITY not in columns:
            return True
        return all(is_believable(columns[name], columns[PROPENSITY]).all() for name in names.targets)


def _answer(columns: dict[str, Floats], query: Query, rows: int) -> Answer:
    names, question = query.names, query.names.question
    centers = query.centers if query.own is None else tuple(float(query.own[name][0]) for name in names.centers)
    numbers = {ROWS: np.array([float(rows)])}
    for j, name in enumerate(names.rewards):
        columns[names.shifted[j]] = columns[name] - centers[j]
        low, high = (columns[name].min(), columns[name].max()) if rows else (np.nan, np.nan)
        numbers |= {f"{name}_min": np.array([low]), f"{name}_max": np.array([high])}
        numbers[names.centers[j]] = np.array([centers[j]])
    if names.values and not question.makes_lists:
        columns[MODEL_ERROR] = columns[names.rewards[0]] - columns[MODEL_REWARD]
    if names.values:
        for made, value in zip(names.centered_values, names.values, strict=True):
            columns[made] = columns[value] - centers[0]
        for made, (value, other) in names.value_differences.items():
            columns[made] = columns[value] - columns[other] - centers[0]
    for made, name, mean in zip(names.centered_controls, names.controls, question.control.values(), strict=True):
        columns[made] = columns[name] - mean
    for made, name, feature in zip(names.centered_features, names.features, question.features, strict=True):
        columns[made] = columns[name] - feature.center
    for lane in names.lanes:
        columns[lane.excess] = _excess(columns, lane)
        if question.makes_lists:
            columns |= of_lists(lane, names, centers[lane.reward], columns.__getitem__)
        if lane.rung:
            numbers[lane.peak] = np.array([columns[lane.excess].max() if rows else np.nan])
        for name, (first, second) in lane.products.items():
            columns[name] = columns[first] * columns[second]
        numbers |= _sums(columns, lane, names)
        for name, (column, order) in powers_of(names, [lane]).items():
            numbers.setdefault(name, np.array([_power_sum(columns[column], order)]))
        for one in smoothed_lanes(names, [lane]):
            sums = Smoothed.of(
                (1.0 + columns[one.excess]) * columns[names.rewards[one.reward]], question.smoothings
            ).sums
            numbers |= {names.smoothed(one, k): sums[k : k + 1] for k in range(len(sums))}
        if not lane.contrast[1]:
            numbers[lane.zeros] = np.array([float(lane.weight.is_zero(columns[lane.target]).sum())])

    def largest(lane: Lane) -> Largest:
        return {(): 1.0 + np.sort(columns[lane.excess])[::-1][:KEPT]}

    return Answer(numbers, [()] if rows else [], rows, True, largest)


def _excess(columns: Mapping[str, Floats], lane: Lane) -> Floats:
    weight, t, p = lane.weight, columns[lane.target], columns.get(PROPENSITY)
    found = weight.excess(t, p) if lane.other is None else weight.difference(t, columns[lane.other], p)
    return np.asarray(found, dtype=np.float64)


def _power_sum(x: Floats, order: int) -> float:
    square = x * x
    other = x if order == 3 else square
    # for more, BLAS takes several threads, which costs more than it saves where the engine has one on every core
    return float(square @ other if len(x) <= LONGEST else np.einsum("i,i->", square, other))


def _sums(columns: Mapping[str, Floats], lane: Lane, names: Names) -> dict[str, Floats]:
    used = list(lane.columns.values())
    rows = np.stack([columns[name] for name in used])
    products = rows @ rows.T if rows.shape[1] <= LONGEST else gram(rows)
    found = {name: np.array([total]) for name, total in zip(used, rows.sum(axis=1), strict=True)}
    for i, j in combinations_with_replacement(range(len(used)), 2):
        found.setdefault(names.product(used[i], used[j]), np.array([products[i, j]]))
    return found
