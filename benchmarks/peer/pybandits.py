"""PyBandits."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd  # which it imports for offline evaluation, but does not require
from pybandits import offline_policy_estimator as ope
from pybandits.cmab import CmabBernoulli, CmabGaussian
from pybandits.offline_policy_evaluator import OfflinePolicyEvaluator
from pybandits.smab import SmabBernoulli

from peer import data
from peer.data import Floats, Lesson, Log

VERSION = ("pybandits", "pybandits")
Estimates = dict[str, Any]
ESTIMATORS = {
    "ips": ope.InverseProbabilityWeighting,
    "snips": ope.SelfNormalizedInverseProbabilityWeighting,
    "dr": ope.DoublyRobust,
    "sndr": ope.SelfNormalizedDoublyRobust,
}


def arrays_of(log: Log, k: int = 0) -> dict[str, Floats]:
    is_whole = np.isfinite(log.reward).all() and (log.reward == np.round(log.reward)).all()
    reward = log.reward.astype(int) if is_whole else log.reward  # it refuses rewards that are not integers
    return {"action": log.action, "reward": reward, "propensity_score": log.propensity,
            "estimated_policy": log.table(k), "expected_reward": log.model_table}  # fmt: skip


def estimates(arrays: dict[str, Floats]) -> Estimates:
    """With intervals of 10,000 bootstrap samples, its default. The reward model comes in through `expected_reward`."""
    found = {}
    for name, estimator in ESTIMATORS.items():
        found[name] = estimator(random_state=0).estimate_policy_value_with_confidence_interval(**arrays)[:3]
    return found


def evaluate(log: Log) -> Callable[[], Estimates]:
    arrays = arrays_of(log)
    return lambda: estimates(arrays)


def targets(log: Log) -> Callable[[], Estimates]:
    several = [arrays_of(log, k) for k in range(len(log.policies))]
    return lambda: {
        f"{k} {name}": value for k, arrays in enumerate(several) for name, value in estimates(arrays).items()
    }  # fmt: skip


# `OfflinePolicyEvaluator` fits reward models, but evaluates bandits of its own, not a given policy: there is no `model`


# -- learning ---------------------------------------------------------------------------------------------------------------


def fit(lesson: Lesson, rows: Floats, **options: Any) -> Any:
    """A Bayesian network for each action, without a hidden layer unless asked for."""
    is_share = lesson.reward.min() >= 0 and lesson.reward.max() <= 1
    kind = CmabBernoulli if is_share else CmabGaussian
    names = {f"a{k:05d}" for k in range(lesson.actions)}
    bandit = kind.cold_start(action_ids=names, n_features=lesson.context.shape[1], random_seed=lesson.seed, **options)
    rewards = lesson.reward[rows].astype(int) if set(np.unique(lesson.reward)) <= {0, 1} else lesson.reward[rows]
    actions = [f"a{k:05d}" for k in lesson.action[rows].tolist()]
    bandit.update(actions=actions, rewards=rewards.tolist(), context=lesson.context[rows])
    return bandit


def act(bandit: Any, context: Floats, draws: int = 50) -> Floats:
    """Greedily: the action whose draws from the posterior are best on average."""
    total: Any = 0
    for _ in range(draws):
        _, chances, _ = bandit.predict(context=context)
        total = total + np.array([[row[name] for name in sorted(row)] for row in chances])
    return total.argmax(axis=1)


def judge(lesson: Lesson, bandit: Any, rows: Floats) -> float:
    """SNIPS on rows that were kept back, by the library's estimator."""
    policy = np.eye(lesson.actions)[act(bandit, lesson.context[rows])]
    estimator = ope.SelfNormalizedInverseProbabilityWeighting()
    rewards = estimator.estimate_sample_rewards(
        action=lesson.action[rows], reward=lesson.reward[rows], propensity_score=lesson.propensity[rows],
        estimated_policy=policy,
    )  # fmt: skip
    return float(rewards.mean())


ADAM = {"update_kwargs": {"optimizer_type": "adam", "optimizer_kwargs": {"step_size": 0.01}}}
NORMAL = {"dist_type": "normal", "dist_params_init": {"mu": 0.0, "sigma": 1.0}}
LEARNERS: dict[str, dict[str, Any]] = {
    "": {},  # its wide prior outlasts the thousand steps of its default update
    "normal prior": NORMAL | ADAM,
    "normal prior, hidden layer": NORMAL | ADAM | {"hidden_dim_list": [16]},
}


