"""The first look at a log, which checks every row, and the batches in which it is read from then on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import Argument, LogError, OptionError
from counterpoise.features import Scaling
from counterpoise.learn.actions import DistinctIds, Ids, placed
from counterpoise.learn.rows import Problem, Rows, merge, refusal
from counterpoise.learn.source import CHUNK, Source

# -- The batches of a log, in an order that only seed and epoch decide, and the rows held out from them ----------------


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

    Rows are shuffled within a chunk, and so are the chunks themselves; what is left of a chunk joins the next.
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


# -- The first look at a log: checks every row, and finds out what training must know before it starts -----------------


SAMPLED = 20_000  # first rows in which the columns of a context are tried as a model of the reward, as the doctor does


@dataclass(frozen=True)
class Inspection:
    """What a first pass over a log finds."""

    rows: int
    n_actions: int
    held_out: int
    digest: str  # of every number of the log, in its order
    columns: Scaling  # of the contexts to train on
    mean_reward: float
    rewards: tuple[float, float]  # the least and the largest
    reward_size: float  # the root of their mean square
    ids: Ids | None  # of the actions, where they are not 0, 1, 2, …

    @property
    def gain_size(self) -> float:
        """The root of the mean square of the rewards above the least."""
        low = self.rewards[0]
        return math.sqrt(max(self.reward_size**2 - low * (2 * self.mean_reward - low), 0.0))


@dataclass
class _Rewards:
    """What is to be known of rewards, some at a time."""

    total: float = 0.0
    square: float = 0.0
    lowest: float = np.inf
    highest: float = -np.inf

    def add(self, reward: Tensor) -> None:
        """Take in some."""
        if len(reward):
            self.lowest, self.highest = min(self.lowest, float(reward.min())), max(self.highest, float(reward.max()))
            self.total += float(reward.sum(dtype=torch.float64))
            self.square += float(reward.double().square().sum())

    def of(self, rows: int) -> dict[str, Any]:
        """What an `Inspection` of so many rows says of them."""
        return {
            "mean_reward": self.total / rows,
            "rewards": (self.lowest, self.highest),
            "reward_size": math.sqrt(self.square / rows),
        }


@dataclass
class _Totals:
    """What adds up over the chunks of a log."""

    columns: Scaling
    distinct: DistinctIds
    problems: list[Problem] = field(default_factory=list)
    unknown: list[Problem] = field(default_factory=list)  # actions that the policy does not have
    held_out: int = 0
    rewards: _Rewards = field(default_factory=_Rewards)

    def add(self, rows: Rows, held_out: Tensor) -> None:
        """Take in the rows of a chunk."""
        self.rewards.add(rows.reward)
        self.held_out += int(held_out.sum())
        # piece by piece, so that a log in memory is not copied whole, and gives what its files give
        for at in range(0, len(rows), CHUNK):
            piece = slice(at, at + CHUNK)
            self.columns += Scaling.of(rows.context[piece][~held_out[piece]].numpy())


def inspect(source: Source, n_actions: int | None, split: Split, ids: Ids | None = None) -> Inspection:
    """Check every row, and raise one error that counts everything that is wrong.

    Without `n_actions` and `ids`, the actions are the distinct ids of the log, in ascending order.
    """
    found = _Totals(Scaling.of(np.empty((0, source.width))), DistinctIds(source.names.action))
    for start in source.starts:
        rows, problems = source.look(start)
        if not source.log.drop_bad_rows:
            found.problems += problems
        if not len(rows):
            continue
        if n_actions is None and ids is None:
            found.distinct.add(rows.action.numpy())
            if rows.candidates is not None:
                found.distinct.add(rows.candidates.numpy())
        else:
            found.unknown += _unknown(rows.action, source, source.before(start), n_actions, ids)
            if rows.candidates is not None and not found.unknown:
                found.unknown += _unknown(rows.candidates, source, source.before(start), n_actions, ids)
        found.add(rows, torch.as_tensor(split.held_out(source.before(start), len(rows))))
    _refuse(found, source)
    if ids is not None:
        n_actions = len(ids)
    elif n_actions is None:
        n_actions, ids = _actions(found.distinct, source)
    return Inspection(
        rows=source.rows,
        n_actions=n_actions,
        held_out=found.held_out,
        digest=source.digest(),
        columns=_without_levels(found.columns, source),
        ids=ids,
        **found.rewards.of(source.rows),
    )


def refuse_leaks(source: Source) -> None:
    """Refuse a context with a column that tells the reward almost exactly, by the doctor's own check of the first rows."""
    if find_spec("polars") is None:
        return
    import polars as pl

    from counterpoise.models.quality import leaks

    names = source.names
    rows = source.frame(source.starts[0], [names.reward, *names.context]).head(SAMPLED)
    rows = rows.with_columns(pl.col(names.reward).cast(pl.Float64, strict=False))
    found = leaks(rows.lazy(), names.reward, names.context)
    if found:
        raise LogError(
            f"the context column {found[0].column!r} tells {found[0].r2:.0%} of the reward's variance, on rows it was not learned from: "
            "it was probably written after the choice, and a policy that uses it is worth nothing on new rows.",
            do=["Leave it out of ", Argument("context"), "; `counterpoise doctor` has more about the log."],
        )


