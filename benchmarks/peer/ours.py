"""counterpoise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

import counterpoise as cp
from peer.data import File, Lesson, Lists, Log

VERSION = ("counterpoise", "counterpoise")
ESTIMATORS = ["ips", "snips", "beta_ips", "dr"]
Estimates = dict[str, Any]


def shown(result: Any, names: Mapping[str, str], targets: Sequence[str] = ("target",)) -> Estimates:
    """The numbers of a result; `names` are those of the estimators and of the estimates."""
    found: Estimates = {}
    for k, target in enumerate(targets):
        for estimator, name in names.items():
            estimate = result[target, estimator]
            numbers = estimate.value, estimate.interval.lower, estimate.interval.upper
            found[name if len(targets) == 1 else f"{k} {name}"] = numbers
    return found


def columns(log: Log) -> dict[str, Any]:
    return {"reward": log.reward, "propensity": log.propensity, "target": log.target(), "model_reward": log.model_reward,
            "model_value": log.model_value()}  # fmt: skip


def evaluate(log: Log) -> Callable[[], Estimates]:
    given = columns(log) | ({} if log.user is None else {"cluster": log.user})

    def call() -> Estimates:
        result = cp.evaluate(**given, estimator=ESTIMATORS)
        return shown(result, {name: name for name in ESTIMATORS}) | {"says": str(result.verdict())}

    return call


def mistakes(log: Log) -> Callable[[], Estimates]:
    """A frame with whatever the log has, as users have it; ids of users and lists stand there and are not mentioned."""
    given = columns(log) | {"action": log.action} | {f"x{k}": column for k, column in enumerate(log.context.T)}
    given |= {} if log.user is None else {"user_id" if log.position is None else "list_id": log.user}
    given |= {} if log.position is None else {"position": log.position}
    frame = pl.DataFrame(given)

    def call() -> Estimates:
        result = cp.evaluate(frame, reward="reward", propensity="propensity", target="target")
        return shown(result, {"ips": "ips", "beta_ips": "beta_ips"}) | {"says": str(result.verdict())}

    return call


def files(file: File) -> Callable[[], Estimates]:
    question = {name: name for name in ("reward", "propensity", "target", "model_reward", "model_value")}

    def call() -> Estimates:
        result = cp.evaluate(file.path, **question, estimator=ESTIMATORS, progress=False)
        return shown(result, {name: name for name in ESTIMATORS}) | {"says": str(result.verdict())}

    return call


def targets(log: Log) -> Callable[[], Estimates]:
    count = range(len(log.policies))
    names = [f"t{k}" for k in count]
    given = {name: log.target(k) for k, name in enumerate(names)}
    values = {name: log.model_value(k) for k, name in enumerate(names)}

    def call() -> Estimates:
        result = cp.evaluate(reward=log.reward, propensity=log.propensity, target=given, model_reward=log.model_reward,
                             model_value=values, estimator=ESTIMATORS)  # fmt: skip
        return shown(result, {name: name for name in ESTIMATORS}, names)

    return call


def model(log: Log) -> Callable[[], Estimates]:
    frame = pl.DataFrame({"reward": log.reward, "p": log.propensity, "action": log.action, "pi": log.table(),
                          **{f"x{k}": column for k, column in enumerate(log.context.T)}})  # fmt: skip
    parts = {
        "reward": "reward",
        "propensity": "p",
        "action": "action",
        "context": [f"x{k}" for k in range(log.context.shape[1])],
    }

    def call() -> Estimates:
        result = cp.evaluate(
            frame, **parts, target={"target": cp.Probabilities("pi")}, model="logistic", progress=False
        )
        return shown(result, {"dr": "dr", "optimal_dr": "optimal_dr"}) | {"says": str(result.verdict())}

    return call


def lists(log: Lists) -> Callable[[], Estimates]:
    """Three views of what a reward depends on; slots were filled independently, so that propensities mean the same in all."""
    given = {name: getattr(log, name) for name in ("slate", "position", "reward", "propensity", "target")}
    views = {
        "iips": ("item_at_position", cp.weights.Independent()),
        "rips": ("item_given_above", cp.weights.Cascade()),
        "sips": ("item_given_above", cp.weights.Standard()),
    }

    def call() -> Estimates:
        found: Estimates = {}
        for name, (of, weight) in views.items():
            result = cp.evaluate(**given, propensity_of=of, weight=weight)
            found |= shown(result, {"ips": name, "beta_ips": f"beta {name}"}) | {f"says {name}": str(result.verdict())}
        return found | {"says": found["says iips"]}

    return call


def cell(rows: int) -> Callable[[], Estimates]:
    from paper import our_cell

    return lambda: {name: (error, None, None) for name, error in our_cell(rows).items()}


def learn(lesson: Lesson) -> Callable[[], np.ndarray]:
    """`learn_policy`: with its default minute, or within the time."""
    limit = {"minutes": lesson.seconds / 60} if lesson.seconds else {}

    def call() -> np.ndarray:
        found = cp.learn_policy(
            context=lesson.context, action=lesson.action, reward=lesson.reward, propensity=lesson.propensity,
            seed=lesson.seed, progress=False, **limit,
        )  # fmt: skip
        policy = found.policy
        return np.asarray(policy.classes_)[policy.predict_proba(lesson.test_context).argmax(axis=1)]

    return call


def __getattr__(name: str) -> Any:
    """FEATURES, whose module loads whatever the features need."""
    if name == "FEATURES":
        from peer.ours_features import FEATURES

        return FEATURES
    raise AttributeError(name)
