"""A race: every contender is learned without each fold, and judged by the rows of that fold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.errors import CounterpoiseError, TrainingError
from counterpoise.estimators.constant import beta_ips
from counterpoise.learn.logs.rows import Rows
from counterpoise.learn.policies.policy import CELLS, Policy
from counterpoise.learn.runs.criterion import Score, lambdas_of, score_of
from counterpoise.learn.search.contenders import Contender, Rest
from counterpoise.learn.search.found import Standing
from counterpoise.learn.search.models import ModelPolicy, as_policy
from counterpoise.moments import Moments
from counterpoise.moments.smoothed import Smoothed
from counterpoise.readers.progress import Report

LAST = 1.5  # how many fits without a fold the last fit, on all rows, is like
Served = tuple[str, float]  # a contender, and the temperature at which it serves
Rule = Callable[[Score], float]


@dataclass(frozen=True)
class Sums:
    """What the rows of a fold say of a policy; `+` joins folds."""

    moments: Moments
    smoothed: Smoothed

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.moments + other.moments, self.smoothed + other.smoothed)

    def score(self, lowest: float) -> Score:
        """How good the policy looks by them."""
        return score_of(self.moments, self.smoothed, lowest)


@dataclass
class Race:
    """What contenders made of the rows outside each fold, and what the rows of the fold make of that."""

    rows: Rows
    folds: NDArray[np.int64]
    n_folds: int
    n_actions: int
    seed: int
    contenders: dict[str, Contender] = field(default_factory=dict)
    policies: dict[str, list[Any]] = field(default_factory=dict)  # by contender, one for every fold
    sums: dict[Served, list[Sums]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reward = self.rows.reward.double().numpy()
        self.lowest = float(reward.min())
        self.lambdas = lambdas_of(len(reward), float(np.sqrt(np.mean((reward - self.lowest) ** 2))))

    def run(self, contenders: Sequence[Contender], deadline: float | None, report: Report | None) -> None:
        """Let contenders run, one after another, as long as there is time; the first always does."""
        for place, contender in enumerate(contenders):
            if contender.name in self.contenders:
                raise TrainingError(f"two contenders are called {contender.name!r}.", do="Give each a name of its own.")
            late = place > 0 and deadline is not None and time.perf_counter() > deadline
            why = (
                "there was no time left to try it."
                if late
                else self._enter(contender, deadline if place > 0 else None, report)
            )
            if why is not None:
                self.skipped[contender.name] = why
        if not any(one.name in self.policies for one in contenders):
            raise TrainingError(f"no contender could be learned: {' '.join(self.skipped.values())}")

    def _enter(self, contender: Contender, deadline: float | None, report: Report | None) -> str | None:
        """Learn a contender without each fold, or say why not."""
        began, policies = time.perf_counter(), []
        for fold in range(self.n_folds):
            try:
                policies.append(self.learned(contender, fold))
            except CounterpoiseError as error:
                return str(error)
            took = (time.perf_counter() - began) / len(policies)
            left = self.n_folds - len(policies) + LAST
            if deadline is not None and time.perf_counter() + left * took > deadline:
                return f"it takes {took:,.1f} s for each of its fits, and there is no time for that."
            if report is not None:
                report(1)
        self.contenders[contender.name], self.policies[contender.name] = contender, policies
        for fold, policy in enumerate(policies):
            for temperature, sums in self._judged(policy, fold, contender.temperatures):
                self.sums.setdefault((contender.name, temperature), []).append(sums)
        self.seconds[contender.name] = time.perf_counter() - began
        return None

    def learned(self, contender: Contender, fold: int | None) -> Policy | ModelPolicy:
        """What a contender learns from the rows outside a fold, or from all."""
        rows = self.rows if fold is None else self.rows.take(torch.as_tensor(self.folds != fold))
        return as_policy(contender.fit(Rest(rows, self.n_actions), self.seed), self.n_actions)

    def _judged(self, policy: Any, fold: int, temperatures: Sequence[float]) -> Iterator[tuple[float, Sums]]:
        rows = self.rows.take(torch.as_tensor(self.folds == fold))
        reward, propensity = rows.reward.double().numpy(), rows.propensity.double().numpy()
        for temperature, logged in logged_probabilities(policy, rows, temperatures).items():
            weight = logged / propensity
            moments = Moments.of(weight=weight, reward=reward)
            yield temperature, Sums(moments, Smoothed.of(weight * (reward - self.lowest), self.lambdas))

    def best(self, rule: Rule, without: int | None = None) -> Served:
        """The contender and temperature with the best score, by all rows or by those outside a fold."""
        scores = {served: rule(self._total(sums, without).score(self.lowest)) for served, sums in self.sums.items()}
        return max(scores, key=scores.__getitem__)

    def bound(self, chosen: Sequence[Served]) -> float:
        """The lower bound on the value of what was chosen for every fold, by the rows of that fold.

        It holds for independent rows: there is none where rows belong to clusters, or share a context.
        """
        if self.rows.unit is not None:
            return -math.inf
        return reduce(add, (self.sums[one][fold] for fold, one in enumerate(chosen))).score(self.lowest).lower

    def served(self, chosen: Served, fold: int) -> Any:
        """The policy of a fold at a temperature."""
        name, temperature = chosen
        return at_temperature(self.policies[name][fold], temperature)

    def leaderboard(self, level: float) -> list[Standing]:
        """All contenders, each at its best temperature, the best first."""
        z = NormalDist().inv_cdf(0.5 + level / 2)
        found: dict[str, Standing] = {}
        for (name, temperature), sums in self.sums.items():
            total = self._total(sums, None)
            score, estimate = total.score(self.lowest), beta_ips(total.moments)
            half = z * estimate.stderr
            standing = Standing(
                name, temperature, score.value, score.value - half, score.value + half, score.effective_sample_size,
                score.is_measured, score.criterion, self.seconds[name],
            )  # fmt: skip
            if name not in found or standing.score > found[name].score:
                found[name] = standing
        return sorted(found.values(), key=lambda one: -one.score)

    @staticmethod
    def _total(sums: list[Sums], without: int | None) -> Sums:
        return reduce(add, (one for fold, one in enumerate(sums) if fold != without))


def by_score(score: Score) -> float:
    """The value less its error where rows measure it, and else the lower bound."""
    return score.criterion


def by_bound(score: Score) -> float:
    """The lower bound alone."""
    return score.lower


def at_temperature(policy: Any, temperature: float) -> Any:
    """The same policy, served at another temperature; what was learned is shared."""
    found = copy(policy)
    found.temperature = temperature
    return found


@torch.no_grad()
def logged_probabilities(
    policy: Policy | ModelPolicy, rows: Rows, temperatures: Sequence[float]
) -> dict[float, NDArray[np.float64]]:
    """The probability of every row's action at several temperatures, a few rows at a time."""
    found = {temperature: np.empty(len(rows)) for temperature in temperatures}
    size = max(1, CELLS // policy.n_actions)
    for at in range(0, len(rows), size):
        part = slice(at, at + size)
        context, action = rows.context[part], rows.action[part].numpy()
        scores = policy(context).numpy() if isinstance(policy, Policy) else policy.scores(context.numpy())
        scores = np.asarray(scores, dtype=np.float64)
        places = np.arange(len(action))
        for temperature, probability in found.items():
            if temperature == 0:
                probability[part] = scores.argmax(axis=1) == action
            else:
                share = np.exp((scores - scores.max(axis=1, keepdims=True)) / temperature)
                probability[part] = share[places, action] / share.sum(axis=1)
    return found