def without_fold(found: Inspection, source: Source, split: Split) -> Inspection:
    """The same of the rows outside the split's fold, which was all checked before."""
    rows, held_out, columns, rewards = 0, 0, Scaling.of(np.empty((0, source.width))), _Rewards()
    for start in source.starts:
        chunk = source.logged(start)
        held, trained = split.parts(source, start, chunk)
        rows, held_out = rows + int(held.sum() + trained.sum()), held_out + int(held.sum())
        columns += Scaling.of(chunk.context[torch.as_tensor(trained, device=chunk.context.device)].cpu().numpy())
        rewards.add(chunk.reward[torch.as_tensor(held | trained, device=chunk.reward.device)])
    if rows - held_out < 1:
        raise OptionError(
            ["with ", Argument("folds", split.folds), " a fold has all rows, and none are left to train on."],
            do=["Pass ", Argument("folds", None), ", or a log with more clusters."],
        )
    return replace(found, rows=rows, held_out=held_out, columns=_without_levels(columns, source), **rewards.of(rows))


def _without_levels(columns: Scaling, source: Source) -> Scaling:
    """Mean and scale, with which the levels of categories stay 0 and 1."""
    if source.reading is None or source.reading.encoding is None:
        return columns
    return columns.leaving(source.reading.encoding.is_indicator)


def _refuse(found: _Totals, source: Source) -> None:
    """Raise an error that says what is wrong with a log as a whole."""
    if found.problems:
        raise refusal(merge(found.problems), source.rows)
    if not source.rows:
        what = f"all {source.dropped:,} rows are bad" if source.dropped else "the log has no rows"
        raise LogError(f"{what}, so there is nothing to learn from.")
    if found.unknown:
        (one,) = merge(found.unknown)
        raise LogError(
            f"{one.rule}: {one.count:,} of {source.rows:,} rows {'is' if one.count == 1 else 'are'} not; the first is row "
            f"{one.row:,} with {one.found}.",
            do=["Leave those rows out, or change ", Argument("n_actions"), " or the policy."],
        )
    if found.rewards.lowest == found.rewards.highest:
        raise LogError(
            f"all {source.rows:,} rewards are {found.rewards.lowest:g}, so no action is better than another and there is nothing to learn."
        )


def _actions(distinct: DistinctIds, source: Source) -> tuple[int, Ids | None]:
    """How many actions there are, and their ids unless those are 0, 1, 2, …"""
    span = int(distinct.found[-1]) + 1
    model = None if source.memory is None else source.memory.model_rewards
    if not distinct.have_gaps or (model is not None and model.shape[1] == span):  # the model has a column for each gap
        return span, None
    return len(distinct.found), distinct.found


def _unknown(action: Tensor, source: Source, start: int, n_actions: int | None, ids: Ids | None) -> list[Problem]:
    """Rows with an action (or candidates) that the policy does not have."""
    if ids is not None:
        allowed, outside = f"the policy's {len(ids):,} actions", placed(ids, action) < 0
    else:
        assert n_actions is not None
        allowed, outside = f"the integers 0 … {n_actions - 1}", action >= n_actions
    odd = torch.nonzero(outside & (action >= 0))  # what is no id at all is reported as such
    if not len(odd):
        return []
    part, name = ("action", source.names.action) if action.ndim == 1 else ("candidates", source.names.candidates)
    rule = f"{part} {name!r} must be {'one' if action.ndim == 1 else 'some'} of {allowed}"
    return [Problem(rule, len(set(odd[:, 0].tolist())), start + int(odd[0, 0]), int(action[tuple(odd[0])]))]
