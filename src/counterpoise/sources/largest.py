"""This file holds the watcher of a stream: it sees every weight in passing and remembers the largest ones exactly."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

import numpy as np
import polars as pl

from counterpoise.log_moments import Label, as_label
from counterpoise.moments import Floats
from counterpoise.tails import KEPT

PENDING = 20 * KEPT  # rows held before the largest are chosen among them


class Watcher:
    """Remembers the `KEPT` largest weights of every segment while an engine streams them through `see`.

    Ranking in a second query would read the file twice. The threshold below which a weight cannot be among the largest rises
    quickly, so that most rows cost one comparison. The engine calls from several threads.
    """

    def __init__(self, keys: list[str], report: Callable[[int], None] | None = None) -> None:
        self._keys = keys
        self._report = report
        self._lock = Lock()
        self._threshold = -np.inf
        self._kept: list[Floats] = []
        self._least: pl.DataFrame | None = None  # by segment
        self._rows: list[pl.DataFrame] = []
        self._held = 0

    def expression(self, weight: pl.Expr) -> pl.Expr:
        """The weights themselves, seen in passing."""
        if self._keys:
            both = pl.struct(*self._keys, weight.alias("w"))
            return both.map_batches(self._see_segments, return_dtype=pl.Float64, is_elementwise=True)
        return weight.map_batches(self._see, return_dtype=pl.Float64, is_elementwise=True)

    def largest(self) -> dict[Label, Floats]:
        """The largest weights of each segment, in descending order."""
        if not self._keys:
            weights = np.sort(np.concatenate([np.empty(0), *self._kept]))[::-1]
            return {(): weights[:KEPT]}
        found: dict[Label, Floats] = {}
        for row in self._ranked().rows() if self._rows else []:
            label = as_label(row[:-1])
            weights = np.concatenate([found.get(label, np.empty(0)), np.asarray(row[-1], dtype=np.float64)])
            found[label] = np.sort(weights)[::-1][:KEPT]
        return found

    def _see(self, weights: pl.Series) -> pl.Series:
        w = weights.to_numpy()
        few = w[w > self._threshold]  # one equal to the least of those kept would change nothing
        with self._lock:
            if len(few):
                self._kept.append(few)
                self._held += len(few)
            if self._held > PENDING:
                top = np.partition(np.concatenate(self._kept), -KEPT)[-KEPT:]
                self._kept, self._held, self._threshold = [top], KEPT, float(top.min())
            if self._report is not None:
                self._report(len(w))
        return weights

    def _see_segments(self, rows: pl.Series) -> pl.Series:
        frame = rows.struct.unnest()
        few, least = frame.filter(pl.col("w").is_not_nan()), self._least
        if least is not None:
            few = few.join(least, on=self._keys, how="left", nulls_equal=True)
            few = few.filter(pl.col("least").is_null() | (pl.col("w") > pl.col("least"))).drop("least")
        with self._lock:
            self._rows.append(few)
            self._held += few.height
            if self._held > PENDING * (1 if least is None else 1 + least.height):
                ranked = self._ranked()
                self._least = ranked.filter(pl.col("w").list.len() == KEPT).select(
                    *self._keys, least=pl.col("w").list.min()
                )
                self._rows = [ranked.explode("w")]
                self._held = self._rows[0].height
            if self._report is not None:
                self._report(len(rows))
        return frame.get_column("w")

    def _ranked(self) -> pl.DataFrame:
        return pl.concat(self._rows).group_by(self._keys).agg(pl.col("w").top_k(KEPT))
