"""This file holds the one aggregate query: sums of the rows' columns and of their products, by segment and group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from counterpoise.log.request import LOGGING, Request
from counterpoise.log.rules import LARGEST
from counterpoise.moments import Floats, Moments
from counterpoise.moments.log_moments import Contrast, Label

Frame = nw.LazyFrame[Any]


def columns_of(request: Request, contrast: int) -> dict[str, str]:
    """Column of the moments → column of the query, for one contrast."""
    k, (target, against) = contrast, request.contrasts[contrast]
    found = {"u": f"u{k}", "s": "s", "us": f"us{k}"}
    if against:
        return found
    if request.model_reward is not None:
        found |= {"e": "e", "ue": f"ue{k}", "v": f"w{request.targets.index(target)}"}
    return found | {column: f"y{j}" for j, column in enumerate(request.control)}


def excess_of(request: Request) -> dict[str, str]:
    """Column of a target → column of its u, of which the largest are wanted besides the sums."""
    values = {target: f"u{k}" for k, (target, against) in enumerate(request.contrasts) if not against}
    return {f"t{k}": values[target] for k, target in enumerate(request.targets) if target in values}


def aggregate(
    frame: Frame,
    request: Request,
    centre: float | None,
    peaks: Sequence[str] = (),
    watch: Callable[[Frame], Frame] = lambda rows: rows,
) -> Frame:
    """One row per segment and group: counts, sums, products, and the extremes that show a row to be bad.

    Without a centre, the column c holds one for each row's segment, and is part of the answer. Of the columns `peaks`, which the
    frame has besides, the largest value is too. `watch` sees the rows with their u and s in passing.
    """
    p, r = nw.col("p"), nw.col("r")
    middle = nw.col("c") if centre is None else nw.lit(centre)
    first: dict[str, nw.Expr] = {"s": r - middle}
    if request.model_reward is not None:
        first["e"] = r - nw.col("q")
        first |= {f"w{k}": nw.col(f"v{k}") - middle for k in range(len(request.targets))}
    first |= {f"y{k}": nw.col(f"x{k}") - mean for k, mean in enumerate(request.control.values())}
    products: dict[str, nw.Expr] = {}
    for k, (target, against) in enumerate(request.contrasts):
        t = nw.col(f"t{request.targets.index(target)}")
        minus = p if against in ("", LOGGING) else nw.col(f"t{request.targets.index(against)}")
        first[f"u{k}"] = (t - minus) / p  # not t/p − 1: for weights near 1 this one keeps its digits
        products[f"us{k}"] = nw.col(f"u{k}") * nw.col("s")
        if request.model_reward is not None and not against:
            products[f"ue{k}"] = nw.col(f"u{k}") * nw.col("e")
    rows = watch(frame.with_columns(**first)).with_columns(**products)
    pairs = sorted({pair for k in range(len(request.contrasts)) for pair in _pairs(request, k)})
    squares = {_square(a, b): nw.col(a) * nw.col(b) for a, b in pairs if "_" in _square(a, b)}
    singles = sorted({name for k in range(len(request.contrasts)) for name in columns_of(request, k).values()})
    zeros = {f"zero{k}": indicator(nw.col(f"t{k}") == 0) for k in range(len(request.targets))}
    keys = [f"k{j}" for j in range(len(request.segment))] + (["g"] if request.groups > 1 else [])
    wanted = [nw.len().alias("n")] + ([nw.col("c").max()] if centre is None else [])
    wanted += [nw.col(name).sum() for name in singles]
    if keys:  # not every engine adds up products by group that are not columns
        rows = rows.with_columns(**squares, **zeros)
        wanted += [nw.col(name).sum() for name in (*squares, *zeros)]
    else:
        wanted += [product.sum().alias(name) for name, product in (squares | zeros).items()]
    for name in request.numbers:
        wanted += [nw.col(name).min().alias(f"{name}_min"), nw.col(name).max().alias(f"{name}_max")]
        wanted.append(nw.col(name).count().alias(f"{name}_count"))
    wanted += [nw.col(name).max() for name in peaks]
    return rows.group_by(*keys).agg(*wanted) if keys else rows.select(*wanted)


def indicator(condition: nw.Expr) -> nw.Expr:
    """1.0 where a condition holds, else 0.0; some engines add no truth values, and some take 1.0 for an exact decimal."""
    return nw.when(condition).then(nw.lit(1)).otherwise(nw.lit(0)).cast(nw.Float64)


def is_clean(result: Mapping[str, Floats], request: Request) -> bool:
    """Whether no row broke a rule, judged by the counts, the extremes and the sums (which a NaN spoils)."""
    n = result["n"]
    for name in request.numbers:
        low, high = _limits(name)
        if (result[f"{name}_count"] != n).any() or not (result[f"{name}_min"] >= low).all():
            return False
        if not (result[f"{name}_max"] <= high).all():
            return False
    if not (result["p_min"] >= 1.0 / LARGEST).all():
        return False
    if request.cluster is not None and np.isnan(result["g"]).any():
        return False
    sums = [name for name in result if name[0] in "usewy" and not name.endswith(("_min", "_max", "_count"))]
    return all(bool(np.isfinite(result[name]).all()) for name in sums)


def is_well_centred(result: Mapping[str, Floats], labels: Sequence[Label]) -> bool:
    """Whether the centre was near enough to the rewards of every segment for their variance to keep its digits."""
    place = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    at = [place[label] for label in labels]
    rows, s, squares = (np.bincount(at, result[name], len(place)) for name in ("n", "s", "s_s"))
    n = np.maximum(rows, 1)
    mean = s / n
    return bool((np.square(mean) <= 1e4 * np.maximum(squares / n - np.square(mean), 0.0)).all())


def moments_of(
    result: Mapping[str, Floats], request: Request, centre: Floats, segment: NDArray[np.int64], segments: int
) -> dict[Contrast, Moments]:
    """The answer of `aggregate` as one stack (segments × groups) per contrast."""
    group = result["g"].astype(np.int64) if request.groups > 1 else np.zeros(len(segment), dtype=np.int64)
    found = {}
    for k, contrast in enumerate(request.contrasts):
        columns = columns_of(request, k)
        names = list(columns.values())
        d, shape = len(names), (segments, request.groups)
        n, sums, products = np.zeros(shape, np.int64), np.zeros((*shape, d)), np.zeros((*shape, d, d))
        np.add.at(n, (segment, group), result["n"].astype(np.int64))
        for i, a in enumerate(names):
            np.add.at(sums[..., i], (segment, group), result[a])
            for j, b in enumerate(names):
                np.add.at(products[..., i, j], (segment, group), result[_square(*sorted((a, b)))])
        found[contrast] = Moments.of_sums(n, sums, products, centre, tuple(columns))
    return found


def _pairs(request: Request, contrast: int) -> list[tuple[str, str]]:
    names = sorted(columns_of(request, contrast).values())
    return [(a, b) for i, a in enumerate(names) for b in names[i:]]


def _square(a: str, b: str) -> str:
    """Name of the product of two columns, in alphabetical order; u·s and u·e are columns themselves."""
    return f"u{a}{b[1:]}" if a in ("s", "e") and b[0] == "u" and b[1:].isdigit() else f"{a}_{b}"


def _limits(name: str) -> tuple[float, float]:
    return (0.0, 1.0) if name[0] in "pt" else (-LARGEST, LARGEST)
