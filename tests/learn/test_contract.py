"""`PolicyLearner` keeps scikit-learn's contract without scikit-learn."""

import inspect
from typing import get_args, get_type_hints

import numpy as np
import pytest
from learning import torch
from messages import refuses

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import OptionError
from counterpoise.learn import MLP, Hardware, PolicyLearner, Schedule, Terms
from counterpoise.learn.options import GROUP_OF, GROUPS, ShortOptions, options_of

LOG = SyntheticBandit(n_actions=8, inverse_temperature=-3, seed=2).draw(2000)
ARRAYS = {"context": LOG.context, "action": LOG.action, "reward": LOG.reward, "propensity": LOG.propensity}
CONTEXT = [f"context_{k}" for k in range(5)]
NAMES = {"context": CONTEXT, "action": "action", "reward": "reward", "propensity": "propensity"}
OPTIONS = {"epochs": 1, "batch_size": 256, "folds": None}


PARAMETERS = list(PolicyLearner().get_params(deep=False))


def test_a_dozen_parameters_and_four_groups_say_it_all():
    assert len(PARAMETERS) <= 12
    assert list(inspect.signature(PolicyLearner).parameters) == [*PARAMETERS, *GROUP_OF]  # what help and notebooks list
    short = get_type_hints(ShortOptions)
    assert {name: GROUP_OF[name] for name in short} == GROUP_OF
    for group, record in GROUPS.items():
        types = get_type_hints(record)
        assert all(set(get_args(short[name])) <= set(get_args(types[name])) for name in types), group
        assert inspect.signature(PolicyLearner).parameters[group].default is None


@pytest.mark.parametrize("name", [*PARAMETERS, *GROUP_OF])
def test_parameters_are_stored_exactly_as_given_and_checked_in_fit(name):
    odd = [name]  # nothing that any of them may be
    learner = PolicyLearner(**{name: odd})
    assert getattr(learner, name) is odd
    if name not in ("progress", "banditnet_lambda"):
        with pytest.raises(OptionError, match=name):
            learner.fit(**ARRAYS)
    assert getattr(learner, name) is odd


def test_parameters_are_read_and_changed_by_name():
    learner = PolicyLearner("ips", epochs=3)
    assert list(learner.get_params(deep=False)) == PARAMETERS
    assert learner.set_params(epochs=1, batch_size=256, hardware__device="cuda", seed=3) is learner
    assert (learner.epochs, learner.get_params()["batch_size"], learner.seed) == (1, 256, 3)
    assert learner.schedule == Schedule(epochs=1, batch_size=256)
    assert learner.get_params()["hardware__device"] == learner.device == "cuda"
    assert learner.optimization is None
    assert learner.learning_rate == 0.01
    learner.epochs = 7
    assert learner.schedule == Schedule(epochs=7, batch_size=256)
    assert repr(PolicyLearner(**learner.get_params())) == repr(learner)


def test_a_group_and_its_options_by_name_are_the_same():
    short = PolicyLearner("ips", epochs=3, batch_size=None, clip=10)
    groups = PolicyLearner("ips", schedule=Schedule(epochs=3, batch_size=None), terms=Terms(clip=10))
    assert short.get_params() == groups.get_params()
    assert repr(short) == repr(groups) == "PolicyLearner(objective='ips', clip=10, batch_size=None, epochs=3)"
    assert options_of(short.get_params()) == options_of(groups.get_params())
    assert repr(groups.schedule) == "Schedule(batch_size=None, epochs=3)"


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"epoch": 1}, "PolicyLearner has no parameter epoch=. Did you mean epochs="),
        ({"schedule__epoch": 1}, "no parameter schedule__epoch=. Did you mean epochs="),
        ({"hardware__epochs": 1}, "no parameter hardware__epochs=. Did you mean epochs="),
        ({"fallbak": "raise"}, "Did you mean fallback="),
        ({"zzz": 1}, "no parameter zzz=; it has objective, policy, .*, terms, .*epochs"),
        (
            {"schedule": Schedule(batch_size=64), "epochs": 5},
            r"epochs=5 contradicts None, .* in schedule=\. Say it once",
        ),
        ({"schedule__epochs": 4, "epochs": 5}, "epochs=5 contradicts 4"),
    ],
)
def test_misspelt_and_contradictory_parameters_are_refused_at_once(params, says):
    with pytest.raises(OptionError, match=says):
        PolicyLearner(**params)
    learner = PolicyLearner(epochs=3)
    with pytest.raises(OptionError, match=says):
        learner.set_params(seed=1, **params)
    assert repr(learner) == "PolicyLearner(epochs=3)"  # and nothing has changed


def test_a_group_of_another_kind_is_refused_in_fit():
    learner = PolicyLearner(schedule=Hardware(device="cpu"))
    with refuses(OptionError):
        learner.fit(**ARRAYS)


def test_a_group_that_is_set_to_none_has_the_usual_options():
    learner = PolicyLearner(epochs=3, batch_size=64).set_params(schedule=None, epochs=5)
    assert learner.schedule == Schedule(epochs=5)


def test_a_learner_of_ones_own_trains_with_what_it_passes_on():
    class Mine(PolicyLearner):
        def __init__(self, epochs=1):
            super().__init__("ips", epochs=epochs, batch_size=256, folds=None)

    assert Mine().get_params(deep=False) == {"epochs": 1}
    found = Mine().fit(**ARRAYS)
    expected = PolicyLearner("ips", **OPTIONS).fit(**ARRAYS)
    assert found.history_ == expected.history_
    assert found.set_params(epochs=2).epochs == found.schedule.epochs == 2


def test_a_misspelt_attribute_is_none():
    with pytest.raises(AttributeError, match="'PolicyLearner' object has no attribute 'epoch'"):
        _ = PolicyLearner().epoch


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
    with refuses(OptionError):
        PolicyLearner(policy=policy, optimizer=lambda _: torch.optim.SGD(policy.parameters()), **OPTIONS).fit(**ARRAYS)
