"""The Open Bandit Pipeline; and what `learning.py quality` and `models.py size` ask of it, with a Python that has the Pipeline.

    cd benchmarks
    /path/to/obp/bin/python -m peer.obp learners log.npz greedy.npz logistic forest
    /path/to/obp/bin/python -m peer.obp model logistic 1000000 100
    /path/to/obp/bin/python -m peer.obp logs

`learners` reads contexts, actions, rewards and propensities of a log and the contexts of its test set, and writes the action that each
learner would take on them, and the seconds of its fit. The truth stays with the caller. Contexts are standardized for all of them, which
helps the logistic regression and the network. `small_forest` has the settings of the Pipeline's quickstart, and the others are defaults,
with enough steps for the logistic regression to converge. `model` fits a reward model and estimates with it, and prints what that took.
`logs` draws the logs of `logs.py` that are the Pipeline's by the Pipeline itself, and compares. The Pipeline is imported where it is used,
since `models.py` draws its logs by this module, with a Python that does not have it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from peer import data
from peer.data import File, Floats, Lesson, Lists, Log

VERSION = ("obp", "obp")
DIMENSION = 10
Estimates = dict[str, Any]


# -- estimates --------------------------------------------------------------------------------------------------------------


def feedback(log: Log) -> dict[str, Any]:
    """A log in the Pipeline's form. It has no place for users, whose rows go together."""
    return {"n_rounds": log.rows, "n_actions": log.actions, "context": log.context, "action": log.action,
            "position": None, "reward": log.reward, "pscore": log.propensity}  # fmt: skip


def estimate(rows: dict[str, Any], estimators: list[Any], policy: Floats, rewards: Floats | None = None) -> Estimates:
    """Values and bootstrap intervals, as its quickstart has them; 100 resamples are its default."""
    from obp.ope import OffPolicyEvaluation

    task = OffPolicyEvaluation(bandit_feedback=rows, ope_estimators=estimators)
    values = task.estimate_policy_values(policy, estimated_rewards_by_reg_model=rewards)
    return shown(values, task.estimate_intervals(policy, estimated_rewards_by_reg_model=rewards, random_state=0))


def shown(values: dict[str, float], intervals: dict[str, dict[str, float]]) -> Estimates:
    bounds = {name: (one["95.0% CI (lower)"], one["95.0% CI (upper)"]) for name, one in intervals.items()}
    return {name: (value, *bounds[name]) for name, value in values.items()}


def usual() -> list[Any]:
    from obp.ope import DoublyRobust, InverseProbabilityWeighting, SelfNormalizedInverseProbabilityWeighting

    return [
        InverseProbabilityWeighting(estimator_name="ips"),
        SelfNormalizedInverseProbabilityWeighting(estimator_name="snips"),
        DoublyRobust(estimator_name="dr"),
    ]


def evaluate(log: Log) -> Callable[[], Estimates]:
    rows, estimators, policy, rewards = feedback(log), usual(), log.table()[:, :, None], log.model_table[:, :, None]
    return lambda: estimate(rows, estimators, policy, rewards) | {"says": ""}


def targets(log: Log) -> Callable[[], Estimates]:
    rows, estimators, rewards = feedback(log), usual(), log.model_table[:, :, None]
    policies = [log.table(k)[:, :, None] for k in range(len(log.policies))]

    def call() -> Estimates:
        found = {}
        for k, policy in enumerate(policies):
            found |= {f"{k} {name}": one for name, one in estimate(rows, estimators, policy, rewards).items()}
        return found

    return call


def files(file: File) -> Callable[[], Estimates]:
    """It reads no files: pandas does. It needs the target's probability and the model's prediction for every action."""
    import pandas as pd

    policy, predictions, estimators = file.log.policies[0], file.log.predictions, usual()

    def call() -> Estimates:
        table = pd.read_parquet(file.path, columns=["group", "action", "reward", "propensity"])
        group, action, reward, p = (table[name].to_numpy() for name in table)
        rows = {"context": None, "action": action, "position": None, "reward": reward, "pscore": p}
        return estimate(rows, estimators, policy[group][:, :, None], predictions[group][:, :, None]) | {"says": ""}

    return call


def model(log: Log) -> Callable[[], Estimates]:
    """Cross-fitted in three folds, as in its quickstart."""
    from obp.ope import DoublyRobust, RegressionModel
    from sklearn.linear_model import LogisticRegression

    rows, policy = feedback(log), log.table()[:, :, None]
    columns = {name: rows[name] for name in ("context", "action", "reward")}

    def call() -> Estimates:
        fit = RegressionModel(n_actions=log.actions, base_model=LogisticRegression(max_iter=1000, random_state=0))
        rewards = fit.fit_predict(**columns, n_folds=3, random_state=0)
        return estimate(rows, [DoublyRobust(estimator_name="dr")], policy, rewards)

    return call


