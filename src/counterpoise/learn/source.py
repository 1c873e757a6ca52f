"""Logs as training reads them: in memory, or chunk by chunk from Parquet files, and the same rows every time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import Argument, ColumnError, LogError, OptionError, first_line
from counterpoise.learn.actions import (
    MOST,
    NONE,
    Ids,
    Places,
    flat_of,
    ids_of_mask,
    lists_of,
    padded,
    placed,
    places_of,
    whole_numbers,
)
from counterpoise.learn.encoding import TEXT, Encoding, learned_encoding, series
from counterpoise.learn.rows import Good, Names, Problem, Rows, is_plain, lacks_some, lowest_of, numeric, read_rows
from counterpoise.log.guess import ids_among
from counterpoise.log.lists import DCG
from counterpoise.log.log import Log, LogFields
from counterpoise.log.sketches import Sketch, row_keys
from counterpoise.readers.files import files_of
from counterpoise.readers.policies import check_context
from counterpoise.threads import check_threads

if TYPE_CHECKING:
    import polars as pl

    from counterpoise.learn.encoding import Encoding
    from counterpoise.learn.reward_models import RewardModels
    from counterpoise.log.question import Question

# -- The columns that training reads from a log in memory: named ones and SQL expressions, for the rows that meet a condition ---

ROW = "counterpoise row"
Found = tuple[Mapping[str, Any], NDArray[np.int64] | None]


def columns_of(data: Any, names: Names, where: str | None) -> Found:
    """The columns of arrays or of a frame, and which of its rows they are (None: all of them)."""
    if isinstance(data, Mapping):
        if where is None and set(names.all) <= set(data):
            return data, None  # as it is, which also serves a machine that has NumPy only
        return _computed(_frame_of(data, needed(names, where, list(data))), names, where)
    import narwhals as nw

    from counterpoise.readers.frames import errors_told

    try:
        frame = nw.from_native(data)
    except TypeError as error:
        raise unreadable(type(data).__name__) from error
    with errors_told(data):
        available = frame.collect_schema().names()
        read = needed(names, where, available)
        if isinstance(frame, nw.LazyFrame):
            frame = frame.select(read).collect()
    if where is None and set(names.all) <= set(available):
        return {name: _values(frame.get_column(name)) for name in names.all}, None
    return _computed(frame.select(read).to_polars(), names, where)


def _computed(frame: pl.DataFrame, names: Names, where: str | None) -> Found:
    """The same from a polars frame: the rows that meet the condition, with every expression computed."""
    import narwhals as nw

    from counterpoise.log.expressions import column, computed, only

    kept = only(frame.with_row_index(ROW), where)
    found = computed(kept, [name for name in names.all if name not in frame.columns])
    series = {name: found.select(column(name)).to_series() for name in names.all}
    return {name: _values(nw.from_native(one, series_only=True)) for name, one in series.items()}, found.get_column(
        ROW
    ).to_numpy()


def _values(column: Any) -> Any:
    """A column as an array; text, categories and lists stay a series of polars, which has them without a Python object each."""
    import narwhals as nw

    from counterpoise.readers.frames import series_of

    if column.dtype in (nw.Int128, nw.UInt128):  # NumPy has no such numbers
        column = _of_64_bits(column)
    if column.dtype in (nw.String, nw.Categorical, nw.Enum, nw.List, nw.Array):
        return series_of(column, is_number=False)
    return column.to_numpy()


def _of_64_bits(column: Any) -> Any:
    import narwhals as nw

    try:
        return column.cast(nw.Int64)
    except Exception as error:  # of whichever library the frame is
        raise ColumnError(
            f"column {column.name!r} has whole numbers of more than 64 bits, which policies cannot take.",
            do="Make them text, or number them from 0.",
        ) from error


def needed(names: Names, where: str | None, available: Sequence[str]) -> list[str]:
    """The columns to read: those that are named, and those that expressions and the condition use."""
    parts = [*names.parts, *([("where", where)] if where is not None else [])]
    read = dict.fromkeys(text for _, text in parts if text in available)
    for part, text in parts:
        if text not in available:
            from counterpoise.log.expressions import roots_of

            read |= dict.fromkeys(roots_of(part, text, available))
    return list(read)


def _frame_of(arrays: Mapping[str, Any], read: Sequence[str]) -> pl.DataFrame:
    import polars as pl

    plain = {name: arrays[name].detach().cpu() if isinstance(arrays[name], Tensor) else arrays[name] for name in read}
    return pl.DataFrame({name: one if isinstance(one, pl.Series) else np.asarray(one) for name, one in plain.items()})


def unreadable(found: str) -> OptionError:
    """The error for a log that no policy can be trained on."""
    return OptionError(
        f"a policy can be trained on arrays, frames, files, and tables of databases; this log is {found}.",
        do="Name a file, or pass a frame.",
    )


# -- Parquet files as training reads them: part by part, and always the same rows --------------------------------------


Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
Stamp = tuple[int, ...] | None


class ParquetFiles:
    """A file, a folder, a glob, or a list of them; which files these are is settled when they are opened."""

    def __init__(self, path: Paths) -> None:
        self.path = path
        files = files_of(path)
        self._stamps = {file: _stamp(file) for file in files}
        try:
            self._scan = self._opened()
            self.columns = self._scan.collect_schema().names()
            self.rows = int(self._scan.select(pl.len()).collect().item())
        except (OSError, pl.exceptions.PolarsError) as error:
            raise LogError(
                f"cannot read {str(path)!r} as Parquet: {first_line(error)}.",
                do="If it is another format, its name must say so: .csv, .jsonl, .arrow, …",
            ) from error

    def read(self, names: Sequence[str], start: int, rows: int) -> pl.DataFrame:
        """Some columns of some rows."""
        try:
            # a scan remembers the footers that it has read, and would look for the rows of new files where the old had them
            scan = self._scan if self.untouched() else self._opened()
            frame: pl.DataFrame = scan.select(names).slice(start, rows).collect()
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            if not self.untouched():
                raise self.changed() from error
            raise LogError(f"cannot read {str(self.path)!r} any longer: {first_line(error)}.") from error
        if frame.height != min(rows, self.rows - start):
            raise self.changed()
        return frame

    def _opened(self) -> pl.LazyFrame:
        # folders called column=value are columns, as they are where polars looks for the files itself
        folder = isinstance(self.path, str | PathLike) and Path(self.path).is_dir()
        return pl.scan_parquet(list(self._stamps), hive_partitioning=folder, glob=False)

    def untouched(self) -> bool:
        """Whether no file was written to, replaced or removed since it was opened."""
        return all(_stamp(file) == stamp for file, stamp in self._stamps.items())

    def changed(self) -> LogError:
        """The error for rows that are not the same as before."""
        touched = [file for file, stamp in self._stamps.items() if _stamp(file) != stamp]
        more = f" (and {len(touched) - 1:,} more)" if len(touched) > 1 else ""
        return LogError(
            f"{str(touched[0] if touched else self.path)!r}{more} changed while it was being trained on, and every epoch must see the "
            "rows that were checked at the start.",
            do="Start again, on files that nobody writes to in the meantime.",
        )


def _stamp(file: Path) -> Stamp:
    """What changes when a file is written or replaced; the last part changes even if somebody sets the times back."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


