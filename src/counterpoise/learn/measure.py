"""How good a policy is while it trains: the moments of its weights, and β-IPS on the held-out rows with its verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from counterpoise.diagnostics import judge
from counterpoise.diagnostics.diagnose import Seen, diagnose
from counterpoise.estimators.constant import beta_ips
from counterpoise.intervals import Interval
from counterpoise.intervals.normal import normal
from counterpoise.learn.batches import Split
from counterpoise.learn.objectives import logarithm
from counterpoise.learn.policies import CELLS, Policy
from counterpoise.learn.rows import Rows
from counterpoise.learn.softmax import logged_probability
from counterpoise.learn.sources import Source
from counterpoise.moments import Floats, Moments, Powers
from counterpoise.moments.powers import NOTHING
from counterpoise.moments.tails import EMPTY, KEPT, Tail

Weighed = tuple[Floats, Floats, Floats]  # weights, rewards, and log π of some rows


@dataclass(frozen=True)
class HeldOut:
    """What the held-out rows say of a policy: β-IPS with its interval, how many rows' worth that is, and whether to believe it."""

    value: float
    stderr: float
    interval: Interval
    effective_sample_size: float
    verdict: str
    likelihood: float
    """The mean of log π(a|x)."""


def held_out_estimate(policy: Policy, source: Source, split: Split, level: float) -> HeldOut:
    """β-IPS with its interval and verdict; nan if no row is held out."""
    seen, likelihood = _seen(weighed(policy, split.held_out_rows(source)))
    found, diagnostics = beta_ips(seen.moments), diagnose(seen)
    interval = normal(found.value, found.stderr, level)
    effective, verdict = diagnostics.effective_sample_size, judge(diagnostics).verdict
    return HeldOut(found.value, found.stderr, interval, effective, verdict, likelihood)


def moments_of(policy: Policy, parts: Iterable[Rows]) -> Moments:
    """The moments of weights and rewards, however many rows there are."""
    return sum((Moments.of(weight=w, reward=r) for w, r, _ in weighed(policy, parts)), Moments.empty())


@torch.no_grad()
def weighed(policy: Policy, parts: Iterable[Rows]) -> Iterator[Weighed]:
    """Weights, rewards and log π of rows, some at a time."""
    was_training = policy.training
    policy.eval()
    device = next(policy.parameters()).device
    size = max(1, CELLS // policy.n_actions)
    for rows in parts:
        for at in range(0, len(rows), size):
            part = rows.take(slice(at, at + size))
            target = logged_probability(policy(part.context.to(device)), part.action.to(device))[0].double().cpu()
            weight = target / part.propensity.double().cpu()
            yield weight.numpy(), part.reward.double().cpu().numpy(), logarithm(target).numpy()
    policy.train(was_training)


def _seen(parts: Iterable[Weighed]) -> tuple[Seen, float]:
    """What diagnostics need to know of the rows, and the mean of log π."""
    moments, tail, excess, rewards = Moments.empty(), EMPTY, NOTHING, NOTHING
    low, high, likelihood = math.inf, -math.inf, 0.0
    for weight, reward, log_target in parts:
        moments = moments + Moments.of(weight=weight, reward=reward)
        tail = tail + Tail(np.sort(weight)[::-1][:KEPT], int((weight == 0).sum()))
        excess, rewards = excess + Powers.of(weight - 1), rewards + Powers.of(reward)
        low, high = min(low, float(reward.min())), max(high, float(reward.max()))
        likelihood += float(log_target.sum())
    mean = likelihood / rewards.n if rewards.n else math.nan
    return Seen(moments, tail, excess, rewards, (low, high)), mean