def lists(log: Lists) -> Callable[[], Estimates]:
    from obp.ope import SlateIndependentIPS, SlateOffPolicyEvaluation, SlateRewardInteractionIPS, SlateStandardIPS

    def probabilities(name: str, prefix: str) -> dict[str, Floats]:
        """Of the whole list, of the item at its position, and of the list down to there."""
        down = log.matrix(name).cumprod(axis=1)
        whole = np.repeat(down[:, -1], log.length)
        names = ("pscore", "pscore_item_position", "pscore_cascade")
        return dict(zip((prefix + each for each in names), (whole, getattr(log, name), down.ravel()), strict=True))

    rows = {"slate_id": log.slate, "context": None, "action": log.action, "position": log.position}
    rows |= {"reward": log.reward} | probabilities("propensity", "")
    target = probabilities("target", "evaluation_policy_")
    kinds = (SlateStandardIPS, SlateIndependentIPS, SlateRewardInteractionIPS)
    estimators = [kind(len_list=log.length) for kind in kinds]

    def call() -> Estimates:
        task = SlateOffPolicyEvaluation(bandit_feedback=rows, ope_estimators=estimators)
        return shown(task.estimate_policy_values(**target), task.estimate_intervals(**target, random_state=0))

    return call


# -- learning ---------------------------------------------------------------------------------------------------------------


SETTINGS: dict[str, list[dict[str, Any]]] = {
    "logistic": [{"C": c} for c in (1.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 3.0, 10.0, 30.0, 100.0)],
    "forest": [
        {"n_estimators": n, "min_samples_leaf": leaf} for n, leaf in product((100, 30, 300), (1, 3, 10, 30, 100))
    ],
    "network": [
        {"hidden_layer_size": sizes, "learning_rate_init": rate, "max_iter": epochs}
        for sizes, rate, epochs in product(((100,), (30,), (300,), (100, 100)), (1e-3, 1e-4, 1e-2), (50, 200))
    ],
}
"""What is tried of each learner, its default among it; the first is what remains if the time allows none."""


def learn(lesson: Lesson) -> Callable[[], Floats]:
    context, test_context = standardized(lesson.context, lesson.test_context)
    name, actions, seed = lesson.learner.removeprefix("ipw_"), int(lesson.actions), int(lesson.seed)
    rows = {"context": context, "action": lesson.action, "reward": lesson.reward, "pscore": lesson.propensity}

    def fit(rows: dict[str, Floats], **options: Any) -> Any:
        policy = learner(name, actions, context.shape[1], seed, **options)
        policy.fit(**rows)
        return policy

    def call() -> Floats:
        options = tune(fit, SETTINGS[name], rows, actions, seed, lesson.seconds) if lesson.seconds > 0 else {}
        return fit(rows, **options).predict(test_context)[:, :, 0].argmax(axis=1)

    return call


def standardized(context: Floats, test_context: Floats) -> tuple[Floats, ...]:
    mean, scale = context.mean(axis=0, dtype=float), context.std(axis=0, dtype=float)
    scale[scale == 0] = 1.0
    return tuple((each - mean) / scale for each in (context, test_context))


def tune(
    fit: Callable[..., Any],
    settings: list[dict[str, Any]],
    rows: dict[str, Floats],
    actions: int,
    seed: int,
    seconds: float,
) -> dict[str, Any]:
    """The settings whose policy is worth most on a held-out quarter, by the Pipeline's DR, of those that the time allows."""
    from obp.ope import DoublyRobust, RegressionModel
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    began, random = time.perf_counter(), np.random.default_rng(seed)
    order, quarter = random.permutation(len(rows["reward"])), len(rows["reward"]) // 4
    held, rest = ({key: column[part] for key, column in rows.items()} for part in (order[:quarter], order[quarter:]))
    has_clicks = np.isin(rows["reward"], (0, 1)).all()
    kind = HistGradientBoostingClassifier if has_clicks else HistGradientBoostingRegressor
    reward_model = RegressionModel(n_actions=actions, base_model=kind(random_state=seed))
    reward_model.fit(**rest)
    context = held.pop("context")
    predicted = reward_model.predict(context)
    steps = [each.get("max_iter", each.get("n_estimators", 1)) for each in settings]
    best, value, pace = 0, -np.inf, 0.0
    for k in (0, *random.permutation(np.arange(1, len(settings)))):
        start = time.perf_counter()
        # this fit takes as long as its steps did so far, and the last one has a third more rows
        if start - began + pace * (steps[k] + 4 / 3 * max(steps[k], steps[best])) > seconds:
            continue
        policy = fit(rest, **settings[k])
        pace = max(pace, (time.perf_counter() - start) / steps[k])
        worth = DoublyRobust().estimate_policy_value(
            **held, action_dist=policy.predict(context), estimated_rewards_by_reg_model=predicted
        )
        best, value = (k, worth) if worth > value else (best, value)
    return settings[best]


