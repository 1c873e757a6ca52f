"""This file holds the first look at a log: every row checked, and what training must know before it starts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import LogError
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


def inspect(log: Log, n_actions: int | None, holdout: float, seed: int) -> Inspection:
    """Check every row; raise one error that counts what is wrong."""
    problems: dict[str, list[Any]] = {}
    columns = Columns(len(log.names.context))
    digest = hashlib.blake2b(digest_size=8)
    largest, held, lowest, highest, total = -1, 0, np.inf, -np.inf, 0.0
    for start in log.starts:
        rows = log.chunk(start)
        if not len(rows):
            continue
        for says, bad, shown in _broken(rows, log.names, n_actions):
            index = torch.nonzero(bad).flatten()
            if len(index):
                first = int(index[0])
                known = problems.setdefault(says, [0, start + first, shown[first].item()])
                known[0] += len(index)
        largest = max(largest, int(rows.action.max()))
        lowest, highest = min(lowest, float(rows.reward.min())), max(highest, float(rows.reward.max()))
        total += float(rows.reward.sum(dtype=torch.float64))
        for part in rows.parts:
            digest.update(part.contiguous().numpy().data)
        kept = held_out(start, len(rows), holdout, seed)
        held += int(kept.sum())
        # piece by piece, so that a log in memory is not copied whole, and gives what its files give
        for at in range(0, len(rows), CHUNK):
            piece = slice(at, at + CHUNK)
            columns.add(rows.context[piece][torch.as_tensor(~kept[piece])])
    if problems:
        lines = [
            f"{says}: {n:,} do not; the first is row {row:,} with {found:g}."
            for says, (n, row, found) in problems.items()
        ]
        raise LogError(f"of {log.rows:,} rows: " + " Also: ".join(lines) + " Fix the logger, or leave such rows out.")
    if not log.rows:
        raise LogError("the log has no rows: there is nothing to learn from.")
    if lowest == highest:
        raise LogError(
            f"all {log.rows:,} rewards are {lowest:g}: no action is better than another, so there is nothing to learn."
        )
    return Inspection(log.rows, n_actions or largest + 1, held, digest.hexdigest(), columns, total / log.rows)


def _broken(rows: Rows, names: Names, n_actions: int | None) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Rules with the rows that break them; NaN breaks every one."""
    p, r, a = rows.propensity, rows.reward, rows.action
    yield f"propensity {names.propensity!r} must lie in (0, 1]", ~((p > 0) & (p <= 1)), p
    yield f"reward {names.reward!r} must be a finite number", ~torch.isfinite(r), r
    most = "" if n_actions is None else f" … {n_actions - 1}"
    outside = (a < 0) | (a >= n_actions) if n_actions is not None else a < 0
    yield f"action {names.action!r} must be one of the integers 0{most or ' and above'}", outside, a
    for k, name in enumerate(names.context):
        column = rows.context[:, k]
        yield f"context {name!r} must be a finite number", ~torch.isfinite(column), column
    if rows.model_rewards is not None:
        odd = ~torch.isfinite(rows.model_rewards).all(1)
        yield "model_rewards must be finite numbers", odd, rows.model_rewards.sum(1)
