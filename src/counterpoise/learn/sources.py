"""Logs as training reads them: in memory, or chunk by chunk from Parquet files, and the same rows every time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.errors import Argument, OptionError
from counterpoise.learn.actions import Ids, placed
from counterpoise.learn.columns import columns_of, needed, unreadable
from counterpoise.learn.numbers import Good, plain
from counterpoise.learn.rows import Names, Problem, Rows, read_rows
from counterpoise.log.log import Log

if TYPE_CHECKING:
    import polars as pl

    from counterpoise.learn.parquet import ParquetFiles
    from counterpoise.learn.reward_models import RewardModels

CHUNK = 2**18  # rows of a file in memory at a time


class Source:
    """The rows of a log: in memory (one chunk), or in Parquet files (read chunk by chunk, every epoch).

    The first pass calls `look` for all `starts` in order; from then on, `chunk` returns the same rows again. Bad rows are left out and
    counted if the log says so (`drop_bad_rows`), and otherwise reported by `look`.
    """

    def __init__(self, log: Log, model_rewards: Any = None) -> None:
        self.log, self.names = log, Names.of(log)
        self.files = _files(log, model_rewards is not None)
        self.memory: Rows | None = None
        self.models: RewardModels | None = None
        self.without: int | None = None  # the fold whose rows no reward model may have seen
        self.rows = self.dropped = 0  # so far, on the first pass
        self._model_rewards = model_rewards
        self._before: dict[int, int] = {}
        self._digests: dict[int, bytes] = {}
        self._ids: Ids | None = None
        self._folds: dict[tuple[int, int], NDArray[np.int64]] = {}
        if self.files is not None:
            needed(
                self.names, log.where, self.files.columns
            )  # names that are not there are told before anything is read

    @property
    def starts(self) -> list[int]:
        """The number of the first row of every chunk, as the files count them."""
        return [0] if self.files is None else list(range(0, self.files.rows, CHUNK))

    def look(self, start: int) -> tuple[Rows, list[Problem]]:
        """The rows of a chunk on the first pass, and what is wrong with them, unless bad rows are to be dropped."""
        _, rows, good, problems = self._read(start)
        kept, seen = self._kept(rows, good), self.rows + self.dropped
        self._before[start] = self.rows
        self.rows += len(kept)
        self.dropped += len(rows) - len(kept)
        if self.files is None:
            self.memory = kept
        else:
            self._digests[start] = kept.digest()
        return kept, [replace(one, row=one.row + seen) for one in problems]

    def chunk(self, start: int) -> Rows:
        """The rows of one chunk, with the predictions of reward models if there are any."""
        rows = self.logged(start)
        return rows if self.models is None else self.models.with_predictions(start, rows, self.without)

    def logged(self, start: int) -> Rows:
        """The rows of one chunk."""
        if self.memory is not None:
            return self.memory
        kept = self._again(start)[1]
        return replace(kept, action=placed(self._ids, kept.action))

    def frame(self, start: int) -> pl.DataFrame:
        """The rows of one chunk as the log itself has them: context, action, reward, propensity and cluster, of any type."""
        import polars as pl

        columns, kept, good = self._again(start)
        wanted = [*(column for _, column in self.names.trained), self.names.cluster]
        found = pl.DataFrame({name: plain(columns[name]) for name in dict.fromkeys(wanted) if name is not None})
        return found if len(kept) == found.height else found.filter(good)

    def folds(self, start: int, rows: Rows, folds: int) -> NDArray[np.int64]:
        """The folds of a chunk's rows, by a hash of their cluster, or else of their number: always the same, and the same in files."""
        if (start, folds) in self._folds:
            return self._folds[start, folds]
        try:
            import polars as pl

            from counterpoise.models.folds import folds_of
        except ImportError as error:  # a bare machine
            raise OptionError(
                "judging a policy in folds needs polars.", do=["Install it, or pass ", Argument("folds", None), "."]
            ) from error
        numbers = np.arange(self.before(start), self.before(start) + len(rows))
        found = folds_of(pl.Series(numbers if rows.unit is None else rows.unit.cpu().numpy()), folds)
        if self.files is None:  # files may be larger than memory, and so may their folds
            self._folds[start, folds] = found
        return found

    def keep_alike_together(self, least: int) -> None:
        """Put rows of the same context into one fold, if the log has no clusters and at least so many different contexts.

        A policy that has seen a context with its rewards would otherwise be judged by what it remembers of it.
        """
        rows = self.memory
        if rows is None or rows.unit is not None or not rows.context.shape[1]:
            return
        bits = np.ascontiguousarray(rows.context.cpu().numpy())
        whole = bits.view(np.dtype((np.void, bits.itemsize * bits.shape[1]))).ravel()
        _, unit = np.unique(whole, return_inverse=True)
        if least <= unit.max() + 1 < len(unit):
            self.memory = replace(rows, unit=torch.as_tensor(unit))

    def before(self, start: int) -> int:
        """How many rows to train on there are in earlier chunks, which is the number of this chunk's first row."""
        return self._before[start]

    def digest(self) -> str:
        """A digest of every number of the log in order, the same in memory and in files; call it after a pass and before `number`."""
        if self.memory is not None:
            self._digests = {at: self.memory.take(slice(at, at + CHUNK)).digest() for at in range(0, self.rows, CHUNK)}
        return hashlib.sha256(b"".join(self._digests[start] for start in sorted(self._digests))).hexdigest()[:16]

    def number(self, ids: Ids | None) -> None:
        """From now on, replace an action by its place among these ids."""
        self._ids = ids
        if self.memory is not None:
            self.memory = replace(self.memory, action=placed(ids, self.memory.action))

    def to(self, device: torch.device) -> None:
        """Move what is in memory to a device, and keep it there."""
        if self.memory is not None:
            self.memory = self.memory.to(device)

    def _again(self, start: int) -> tuple[Mapping[str, Any], Rows, Good]:
        """A chunk read once more: its columns, its rows to train on, and which those are."""
        columns, rows, good, _ = self._read(start)
        kept = self._kept(rows, good)
        # only files that were touched are compared by content, which costs a tenth of the reading
        if self.files is not None and not self.files.untouched() and kept.digest() != self._digests[start]:
            raise self.files.changed()
        return columns, kept, good

    def _read(self, start: int) -> tuple[Mapping[str, Any], Rows, Good, list[Problem]]:
        data, model_rewards = self.log.data, self._model_rewards
        if self.files is not None:
            data = self.files.read(needed(self.names, self.log.where, self.files.columns), start, CHUNK)
        columns, index = columns_of(data, self.names, self.log.where)
        if index is not None and model_rewards is not None:
            model_rewards = np.asarray(model_rewards)[index]
        return columns, *read_rows(columns, self.names, model_rewards)

    def _kept(self, rows: Rows, good: Good) -> Rows:
        return rows.take(torch.as_tensor(good)) if self.log.drop_bad_rows and not good.all() else rows


def _files(log: Log, modeled: bool) -> ParquetFiles | None:
    """The files of a log that is in files."""
    for part in ("table", "query"):
        if getattr(log, part) is not None:
            raise OptionError(
                [Argument(part), " only works with a database, and a policy cannot be trained on one directly."],
                do="Write the log to a Parquet file first.",
            )
    several = isinstance(log.data, list | tuple) and all(isinstance(one, str | PathLike) for one in log.data)
    if not several and not isinstance(log.data, str | PathLike):
        return None
    if several and not log.data:
        raise unreadable("an empty list")
    if modeled:
        raise OptionError(
            [Argument("model_rewards"), " only works with a log in memory."],
            do="Read the files into a frame, and pass that.",
        )
    from counterpoise.learn.parquet import ParquetFiles  # not before there are files: a machine may have NumPy only

    return ParquetFiles(log.data)
