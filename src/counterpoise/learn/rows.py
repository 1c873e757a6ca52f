"""The rows of a log as tensors, and which of them training can use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import Argument, ColumnError, LogError, OptionError
from counterpoise.learn.actions import as_ids
from counterpoise.log.good import LARGEST, is_believable, is_number, is_propensity
from counterpoise.log.log import Log

Numbers = NDArray[Any]
Good = NDArray[np.bool_]


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
        """These rows, followed by others."""
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
        """A digest of every number in them."""
        found = hashlib.sha256()
        for part in self.parts:
            found.update(part.contiguous().numpy().data)
        return found.digest()


@dataclass(frozen=True)
class Names:
    """The columns that training looks at."""

    context: tuple[str, ...]
    action: str
    reward: str
    propensity: str

    @classmethod
    def of(cls, log: Log) -> Names:
        """The names in a log, which must give all of them, and exactly one reward."""
        log.need("context", "action", "reward", "propensity")
        if len(log.reward) > 1:
            raise OptionError(
                f"a policy is trained on one reward, and this log has {', '.join(map(repr, log.reward))}.",
                do=f"Choose one: log.but(reward={log.reward[0]!r}).",
            )
        return cls(log.context, str(log.action), log.reward[0], str(log.propensity))

    @property
    def parts(self) -> list[tuple[str, str]]:
        """(part, column) for every one of them."""
        rest = [("action", self.action), ("reward", self.reward), ("propensity", self.propensity)]
        return [("context", name) for name in self.context] + rest

    @property
    def all(self) -> list[str]:
        """Every column, once."""
        return list(dict.fromkeys(column for _, column in self.parts))


@dataclass(frozen=True)
class Problem:
    """A rule that some rows break: how many rows, which one is the first, and what it contains."""

    rule: str
    count: int
    row: int
    found: float


def read_rows(columns: Mapping[str, Any], names: Names, model_rewards: Any = None) -> tuple[Rows, Good, list[Problem]]:
    """Columns as tensors, which of their rows are good, and what is wrong with the others."""
    found = {name: _numeric(part, name, columns[name]) for part, name in names.parts}
    _check_lengths(found)
    floats = {name: found[name].astype(np.float64) for name in names.all}
    action = as_ids(found[names.action])
    table = None if model_rewards is None else _table(model_rewards, len(action))
    good: list[Good] = []
    problems = []
    for rule, holds, shown in _rules(floats, action, names, table):
        good.append(holds)
        if not holds.all():
            first = int(np.argmin(holds))
            problems.append(Problem(rule, int((~holds).sum()), first, shown[first].item()))
    usable = reduce(np.logical_and, good)
    with np.errstate(over="ignore", under="ignore"):
        rows = Rows(
            torch.as_tensor(np.stack([floats[name].astype(np.float32) for name in names.context], axis=1)),
            torch.as_tensor(action),
            torch.as_tensor(floats[names.reward].astype(np.float32)),
            torch.as_tensor(floats[names.propensity].astype(np.float32)),
            None if table is None else torch.as_tensor(table),
        )
    _check_precision(rows, usable, floats, names)
    return rows, usable, problems


def merge(problems: Sequence[Problem]) -> list[Problem]:
    """The problems of several chunks, with those of the same rule added together; the first chunk's come first."""
    merged: dict[str, Problem] = {}
    for one in problems:
        known = merged.get(one.rule)
        merged[one.rule] = one if known is None else replace(known, count=known.count + one.count)
    return list(merged.values())


def refusal(problems: Sequence[Problem], rows: int) -> LogError:
    """The error that names every rule that rows break."""
    said = [
        f"{one.rule}: {one.count:,} of {rows:,} rows {'does' if one.count == 1 else 'do'} not; the first is row {one.row:,} with "
        f"{one.found}."
        for one in problems
    ]
    return LogError(
        " Also, ".join(said), do=["Fix the logger, or drop those rows with ", Argument("drop_bad_rows", True), "."]
    )


