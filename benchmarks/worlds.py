"""Worlds with a known truth, which several benchmarks draw logs from: what is logged, what targets do, and what is earned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

Floats = np.ndarray
CONTEXTS = 40
AMOUNT = math.exp(1.5**2 / 2)  # the mean of a lognormal amount


# -- logged propensities, targets, and each row's effect on the reward ------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Forty contexts: what is logged, what the targets do, and the effect of every action."""

    logging: Floats
    targets: tuple[Floats, ...]
    effects: Floats

    def draw(self, random: np.random.Generator, n: int) -> tuple[dict[str, Floats], Floats]:
        context = random.integers(CONTEXTS, size=n)
        action = (random.random(n)[:, None] > self.logging.cumsum(axis=1)[context]).sum(axis=1)
        at = context, action.clip(max=self.logging.shape[1] - 1)
        columns = {f"t{k}": target[at] for k, target in enumerate(self.targets)}
        return {"p": self.logging[at], **columns}, self.effects[at]

    def expect(self, mean: Callable[[Floats], Floats]) -> list[float]:
        """The value of the logging policy, then of each target."""
        return [float((policy * mean(self.effects)).sum(axis=1).mean()) for policy in (self.logging, *self.targets)]


@dataclass(frozen=True)
class Lognormal:
    """Lognormal weights, correlated with the effect on the reward."""

    sigma: float
    correlation: float

    def draw(self, random: np.random.Generator, n: int) -> tuple[dict[str, Floats], Floats]:
        z, other = random.normal(size=(2, n))
        weight = np.exp(self.sigma * z - self.sigma**2 / 2)
        p = np.full(n, 1e-6)
        return {"p": p, "t0": p * weight}, self.correlation * z + math.sqrt(1 - self.correlation**2) * other

    def expect(self, mean: Callable[[Floats], Floats]) -> list[float]:
        z = np.linspace(-9, 9, 20_001)
        density = np.exp(-z * z / 2)
        density /= density.sum()
        return [float(mean(z) @ density), float(mean(z + self.correlation * self.sigma) @ density)]


@dataclass(frozen=True)
class Pareto(Lognormal):
    """Pareto weights with a variance and without a fourth moment, whatever the reward does."""

    sigma: float = 3.0
    correlation: float = 0.0

    def draw(self, random: np.random.Generator, n: int) -> tuple[dict[str, Floats], Floats]:
        weight = random.random(n) ** (-1 / self.sigma) * (self.sigma - 1) / self.sigma
        p = np.full(n, 1e-6)
        return {"p": p, "t0": np.minimum(p * weight, 1.0)}, random.normal(size=n)


def softmax(scores: Floats) -> Floats:
    """Probabilities over the last axis."""
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def draw_actions(random: np.random.Generator, policy: Floats) -> Floats:
    """An action for every row of a table of probabilities."""
    return (random.random((len(policy), 1)) > policy.cumsum(axis=1)).sum(axis=1).clip(max=policy.shape[1] - 1)


def greedy(effects: Floats, explore: float = 0.1) -> Floats:
    """The best action of every context, and sometimes any."""
    actions = effects.shape[1]
    return explore / actions + (1 - explore) * np.eye(actions)[effects.argmax(axis=1)]


def fixed(*probabilities: float) -> Floats:
    return np.tile(np.array(probabilities), (CONTEXTS, 1))


