"""Adds up what the audit of propensities needs: weights by segment, day and action, and a table of the logged probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from counterpoise.diagnostics.audit import ACTION, EDGES, Audit, BinSums, Calibration, Check, calibrate, check, settle
from counterpoise.engines.registry import engine_of
from counterpoise.engines.rows import collect
from counterpoise.errors import Argument, Blank, ColumnError, LogError, OptionError
from counterpoise.evaluation.loggers import of_own_logger
from counterpoise.log.expressions import Plan, column, columns
from counterpoise.log.good import is_believable, is_probability, is_propensity
from counterpoise.log.question import Question
from counterpoise.moments import Powers
from counterpoise.weights import Balanced

# -- Reads the logging policy's distribution over all actions, and adds up how often actions were taken ----------------

SAMPLE = 1000  # first rows in which a list of probabilities is recognized
ROUNDING = 1e-3  # by which probabilities may miss a sum of 1
BINS = range(len(EDGES) - 1)
_FIELDS: dict[str, Any] = {f"P{k}": pl.Float64 for k in BINS} | {f"N{k}": pl.Int64 for k in BINS}


def find_distribution(frame: pl.LazyFrame, schema: pl.Schema, action: str, propensity: str) -> str | None:
    """The list column that sums to 1 and holds the propensity at the action's place, counted from 0."""
    if not schema[action].is_integer():
        return None
    for name, kind in schema.items():
        if not (isinstance(kind, pl.List | pl.Array) and kind.inner is not None and kind.inner.is_float()):
            continue
        sample = frame.head(SAMPLE).select(q=_list(column(name), kind), a=column(action), p=column(propensity))
        taken = pl.col("q").list.get(pl.col("a"), null_on_oob=True)
        is_it = (
            (pl.col("a") >= 0) & ((taken - pl.col("p")).abs() < 1e-6) & ((pl.col("q").list.sum() - 1).abs() < ROUNDING)
        )
        if (collect(sample.select(is_it.fill_null(False).mean())).item() or 0.0) > 0.99:
            return name
    return None


def calibration_of(
    frame: pl.LazyFrame,
    schema: pl.Schema,
    action: str,
    distribution: str | Sequence[str] | Mapping[Any, str],
    cluster: str | None = None,
) -> Calibration:
    """The calibration of a distribution: a list column, a column for each action from 0 on, or columns by action."""
    said = distribution if isinstance(distribution, str) else "all actions"
    place = column(action)
    if isinstance(distribution, str):
        q = _list(column(distribution), schema[distribution])
    else:
        named = distribution if isinstance(distribution, Mapping) else dict(enumerate(distribution))
        if isinstance(distribution, Mapping):
            place = place.cast(pl.String).replace_strict(
                [str(name) for name in named], list(range(len(named))), default=None, return_dtype=pl.Int64
            )
        q = pl.concat_list(p.cast(pl.Float64) for p in columns(named.values()))
    if not (isinstance(distribution, Mapping) or schema[action].is_integer()):
        raise ColumnError(
            f"{action!r} must say which of the probabilities is the action's, counted from 0; it holds {schema[action]}.",
            do="Give the probabilities as columns by action, such as {'a': 'p_a', 'b': 'p_b'}.",
        )
    unit = {} if cluster is None else {"unit": column(cluster)}
    rows = frame.select(q=q, a=place.cast(pl.Int64), **unit).with_columns(
        y=pl.when(pl.col("a") >= 0).then(pl.col("q").list.get(pl.col("a"), null_on_oob=True))
    )
    is_right = (pl.col("y") > 0) & ((pl.col("q").list.sum() - 1).abs() < ROUNDING) & (pl.col("q").list.min() >= 0)
    rows = rows.with_columns(good=is_right.fill_null(False))
    return _calibrate(said, rows, has_clusters=cluster is not None)