# -- features ---------------------------------------------------------------------------------------------------------------


def are_near(found: Estimates, truth: float, reach: float = 0.1) -> bool:
    """Whether each value is near the truth, and in its interval."""
    return all(lower <= value <= upper and abs(value - truth) < reach for value, lower, upper in found.values())


def try_estimates(name: str) -> None:
    log = data.draw_log(2000, 5)
    found = evaluate(log)()
    assert are_near({name: found[name]}, log.truths[0])


def try_lists() -> None:
    log = data.draw_lists(2000, 4)
    assert are_near(lists(log)(), log.truth, 0.4)


def clip_weights() -> None:
    from obp.ope import (
        DoublyRobustWithShrinkageTuning,
        InverseProbabilityWeighting,
        SubGaussianDoublyRobust,
        SwitchDoublyRobust,
    )

    log = data.draw_log(2000, 5)
    estimators = [InverseProbabilityWeighting(lambda_=5.0), SwitchDoublyRobust(lambda_=5.0), SubGaussianDoublyRobust(),
                  DoublyRobustWithShrinkageTuning(lambdas=[1.0, 10.0, 100.0])]  # fmt: skip
    found = estimate(feedback(log), estimators, log.table()[:, :, None], log.model_table[:, :, None])
    assert len(found) == 4
    assert are_near(found, log.truths[0])


def estimate_propensities() -> None:
    from obp.ope import InverseProbabilityWeighting, OffPolicyEvaluation, PropensityScoreEstimator
    from sklearn.linear_model import LogisticRegression

    log = data.draw_log(2000, 5)
    fit = PropensityScoreEstimator(n_actions=5, base_model=LogisticRegression(max_iter=1000))
    p = fit.fit_predict(context=log.context, action=log.action, n_folds=2, random_state=0)
    estimators = [InverseProbabilityWeighting(use_estimated_pscore=True)]
    task = OffPolicyEvaluation(bandit_feedback=feedback(log) | {"pscore": None}, ope_estimators=estimators)
    assert abs(task.estimate_policy_values(log.table()[:, :, None], estimated_pscore=p)["ipw"] - log.truths[0]) < 0.1


def join_loggers() -> None:
    from obp.dataset import SyntheticMultiLoggersBanditDataset, logistic_reward_function
    from obp.ope import (
        MultiLoggersBalancedInverseProbabilityWeighting,
        MultiLoggersOffPolicyEvaluation,
        MultiLoggersWeightedInverseProbabilityWeighting,
    )

    world = SyntheticMultiLoggersBanditDataset(
        n_actions=5, dim_context=3, reward_function=logistic_reward_function, betas=[-2, 2], rhos=[1, 1], random_state=0
    )
    rows = world.obtain_batch_bandit_feedback(2000)
    policy = data.softmax(3 * rows["expected_reward"])[:, :, None]
    truth = world.calc_ground_truth_policy_value(rows["expected_reward"], policy)
    both = [MultiLoggersBalancedInverseProbabilityWeighting(), MultiLoggersWeightedInverseProbabilityWeighting()]
    task = MultiLoggersOffPolicyEvaluation(bandit_feedback=rows, ope_estimators=both)
    values = task.estimate_policy_values(policy)
    assert abs(values["multi_bal_ipw"] - truth) < 0.1
    # the interval of the balanced one raises a TypeError in 0.5.7
    task = MultiLoggersOffPolicyEvaluation(bandit_feedback=rows, ope_estimators=both[1:])
    assert are_near(shown(task.estimate_policy_values(policy), task.estimate_intervals(policy, random_state=0)), truth)


def use_action_features() -> None:
    from obp.ope import MarginalizedInverseProbabilityWeighting, OffPolicyEvaluation

    log = data.draw_log(2000, 10)
    estimators = [MarginalizedInverseProbabilityWeighting(n_actions=10)]
    task = OffPolicyEvaluation(bandit_feedback=feedback(log), ope_estimators=estimators)
    kinds = np.stack([log.action % 2, log.action % 3, log.action % 5], axis=1)
    columns = {
        "action_dist": log.table()[:, :, None],
        "pi_b": log.logging[log.group][:, :, None],
        "action_embed": kinds,
    }
    found = shown(task.estimate_policy_values(**columns), task.estimate_intervals(**columns, random_state=0))
    assert are_near(found, log.truths[0])


