"""Objectives are a registry: what is in it trains, and anybody can add to it."""

import pytest
from learning import policies, small_log, torch
from messages import refuses

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import OptionError
from counterpoise.learn import OBJECTIVES, Objective, PolicyLearner, objectives
from counterpoise.learn.objectives import RunningBaseline, of_past
from counterpoise.learn.rows import Batch
from counterpoise.learn.steps import LoggedActions

LOG = SyntheticBandit(n_actions=8, inverse_temperature=-3, seed=2).draw(2000)
ARRAYS = {"context": LOG.context, "action": LOG.action, "reward": LOG.reward, "propensity": LOG.propensity}
MODEL = torch.rand(40, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@pytest.fixture
def registry(monkeypatch):
    """A registry that forgets what a test put into it."""
    monkeypatch.setattr(objectives, "OBJECTIVES", dict(OBJECTIVES))


def learn(objective, model_rewards=None, **options):
    size = None if objectives.objective_of(objective).full_batch else 256
    options = {"epochs": 2, "batch_size": size, "learning_rate": 0.05, "folds": None} | options
    return PolicyLearner(objective, **options).fit(**ARRAYS, model_rewards=model_rewards)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("norms", ["last_layer", "all"])
def test_every_objective_is_trained_along_the_gradient_of_its_own_function(name, norms):
    context, action, reward, propensity = small_log()
    policy, objective = policies()["mlp"], OBJECTIVES[name].at(1.7, rewards=objectives.Rewards.of([reward]))
    model = MODEL if objective.needs_model_rewards else None
    batch = Batch(context, action, reward, propensity, 40, model)
    past = RunningBaseline(initial=0.4)
    step = LoggedActions(policy, norms=norms).backward(batch, objective.baseline(past, 1.7), objective=objective)
    known = {"baseline": step.baseline, "probabilities": torch.softmax(policy(context), -1)}
    known["score"] = policy(context).gather(1, action[:, None])[:, 0]
    value = objective(policy.target(context, action), reward, propensity, **known, model_rewards=model, action=action)
    expected = torch.autograd.grad(-value, list(policy.parameters()))
    for parameter, gradient in zip(policy.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_learns(name):
    model = LOG.expected(slice(0, len(LOG))) if OBJECTIVES[name].needs_model_rewards else None
    found = learn(name, model, epochs=15, banditnet_lambda=0.6)
    assert LOG.value(found.predict_proba) > LOG.reward.mean()


def test_an_objective_of_ones_own_trains_by_its_name(registry):
    seen = []

    def clipped(target, reward, propensity):
        seen.append(len(target))
        return ((target / propensity).clamp(max=1e9) * reward).mean()

    objectives.register("hardly clipped", Objective(clipped))
    found, plain = learn("hardly clipped"), learn("ips")
    assert seen
    for name, tensor in plain.policy_.state_dict().items():
        torch.testing.assert_close(found.policy_.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)


def test_an_objective_is_given_what_it_asks_for(registry):
    objectives.register("past", Objective(lambda target, reward, propensity, baseline: objectives.beta_ips(
        target, reward, propensity, baseline=baseline), of_past))  # fmt: skip
    objectives.register("shifted", Objective(lambda target, reward, propensity, banditnet_lambda: objectives.lambda_ips(
        target, reward, propensity, banditnet_lambda=banditnet_lambda)))  # fmt: skip
    objectives.register("modeled", Objective(lambda target, reward, propensity, probabilities, model_rewards, action:
        objectives.dr(target, reward, propensity, probabilities=probabilities, model_rewards=model_rewards,
                      action=action)))  # fmt: skip
    model = LOG.expected(slice(0, len(LOG)))
    pairs = [("past", "running_beta_ips", None), ("shifted", "lambda_ips", None), ("modeled", "dr", model)]
    for mine, theirs, rewards in pairs:
        found, expected = (learn(name, rewards, banditnet_lambda=[0.3, 0.6]) for name in (mine, theirs))
        for name, tensor in expected.policy_.state_dict().items():
            torch.testing.assert_close(found.policy_.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
    assert set(learn("shifted", banditnet_lambda=[0.3, 0.6]).tuning_) == {0.3, 0.6}


def test_what_cannot_be_an_objective_is_refused(registry):
    with refuses(OptionError):
        objectives.register("ips", Objective(objectives.ips))
    for odd in (lambda target, reward: target, lambda target, reward, propensity, color: target):
        with refuses(OptionError):
            Objective(odd)
    for name in ("sips", ["ips"], None):
        with refuses(OptionError):
            PolicyLearner(name).fit(**ARRAYS)
    with refuses(OptionError):
        learn("ips", model_rewards=LOG.expected(slice(0, len(LOG))))


def test_a_full_batch_objective_of_ones_own_refuses_mini_batches(registry):
    objectives.register("mine", Objective(objectives.snips, full_batch=True))
    with refuses(OptionError):
        learn("mine", batch_size=256)
    assert learn("mine").history_ == learn("snips").history_
