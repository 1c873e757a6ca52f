"""What one writes without a library, in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from peer.data import File, Floats, Lists, Log

VERSION = ("numpy", "numpy")
Estimates = dict[str, tuple[float, float, float]]


def normal(value: float, spread: float, n: int) -> tuple[float, float, float]:
    reach = 1.959963984540054 * spread / np.sqrt(n)
    return value, value - reach, value + reach


def estimates(reward: Floats, w: Floats, model_reward: Floats, model_value: Floats) -> Estimates:
    """IPS, SNIPS, β-IPS with the best β, and DR, with normal intervals by the delta method."""
    n, wr = len(reward), w * reward
    ips, mean = wr.mean(), w.mean()
    snips = ips / mean
    u = w - mean
    beta = np.dot(u, wr) / np.dot(u, u)
    corrected = wr - beta * (w - 1)
    dr = model_value + w * (reward - model_reward)
    return {
        "ips": normal(ips, wr.std(), n),
        "snips": normal(snips, (wr - snips * w).std() / mean, n),
        "beta_ips": normal(corrected.mean(), corrected.std(), n),
        "dr": normal(dr.mean(), dr.std(), n),
    }


def evaluate(log: Log) -> Callable[[], Estimates]:
    reward, p, target, q, v = log.reward, log.propensity, log.target(), log.model_reward, log.model_value()
    return lambda: estimates(reward, target / p, q, v)


def targets(log: Log) -> Callable[[], Estimates]:
    reward, p, q = log.reward, log.propensity, log.model_reward
    columns = [(log.target(k), log.model_value(k)) for k in range(len(log.policies))]

    def call() -> Estimates:
        found = {}
        for k, (target, v) in enumerate(columns):
            found |= {f"{k} {name}": one for name, one in estimates(reward, target / p, q, v).items()}
        return found

    return call


def files(file: File) -> Callable[[], Estimates]:
    import pyarrow.parquet as pq

    def call() -> Estimates:
        table = pq.read_table(file.path, columns=["reward", "propensity", "target", "model_reward", "model_value"])
        reward, p, target, q, v = (column.to_numpy() for column in table.columns)
        return estimates(reward, target / p, q, v)

    return call


def lists(log: Lists) -> Callable[[], Estimates]:
    """Independent, cascade and standard weights."""
    reward, target, propensity = (log.matrix(name) for name in ("reward", "target", "propensity"))

    def call() -> Estimates:
        w = target / propensity
        above = np.cumprod(w, axis=1)
        sums = {
            "iips": (w * reward).sum(axis=1),
            "rips": (above * reward).sum(axis=1),
            "sips": above[:, -1] * reward.sum(axis=1),
        }
        return {name: normal(each.mean(), each.std(), len(each)) for name, each in sums.items()}

    return call
