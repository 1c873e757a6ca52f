"""One training step: its gradient is the objective's, its variance the measured one, whichever way it is computed."""

from dataclasses import replace

import pytest
from learning import policies, small_log, torch

from counterpoise.learn import objectives
from counterpoise.learn.norms import default_norms, reference_norms
from counterpoise.learn.objectives import OBJECTIVES, Objective, baseline_of, gradient_sums
from counterpoise.learn.rows import Batch
from counterpoise.learn.steps import LoggedActions

BATCH = Batch(*small_log(), 40)
ROW = (BATCH.reward, BATCH.propensity)


def plain(policy, value):
    """Gradients of −value by autograd."""
    return torch.autograd.grad(-value, list(policy.parameters()))


def check(policy, expected):
    for parameter, gradient in zip(policy.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-12)
        parameter.grad = None


WAYS = [(kind, norms) for kind, policy in policies().items() for norms in {"all", default_norms(policy)}]


@pytest.mark.parametrize(("kind", "norms"), sorted(WAYS))
@pytest.mark.parametrize("baseline", [0.0, 1.7, None])
def test_a_step_has_the_gradient_of_beta_ips(kind, norms, baseline):
    policy = policies()[kind]
    step = LoggedActions(policy, norms=norms).backward(BATCH, baseline)
    target = policy.target(BATCH.context, BATCH.action)
    check(policy, plain(policy, objectives.beta_ips(target, *ROW, baseline=step.baseline)))
    if baseline is not None:
        assert step.baseline.item() == baseline
    elif norms == "all":
        expected = baseline_of(gradient_sums(reference_norms(policy, BATCH.context, BATCH.action), *ROW))
        torch.testing.assert_close(step.baseline, expected)


@pytest.mark.parametrize(
    ("kind", "norms"), [("linear", "last_layer"), ("linear with bias", "last_layer"), ("mlp", "all")]
)
def test_the_variance_is_that_of_the_rows_gradients(kind, norms):
    policy = policies()[kind]
    step = LoggedActions(policy, norms=norms).backward(BATCH, None)
    weight = (BATCH.reward - step.baseline) / BATCH.propensity
    rows = []
    for i in range(40):
        target = policy.target(BATCH.context[i : i + 1], BATCH.action[i : i + 1])[0]
        rows.append(torch.cat([g.flatten() for g in plain(policy, target * weight[i])]))
    expected = torch.stack(rows).var(0, correction=0).sum() / 40
    torch.testing.assert_close(step.variance, expected)


@pytest.mark.parametrize("norms", ["last_layer", "all"])
def test_other_objectives_have_their_own_gradient(norms):
    policy = policies()["mlp"]
    LoggedActions(policy, norms=norms).backward(BATCH, None, objective=OBJECTIVES["snips"])
    check(policy, plain(policy, objectives.snips(policy.target(BATCH.context, BATCH.action), *ROW)))


def test_doubly_robust_steps_have_their_own_gradient_and_variance():
    policy = policies()["linear with bias"]
    model = torch.rand(40, 6, dtype=torch.float64)
    batch = Batch(BATCH.context, BATCH.action, *ROW, 40, model)
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

    check(policy, plain(policy, value(slice(None))))
    rows = [torch.cat([g.flatten() for g in plain(policy, value(slice(i, i + 1)))]) for i in range(40)]
    torch.testing.assert_close(step.variance, torch.stack(rows).var(0, correction=0).sum() / 40)


@pytest.mark.parametrize("kind", sorted(policies()))
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("binary", [True, False])
def test_steps_of_the_logged_logit_have_its_gradient_and_variance(kind, closed, binary):
    policy, reward = policies()[kind], (BATCH.reward > 0).double() if binary else BATCH.reward
    batch = replace(BATCH, reward=reward)
    rewards = objectives.Rewards.of([reward])
    assert rewards.is_binary == binary
    plain_slope = OBJECTIVES["predicted_reward"] if closed else replace(OBJECTIVES["predicted_reward"], slope=None)
    objective = plain_slope.at(0.0, rewards=rewards)
    step = LoggedActions(policy).backward(batch, 0.0, objective=objective)

    def value(rows):
        score = policy(batch.context[rows]).gather(1, batch.action[rows, None])[:, 0]
        return objectives.predicted_reward(score, reward[rows], batch.propensity[rows], rewards=rewards)

    expected = plain(policy, value(slice(None)))
    if kind.startswith("linear"):
        rows = [torch.cat([g.flatten() for g in plain(policy, value(slice(i, i + 1)))]) for i in range(40)]
        torch.testing.assert_close(step.variance, torch.stack(rows).var(0, correction=0).sum() / 40)
    check(policy, expected)


def test_an_objective_may_ask_for_the_logit_and_the_probability():
    policy = policies()["mlp"]

    def both(target, score, reward, propensity):
        return (target / propensity * reward - 0.1 * score.square()).mean()

    LoggedActions(policy).backward(BATCH, 0.0, objective=Objective(both))
    score = policy(BATCH.context).gather(1, BATCH.action[:, None])[:, 0]
    check(policy, plain(policy, both(policy.target(BATCH.context, BATCH.action), score, *ROW)))
    imitating = replace(OBJECTIVES["predicted_reward"], imitation=0.3).at(0.0, rewards=objectives.Rewards.of(ROW[:1]))
    LoggedActions(policy).backward(BATCH, 0.0, objective=imitating)
    score, target = (
        policy(BATCH.context).gather(1, BATCH.action[:, None])[:, 0],
        policy.target(BATCH.context, BATCH.action),
    )
    expected = (
        objectives.predicted_reward(score, *ROW, rewards=objectives.Rewards.of(ROW[:1])) + 0.3 * target.log().mean()
    )
    check(policy, plain(policy, expected))
