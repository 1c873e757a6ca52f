"""The gradient variance of a last layer is that of the rows' gradients of the parameters that are trained."""

import pytest
from learning import policies, small_log, torch

from counterpoise.learn import objectives
from counterpoise.learn.objectives import OBJECTIVES
from counterpoise.learn.rows import Batch
from counterpoise.learn.steps import LoggedActions

KINDS = ["two towers", "two towers with item features"]


def last_layer_variance(policy, value_of_row, rows=40):
    """Row by row, with autograd."""
    found = []
    for i in range(rows):
        gradients = torch.autograd.grad(value_of_row(slice(i, i + 1)), list(policy.scores.parameters()))
        found.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(found).var(0, correction=0).sum() / rows


@pytest.mark.parametrize("kind", KINDS)
def test_of_beta_ips(kind):
    policy, batch = policies()[kind], Batch(*small_log(), 40)
    step = LoggedActions(policy).backward(batch, None)

    def value(rows):
        target = policy.target(batch.context[rows], batch.action[rows])
        return objectives.beta_ips(target, batch.reward[rows], batch.propensity[rows], baseline=step.baseline)

    torch.testing.assert_close(step.variance, last_layer_variance(policy, value))


@pytest.mark.parametrize("kind", [*KINDS, "linear with bias"])
def test_of_doubly_robust(kind):
    policy = policies()[kind]
    model = 3 * torch.rand(40, 6, dtype=torch.float64)
    batch = Batch(*small_log(), 40, model)
    step = LoggedActions(policy).backward(batch, 0.0, objective=OBJECTIVES["dr"])

    def value(rows):
        return objectives.dr(
            policy.target(batch.context[rows], batch.action[rows]),
            batch.reward[rows],
            batch.propensity[rows],
            probabilities=torch.softmax(policy(batch.context[rows]), -1),
            model_rewards=model[rows],
            action=batch.action[rows],
        )

    torch.testing.assert_close(step.variance, last_layer_variance(policy, value))


def test_the_baseline_is_the_one_of_least_variance():
    """Item features: the minimum over a grid, by the variance that autograd measures row by row."""
    policy, batch = policies()["two towers with item features"], Batch(*small_log(), 40)
    found = LoggedActions(policy).backward(batch, None).baseline

    def second_moment(baseline):
        total = 0.0
        for i in range(40):
            target = policy.target(batch.context[i : i + 1], batch.action[i : i + 1])[0]
            weight = (batch.reward[i] - baseline) / batch.propensity[i]
            (gradient,) = torch.autograd.grad(target * weight, [policy.scores.map])
            total += gradient.square().sum()
        return total

    assert second_moment(found) < min(second_moment(found - 0.02), second_moment(found + 0.02))