# -- Logs that training cannot read part by part, brought into memory: CSV and JSON lines, databases, Spark, and engines of one's own ---


def in_memory(log: Log, modeled: bool) -> Log:
    """The log with the rows that meet its condition in memory, unless training reads it as it is: arrays, frames and Parquet files."""
    if isinstance(log.data, Mapping) and log.table is None and log.query is None:
        return log
    # not before: a machine may have NumPy only, and then it has arrays only
    from counterpoise.engines.registry import Frames, engine_of

    engine = engine_of(log)
    if isinstance(engine, Frames):
        return log
    if modeled:
        raise OptionError(
            [Argument("model_rewards"), " only works with a log in memory."],
            do="Read the files into a frame, and pass that.",
        )
    if _is_parquet(log.data):
        return log
    # by what may tell that rows move together, they are judged
    ids = () if log.cluster is not None or log.rows_are_independent else tuple(ids_among(engine.columns(log)))
    found = engine.over_rows(_question(log, ids), _together, None)
    return log.of(found).but(where=None, table=None, query=None, external_access=False)


def _is_parquet(data: Any) -> bool:
    """Whether a log is in files of Parquet; those whose names say nothing are taken for some."""
    from counterpoise.readers.connections import is_database
    from counterpoise.readers.files import FORMATS, files_of, is_paths

    if is_database(data) or not is_paths(data):
        return False
    one = isinstance(data, str | PathLike)
    if not one and not data:
        return True
    names = [path.name.lower() for path in files_of(data)]
    return not any(name.endswith(ending) for name in names for ending, kind in FORMATS.items() if kind != "parquet")