@cache
def worlds() -> dict[str, Table | Lognormal]:
    """Fourteen worlds of the grid that this one follows, and five of our own."""
    random = np.random.default_rng(2026)

    def effects(actions: int) -> Floats:
        return random.normal(size=(CONTEXTS, actions))

    found: dict[str, Table | Lognormal] = {}
    for actions in (2, 10, 100):
        e, uniform = effects(actions), np.full((CONTEXTS, actions), 1 / actions)
        found[f"{actions} actions, softmax"] = Table(uniform, (softmax(e),), e)
        found[f"{actions} actions, greedy"] = Table(uniform, (greedy(e),), e)
    found["new arm"] = Table(fixed(0.91, *[0.01] * 9), (fixed(0.7, 0.3, *[0.0] * 8),), effects(10))
    for sigma, correlation in ((0.5, 0.6), (1.0, 0.6), (1.0, -0.6), (1.5, 0.0), (1.5, 0.6), (2.0, -0.6), (2.5, 0.6)):
        found[f"lognormal {sigma}, {correlation:+.1f}"] = Lognormal(sigma, correlation)
    e = effects(10)
    found["own: greedy logging"] = Table(greedy(e, 0.2), (greedy(0.5 * e + effects(10)),), e)
    found["own: near on-policy"] = Table(softmax(0.5 * e), (softmax(0.8 * e),), e)
    found["own: deterministic"] = Table(softmax(e), (greedy(e, 0.0),), e)
    found["own: Pareto 3"] = Pareto()
    found["own: rare treatment"] = Table(fixed(0.98, 0.02), (fixed(0.9, 0.1),), effects(2))
    return found


@cache
def pairs() -> dict[str, Table]:
    """Two policies each: some that differ in one context of forty, some that differ everywhere."""
    random = np.random.default_rng(2027)
    found = {}
    for actions in (2, 10, 100):
        e, uniform = random.normal(size=(CONTEXTS, actions)), np.full((CONTEXTS, actions), 1 / actions)
        other = e.copy()
        other[0] = np.roll(other[0], 1)
        found[f"{actions} actions, differ on 2.5 %"] = Table(uniform, (greedy(other), greedy(e)), e)
        rival = greedy(random.normal(size=(CONTEXTS, actions)))
        found[f"{actions} actions, softmax and greedy"] = Table(uniform, (softmax(e), rival), e)
    e = random.normal(size=(CONTEXTS, 10))
    found["near each other"] = Table(softmax(0.5 * e), (softmax(0.9 * e), softmax(0.6 * e)), e)
    return found


# -- rewards ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clicks:
    """0 or 1, at a rate whose logit moves by half the effect."""

    rate: float

    def mean(self, effect: Floats) -> Floats:
        return 1 / (1 + np.exp(-math.log(self.rate / (1 - self.rate)) - 0.5 * effect))

    def draw(self, random: np.random.Generator, effect: Floats) -> Floats:
        return (random.random(effect.shape) < self.mean(effect)).astype(float)


class Revenue(Clicks):
    """Three in a hundred buy, for lognormal amounts."""

    def mean(self, effect: Floats) -> Floats:
        return AMOUNT * super().mean(effect)

    def draw(self, random: np.random.Generator, effect: Floats) -> Floats:
        buys = random.random(effect.shape) < super().mean(effect)
        return buys * np.exp(1.5 * random.normal(size=effect.shape))


class Score:
    """Normal around 5."""

    def mean(self, effect: Floats) -> Floats:
        return 5 + 0.5 * effect

    def draw(self, random: np.random.Generator, effect: Floats) -> Floats:
        return self.mean(effect) + random.normal(size=effect.shape)


class Spend(Clicks):
    """15 in a hundred buy, for lognormal amounts with σ = 1."""

    def mean(self, effect: Floats) -> Floats:
        return math.exp(0.5) * super().mean(effect)

    def draw(self, random: np.random.Generator, effect: Floats) -> Floats:
        buys = random.random(effect.shape) < super().mean(effect)
        return buys * np.exp(random.normal(size=effect.shape))


REWARDS: dict[str, Clicks | Score] = {
    "clicks 0.002": Clicks(0.002),
    "clicks 0.02": Clicks(0.02),
    "clicks 0.3": Clicks(0.3),
    "clicks 0.9": Clicks(0.9),
    "revenue": Revenue(0.03),
    "normal 5": Score(),
}
