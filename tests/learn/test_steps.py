"""One training step: its gradient is the objective's, its variance the measured one, whichever way it is computed."""

import pytest
from learning import policies, small_log, torch

from counterpoise.learn import objectives
from counterpoise.learn.baselines import baseline_of, gradient_sums
from counterpoise.learn.norms import reference_norms
from counterpoise.learn.objectives import OBJECTIVES
from counterpoise.learn.rows import Batch
from counterpoise.learn.steps import Logged, backward, default_norms

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
    logged = [None, Logged(policy)] if norms == "last_layer" else [None]
    for way in logged:
        step = backward(policy, BATCH, baseline, norms=norms, logged=way)
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
    step = backward(policy, BATCH, None, norms=norms)
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
    backward(policy, BATCH, None, norms=norms, objective=OBJECTIVES["snips"])
    check(policy, plain(policy, objectives.snips(policy.target(BATCH.context, BATCH.action), *ROW)))


def test_doubly_robust_steps_have_their_own_gradient_and_variance():
    policy = policies()["linear with bias"]
    model = torch.rand(40, 6, dtype=torch.float64)
    batch = Batch(BATCH.context, BATCH.action, *ROW, 40, model)
    step = backward(policy, batch, 0.0, objective=OBJECTIVES["dr"])

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
