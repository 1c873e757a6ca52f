"""The rows of a log as tensors, which of them are held out, and the batches in which the others are trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.learn.actions import one_below_the_other

if TYPE_CHECKING:
    from counterpoise.learn.source import Source

CANDIDATES = "candidates"


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
        digest = hashlib.sha256()
        for name, part in self.named.items():
            if name == CANDIDATES:  # however far they are filled up
                digest.update((part >= 0).sum(1).numpy().data)
                part = part[part >= 0]
            digest.update(part.contiguous().numpy().data)
        return digest.digest()


@dataclass(frozen=True)
class Batch:
    """Some rows of a log; `total` is how many rows the batch has over all processes."""

    context: Tensor
    action: Tensor
    reward: Tensor
    propensity: Tensor
    total: int
    model_rewards: Tensor | None = None  # a reward model's predictions, a column per action
    candidates: Tensor | None = None  # the places of the actions that there were to choose from, filled up with −1


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
        with np.errstate(over="ignore"):
            x = np.arange(start, start + rows, dtype=np.uint64) + np.uint64(1 + self.seed) * np.uint64(
                0x9E3779B97F4A7C15
            )
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
        return np.asarray((x >> np.uint64(11)).astype(np.float64) / 2**53 < self.holdout)

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


@dataclass(frozen=True)
class Share:
    """This process's share of every batch: out of every `processes` rows, it takes one."""

    rank: int
    processes: int
    device: torch.device


def batches(source: Source, epoch: int, batch_size: int | None, split: Split, share: Share) -> Iterator[Batch]:
    """This process's share of every batch of an epoch; the batches are the same for any number of processes.

    Only seed and epoch decide about their order. Rows are shuffled within a chunk, and so are the chunks themselves; what is left of a
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
            mine = rows.take(part[share.rank :: share.processes]).to(share.device)
            yield Batch(
                mine.context, mine.action, mine.reward, mine.propensity, len(part), mine.model_rewards, mine.candidates
            )
