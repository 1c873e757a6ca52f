"""This file holds the pushdown: the aggregate query runs where the log lives, and only its small answer travels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.errors import ColumnError, LogError, OptionError
from counterpoise.log_moments import Label, LogMoments, as_label
from counterpoise.moments import Floats
from counterpoise.sources import checks
from counterpoise.sources.assemble import assemble, labels_of, numbers_of
from counterpoise.sources.embedded import centre_of
from counterpoise.sources.groups import PRIME, with_groups
from counterpoise.sources.query import aggregate, excess_of, indicator, is_well_centred
from counterpoise.sources.request import Request
from counterpoise.tails import KEPT

PER_STATEMENT = 10  # targets; with many more, engines spend minutes planning the statement

CLUSTER = (
    "the cluster's checksum"  # among the names of columns: where the cluster is text, and other parts may want the text
)

Frame = nw.LazyFrame[Any]
Collect = Callable[[Frame], pl.DataFrame]
Fence = Callable[[Frame], Frame]


def summarise(
    frame: Frame, request: Request, names: Mapping[str, str], collect: Collect, fence: Fence = lambda frame: frame
) -> LogMoments:
    """Moments of a log in a database: one aggregate per ten targets, then the largest weights of each target.

    `frame` has every column the request names, some under the other `names`. Its bad rows are blanked before any arithmetic,
    because databases stop at a division by zero where embedded engines carry on, so that one statement both counts the bad rows
    and adds up the good ones. A `fence` keeps the database from writing one step's expressions into the next.
    """
    rows = fence(prepare(frame, request, names))
    good = fence(guard(rows, request))
    centre = centre_of(collect(good.select("r").head(1000)).to_series().cast(pl.Float64))
    parts = [_part(good, part, names, centre, collect) for part, names in split(request)]
    total, n = parts[0][1], int(parts[0][0].n) if parts[0][0] else 0
    if total == 0:
        raise LogError("the log has no rows.")
    if len({(found.n if found else 0, rows) for found, rows in parts}) > 1:
        raise LogError("the log changed while it was read: run it again, or read a copy that does not change.")
    if n < total:
        problems = find_problems(rows, request, collect)
        if not request.drop_bad_rows:
            checks.refuse(problems, total)
        if n == 0:
            raise checks.all_bad(problems, total)
    found = together([part for part, _ in parts if part is not None], request)
    return replace(found, dropped=total - n, duplicates=duplicates_of(good, request, n, collect))


def together(parts: Sequence[LogMoments], request: Request) -> LogMoments:
    """The moments of a request whose targets were asked for in pieces."""
    moments = {contrast: stack for part in parts for contrast, stack in part.moments.items()}
    tails = {contrast: tail for part in parts for contrast, tail in part.tails.items()}
    ordered = {contrast: moments[contrast] for contrast in request.contrasts}
    return replace(parts[0], moments=ordered, tails={key: tails[key] for key in ordered if not key[1]})


def prepare(frame: Frame, request: Request, names: Mapping[str, str]) -> Frame:
    """The columns under internal names: numbers as float64, segments, groups."""
    schema = frame.collect_schema()
    chosen = []
    for name, (part, column) in request.numbers.items():
        found = names.get(column, column)
        checks.check_type(part, column, schema[found])
        chosen.append(_number(nw.col(found), schema[found]).alias(name))
    chosen += [_segment(names.get(column, column), schema).alias(f"k{k}") for k, column in enumerate(request.segment)]
    chosen += [nw.col(names.get(column, column)).alias(f"key{k}") for k, column in enumerate(request.key)]
    if request.groups > 1:
        if request.cluster is None:
            raise OptionError(
                "rows in a database have no order to group them by: pass cluster=, the column of a whole number such as the "
                "user's id, for the jackknife and cross_fit."
            )
        ids = names.get(CLUSTER, names.get(request.cluster, request.cluster))
        if not schema[ids].is_integer():
            raise ColumnError(
                f"cluster {request.cluster!r} must hold whole numbers in this database, but holds {schema[ids]}. Pass an "
                "expression that makes one of it with the database's own hash function."
            )
        # the remainder first: an unsigned id may be too large for the type
        chosen.append((nw.col(ids) % PRIME).cast(nw.Int64).alias("g"))
    prepared = frame.select(*chosen)
    return with_groups(prepared, request.groups) if request.groups > 1 else prepared


def _segment(column: str, schema: Any) -> nw.Expr:
    """A segment's values; NaN is missing, or two groups would have one label."""
    return nw.when(~nw.col(column).is_nan()).then(nw.col(column)) if schema[column].is_float() else nw.col(column)


def _number(column: nw.Expr, dtype: Any) -> nw.Expr:
    if dtype == nw.Boolean:  # which not every database casts to a number
        column = nw.when(~column.is_null()).then(indicator(column))
    return column.cast(nw.Float64)


def guard(rows: Frame, request: Request) -> Frame:
    """The rows with every number of a bad one blank."""
    good = rows.with_columns(good=checks.valid(request))
    return good.with_columns(*(nw.when(nw.col("good")).then(nw.col(name)).alias(name) for name in request.numbers))


