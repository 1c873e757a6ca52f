"""How good a policy is while it trains: the moments of its weights, and what the held-out rows say of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from counterpoise.diagnostics import judge
from counterpoise.diagnostics.diagnose import Seen, diagnose
from counterpoise.estimators.constant import beta_ips
from counterpoise.estimators.estimate import Estimate
from counterpoise.intervals import Interval
from counterpoise.intervals.normal import normal
from counterpoise.learn.gradients.objectives import logarithm
from counterpoise.learn.logs.batches import Split
from counterpoise.learn.logs.inspection import Inspection
from counterpoise.learn.logs.rows import Rows
from counterpoise.learn.logs.sources import Source
from counterpoise.learn.policies.policy import Policy
from counterpoise.learn.ranking.measure import held_out_lists
from counterpoise.learn.ranking.plackett_luce import PlackettLuce
from counterpoise.learn.runs.criterion import lambdas_of, score_of
from counterpoise.moments import Floats, Moments, Powers
from counterpoise.moments.powers import NOTHING
from counterpoise.moments.smoothed import UNSMOOTHED, Smoothed
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
    criterion: float
    """The number to choose policies by."""


def held_out_estimate(
    policy: Policy, source: Source, found: Inspection, split: Split, level: float, temperature: float = 1.0
) -> HeldOut:
    """β-IPS with its interval and verdict, and the criterion; nan if no row is held out.

    Of lists, the criterion is the lower end of the interval, because the values of sharp rankers are mostly noise.
    """
    if isinstance(policy, PlackettLuce):
        lists, interval, judged = held_out_lists(policy, split.held_out_rows(source), level)
        return _held_out(lists, interval, judged, math.nan, interval.lower)
    parts = weighed(policy, split.held_out_rows(source), temperature)
    seen, smoothed, likelihood = _seen(parts, found.rewards[0], lambdas_of(found.held_out, found.gain_size))
    estimate = beta_ips(seen.moments)
    interval = normal(estimate.value, estimate.stderr, level)
    return _held_out(estimate, interval, seen, likelihood, score_of(seen.moments, smoothed, found.rewards[0]).criterion)


def _held_out(estimate: Estimate, interval: Interval, seen: Seen, likelihood: float, criterion: float) -> HeldOut:
    diagnostics = diagnose(seen)
    effective, verdict = diagnostics.effective_sample_size, judge(diagnostics).verdict
    return HeldOut(estimate.value, estimate.stderr, interval, effective, verdict, likelihood, criterion)


def moments_of(policy: Policy, parts: Iterable[Rows]) -> Moments:
    """The moments of weights and rewards, however many rows there are."""
    return sum((Moments.of(weight=w, reward=r) for w, r, _ in weighed(policy, parts)), Moments.empty())


@torch.no_grad()
def weighed(policy: Policy, parts: Iterable[Rows], temperature: float = 1.0) -> Iterator[Weighed]:
    """Weights, rewards and log π of rows, some at a time, at a temperature."""
    was_training = policy.training
    policy.eval()
    device = policy.device
    for rows in parts:
        size = policy.rows_at_once if rows.candidates is None else policy.dense_rows
        for at in range(0, len(rows), size):
            part = rows.take(slice(at, at + size))
            part = part.to(device)
            target = policy.target_at(part.context, part.action, part.candidates, temperature).double().cpu()
            weight = target / part.propensity.double().cpu()
            yield weight.numpy(), part.reward.double().cpu().numpy(), logarithm(target).numpy()
    policy.train(was_training)


def _seen(parts: Iterable[Weighed], lowest: float, lambdas: tuple[float, ...]) -> tuple[Seen, Smoothed, float]:
    """What diagnostics need to know of the rows, what the criterion does, and the mean of log π."""
    smoothed, moments, tail, excess, rewards = UNSMOOTHED, Moments.empty(), EMPTY, NOTHING, NOTHING
    low, high, likelihood = math.inf, -math.inf, 0.0
    for weight, reward, log_target in parts:
        moments = moments + Moments.of(weight=weight, reward=reward)
        smoothed = smoothed + Smoothed.of(weight * (reward - lowest), lambdas)
        tail = tail + Tail(np.sort(weight)[::-1][:KEPT], int((weight == 0).sum()))
        excess, rewards = excess + Powers.of(weight - 1), rewards + Powers.of(reward)
        low, high = min(low, float(reward.min())), max(high, float(reward.max()))
        likelihood += float(log_target.sum())
    mean = likelihood / rewards.n if rewards.n else math.nan
    return Seen(moments, tail, excess, rewards, (low, high)), smoothed, mean
