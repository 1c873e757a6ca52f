"""counterpoise, from the same tables of all actions as the Open Bandit Pipeline asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import counterpoise as cp
from peer.data import Log

VERSION = ("counterpoise", "counterpoise")
ESTIMATORS = ["ips", "snips", "beta_ips", "dr"]


def evaluate(log: Log) -> Callable[[], dict[str, Any]]:
    table, predictions = log.table(), log.model_table
    reward, propensity, action = log.reward, log.propensity, log.action

    def call() -> dict[str, Any]:
        rows = np.arange(len(action))
        value = np.einsum("ij,ij->i", table, predictions)
        result = cp.evaluate(
            reward=reward, propensity=propensity, target=table[rows, action], model_reward=predictions[rows, action],
            model_value=value, estimator=ESTIMATORS,
        )  # fmt: skip
        found = {name: result["target", name] for name in ESTIMATORS}
        return {name: (each.value, each.interval.lower, each.interval.upper) for name, each in found.items()}

    return call
