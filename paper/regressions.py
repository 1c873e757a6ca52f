"""The two logistic regressions of the paper's recipe: the target policy and the reward model.

Both minimize the objective of scikit-learn's ``LogisticRegression()`` with its solver (L-BFGS from 0, at most 100
iterations) and agree with it up to rounding. Written out here, they go through the rows in blocks that fit in the cache and
know that actions are one-hot, whereas scikit-learn allocates several n × n_actions matrices per iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from counterpoise.environments import Feedback
from counterpoise.errors import OptionError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

BLOCK = 1024  # rows at a time: 100 actions × 1,024 rows × 8 bytes stay in the second-level cache
ITERATIONS = 100
TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class SoftmaxPolicy:
    """A multinomial logistic regression from contexts to the actions it saw, taken greedily."""

    actions: Integers
    coefficients: Floats  # one row per action: a coefficient per context dimension, then the intercept
    iterations: int

    def __call__(self, context: Floats) -> Integers:
        """The most probable action, per row."""
        actions = np.empty(len(context), dtype=np.int64)
        for start in range(0, len(context), BLOCK):
            rows = slice(start, start + BLOCK)
            score = self.coefficients[:, :-1] @ context[rows].T + self.coefficients[:, -1:]
            actions[rows] = self.actions[score.argmax(axis=0)]
        return actions


def fit_target(log: Feedback) -> SoftmaxPolicy:
    """The paper's target policy: context → action, each row weighted by reward / propensity."""
    weight = log.reward / log.propensity
    actions, label = np.unique(log.action, return_inverse=True)
    kept = np.flatnonzero(weight)  # a row of weight 0 adds nothing to the objective but its action to the list
    if len(actions) < 2 or not kept.size:
        raise OptionError(
            f"a training batch of {len(log):,} rows logged {len(actions)} action{'s' * (len(actions) != 1)} and "
            f"{kept.size:,} rewards other than 0: no target policy can be learnt from it. Raise n or take another seed."
        )
    weight = weight[kept] / weight[kept].sum()
    label = label[kept]
    inputs = np.vstack([log.context[kept].T, np.ones(kept.size)])
    penalty = 1.0 / (log.reward / log.propensity).sum()
    if len(actions) == 2:  # then scikit-learn fits one score, not two
        solved, iterations = _minimize(_binary(inputs, label.astype(float), weight, penalty), len(inputs))
        return SoftmaxPolicy(actions, np.stack([-solved, solved]), iterations)
    objective = _multinomial(inputs, label, weight, penalty, len(actions))
    solved, iterations = _minimize(objective, len(actions) * len(inputs))
    return SoftmaxPolicy(actions, solved.reshape((len(actions), -1), order="F"), iterations)


@dataclass(frozen=True, eq=False)
class RewardModel:
    """A logistic regression of the reward on the context and the one-hot action."""

    slope: Floats
    of_action: Floats
    iterations: int

    def __call__(self, context: Floats, action: Integers) -> Floats:
        """The predicted reward of one action per row."""
        return np.asarray(expit(context @ self.slope + self.of_action[action]))

    def all_actions(self, context: Floats) -> Floats:
        """The predicted reward of every action, one column each."""
        return np.asarray(expit((context @ self.slope)[:, None] + self.of_action))


def fit_reward_model(log: Feedback) -> RewardModel:
    """The paper's reward model for DM and DR."""
    if log.reward.min() == log.reward.max():
        raise OptionError(
            f"a training batch of {len(log):,} rows has no reward other than {log.reward[0]:g}: no reward model can be "
            "learnt from it. Raise n, or take another seed."
        )
    return fit_rewards(log.context, log.action, log.reward, log.n_actions)


def fit_rewards(context: Floats, action: Integers, reward: Floats, n_actions: int) -> RewardModel:
    """A logistic regression of rewards of 0 and 1 on [context, one-hot action]."""
    n, d = context.shape

    def objective(flat: Floats) -> tuple[float, Floats]:
        slope, of_action = flat[:d], flat[d:-1]
        loss, residual = _log_loss(context @ slope + (of_action + flat[-1])[action], reward)
        gradient = np.empty_like(flat)
        gradient[:d] = residual @ context
        gradient[d:-1] = np.bincount(action, residual, minlength=n_actions)
        gradient[-1] = gradient[d:-1].sum()
        gradient /= n
        gradient[:-1] += flat[:-1] / n
        return float(loss.mean()) + 0.5 * float(flat[:-1] @ flat[:-1]) / n, gradient

    solved, iterations = _minimize(objective, d + n_actions + 1)
    return RewardModel(solved[:d], solved[d:-1] + solved[-1], iterations)


Objective = Callable[[Floats], tuple[float, Floats]]


def _minimize(objective: Objective, size: int) -> tuple[Floats, int]:
    """L-BFGS as scikit-learn calls it; if it stops before it has converged, so did the published runs."""
    solution = minimize(
        objective,
        np.zeros(size),
        method="L-BFGS-B",
        jac=True,
        options={"maxiter": ITERATIONS, "maxls": 50, "gtol": TOLERANCE, "ftol": 64 * float(np.finfo(float).eps)},
    )
    return np.asarray(solution.x, dtype=np.float64), int(solution.nit)


def _multinomial(inputs: Floats, label: Integers, weight: Floats, penalty: float, k: int) -> Objective:
    """The weighted cross-entropy of a softmax over k actions; `inputs` has one row per dimension, and the last is all ones."""
    n = inputs.shape[1]

    def objective(flat: Floats) -> tuple[float, Floats]:
        w = flat.reshape((k, -1), order="F")
        gradient, total = np.zeros(w.shape), 0.0
        for start in range(0, n, BLOCK):
            rows = slice(start, min(start + BLOCK, n))
            x, y, share = inputs[:, rows], label[rows], weight[rows]
            score, each = w @ x, np.arange(len(y))
            score -= score.max(axis=0)
            chosen = score[y, each]
            np.exp(score, out=score)
            mass = score.sum(axis=0)
            total += float(share @ (np.log(mass) - chosen))
            score *= share / mass
            score[y, each] -= share
            gradient += score @ x.T
        gradient[:, :-1] += penalty * w[:, :-1]
        return total + 0.5 * penalty * float(np.square(w[:, :-1]).sum()), gradient.ravel(order="F")

    return objective


def _binary(inputs: Floats, label: Floats, weight: Floats, penalty: float) -> Objective:
    """The weighted log-loss of one score."""

    def objective(flat: Floats) -> tuple[float, Floats]:
        loss, residual = _log_loss(flat @ inputs, label)
        gradient = inputs @ (weight * residual)
        gradient[:-1] += penalty * flat[:-1]
        return float(weight @ loss) + 0.5 * penalty * float(flat[:-1] @ flat[:-1]), gradient

    return objective


def _log_loss(score: Floats, label: Floats) -> tuple[Floats, Floats]:
    """log(1 + exp(score)) − label·score, and its derivative."""
    e = np.exp(-np.abs(score))
    loss = np.maximum(score, 0.0) + np.log1p(e) - label * score
    return loss, np.where(score >= 0, 1.0, e) / (1.0 + e) - label
