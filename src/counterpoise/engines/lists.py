"""Rows made into lists: by any engine, or in one pass where the rows of a list follow each other.

Nothing is assumed: rows that are out of order, or break any rule, are left to the query that works for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import cast

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.engines.query import Frame, Numbers, is_fine, numbers_for
from counterpoise.log.columns import GROUP, MODEL_REWARD, PROPENSITY
from counterpoise.log.expressions import indicator
from counterpoise.log.good import LARGEST
from counterpoise.log.kinds.kind import Term
from counterpoise.log.question import Question
from counterpoise.log.rules import fault_of, is_good, made_rules, rules_of
from counterpoise.log.sequences import (
    BITS,
    CUT_OFF,
    DISCOUNT,
    DONE,
    DONE_AT,
    LENGTH,
    LIST,
    POSITION,
    Sequences,
    excess_of,
    gain_of,
    length_of,
    made_of,
    reward_of,
)
from counterpoise.moments import Floats

# -- One row per list: what lists in long form are made into before anything is added up, by a query that every engine has ---

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
    for columns in _steps(question, chosen, nw.col):
        by_list = by_list.with_columns(**columns)
    by_list = fence(by_list)
    is_whole = nw.all_horizontal(*(rule.holds for rule in made_rules(question, chosen)), ignore_nulls=False)
    values = [name for name, t in zip(names.values, names.targets, strict=False) if t in chosen]
    numbers = [*names.rewards, *chosen, *values, *made_of(names, chosen)]
    # numbered faults stay, for finding out what is wrong
    return by_list.with_columns(*(nw.when(is_whole).then(nw.col(name)).alias(name) for name in numbers))


def _with_marks(rows: Frame, question: Question, targets: Sequence[str]) -> Frame:
    """The rows with a mark for each rule that they break, and no numbers where they break any."""
    of_rows = question.of_rows
    rules = rules_of(of_rows, targets)
    marks = {fault_of(rule, question): indicator(~rule.holds.fill_null(False)) for rule in rules}
    good = is_good(of_rows, targets)
    kept = {name: nw.when(good).then(nw.col(name)) for name in numbers_for(of_rows, targets)}
    return rows.with_columns(**marks, **kept)


def _by_rank(rows: Frame, question: Question, targets: Sequence[str]) -> Frame:
    """The rows with what they add to their list, at every position or to the whole."""
    names, lists = question.names, cast(Sequences, question.sequences)
    rank, p = nw.col(POSITION) - (lists.first - 1.0), nw.col(PROPENSITY)
    counts = nw.col(DISCOUNT) if lists.discount_column is not None else _counts(rank, lists)
    first = {t: (nw.col(t) - p) / p for t in targets} | {DISCOUNT: counts, RANK: rank}
    rows = rows.with_columns(**first)
    rows = rows.with_columns(**{r: nw.col(r) * nw.col(DISCOUNT) for r in names.rewards})
    made: dict[str, nw.Expr] = {BITS: _powers_of_two(lists.depth)}
    if lists.done is not None:
        made[DONE_AT] = nw.col(DONE) * nw.col(RANK)
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
    names, lists = question.names, cast(Sequences, question.sequences)
    marks = [fault_of(rule, question) for rule in rules_of(question.of_rows, targets)]
    pivot = _apart(question, targets)
    ended = [] if lists.done is None else [DONE, DONE_AT]
    sums = [
        *marks,
        *names.rewards,
        *targets,
        BITS,
        *ended,
        *(_at(n, k) for n in pivot for k in range(1, lists.depth + 1)),
    ]
    wanted = [nw.len().cast(nw.Float64).alias(LENGTH), *(nw.col(name).sum() for name in sums)]
    for name in [*names.segments, *([GROUP] if question.groups > 1 else [])]:
        wanted += [nw.col(name).min().alias(f"{name}_low"), nw.col(name).max().alias(f"{name}_high")]
        wanted.append(nw.col(name).count().cast(nw.Float64).alias(f"{name}_count"))
    by_list = rows.group_by(LIST).agg(*wanted)
    if lists.done is not None:
        by_list = by_list.with_columns(**{CUT_OFF: 1.0 - nw.col(DONE)})
    kept = [*names.segments, *([GROUP] if question.groups > 1 else [])]
    return by_list.with_columns(*(nw.col(f"{name}_low").alias(name) for name in kept)) if kept else by_list


# -- The arithmetic of a list, written once: `get` returns a column, as an expression of narwhals or as an array of NumPy ----------


def _steps(question: Question, targets: Sequence[str], get: Callable[[str], Term]) -> Iterator[dict[str, Term]]:
    """The lists' weights and what those make of their rewards, in steps of which each may need the columns of those before.

    All at once, the text of a statement would double with every position.
    """
    names, weight, lists = question.names, question.weight, cast(Sequences, question.sequences)
    if not targets:
        return
    if not weight.is_running and not weight.by_position:
        # of a list's weight less 1, 1 − K + Σw − 1 = Σ(w − 1), the sum is there already
        yield _of_whole(question, targets, get) | {length_of(t): get(LENGTH) * get(t) for t in targets}
        return
    for rank in range(1, lists.depth + 1):
        yield _at_rank(question, targets, rank, get)
    if not weight.by_position:
        yield {t: get(excess_of(t, lists.depth)) for t in targets}
        yield _of_whole(question, targets, get)
        return
    yield _by_position(question, targets, get)
    if names.values:
        yield _with_model(question, targets, get)


def _of_whole(question: Question, targets: Sequence[str], get: Callable[[str], Term]) -> dict[str, Term]:
    """What one weight for the whole list adds to its rewards."""
    return {gain_of(t, j): get(t) * get(r) for t in targets for j, r in enumerate(question.names.rewards)}


def _at_rank(question: Question, targets: Sequence[str], rank: int, get: Callable[[str], Term]) -> dict[str, Term]:
    """The excess at one position; of products down the list w₁⋯wₖ − 1 = (w₁⋯wₖ₋₁ − 1)(1 + uₖ) + uₖ, which keeps digits near 1."""
    made = {}
    for t in targets:
        u = get(_at(t, rank))
        is_first = rank == 1 or not question.weight.is_running
        made[excess_of(t, rank)] = u if is_first else get(excess_of(t, rank - 1)) * (u + 1.0) + u
    return made


def _by_position(question: Question, targets: Sequence[str], get: Callable[[str], Term]) -> dict[str, Term]:
    """What weights by position make of a list.

    Below the end of a list, where u is 0, a running product stays what it was, so that its mean is 1 wherever lists end.
    """
    lists, made = cast(Sequences, question.sequences), dict[str, Term]()
    for t in targets:
        excess = {k: get(excess_of(t, k)) for k in range(1, lists.depth + 1)}
        made[t] = _sum([excess[k] * share for k, share in lists.shares.items()])
        for j, r in enumerate(question.names.rewards):
            made |= {reward_of(t, j, k): get(_at(r, k)) * (u + 1.0) for k, u in excess.items()}
            made[gain_of(t, j)] = _sum([get(_at(r, k)) * u for k, u in excess.items()])
        if question.keeps_lengths:
            made[length_of(t)] = get(LENGTH) * _sum(list(excess.values()))
    return made


def _with_model(question: Question, targets: Sequence[str], get: Callable[[str], Term]) -> dict[str, Term]:
    r"""The columns of a model: e and u·e, which with v make the doubly robust term of a list.

    For independent positions that is Σ d_k [w_k (r_k − q_k) + v_k]. Down the cascade it is Σ [w_{1:k} (d_k r_k − q_k) + w_{1:k−1} v_k],
    where q_k and v_k speak of all the rewards from k on, so that v_1 alone is the model's value of the list.
    """
    depth, reward = cast(Sequences, question.sequences).depth, question.names.rewards[0]
    is_running = question.weight.is_running
    made: dict[str, Term] = {}
    for v, t in _values(question, targets):
        e, ue, value = [], [], []
        for k in range(1, depth + 1):
            u, q, expected, d = map(get, (excess_of(t, k), _at(MODEL_REWARD, k), _at(v, k), _at(DISCOUNT, k)))
            left = get(_at(reward, k)) - (q if is_running else d * q)
            e.append(left)
            ue.append(u * left)
            if not is_running:
                value.append(d * expected)
            elif k == 1:
                value.append(expected)
            else:
                e.append(expected)
                ue.append(get(excess_of(t, k - 1)) * expected)
        made |= {f"{t}_e": _sum(e), f"{t}_ue": _sum(ue), v: _sum(value)}
    return made


def _values(question: Question, targets: Sequence[str]) -> list[tuple[str, str]]:
    names = question.names
    return [(v, t) for v, t in zip(names.values, names.targets, strict=False) if t in targets]


def _at(name: str, rank: int) -> str:
    return f"{name}_at{rank}"


def _sum(terms: Sequence[Term]) -> Term:
    return reduce(add, terms)


# -- What a row adds to its list, in every engine's query -----------------------------------------------------------------


def _counts(rank: nw.Expr, lists: Sequences) -> nw.Expr:
    """How much rewards count at each rank if no column says so."""
    if lists.discount is None and lists.discount_factor == 1.0:
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


# -- Lists whose rows stand together and in order, as loggers write them: NumPy makes lists of them in passing, without a query ---


TOGETHER = 100_000  # lists, next to whose sums the price of a query is small

Ints = NDArray[np.int64]


class OutOfOrderError(Exception):
    """Rows that are not whole lists one after the other, or not all good."""


def suits(question: Question) -> bool:
    """Whether lists need only what is done here."""
    lists = question.sequences
    return lists is not None and not question.segment and not question.model_value and lists.discount_column is None


def in_order(batches: Iterable[pl.DataFrame], question: Question) -> Iterator[pl.DataFrame]:
    """One row per list, as `_one_by_one` makes them, many small batches at a time, since adding up has a fixed cost."""
    return in_pieces(_one_by_one(batches, question), TOGETHER)


def in_pieces(frames: Iterable[pl.DataFrame], rows: int) -> Iterator[pl.DataFrame]:
    """Small frames joined into larger ones of about so many rows.

    >>> [piece.height for piece in in_pieces([pl.DataFrame({"x": [1, 2]})] * 5, 4)]
    [4, 4, 2]
    """
    held: list[pl.DataFrame] = []
    for frame in frames:
        held.append(frame)
        if sum(frame.height for frame in held) >= rows:
            yield pl.concat(held)
            held = []
    if held:
        yield pl.concat(held)


def in_sequence(rows: pl.DataFrame, question: Question) -> pl.DataFrame:
    """The same rows, list by list and from the first position to the last, for which one number per row is sorted.

    Should two lists have the same hash, their rows are among each other, which is found as any disorder is.
    """
    size = 2 ** (0 if question.sequences is None else question.sequences.depth).bit_length()
    place = pl.col(POSITION).cast(pl.UInt64, strict=False).fill_null(0) % size
    rows = rows.rechunk()
    return rows[rows.select(pl.col(LIST).hash() // size * size + place).to_series().arg_sort()]


def _one_by_one(batches: Iterable[pl.DataFrame], question: Question) -> Iterator[pl.DataFrame]:
    """One row per list, from batches of rows under internal names; the last list of a batch may go on in the next."""
    lists = cast(Sequences, question.sequences)
    starts: list[pl.Series] = []
    held = pl.DataFrame()
    rest = iter(batches)
    batch = next(rest, None)
    while batch is not None:
        following = next(rest, None)
        rows = pl.concat([held, batch]) if held.height else batch
        if rows.height:
            ids, cut = rows.get_column(LIST), 0
            if following is not None:
                cut = int(ids.ne_missing(ids[-1]).reverse().arg_max() or 0) if ids[0] != ids[-1] else rows.height
            held, rows = rows.tail(cut), rows.head(rows.height - cut)
            if rows.height:
                yield _lists(rows, question, lists, starts)
            elif held.height > 2 * batch.height + 1000:
                raise OutOfOrderError
        batch = following
    if starts:
        known = pl.concat(starts)
        if known.n_unique() < known.len():  # a list that goes on somewhere else
            raise OutOfOrderError


def _lists(rows: pl.DataFrame, question: Question, lists: Sequences, starts: list[pl.Series]) -> pl.DataFrame:
    """The lists of some rows, which begin and end with whole lists."""
    ids = rows.get_column(LIST)
    if ids.null_count():
        raise OutOfOrderError
    is_new = np.append(True, (ids[1:] != ids[:-1]).to_numpy())
    rank = rows.get_column(POSITION).to_numpy()
    count, ends = divmod(rows.height, lists.depth)
    is_even = (
        not ends and np.count_nonzero(is_new) == count and bool(is_new[:: lists.depth].all())
    )  # all of them of one length
    if is_even:
        first, length = np.arange(0, rows.height, lists.depth), np.full(count, lists.depth)
        in_turn = bool((rank.reshape(count, -1) == np.arange(lists.first, lists.last + 1.0)).all())
    else:
        rank = rank - (lists.first - 1)
        first = np.flatnonzero(is_new)
        length = np.diff(np.append(first, rows.height))
        below = np.empty(len(rank))
        below[0], below[1:] = 1.0, rank[:-1] + 1.0
        in_turn = bool((np.where(is_new, 1.0, below) == rank).all())
    if not in_turn:
        raise OutOfOrderError
    starts.append(ids.gather_every(lists.depth) if is_even else ids.gather(first))
    columns = {name: _good(rows.get_column(name).to_numpy(), name, question) for name in question.of_rows.numbers}
    spot = None if is_even else (rank.astype(np.int64) - 1) * len(first) + np.cumsum(is_new) - 1
    made = _made(columns, question, lists, length, spot)
    if lists.done is not None:
        made[CUT_OFF] = _cut_off(columns[DONE], first, is_new)
    if not all(max(column.max(), -column.min()) <= LARGEST for column in made.values()):
        raise OutOfOrderError
    frame = pl.DataFrame(made)
    if question.groups > 1:
        frame = frame.with_columns(_same(rows.get_column(GROUP), first, is_new))
    return frame


def _good(values: Floats, name: str, question: Question) -> Floats:
    part = question.of_rows.numbers[name][0]
    with np.errstate(invalid="ignore"):
        if not is_fine(part, question, values).all() or (part == "propensity" and not values.min() * LARGEST >= 1.0):
            raise OutOfOrderError
    return values.astype(np.float64, copy=False)


def _cut_off(done: Floats, first: Ints, is_new: NDArray[np.bool_]) -> Floats:
    """1 for every episode that is not done at its last row; none may be done before."""
    is_last = np.append(is_new[1:], True)
    if ((done != 0.0) & ~(is_last & (done == 1.0))).any():
        raise OutOfOrderError
    cut: Floats = 1.0 - np.add.reduceat(done, first)
    return cut


def _same(group: pl.Series, first: Ints, is_new: NDArray[np.bool_]) -> pl.Series:
    """The cluster of every list, which is one for all of its rows."""
    if group.null_count() or not ((group[1:] == group[:-1]).to_numpy() | is_new[1:]).all():
        raise OutOfOrderError
    return group.gather(first)


def _made(rows: Numbers, question: Question, lists: Sequences, length: Ints, spot: Ints | None) -> dict[str, Floats]:
    """The columns of lists that `collapse` makes, from those of their rows; `spot` says where rows go in positions × lists."""
    names, p = question.names, rows[PROPENSITY]
    ranks = range(1, lists.depth + 1)
    made: dict[str, Floats] = {LENGTH: length.astype(np.float64)}
    for name in (*names.rewards, *names.targets):
        values = (rows[name] - p) / p if name in names.targets else rows[name]
        table = _table(values, len(length), lists.depth, spot)
        if name in names.rewards:
            counts = np.array([[lists.counts(k)] for k in ranks])
            table = table * counts if (counts != 1.0).any() else table
        made[name] = table.sum(axis=0)
        made |= {_at(name, k): at_rank for k, at_rank in zip(ranks, table, strict=True)}
    for columns in _steps(question, names.targets, made.__getitem__):
        made |= columns
    kept = (*names.rewards, *names.targets, *made_of(names), LENGTH)
    return {name: made[name] for name in kept if name != CUT_OFF}


def _table(values: Floats, lists: int, depth: int, spot: Ints | None) -> Floats:
    """Positions × lists, with 0 below the end of a list."""
    if spot is None:
        return np.ascontiguousarray(values.reshape(lists, depth).T)
    table = np.zeros(lists * depth)
    table[spot] = values
    return table.reshape(depth, lists)
