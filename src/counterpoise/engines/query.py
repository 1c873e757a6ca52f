"""The one aggregate query: sums of the rows' columns and of their products, by segment and group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.log.columns import GROUP, MODEL_ERROR, MODEL_REWARD, PROPENSITY, ROWS
from counterpoise.log.expressions import indicator
from counterpoise.log.good import LARGEST, is_number
from counterpoise.log.kinds.kind import CHANCE, NUMBER, SHARE, Range, Row, Rule, Term
from counterpoise.log.question import Lane, Names, Question
from counterpoise.log.rules import Problem, is_good
from counterpoise.moments import Floats, Moments
from counterpoise.moments.log_moments import Contrast, Label
from counterpoise.moments.spread import ORDERS, SMALL, EachPowers, Powers, Smoothed

Frame = nw.LazyFrame[Any]
Numbers = Mapping[str, Floats]  # the answer's columns, an entry per segment and group


@dataclass(frozen=True)
class Query:
    """Which sums to take: around which centers of the rewards, and over all rows or only the good ones.

    `own` has a center for each segment, if a single one would cost digits: the segments' columns, and one per reward.
    """

    names: Names
    centers: tuple[float, ...]
    own: pl.DataFrame | None = None
    only_good: bool = False

    def around(self, own: pl.DataFrame) -> Query:
        """The same sums, around each segment's own centers."""
        return replace(self, own=own)


def aggregate(
    frame: Frame,
    query: Query,
    *,
    lanes: Sequence[Lane] | None = None,
    peaks: Sequence[str] = (),
    watch: Callable[[Frame], Frame] = lambda rows: rows,
    counted: Callable[[nw.Expr], nw.Expr] = indicator,
    context: bool = True,
) -> Frame:
    """One row per segment and group: counts, sums, products, and the extremes that show a row to be bad.

    If segments have their own centers, the frame has them as columns, and they are part of the answer. So is the largest value of
    each of the columns `peaks`, which the frame also has. `watch` sees the rows with their u and s in passing, and `counted` turns a
    condition into something that adds up. Without `context`, the sums of a context baseline are computed elsewhere.
    """
    names = query.names
    lanes = names.lanes if lanes is None else lanes
    if not context:
        lanes = [lane.without_context for lane in lanes]
    rows = _with_excess(frame, query, lanes)
    weighted = weighted_rewards(names, lanes, nw.col)
    rows = watch(rows.with_columns(**weighted) if weighted else rows)
    powers = powers_of(names, lanes)
    columns = {names.product(x, x): nw.col(x) * nw.col(x) for x, _ in powers.values()} | products_of(lanes, nw.col)
    rows = rows.with_columns(**columns)  # which several of the sums share
    squares = {name: nw.col(a) * nw.col(b) for name, (a, b) in squares_of(names, lanes).items() if name not in columns}
    squares |= {name: _power(names, x, order) for name, (x, order) in powers.items()}
    squares |= _smoothed_rewards(names, lanes)
    zeros = {lane.zeros: counted(_is_zero(lane, names)) for lane in lanes if not lane.contrast[1]}
    wanted = [nw.len().alias(ROWS)] + ([nw.col(name).max() for name in names.centers] if query.own is not None else [])
    plain = {column for column, _ in powers.values()}
    wanted += [nw.col(name).sum() for name in sorted({*singles_of(lanes), *columns, *plain})]
    if names.keys:  # not every engine adds up products by group that are not columns
        rows = rows.with_columns(**squares, **zeros)
        wanted += [nw.col(name).sum() for name in (*squares, *zeros)]
    else:
        wanted += [product.sum().alias(name) for name, product in (squares | zeros).items()]
    for name in _numbers(names, lanes):
        if name in names.features:
            continue  # covered by the sums of their products
        wanted += [nw.col(name).min().alias(f"{name}_min"), nw.col(name).max().alias(f"{name}_max")]
        wanted.append(nw.col(name).count().alias(f"{name}_count"))
    known = names.question.known
    wanted += [] if known is None else [nw.col(known).sum().alias(f"{known}_sum")]
    wanted += [nw.col(name).max() for name in peaks]
    tops = {lane.peak: lane.watched for lane in lanes if lane.rung and not lane.contrast[1]}
    wanted += [nw.col(excess).max().alias(name) for name, excess in tops.items()]
    return rows.group_by(*names.keys).agg(*wanted) if names.keys else rows.select(*wanted)