def _rules(
    columns: Mapping[str, Numbers], action: Numbers, names: Names, model_rewards: Numbers | None
) -> Iterator[tuple[str, Good, Numbers]]:
    """Every rule, the rows that obey it, and the numbers it is about; a NaN breaks every rule."""
    p, r = columns[names.propensity], columns[names.reward]
    yield f"propensity {names.propensity!r} must lie in (0, 1]", is_propensity(p), p
    # a policy may come to take the logged action always, and then this is its weight
    believable = ~is_propensity(p) | is_believable(1.0, p)
    yield f"propensity {names.propensity!r} must be at least {1 / LARGEST:g}", believable, p
    yield f"reward {names.reward!r} must be a finite number", is_number(r), r
    yield f"action {names.action!r} must be a whole number from 0 on", action >= 0, columns[names.action]
    for name in names.context:
        yield f"context {name!r} must be a finite number", is_number(columns[name]), columns[name]
    if model_rewards is not None:
        finite: Good = np.isfinite(model_rewards)
        yield "model_rewards must be finite numbers", finite.min(axis=1), model_rewards.sum(axis=1)


def _check_precision(rows: Rows, good: Good, columns: Mapping[str, Numbers], names: Names) -> None:
    """Check the numbers for single precision, in which we train and which cannot hold every number that is otherwise good."""
    usable = torch.as_tensor(good)
    fits = {names.propensity: rows.propensity > 0, names.reward: torch.isfinite(rows.reward)}
    fits |= {name: torch.isfinite(rows.context[:, k]) for k, name in enumerate(names.context)}
    for name, holds in fits.items():
        odd = torch.nonzero(usable & ~holds).flatten()
        if len(odd):
            raise LogError(
                f"training is in single precision, which cannot hold {columns[name][int(odd[0])]:g}, found in column {name!r}.",
                do="Rescale the column, or leave such rows out.",
            )


def _check_lengths(columns: Mapping[str, Numbers]) -> None:
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name!r} has {size:,}" for name, size in sizes.items())
        raise ColumnError(f"all columns must have the same number of rows, and {told}.")


def _table(model_rewards: Any, rows: int) -> NDArray[np.float32]:
    try:
        table = np.array(model_rewards, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise OptionError(f"model_rewards must be numbers, a row for every row of the log: {error}.") from error
    if table.ndim != 2 or len(table) != rows:
        raise OptionError(
            f"model_rewards must have a row for each of the {rows:,} rows and a column per action; found shape {table.shape}."
        )
    return table


def _numeric(part: str, name: str, column: Any) -> Numbers:
    """One number per row, of any type; ids must not become floats, because one float can stand for several ids."""
    if isinstance(column, Tensor):
        column = column.detach().cpu().numpy()
    masked = np.ma.is_masked(column)
    array: Numbers = np.ma.filled(column.astype(np.float64), np.nan) if masked else np.asarray(column)
    if array.dtype.kind not in "biuf":
        _check_type(part, name, array)
    if array.ndim != 1:
        raise ColumnError(f"{part} {name!r} must have one number per row; found shape {array.shape}.")
    return array


def _check_type(part: str, name: str, array: Numbers) -> None:
    """Check types: what counts as a number for `evaluate` counts here, and contexts and actions may be anything NumPy reads as numbers."""
    amount = part in ("reward", "propensity")
    texts = array.dtype.kind in "USmM" or any(isinstance(one, str) for one in array.flat[:1000])
    try:
        array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        texts = amount = True
    if amount and texts:
        kind = "text or times" if texts and array.dtype.kind == "O" else str(array.dtype)
        advice = "Cast actions to whole numbers first." if part == "action" else "Cast the column to numbers first."
        raise ColumnError(f"{part} {name!r} must contain numbers, and has {kind}.", do=advice)
