"""Tunes BanditNet's λ: one training run for each value, and the best by SNIPS on the training rows, as published."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import torch

from counterpoise.estimators.constant import snips
from counterpoise.learn.checkpoints import Epoch, copy_of, restore_checkpoint, save_checkpoint
from counterpoise.learn.devices import join
from counterpoise.learn.inspection import Inspection
from counterpoise.learn.measure import moments_of
from counterpoise.learn.options import Options
from counterpoise.learn.policies import Policy
from counterpoise.learn.sources import Source
from counterpoise.learn.training import Training, settings_of, start_of


@dataclass(frozen=True)
class Tuned:
    """What came of it: the λ chosen, the SNIPS value of each, and the run with the chosen one."""

    banditnet_lambda: float
    values: dict[float, float]
    history: list[Epoch]
    best_epoch: int


def tune(options: Options, source: Source, found: Inspection, policy: Policy, lambdas: tuple[float, ...]) -> Tuned:
    """Train the policy with each λ from the same start; it ends as the best of them."""
    _share_start(options, found, policy, lambdas)
    start, values, tried = copy_of(policy), {}, []
    for one in lambdas:
        policy.load_state_dict(start)
        torch.manual_seed(options.seed)
        training = Training(options, source, found, policy, one)
        training.run(_beside(options.checkpoint, one))
        values[one] = snips(moments_of(policy, options.split.held_out_rows(source, others=True))).value
        tried.append((values[one], one, copy_of(policy), training))
    _, chosen, best, training = max(tried, key=lambda run: run[0])
    policy.load_state_dict(best)
    return Tuned(chosen, values, training.history, training.best_epoch)


def _share_start(options: Options, found: Inspection, policy: Policy, lambdas: tuple[float, ...]) -> None:
    """Keep the start in the checkpoint, so that every λ starts from the same weights, even those that come after a kill."""
    if options.checkpoint is None:
        return
    state = start_of(options, policy)
    settings = settings_of(options, policy, state, list(lambdas), found)
    restored = restore_checkpoint(options.checkpoint, state, settings, options.epochs)
    if not restored and join(options.device)[0] == 0:
        save_checkpoint(options.checkpoint, state, settings)


def _beside(checkpoint: str | PathLike[str] | None, banditnet_lambda: float) -> Path | None:
    """The checkpoint of one λ, next to the one that has the start."""
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    return path.with_name(f"{path.stem}.lambda-{banditnet_lambda}{path.suffix}")
