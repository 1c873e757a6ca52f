"""Adds up what the audit of propensities needs: weights by segment, day and action, and a table of the logged probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from counterpoise.diagnostics.audit import ACTION, Audit, Check, check, settle
from counterpoise.diagnostics.calibration import Calibration
from counterpoise.engines.registry import ENGINES, engine_of
from counterpoise.engines.rows import collect
from counterpoise.errors import Argument, Blank, ColumnError, LogError, OptionError
from counterpoise.evaluation.logged_actions import calibration_of, find_distribution
from counterpoise.evaluation.loggers import of_own_logger
from counterpoise.log.expressions import Plan, column
from counterpoise.log.good import is_believable, is_probability, is_propensity
from counterpoise.log.question import Question
from counterpoise.moments import Powers
from counterpoise.weights import Balanced

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
        or engine_of(log) not in (ENGINES["files"], ENGINES["frames"])
    ):
        return None
    if isinstance(question.weight, Balanced):  # whose weights need not average to 1 on the days of one logger
        question = of_own_logger(question)
        log = question.log
    targets = {one.column: one.name for one in question.targets if not one.is_policy}
    chosen = {one.column for one in question.choices}
    with suppress(LogError):
        frame = engine_of(log).scan(log)
        known = set(frame.collect_schema()) | chosen
        used = [log.propensity, log.action, log.cluster, *question.segment, *targets]
        made = Plan((), tuple(name for name in used if name is not None and name not in known))
        frame = made.complete(frame, question)
        parts = Parts(str(log.propensity), list(targets), log.action, log.cluster, question.segment)
        found = audit(frame, frame.collect_schema(), parts)
        named = [one if one.target is None else replace(one, target=targets[one.target]) for one in found.checks]
        return replace(found, checks=tuple(named))
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
    found = parts.distribution or find_distribution(frame, schema, parts.action, parts.propensity)
    return None if found is None else calibration_of(frame, schema, parts.action, found, parts.cluster)
