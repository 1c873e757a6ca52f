"""Logs as training reads them: checked once, then batches in an order that seed and epoch alone decide."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import ColumnError, OptionError
from counterpoise.learn.actions import Ids, as_ids, placed
from counterpoise.learn.parquet import ParquetFiles
from counterpoise.learn.steps import Batch

CHUNK = 2**18  # rows of a file in memory at a time


@dataclass(frozen=True)
class Rows:
    """Some rows of a log as tensors."""

    context: Tensor
    action: Tensor
    reward: Tensor
    propensity: Tensor
    model_rewards: Tensor | None = None

    def __len__(self) -> int:
        return len(self.action)

    def take(self, index: Any) -> Rows:
        """Some of these rows."""
        more = None if self.model_rewards is None else self.model_rewards[index]
        return Rows(self.context[index], self.action[index], self.reward[index], self.propensity[index], more)

    def followed_by(self, other: Rows) -> Rows:
        """These rows, then others."""
        pairs = zip(self.parts, other.parts, strict=True)
        return Rows(*(torch.cat(pair) for pair in pairs))

    def to(self, device: torch.device) -> Rows:
        """The same rows on a device."""
        return Rows(*(part.to(device) for part in self.parts))

    @property
    def parts(self) -> list[Tensor]:
        """The tensors themselves."""
        parts = [self.context, self.action, self.reward, self.propensity]
        return parts if self.model_rewards is None else [*parts, self.model_rewards]

    def digest(self) -> bytes:
        """Of every number in them."""
        found = hashlib.sha256()
        for part in self.parts:
            found.update(part.contiguous().numpy().data)
        return found.digest()


@dataclass(frozen=True)
class Names:
    """The columns of a log, or what to call arrays in an error."""

    context: tuple[str, ...]
    action: str
    reward: str
    propensity: str

    @property
    def all(self) -> list[str]:
        return [*self.context, self.action, self.reward, self.propensity]


class Log:
    """A log in memory (one chunk) or in Parquet files (read chunk by chunk, every epoch, and the same rows every time)."""

    def __init__(self, names: Names, memory: Rows | None, files: ParquetFiles | None = None) -> None:
        self.names = names
        self.memory = memory
        self.files = files
        self.rows = len(memory) if memory is not None else 0 if files is None else files.rows
        self._ids: Ids | None = None
        self._digests: dict[int, bytes] = {}

    @property
    def starts(self) -> list[int]:
        """The first row of every chunk."""
        return [0] if self.memory is not None else list(range(0, self.rows, CHUNK))

    def chunk(self, start: int) -> Rows:
        """The rows of one chunk."""
        if self.memory is not None:
            return self.memory
        assert self.files is not None
        rows = rows_of(self.files.read(self.names.all, start, CHUNK), self.names)
        # only files that were touched are compared by content, which costs a tenth of the reading
        if start not in self._digests or not self.files.untouched():
            found = rows.digest()
            if self._digests.setdefault(start, found) != found:
                raise self.files.changed()
        return replace(rows, action=placed(self._ids, rows.action))

    def digest(self) -> str:
        """Of every number of the log in its order, the same in memory and in files; after a pass, before `number`."""
        if self.memory is not None:
            self._digests = {at: self.memory.take(slice(at, at + CHUNK)).digest() for at in range(0, self.rows, CHUNK)}
        return hashlib.sha256(b"".join(self._digests[start] for start in sorted(self._digests))).hexdigest()[:16]

    def number(self, ids: Ids | None) -> None:
        """From now on an action is its place among these ids."""
        self._ids = ids
        if self.memory is not None:
            self.memory = replace(self.memory, action=placed(ids, self.memory.action))


def open_log(log: Any, *, context: Any, action: Any, reward: Any, propensity: Any, model_rewards: Any = None) -> Log:
    """A log from arrays, a mapping of arrays, any frame, or the name of Parquet files."""
    for part, value in (("context", context), ("action", action), ("reward", reward), ("propensity", propensity)):
        if value is None:
            raise OptionError(f"{part} is missing: name its column, or pass its array.")
    if log is None:
        table = np.asarray(context)
        table = table[:, None] if table.ndim == 1 else table
        names = Names(tuple(f"context[{k}]" for k in range(table.shape[1])), "action", "reward", "propensity")
        columns = {name: table[:, k] for k, name in enumerate(names.context)}
        columns |= {"action": action, "reward": reward, "propensity": propensity}
        return Log(names, rows_of(columns, names, model_rewards))
    chosen = (context,) if isinstance(context, str) else tuple(context)
    names = Names(chosen, action, reward, propensity)
    for name in names.all:
        if not isinstance(name, str):
            raise OptionError(f"with a log, context, action, reward and propensity name its columns; found {name!r}.")
    if isinstance(log, str | PathLike):
        if model_rewards is not None:
            raise OptionError("model_rewards go with a log in memory: read the files first, and pass the frame.")
        files = ParquetFiles(log)
        _check_names(names, files.columns)
        return Log(names, None, files)
    return Log(names, rows_of(_columns(log, names), names, model_rewards))


def _columns(log: Any, names: Names) -> dict[str, Any]:
    if isinstance(log, Mapping):
        _check_names(names, list(log))
        return {name: log[name] for name in names.all}
    import narwhals as nw

    frame = nw.from_native(log)
    if isinstance(frame, nw.LazyFrame):
        _check_names(names, frame.collect_schema().names())
        frame = frame.select(names.all).collect()
    _check_names(names, frame.columns)
    return {name: frame.get_column(name).to_numpy() for name in names.all}


def _check_names(names: Names, available: Sequence[str]) -> None:
    for part, column in [("context", name) for name in names.context] + [
        (part, getattr(names, part)) for part in ("action", "reward", "propensity")
    ]:
        if column not in available:
            near = difflib.get_close_matches(column, available, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ColumnError(
                f"no column {column!r} for {part}; the log has {', '.join(map(repr, available[:20])) or 'no columns'}.{hint}"
            )


def rows_of(columns: Mapping[str, Any], names: Names, model_rewards: Any = None) -> Rows:
    """Columns as tensors; what is no number is refused here, wrong numbers by `inspect`."""
    found: dict[str, NDArray[Any]] = {name: _numbers(name, columns[name]) for name in names.all if name != names.action}
    integers = as_ids(_numeric(names.action, columns[names.action]))
    found[names.action] = integers
    sizes = {name: len(column) for name, column in found.items()}
    if len(set(sizes.values())) > 1:
        raise ColumnError(f"all columns must have as many rows; found {sizes}.")
    table = None
    if model_rewards is not None:
        table = _table(model_rewards, len(integers))
    return Rows(
        torch.as_tensor(np.stack([found[name] for name in names.context], axis=1).astype(np.float32)),
        torch.as_tensor(integers),
        torch.as_tensor(found[names.reward].astype(np.float32)),
        torch.as_tensor(found[names.propensity].astype(np.float32)),
        table,
    )


def _table(model_rewards: Any, rows: int) -> Tensor:
    try:
        table = np.array(model_rewards, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise OptionError(f"model_rewards must be numbers, a row per row of the log: {error}.") from error
    if table.ndim != 2 or len(table) != rows:
        raise OptionError(
            f"model_rewards must have a row for each of {rows:,} rows and a column per action; found shape {table.shape}."
        )
    return torch.as_tensor(table)


def _numbers(name: str, column: Any) -> NDArray[np.float64]:
    return _numeric(name, column).astype(np.float64)


def _numeric(name: str, column: Any) -> NDArray[Any]:
    """One number per row, of whichever type: ids must not become floats, which stand for several of them."""
    if isinstance(column, Tensor):
        column = column.detach().cpu().numpy()
    array = np.asarray(column)
    if array.dtype.kind not in "biuf":
        try:
            array.astype(np.float64)
        except (TypeError, ValueError, OverflowError):
            raise ColumnError(
                f"{name!r} must hold numbers, found {array.dtype}: cast it first (actions to whole numbers)."
            ) from None
    if array.ndim != 1:
        raise ColumnError(f"{name!r} must have one number per row; found shape {array.shape}.")
    return array


def held_out(start: int, rows: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Which rows are kept for selection: a hash of row number and seed (splitmix64), the same in every process."""
    with np.errstate(over="ignore"):
        x = np.arange(start, start + rows, dtype=np.uint64) + np.uint64(1 + seed) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return np.asarray((x >> np.uint64(11)).astype(np.float64) / 2**53 < share)


