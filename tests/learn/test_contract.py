"""`PolicyLearner` keeps scikit-learn's contract without scikit-learn."""

import inspect

import numpy as np
import pytest
from learning import torch

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import OptionError
from counterpoise.learn import MLP, PolicyLearner

LOG = SyntheticBandit(n_actions=8, inverse_temperature=-3, seed=2).draw(2000)
ARRAYS = {"context": LOG.context, "action": LOG.action, "reward": LOG.reward, "propensity": LOG.propensity}
CONTEXT = [f"context_{k}" for k in range(5)]
NAMES = {"context": CONTEXT, "action": "action", "reward": "reward", "propensity": "propensity"}
OPTIONS = {"epochs": 1, "batch_size": 256, "folds": None}


def test_parameters_are_stored_exactly_as_given_and_checked_in_fit():
    for name in inspect.signature(PolicyLearner).parameters:
        odd = [name]  # nothing that any of them may be
        learner = PolicyLearner(**{name: odd})
        assert getattr(learner, name) is odd
        if name not in ("progress", "banditnet_lambda"):
            with pytest.raises(OptionError, match=name):
                learner.fit(**ARRAYS)
        assert getattr(learner, name) is odd


def test_parameters_are_read_and_changed_by_name():
    learner = PolicyLearner("ips", epochs=3)
    assert list(learner.get_params()) == list(inspect.signature(PolicyLearner).parameters)
    assert learner.set_params(epochs=1, batch_size=256) is learner
    assert (learner.epochs, learner.get_params()["batch_size"]) == (1, 256)
    with pytest.raises(OptionError, match="no parameter epoch=; it has objective, policy"):
        learner.set_params(epoch=1)
    assert repr(PolicyLearner("ips", epochs=3)) == "PolicyLearner(objective='ips', epochs=3)"


def test_a_clone_is_an_unfitted_learner_with_the_same_parameters_and_result():
    base = pytest.importorskip("sklearn.base")
    torch.manual_seed(0)
    learner = PolicyLearner("lambda_ips", policy=MLP(5, 8), banditnet_lambda=[0.3], **OPTIONS)
    twin = base.clone(learner)
    assert not hasattr(twin, "policy_")
    assert twin.policy is not learner.policy
    learner.fit(**ARRAYS)
    assert twin.fit(**ARRAYS).history_ == learner.history_
    assert base.clone(twin).get_params()["banditnet_lambda"] == [0.3]


def test_the_context_s_columns_are_known_by_scikit_learn_s_names():
    learner = PolicyLearner(**OPTIONS).fit(LOG.frame(), **NAMES)
    assert learner.feature_names_in_.tolist() == CONTEXT
    assert learner.n_features_in_ == 5
    learner.fit(**ARRAYS)
    assert learner.n_features_in_ == 5
    assert not hasattr(learner, "feature_names_in_")


def test_an_unfitted_learner_has_nothing_that_ends_in_an_underscore():
    assert not [name for name in vars(PolicyLearner()) if name.endswith("_")]


def test_fitting_leaves_the_parameters_alone():
    learner = PolicyLearner(**OPTIONS | {"learning_rate": np.float32(0.5), "n_actions": np.int64(8)})
    before = learner.get_params()
    after = learner.fit(**ARRAYS).get_params()
    assert all(after[name] is value for name, value in before.items())


def test_fitting_twice_gives_what_fitting_once_gives():
    torch.manual_seed(0)
    policy = MLP(5, 8)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    learner = PolicyLearner(policy=policy, **OPTIONS).fit(**ARRAYS)
    once = learner.predict_proba(LOG.context)
    np.testing.assert_array_equal(learner.fit(**ARRAYS).predict_proba(LOG.context), once)
    assert learner.policy is policy
    assert learner.policy_ is not policy
    assert policy.training
    assert policy.actions_ is None
    for name, tensor in policy.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    assert not np.allclose(policy.predict_proba(LOG.context), once)


def test_training_goes_on_from_the_policy_that_came_of_it():
    torch.manual_seed(0)
    first = PolicyLearner(policy=MLP(5, 8), **OPTIONS).fit(**ARRAYS)
    second = PolicyLearner(policy=first.policy_, **OPTIONS).fit(**ARRAYS)
    assert not np.allclose(second.predict_proba(LOG.context), first.predict_proba(LOG.context))


def test_an_optimizer_of_other_parameters_is_refused():
    policy = MLP(5, 8)
    with pytest.raises(OptionError, match=r"parameters that are not the policy's.* trains a copy"):
        PolicyLearner(policy=policy, optimizer=lambda _: torch.optim.SGD(policy.parameters()), **OPTIONS).fit(**ARRAYS)