def _calibrate(said: str, rows: pl.LazyFrame, *, has_clusters: bool) -> Calibration:
    good = rows.filter("good")
    bins = pl.col("q").map_batches(_in_bins, return_dtype=pl.Struct(_FIELDS), is_elementwise=True).alias("bins")
    every = good.with_columns(bins, *(_is_in(k) for k in BINS)).unnest("bins")
    mass, taken, pairs = ([f"{name}{k}" for k in BINS] for name in ("P", "Y", "N"))
    sums = [pl.col(name).sum() for name in (*mass, *taken, *pairs)]
    products = [(pl.col(mass[j]) * pl.col(mass[k])).sum().alias(f"P{j} {k}") for j in BINS for k in BINS if j <= k]
    plans = [every.select(pl.len().alias("rows"), *sums, *products), rows.select(impossible=(~pl.col("good")).sum())]
    if has_clusters:
        totals = every.group_by("unit").agg(
            (pl.col(taken[k]).cast(pl.Float64) - pl.col(mass[k])).sum().alias(f"D{k}") for k in BINS
        )
        squares = [(pl.col(f"D{j}") * pl.col(f"D{k}")).sum().alias(f"D{j} {k}") for j in BINS for k in BINS if j <= k]
        plans.append(totals.select(pl.len().alias("units"), *squares))
    row = collect(pl.concat(plans, how="horizontal")).row(0, named=True)
    spread = _matrix(row, "D") if has_clusters else None
    vectors = {"pairs": _vector(row, pairs), "taken": _vector(row, taken), "mass": _vector(row, mass)}
    bin_sums = BinSums(**vectors, products=_matrix(row, "P"), spread=spread, units=int(row.get("units", 0)))
    return calibrate(said, int(row["rows"]), int(row["impossible"]), bin_sums)


def _in_bins(lists: pl.Series) -> pl.Series:
    """For every list of probabilities, the mass P and the number N of those in each bin; zeros are in none."""
    row = np.repeat(np.arange(len(lists)), lists.list.len().to_numpy())
    q = lists.explode().to_numpy()
    row, q = row[q > 0], q[q > 0]
    bins = np.clip(np.searchsorted(EDGES, q) - 1, 0, BINS[-1])
    shape, at = (len(lists), len(BINS)), row * len(BINS) + bins
    mass = np.bincount(at, weights=q, minlength=shape[0] * shape[1]).reshape(shape)
    count = np.bincount(at, minlength=shape[0] * shape[1]).reshape(shape)
    fields = {f"P{k}": mass[:, k] for k in BINS} | {f"N{k}": count[:, k].astype(np.int64) for k in BINS}
    return pl.DataFrame(fields, schema=_FIELDS).to_struct("bins")


def _is_in(k: int) -> pl.Expr:
    """Whether the action that was taken lies in a bin."""
    y = pl.col("y")
    return ((y > EDGES[k]) & (True if k == BINS[-1] else y <= EDGES[k + 1])).alias(f"Y{k}")


