"""This file holds the embedded engine: polars takes a frame in memory, or one batch of a longer log, to its moments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.errors import LogError
from counterpoise.log_moments import Label, LogMoments, as_label
from counterpoise.moments import Floats
from counterpoise.sources import checks, compiled
from counterpoise.sources.groups import group_of, integer_ids
from counterpoise.sources.query import aggregate, is_clean, is_well_centred, moments_of
from counterpoise.sources.request import Request
from counterpoise.tails import EMPTY, KEPT, Tail

SAMPLE = 100_000


def summarise(batches: Iterable[pl.DataFrame], request: Request) -> LogMoments:
    """Moments of all batches together; raises if any row is bad, unless bad rows are to be dropped."""
    total: LogMoments | None = None
    problems: list[checks.Problem] = []
    keys: list[pl.Series] = []
    rows = 0
    for batch in batches:
        if batch.height == 0:
            continue
        part, wrong, good = _batch(batch, request, rows)
        rows += batch.height
        problems += wrong
        if request.key:
            keys.append(good.get_column("key"))
        total = part if total is None else total + part
    if total is None:
        raise LogError("the log has no rows.")
    if problems and not request.drop_bad_rows:
        checks.refuse(problems, rows)
    if total.n == 0:
        raise LogError(f"all {rows:,} rows are bad. " + " Also: ".join(map(str, checks.merge_problems(problems))))
    duplicates = total.n - pl.concat(keys).n_unique() if keys else None
    return LogMoments(
        total.moments,
        total.tails,
        total.segments,
        total.reward_min,
        total.reward_max,
        request.segment,
        request.cluster,
        tuple(request.control.items()),
        rows - total.n,
        duplicates,
    )


def _batch(
    batch: pl.DataFrame, request: Request, first_row: int
) -> tuple[LogMoments, list[checks.Problem], pl.DataFrame]:
    """Moments of the good rows of one batch, the problems of the bad ones, and the good rows themselves."""
    frame = _prepare(batch, request, first_row)
    centre = _centre(frame)
    if compiled.suits(frame, request):
        scanned = compiled.scan(frame, request, centre)
        if scanned is not None and is_well_centred(scanned[0]):
            return _collect(scanned[0], [()], request, centre, lambda target: {(): scanned[1][target]}), [], frame
    problems: list[checks.Problem] = []
    answer = _run(frame, request, centre)
    if not is_clean(_numbers(answer), request):
        eager = nw.from_native(frame, eager_only=True)
        problems = checks.find_problems(eager, request, first_row)
        frame = eager.filter(checks.valid(request)).to_native()
        centre = _centre(frame)
        answer = _run(frame, request, centre)
    keys = [f"k{j}" for j in range(len(request.segment))]
    if not is_well_centred(_numbers(answer)):
        # segments whose rewards are worlds apart, or first rows unlike the rest: every segment around its own mean
        frame = frame.with_columns(_own_centre(keys))
        answer = _run(frame, request, None)
    labels = [as_label(row) for row in answer.select(keys).rows()] if keys else [()] * answer.height
    return (
        _collect(_numbers(answer), labels, request, centre, lambda target: _largest(frame, target, keys)),
        problems,
        frame,
    )


def _centre(frame: pl.DataFrame) -> float:
    """The median reward of the first rows: near the others, whatever a broken row may hold."""
    head = frame.get_column("r").head(1000)
    middle = head.filter(head.abs() <= checks.LARGEST).median()
    return float(middle) if isinstance(middle, float) else 0.0


def _own_centre(keys: list[str]) -> pl.Expr:
    mean = pl.col("r").cast(pl.Float64).mean()
    return (mean.over(keys) if keys else mean).alias("c")


def _prepare(batch: pl.DataFrame, request: Request, first_row: int) -> pl.DataFrame:
    """The columns under internal names: numbers as float64 (or float32, widened when used), segments, groups."""
    schema = nw.from_native(batch).schema
    chosen = []
    for name, (part, column) in request.numbers.items():
        checks.check_type(part, column, schema[column])
        values = batch.get_column(column)
        chosen.append((values if values.dtype in (pl.Float64, pl.Float32) else values.cast(pl.Float64)).alias(name))
    for k, column in enumerate(request.segment):
        values = batch.get_column(column).alias(f"k{k}")
        chosen.append(values.fill_nan(None) if values.dtype.is_float() else values)
    if request.groups > 1:
        ids = integer_ids(batch.get_column(request.cluster)) if request.cluster else _row_numbers(batch, first_row)
        chosen.append(ids.alias("g"))
    if request.key:
        chosen.append(batch.select(request.key).hash_rows().alias("key"))
    frame = pl.DataFrame(chosen)
    if request.groups > 1:
        frame = nw.from_native(frame).with_columns(group_of(nw.col("g"), request.groups).alias("g")).to_native()
    return frame


def _row_numbers(batch: pl.DataFrame, first_row: int) -> pl.Series:
    return pl.Series(np.arange(first_row, first_row + batch.height))


def _run(frame: pl.DataFrame, request: Request, centre: float | None) -> pl.DataFrame:
    lazy = nw.from_native(frame.lazy()).with_columns(nw.col(*request.numbers).cast(nw.Float64))
    answer: pl.DataFrame = aggregate(lazy, request, centre).to_native().collect(engine="streaming")
    return answer


def _numbers(answer: pl.DataFrame) -> dict[str, Floats]:
    """The answer's columns as float64, with nan for null."""
    names = [name for name in answer.columns if not name.startswith("k")]
    return {name: answer.get_column(name).cast(pl.Float64).to_numpy() for name in names}