def _with_excess(frame: Frame, query: Query, lanes: Sequence[Lane]) -> Frame:
    """The rows with what `centered` makes of them; where rewards have rows of their own, the excess is blank on the others."""
    rows = frame.with_columns(**centered(query, lanes, nw.col))
    counted = as_counted(query, lanes, nw.col)
    rows = rows.with_columns(**counted) if counted else rows
    if not query.names.apart:
        return rows
    own = {lane.excess: nw.when(_is_known(lane)).then(nw.col(lane.shared)) for lane in lanes}
    return rows.with_columns(**own)


# -- The arithmetic of a row, written once: `get` returns a column, as an expression of narwhals or as an array of NumPy -----------


def centered(query: Query, lanes: Sequence[Lane], get: Callable[[str], Term]) -> dict[str, Term]:
    """Rewards and other columns less their centers, and the excess u = w − 1 (or the difference of two weights) of every lane."""
    names, question = query.names, query.names.question
    centers: Sequence[Term | float] = query.centers if query.own is None else [get(name) for name in names.centers]
    made = {names.shifted[j]: get(reward) - centers[j] for j, reward in enumerate(names.rewards)}
    if names.values:  # for a model, which has one reward
        if any(lane.uncounted("e") == MODEL_ERROR for lane in lanes if "e" in lane.columns):
            made[MODEL_ERROR] = get(names.rewards[0]) - get(MODEL_REWARD)
        used = {lane.uncounted("v") for lane in lanes if "v" in lane.columns}
        known = _numbers(names, lanes)
        values = zip(names.centered_values, names.values, strict=True)
        made |= {name: get(value) - centers[0] for name, value in values if value in known}
        differences = names.value_differences.items()
        made |= {name: get(a) - get(b) - centers[0] for name, (a, b) in differences if name in used}
    means = zip(names.centered_controls, names.controls, question.control.values(), strict=True)
    made |= {name: get(control) - mean for name, control, mean in means}
    if any(lane.columns.keys() & {feature.name for feature in question.features} for lane in lanes):
        features = zip(names.centered_features, names.features, question.features, strict=True)
        made |= {name: get(column) - feature.center for name, column, feature in features}
    p = get(PROPENSITY) if question.weight.needs_propensity else None
    for lane in lanes:
        t, weight = get(lane.target), lane.weight
        made[lane.shared] = weight.excess(t, p) if lane.other is None else weight.difference(t, get(lane.other), p)
    for kind in question.kinds:
        made |= kind.terms(Row(names, lanes, centers, get, made, p))
    return made


def as_counted(query: Query, lanes: Sequence[Lane], get: Callable[[str], Term]) -> dict[str, Term]:
    """What takes the place of some of the columns that `centered` made, if rows do not count alike."""
    columns = dict[str, Term]()
    for kind in query.names.question.kinds:
        columns |= kind.counted(lanes, get)
    return columns


def products_of(lanes: Sequence[Lane], get: Callable[[str], Term]) -> dict[str, Term]:
    """The columns of lanes that are products with the excess."""
    return {name: get(a) * get(b) for lane in lanes for name, (a, b) in lane.products.items()}


def weighted_rewards(names: Names, lanes: Sequence[Lane], get: Callable[[str], Term]) -> dict[str, Term]:
    """The weighted rewards that are smoothed."""
    smoothed = smoothed_lanes(names, lanes)
    return {names.weighted(lane): (get(lane.excess) + 1.0) * get(names.rewards[lane.reward]) for lane in smoothed}


# -- Which sums are taken of it ------------------------------------------------------------------------------------------


def _is_known(lane: Lane) -> nw.Expr:
    return ~nw.col(lane.columns["s"]).is_null()


def _is_zero(lane: Lane, names: Names) -> nw.Expr:
    zero: nw.Expr = lane.weight.is_zero(nw.col(lane.target))
    return zero & _is_known(lane) if names.apart else zero


def numbers_for(question: Question, targets: Iterable[str | None] | None) -> list[str]:
    """The internal names of the numbers that some of the targets need, or all of them."""
    names = question.names
    left_out = set() if targets is None else set(names.targets).difference(targets)
    left_out |= {value for value, name in zip(names.values, names.targets, strict=False) if name in left_out}
    return [name for name in question.numbers if name not in left_out]


