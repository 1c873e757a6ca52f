"""What one does without a library for learning: scikit-learn's best reward model, and the action that it likes best."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from peer.data import Floats, Lesson

VERSION = ("scikit-learn", "sklearn")


def design(context: Floats, action: Floats, actions: int) -> Floats:
    """The context beside the action, one column each."""
    return np.hstack([context, np.eye(actions, dtype=np.float32)[action]])


def candidates(reward: Floats) -> list[Any]:
    """From plain to rich; defaults are the first settings of each."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    boosted = HistGradientBoostingClassifier if set(np.unique(reward)) <= {0.0, 1.0} else HistGradientBoostingRegressor
    settings = [{}, {"learning_rate": 0.05, "max_iter": 200}, {"max_leaf_nodes": 15}, {"min_samples_leaf": 100},
                {"learning_rate": 0.03, "max_iter": 400, "max_leaf_nodes": 63}, {"l2_regularization": 10.0}]  # fmt: skip
    return [boosted(random_state=0, **each) for each in settings]


def best_action(model: Any, context: Floats, actions: int) -> Floats:
    """The action with the highest predicted reward."""
    predict = (lambda table: model.predict_proba(table)[:, 1]) if hasattr(model, "predict_proba") else model.predict
    scores = [predict(design(context, np.full(len(context), k), actions)) for k in range(actions)]
    return np.argmax(scores, axis=0)


def learn(lesson: Lesson) -> Callable[[], Floats]:
    """Boosted trees with defaults; with time, the settings that predict a held-out quarter best."""
    from sklearn.metrics import mean_squared_error

    table, reward = design(lesson.context, lesson.action, lesson.actions), lesson.reward

    def call() -> Floats:
        models = candidates(reward)
        if lesson.seconds:
            until, cut = (
                time.perf_counter() + lesson.seconds,
                np.random.default_rng(lesson.seed).random(len(reward)) < 0.75,
            )
            scores: list[float] = []
            for each in models:
                if scores and time.perf_counter() > until - lesson.seconds / 4:  # the last fit takes its time, too
                    break
                each.fit(table[cut], reward[cut])
                guess = (
                    each.predict_proba(table[~cut])[:, 1]
                    if hasattr(each, "predict_proba")
                    else each.predict(table[~cut])
                )
                scores.append(mean_squared_error(reward[~cut], guess))
            models = [models[int(np.argmin(scores))]]
        return best_action(models[0].fit(table, reward), lesson.test_context, lesson.actions)

    return call
