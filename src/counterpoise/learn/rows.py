"""The rows of a log as tensors: what columns mean, which rows are held out, and the batches of the others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import ColumnError, LogError, OptionError
from counterpoise.features import Encoder, Scaling
from counterpoise.features.encoder import TEXT, is_missing
from counterpoise.learn.actions import (
    MOST,
    ActionNames,
    Classes,
    ClassPlaces,
    flat_of,
    ids_of_mask,
    lists_of,
    one_below_the_other,
    padded,
    places_of,
    whole_numbers,
)
from counterpoise.log.groups import STEP, uniform
from counterpoise.log.kinds import check_rows
from counterpoise.log.log import ESTIMATED, Log
from counterpoise.moments import Floats
from counterpoise.readers.policies import check_context

if TYPE_CHECKING:
    from counterpoise.learn.source import Source
    from counterpoise.learn.steps import Machine

CANDIDATES = "candidates"
LOST = 0.1  # of its spread that a column may lose to rounding
NOISE = 1e-12  # a spread that is this share of the mean is rounding itself
PartReader = Callable[[], Iterator[pl.DataFrame]]  # the columns of a log, part by part, as often as one asks


@dataclass(frozen=True)
class Rows:
    """Some rows of a log as tensors; `unit` is the number of the cluster that a row belongs to, if the log has clusters."""

    context: Tensor
    action: Tensor
    reward: Tensor
    propensity: Tensor
    model_rewards: Tensor | None = None
    candidates: Tensor | None = None  # the ids or places of each row's candidates, padded with −1
    unit: Tensor | None = None

    def __len__(self) -> int:
        return len(self.action)

    def take(self, index: Tensor | slice) -> Rows:
        """Some of these rows."""
        return Rows(**{name: part[index] for name, part in self.named.items()})

    def sample(self, size: int, seed: int) -> Rows:
        """So many of these rows, drawn at random, in their order."""
        chosen = np.random.default_rng(seed).choice(len(self), size, replace=False)
        return self.take(torch.as_tensor(np.sort(chosen)))

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
        digest = hashlib.sha256()
        for name, part in self.named.items():
            if name == CANDIDATES:  # regardless of padding
                digest.update((part >= 0).sum(1).numpy().data)
                part = part[part >= 0]
            digest.update(part.contiguous().numpy().data)
        return digest.digest()


@dataclass(frozen=True)
class TrainingColumns:
    """The columns that training looks at."""

    context: tuple[str, ...]
    action: str
    reward: str
    propensity: str
    cluster: str | None = None
    candidates: str | None = None

    @classmethod
    def of(cls, log: Log) -> TrainingColumns:
        """The names in a log, which must give all of them, and exactly one reward."""
        log.need("context", "action", "reward", "propensity")
        check_rows(log, "learning")
        if log.action in log.context:
            raise OptionError(
                f"`context=` names {log.action!r}, which is the action.",
                do="Name columns that were known before the choice.",
            )
        if len(log.reward) > 1:
            raise OptionError(
                f"a policy is trained on one reward, and this log has {', '.join(map(repr, log.reward))}.",
                do=f"Choose one: log.but(reward={log.reward[0]!r}).",
            )
        propensity = ESTIMATED if log.has_estimated_propensities else str(log.propensity)
        return cls(log.context, str(log.action), log.reward[0], propensity, log.cluster, log.candidates)

    @property
    def all(self) -> list[str]:
        """Every column, once."""
        named = (*self.context, self.action, self.reward, self.propensity, self.cluster, self.candidates)
        return list(dict.fromkeys(name for name in named if name is not None))


# -- what columns mean that are more than numbers: contexts to encode, actions that are text, and candidates -----------


@dataclass(frozen=True)
class LogReading:
    """What columns that are not plain numbers mean."""

    encoding: Encoder | None = None  # of the contexts, unless all of them are numbers
    names: ActionNames | None = None  # of the actions in ascending order, if they are text
    classes: Classes | None = None  # the actions, if they are known before the log is read
    width: int | None = None  # of a boolean table, if the candidates are one

    def candidates(self, values: pl.Series) -> ClassPlaces:
        """The candidates of every row as ids, or as places if actions are text; padded with −1."""
        mask = _mask_in(values)
        if mask is not None:
            return ids_of_mask(mask, self._ids_of_columns(values.name, mask.shape[1]))
        lists = lists_of(values.name, values)
        if self.names is not None:
            return padded(lists, places_of(lists, self.names))
        flat = whole_numbers(flat_of(lists))
        odd = flat.is_null() | (flat < 0)
        if odd.any():
            raise LogError(
                f"candidates {values.name!r} must be whole numbers from 0 on, as the actions are: {odd.sum():,} of {len(flat):,} are "
                f"not; one is {flat_of(lists).filter(odd.fill_null(True))[0]!r}."
            )
        return padded(lists, flat.to_numpy())

    def _ids_of_columns(self, name: str, width: int) -> ClassPlaces:
        """The actions that the columns of a boolean table belong to."""
        known = self.names if self.names is not None else self.classes
        if known is not None and len(known) != width:
            raise OptionError(
                f"candidates {name!r} must have a column for each of the {len(known):,} actions; found {width:,}."
            )
        return np.arange(width) if self.names is not None or self.classes is None else np.asarray(self.classes)


def reading_of(
    first: pl.DataFrame,
    parts: PartReader,
    names: TrainingColumns,
    classes: Classes | None = None,
    encoding: Encoder | None = None,
    *,
    fills_gaps: bool = True,
) -> LogReading:
    """How to read a log. Actions and encoding may be known already, from a policy.

    With `fills_gaps`, the encoding marks the numbers of a context that are missing.
    """
    action, is_text = first.schema[names.action], first.schema[names.action] in TEXT
    if not is_text and not _are_numbers(action):
        raise ColumnError(f"action {names.action!r} must be whole numbers or text; found {action}.")
    if classes is not None and is_text != (classes.dtype.kind not in "iu"):
        kinds = ("text", "whole numbers") if is_text else ("whole numbers", "text")
        raise OptionError(
            f"the actions in {names.action!r} are {kinds[0]}, and those of the policy or the items are {kinds[1]}.",
            do="Give both the same type.",
        )
    numbers = [name for name in names.context if _are_numbers(first.schema[name])]
    if encoding is not None:
        check_context(encoding.names, names.context)
    elif len(numbers) < len(names.context) or (
        fills_gaps and any(bool(is_missing(part.get_column(name)).any()) for part in parts() for name in numbers)
    ):
        encoding = Encoder.learned(parts(), names.context)
    mask = None if names.candidates is None else _mask_in(first.get_column(names.candidates))
    width = None if mask is None else mask.shape[1]
    return LogReading(encoding, _action_names(parts, names, classes) if is_text else None, classes, width)


def _are_numbers(dtype: pl.DataType) -> bool:
    """Whether a column of this type needs no encoding; times have units, which the encoding sees to."""
    return dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)


def _mask_in(values: pl.Series) -> NDArray[np.bool_] | None:
    """Candidates as a boolean table, if that is what they are."""
    if isinstance(values.dtype, pl.Array):
        values = values.arr.to_list()
    if not isinstance(values.dtype, pl.List) or values.dtype.inner != pl.Boolean:
        return None
    widths = values.list.len().unique()
    if len(values) and (len(widths) > 1 or widths[0] is None):
        raise ColumnError(f"candidates {values.name!r} must have a truth value for every action in each row.")
    mask: NDArray[np.bool_] = values.explode().fill_null(False).to_numpy().reshape(len(values), -1)
    return mask


def _action_names(parts: PartReader, names: TrainingColumns, classes: Classes | None) -> ActionNames:
    """The names of all actions in a log, logged or only candidates, in ascending order; all must be among `classes`, if those are known."""
    texts: dict[str, set[str]] = {"logged actions": set(), "candidates": set()}
    for part in parts():
        texts["logged actions"].update(part.get_column(names.action).cast(pl.String).drop_nulls().unique())
        if names.candidates is not None and _mask_in(part.get_column(names.candidates)) is None:
            lists = lists_of(names.candidates, part.get_column(names.candidates))
            texts["candidates"].update(flat_of(lists).cast(pl.String).drop_nulls().unique())
        if sum(map(len, texts.values())) > MOST:
            raise LogError(
                f"{names.action!r} has more than {MOST:,} distinct actions. Is it the column of the logged action?"
            )
    if classes is None:
        return np.array(sorted(texts["logged actions"] | texts["candidates"]), dtype=object)
    for what, some in texts.items():
        unknown = sorted(some - set(classes))
        if unknown:
            raise LogError(
                f"{len(unknown):,} of the {what} are not among the {len(classes):,} that the policy or the items have; one is "
                f"{unknown[0]!r}.",
                do="Add them to `items=` or the policy, or drop those rows.",
            )
    return np.asarray(classes, dtype=object)


class Digits:
    """How far single precision, in which policies compute, tells the numbers of a column or table apart; some rows at a time.

    >>> digits = Digits()
    >>> for part in ([[1e8], [1e8 + 1]], [[1e8 + 3]]):
    ...     digits.add(np.array(part))
    >>> digits.mean_of_lost, float(digits.lowest[0])
    (100000001.33333333, 100000000.0)
    """

    def __init__(self) -> None:
        self._scaling: Scaling | None = None
        self._lost: Floats = np.zeros(1)
        self.lowest: Floats = np.full(1, np.inf)

    def add(self, values: Floats) -> None:
        """Add some rows; anything that is not a number is reported elsewhere."""
        is_known = np.abs(values) < 1e30
        known = values if is_known.all() else values[is_known.all(axis=1)]
        if not len(known):
            return
        scaling = Scaling.of(known)
        self._scaling = scaling if self._scaling is None else self._scaling + scaling
        self._lost = np.maximum(self._lost, np.abs(known - known.astype(np.float32)).max(axis=0))
        self.lowest = np.minimum(self.lowest, known.min(axis=0))

    @property
    def mean_of_lost(self) -> float | None:
        """The mean of the first column whose values single precision cannot tell apart, if there is one."""
        if self._scaling is None:
            return None
        mean, spread = self._scaling.mean, np.sqrt(self._scaling.scatter / self._scaling.rows)
        bad = (self._lost > LOST * spread) & (spread > NOISE * np.abs(mean))
        return float(mean[bad][0]) if bad.any() else None


# -- batches -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Some rows of a log; `total` is how many rows the batch has over all processes."""

    context: Tensor
    action: Tensor
    reward: Tensor
    propensity: Tensor
    total: int
    model_rewards: Tensor | None = None  # a reward model's predictions, a column per action
    candidates: Tensor | None = None  # the places of the actions to choose from, padded with −1