def _question(log: Log, ids: tuple[str, ...]) -> Question:
    """A question that reads what training and judging look at."""
    from counterpoise.log.question import AsItIs, Question, RowWeight

    unread: LogFields = {
        "key": (), "model": None, "items": None, "value_samples": None, "model_reward": None, "model_value": None, "baseline": None,
        "slate": None, "position": None, "propensity_of": None, "discount": None,
    }  # fmt: skip
    others = [log.model_reward, log.slate, log.position, None if log.discount == DCG else log.discount, *ids]
    more = tuple(dict.fromkeys(name for name in others if name is not None))
    return Question(log.but(**unread), (), RowWeight(), segment=more, model=AsItIs())


def _together(batches: Iterator[pl.DataFrame]) -> pl.DataFrame:
    import polars as pl
    import polars.selectors as cs

    whole = list(batches)
    return pl.concat(whole).with_columns(cs.decimal().cast(pl.Float64)) if whole else pl.DataFrame()


# -- How to read the columns of a log that are more than numbers: contexts to encode, actions that are text, and candidates ---


Columns = Mapping[str, Any]
Parts = Callable[[], Iterator[Columns]]  # the columns of a log, part by part, as often as one asks


@dataclass(frozen=True)
class Reading:
    """What the columns mean that are not plain numbers."""

    encoding: Encoding | None  # of the contexts, unless all of them are numbers
    names: NDArray[Any] | None  # of the actions in ascending order, if they are text
    classes: NDArray[Any] | None = None  # the actions, if they are known before the log is read
    width: int | None = None  # of a table of truth values, if the candidates are one

    def with_numbers(self, columns: Columns, names: Names) -> Columns:
        """The columns with places for actions that are text; −1 where there is none."""
        if self.names is None:
            return columns
        return dict(columns) | {names.action: _places(series(names.action, columns[names.action]), self.names)}

    def candidates_of(self, columns: Columns, names: Names, rows: int) -> Places | None:
        """The candidates of every row in the terms of the actions: ids, or places if these are text; filled up with −1."""
        if names.candidates is None:
            return None
        values = columns[names.candidates]
        mask = mask_in(names.candidates, values)
        if mask is not None:
            _check_rows(names.candidates, len(mask), rows)
            return ids_of_mask(mask, self._ids_of_columns(names.candidates, mask.shape[1]))
        lists = lists_of(names.candidates, values)
        _check_rows(names.candidates, len(lists), rows)
        if self.names is not None:
            return padded(lists, places_of(lists, self.names))
        flat = whole_numbers(flat_of(lists))
        odd = flat.is_null() | (flat < 0)
        if odd.any():
            raise LogError(
                f"candidates {names.candidates!r} must be whole numbers from 0 on, as the actions are: {odd.sum():,} of {len(flat):,} are "
                f"not; one is {flat_of(lists).filter(odd.fill_null(True))[0]!r}."
            )
        return padded(lists, flat.to_numpy())

    def _ids_of_columns(self, name: str, width: int) -> Places:
        """The actions that the columns of a table of truth values belong to."""
        known = self.names if self.names is not None else self.classes
        if known is not None and len(known) != width:
            raise OptionError(
                f"candidates {name!r} must have a column for each of the {len(known):,} actions; found {width:,}."
            )
        return np.arange(width) if self.names is not None or self.classes is None else np.asarray(self.classes)


def _places(values: pl.Series, names: NDArray[Any]) -> Places:
    known, numbers = pl.Series(list(names), dtype=pl.String), pl.Series(np.arange(len(names)))
    text = values.cast(pl.String)
    found: Places = text.replace_strict(known, numbers, default=NONE, return_dtype=pl.Int64).to_numpy()
    return found


def _check_rows(name: str, found: int, rows: int) -> None:
    if found != rows:
        raise ColumnError(f"candidates {name!r} must have a row for each of the {rows:,} of the log; found {found:,}.")