def _collect(
    numbers: Mapping[str, Floats],
    labels: Sequence[Label],
    request: Request,
    centre: float,
    largest: Callable[[str], Mapping[Label, Floats]],
) -> LogMoments:
    """The answer of the query, one row per label, as moments."""
    segments = tuple(sorted(set(labels), key=_order))
    place = {label: k for k, label in enumerate(segments)}
    at = np.array([place[label] for label in labels], dtype=np.int64)
    lowest, highest = np.full(len(segments), np.inf), np.full(len(segments), -np.inf)
    np.fmin.at(lowest, at, numbers["r_min"])
    np.fmax.at(highest, at, numbers["r_max"])
    values = {contrast: k for k, contrast in enumerate(request.contrasts) if not contrast[1]}
    tails = {}
    for contrast in values:
        t = request.targets.index(contrast[0])
        zeros = np.zeros(len(segments))
        np.add.at(zeros, at, np.nan_to_num(numbers[f"zero{t}"]))
        weights = largest(f"t{t}")
        tails[contrast] = tuple(
            Tail(weights.get(label, EMPTY.weights), int(zeros[k])) for k, label in enumerate(segments)
        )
    centres = np.full((len(segments), 1), centre)
    if "c" in numbers:
        centres[at, 0] = numbers["c"]
    moments = moments_of(numbers, request, centres, at, len(segments))
    return LogMoments(
        moments, tails, segments, lowest, highest, request.segment, request.cluster, tuple(request.control.items())
    )


def _largest(frame: pl.DataFrame, target: str, keys: list[str]) -> dict[Label, Floats]:
    """The largest weights of every segment, in descending order."""
    t, p = pl.col(target).cast(pl.Float64), pl.col("p").cast(pl.Float64)
    lazy = frame.lazy()
    if keys:
        grouped = lazy.select(*keys, w=t / p).group_by(keys).agg(pl.col("w").top_k(KEPT)).collect(engine="streaming")
        return {as_label(row[:-1]): np.sort(np.asarray(row[-1], dtype=np.float64))[::-1] for row in grouped.rows()}
    if frame.height > 10 * SAMPLE:
        # A threshold from a sample leaves few rows to rank; ranking all of them would cost as much as all the sums.
        sample = _sample(frame, target)
        threshold = float(np.partition(sample, -40)[-40:].min())
        few = lazy.filter(t >= p * threshold).select(w=t / p).collect(engine="streaming").to_series()
        if few.len() >= KEPT:
            return {(): np.sort(few.top_k(KEPT).to_numpy())[::-1]}
    top = lazy.select(w=t / p).top_k(KEPT, by="w").collect(engine="streaming").to_series()
    return {(): np.sort(top.to_numpy())[::-1]}


def _sample(frame: pl.DataFrame, target: str) -> Floats:
    """The weights of some rows from all over a long frame, at most `SAMPLE`: few enough that 40 of them bound `KEPT` of all."""
    t, p = frame.get_column(target).to_numpy(), frame.get_column("p").to_numpy()
    pieces, length = 64, min(SAMPLE, 20 * frame.height // KEPT) // 64
    starts = np.linspace(0, frame.height - length, pieces, dtype=np.int64)
    return np.concatenate([t[k : k + length] / p[k : k + length] for k in starts], dtype=np.float64)


def _order(label: Label) -> tuple[tuple[bool, bool, Any], ...]:
    """Numbers in order, then text, then null."""
    return tuple((value is None, isinstance(value, str), "" if value is None else value) for value in label)
