"""Watches a stream: it sees every value in passing, and remembers the largest ones exactly."""

from __future__ import annotations

from threading import Lock

import numpy as np
import polars as pl

from counterpoise.moments import Floats
from counterpoise.moments.log_moments import Label, as_label
from counterpoise.moments.tails import KEPT

PENDING = 20 * KEPT  # rows held before the largest are chosen among them


class Watcher:
    """Remembers the `KEPT` largest values of a column in every segment, while an engine streams pieces of it through `see`.

    Ranking them in a second query would read the file twice. The threshold below which a value cannot be among the largest rises
    quickly, so most rows cost only one comparison. Several threads may call it.
    """

    def __init__(self, column: str, keys: list[str]) -> None:
        self._column, self._keys = column, keys
        self._lock = Lock()
        self._threshold = -np.inf
        self._kept: list[Floats] = []
        self._least: pl.DataFrame | None = None  # by segment
        self._rows: list[pl.DataFrame] = []
        self._held = 0

    def see(self, piece: pl.DataFrame) -> None:
        """Look at one more piece."""
        if self._keys:
            self._see_segments(piece.select(*self._keys, x=self._column))
        else:
            self._see(piece.get_column(self._column).to_numpy())

    def largest(self) -> dict[Label, Floats]:
        """The largest values of each segment, in descending order."""
        if not self._keys:
            return {(): np.sort(np.concatenate([np.empty(0), *self._kept]))[::-1][:KEPT]}
        found: dict[Label, Floats] = {}
        for row in self._ranked().rows() if self._rows else []:
            label = as_label(row[:-1])
            values = np.concatenate([found.get(label, np.empty(0)), np.asarray(row[-1], dtype=np.float64)])
            found[label] = np.sort(values)[::-1][:KEPT]
        return found

    def _see(self, x: Floats) -> None:
        few = x[x > self._threshold]  # one equal to the least of those kept would change nothing
        with self._lock:
            if len(few):
                self._kept.append(few)
                self._held += len(few)
            if self._held > PENDING:
                top = np.partition(np.concatenate(self._kept), -KEPT)[-KEPT:]
                self._kept, self._held, self._threshold = [top], KEPT, float(top.min())

    def _see_segments(self, piece: pl.DataFrame) -> None:
        few, least = piece.filter(pl.col("x").is_not_nan()), self._least
        if least is not None:
            few = few.join(least, on=self._keys, how="left", nulls_equal=True)
            few = few.filter(pl.col("least").is_null() | (pl.col("x") > pl.col("least"))).drop("least")
        with self._lock:
            self._rows.append(few)
            self._held += few.height
            if self._held > PENDING * (1 if least is None else 1 + least.height):
                ranked = self._ranked()
                self._least = ranked.filter(pl.col("x").list.len() == KEPT).select(
                    *self._keys, least=pl.col("x").list.min()
                )
                self._rows = [ranked.explode("x")]
                self._held = self._rows[0].height

    def _ranked(self) -> pl.DataFrame:
        return pl.concat(self._rows).group_by(self._keys).agg(pl.col("x").top_k(KEPT))
