"""Lists whose rows stand together and in order, as loggers write them: NumPy makes lists of them in passing, without a query.

Nothing is taken for granted. Rows that are not in order, or break any rule, are left to the query that works for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.log.good import LARGEST, is_number, is_probability, is_propensity
from counterpoise.log.lists import LENGTH, LIST, POSITION, Lists
from counterpoise.log.names import GROUP, PROPENSITY, excess_of, gain_of, length_of, reward_of
from counterpoise.log.question import Question
from counterpoise.moments import Floats

TOGETHER = 100_000  # lists

Columns = Mapping[str, Floats]
Array = NDArray[Any]


class OutOfOrderError(Exception):
    """Rows that are not whole lists one after the other, or not all good."""


def suits(question: Question) -> bool:
    """Whether lists need nothing but what is done here."""
    lists = question.lists
    return lists is not None and not question.segment and not question.model_value and lists.discount_column is None


def in_order(batches: Iterable[pl.DataFrame], question: Question) -> Iterator[pl.DataFrame]:
    """One row per list, as `_one_by_one` makes them, of many small batches at a time: adding up has a price for each."""
    held: list[pl.DataFrame] = []
    for lists in _one_by_one(batches, question):
        held.append(lists)
        if sum(one.height for one in held) >= TOGETHER:
            yield pl.concat(held)
            held = []
    if held:
        yield pl.concat(held)


def _one_by_one(batches: Iterable[pl.DataFrame], question: Question) -> Iterator[pl.DataFrame]:
    """One row per list, from batches of rows under internal names; the last list of a batch may go on in the next."""
    lists = cast(Lists, question.lists)
    starts: list[pl.Series] = []
    held = pl.DataFrame()
    for batch in batches:
        rows = pl.concat([held, batch]) if held.height else batch
        ids = rows.get_column(LIST)
        if not rows.height:
            continue
        cut = int(ids.ne_missing(ids[-1]).reverse().arg_max() or 0) if ids[0] != ids[-1] else rows.height
        held, rows = rows.tail(cut), rows.head(rows.height - cut)
        if rows.height:
            yield _lists(rows, question, lists, starts)
        elif held.height > 2 * batch.height + 1000:
            raise OutOfOrderError
    if held.height:
        yield _lists(held, question, lists, starts)
    if starts:
        known = pl.concat(starts)
        if known.n_unique() < known.len():  # a list that goes on somewhere else
            raise OutOfOrderError


def _lists(rows: pl.DataFrame, question: Question, lists: Lists, starts: list[pl.Series]) -> pl.DataFrame:
    """The lists of some rows, which begin and end with whole lists."""
    ids = rows.get_column(LIST)
    if ids.null_count():
        raise OutOfOrderError
    is_new = np.append(True, (ids[1:] != ids[:-1]).to_numpy())
    first = np.flatnonzero(is_new)
    length = np.diff(np.append(first, rows.height))
    rank = rows.get_column(POSITION).to_numpy() - (lists.first - 1)
    below = np.empty(len(rank))
    below[0], below[1:] = 1.0, rank[:-1] + 1.0
    if not (np.where(is_new, 1.0, below) == rank).all():
        raise OutOfOrderError
    starts.append(ids.gather(first))
    columns = {name: _good(rows.get_column(name).to_numpy(), name, question) for name in question.of_rows.numbers}
    spot = None if (length == lists.depth).all() else (np.cumsum(is_new) - 1) * lists.depth + rank.astype(np.int64) - 1
    made = _made(
        {name: _table(one, len(first), lists.depth, spot) for name, one in columns.items()}, question, lists, length
    )
    made |= {LENGTH: length.astype(np.float64)}
    if not all(is_number(one).all() for one in made.values()):
        raise OutOfOrderError
    found = pl.DataFrame(made)
    if question.groups > 1:
        found = found.with_columns(_same(rows.get_column(GROUP), first, is_new))
    return found


def _good(values: Floats, name: str, question: Question) -> Floats:
    part = question.of_rows.numbers[name][0]
    test = {"propensity": is_propensity, "target": is_probability}.get(part, is_number)
    with np.errstate(invalid="ignore"):
        if not test(values).all() or (part == "propensity" and not values.min() * LARGEST >= 1.0):
            raise OutOfOrderError
    return values.astype(np.float64, copy=False)


def _same(group: pl.Series, first: Array, is_new: Array) -> pl.Series:
    """The cluster of every list, which is one for all of its rows."""
    if group.null_count() or not ((group[1:] == group[:-1]).to_numpy() | is_new[1:]).all():
        raise OutOfOrderError
    return group.gather(first)


def _table(values: Floats, lists: int, depth: int, spot: Array | None) -> Floats:
    """Lists × positions, with 0 below the end of a list."""
    if spot is None:
        return values.reshape(lists, depth)
    found = np.zeros(lists * depth)
    found[spot] = values
    return found.reshape(lists, depth)


def _made(tables: Columns, question: Question, lists: Lists, length: Array) -> dict[str, Floats]:
    """The columns of lists that `collapse` makes, from tables of their positions."""
    names, weight, p = question.names, question.weight, tables[PROPENSITY]
    counts = np.array([lists.counts(k) for k in range(1, lists.depth + 1)])
    there = None if (length == len(counts)).all() else np.arange(len(counts)) < length[:, None]
    rewards = [tables[name] * counts for name in names.rewards]
    made = {name: one.sum(axis=1) for name, one in zip(names.rewards, rewards, strict=True)}
    share = np.array(list(lists.shares.values()))
    for target in names.targets:
        excess = (
            (tables[target] - p) / p
            if there is None
            else np.divide(tables[target] - p, p, out=np.zeros(p.shape), where=there)
        )
        if weight.is_running:
            excess = _running(excess)  # which goes on below the end of a list
        else:
            made[length_of(target)] = length * excess.sum(axis=1)
        if not weight.by_position:
            made[target] = excess[:, -1] if weight.is_running else excess.sum(axis=1)
            made |= {gain_of(target, j): made[target] * made[name] for j, name in enumerate(names.rewards)}
            continue
        made[target] = excess @ share
        made |= {excess_of(target, k + 1): np.ascontiguousarray(excess[:, k]) for k in range(len(counts))}
        for j, reward in enumerate(rewards):
            gain = excess * reward
            made[gain_of(target, j)] = gain.sum(axis=1)
            gain += reward
            made |= {reward_of(target, j, k + 1): np.ascontiguousarray(gain[:, k]) for k in range(len(counts))}
    return made


def _running(excess: Floats) -> Floats:
    """The excess of products down the list: w₁⋯wₖ − 1 = (w₁⋯wₖ₋₁ − 1)(1 + uₖ) + uₖ, which keeps the digits of weights near 1."""
    found = excess.copy()
    for k in range(1, excess.shape[1]):
        found[:, k] += found[:, k - 1] * (1.0 + excess[:, k])
    return found
