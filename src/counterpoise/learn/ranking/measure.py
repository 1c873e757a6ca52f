"""How good a ranking policy is while it trains: the moments of the weights of held-out lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from counterpoise.diagnostics.diagnose import Seen, diagnose
from counterpoise.diagnostics.verdict import FEW_CARRYING
from counterpoise.estimators.constant import beta_ips
from counterpoise.estimators.estimate import Estimate
from counterpoise.intervals import Evidence, Interval
from counterpoise.intervals.student import Student, student
from counterpoise.learn.ranking.plackett_luce import PlackettLuce
from counterpoise.learn.ranking.steps import LoggedLists, weighed
from counterpoise.log.lists import excess_at, reward_at
from counterpoise.moments import Floats, Moments, Powers
from counterpoise.moments.moments import ROW
from counterpoise.moments.powers import NOTHING
from counterpoise.moments.tails import EMPTY, KEPT, Tail

CELLS = 2**22  # logits computed at a time
MOST = 0.6  # of its own fit that a heavy list is taken to make


def held_out_lists(policy: PlackettLuce, parts: Iterable[Any], level: float) -> tuple[Estimate, Interval, Seen]:
    """β-IPS of `ListRows`, with an interval that allows for how few lists carry the answer, and is endless where those are too few.

    It is nan without lists. The third is what diagnostics need to know of them.
    """
    seen = seen_lists(policy, parts)
    found, n = beta_ips(seen.moments), seen.moments.n
    carrying = diagnose(seen).carrying_rows
    if not n or carrying < FEW_CARRYING:
        return found, Interval(-math.inf, math.inf, level, Student.name), seen
    leverage = min(seen.excess.kurtosis / n, MOST)
    evidence = Evidence(found.value, found.stderr, n, seen.moments, carrying=carrying, leverage=leverage)
    return found, student(evidence, level), seen


def seen_lists(policy: PlackettLuce, parts: Iterable[Any]) -> Seen:
    """What diagnostics need to know of the weights of lists."""
    moments, tail, excess, rewards = Moments.empty(), EMPTY, NOTHING, NOTHING
    low, high = math.inf, -math.inf
    for some, u, reward in weighed_lists(policy, parts):
        moments, tail = moments + some, tail + Tail(1.0 + np.sort(u)[::-1][:KEPT], int((u == -1.0).sum()))
        excess, rewards = excess + Powers.of(u), rewards + Powers.of(reward)
        low, high = min(low, float(reward.min())), max(high, float(reward.max()))
    return Seen(moments, tail, excess, rewards, (low, high), of_lists=True)


@torch.no_grad()
def weighed_lists(policy: PlackettLuce, parts: Iterable[Any]) -> Iterator[tuple[Moments, Floats, Floats]]:
    """The moments of some lists at a time, with the excess of the weight and the reward of every list as a whole."""
    was_training = policy.training
    policy.eval()
    device = policy.device
    size = max(1, CELLS // policy.n_actions)
    for lists in parts:
        logged = LoggedLists(policy, lists.weight)
        for at in range(0, len(lists), size):
            part = lists.take(slice(at, at + size)).to(device)
            logits = policy(part.context).double()
            weight = weighed(logits, part.action, part.propensity.double(), lists.weight).weight
            w, reward = (one.double().cpu().numpy() for one in (weight, logged.rewards(part.reward)))
            yield *of_positions(w, reward, lists.shares), reward.sum(axis=1)
    policy.train(was_training)


def of_positions(weight: Floats, reward: Floats, shares: Floats) -> tuple[Moments, Floats]:
    """The moments of lists from the weight and the reward at every position, or of the whole; and the excess of every list as a whole.

    `shares` is how much each position counts in that.

    >>> lists, _ = of_positions(np.array([[1.0, 2.0]]), np.array([[3.0, 5.0]]), np.array([0.5, 0.5]))
    >>> lists.ranks, float(lists.average("y@2"))
    (('u@1', 'u@2'), 10.0)
    """
    if weight.shape[1] == 1:
        return Moments.of(weight=weight[:, 0], reward=reward[:, 0]), weight[:, 0] - 1.0
    whole = reward.sum(axis=1)
    center = float(whole.mean()) if len(whole) else 0.0
    excess = weight - 1.0
    u = excess @ shares
    rows = [u, whole - center, (excess * reward).sum(axis=1) - center * u, *excess.T, *(weight * reward).T]
    ranks = range(1, weight.shape[1] + 1)
    columns = (*ROW, *map(excess_at, ranks), *map(reward_at, ranks))
    z = np.stack(rows)
    mean = z.mean(axis=1) if len(whole) else np.zeros(len(columns))
    z = z - mean[:, None]
    return Moments(len(whole), mean, z @ z.T, center, columns), u
