"""What users call a column, as an array of numbers or of ids, and what cannot be one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import Argument, ColumnError, LogError, OptionError
from counterpoise.learn.actions import Places, as_ids, one_below_the_other
from counterpoise.log.good import LARGEST, is_believable, is_number, is_propensity
from counterpoise.log.log import Log

if TYPE_CHECKING:
    from counterpoise.learn.source import Reading

Numbers = NDArray[Any]
Good = NDArray[np.bool_]


def is_given(column: Any) -> Good:
    """Where ids are neither null nor NaN; text and dates may be ids, too."""
    array = _array(column)
    data, there = plain(array), ~np.ma.getmaskarray(array)
    if data.dtype.kind == "O":
        return np.logical_and(there, [_is_there(one) for one in data])
    if data.dtype.kind in "mMf":
        return np.logical_and(there, ~(np.isnan(data) if data.dtype.kind == "f" else np.isnat(data)))
    return there


def _is_there(one: Any) -> bool:
    same = one == one  # of what pandas calls NA neither true nor false
    return one is not None and isinstance(same, bool | np.bool_) and bool(same)


def lacks_some(column: Any) -> bool:
    """Whether numbers, one per row, are missing somewhere but not everywhere: null or NaN."""
    found = _array(column)
    gaps = np.ma.getmaskarray(found) | (np.isnan(np.ma.getdata(found)) if found.dtype.kind == "f" else False)
    return bool(found.ndim == 1 and found.dtype.kind in "biuf" and gaps.any())


def plain(column: Any) -> Numbers:
    """What a column holds, whatever of it is masked."""
    data: Numbers = np.ma.getdata(_array(column))
    return data


def numeric(part: str, name: str, column: Any) -> Numbers:
    """One number per row, of any type; ids must not become floats, because one float can stand for several ids."""
    array = _array(column)
    if np.ma.isMaskedArray(array):
        array = np.ma.filled(array.astype(np.float64), np.nan) if np.ma.is_masked(array) else np.ma.getdata(array)
    if array.dtype.kind not in "biuf":
        _check_type(part, name, array)
    if array.ndim != 1:
        raise ColumnError(f"{part} {name!r} must have one number per row; found shape {array.shape}.")
    return array


def _array(column: Any) -> Numbers:
    if isinstance(column, Tensor):
        column = column.detach().cpu().numpy()
    array: Numbers = column if np.ma.isMaskedArray(column) else np.asarray(column)
    return array


def is_plain(column: Any) -> bool:
    """Whether a column is an array of numbers or truth values, one per row."""
    kind, shape = getattr(column, "dtype", None), getattr(column, "shape", ())
    if isinstance(column, Tensor):
        return column.ndim == 1
    if isinstance(column, list | tuple):
        column = np.asarray(column) if all(isinstance(one, int | float) for one in column) else None
        return column is not None
    return isinstance(kind, np.dtype) and kind.kind in "biuf" and len(shape) == 1


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


# -- The rows of a log as tensors, and which of them training can use --------------------------------------------------


CANDIDATES = "candidates"
LOST = 0.1  # of its spread that a context may lose to rounding
NOISE = 1e-12  # a spread that is this share of the mean is rounding itself


@dataclass(frozen=True)
class Rows:
    """Some rows of a log as tensors; `unit` is the number of the cluster that a row belongs to, if the log has clusters."""

    context: Tensor
    action: Tensor
    reward: Tensor
    propensity: Tensor
    model_rewards: Tensor | None = None
    candidates: Tensor | None = None  # the ids or places of each row's candidates, filled up with −1
    unit: Tensor | None = None

    def __len__(self) -> int:
        return len(self.action)

    def take(self, index: Any) -> Rows:
        """Some of these rows."""
        return Rows(**{name: part[index] for name, part in self.named.items()})

    def followed_by(self, other: Rows) -> Rows:
        """These rows, followed by others."""
        joined = {name: torch.cat([part, other.named[name]]) for name, part in self.named.items() if name != CANDIDATES}
        if self.candidates is not None and other.candidates is not None:
            joined[CANDIDATES] = one_below_the_other(self.candidates, other.candidates)
        return Rows(**joined)

    def to(self, device: torch.device) -> Rows:
        """The same rows on a device."""
        return Rows(**{name: part.to(device) for name, part in self.named.items()})

    @property
    def named(self) -> dict[str, Tensor]:
        """The tensors that there are, by name."""
        return {name: part for name, part in vars(self).items() if part is not None}

    def digest(self) -> bytes:
        """A digest of every number in them."""
        found = hashlib.sha256()
        for name, part in self.named.items():
            if name == CANDIDATES:  # however far they are filled up
                found.update((part >= 0).sum(1).numpy().data)
                part = part[part >= 0]
            found.update(part.contiguous().numpy().data)
        return found.digest()


@dataclass(frozen=True)
class Names:
    """The columns that training looks at, and (part, column) of those that only decide which rows are good."""

    context: tuple[str, ...]
    action: str
    reward: str
    propensity: str
    judged: tuple[tuple[str, str], ...] = ()
    candidates: str | None = None

    @classmethod
    def of(cls, log: Log) -> Names:
        """The names in a log, which must give all of them, and exactly one reward."""
        log.need("context", "action", "reward", "propensity")
        log.need_one_logger("learning")
        if log.action in log.context:
            raise OptionError(
                [Argument("context"), f" names {log.action!r}, which is the action."],
                do="Name columns that were known before the choice.",
            )
        if len(log.reward) > 1:
            raise OptionError(
                f"a policy is trained on one reward, and this log has {', '.join(map(repr, log.reward))}.",
                do=f"Choose one: log.but(reward={log.reward[0]!r}).",
            )
        numbers = [("model_reward", log.model_reward), *(("control", name) for name in log.control or {})]
        judged = [(part, name) for part, name in [*numbers, ("cluster", log.cluster)] if name is not None]
        return cls(log.context, str(log.action), log.reward[0], str(log.propensity), tuple(judged), log.candidates)

    @property
    def cluster(self) -> str | None:
        """The column of the cluster, if there is one."""
        return next((column for part, column in self.judged if part == "cluster"), None)

    @property
    def parts(self) -> list[tuple[str, str]]:
        """(part, column) for every one of them."""
        candidates = [] if self.candidates is None else [("candidates", self.candidates)]
        return [*self.trained, *self.judged, *candidates]

    @property
    def trained(self) -> list[tuple[str, str]]:
        """(part, column) of those that become tensors."""
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
    found: object


def read_rows(
    columns: Mapping[str, Any],
    names: Names,
    model_rewards: Any = None,
    reading: Reading | None = None,
    *,
    is_whole: bool = True,
    lowest: float = 0.0,
) -> tuple[Rows, Good, list[Problem]]:
    """Columns as tensors, which of their rows are good, and what is wrong with the others; `reading` if some are not numbers.

    Only the whole log tells whether a context or a reward varies too little for single precision: a chunk of a log in order may be nearly
    constant. `lowest` is taken away from the rewards.
    """
    encoding = None if reading is None else reading.encoding
    if reading is not None:
        columns = reading.with_numbers(columns, names)
    found = {
        name: numeric(part, name, columns[name])
        for part, name in names.trained
        if encoding is None or part != "context"
    }
    others = list(_rules_of_others(columns, names))
    _check_lengths(found | {name: holds for (_, name), (_, holds, _) in zip(names.judged, others, strict=True)})
    floats = {name: column.astype(np.float64) for name, column in found.items()}
    contexts = {name: floats[name][:, None] for name in names.context} if encoding is None else encoding.blocks(columns)
    if lowest:
        floats[names.reward] = floats[names.reward] - lowest
    if is_whole:
        _check_digits({f"context {name!r}": block for name, block in contexts.items()})
        _check_digits({f"reward {names.reward!r}": floats[names.reward][:, None]})
    action = as_ids(found[names.action])
    candidates = None if reading is None else reading.candidates_of(columns, names, len(action))
    table = None if model_rewards is None else _table(model_rewards, len(action))
    good: list[Good] = []
    problems = []
    named = reading is not None and reading.names is not None
    rules = [*_rules(floats, action, names, table, named), *_rules_of_contexts(contexts), *others]
    if candidates is not None:
        rules += _rules_of_candidates(candidates, action, names)
    for rule, holds, shown in rules:
        good.append(holds)
        if not holds.all():
            first = int(np.argmin(holds))
            problems.append(Problem(rule, int((~holds).sum()), first, shown[first]))
    usable = reduce(np.logical_and, good)
    with np.errstate(over="ignore", under="ignore"):
        rows = Rows(
            torch.as_tensor(np.concatenate([contexts[name].astype(np.float32) for name in names.context], axis=1)),
            torch.as_tensor(action),
            torch.as_tensor(floats[names.reward].astype(np.float32)),
            torch.as_tensor(floats[names.propensity].astype(np.float32)),
            None if table is None else torch.as_tensor(table),
            None if candidates is None else torch.as_tensor(candidates),
            _units(columns, names),
        )
    _check_precision(rows, usable, floats, contexts, names)
    return rows, usable, problems


def _units(columns: Mapping[str, Any], names: Names) -> Tensor | None:
    """The clusters as numbers, by the rule that `evaluate` has for them; 0 for one that is missing, whose row is bad anyway."""
    if names.cluster is None:
        return None
    import polars as pl  # whoever has no polars has no clusters either

    from counterpoise.log.groups import PRIME, integer_ids

    values = columns[names.cluster]
    if not isinstance(values, pl.Series):
        found = plain(values)
        values = pl.Series(found.tolist() if found.dtype == object else found)
    return torch.as_tensor(integer_ids(values).fill_null(0).to_numpy() % PRIME)


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
    columns: Mapping[str, Numbers], action: Numbers, names: Names, model_rewards: Numbers | None, named: bool
) -> Iterator[tuple[str, Good, Numbers]]:
    """Every rule, the rows that obey it, and the numbers it is about; a NaN breaks every rule."""
    p, r = columns[names.propensity], columns[names.reward]
    yield f"propensity {names.propensity!r} must lie in (0, 1]", is_propensity(p), p
    # a policy may come to take the logged action always, and then this is its weight
    believable = ~is_propensity(p) | is_believable(1.0, p)
    yield f"propensity {names.propensity!r} must be at least {1 / LARGEST:g}", believable, p
    yield f"reward {names.reward!r} must be a finite number", is_number(r), r
    what = "given" if named else "a whole number from 0 on"
    yield f"action {names.action!r} must be {what}", action >= 0, columns[names.action]
    if model_rewards is not None:
        finite: Good = np.isfinite(model_rewards)
        yield "model_rewards must be finite numbers", finite.min(axis=1), model_rewards.sum(axis=1)


def _rules_of_contexts(contexts: Mapping[str, Numbers]) -> Iterator[tuple[str, Good, Numbers]]:
    """The same of the inputs that each column of the context becomes."""
    for name, block in contexts.items():
        one = block.shape[1] == 1
        what = "a finite number" if one else "finite numbers"
        yield f"context {name!r} must be {what}", is_number(block).all(axis=1), block[:, 0] if one else block


def _rules_of_candidates(candidates: Places, action: Numbers, names: Names) -> Iterator[tuple[str, Good, Numbers]]:
    """The same of candidates, which can only be judged by an action that is one."""
    some: Good = np.asarray((candidates >= 0).any(axis=1))
    yield f"candidates {names.candidates!r} must have at least one action", some, action
    there: Good = np.asarray((candidates == action[:, None]).any(axis=1) | ~some | (action < 0))
    yield f"action {names.action!r} must be among the candidates {names.candidates!r}", there, action


def _rules_of_others(columns: Mapping[str, Any], names: Names) -> Iterator[tuple[str, Good, Numbers]]:
    """The same of what is not trained on."""
    for part, name in names.judged:
        if part in ("cluster", "slate"):
            yield f"{part} {name!r} must be given", is_given(columns[name]), plain(columns[name])
        else:
            numbers = numeric(part, name, columns[name]).astype(np.float64)
            yield f"{part} {name!r} must be a finite number", is_number(numbers), numbers


def _check_precision(
    rows: Rows, good: Good, columns: Mapping[str, Numbers], contexts: Mapping[str, Numbers], names: Names
) -> None:
    """Check the numbers for single precision, in which we train and which cannot hold every number that is otherwise good."""
    usable = torch.as_tensor(good)
    fits = {names.propensity: rows.propensity > 0, names.reward: torch.isfinite(rows.reward)}
    parts = rows.context.split([contexts[name].shape[1] for name in names.context], dim=1)  # type: ignore[no-untyped-call]
    fits |= {name: torch.isfinite(part).all(1) for name, part in zip(names.context, parts, strict=True)}
    for name, holds in fits.items():
        odd = torch.nonzero(usable & ~holds).flatten()
        if len(odd):
            found = np.ravel(contexts[name][int(odd[0])] if name in contexts else columns[name][int(odd[0])])
            raise LogError(
                f"training is in single precision, which cannot hold {found[np.abs(found).argmax()]:g}, found in column {name!r}.",
                do="Rescale the column, or leave such rows out.",
            )


def _check_lengths(columns: Mapping[str, Numbers]) -> None:
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name!r} has {size:,}" for name, size in sizes.items())
        raise ColumnError(f"all columns must have the same number of rows, and {told}.")


def _check_digits(columns: Mapping[str, NDArray[np.float64]]) -> None:
    """Check that single precision tells the values of a column apart; its part of the log and its name are its key."""
    for name, values in columns.items():
        mean = _lost(values)
        if mean is not None:
            raise LogError(
                f"{name} has numbers near {mean:.4g} that differ too little for single precision, in which policies compute.",
                do=f"Name an expression that takes the mean away, such as {name.split(' ', 1)[1][1:-1]} - {mean:.12g}.",
            )


def _lost(values: NDArray[np.float64]) -> float | None:
    """The mean of the first column whose values single precision cannot tell apart, if there is one."""
    known = values[np.isfinite(values).all(axis=1) & (np.abs(values) < 1e30).all(axis=1)]
    if not len(known):
        return None
    means, spread = known.mean(axis=0), known.std(axis=0)
    lost = np.abs(known - known.astype(np.float32)).max(axis=0)
    bad = (lost > LOST * spread) & (spread > NOISE * np.abs(means))
    return float(means[bad][0]) if bad.any() else None


def lowest_of(values: Any, name: str) -> float:
    """The lowest reward, if rewards differ too little for single precision, and else 0.

    >>> lowest_of([1e8, 1e8 + 1.0, 1e8 + 3.0], "revenue"), lowest_of([2.0, 3.0], "stars")
    (100000000.0, 0.0)
    """
    found = numeric("reward", name, values).astype(np.float64)
    return 0.0 if _lost(found[:, None]) is None else float(found[np.abs(found) < 1e30].min())


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