def split(request: Request) -> Iterator[tuple[Request, dict[str, str]]]:
    """The request in pieces of a few targets, each with the names of its columns in the whole one's frame.

    Segments and comparisons make a statement longer, and Spark plans for minutes where it is too long.
    """
    is_compared = any(other for _, other in request.contrasts)
    size = PER_STATEMENT // (2 if is_compared else 1) // (2 if request.segment or request.groups > 1 else 1)
    values = [target for target, against in request.contrasts if not against]
    against = {other for _, other in request.contrasts if other in request.targets}
    for k in range(0, len(values), size):
        chunk = values[k : k + size]
        targets = tuple(chunk) + tuple(other for other in against if other not in chunk)
        places = [request.targets.index(target) for target in targets]
        names = {f"t{j}": f"t{place}" for j, place in enumerate(places)}
        if request.model_value:
            names |= {f"v{j}": f"v{place}" for j, place in enumerate(places)}
        contrasts = tuple(contrast for contrast in request.contrasts if contrast[0] in chunk)
        model = {target: request.model_value[target] for target in targets} if request.model_value else {}
        yield replace(request, targets=targets, contrasts=contrasts, model_value=model), names


def _part(
    good: Frame, request: Request, names: dict[str, str], centre: float, collect: Collect
) -> tuple[LogMoments | None, int]:
    """Moments of some of the targets, and how many rows there are, bad ones included."""
    keys = [f"k{j}" for j in range(len(request.segment))]
    kept = ["r", "p", *(["q"] if request.model_value else []), *(f"x{k}" for k in range(len(request.control)))]
    kept += [*keys, *(["g"] if request.groups > 1 else [])]
    frame = good.select(*kept, *(nw.col(old).alias(new) for new, old in names.items()))
    answer, total = _aggregate(frame, request, centre, collect)
    if answer.height == 0:
        return None, total
    if not is_well_centred(numbers_of(answer), labels_of(answer, request)):
        # segments whose rewards are worlds apart, or first rows unlike the rest: every segment around its own mean
        if keys:
            answer, _ = _aggregate(frame.with_columns(c=nw.col("r").mean().over(*keys)), request, None, collect)
        else:
            sums = numbers_of(answer)
            centre += float(sums["s"].sum() / sums["n"].sum())
            answer, _ = _aggregate(frame, request, centre, collect)
    largest = {target: _largest(frame, target, keys, collect) for target in excess_of(request)}
    return assemble(numbers_of(answer), labels_of(answer, request), largest, request, centre), total


def _aggregate(frame: Frame, request: Request, centre: float | None, collect: Collect) -> tuple[pl.DataFrame, int]:
    """The sums of the good rows, where there are any, and the number of all rows."""
    answer = collect(aggregate(frame, request, centre))
    total = int(numbers_of(answer)["n"].sum())
    return answer.with_columns(n=pl.col("p_count")).filter(pl.col("n") > 0), total


def _largest(frame: Frame, target: str, keys: list[str], collect: Collect) -> dict[Label, Floats]:
    """The largest weights of every segment, in descending order."""
    weights = frame.select(*keys, w=nw.col(target) / nw.col("p")).filter(~nw.col("w").is_null())
    if not keys:
        top = collect(weights.sort("w", descending=True).head(KEPT))
        return {(): np.sort(top.get_column("w").cast(pl.Float64).to_numpy())[::-1]}
    rank = nw.col("w").rank("ordinal", descending=True).over(*keys)
    top = collect(weights.with_columns(place=rank).filter(nw.col("place") <= KEPT).select(*keys, "w"))
    grouped = top.group_by(keys).agg(pl.col("w").cast(pl.Float64))
    return {as_label(row[:-1]): np.sort(np.asarray(row[-1], dtype=np.float64))[::-1] for row in grouped.rows()}


def find_problems(rows: Frame, request: Request, collect: Collect) -> list[checks.Problem]:
    """Which rules are broken, how often, and one value that breaks each."""
    rules = checks.rules(request)
    bad = {f"rule{k}": ~rule.holds.fill_null(False) for k, rule in enumerate(rules)}
    marked = rows.with_columns(**bad)
    marked = marked.with_columns(
        *(indicator(nw.col(name)).alias(f"{name}_count") for name in bad),
        *(nw.when(nw.col(f"rule{k}")).then(nw.col(rule.shows)).alias(f"rule{k}_value") for k, rule in enumerate(rules)),
    )
    answer = collect(
        marked.select(
            *(nw.col(f"{name}_count").sum() for name in bad), *(nw.col(f"{name}_value").max() for name in bad)
        )
    ).row(0, named=True)
    return [
        checks.Problem(rule, int(answer[f"rule{k}_count"]), None, answer[f"rule{k}_value"])
        for k, rule in enumerate(rules)
        if answer[f"rule{k}_count"]
    ]


def duplicates_of(good: Frame, request: Request, n: int, collect: Collect) -> int | None:
    """Good rows whose key another good row has."""
    if not request.key:
        return None
    keys = [f"key{k}" for k in range(len(request.key))]
    distinct = collect(good.filter(nw.col("good")).select(*keys).unique().select(nw.len().alias("n")))
    return n - int(distinct.item())