def batches(
    log: Log,
    epoch: int,
    *,
    batch_size: int | None,
    holdout: float,
    seed: int,
    device: torch.device,
    rank: int = 0,
    processes: int = 1,
) -> Iterator[Batch]:
    """This process's share of every batch of an epoch: the batches are the same for any number of processes.

    Rows are shuffled within a chunk, and chunks among each other; what is left of a chunk joins the next.
    """
    random = np.random.default_rng([seed, epoch])
    starts = log.starts
    left: Rows | None = None
    for last, place in enumerate(random.permutation(len(starts)), start=1):
        rows = log.chunk(starts[place])
        ours = np.flatnonzero(~held_out(starts[place], len(rows), holdout, seed))
        order = torch.as_tensor(random.permutation(ours) if batch_size is not None else ours, device=rows.action.device)
        if left is not None:
            rows, order = left.followed_by(rows.take(order)), torch.arange(len(left) + len(order))
            left = None
        size = batch_size or len(order)
        for at in range(0, len(order), size):
            part = order[at : at + size]
            if len(part) < size and last < len(starts):
                left = rows.take(part)
                break
            mine = rows.take(part[rank::processes]).to(device)
            yield Batch(mine.context, mine.action, mine.reward, mine.propensity, len(part), mine.model_rewards)


def held_out_rows(log: Log, holdout: float, seed: int, *, others: bool = False) -> Iterator[Rows]:
    """The rows kept for selection, chunk by chunk, or the others."""
    for start in log.starts:
        rows = log.chunk(start)
        held = held_out(start, len(rows), holdout, seed) != others
        yield rows.take(torch.as_tensor(np.flatnonzero(held), device=rows.action.device))
