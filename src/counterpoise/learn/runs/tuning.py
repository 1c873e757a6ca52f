"""Trains a policy, chooses its temperature, and tunes BanditNet's λ: one run for each value, and the best by SNIPS, as published."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import torch

from counterpoise.estimators.constant import snips
from counterpoise.learn.logs.inspection import Inspection
from counterpoise.learn.logs.sources import Source
from counterpoise.learn.policies.policy import Policy
from counterpoise.learn.runs.checkpoints import Epoch, copy_of, restore_checkpoint, save_checkpoint
from counterpoise.learn.runs.devices import join
from counterpoise.learn.runs.measure import held_out_estimate, moments_of
from counterpoise.learn.runs.options import Options
from counterpoise.learn.runs.training import IMITATION, Training, settings_of, start_of

TEMPERATURES = (1.0, 0.5, 0.25, 0.0)  # those to choose from


@dataclass(frozen=True)
class Trained:
    """What came of it: the run's epochs, and with BanditNet the λ and, if it was tuned, the SNIPS value of each."""

    history: list[Epoch]
    best_epoch: int
    banditnet_lambda: float | None = None
    values: dict[float, float] | None = None


def train(options: Options, source: Source, found: Inspection, policy: Policy) -> Trained:
    """Train the policy; it ends as that of the best epoch, with the best λ, at the temperature to serve with."""
    given = options.lambdas(found) if options.trained.needs_lambda else None
    if isinstance(given, tuple):
        done = tune(options, source, found, policy, given)
    else:
        training = Training(options, source, found, policy, given or 0.0)
        training.run(options.checkpoint)
        done = Trained(training.history, training.best_epoch, given)
    policy.temperature = temperature_of(options, source, found, policy)
    return done


def temperature_of(options: Options, source: Source, found: Inspection, policy: Policy) -> float:
    """The temperature to serve with: as given, or the one with the largest score on the held-out rows, of equal ones the highest."""
    if options.temperature != "auto":
        return options.temperature
    if options.objective == IMITATION:
        return 1.0
    return max(
        TEMPERATURES,
        key=lambda one: held_out_estimate(policy, source, found, options.split, options.level, one).criterion,
    )


def tune(options: Options, source: Source, found: Inspection, policy: Policy, lambdas: tuple[float, ...]) -> Trained:
    """Train the policy with each λ from the same start; it ends as the best of them."""
    _share_start(options, found, policy, lambdas)
    start, values, tried = copy_of(policy), {}, []
    for one in lambdas:
        policy.load_state_dict(start)
        torch.manual_seed(options.seed)
        training = Training(options, source, found, policy, one)
        training.run(beside(options.checkpoint, f"lambda-{one}"))
        values[one] = snips(moments_of(policy, options.split.held_out_rows(source, others=True))).value
        tried.append((values[one], one, copy_of(policy), training))
    _, chosen, best, training = max(tried, key=lambda run: run[0])
    policy.load_state_dict(best)
    return Trained(training.history, training.best_epoch, chosen, values)


def _share_start(options: Options, found: Inspection, policy: Policy, lambdas: tuple[float, ...]) -> None:
    """Keep the start in the checkpoint, so that every λ starts from the same weights, even those that come after a kill."""
    if options.checkpoint is None:
        return
    state = start_of(options, policy)
    settings = settings_of(options, policy, state, list(lambdas), found)
    restored = restore_checkpoint(options.checkpoint, state, settings, options.epochs or 0)
    if not restored and join(options.device)[0] == 0:
        save_checkpoint(options.checkpoint, state, settings)


def beside(checkpoint: str | PathLike[str] | None, run: str) -> Path | None:
    """The checkpoint of one run of several, next to the one that the user named."""
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    return path.with_name(f"{path.stem}.{run}{path.suffix}")
