"""The first look at a log: every row checked, and what training must know before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import LogError
from counterpoise.learn.actions import DistinctIds, Ids, placed
from counterpoise.learn.data import CHUNK, Log, Names, Rows, held_out
from counterpoise.learn.scaling import Columns


@dataclass(frozen=True)
class Inspection:
    """What a first pass over a log finds."""

    rows: int
    n_actions: int
    held_out: int
    digest: str  # of every number of the log, in its order
    columns: Columns  # of the contexts to train on
    mean_reward: float
    ids: Ids | None  # of the actions, where they are not 0, 1, 2, …


def inspect(log: Log, n_actions: int | None, holdout: float, seed: int, ids: Ids | None = None) -> Inspection:
    """Check every row; raise one error that counts what is wrong.

    Without `n_actions` and `ids` the actions are the distinct ids of the log, in their order.
    """
    problems: dict[str, list[Any]] = {}
    columns = Columns(len(log.names.context))
    distinct, seen = DistinctIds(log.names.action), 0
    held, lowest, highest, total = 0, np.inf, -np.inf, 0.0
    for start in log.starts:
        rows = log.chunk(start)
        if not len(rows):
            continue
        for says, bad, shown in _broken(rows, log.names, n_actions, ids):
            index = torch.nonzero(bad).flatten()
            if len(index):
                first = int(index[0])
                known = problems.setdefault(says, [0, start + first, shown[first].item()])
                known[0] += len(index)
        seen += len(rows)
        if n_actions is None and ids is None:
            distinct.add(rows.action.numpy())
        lowest, highest = min(lowest, float(rows.reward.min())), max(highest, float(rows.reward.max()))
        total += float(rows.reward.sum(dtype=torch.float64))
        kept = held_out(start, len(rows), holdout, seed)
        held += int(kept.sum())
        # piece by piece, so that a log in memory is not copied whole, and gives what its files give
        for at in range(0, len(rows), CHUNK):
            piece = slice(at, at + CHUNK)
            columns.add(rows.context[piece][torch.as_tensor(~kept[piece])])
    if seen != log.rows and log.files is not None:
        raise log.files.changed()
    if problems:
        lines = [
            f"{says}: {n:,} do not; the first is row {row:,} with {found if isinstance(found, int) else f'{found:g}'}."
            for says, (n, row, found) in problems.items()
        ]
        raise LogError(f"of {log.rows:,} rows: " + " Also: ".join(lines) + " Fix the logger, or leave such rows out.")
    if not log.rows:
        raise LogError("the log has no rows: there is nothing to learn from.")
    if lowest == highest:
        raise LogError(
            f"all {log.rows:,} rewards are {lowest:g}: no action is better than another, so there is nothing to learn."
        )
    if ids is not None:
        n_actions = len(ids)
    elif n_actions is None:
        n_actions, ids = _actions(distinct, log)
    return Inspection(log.rows, n_actions, held, log.digest(), columns, total / log.rows, ids)


def _actions(distinct: DistinctIds, log: Log) -> tuple[int, Ids | None]:
    """How many actions there are, and their ids unless these are 0, 1, 2, …"""
    span = int(distinct.found[-1]) + 1
    model = None if log.memory is None else log.memory.model_rewards
    if not distinct.have_gaps or (model is not None and model.shape[1] == span):  # the model has a column for each gap
        return span, None
    return len(distinct.found), distinct.found


def _broken(rows: Rows, names: Names, n_actions: int | None, ids: Ids | None) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Rules with the rows that break them; NaN breaks every one."""
    p, r, a = rows.propensity, rows.reward, rows.action
    yield f"propensity {names.propensity!r} must lie in (0, 1]", ~((p > 0) & (p <= 1)), p
    yield f"reward {names.reward!r} must be a finite number", ~torch.isfinite(r), r
    allowed, outside = _allowed(a, n_actions, ids)
    yield f"action {names.action!r} must be one of {allowed}", outside, a
    for k, name in enumerate(names.context):
        column = rows.context[:, k]
        yield f"context {name!r} must be a finite number", ~torch.isfinite(column), column
    if rows.model_rewards is not None:
        odd = ~torch.isfinite(rows.model_rewards).all(1)
        yield "model_rewards must be finite numbers", odd, rows.model_rewards.sum(1)


def _allowed(action: Tensor, n_actions: int | None, ids: Ids | None) -> tuple[str, Tensor]:
    """Which actions there may be, in words, and where there is another one."""
    if ids is not None:
        return f"the policy's {len(ids):,} actions", placed(ids, action) < 0
    if n_actions is None:
        return "the integers 0 and above", action < 0
    return f"the integers 0 … {n_actions - 1}", (action < 0) | (action >= n_actions)