def learn(lesson: Lesson) -> Callable[[], Floats]:
    everything = np.arange(len(lesson.reward))

    def call() -> Floats:
        options = LEARNERS[lesson.learner]
        if lesson.seconds:
            began = time.perf_counter()
            kept = np.random.default_rng(lesson.seed).random(len(everything)) < 0.25
            best = -np.inf
            for tried in reversed(LEARNERS.values()):
                value = judge(lesson, fit(lesson, everything[~kept], **tried), everything[kept])
                if value > best:
                    best, options = value, tried
                if time.perf_counter() - began > lesson.seconds:
                    break
        return act(fit(lesson, everything, **options), lesson.test_context)

    return call


# -- features ---------------------------------------------------------------------------------------------------------------


def few(name: str, **options: Any) -> tuple[float, float, float]:
    estimator = getattr(ope, name)(n_bootstrap_samples=100, random_state=0, **options)
    arrays = arrays_of(data.draw_log(500, 3))
    value, lower, upper, _ = estimator.estimate_policy_value_with_confidence_interval(**arrays)
    return value, lower, upper


def try_self_normalized() -> None:
    log = data.draw_log(500, 3)
    w = log.target() / log.propensity
    assert np.isclose(few("SelfNormalizedInverseProbabilityWeighting")[0], (w * log.reward).sum() / w.sum())


def try_doubly_robust() -> None:
    assert 0 < few("DoublyRobust")[0] < 1


def try_intervals() -> None:
    value, lower, upper = few("InverseProbabilityWeighting")
    assert lower < value < upper


def try_shrinkage() -> None:
    assert 0 < few("SwitchDoublyRobust", switch_threshold=1.0)[0] < 1
    assert 0 < few("DoublyRobustWithOptimisticShrinkage", shrinkage_factor=1.0)[0] < 1


def whole(folder: str | None = None) -> pd.DataFrame:
    """The first half of a log fits propensities, the second evaluates a bandit."""
    log = data.draw_log(600, 3)
    names = [f"x{k}" for k in range(5)]
    logs = pd.DataFrame(log.context, columns=names).assign(
        batch=np.repeat(np.arange(6), 100), action=[f"a{k}" for k in log.action], reward=log.reward.astype(int)
    )
    evaluator = OfflinePolicyEvaluator(
        split_prop=0.5, propensity_score_model_type="logreg", expected_reward_model_type="logreg",
        importance_weights_model_type="logreg", fast_fit=True, batch_feature="batch", action_feature="action",
        reward_feature="reward", contextual_features=names,
        ope_estimators=[ope.InverseProbabilityWeighting(n_bootstrap_samples=100)],
    )  # fmt: skip
    bandit = CmabBernoulli.cold_start(action_ids={"a0", "a1", "a2"}, n_features=5, random_seed=0)
    return evaluator.evaluate(
        bandit, logs, n_mc_experiments=3, n_cores=0, save_path=folder, visualize=folder is not None
    )


def try_propensities() -> None:
    assert 0 < whole().value.iloc[0] < 1


def try_page() -> None:
    with TemporaryDirectory() as folder:
        whole(folder)
        assert list(Path(folder).glob("*.html"))


def try_learning() -> None:
    log = data.draw_log(400, 3)
    lesson = Lesson(log.context, log.action, log.reward, log.propensity, 3, log.features)
    assert learn(lesson)().shape == (40,)


def try_online() -> None:
    bandit = SmabBernoulli.cold_start(action_ids={"a", "b"}, random_seed=0)
    bandit.update(actions=["a"] * 100 + ["b"] * 100, rewards=[1] * 100 + [0] * 100)
    assert bandit.predict(n_samples=20)[0].count("a") == 20


def try_continuous() -> None:
    """A dose between 0 and 1 is chosen with the action."""
    bandit = SmabBernoulli.cold_start(action_ids={"none"}, quantitative_action_ids={"dose"}, random_seed=0)
    doses = np.linspace(0, 1, 100)
    bandit.update(actions=["dose"] * 100, rewards=(doses > 0.5).astype(int).tolist(), quantities=doses.tolist())
    assert len(bandit.predict(n_samples=5)[0]) == 5


FEATURES = {
    "self-normalized IPS": try_self_normalized,
    "doubly robust": try_doubly_robust,
    "confidence intervals": try_intervals,
    "propensities estimated from the log": try_propensities,
    "clipped and shrunk weights": try_shrinkage,
    "continuous actions": try_continuous,
    "learning a policy from a log": try_learning,
    "acting and learning online": try_online,
    "a page to share": try_page,
}