@dataclass(frozen=True)
class Split:
    """Which rows are held out from training: a share of them, chosen by a hash of row number and seed (splitmix64).

    With a `fold` out of `folds`, the rows of that fold are left alone: they are neither trained on nor held out.
    """

    holdout: float
    seed: int
    fold: int | None = None
    folds: int = 0

    def held_out(self, start: int, rows: int) -> NDArray[np.bool_]:
        """Which of some rows are held out, the same in every process."""
        state = (1 + self.seed) * int(STEP) % 2**64
        return uniform(np.arange(start, start + rows, dtype=np.uint64) + np.uint64(state)) < self.holdout

    def parts(self, source: Source, start: int, rows: Rows) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which rows of a chunk are held out, and which are trained on."""
        held = self.held_out(source.before(start), len(rows))
        if self.fold is None:
            return held, ~held
        ours = source.folds(start, rows, self.folds) != self.fold
        return held & ours, ~held & ours

    def held_out_rows(self, source: Source, *, others: bool = False) -> Iterator[Rows]:
        """The rows that are held out, chunk by chunk, or those that are trained on."""
        for start in source.starts:
            rows = source.chunk(start)
            held, trained = self.parts(source, start, rows)
            yield rows.take(torch.as_tensor(np.flatnonzero(trained if others else held), device=rows.action.device))


def batches(source: Source, epoch: int, batch_size: int | None, split: Split, machine: Machine) -> Iterator[Batch]:
    """This process's share of every batch of an epoch, which is one in every `processes` rows; all processes have the same batches.

    Their order depends only on seed and epoch. Rows are shuffled within a chunk, and so are the chunks themselves; what is left of a
    chunk joins the next.
    """
    random = np.random.default_rng([split.seed, epoch])
    starts = source.starts
    left: Rows | None = None
    for last, place in enumerate(random.permutation(len(starts)), start=1):
        rows = source.chunk(starts[place])
        ours = np.flatnonzero(split.parts(source, starts[place], rows)[1])
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
            mine = rows.take(part[machine.rank :: machine.processes]).to(machine.device)
            yield Batch(
                mine.context, mine.action, mine.reward, mine.propensity, len(part), mine.model_rewards, mine.candidates
            )
