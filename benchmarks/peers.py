"""The Open Bandit Pipeline on our logs. `learning.py quality` and `models.py size` run this with a Python that has the Pipeline.

    /path/to/obp/bin/python benchmarks/peers.py learners log.npz greedy.npz logistic forest
    /path/to/obp/bin/python benchmarks/peers.py model logistic 1000000 100
    /path/to/obp/bin/python benchmarks/peers.py logs

`learners` reads contexts, actions, rewards and propensities of a log and the contexts of its test set, and writes the action that each
learner would take on them, and the seconds of its fit. The truth stays with the caller. Contexts are standardized for all of them, which
helps the logistic regression and the network. `small_forest` has the settings of the Pipeline's quickstart, and the others are defaults,
with enough steps for the logistic regression to converge. `model` fits a reward model and estimates with it, and prints what that took.
`logs` draws the logs of `logs.py` that are the Pipeline's by the Pipeline itself, and compares. Nothing here imports counterpoise.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import numpy as np

FEATURES = 10


# -- learners ---------------------------------------------------------------------------------------------------------------


def learner(name: str, n_actions: int, dimension: int, seed: int) -> Any:
    """One of the Pipeline's learners."""
    from obp.policy import IPWLearner, NNPolicyLearner
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    if name == "network":
        return NNPolicyLearner(n_actions, dim_context=dimension, off_policy_objective="ipw", random_state=seed)
    classifiers = {
        "logistic": LogisticRegression(max_iter=1000, random_state=seed),
        "forest": RandomForestClassifier(random_state=seed),
        "small_forest": RandomForestClassifier(n_estimators=30, min_samples_leaf=10, random_state=seed),
    }
    return IPWLearner(n_actions, base_classifier=classifiers[name])


def run_learners(source: str, destination: str, *names: str) -> None:
    """The greedy actions of some learners."""
    with np.load(source) as file:
        log = {key: file[key] for key in file.files}
    n_actions, seed = int(log["n_actions"]), int(log["seed"])
    mean, scale = log["context"].mean(axis=0, dtype=float), log["context"].std(axis=0, dtype=float)
    scale[scale == 0] = 1.0
    context, test_context = ((log[key] - mean) / scale for key in ("context", "test_context"))
    answers = {}
    for name in names:
        peer = learner(name, n_actions, context.shape[1], seed)
        began = time.perf_counter()
        peer.fit(context=context, action=log["action"], reward=log["reward"], pscore=log["propensity"])
        answers[f"{name}_seconds"] = time.perf_counter() - began
        chosen = peer.predict_proba(test_context) if name == "network" else peer.predict(test_context)
        answers[name] = chosen[:, :, 0].argmax(axis=1)
    np.savez(destination, **answers)


# -- a reward model; `models.py size` draws the same log --------------------------------------------------------------------


def _softmax(scores: np.ndarray) -> np.ndarray:
    """In place: there may be a million rows of a thousand actions."""
    scores = scores - scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores


def clicks_of_many(rows: int, actions: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Contexts, logged actions, propensities and clicks; and the weights of a new softmax policy."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, FEATURES)).astype(np.float32)
    old, new = (random.normal(size=(FEATURES, actions)).astype(np.float32) * scale for scale in (0.2, 0.3))
    action, propensity = np.empty(rows, dtype=np.int64), np.empty(rows)
    for start in range(0, rows, 50_000):
        part = slice(start, start + 50_000)
        p = _softmax(x[part] @ old)
        action[part] = np.minimum((p.cumsum(axis=1) < random.random(len(p))[:, None]).sum(axis=1), actions - 1)
        propensity[part] = p[np.arange(len(p)), action[part]]
    scores = -2 + 0.5 * x[:, 0] + np.sin(action) * (1 + 0.5 * x[:, 1])
    reward = (random.random(rows) < 1 / (1 + np.exp(-scores))).astype(np.int64)
    return x, action, propensity, reward, new


class LinearPolicy:
    """A softmax of products of the context."""

    def __init__(self, weights: np.ndarray) -> None:
        self.weights, self.classes_ = weights, np.arange(weights.shape[1])

    def predict_proba(self, table: np.ndarray) -> np.ndarray:
        """The probabilities of all actions."""
        return _softmax(np.asarray(table, dtype=np.float32) @ self.weights)


def peak() -> float:
    """The most memory that this process held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def estimator(name: str) -> Any:
    """The scikit-learn model of a name."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    return HistGradientBoostingClassifier(random_state=0) if name == "boosted" else LogisticRegression(max_iter=1000)


def run_model(name: str, rows: int, actions: int) -> dict[str, float]:
    """The Pipeline's own way: fit, predict for all actions, estimate; the policy's table is made in the time, too."""
    from obp.ope import DoublyRobust, RegressionModel

    x, action, propensity, reward, new = clicks_of_many(rows, actions)
    before, began, cpu = peak(), time.perf_counter(), time.process_time()
    dist = LinearPolicy(new).predict_proba(x)[:, :, None].astype(np.float64)
    model = RegressionModel(n_actions=actions, base_model=estimator(name))
    # as our default: fitted on a sample of 200,000 rows
    few = np.random.default_rng(0).permutation(rows)[:200_000]
    model.fit(context=x[few], action=action[few], reward=reward[few])
    fitted = time.perf_counter() - began
    predicted = model.predict(context=x)
    value = DoublyRobust().estimate_policy_value(
        reward=reward, action=action, pscore=propensity, action_dist=dist, estimated_rewards_by_reg_model=predicted
    )
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    return {"seconds": seconds, "cpu": used, "fit": fitted, "peak_gb": peak(), "log_gb": before, "dr": value}


# -- logs -------------------------------------------------------------------------------------------------------------------


def check_logs() -> None:
    """Draw the same rows by the Open Bandit Pipeline and by us."""
    from logs import OBP, TEST_ROWS, obp_rows
    from obp.dataset import SyntheticBanditDataset, logistic_polynomial_reward_function, logistic_reward_function

    functions = {1: logistic_reward_function, 3: logistic_polynomial_reward_function}
    for name, (n, asked) in OBP.items():
        for seed in range(5):
            theirs = SyntheticBanditDataset(
                n_actions=asked["actions"], dim_context=asked["contexts"], beta=asked["beta"], random_state=seed,
                reward_type="binary", reward_function=functions[asked["degree"]],
            ).obtain_batch_bandit_feedback(n + TEST_ROWS)  # fmt: skip
            context, action, reward, logging, table = obp_rows(n + TEST_ROWS, **asked, seed=seed)
            assert np.array_equal(context, theirs["context"])
            assert np.abs(table - theirs["expected_reward"]).max() < 1e-9
            assert np.abs(logging - theirs["pi_b"][:, :, 0]).max() < 1e-9
            same = np.mean((action == theirs["action"]) & (reward == theirs["reward"]))
            print(f"{name} seed {seed}: {same:.4%} of actions and rewards are the same")
            assert same == 1


if __name__ == "__main__":
    if sys.argv[1] == "learners":
        run_learners(*sys.argv[2:])
    elif sys.argv[1] == "logs":
        check_logs()
    else:
        print(json.dumps(run_model(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
