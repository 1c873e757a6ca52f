"""scope-rl: off-policy evaluation of episodes. A decision is an episode of one step."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from d3rlpy.algos import DQNConfig, QLearningAlgoBase
from d3rlpy.dataset import MDPDataset
from scope_rl.ope import CreateOPEInput, CumulativeDistributionOPE, OffPolicyEvaluation, continuous, discrete
from scope_rl.ope.weight_value_learning import DiscreteMinimaxStateActionWeightLearning
from scope_rl.ope.weight_value_learning.function import DiscreteStateActionWeightFunction
from scope_rl.policy import BaseHead

from peer.data import Floats, Log, draw_lists, draw_log, draw_world

VERSION = ("scope-rl", "scope_rl")
Estimates = dict[str, Any]
ESTIMATORS = {
    "ips": discrete.TrajectoryWiseImportanceSampling, "snips": discrete.SelfNormalizedTIS,
    "dm": discrete.DirectMethod, "dr": discrete.DoublyRobust, "sndr": discrete.SelfNormalizedDR,
}  # fmt: skip


def as_dataset(
    state: Floats, action: Floats, reward: Floats, p: Floats, actions: int, steps: int = 1
) -> dict[str, Any]:
    """Its form of a log, whose rows are the steps of one episode after the other."""
    done = np.zeros(len(reward))
    done[steps - 1 :: steps] = 1
    return {
        "size": len(reward), "n_trajectories": len(reward) // steps, "step_per_trajectory": steps,
        "action_type": "discrete", "n_actions": actions, "action_dim": None, "state_dim": state.shape[1], "state": state,
        "action": action, "reward": reward, "done": done, "terminal": done, "pscore": p, "info": {},
        "behavior_policy": "logged", "dataset_id": 0,
    }  # fmt: skip


def as_input(table: Floats, predictions: Floats | None = None, steps: int = 1) -> dict[str, Any]:
    """What it asks for of a target: its probability of every action and, for DM and DR, a model's prediction for each."""
    value = None if predictions is None else (table * predictions).sum(axis=1)[::steps]
    return {
        "evaluation_policy_action": None, "evaluation_policy_action_dist": table, "state_action_value_prediction": predictions,
        "initial_state_value_prediction": value, "on_policy_policy_value": None, "gamma": 1.0,
        "behavior_policy": "logged", "evaluation_policy": "target", "dataset_id": 0,
    }  # fmt: skip


def estimates(dataset: dict[str, Any], inputs: dict[str, Any], kinds: dict[str, Any] = ESTIMATORS) -> Estimates:
    """Each estimator's value of each target, with its interval: 100 bootstrap samples by default."""
    chosen = [kind() for kind in kinds.values()]
    # by default the reward of an episode's last step is dropped
    ope = OffPolicyEvaluation(dataset, chosen, disable_reward_after_done=False)
    values, intervals = ope.estimate_policy_value(inputs), ope.estimate_intervals(inputs, random_state=1)
    found: Estimates = {}
    for target in inputs:
        for name, kind in zip(kinds, chosen, strict=True):
            bounds = intervals[target][kind.estimator_name]
            ends = (float(bounds[f"95.0% CI ({end})"]) for end in ("lower", "upper"))
            label = name if len(inputs) == 1 else f"{target} {name}"
            found[label] = (float(values[target][kind.estimator_name]), *ends)
    return found


def columns(log: Log) -> tuple[Any, ...]:
    return log.context, log.action, log.reward, log.propensity, log.actions


def evaluate(log: Log) -> Callable[[], Estimates]:
    dataset, inputs = as_dataset(*columns(log)), {"0": as_input(log.table(), log.model_table)}
    return lambda: estimates(dataset, inputs) | {"says": ""}


def targets(log: Log) -> Callable[[], Estimates]:
    dataset = as_dataset(*columns(log))
    inputs = {str(k): as_input(log.table(k), log.model_table) for k in range(len(log.policies))}
    return lambda: estimates(dataset, inputs)


@dataclass
class Target(BaseHead):
    """A policy as the library asks for it; what it chooses is looked up, not what its learner from d3rlpy would say."""

    base_policy: QLearningAlgoBase
    name: str
    table: dict[tuple[float, ...], Floats]
    action_type: str = "discrete"

    def calc_action_choice_probability(self, x: Floats) -> Floats:
        return np.array([self.table[tuple(each)] for each in np.asarray(x).tolist()])

    def calc_pscore_given_action(self, x: Floats, action: Floats) -> Floats:
        return self.calc_action_choice_probability(x)[np.arange(len(x)), action]

    def sample_action_and_output_pscore(self, x: Floats) -> tuple[Floats, Floats]:
        action = self.sample_action(x)
        return action, self.calc_pscore_given_action(x, action)

    def sample_action(self, x: Floats) -> Floats:
        u = np.random.default_rng(1).random((len(x), 1))
        return (self.calc_action_choice_probability(x).cumsum(axis=1) > u).argmax(axis=1)