def _vector(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return np.array([row[name] or 0.0 for name in names], dtype=np.float64)


def _matrix(row: Mapping[str, Any], name: str) -> Any:
    return np.array([[row[f"{name}{min(j, k)} {max(j, k)}"] or 0.0 for k in BINS] for j in BINS], dtype=np.float64)


def _list(values: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if not isinstance(kind, pl.List | pl.Array):
        raise ColumnError(f"the probabilities of all actions must be a list column, and it holds {kind}.")
    return (values.arr.to_list() if isinstance(kind, pl.Array) else values).cast(pl.List(pl.Float64))


# -- The audit: mean weights by segment, day and action ----------------------------------------------------------------


MOST = 1000  # parts of one kind that are tested, the largest first; the others still count as looks
UNIT, PART, TOTAL = "unit", "part", "total"
ORDERS = (1, 2, 3, 4)

Distribution = str | Sequence[str] | Mapping[Any, str] | None


@dataclass(frozen=True)
class Parts:
    """Which columns to audit, and by which."""

    propensity: str
    targets: Sequence[str] = ()
    action: str | None = None
    cluster: str | None = None
    segment: Sequence[str] = ()
    day: str | None = None
    distribution: Distribution = None


def audit(frame: pl.LazyFrame, schema: pl.Schema, parts: Parts) -> Audit:
    """The audit of one log, over the rows whose propensity is possible; for a target, over those whose weight is too.

    Rewards decide about no row: a propensity is right or wrong whatever came of the choice.
    """
    day = parts.day or _only_date(schema)
    keys = {name: column(name).cast(pl.String) for name in parts.segment}
    if day is not None:
        keys[day] = (column(day).dt.date() if schema[day] == pl.Datetime else column(day)).cast(pl.String)
    good = _good(frame, parts, keys)
    plans = [_by_key(good, by, len(parts.targets)) for by in range(len(keys))] if parts.targets else []
    if parts.action is not None:
        plans += [_by_action(good), _all_units(good)]
    checks, looks = _read(plans, list(keys), parts) if plans else ([], 0)
    return settle(checks, looks, _calibration(frame, schema, parts))


def audit_of(question: Question) -> Audit | None:
    """The audit of a log that is at hand as files or a frame, by what a question names; None of others, and where rows cannot be read.

    >>> from counterpoise import evaluate
    >>> rows = {"r": [1, 0] * 50, "p": [0.5] * 100, "t": [0.6, 0.4] * 50, "item": ["a", "b"] * 50}
    >>> audit_of(evaluate(rows, reward="r", propensity="p", target="t", action="item").question).checks[0].mean
    1.0
    """
    log = question.log
    if (
        question.propensity_model is not None
        or log.slate is not None
        or not question.weight.needs_propensity
        or not engine_of(log).has_order
    ):
        return None
    if isinstance(question.weight, Balanced):  # whose weights need not average to 1 on the days of one logger
        question = of_own_logger(question)
        log = question.log
    targets = {target.column: target.name for target in question.targets if not target.is_policy}
    chosen = {choice.column for choice in question.choices}
    with suppress(LogError):
        frame = engine_of(log).scan(log)
        known = set(frame.collect_schema()) | chosen
        used = [log.propensity, log.action, log.cluster, *question.segment, *targets]
        made = Plan((), tuple(name for name in used if name is not None and name not in known))
        frame = made.complete(frame, question)
        parts = Parts(str(log.propensity), list(targets), log.action, log.cluster, question.segment)
        audited = audit(frame, frame.collect_schema(), parts)
        named = [test if test.target is None else replace(test, target=targets[test.target]) for test in audited.checks]
        return replace(audited, checks=tuple(named))
    return None


def check_columns(schema: pl.Schema, names: Sequence[str]) -> None:
    """Raise an error for the first name that no column has."""
    for name in names:
        if name not in schema:
            raise ColumnError(f"no column {name!r}; the log has {', '.join(map(repr, schema.names()))}.")


def columns_of(distribution: Distribution) -> list[str]:
    """The columns that hold the logging distribution."""
    if distribution is None:
        return []
    if isinstance(distribution, str):
        return [distribution]
    return list(distribution.values() if isinstance(distribution, Mapping) else distribution)


def _only_date(schema: pl.Schema) -> str | None:
    """The log's date or time, if it has only one."""
    dates = [name for name, kind in schema.items() if kind in (pl.Date, pl.Datetime)]
    return dates[0] if len(dates) == 1 else None


def _good(frame: pl.LazyFrame, parts: Parts, keys: Mapping[str, pl.Expr]) -> pl.LazyFrame:
    """The rows with a possible propensity under names of our own: v = 1/p, a target's u = w − 1 (null where that is impossible), keys."""
    p = column(parts.propensity).cast(pl.Float64)
    chosen = {"p": p} | {f"k{k}": key for k, key in enumerate(keys.values())}
    chosen |= {f"t{k}": column(name).cast(pl.Float64) for k, name in enumerate(parts.targets)}
    if parts.action is not None:
        chosen["a"] = column(parts.action).cast(pl.String)
    if parts.cluster is not None:
        chosen[UNIT] = column(parts.cluster)
    good, p = frame.select(**chosen).filter(is_propensity(pl.col("p"))), pl.col("p")
    excess = {}
    for k in range(len(parts.targets)):
        t = pl.col(f"t{k}")
        excess[f"u{k}"] = pl.when(is_probability(t) & is_believable(t, p)).then((t - p) / p)
    return good.with_columns(v=1 / p, **excess)


def _by_key(good: pl.LazyFrame, by: int, targets: int) -> pl.LazyFrame:
    """For every value of one key and every target: rows, units, and the sums of powers of the units' excess."""
    excess = [f"u{k}" for k in range(targets)]
    rows = {f"rows {name}": pl.col(name).count() for name in excess}
    if UNIT in good.collect_schema():
        sums = {name: pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()) for name in excess}
        units = good.group_by(pl.col(f"k{by}").alias(PART), UNIT).agg(**rows, **sums)
        rows = {name: pl.col(name).sum() for name in rows}
    else:
        units = good.with_columns(pl.col(f"k{by}").alias(PART))
    powers = {f"{name} {order}": (pl.col(name) ** order).sum() for name in excess for order in ORDERS}
    counts = {f"units {name}": pl.col(name).count() for name in excess}
    return _largest(units.group_by(PART).agg(size=pl.len(), **rows, **counts, **powers), str(by))


def _by_action(good: pl.LazyFrame) -> pl.LazyFrame:
    """For every action, how the powers of the units' excess differ from those of units that never took it: minus their sizes."""
    taken = good.filter(pl.col("a").is_not_null())
    if UNIT in good.collect_schema():
        sizes = good.group_by(UNIT).agg(m=pl.len().cast(pl.Float64))
        pairs = taken.group_by(pl.col("a").alias(PART), UNIT).agg(v=pl.col("v").sum(), rows=pl.len())
        units, rows = pairs.join(sizes, on=UNIT, nulls_equal=True), pl.col("rows").sum()
    else:
        units, rows = taken.with_columns(pl.col("a").alias(PART), m=pl.lit(1.0)), pl.len()
    m = pl.col("m")
    powers = {f"u0 {order}": ((pl.col("v") - m) ** order - (-m) ** order).sum() for order in ORDERS}
    return _largest(units.group_by(PART).agg(size=pl.len(), **{"rows u0": rows}, **powers), ACTION)


def _all_units(good: pl.LazyFrame) -> pl.LazyFrame:
    """The same of units none of which took the action."""
    if UNIT in good.collect_schema():
        sizes = good.group_by(UNIT).agg(m=pl.len().cast(pl.Float64))
    else:
        sizes = good.select(m=pl.col("v").is_not_null().cast(pl.Float64))
    powers = {f"u0 {order}": ((-pl.col("m")) ** order).sum() for order in ORDERS}
    total = sizes.select(size=pl.len(), **{"rows u0": pl.col("m").sum().cast(pl.Int64), "units u0": pl.len()}, **powers)
    return total.with_columns(by=pl.lit(TOTAL), parts=pl.lit(0, pl.Int64))


def _largest(groups: pl.LazyFrame, by: str) -> pl.LazyFrame:
    ordered = groups.with_columns(by=pl.lit(by), parts=pl.len().cast(pl.Int64))
    return ordered.sort("size", PART, descending=[True, False], nulls_last=True).head(MOST)


def _read(plans: Sequence[pl.LazyFrame], keys: Sequence[str], parts: Parts) -> tuple[list[Check], int]:
    """The checks, from one pass over the rows, and how many there would have been of all parts."""
    table = collect(pl.concat(plans, how="diagonal_relaxed")).to_dicts()
    looked = {row["by"]: row["parts"] for row in table}
    looks = sum(count * (1 if by == ACTION else len(parts.targets)) for by, count in looked.items())
    total = next((row for row in table if row["by"] == TOTAL), None)
    checks: list[Check] = []
    for row in table:
        part = "missing" if row.get(PART) is None else row[PART]
        if row["by"] == ACTION and total is not None:
            sums = np.array([row[f"u0 {k}"] + total[f"u0 {k}"] for k in ORDERS])
            rows = total["rows u0"]
            checks.append(check(str(parts.action), part, None, rows, Powers(total["units u0"], 0.0, sums)))
        elif row["by"] != TOTAL:
            by = keys[int(row["by"])]
            checks += [
                check(by, part, name, row[f"rows u{k}"], Powers(row[f"units u{k}"], 0.0, _sums(row, k)))
                for k, name in enumerate(parts.targets)
            ]
    return checks, looks


def _sums(row: Mapping[str, Any], target: int) -> Any:
    return np.array([row[f"u{target} {order}"] for order in ORDERS], dtype=np.float64)


def _calibration(frame: pl.LazyFrame, schema: pl.Schema, parts: Parts) -> Calibration | None:
    """The table of the logged probabilities: of the columns given, or of a list column that holds the propensity where the action says."""
    if parts.action is None:
        if parts.distribution is None:
            return None
        raise OptionError(
            "to check the probabilities of all actions, the logged action must be known.",
            do=["Name its column with ", Argument("action", Blank("COLUMN")), "."],
        )
    distribution = parts.distribution or find_distribution(frame, schema, parts.action, parts.propensity)
    return None if distribution is None else calibration_of(frame, schema, parts.action, distribution, parts.cluster)