def _numbers(names: Names, lanes: Sequence[Lane]) -> list[str]:
    """The columns that some lanes are made from."""
    return numbers_for(names.question, [name for lane in lanes for name in (lane.target, lane.other)])


def singles_of(lanes: Sequence[Lane]) -> list[str]:
    """The columns that are simply added up."""
    return sorted({name for lane in lanes for name in lane.columns.values()})


def squares_of(names: Names, lanes: Sequence[Lane]) -> dict[str, tuple[str, str]]:
    """The products that are also added up: name → its two factors."""
    products = {}
    for lane in lanes:
        for a, b in combinations_with_replacement(sorted(lane.columns.values()), 2):
            products[names.product(a, b)] = (a, b)
    singles = set(singles_of(lanes))
    return {name: pair for name, pair in sorted(products.items()) if name not in singles}


def context_sums_of(names: Names, lanes: Sequence[Lane]) -> list[str]:
    """The sums that only a context baseline needs: its columns, and their products with all others."""
    plain = [lane.without_context for lane in lanes]
    known = {*singles_of(plain), *squares_of(names, plain)}
    return [name for name in (*singles_of(lanes), *squares_of(names, lanes)) if name not in known]


def context_aggregate(
    frame: Frame, query: Query, lanes: Sequence[Lane], wanted: Sequence[str], watch: Callable[[Frame], Frame]
) -> Frame:
    """Some of the sums of a context baseline, one row per segment and group; `watch` sees the rows with all products."""
    names, factors = query.names, squares_of(query.names, lanes)
    used = {factor for name in wanted for factor in factors.get(name, (name,))}
    rows = _with_excess(frame, query, lanes)
    made = {name: product for name, product in products_of(lanes, nw.col).items() if name in used}
    rows = watch(rows.with_columns(**made) if made else rows)
    squares = {name: nw.col(factors[name][0]) * nw.col(factors[name][1]) for name in wanted if name in factors}
    if not names.keys:
        return rows.select(*((squares[name] if name in squares else nw.col(name)).sum().alias(name) for name in wanted))
    return rows.with_columns(**squares).group_by(*names.keys).agg(*(nw.col(name).sum() for name in wanted))


def powers_of(names: Names, lanes: Sequence[Lane]) -> dict[str, tuple[str, int]]:
    """The third and fourth powers that are added up of every excess and every reward: name → the column and its order."""
    columns = sorted({column for lane in lanes for column in lane.spread})
    return {names.power(column, order): (column, order) for column in columns for order in (3, 4)}


def _power(names: Names, column: str, order: int) -> nw.Expr:
    square = names.product(column, column)
    return nw.col(square) * nw.col(column if order == 3 else square)


def smoothed_lanes(names: Names, lanes: Sequence[Lane]) -> list[Lane]:
    """The lanes whose smoothed rewards are added up: those of values, if the question has smoothings."""
    return [lane for lane in lanes if not lane.contrast[1]] if names.question.smoothings else []


def _smoothed_rewards(names: Names, lanes: Sequence[Lane]) -> dict[str, nw.Expr]:
    """log(1 + λx)/λ of every weighted reward x, for every λ.

    Where 1 + λx would lose the digits of λx, it is the series; and it is 0 for a negative x, at whose logarithm databases would stop.
    """
    smoothed = {}
    for lane in smoothed_lanes(names, lanes):
        for k, smoothing in enumerate(names.question.smoothings):
            x = nw.col(names.weighted(lane)) * smoothing
            series = x * (1.0 - x * (1 / 2 - x * (1 / 3 - x * (1 / 4 - x / 5))))
            small = nw.when(x >= 0.0).then(series).otherwise(x * 0.0)  # so that a null stays one
            smoothed[names.smoothed(lane, k)] = nw.when(x > SMALL).then((x + 1.0).log()).otherwise(small) / smoothing
    return smoothed


FIRST = 1000  # rows from which a center is taken: it only has to be near the others


