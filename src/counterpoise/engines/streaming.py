"""The streaming engine: the aggregate query is pushed into a polars scan, so no row is ever copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.engines.polars_frames import answer_of, center_of, collect, with_centers
from counterpoise.engines.query import Frame, Query, aggregate, left_out
from counterpoise.engines.scatter import Scatter
from counterpoise.engines.summarize import Answer, Largest
from counterpoise.log.question import KEY, ROW_NUMBER, Lane, Question
from counterpoise.log.rules import Problem, Rule, only_good, rules_of
from counterpoise.moments import Floats, Powers
from counterpoise.moments.log_moments import Label, as_label
from counterpoise.moments.spread import KEPT
from counterpoise.readers.progress import Report

# -- Watches a stream: it sees every value in passing, and remembers the largest ones exactly --------------------------

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
        largest: dict[Label, Floats] = {}
        for row in self._ranks().rows() if self._rows else []:
            label = as_label(row[:-1])
            values = np.concatenate([largest.get(label, np.empty(0)), np.asarray(row[-1], dtype=np.float64)])
            largest[label] = np.sort(values)[::-1][:KEPT]
        return largest

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
                ranked = self._ranks()
                self._least = ranked.filter(pl.col("x").list.len() == KEPT).select(
                    *self._keys, least=pl.col("x").list.min()
                )
                self._rows = [ranked.explode("x")]
                self._held = self._rows[0].height

    def _ranks(self) -> pl.DataFrame:
        return pl.concat(self._rows).group_by(self._keys).agg(pl.col("x").top_k(KEPT))


# ----------------------------------------------------------------------------------------------------------------------


@dataclass
class Streaming:
    """The engine for a scan that can be repeated, under internal names."""

    frame: pl.LazyFrame
    question: Question
    report: Report | None = None
    skips_bad_rows = False

    def good_rows(self) -> pl.LazyFrame:
        """The rows that break no rule."""
        good: pl.LazyFrame = only_good(nw.from_native(self.frame), self.question).to_native()
        return good

    def centers(self, *, only_good: bool) -> tuple[float, ...]:
        """The median of the first rewards."""
        frame = self.good_rows() if only_good else self.frame
        rewards = list(self.question.names.rewards)
        first = frame.select(rewards).head(1000).collect(engine="streaming")
        return tuple(center_of(first.get_column(name)) for name in rewards)

    def aggregate(self, query: Query) -> Answer:
        """The sums, with the largest weights remembered in passing."""
        names = query.names
        watched = [lane.excess for lane in names.lanes if not (lane.contrast[1] or lane.rung)]
        watchers = {excess: Watcher(excess, list(names.segments)) for excess in watched}
        scatter = Scatter(names)
        report, lock = self.report, Lock()
        self.report = None  # rows are reported once, however often they are read

        def see(piece: pl.DataFrame) -> pl.DataFrame:
            for watcher in watchers.values():
                watcher.see(piece)
            scatter.see(piece)
            if report is not None:
                with lock:  # the engine calls from several threads
                    report(piece.height)
            return piece

        def watch(rows: Frame) -> Frame:
            # Of a whole piece at a time: a function inside an expression costs a tenth of the query, whatever it does.
            native: pl.LazyFrame = rows.to_native()
            return nw.from_native(native.map_batches(see, streamable=True, validate_output_schema=False))

        def largest(lane: Lane) -> Largest:
            return {label: 1.0 + u for label, u in watchers[lane.excess].largest().items()}

        frame = with_centers(self.good_rows() if query.only_good else self.frame, query)
        lazy: pl.LazyFrame = aggregate(nw.from_native(frame), query, watch=watch, context=False).to_native()
        return answer_of(lazy.collect(engine="streaming"), query, largest, scatter)

    def problems(self) -> list[Problem]:
        """Which rules are broken, how often, and where first: two more passes, neither of which keeps rows."""
        rules = rules_of(self.question)
        bad = {f"rule{k}": ~rule.holds.fill_null(False) for k, rule in enumerate(rules)}
        if self.question.makes_lists:
            return self._bad_lists(rules, bad)
        rows = nw.from_native(self.frame.with_row_index(ROW_NUMBER)).with_columns(**bad).to_native()
        counts = rows.select(
            *(pl.col(name).sum().alias(f"{name}_count") for name in bad),
            *(pl.when(pl.col(name)).then(pl.col(ROW_NUMBER)).min().alias(f"{name}_row") for name in bad),
        )
        answer = counts.collect(engine="streaming").row(0, named=True)
        first = {answer[f"rule{k}_row"] for k in range(len(rules))} - {None}
        shown = rows.filter(pl.col(ROW_NUMBER).is_in(sorted(first))).collect(engine="streaming")
        problems = []
        for k, rule in enumerate(rules):
            count, row = answer[f"rule{k}_count"], answer[f"rule{k}_row"]
            if count:
                value = shown.filter(pl.col(ROW_NUMBER) == row).get_column(rule.shows).item()
                problems.append(Problem(rule, int(count), int(row), value))
        return problems

    def _bad_lists(self, rules: Sequence[Rule], bad: Mapping[str, nw.Expr]) -> list[Problem]:
        """The same for lists, which come in another order in every pass: an id is taken in the pass that counts."""
        lists: pl.LazyFrame = nw.from_native(self.frame).with_columns(**bad).to_native()
        counts = [pl.col(name).sum().alias(f"{name}_count") for name in bad]
        shown = [
            pl.col(rule.shows).filter(pl.col(name)).max().alias(f"{name}_list")
            for name, rule in zip(bad, rules, strict=True)
        ]
        answer = lists.select(*counts, *shown).collect(engine="streaming").row(0, named=True)
        return [
            Problem(rule, int(answer[f"{name}_count"]), None, answer[f"{name}_list"])
            for name, rule in zip(bad, rules, strict=True)
            if answer[f"{name}_count"]
        ]

    def left_out(self, centers: Sequence[float]) -> tuple[Powers, ...]:
        """The good rewards of bad rows: one more pass."""
        return left_out(nw.from_native(self.frame), self.question, centers, collect)

    def duplicates(self, n: int) -> int | None:
        """How many good rows have the key of another row; this is the one query that needs memory for every distinct key."""
        if not self.question.log.key:
            return None
        return n - int(self.good_rows().select(pl.col(KEY).n_unique()).collect(engine="streaming").item())
