"""This file holds the embedded engine: polars takes a frame in memory, or one batch of a longer log, to its moments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.engines import compiled
from counterpoise.engines.assemble import assemble, labels_of, numbers_of
from counterpoise.engines.query import aggregate, excess_of, is_clean, is_well_centred
from counterpoise.errors import LogError
from counterpoise.log import rules as checks
from counterpoise.log.expressions import columns
from counterpoise.log.groups import integer_ids, with_groups
from counterpoise.log.request import Request
from counterpoise.moments import Floats
from counterpoise.moments.log_moments import Label, LogMoments, as_label
from counterpoise.moments.tails import KEPT

SAMPLE = 100_000


@dataclass
class Partial:
    """What is known after some batches: the moments of their good rows, and the problems of the bad ones."""

    total: LogMoments | None = None
    problems: list[checks.Problem] = field(default_factory=list)
    rows: int = 0
    keys: list[pl.Series] = field(default_factory=list)

    def add(self, batch: pl.DataFrame, request: Request) -> None:
        """One more batch."""
        if batch.height == 0:
            return
        part, wrong, good = _batch(batch, request, self.rows)
        self.total = part if self.total is None else self.total + part
        self.rows += batch.height
        self.problems += wrong
        if request.key:
            self.keys.append(good.get_column("key"))

    def finish(self, request: Request, duplicates: int | None = None) -> LogMoments:
        """The moments of all batches; raises if any row is bad, unless bad rows are to be dropped."""
        if not self.rows:
            raise LogError("the log has no rows.")
        if self.problems and not request.drop_bad_rows:
            checks.refuse(self.problems, self.rows)
        if self.total is None or self.total.n == 0:
            raise checks.all_bad(self.problems, self.rows)
        if self.keys:
            duplicates = self.total.n - pl.concat(self.keys).n_unique()
        return replace(self.total, dropped=self.rows - self.total.n, duplicates=duplicates)


def summarise(batches: Iterable[pl.DataFrame], request: Request) -> LogMoments:
    """Moments of all batches together; raises if any row is bad, unless bad rows are to be dropped."""
    partial = Partial()
    for batch in batches:
        partial.add(batch, request)
    return partial.finish(request)


def _batch(
    batch: pl.DataFrame, request: Request, first_row: int
) -> tuple[LogMoments, list[checks.Problem], pl.DataFrame]:
    """Moments of the good rows of one batch, the problems of the bad ones, and the good rows themselves."""
    frame = prepare(batch, request, first_row)
    centre = centre_of(frame.get_column("r").head(1000))
    if compiled.suits(frame, request):
        scanned = compiled.scan(frame, request, centre)
        if scanned is not None and is_well_centred(scanned[0], [()]):
            return assemble(scanned[0], [()], scanned[1], request, centre), [], frame
    problems: list[checks.Problem] = []
    answer = _run(frame, request, centre)
    if not is_clean(numbers_of(answer), request):
        eager = nw.from_native(frame, eager_only=True)
        problems = checks.find_problems(eager, request, first_row)
        frame = eager.filter(checks.valid(request)).to_native()
        centre = centre_of(frame.get_column("r").head(1000))
        answer = _run(frame, request, centre)
    keys = [f"k{j}" for j in range(len(request.segment))]
    if not is_well_centred(numbers_of(answer), labels_of(answer, request)):
        # segments whose rewards are worlds apart, or first rows unlike the rest: every segment around its own mean
        frame = frame.with_columns(_own_centre(keys))
        answer = _run(frame, request, None)
    largest = {target: _largest(frame, target, keys) for target in excess_of(request)}
    return assemble(numbers_of(answer), labels_of(answer, request), largest, request, centre), problems, frame


def centre_of(rewards: pl.Series) -> float:
    """The median of some rewards: near the others, whatever a broken row may hold."""
    middle = rewards.filter(rewards.abs() <= checks.LARGEST).median()
    return float(middle) if isinstance(middle, float) else 0.0


def _own_centre(keys: list[str]) -> pl.Expr:
    mean = pl.col("r").cast(pl.Float64).mean()
    return (mean.over(keys) if keys else mean).alias("c")


def prepare(batch: pl.DataFrame, request: Request, first_row: int) -> pl.DataFrame:
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
        ids = (
            _row_numbers(batch, first_row)
            if request.cluster is None
            else integer_ids(batch.get_column(request.cluster))
        )
        chosen.append(ids.alias("g"))
    if request.key:
        chosen.append(batch.select(columns(request.key)).hash_rows().alias("key"))
    frame = pl.DataFrame(chosen)
    if request.groups > 1:
        frame = with_groups(nw.from_native(frame), request.groups).to_native()
    return frame


def _row_numbers(batch: pl.DataFrame, first_row: int) -> pl.Series:
    return pl.Series(np.arange(first_row, first_row + batch.height))


def _run(frame: pl.DataFrame, request: Request, centre: float | None) -> pl.DataFrame:
    lazy = nw.from_native(frame.lazy()).with_columns(nw.col(*request.numbers).cast(nw.Float64))
    answer: pl.DataFrame = aggregate(lazy, request, centre).to_native().collect(engine="streaming")
    return answer


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
