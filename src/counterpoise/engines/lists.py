"""Rows made into lists: by any engine, or in one pass where the rows of a list follow each other.

Nothing is taken for granted. Rows that are not in order, or break any rule, are left to the query that works for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.log.good import LARGEST, is_number, is_probability, is_propensity
from counterpoise.log.lists import BITS, DISCOUNT, LENGTH, LIST, POSITION, Lists
from counterpoise.log.question import (
    GROUP,
    MODEL_REWARD,
    PROPENSITY,
    Question,
    excess_of,
    gain_of,
    length_of,
    reward_of,
)
from counterpoise.log.rules import fault_of, indicator, is_good, list_rules, rules_of
from counterpoise.moments import Floats

# -- One row per list: what lists in long form are made into before anything is added up, by a query that every engine has ---

Frame = nw.LazyFrame[Any]

RANK = "rank"


def collapse(
    rows: Frame,
    question: Question,
    targets: Sequence[str] | None = None,
    fence: Callable[[Frame], Frame] = lambda frame: frame,
) -> Frame:
    """One row per list, from rows under internal names; bad lists have nothing but their faults.

    Every position becomes a few columns of its list, so that products down the list are plain arithmetic, in which a weight of 0 is a
    weight like any other. `targets` are those to make columns for, by default all. A `fence` keeps databases from writing one step's
    expressions into the next.
    """
    names = question.names
    chosen = list(names.targets if targets is None else targets)
    rows = fence(_with_marks(rows, question, chosen))
    rows = fence(_by_rank(rows, question, chosen))
    by_list = fence(_sum_lists(rows, question, chosen))
    by_list = fence(_with_weights(by_list, question, chosen))
    is_whole = nw.all_horizontal(*(rule.holds for rule in list_rules(question, chosen)), ignore_nulls=False)
    values = [name for name, t in zip(names.values, names.targets, strict=False) if t in chosen]
    numbers = [*names.rewards, *chosen, *values, *names.made_of(chosen)]
    # numbered faults stay, for whoever asks what is wrong
    return by_list.with_columns(*(nw.when(is_whole).then(nw.col(name)).alias(name) for name in numbers))


def _with_marks(rows: Frame, question: Question, targets: Sequence[str]) -> Frame:
    """The rows with a mark for each rule that they break, and no numbers where they break any."""
    of_rows = question.of_rows
    rules = rules_of(of_rows, targets)
    marks = {fault_of(rule, question): indicator(~rule.holds.fill_null(False)) for rule in rules}
    good = is_good(of_rows, targets)
    left_out = {name for name in question.names.targets if name not in targets}
    left_out |= {v for v, t in zip(question.names.values, question.names.targets, strict=False) if t in left_out}
    numbers = [name for name in of_rows.numbers if name not in left_out]
    kept = {name: nw.when(good).then(nw.col(name)) for name in numbers}
    return rows.with_columns(**marks, **kept)


def _by_rank(rows: Frame, question: Question, targets: Sequence[str]) -> Frame:
    """The rows with what they add to their list, at every position or to the whole."""
    names, lists = question.names, cast(Lists, question.lists)
    rank, p = nw.col(POSITION) - (lists.first - 1.0), nw.col(PROPENSITY)
    counts = nw.col(DISCOUNT) if lists.discount_column is not None else _counts(rank, lists)
    first = {t: (nw.col(t) - p) / p for t in targets} | {DISCOUNT: counts, RANK: rank}
    rows = rows.with_columns(**first)
    rows = rows.with_columns(**{r: nw.col(r) * nw.col(DISCOUNT) for r in names.rewards})
    made: dict[str, nw.Expr] = {BITS: _powers_of_two(lists.depth)}
    pivot = _apart(question, targets)
    for k in range(1, lists.depth + 1):
        here = nw.col(RANK) == k
        made |= {_at(name, k): nw.when(here).then(nw.col(name)).otherwise(nw.lit(0.0)) for name in pivot}
    return rows.with_columns(**made)


def _apart(question: Question, targets: Sequence[str]) -> list[str]:
    """The columns of which a list keeps every position apart."""
    names, weight = question.names, question.weight
    columns = [*targets] if weight.is_running or weight.by_position else []
    columns += names.rewards if weight.by_position else []
    return columns + ([MODEL_REWARD, DISCOUNT, *(v for v, _ in _values(question, targets))] if names.values else [])


def _sum_lists(rows: Frame, question: Question, targets: Sequence[str]) -> Frame:
    """The sums of every list, and the ends of what must be the same on all of its rows."""
    names, lists = question.names, cast(Lists, question.lists)
    marks = [fault_of(rule, question) for rule in rules_of(question.of_rows, targets)]
    pivot = _apart(question, targets)
    sums = [*marks, *names.rewards, *targets, BITS, *(_at(n, k) for n in pivot for k in range(1, lists.depth + 1))]
    wanted = [nw.len().cast(nw.Float64).alias(LENGTH), *(nw.col(name).sum() for name in sums)]
    for name in [*names.segments, *([GROUP] if question.groups > 1 else [])]:
        wanted += [nw.col(name).min().alias(f"{name}_low"), nw.col(name).max().alias(f"{name}_high")]
        wanted.append(nw.col(name).count().cast(nw.Float64).alias(f"{name}_count"))
    by_list = rows.group_by(LIST).agg(*wanted)
    kept = [*names.segments, *([GROUP] if question.groups > 1 else [])]
    return by_list.with_columns(*(nw.col(f"{name}_low").alias(name) for name in kept)) if kept else by_list


def _with_weights(by_list: Frame, question: Question, targets: Sequence[str]) -> Frame:
    """The lists with their weights, and what those make of their rewards."""
    names, weight = question.names, question.weight
    if not targets:
        return by_list
    if not weight.is_running and not weight.by_position:
        # of a list's weight less 1, 1 − K + Σw − 1 = Σ(w − 1), the sum is there already
        lengths = {length_of(t): nw.col(LENGTH) * nw.col(t) for t in targets}
        return by_list.with_columns(**_of_whole(names.rewards, targets), **lengths)
    lists = cast(Lists, question.lists)
    depth = lists.depth
    for k in range(1, depth + 1):  # step by step, or the text of a statement would double each time
        made: dict[str, nw.Expr] = {}
        for t in targets:
            u = nw.col(_at(t, k))
            above = nw.col(excess_of(t, k - 1)) if weight.is_running and k > 1 else None
            made[excess_of(t, k)] = u if above is None else above * (u + 1.0) + u
        by_list = by_list.with_columns(**made)
    if not weight.by_position:
        by_list = by_list.with_columns(**{t: nw.col(excess_of(t, depth)) for t in targets})
        return by_list.with_columns(**_of_whole(names.rewards, targets))
    # below the end of a list, where u is 0, a running product stays what it was, so that its mean is 1 wherever lists end
    made = {}
    for t in targets:
        excess = {k: nw.col(excess_of(t, k)) for k in range(1, depth + 1)}
        made[t] = _sum([excess[k] * share for k, share in lists.shares.items()])
        for j, r in enumerate(names.rewards):
            made |= {reward_of(t, j, k): nw.col(_at(r, k)) * (u + 1.0) for k, u in excess.items()}
            made[gain_of(t, j)] = _sum([nw.col(_at(r, k)) * u for k, u in excess.items()])
        if question.keeps_lengths:
            made[length_of(t)] = nw.col(LENGTH) * _sum(list(excess.values()))
    if names.values:
        made |= _with_model(question, targets)
    return by_list.with_columns(**made)


def _with_model(question: Question, targets: Sequence[str]) -> dict[str, nw.Expr]:
    r"""The columns of a model: e and u·e, which with v make the doubly robust term of a list.

    For independent positions that is Σ d_k [w_k (r_k − q_k) + v_k]. Down the cascade it is Σ [w_{1:k} (d_k r_k − q_k) + w_{1:k−1} v_k],
    where q_k and v_k speak of all the rewards from k on, so that v_1 alone is the model's value of the list.
    """
    depth, reward, is_running = (
        question.lists.depth if question.lists else 0,
        question.names.rewards[0],
        question.weight.is_running,
    )
    made: dict[str, nw.Expr] = {}
    for v, t in _values(question, targets):
        e, ue, value = [], [], []
        for k in range(1, depth + 1):
            u, q, expected, d = (
                nw.col(excess_of(t, k)),
                nw.col(_at(MODEL_REWARD, k)),
                nw.col(_at(v, k)),
                nw.col(_at(DISCOUNT, k)),
            )
            left = nw.col(_at(reward, k)) - (q if is_running else d * q)
            e.append(left)
            ue.append(u * left)
            if not is_running:
                value.append(d * expected)
            elif k == 1:
                value.append(expected)
            else:
                e.append(expected)
                ue.append(nw.col(excess_of(t, k - 1)) * expected)
        made |= {f"{t}_e": _sum(e), f"{t}_ue": _sum(ue), v: _sum(value)}
    return made


def _of_whole(rewards: Sequence[str], targets: Sequence[str]) -> dict[str, nw.Expr]:
    return {gain_of(t, j): nw.col(t) * nw.col(r) for t in targets for j, r in enumerate(rewards)}


def _values(question: Question, targets: Sequence[str]) -> list[tuple[str, str]]:
    names = question.names
    return [(v, t) for v, t in zip(names.values, names.targets, strict=False) if t in targets]


def _counts(rank: nw.Expr, lists: Lists) -> nw.Expr:
    """What the rewards count at each rank, where no column says it."""
    if lists.discount is None:
        return rank * 0.0 + 1.0
    counts = nw.lit(lists.counts(lists.depth))
    for k in range(1, lists.depth):
        counts = nw.when(rank == k).then(nw.lit(lists.counts(k))).otherwise(counts)
    return counts


def _powers_of_two(depth: int) -> nw.Expr:
    """2 to the power of the rank less 1: n of them add up to 2ⁿ − 1 only if they are 1, 2, 4, … once each."""
    powers = nw.lit(0.0)
    for k in range(1, depth + 1):
        powers = nw.when(nw.col(RANK) == k).then(nw.lit(2.0 ** (k - 1))).otherwise(powers)
    return powers


def _at(name: str, rank: int) -> str:
    return f"{name}_at{rank}"


def _sum(terms: Sequence[nw.Expr]) -> nw.Expr:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


# -- Lists whose rows stand together and in order, as loggers write them: NumPy makes lists of them in passing, without a query ---


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
        if sum(lists.height for lists in held) >= TOGETHER:
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
    tables = {name: _table(column, len(first), lists.depth, spot) for name, column in columns.items()}
    made = _made(tables, question, lists, length) | {LENGTH: length.astype(np.float64)}
    if not all(is_number(column).all() for column in made.values()):
        raise OutOfOrderError
    frame = pl.DataFrame(made)
    if question.groups > 1:
        frame = frame.with_columns(_same(rows.get_column(GROUP), first, is_new))
    return frame


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
    table = np.zeros(lists * depth)
    table[spot] = values
    return table.reshape(lists, depth)


def _made(tables: Columns, question: Question, lists: Lists, length: Array) -> dict[str, Floats]:
    """The columns of lists that `collapse` makes, from tables of their positions."""
    names, weight, p = question.names, question.weight, tables[PROPENSITY]
    counts = np.array([lists.counts(k) for k in range(1, lists.depth + 1)])
    there = None if (length == len(counts)).all() else np.arange(len(counts)) < length[:, None]
    rewards = [tables[name] * counts for name in names.rewards]
    made = {name: reward.sum(axis=1) for name, reward in zip(names.rewards, rewards, strict=True)}
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
    products = excess.copy()
    for k in range(1, excess.shape[1]):
        products[:, k] += products[:, k - 1] * (1.0 + excess[:, k])
    return products
