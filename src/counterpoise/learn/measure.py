"""How good a policy is while it trains: the moments of its weights, and β-IPS on the held-out rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from counterpoise.estimators.constant import beta_ips
from counterpoise.estimators.estimate import Estimate
from counterpoise.intervals.normal import normal
from counterpoise.learn.batches import Split
from counterpoise.learn.policies import Policy
from counterpoise.learn.ranking.measure import held_out_lists
from counterpoise.learn.ranking.plackett_luce import PlackettLuce
from counterpoise.learn.rows import Rows
from counterpoise.learn.sources import Source
from counterpoise.moments import Moments


def held_out_estimate(policy: Policy, source: Source, split: Split, level: float) -> Estimate:
    """β-IPS with its interval; nan if no row is held out."""
    if isinstance(policy, PlackettLuce):
        return held_out_lists(policy, split.held_out_rows(source), level)
    found = beta_ips(moments_of(policy, split.held_out_rows(source)))
    return replace(found, interval=normal(found.value, found.stderr, level))


@torch.no_grad()
def moments_of(policy: Policy, parts: Iterable[Rows]) -> Moments:
    """The moments of weights and rewards, however many rows there are."""
    total = Moments.empty()
    was_training = policy.training
    policy.eval()
    device = next(policy.parameters()).device
    for rows in parts:
        size = policy.rows_at_once if rows.candidates is None else policy.dense_rows
        for at in range(0, len(rows), size):
            part = rows.take(slice(at, at + size))
            part = part.to(device)
            target = policy.target_at(part.context, part.action, part.candidates)
            weight = target.double().cpu() / part.propensity.double().cpu()
            total = total + Moments.of(weight=weight.numpy(), reward=part.reward.double().cpu().numpy())
    policy.train(was_training)
    return total
