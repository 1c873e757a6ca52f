"""jurity: the click-through rate of the items that a policy would recommend, from pandas DataFrames."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from jurity.recommenders import BinaryRecoMetrics, RankingRecoMetrics

from peer.data import Log, draw_actions, draw_log

VERSION = ("jurity", "jurity")
Estimates = dict[str, Any]


def as_frames(log: Log, k: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What was logged, and what the policy would recommend: one item in each row, so that one is drawn where it is random.

    A user and an item may meet once only: every row gets a user of its own.
    """
    chosen = draw_actions(np.random.default_rng(1), log.policies[k], log.group)
    user, predicted = np.arange(log.rows), log.predictions[log.group, chosen]
    columns = {"user_id": user, "item_id": log.action, "click": log.reward, "propensity": log.propensity}
    return pd.DataFrame(columns), pd.DataFrame({"user_id": user, "item_id": chosen, "click": predicted})


def estimates(actual: pd.DataFrame, predicted: pd.DataFrame) -> Estimates:
    # not its estimation="matching", which asks for items that were recommended uniformly at random
    found: Estimates = {}
    for estimation in ("ips", "dr"):
        metric = BinaryRecoMetrics.CTR(click_column="click", estimation=estimation)
        found[estimation] = (float(metric.get_score(actual, predicted)), math.nan, math.nan)  # it has no intervals
    return found


def evaluate(log: Log) -> Callable[[], Estimates]:
    frames = as_frames(log)
    return lambda: estimates(*frames) | {"says": ""}


def targets(log: Log) -> Callable[[], Estimates]:
    every = [as_frames(log, k) for k in range(len(log.policies))]
    return lambda: {f"{k} {name}": one for k, frames in enumerate(every) for name, one in estimates(*frames).items()}


# -- features ---------------------------------------------------------------------------------------------------------------


def is_doubly_robust() -> None:
    log = draw_log(4000, 4)
    assert abs(evaluate(log)()["dr"][0] - log.truths[0]) < 0.05


def evaluates_lists() -> None:
    """The best k of what is recommended: clicks weighted by the propensity of each item; and the usual ranking metrics."""
    actual = pd.DataFrame(
        {"user_id": [1, 1, 2], "item_id": [1, 2, 3], "click": [1, 0, 1], "propensity": [0.5, 0.5, 0.25]}
    )
    predicted = pd.DataFrame(
        {"user_id": [1, 1, 1, 2, 2], "item_id": [1, 2, 3, 3, 1], "click": [0.9, 0.8, 0.1, 0.9, 0.2]}
    )
    by_ips = BinaryRecoMetrics.CTR(click_column="click", k=2, estimation="ips").get_score(actual, predicted)
    assert math.isclose(by_ips, (1 / 0.5 + 1 / 0.25) / 4)
    assert math.isclose(RankingRecoMetrics.NDCG(click_column="click", k=2).get_score(actual, predicted), 1.0)


def adds_batches() -> None:
    actual, predicted = as_frames(draw_log(1000, 4))
    metric = BinaryRecoMetrics.CTR(click_column="click", estimation="dr")
    for rows in (slice(0, 500), slice(500, None)):
        _, so_far = metric.get_score(actual[rows], predicted[rows], batch_accumulate=True)
    assert math.isclose(so_far, estimates(actual, predicted)["dr"][0])


FEATURES = {
    "doubly robust": is_doubly_robust,
    "lists and rankings": evaluates_lists,
    "stored sums to which days are added": adds_batches,
}