def as_policy(log: Log, dataset: dict[str, Any]) -> Target:
    learner = DQNConfig().create(device="cpu")
    names = {"observations": "state", "actions": "action", "rewards": "reward", "terminals": "done"}
    learner.build_with_dataset(MDPDataset(**{name: dataset[key] for name, key in names.items()}))
    keys = map(tuple, log.features.astype(np.float32).tolist())
    return Target(learner, "0", dict(zip(keys, log.policies[0], strict=True)))


def fit_inputs(dataset: dict[str, Any], policy: Target, **options: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # d3rlpy writes logs where it runs
        return CreateOPEInput(env=None).obtain_whole_inputs(dataset, [policy], random_state=1, **options)


def model(log: Log) -> Callable[[], Estimates]:
    """Fitted Q evaluation, with its default of 10,000 steps of a network, however many rows there are."""
    dataset = as_dataset(log.context.astype(np.float32), *columns(log)[1:])
    policy = as_policy(log, dataset)
    kinds = {name: ESTIMATORS[name] for name in ("dm", "dr", "sndr")}
    return lambda: estimates(dataset, fit_inputs(dataset, policy, require_value_prediction=True), kinds) | {"says": ""}


# -- features ---------------------------------------------------------------------------------------------------------------


def has_estimates() -> None:
    log = draw_log(2000, 4)
    for value, lower, upper in estimates(
        as_dataset(*columns(log)), {"0": as_input(log.table(), log.model_table)}
    ).values():
        assert lower < value < upper
        assert abs(value - log.truths[0]) < 0.05


def evaluates_episodes() -> None:
    lists = draw_lists(6000, 3)
    dataset = as_dataset(lists.position[:, None], lists.action, lists.reward, lists.propensity, 10, steps=3)
    kinds = {"pdis": discrete.PerDecisionImportanceSampling, "snpdis": discrete.SelfNormalizedPDIS}
    table = lists.policies[1][lists.position]
    for value, lower, upper in estimates(dataset, {"0": as_input(table, steps=3)}, kinds).values():
        assert lower < value < upper
        assert abs(value - lists.truth) < 0.15


def knows_tails() -> None:
    log = draw_world("revenue, good overlap", 0)
    ope = CumulativeDistributionOPE(
        as_dataset(*columns(log)), [discrete.CumulativeDistributionSNTIS()], disable_reward_after_done=False
    )
    inputs = {"0": as_input(log.table(), log.model_table)}
    tail = ope.estimate_conditional_value_at_risk(inputs, alphas=np.array([0.5, 1.0]))["0"]["cdf_sntis"]
    assert tail[0] < tail[1]
    assert "median" in ope.estimate_interquartile_range(inputs)["0"]["cdf_sntis"]


def evaluates_continuous_actions() -> None:
    """By the estimator itself: `OffPolicyEvaluation` would cut off what stands behind the decimal point."""
    random = np.random.default_rng(1)
    action = random.uniform(0, 1, (4000, 1))
    value = continuous.SelfNormalizedTIS().estimate_policy_value(
        step_per_trajectory=1, action=action, reward=action[:, 0], pscore=np.ones((4000, 1)),
        evaluation_policy_action=np.full((4000, 1), 0.5), bandwidth=0.1,
    )  # fmt: skip
    assert math.isclose(value, 0.5, abs_tol=0.05)


def fits_states() -> None:
    """A few steps of minimax weight learning, whose kin are DICE and fitted Q evaluation, which `model` fits."""
    lists = draw_lists(4000, 4)
    state, table = lists.position[:, None].astype(float), lists.policies[1][lists.position]
    weights = DiscreteStateActionWeightFunction(n_actions=10, state_dim=1, device="cpu")
    learner = DiscreteMinimaxStateActionWeightLearning(weights, device="cpu")
    learner.fit(4, state, lists.action, table, n_steps=10, n_steps_per_epoch=10, random_state=1)
    assert np.isfinite(learner.predict_weight(state, lists.action)).all()


FEATURES = {
    "self-normalized IPS": has_estimates,
    "doubly robust": has_estimates,
    "confidence intervals": has_estimates,
    "continuous actions": evaluates_continuous_actions,
    "episodes of many steps": evaluates_episodes,
    "states' own models (fitted Q, DICE)": fits_states,
    "quantiles and tails of rewards": knows_tails,
}
