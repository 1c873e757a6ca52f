"""Reads the logging policy's distribution over all actions, and adds up how often actions were taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from counterpoise.diagnostics.calibration import EDGES, BinSums, Calibration, calibrate
from counterpoise.engines.rows import collect
from counterpoise.errors import ColumnError
from counterpoise.log.expressions import column, columns

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
        seen = frame.head(SAMPLE).select(q=_list(column(name), kind), a=column(action), p=column(propensity))
        taken = pl.col("q").list.get(pl.col("a"), null_on_oob=True)
        is_it = (
            (pl.col("a") >= 0) & ((taken - pl.col("p")).abs() < 1e-6) & ((pl.col("q").list.sum() - 1).abs() < ROUNDING)
        )
        if (collect(seen.select(is_it.fill_null(False).mean())).item() or 0.0) > 0.99:
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
                [str(one) for one in named], list(range(len(named))), default=None, return_dtype=pl.Int64
            )
        q = pl.concat_list(one.cast(pl.Float64) for one in columns(named.values()))
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
    return _calibrated(said, rows, has_clusters=cluster is not None)


def _calibrated(said: str, rows: pl.LazyFrame, *, has_clusters: bool) -> Calibration:
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
    seen = collect(pl.concat(plans, how="horizontal")).row(0, named=True)
    spread = _matrix(seen, "D") if has_clusters else None
    vectors = {"pairs": _vector(seen, pairs), "taken": _vector(seen, taken), "mass": _vector(seen, mass)}
    found = BinSums(**vectors, products=_matrix(seen, "P"), spread=spread, units=int(seen.get("units", 0)))
    return calibrate(said, int(seen["rows"]), int(seen["impossible"]), found)


def _in_bins(lists: pl.Series) -> pl.Series:
    """For every list of probabilities, the mass P and the number N of those in each bin; zeros are in none."""
    row = np.repeat(np.arange(len(lists)), lists.list.len().to_numpy())
    q = lists.explode().to_numpy()
    row, q = row[q > 0], q[q > 0]
    bins = np.clip(np.searchsorted(EDGES, q) - 1, 0, BINS[-1])
    shape, at = (len(lists), len(BINS)), row * len(BINS) + bins
    mass = np.bincount(at, weights=q, minlength=shape[0] * shape[1]).reshape(shape)
    count = np.bincount(at, minlength=shape[0] * shape[1]).reshape(shape)
    found = {f"P{k}": mass[:, k] for k in BINS} | {f"N{k}": count[:, k].astype(np.int64) for k in BINS}
    return pl.DataFrame(found, schema=_FIELDS).to_struct("bins")


def _is_in(k: int) -> pl.Expr:
    """Whether the action that was taken lies in a bin."""
    y = pl.col("y")
    return ((y > EDGES[k]) & (True if k == BINS[-1] else y <= EDGES[k + 1])).alias(f"Y{k}")


def _vector(seen: Mapping[str, Any], names: Sequence[str]) -> Any:
    return np.array([seen[name] or 0.0 for name in names], dtype=np.float64)


def _matrix(seen: Mapping[str, Any], name: str) -> Any:
    return np.array([[seen[f"{name}{min(j, k)} {max(j, k)}"] or 0.0 for k in BINS] for j in BINS], dtype=np.float64)


def _list(values: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if not isinstance(kind, pl.List | pl.Array):
        raise ColumnError(f"the probabilities of all actions must be a list column, and it holds {kind}.")
    return (values.arr.to_list() if isinstance(kind, pl.Array) else values).cast(pl.List(pl.Float64))
