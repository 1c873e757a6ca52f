"""This file holds logs as training reads them: checked once, then batches in an order that seed and epoch alone decide."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import ColumnError, LogError, OptionError, first_line
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
    """A log in memory (one chunk) or in Parquet files (read chunk by chunk, every epoch)."""

    def __init__(self, names: Names, memory: Rows | None, scan: Any = None, rows: int = 0) -> None:
        self.names = names
        self.memory = memory
        self.scan = scan
        self.rows = len(memory) if memory is not None else rows

    @property
    def starts(self) -> list[int]:
        """The first row of every chunk."""
        return [0] if self.memory is not None else list(range(0, self.rows, CHUNK))

    def chunk(self, start: int) -> Rows:
        """The rows of one chunk."""
        if self.memory is not None:
            return self.memory
        frame = self.scan.slice(start, CHUNK).collect()
        return rows_of({name: frame.get_column(name).to_numpy() for name in self.names.all}, self.names)


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
        return _parquet(log, names)
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


def _parquet(path: str | PathLike[str], names: Names) -> Log:
    import polars as pl

    from counterpoise.sources.addresses import looks_like_address, without_password
    from counterpoise.sources.sql import is_database

    if is_database(path) or (looks_like_address(str(path)) and not Path(path).exists()):
        raise OptionError(
            f"learning reads Parquet files on this machine, and frames; found {without_password(str(path))!r}. Write the log "
            "to a Parquet file first."
        )
    try:
        scan = pl.scan_parquet(Path(path))
        available = scan.collect_schema().names()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise LogError(f"cannot read {str(path)!r} as Parquet: {first_line(error)}. Name a Parquet file.") from error
    _check_names(names, available)
    rows = int(scan.select(pl.len()).collect().item())
    return Log(names, None, scan.select(names.all), rows)


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
    found = {name: _numbers(name, columns[name]) for name in names.all}
    sizes = {name: len(column) for name, column in found.items()}
    if len(set(sizes.values())) > 1:
        raise ColumnError(f"all columns must have as many rows; found {sizes}.")
    action = found[names.action]
    whole = np.where(np.isfinite(action), action, -1)
    # a fraction is no action, and must not be rounded into one
    integers = np.where(whole == np.floor(whole), whole, -1).astype(np.int64)
    table = None
    if model_rewards is not None:
        table = _table(model_rewards, len(action))
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
    if isinstance(column, Tensor):
        column = column.detach().cpu().numpy()
    array = np.asarray(column)
    if array.dtype.kind not in "biuf":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise ColumnError(
                f"{name!r} must hold numbers, found {array.dtype}: cast it first (actions to 0 … n − 1)."
            ) from None
    if array.ndim != 1:
        raise ColumnError(f"{name!r} must have one number per row; found shape {array.shape}.")
    return array.astype(np.float64)


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
