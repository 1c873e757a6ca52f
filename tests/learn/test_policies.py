"""What every policy can do."""

import numpy as np
import pytest
from learning import policies, small_log, torch

from counterpoise.errors import OptionError
from counterpoise.learn import LinearSoftmax, ModulePolicy, PolicyLearner, TwoTower
from counterpoise.learn.norms import SampleGradients


@pytest.mark.parametrize("kind", policies())
def test_probabilities_greedy_and_samples_agree(kind):
    policy = policies()[kind]
    context, action, *_ = small_log()
    table = policy.predict_proba(context.numpy())
    assert table.shape == (40, policy.n_actions)
    np.testing.assert_allclose(table.sum(1), 1)
    np.testing.assert_allclose(policy.target(context, action).detach(), table[np.arange(40), action])
    np.testing.assert_allclose(policy.log_target(context, action).detach().exp(), table[np.arange(40), action])
    np.testing.assert_array_equal(policy.greedy(context), table.argmax(1))
    np.testing.assert_array_equal(policy.classes_, np.arange(policy.n_actions))
    drawn, propensity = policy.sample(context)
    np.testing.assert_allclose(propensity, table[np.arange(40), drawn])


def test_samples_have_the_policys_frequencies():
    policy = policies()["linear"]
    context = 4 * small_log()[0][:1].repeat(20_000, 1)  # far from uniform
    drawn, _ = policy.sample(context, generator=torch.Generator().manual_seed(3))
    expected = policy.predict_proba(context[:1].numpy())[0]
    share = np.bincount(drawn, minlength=6) / 20_000
    assert (np.abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / 20_000)).all()


def test_a_catalogue_of_a_hundred_thousand_actions_trains():
    torch.manual_seed(0)
    policy = TwoTower(4, 100_000, dimension=8, item_features=torch.randn(100_000, 5))
    context, action = torch.randn(8, 4), torch.randint(100_000, (8,))
    found = SampleGradients(policy, context, action)
    assert found.by_layer
    assert found.squared_norms.shape == (8,)


def test_nonsense_is_refused():
    with pytest.raises(OptionError, match="n_actions must be a whole number of at least 1; found 0"):
        LinearSoftmax(3, 0)
    with pytest.raises(OptionError, match="a row for each of the 4 actions"):
        TwoTower(3, 4, item_features=torch.zeros(3, 2))
    batch_norm = ModulePolicy(torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.BatchNorm1d(6)), 6)
    with pytest.raises(OptionError, match="mixes the rows of a batch"):
        SampleGradients(batch_norm, torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize("outputs", [5, 7])
def test_a_module_returns_a_logit_per_action(outputs):
    says = f"the policy has 6 actions, and its module returns {outputs} logits.* change n_actions="
    with pytest.raises(OptionError, match=says):
        ModulePolicy(torch.nn.Linear(3, outputs), 6)
    policy = ModulePolicy(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, outputs)), 6)
    context, action, reward, propensity = (one.numpy() for one in small_log())
    for serve in (policy.predict_proba, policy.sample, policy.greedy, lambda x: policy.propensity(x, action)):
        with pytest.raises(OptionError, match=says):
            serve(context)
    for objective in ("beta_ips", "ips"):
        with pytest.raises(OptionError, match=says):
            PolicyLearner(objective, policy=policy, epochs=1, folds=None, batch_size=10).fit(
                context=context, action=action, reward=reward, propensity=propensity
            )