def weigh_amounts() -> None:
    from obp.ope import ContinuousOffPolicyEvaluation, KernelizedSelfNormalizedInverseProbabilityWeighting

    random = np.random.default_rng(0)
    amount = random.normal(size=5000)
    density = np.exp(-(amount**2) / 2) / np.sqrt(2 * np.pi)
    rows = {"action": amount, "reward": amount + 0.1 * random.normal(size=5000), "pscore": density}
    estimators = [KernelizedSelfNormalizedInverseProbabilityWeighting(kernel="gaussian", bandwidth=0.1)]
    task = ContinuousOffPolicyEvaluation(bandit_feedback=rows, ope_estimators=estimators)
    target = np.full(5000, 0.5)
    found = shown(task.estimate_policy_values(target), task.estimate_intervals(target, random_state=0))
    assert are_near(found, 0.5)


def draw_lesson(name: str = "") -> Lesson:
    """Three actions, each of which is best for one kind of context."""
    random = np.random.default_rng(0)
    context, action = np.eye(3)[random.integers(0, 3, 3000)], random.integers(0, 3, 3000)
    reward = (random.random(3000) < np.where(context.argmax(axis=1) == action, 0.6, 0.1)).astype(float)
    return Lesson(context, action, reward, np.full(3000, 1 / 3), 3, np.eye(3), learner=name)


def try_learning() -> None:
    assert learn(draw_lesson("ipw_logistic"))().tolist() == [0, 1, 2]


def learn_rankings() -> None:
    from obp.policy import IPWLearner

    lesson, policy = draw_lesson(), IPWLearner(n_actions=3, len_list=2)
    policy.fit(lesson.context, lesson.action, lesson.reward, lesson.propensity, position=np.arange(3000) % 2)
    ranking = policy.sample_action(lesson.test_context, tau=0.01, random_state=0).argmax(axis=1)
    assert ranking[:, 0].tolist() == [0, 1, 2]
    assert (ranking[:, 0] != ranking[:, 1]).all()


def grow_tree() -> None:
    """A tree of scikit-learn, fitted by the Pipeline to choose what pays."""
    from obp.policy import IPWLearner
    from sklearn.tree import DecisionTreeClassifier, export_text

    lesson = draw_lesson()
    policy = IPWLearner(n_actions=3, base_classifier=DecisionTreeClassifier(max_depth=2, random_state=0))
    policy.fit(lesson.context, lesson.action, lesson.reward, lesson.propensity)
    assert policy.predict(lesson.test_context)[:, :, 0].argmax(axis=1).tolist() == [0, 1, 2]
    assert "class: 2" in export_text(policy.base_classifier_list[0])


def act_online() -> None:
    from obp.policy import LinTS

    lesson, policy = draw_lesson(), LinTS(dim=3, n_actions=3, random_state=0)
    random, right = np.random.default_rng(0), []
    for row in lesson.context[:500, None]:
        action = policy.select_action(row)[0]
        right.append(row.argmax() == action)
        policy.update_params(action=action, reward=float(random.random() < (0.6 if right[-1] else 0.1)), context=row)
    assert np.mean(right[250:]) > 0.6


FEATURES: dict[str, Callable[[], Any]] = {
    "self-normalized IPS": lambda: try_estimates("snips"),
    "doubly robust": lambda: try_estimates("dr"),
    "confidence intervals": lambda: try_estimates("ips"),
    "propensities estimated from the log": estimate_propensities,
    "several logging policies": join_loggers,
    "clipped and shrunk weights": clip_weights,
    "weights by the features of actions (MIPS)": use_action_features,
    "continuous actions": weigh_amounts,
    "lists and rankings": try_lists,
    "learning a policy from a log": try_learning,
    "learning rankings from a log": learn_rankings,
    "policies one can read: trees": grow_tree,
    "acting and learning online": act_online,
}


# -- learners ---------------------------------------------------------------------------------------------------------------


def learner(name: str, n_actions: int, dimension: int, seed: int, **options: Any) -> Any:
    """One of the Pipeline's learners."""
    from obp.policy import IPWLearner, NNPolicyLearner
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    if name == "network":
        return NNPolicyLearner(
            n_actions, dim_context=dimension, off_policy_objective="ipw", random_state=seed, **options
        )
    kind, defaults = {
        "logistic": (LogisticRegression, {"max_iter": 1000}),
        "forest": (RandomForestClassifier, {}),
        "small_forest": (RandomForestClassifier, {"n_estimators": 30, "min_samples_leaf": 10}),
    }[name]
    return IPWLearner(n_actions, base_classifier=kind(**defaults | options, random_state=seed))


def run_learners(source: str, destination: str, *names: str) -> None:
    """The greedy actions of some learners."""
    with np.load(source) as file:
        log = {key: file[key] for key in file.files}
    n_actions, seed = int(log["n_actions"]), int(log["seed"])
    context, test_context = standardized(log["context"], log["test_context"])
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
    x = random.normal(size=(rows, DIMENSION)).astype(np.float32)
    old, new = (random.normal(size=(DIMENSION, actions)).astype(np.float32) * scale for scale in (0.2, 0.3))
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