def mask_in(name: str, values: Any) -> NDArray[np.bool_] | None:
    """Candidates as a table of truth values, if that is what they are."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.ndim == 2 and values.dtype.kind == "b":
        return values
    if not isinstance(values, pl.Series) or not isinstance(values.dtype, pl.List | pl.Array):
        return None
    if values.dtype.inner != pl.Boolean:
        return None
    found = np.array(values.to_list(), dtype=object)
    if found.ndim != 2:
        raise ColumnError(f"candidates {name!r} must have a truth value for every action in each row.")
    return found.astype(bool)


def reading_of(
    parts: Parts,
    names: Names,
    classes: NDArray[Any] | None,
    encoding: Encoding | None = None,
    has_gaps: bool = False,
) -> Reading | None:
    """How to read a log; None if all that training looks at are numbers. Actions and encoding may be known already, from a policy.

    With `has_gaps`, numbers of the context are missing, which the encoding marks.
    """
    first = next(parts(), {})
    if not first:
        return None
    plain = not has_gaps and all(_is_numbers("context", name, first[name]) for name in names.context)
    is_text = is_text_in(names.action, first[names.action])
    _check_kinds(names.action, is_text, classes)
    if encoding is not None:
        check_context(encoding.names, names.context)
    elif plain and not is_text and names.candidates is None:
        return None
    elif not plain:
        encoding = learned_encoding(parts(), names.context)
    mask = None if names.candidates is None else mask_in(names.candidates, first[names.candidates])
    width = None if mask is None else mask.shape[1]
    return Reading(encoding, _names(parts, names, classes) if is_text else None, classes, width)


def _is_numbers(part: str, name: str, values: Any) -> bool:
    try:
        return numeric(part, name, values).dtype.kind not in "mM"  # times have units, which the encoding sees to
    except (ColumnError, ValueError, TypeError):
        return False


def is_text_in(name: str, values: Any) -> bool:
    """Whether actions are text."""
    if _is_numbers("action", name, values):
        return False
    found = series(name, values).dtype
    if found not in TEXT:
        raise ColumnError(f"action {name!r} must be whole numbers or text; found {found}.")
    return True


def _check_kinds(name: str, is_text: bool, classes: NDArray[Any] | None) -> None:
    if classes is not None and is_text != (classes.dtype.kind not in "iu"):
        kinds = ("text", "whole numbers") if is_text else ("whole numbers", "text")
        raise OptionError(
            f"the actions in {name!r} are {kinds[0]}, and those of the policy or the items are {kinds[1]}.",
            do="Give both the same type.",
        )


def _names(parts: Parts, names: Names, classes: NDArray[Any] | None) -> NDArray[Any]:
    """The names of all actions in a log, logged or only candidates, in ascending order; all must be among `classes`, if those are known."""
    found: dict[str, set[str]] = {"action": set(), "candidates": set()}
    for part in parts():
        found["action"].update(series(names.action, part[names.action]).cast(pl.String).drop_nulls().unique())
        if names.candidates is not None and mask_in(names.candidates, part[names.candidates]) is None:
            lists = lists_of(names.candidates, part[names.candidates])
            found["candidates"].update(flat_of(lists).cast(pl.String).drop_nulls().unique())
        if sum(map(len, found.values())) > MOST:
            raise LogError(
                f"{names.action!r} has more than {MOST:,} distinct actions. Is it the column of the logged action?"
            )
    if classes is None:
        return np.array(sorted(found["action"] | found["candidates"]), dtype=object)
    for what, some in found.items():
        _check_known(what, sorted(some - set(classes)), len(classes))
    return classes


def _check_known(what: str, lost: Sequence[str], known: int) -> None:
    if lost:
        raise LogError(
            f"{len(lost):,} {'of the logged actions are' if what == 'action' else 'of the candidates are'} not among the {known:,} that "
            f"the policy or the items have; one is {lost[0]!r}.",
            do=["Add them to ", Argument("items"), " or the policy, or leave out those rows."],
        )


# -- Logs as training reads them: in memory, or chunk by chunk from Parquet files, and the same rows every time --------


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

        from counterpoise.learn.encoding import series

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
        from counterpoise.learn.encoding import series

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

    return ParquetFiles(log.data)
