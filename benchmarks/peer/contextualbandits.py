"""contextualbandits: values of the arms that a policy would choose, and policies made of scikit-learn's classifiers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from contextualbandits.evaluation import evaluateDoublyRobust, evaluateNCIS, evaluateRejectionSampling
from contextualbandits.offpolicy import DoublyRobustEstimator, OffsetTree
from contextualbandits.online import EpsilonGreedy, SeparateClassifiers
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier

from peer.data import Floats, Lesson, Log, draw_actions, draw_log

VERSION = ("contextualbandits", "contextualbandits")
Estimates = dict[str, Any]


def point(value: float) -> tuple[float, float, float]:
    return float(value), math.nan, math.nan  # it has no intervals


def choices(log: Log, k: int = 0) -> Floats:
    """The library asks for one arm in each row, even of a policy that chooses at random: one is drawn."""
    return draw_actions(np.random.default_rng(1), log.policies[k], log.group)


def with_given_model(log: Log, k: int = 0) -> Callable[[], Estimates]:
    chosen = choices(log, k)
    model = np.column_stack([log.predictions[log.group, chosen], log.model_reward])
    columns = (log.context, log.action, log.reward, log.propensity)
    target, reward, p = log.target(k), log.reward, log.propensity
    return lambda: {
        "ncis": point(evaluateNCIS(target, reward, p)),
        "dr": point(evaluateDoublyRobust(chosen, *columns, reward_estimator=model.copy())),  # it writes into the array
    }


def evaluate(log: Log) -> Callable[[], Estimates]:
    # not evaluateRejectionSampling, which asks for actions logged uniformly at random
    call = with_given_model(log)
    return lambda: call() | {"says": ""}


def targets(log: Log) -> Callable[[], Estimates]:
    calls = [with_given_model(log, k) for k in range(len(log.policies))]
    return lambda: {f"{k} {name}": one for k, call in enumerate(calls) for name, one in call().items()}


def model(log: Log) -> Callable[[], Estimates]:
    chosen, columns = choices(log), (log.context, log.action, log.reward, log.propensity)

    def call() -> Estimates:
        value = evaluateDoublyRobust(chosen, *columns, reward_estimator=LogisticRegression(), nchoices=log.actions)
        return {"dr": point(value), "says": ""}

    return call


# -- learning ---------------------------------------------------------------------------------------------------------------


def separate_classifiers(lesson: Lesson, strength: float) -> Any:
    """A classifier for each arm on the rows that took it, without weights."""
    base = LogisticRegression(C=strength)
    return SeparateClassifiers(base, lesson.actions, smoothing=(1, 2), random_state=lesson.seed + 1)


def offset_tree(lesson: Lesson, strength: float) -> Any:
    return OffsetTree(LogisticRegression(C=strength), lesson.actions, random_state=lesson.seed + 1)


def doubly_robust(lesson: Lesson, strength: float) -> Any:
    # by default it takes every predicted reward for invalid, since it asks after having changed the sign, and draws random ones
    return DoublyRobustEstimator(
        Ridge(alpha=1 / strength), LogisticRegression(C=strength), lesson.actions, handle_invalid=False,
        random_state=lesson.seed + 1,
    )  # fmt: skip


LEARNERS = {"dr": doubly_robust, "offset_tree": offset_tree, "dm": separate_classifiers}


def learn(lesson: Lesson) -> Callable[[], Floats]:
    make = LEARNERS[lesson.learner or "offset_tree"]

    def fit(rows: Floats | slice, strength: float) -> Any:
        policy = make(lesson, strength)
        columns = [lesson.context[rows], lesson.action[rows], lesson.reward[rows]]
        # one for each arm takes no propensities
        policy.fit(*columns, *([] if make is separate_classifiers else [lesson.propensity[rows]]))
        return policy

    def call() -> Floats:
        strength = tune(lesson, fit) if lesson.seconds > 0 else 1.0
        return np.asarray(fit(slice(None), strength).predict(lesson.test_context))

    return call


def tune(lesson: Lesson, fit: Callable[..., Any]) -> float:
    """The strength whose policy earns most in a quarter that it has not seen, as the library's own estimator says."""
    began, order = time.perf_counter(), np.random.default_rng(lesson.seed).permutation(len(lesson.reward))
    held, kept = np.split(order, [len(order) // 4])
    columns = [each[held] for each in (lesson.context, lesson.action, lesson.reward, lesson.propensity)]
    values: dict[float, float] = {}
    for strength in (1.0, 0.1, 10.0, 0.01, 100.0, 0.001, 1000.0):
        if values and time.perf_counter() - began > lesson.seconds:
            break
        chosen = fit(kept, strength).predict(columns[0])
        base = LogisticRegression()
        values[strength] = evaluateDoublyRobust(chosen, *columns, reward_estimator=base, nchoices=lesson.actions)
    return max(values, key=values.__getitem__)


# -- features ---------------------------------------------------------------------------------------------------------------


def normalizes() -> None:
    log = draw_log(500, 4)
    assert math.isclose(evaluateNCIS(log.target(), np.ones(500), log.propensity), 1.0)


def clips() -> None:
    """Weights above `cmax` are dropped, those below `cmin` raised."""
    weights, reward = np.array([0.5, 2.0, 50.0]), np.array([1.0, 0.0, 1.0])
    assert math.isclose(evaluateNCIS(weights, reward, np.ones(3), cmin=1.0, cmax=10.0), 1 / 3)


def is_doubly_robust() -> None:
    log = draw_log(4000, 4)
    assert abs(model(log)()["dr"][0] - log.truths[0]) < 0.05


def as_lesson(log: Log, learner: str, seconds: float = 0.0) -> Lesson:
    test = log.features
    return Lesson(log.context, log.action, log.reward, log.propensity, log.actions, test, seconds, learner=learner)


def learns() -> None:
    log = draw_log(4000, 4)
    for learner in LEARNERS:
        actions = learn(as_lesson(log, learner))()
        assert len(actions) == len(log.features)
        assert set(actions) <= set(range(4))


def acts_online() -> None:
    log = draw_log(600, 4)
    base = SGDClassifier(loss="log_loss", random_state=1)
    policy = EpsilonGreedy(base, 4, batch_train=True, random_state=1)
    for rows in (slice(0, 300), slice(300, None)):
        policy.partial_fit(log.context[rows], log.action[rows], log.reward[rows])
    assert policy.predict(log.context[:5]).shape == (5,)
    value, matches = evaluateRejectionSampling(policy, log.context, log.action, log.reward, online=False)
    assert 0 <= value <= 1
    assert matches > 0


FEATURES = {
    "self-normalized IPS": normalizes,
    "doubly robust": is_doubly_robust,
    "clipped and shrunk weights": clips,
    "learning a policy from a log": learns,
    "acting and learning online": acts_online,
}
