"""Networks as contenders: one loop of training with a rate that rises and falls, and the losses that tell them apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from counterpoise.learn.gradients.baselines import baseline_of, gradient_sums
from counterpoise.learn.gradients.objectives import beta_ips, log_smoothing
from counterpoise.learn.logs.rows import Rows
from counterpoise.learn.logs.scaling import standardize
from counterpoise.learn.policies.kinds import MLP, LinearSoftmax
from counterpoise.learn.policies.policy import Policy
from counterpoise.learn.policies.softmax import logit_norms, squared_sum
from counterpoise.learn.search.contenders import Rest

BATCH = 256
LEAST, MOST = 300, 6_000  # steps; where a log is so large that there would be more, batches grow instead
Loss = Callable[[Tensor, Rows], Tensor]


class Goal(Protocol):
    """What a network is trained for."""

    @property
    def temperatures(self) -> tuple[float, ...]:
        """How a policy trained for it may serve."""

    def loss(self, rest: Rest) -> Loss:
        """The loss of a batch, from its logits; what is common to all batches comes from the rows that are learned from."""


@dataclass(frozen=True)
class Network:
    """A softmax policy over a linear map or hidden layers, trained for a goal.

    The rate rises to `rate` over a tenth of the steps and falls to 0 (Smith & Topin 2018), so that there is no epoch to choose and no row
    to hold out. The last layer starts at 0, as the uniform policy.
    """

    name: str
    goal: Goal
    hidden: tuple[int, ...]
    epochs: int
    rate: float = 0.01
    decay: float = 0.0

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Those that fit the goal."""
        return self.goal.temperatures

    def fit(self, rest: Rest, seed: int) -> Policy:
        """The policy after all steps."""
        rows, random = rest.rows, torch.Generator().manual_seed(seed)
        policy = self._start(rest, seed)
        loss, n = self.goal.loss(rest), len(rows)
        steps = min(max(math.ceil(self.epochs * n / BATCH), LEAST), MOST)
        size = min(n, max(BATCH, math.ceil(self.epochs * n / steps)))
        optimizer = torch.optim.AdamW(policy.parameters(), lr=self.rate, weight_decay=self.decay)
        rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.rate, total_steps=steps, pct_start=0.1)
        order, at = torch.randperm(n, generator=random), 0
        for _ in range(steps):
            if at + size > n:
                order, at = torch.randperm(n, generator=random), 0
            batch = rows.take(order[at : at + size])
            at += size
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss(policy(batch.context), batch))
            optimizer.step()
            rates.step()
        return policy.eval()

    def _start(self, rest: Rest, seed: int) -> Policy:
        width = rest.rows.context.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            policy: Policy = (
                MLP(width, rest.n_actions, hidden=self.hidden, standardize=True)
                if self.hidden
                else LinearSoftmax(width, rest.n_actions, bias=True, standardize=True)
            )
        for parameter in policy.scores.parameters():
            nn.init.zeros_(parameter)
        standardize(policy, rest.columns)
        return policy


@dataclass(frozen=True)
class Softmax:
    """β-IPS with the baseline of least variance of the logits' gradient, plus κ times the mean log-probability of the logged actions.

    κ counts in units of the mean size of a reward. A little of it keeps the policy near what was logged wherever the rewards say nothing.
    """

    imitation: float = 0.0
    temperatures: tuple[float, ...] = (1.0, 0.5, 0.0)

    def loss(self, rest: Rest) -> Loss:
        size = float(rest.rows.reward.abs().mean()) or 1.0

        def loss(logits: Tensor, rows: Rows) -> Tensor:
            logs = torch.log_softmax(logits, -1)
            logged = logs.gather(1, rows.action[:, None])[:, 0]
            target = logged.exp()
            with torch.no_grad():
                norms = logit_norms(target, squared_sum(logs.exp()))
                beta = baseline_of(gradient_sums(norms, rows.reward, rows.propensity))
            value = beta_ips(target, rows.reward, rows.propensity, baseline=beta) / size
            return -value - self.imitation * logged.mean()

        return loss


@dataclass(frozen=True)
class LogSmoothing:
    """The mean of log(1 + λwr)/λ, for rewards from their lowest value up, with λ in units of one over their mean."""

    smoothing: float = 1.0
    temperatures: tuple[float, ...] = (1.0, 0.5, 0.0)

    def loss(self, rest: Rest) -> Loss:
        lowest = rest.lowest
        size = float((rest.rows.reward - lowest).mean()) or 1.0

        def loss(logits: Tensor, rows: Rows) -> Tensor:
            target = torch.log_softmax(logits, -1).gather(1, rows.action[:, None])[:, 0].exp()
            return -log_smoothing(target, (rows.reward - lowest) / size, rows.propensity, smoothing=self.smoothing)

        return loss


@dataclass(frozen=True)
class Imitation:
    """The likelihood of the logged actions: what is learned imitates the policy that wrote the log."""

    temperatures: tuple[float, ...] = (1.0,)

    def loss(self, rest: Rest) -> Loss:
        return lambda logits, rows: nn.functional.cross_entropy(logits, rows.action)


@dataclass(frozen=True)
class Direct:
    """A reward model with an output per action: the log-odds of a reward of two values, or its standardized mean.

    Rows are weighed by p to the power −½: between the rows as they are, from which the model learns most, and the rows that a uniform
    policy would have logged, where it must be right.
    """

    temperatures: tuple[float, ...] = (0.0, 0.2)

    def loss(self, rest: Rest) -> Loss:
        rewards = rest.rows.reward
        scale = float((rest.rows.propensity**-0.5).mean())
        if rest.is_binary:
            lowest, width = rest.lowest, float(rewards.max()) - rest.lowest
        else:
            lowest, width = float(rewards.mean()), float(rewards.std()) or 1.0
        score: Any = nn.functional.binary_cross_entropy_with_logits if rest.is_binary else nn.functional.mse_loss

        def loss(logits: Tensor, rows: Rows) -> Tensor:
            found = logits.gather(1, rows.action[:, None])[:, 0]
            each = score(found, (rows.reward - lowest) / width, reduction="none")
            mean: Tensor = (each * rows.propensity**-0.5).mean() / scale
            return mean

        return loss
