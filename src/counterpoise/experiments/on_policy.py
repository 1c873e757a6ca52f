"""Trains many on-policy runs as one: policies that draw their own actions and learn by REINFORCE with a baseline.

This is section 2.1 of Gupta, Jeunen, Oosterhuis & de Rijke, RecSys 2024: no baseline, the mean reward of the batch, or the
baseline of least gradient variance, each taken from the current batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from counterpoise.errors import OptionError
from counterpoise.experiments.many import Curves, GreedyValue, Parameters, Run

Baseline = Literal["none", "mean", "optimal"]
BASELINES: tuple[Baseline, ...] = ("none", "mean", "optimal")


@dataclass(frozen=True)
class OnPolicyRun:
    """One policy to train."""

    baseline: Baseline
    learning_rate: float
    seed: int


def train_on_policy(
    world: GreedyValue,
    runs: Sequence[OnPolicyRun],
    *,
    epochs: int,
    batch_size: int = 1024,
    value: GreedyValue | None = None,
) -> Curves:
    """Train against a world whose expected rewards in [0, 1] are known; the rewards drawn are 0 or 1.

    An epoch passes over the world's contexts once, and `value` is measured after each epoch. Runs with the same seed share
    their first weights and the order of the contexts. The gradient variance of a batch is (mean(‖∇log π‖²(r − β)²) − ‖mean‖²)/B,
    summed over the epoch's batches and divided by the number of rows, just as off-policy.
    """
    for run in runs:
        if run.baseline not in BASELINES:
            raise OptionError(f"there is no baseline {run.baseline!r}; choose from {', '.join(BASELINES)}.")
    n, device = len(world.context), world.context.device
    seeded = [Run("ips", run.learning_rate, run.seed) for run in runs]
    parameters = Parameters(seeded, world.context.shape[1], world.expected.shape[1], device)
    orders = [torch.Generator(device).manual_seed(run.seed) for run in runs]
    chance = torch.Generator(device).manual_seed(min(run.seed for run in runs))
    mean = torch.tensor([[run.baseline == "mean"] for run in runs], device=device)
    optimal = torch.tensor([[run.baseline == "optimal"] for run in runs], device=device)
    values, variances, step = [], [], 0
    for _ in range(epochs):
        order = torch.stack([torch.randperm(n, generator=random, device=device) for random in orders])
        table = parameters.table(step, -(-n // batch_size))
        total = torch.zeros(len(runs), device=device)
        for k, entry in enumerate(table):
            rows = order[:, k * batch_size : (k + 1) * batch_size]
            gradient, variance = _batch(world, rows, parameters.weights, mean, optimal, chance)
            total += variance
            parameters.ascend(gradient, entry)
        step += len(table)
        variances.append(total / n)
        values.append((value or world)(parameters.weights))
    return Curves(
        tuple(seeded),
        torch.stack(values, 1).double().cpu().numpy(),
        np.asarray(torch.stack(variances, 1).double().cpu().numpy()),
        parameters.weights,
        0.0,
    )


def _batch(
    world: GreedyValue, rows: Tensor, weights: Tensor, mean: Tensor, optimal: Tensor, chance: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw actions and rewards for every run's batch, and return the gradient and its variance."""
    context = world.context[rows]
    probabilities = torch.softmax(torch.bmm(context, weights), -1)
    # the largest of probabilities over exponential noise is a draw from them
    action = (probabilities / torch.empty_like(probabilities).exponential_(generator=chance)).argmax(-1)
    expected = world.expected[rows].gather(-1, action[..., None])[..., 0]
    reward = torch.bernoulli(expected, generator=chance)
    return reinforce_gradient(context, probabilities, action, reward, mean, optimal)


def reinforce_gradient(
    context: Tensor, probabilities: Tensor, action: Tensor, reward: Tensor, mean: Tensor, optimal: Tensor
) -> tuple[Tensor, Tensor]:
    """mean((r − β)∇log π) for every run, (runs, context, actions), and its variance, written out for linear policies."""
    size, action = action.shape[1], action[..., None]
    target = probabilities.gather(-1, action)[..., 0]
    rest = probabilities.square().sum(-1) - target.square()
    norms = ((1 - target).square() + rest.clamp(min=0)) * context.square().sum(-1)
    total = norms.sum(1, keepdim=True)
    best = (norms * reward).sum(1, keepdim=True) / torch.where(total > 0, total, 1.0)
    baseline = torch.where(mean, reward.mean(1, keepdim=True), 0.0)
    centered = reward - torch.where(optimal, best, baseline)
    coefficient = centered[..., None] / size
    outer = (probabilities * -coefficient).scatter_add_(-1, action, coefficient)
    gradient = torch.bmm(context.mT, outer)
    second_moment = (norms * centered.square()).mean(1)
    return gradient, (second_moment - gradient.square().sum((1, 2))) / size