def center_of(rewards: pl.Series) -> float:
    """The median of some rewards, which is near the others even if some rows are broken."""
    values = rewards.cast(pl.Float64).to_numpy()
    with np.errstate(invalid="ignore"):
        good = np.sort(values[is_number(values)])
    middle = good[(len(good) - 1) // 2 : len(good) // 2 + 1]  # np.median takes longer than a small log
    return float(middle.sum() / len(middle)) if len(good) else 0.0


def range_of(part: str, question: Question) -> Range:
    """What the numbers of a part may be, each by itself."""
    own = (number.range for number, _ in question.own_numbers if number.part == part)
    return next(own, {"propensity": CHANCE, "target": SHARE}.get(part, NUMBER))


def is_fine(part: str, question: Question, values: Floats) -> NDArray[np.bool_]:
    """Whether the numbers of a part obey its rule, each by itself."""
    fine: NDArray[np.bool_] = range_of(part, question).holds(values)
    return fine


def is_clean(numbers: Numbers, names: Names) -> bool:
    """Whether no row broke a rule, judging by the counts, the extremes and the sums (which a NaN spoils)."""
    n, question = numbers[ROWS], names.question
    if question.features and not (numbers[FEATURES] <= LARGEST**2).all():
        return False
    for name, (part, _) in question.numbers.items():
        if part == "baseline":
            continue
        limits = range_of(part, question)
        count = numbers[f"{question.known}_sum"] if part == "reward" and question.known is not None else n
        if (numbers[f"{name}_count"] != count).any():
            return False
        is_there = count > 0
        if not (numbers[f"{name}_min"] >= limits.low)[is_there].all():
            return False
        if not (numbers[f"{name}_max"] <= limits.high)[is_there].all():
            return False
    if question.log.cluster is not None and np.isnan(numbers[GROUP]).any():
        return False
    sums = [*singles_of(names.lanes), *squares_of(names, names.lanes)]
    return bool(np.isfinite([numbers[name] for name in sums]).all())


FEATURES = "the squares of the features"  # all of them added up, which is at least the square of the largest


def places_of(labels: Sequence[Label]) -> tuple[NDArray[np.int64], int]:
    """The number of each label, in the order in which they first come up, and how many there are.

    >>> places_of([("a",), ("b",), ("a",)])[0].tolist()
    [0, 1, 0]
    """
    distinct = dict.fromkeys(labels)
    if len(distinct) == len(labels):
        return np.arange(len(labels)), len(labels)
    place = {label: k for k, label in enumerate(distinct)}
    return np.array([place[label] for label in labels]), len(place)


def total_of(parts: Floats, place: NDArray[np.int64], count: int) -> Floats:
    """The sums of some parts at each of so many places; the sum of no rows, which engines call null, is 0."""
    known: Floats = np.where(np.isnan(parts), 0.0, parts)
    return known if len(known) == count == 1 else np.bincount(place, known, count).astype(np.float64)


def rows_of(numbers: Numbers, names: Names, reward: int) -> Floats:
    """The rows on which a reward is good, by segment and group."""
    return numbers[f"{names.rewards[reward]}_count" if names.apart else ROWS]


def known_of(numbers: Numbers, names: Names, reward: int) -> Floats:
    """The rows whose reward is known: those on which it is good, or the labeled ones among them."""
    is_known_for_all = names.question.known is None
    return rows_of(numbers, names, reward) if is_known_for_all else numbers[f"{names.rewards[reward]}_count"]


def is_well_centered(numbers: Numbers, labels: Sequence[Label], names: Names) -> bool:
    """Whether every center was close enough to the rewards of every segment for their variance to keep its digits."""
    at, count = places_of(labels)
    for j, s in enumerate(names.shifted):
        columns = (known_of(numbers, names, j), numbers[s], numbers[names.product(s, s)])
        rows, total, squares = (total_of(column, at, count) for column in columns)
        n = np.maximum(rows, 1)
        mean = total / n
        if not (np.square(mean) <= 1e4 * np.maximum(squares / n - np.square(mean), 0.0)).all():
            return False
    return True


def moments_of(
    numbers: Numbers, names: Names, reward: int, center: Floats, place: NDArray[np.int64], segments: int, rung: int = 0
) -> dict[Contrast, Moments]:
    """The sums of one reward as one stack (segments × groups) per contrast."""
    groups = names.question.groups
    at = place * groups + (numbers[GROUP].astype(np.int64) if groups > 1 else 0)

    def added(parts: Floats) -> Floats:
        return total_of(parts, at, segments * groups).reshape(segments, groups)

    n = added(rows_of(numbers, names, reward)).astype(np.int64)
    moments = {}
    for lane in names.lanes_of(reward, rung):
        columns = list(lane.columns.values())
        d = len(columns)
        sums, products = np.empty((segments, groups, d)), np.empty((segments, groups, d, d))
        for i, a in enumerate(columns):
            sums[..., i] = added(numbers[a])
            for j, b in enumerate(columns[: i + 1]):
                products[..., i, j] = products[..., j, i] = added(numbers[names.product(a, b)])
        moments[lane.contrast] = Moments.of_sums(n, sums, products, center, tuple(lane.columns))
    return moments


def spread_of(
    numbers: Numbers, names: Names, column: str, count: Floats, center: Floats, place: NDArray[np.int64]
) -> EachPowers:
    """The sums of the powers of a column, an excess or a reward less its center, in every segment."""
    powers = [numbers[names.power(column, order)] for order in (3, 4)]
    parts = [count, numbers[column], numbers[names.product(column, column)], *powers]
    n, *sums = (total_of(part, place, len(center)) for part in parts)
    return EachPowers(Powers(n.astype(np.int64), center, np.stack(sums, axis=1)))


def smoothed_of(
    numbers: Numbers, names: Names, lane: Lane, place: NDArray[np.int64], segments: int
) -> tuple[Smoothed, ...]:
    """The sums of a lane's smoothed rewards, in every segment."""
    lambdas = names.question.smoothings
    parts = [numbers[names.smoothed(lane, k)] for k in range(len(lambdas))]
    sums = np.stack([total_of(part, place, segments) for part in parts], axis=1)
    return tuple(Smoothed(lambdas, totals) for totals in sums)


# -- Which rules are broken where rows have no order ---------------------------------------------------------------------


def broken_rules(rows: Frame, rules: Sequence[Rule], collect: Callable[[Frame], pl.DataFrame]) -> list[Problem]:
    """How many rows under internal names break each of the rules, and one value that does: the largest."""
    bad = {f"rule{k}": ~rule.holds.fill_null(False) for k, rule in enumerate(rules)}
    shown = {f"rule{k}_value": nw.when(nw.col(f"rule{k}")).then(nw.col(rule.shows)) for k, rule in enumerate(rules)}
    marked = rows.with_columns(**bad)
    marked = marked.with_columns(**{f"{name}_count": indicator(nw.col(name)) for name in bad}, **shown)
    counts = [nw.col(f"{name}_count").sum() for name in bad]
    answer = collect(marked.select(*counts, *(nw.col(name).max() for name in shown))).row(0, named=True)
    return [
        Problem(rule, int(answer[f"rule{k}_count"]), None, answer[f"rule{k}_value"])
        for k, rule in enumerate(rules)
        if answer[f"rule{k}_count"]
    ]


# -- What dropping bad rows leaves out: the rewards of those whose reward was good -------------------------------------


def left_out(
    rows: Frame,
    question: Question,
    centers: Sequence[float],
    collect: Callable[[Frame], pl.DataFrame],
    *,
    targets: Sequence[str] | None = None,
) -> tuple[Powers, ...]:
    """The powers of each reward over the rows that are bad for another reason, from rows under internal names.

    `targets` are those whose rules tell all bad rows; by default, all of them.
    """
    rewards = question.names.rewards
    marked = rows.with_columns(bad=~is_good(question, targets).fill_null(False))
    made = {
        f"{name}_1": nw.when(nw.col("bad") & is_number(nw.col(name))).then(nw.col(name).cast(nw.Float64) - center)
        for name, center in zip(rewards, centers, strict=True)
    }
    marked = marked.select(**made)
    for order in ORDERS[1:]:  # step by step, since some databases cannot add up what is not a column
        marked = marked.with_columns(**{f"{x}_{order}": nw.col(f"{x}_{order - 1}") * nw.col(f"{x}_1") for x in rewards})
    wanted = [nw.col(f"{name}_{order}").sum() for name in rewards for order in ORDERS]
    counts = [nw.col(f"{name}_1").count().alias(f"{name}_count") for name in rewards]
    sums = collect(marked.select(*wanted, *counts)).cast(pl.Float64).row(0, named=True)
    return tuple(
        Powers(int(sums[f"{name}_count"] or 0), center, np.array([sums[f"{name}_{order}"] or 0.0 for order in ORDERS]))
        for name, center in zip(rewards, centers, strict=True)
    )
