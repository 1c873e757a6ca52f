"""Networks as contenders: one loop of training with a rate that rises and falls, and the losses that tell them apart."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

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
WARM, TIMED = 2, 3  # steps that tell how long one takes
RISE = 0.1  # of the steps, in which the rate rises
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
    to hold out. The last layer starts at 0, as the uniform policy. Where time is short there are fewer steps, and should they take longer
    than expected, the rate falls with the time that is left.
    """

    name: str
    goal: Goal
    hidden: tuple[int, ...]
    epochs: int
    rate: float = 0.01
    decay: float = 0.0
    keeps_time: ClassVar[bool] = True

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Those that fit the goal."""
        return self.goal.temperatures

    def fit(self, rest: Rest, seed: int) -> Policy:
        """The policy after all steps."""
        began, rows, random = time.perf_counter(), rest.rows, torch.Generator().manual_seed(seed)
        policy = self._start(rest, seed)
        loss, n = self.goal.loss(rest), len(rows)
        wanted = max(self.epochs * n, LEAST * BATCH)  # rows, each as often as it is visited
        visits, end = wanted, math.inf
        if rest.seconds is not None:
            end = began + rest.seconds
            pace = self._pace(policy, loss, rows)
            visits = min(wanted, max(BATCH, int((end - time.perf_counter()) / pace)))
        steps = min(max(math.ceil(visits / BATCH), LEAST), MOST)
        size = min(n, max(BATCH, math.ceil(visits / steps)))
        optimizer = self._optimizer(policy)
        order, at, place, made = torch.randperm(n, generator=random), 0, 0.0, 0
        start = time.perf_counter()
        while place < steps:
            self._set_rate(optimizer, place, steps)
            if at + size > n:
                order, at = torch.randperm(n, generator=random), 0
            _step(policy, loss, rows.take(order[at : at + size]), optimizer)
            at += size
            made += 1
            place = max(place + 1, 0.0 if end == math.inf else steps * (time.perf_counter() - start) / (end - start))
        if made * size < 0.95 * wanted:
            rest.cuts.append(f"{made * size / wanted:.1%} of its training")
        return policy.eval()

    def _optimizer(self, policy: Policy) -> torch.optim.Optimizer:
        return torch.optim.AdamW(policy.parameters(), lr=self.rate, weight_decay=self.decay)

    def _pace(self, policy: Policy, loss: Loss, rows: Rows) -> float:
        """The seconds that a row takes in a step."""
        twin, batch, began = deepcopy(policy), rows.take(slice(0, BATCH)), 0.0
        optimizer = self._optimizer(twin)
        for step in range(WARM + TIMED):
            if step == WARM:
                began = time.perf_counter()
            _step(twin, loss, batch, optimizer)
        return max(time.perf_counter() - began, 1e-9) / TIMED / len(batch)

    def _set_rate(self, optimizer: torch.optim.Optimizer, place: float, steps: int) -> None:
        """The rate and the momentum at a place between the first step and the last, as those of torch's OneCycleLR."""
        top = max(RISE * steps - 1, 1e-9)
        if place <= top:
            rate, momentum = _cosine(self.rate / 25, self.rate, place / top), _cosine(0.95, 0.85, place / top)
        else:
            share = min((place - top) / (steps - 1 - top), 1.0)
            rate, momentum = _cosine(self.rate, self.rate / 25e4, share), _cosine(0.85, 0.95, share)
        for group in optimizer.param_groups:
            group["lr"], group["betas"] = rate, (momentum, group["betas"][1])

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


def _step(policy: Policy, loss: Loss, batch: Rows, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss(policy(batch.context), batch))
    optimizer.step()


def _cosine(first: float, last: float, share: float) -> float:
    """A value on the way from the first to the last, along half a cosine."""
    return last + (first - last) / 2 * (1 + math.cos(math.pi * share))


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
