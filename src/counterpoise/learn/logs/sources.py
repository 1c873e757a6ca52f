"""Logs as training reads them: in memory, or chunk by chunk from Parquet files, and the same rows every time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.errors import Argument, OptionError
from counterpoise.forks import check_threads
from counterpoise.learn.logs.actions import Ids, placed
from counterpoise.learn.logs.columns import Found, columns_of, needed, unreadable
from counterpoise.learn.logs.fetching import in_memory
from counterpoise.learn.logs.numbers import Good, is_plain, lacks_some
from counterpoise.learn.logs.rows import Names, Problem, Rows, lowest_of, read_rows
from counterpoise.log.guess import ids_among
from counterpoise.log.log import Log
from counterpoise.log.sketches import Sketch, row_keys

if TYPE_CHECKING:
    import polars as pl

    from counterpoise.learn.logs.encoding import Encoding
    from counterpoise.learn.logs.parquet import ParquetFiles
    from counterpoise.learn.logs.reading import Reading
    from counterpoise.learn.reward_models import RewardModels

CHUNK = 2**18  # rows of a file in memory at a time


class Source:
    """The rows of a log: in Parquet files (read chunk by chunk, every epoch), or in memory (one chunk), to which any other log is read.

    The first pass calls `look` for all `starts` in order; from then on, `chunk` returns the same rows again. Bad rows are left out and
    counted if the log says so (`drop_bad_rows`), and otherwise reported by `look`. `classes` are the actions and `encoding` is that
    of the contexts, if they are known already. With `fills_gaps`, numbers that are missing in a context are marked instead of refused; with
    `centers_rewards`, a log in memory whose rewards differ too little for single precision has `lowest` taken away from them.
    """

    def __init__(
        self,
        log: Log,
        model_rewards: Any = None,
        classes: NDArray[Any] | None = None,
        encoding: Encoding | None = None,
        *,
        fills_gaps: bool = True,
        centers_rewards: bool = False,
    ) -> None:
        check_threads()
        self.names = Names.of(log)
        self.log = in_memory(log, model_rewards is not None)
        self.files = _files(self.log)
        self.memory: Rows | None = None
        self._good: Good | None = None  # which rows of the log those in memory are
        self.models: RewardModels | None = None
        self.without: int | None = None  # the fold whose rows no reward model may have seen
        self.rows = self.dropped = 0  # so far, on the first pass
        self.sketch = Sketch()
        self._model_rewards = model_rewards
        self._before: dict[int, int] = {}
        self._digests: dict[int, bytes] = {}
        self._ids: Ids | None = None
        self._folds: dict[tuple[int, int], NDArray[np.int64]] = {}
        if self.files is not None:
            needed(
                self.names, log.where, self.files.columns
            )  # names that are not there are told before anything is read
        self._columns: Found | None = None  # of a log in memory, until its rows are made
        self._fills_gaps, self._centers = fills_gaps, centers_rewards
        self.lowest = 0.0
        self.reading: Reading | None = self._reading(classes, encoding)

    def _reading(self, classes: NDArray[Any] | None, encoding: Encoding | None) -> Reading | None:
        """How to read what is not a number; a machine without polars has numbers only."""
        first = self._first()
        is_plain = encoding is None and (classes is None or classes.dtype.kind in "iu")
        has_gaps = first is not None and encoding is None and self._fills_gaps and self._has_gaps()
        if first is None or (is_plain and not has_gaps and _are_numbers(first, self.names)):
            return None
        from counterpoise.learn.logs.reading import reading_of

        return reading_of(self._all_columns, self.names, classes, encoding, has_gaps)

    def _has_gaps(self) -> bool:
        """Whether numbers of the context are missing somewhere, which only a machine with polars can do something about."""
        if find_spec("polars") is None:
            return False
        return any(lacks_some(columns[name]) for columns in self._all_columns() for name in self.names.context)

    def _first(self) -> Mapping[str, Any] | None:
        """The columns of a log in memory, or of the first row of files, which says what they contain."""
        if self.files is not None:
            return self._columns_of(0, 1)[0] if self.files.rows else None
        self._columns = columns_of(self.log.data, self.names, self.log.where)
        return self._columns[0]

    def _all_columns(self) -> Iterator[Mapping[str, Any]]:
        for start in self.starts:
            yield self._columns_of(start, CHUNK)[0]

    def _columns_of(self, start: int, rows: int) -> Found:
        if self.files is None:
            return self._columns or columns_of(self.log.data, self.names, self.log.where)
        data = self.files.read(needed(self.names, self.log.where, self.files.columns), start, rows)
        return columns_of(data, self.names, self.log.where)

    @property
    def width(self) -> int:
        """How many numbers a context has, once it is encoded."""
        encoding = None if self.reading is None else self.reading.encoding
        return len(self.names.context) if encoding is None else encoding.width

    @property
    def starts(self) -> list[int]:
        """The number of the first row of every chunk, as the files count them."""
        return [0] if self.files is None else list(range(0, self.files.rows, CHUNK))

    def look(self, start: int) -> tuple[Rows, list[Problem]]:
        """The rows of a chunk on the first pass, and what is wrong with them, unless bad rows are to be dropped."""
        columns, rows, good, problems = self._read(start)
        kept, seen = self._kept(rows, good), self.rows + self.dropped
        self._remember(columns, good)
        self._before[start] = self.rows
        self.rows += len(kept)
        self.dropped += len(rows) - len(kept)
        if self.files is None:
            self.memory, self._columns, self._good = kept, None, good
        else:
            self._digests[start] = kept.digest()
        return kept, [replace(one, row=one.row + seen) for one in problems]

    def _remember(self, columns: Mapping[str, Any], chosen: NDArray[Any]) -> None:
        """Put the rows that are chosen into the sketch, by which a policy knows them again."""
        names = self.names
        keys = row_keys([columns[name] for name in names.context], columns[names.action], columns[names.reward])
        self.sketch.add(keys[chosen])

    def chunk(self, start: int) -> Rows:
        """The rows of one chunk, with the predictions of reward models if there are any."""
        rows = self.logged(start)
        return rows if self.models is None else self.models.with_predictions(start, rows, self.without)

    def logged(self, start: int) -> Rows:
        """The rows of one chunk."""
        if self.memory is not None:
            return self.memory
        return _numbered(self._again(start)[1], self._ids)

    def frame(self, start: int, names: Sequence[str]) -> pl.DataFrame:
        """Some columns of one chunk's rows, as the log itself has them, of any type."""
        import polars as pl

        from counterpoise.learn.logs.encoding import series

        if self.memory is not None and self._good is not None:
            columns, kept, good = self._columns_of(start, CHUNK)[0], self.memory, self._good
        else:
            columns, kept, good = self._again(start)
        found = pl.DataFrame([series(name, columns[name]) for name in dict.fromkeys(names)])
        return found if len(kept) == found.height else found.filter(good)

    @property
    def id_columns(self) -> list[str]:
        """The columns that look like ids of whoever came, where nobody said what moves together."""
        if self.names.cluster is not None or self.log.rows_are_independent:
            return []
        data = self.log.data
        known = (
            data if isinstance(data, Mapping) else getattr(data if self.files is None else self.files, "columns", ())
        )
        return list(ids_among([name for name in known if isinstance(name, str)], self.names.all))

    def ids(self, start: int) -> list[pl.Series]:
        """These columns of one chunk's rows."""
        found = self.id_columns
        if not found:
            return []
        from counterpoise.learn.logs.encoding import series

        names, data = Names(tuple(found), self.names.action, self.names.reward, self.names.propensity), self.log.data
        if self.files is not None:
            data = self.files.read(needed(names, self.log.where, self.files.columns), start, CHUNK)
        columns = columns_of(data, names, self.log.where)[0]
        _, kept, good = self._again(start)
        ids = [series(name, columns[name]) for name in found]
        return [one if len(kept) == one.len() else one.filter(good) for one in ids]

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
        bits = np.ascontiguousarray(rows.context.cpu().numpy()).view(np.uint32).astype(np.uint64)
        random = np.random.default_rng(0)
        odd = np.asarray(2 * random.integers(2**63, size=bits.shape[1], dtype=np.uint64) + np.uint64(1))
        mixed = bits * odd  # sums of products with odd numbers tell rows apart, and are sorted much faster than rows
        _, unit = np.unique(np.sum(mixed ^ (mixed >> np.uint64(32)), axis=1), return_inverse=True)
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
            self.memory = _numbered(self.memory, ids)

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
        model_rewards = self._model_rewards
        columns, index = self._columns_of(start, CHUNK)
        if index is not None and model_rewards is not None:
            model_rewards = np.asarray(model_rewards)[index]
        is_whole = self.files is None
        if is_whole and self._centers:
            self.lowest = lowest_of(columns[self.names.reward], self.names.reward)
        lowest = self.lowest
        return columns, *read_rows(columns, self.names, model_rewards, self.reading, is_whole=is_whole, lowest=lowest)

    def _kept(self, rows: Rows, good: Good) -> Rows:
        return rows.take(torch.as_tensor(good)) if self.log.drop_bad_rows and not good.all() else rows


def _numbered(rows: Rows, ids: Ids | None) -> Rows:
    """The rows with places for ids."""
    candidates = None if rows.candidates is None else placed(ids, rows.candidates)
    return replace(rows, action=placed(ids, rows.action), candidates=candidates)


def _are_numbers(columns: Mapping[str, Any], names: Names) -> bool:
    """Whether all that training looks at are numbers, as arrays have them; everything else is looked at closely."""
    if names.candidates is not None:
        return False
    return all(is_plain(columns[name]) for name in (*names.context, names.action))


def _files(log: Log) -> ParquetFiles | None:
    """The files of a log that is in files."""
    several = isinstance(log.data, list | tuple) and all(isinstance(one, str | PathLike) for one in log.data)
    if not several and not isinstance(log.data, str | PathLike):
        return None
    if several and not log.data:
        raise unreadable("an empty list")
    # not before there are files: a machine may have NumPy only
    from counterpoise.learn.logs.parquet import ParquetFiles

    return ParquetFiles(log.data)
