"""One row per list: what lists in long form are made into before anything is added up, by a query that every engine has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import narwhals as nw

from counterpoise.log.lists import BITS, DISCOUNT, LENGTH, LIST, POSITION, Lists
from counterpoise.log.names import GROUP, MODEL_REWARD, PROPENSITY, excess_of, gain_of, length_of, reward_of
from counterpoise.log.question import Question
from counterpoise.log.rules import fault_of, indicator, is_good, list_rules, rules_of

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
    rows = fence(_marked(rows, question, chosen))
    rows = fence(_by_rank(rows, question, chosen))
    found = fence(_added(rows, question, chosen))
    found = fence(_weighed(found, question, chosen))
    is_whole = nw.all_horizontal(*(rule.holds for rule in list_rules(question, chosen)), ignore_nulls=False)
    values = [name for name, t in zip(names.values, names.targets, strict=False) if t in chosen]
    numbers = [*names.rewards, *chosen, *values, *names.made_of(chosen)]
    # numbered faults stay, for whoever asks what is wrong
    return found.with_columns(*(nw.when(is_whole).then(nw.col(name)).alias(name) for name in numbers))


def _marked(rows: Frame, question: Question, targets: Sequence[str]) -> Frame:
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
    found = [*targets] if weight.is_running or weight.by_position else []
    found += names.rewards if weight.by_position else []
    return found + ([MODEL_REWARD, DISCOUNT, *(v for v, _ in _values(question, targets))] if names.values else [])


def _added(rows: Frame, question: Question, targets: Sequence[str]) -> Frame:
    """The sums of every list, and the ends of what must be the same on all of its rows."""
    names, lists = question.names, cast(Lists, question.lists)
    marks = [fault_of(rule, question) for rule in rules_of(question.of_rows, targets)]
    pivot = _apart(question, targets)
    sums = [*marks, *names.rewards, *targets, BITS, *(_at(n, k) for n in pivot for k in range(1, lists.depth + 1))]
    wanted = [nw.len().cast(nw.Float64).alias(LENGTH), *(nw.col(name).sum() for name in sums)]
    for name in [*names.segments, *([GROUP] if question.groups > 1 else [])]:
        wanted += [nw.col(name).min().alias(f"{name}_low"), nw.col(name).max().alias(f"{name}_high")]
        wanted.append(nw.col(name).count().cast(nw.Float64).alias(f"{name}_count"))
    found = rows.group_by(LIST).agg(*wanted)
    kept = [*names.segments, *([GROUP] if question.groups > 1 else [])]
    return found.with_columns(*(nw.col(f"{name}_low").alias(name) for name in kept)) if kept else found


def _weighed(found: Frame, question: Question, targets: Sequence[str]) -> Frame:
    """The lists with their weights, and what those make of their rewards."""
    names, weight = question.names, question.weight
    if not targets:
        return found
    if not weight.is_running and not weight.by_position:
        # of a list's weight less 1, 1 − K + Σw − 1 = Σ(w − 1), the sum is there already
        lengths = {length_of(t): nw.col(LENGTH) * nw.col(t) for t in targets}
        return found.with_columns(**_of_whole(names.rewards, targets), **lengths)
    lists = cast(Lists, question.lists)
    depth = lists.depth
    for k in range(1, depth + 1):  # step by step, or the text of a statement would double each time
        made: dict[str, nw.Expr] = {}
        for t in targets:
            u = nw.col(_at(t, k))
            above = nw.col(excess_of(t, k - 1)) if weight.is_running and k > 1 else None
            made[excess_of(t, k)] = u if above is None else above * (u + 1.0) + u
        found = found.with_columns(**made)
    if not weight.by_position:
        found = found.with_columns(**{t: nw.col(excess_of(t, depth)) for t in targets})
        return found.with_columns(**_of_whole(names.rewards, targets))
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
    return found.with_columns(**made)


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
    found = nw.lit(lists.counts(lists.depth))
    for k in range(1, lists.depth):
        found = nw.when(rank == k).then(nw.lit(lists.counts(k))).otherwise(found)
    return found


def _powers_of_two(depth: int) -> nw.Expr:
    """2 to the power of the rank less 1: n of them add up to 2ⁿ − 1 only if they are 1, 2, 4, … once each."""
    found = nw.lit(0.0)
    for k in range(1, depth + 1):
        found = nw.when(nw.col(RANK) == k).then(nw.lit(2.0 ** (k - 1))).otherwise(found)
    return found


def _at(name: str, rank: int) -> str:
    return f"{name}_at{rank}"


def _sum(terms: Sequence[nw.Expr]) -> nw.Expr:
    found = terms[0]
    for one in terms[1:]:
        found = found + one
    return found
