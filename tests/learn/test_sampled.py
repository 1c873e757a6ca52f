"""Sampled softmax: its bias is the documented one, and training with it goes the same way."""

import numpy as np
import pytest
from learning import torch

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import OptionError
from counterpoise.learn import ModulePolicy, PolicyLearner, TwoTower
from counterpoise.learn.blocks import Logits
from counterpoise.learn.optimizers import LazyAdam
from counterpoise.learn.softmax import sampled_log_probability

ITEMS = 400


def some_logits(bias=True):
    random = torch.Generator().manual_seed(0)
    contexts, items = (torch.randn(n, 3, generator=random, dtype=torch.float64) for n in (4, ITEMS))
    b = torch.randn(ITEMS, generator=random, dtype=torch.float64) / 2 if bias else None
    return Logits(contexts, items / 2, b), torch.tensor([0, 7, 7, 399])


def exact(logits, action):
    z = logits.contexts @ logits.items.T + (0 if logits.bias is None else logits.bias)
    p = torch.softmax(z, 1)
    return p, p.gather(1, action[:, None])[:, 0]


@pytest.mark.parametrize("negatives", [50, 200])
def test_the_bias_is_the_documented_one(negatives):
    """To first order in 1/m; what comes after it is of order 1/m², with the third moments of n π, which are below 50 here."""
    torch.manual_seed(1)
    logits, action = some_logits()
    p, target = exact(logits, action)
    runs = torch.stack([sampled_log_probability(logits, action, negatives)[0].exp() / target for _ in range(4000)])
    others = p.square().sum(1) - target.square()
    documented = 1 + (ITEMS * others - (1 - target).square()) / negatives
    error = runs.std(0) / len(runs) ** 0.5
    assert ((runs.mean(0) - documented).abs() < 4 * error + 50 / negatives**2).all()
    assert (runs.mean(0) - 1 > 4 * error).any()  # there is something to see


def test_sums_are_nearly_those_of_all_items():
    torch.manual_seed(2)
    logits, action = some_logits(bias=False)
    p, _ = exact(logits, action)
    runs = [sampled_log_probability(logits, action, 100_000)[1:] for _ in range(3)]
    for squares, mean in runs:
        torch.testing.assert_close(squares, p.square().sum(1), rtol=0.05, atol=0)
        torch.testing.assert_close(mean, p @ logits.items, rtol=0, atol=0.05)


def test_sparse_gradients_are_the_dense_ones():
    logits, action = some_logits(bias=False)
    found = []
    for sparse in (False, True):
        torch.manual_seed(3)
        items = logits.items.clone().requires_grad_()
        sampled_log_probability(Logits(logits.contexts, items), action, 20, sparse=sparse)[0].sum().backward()
        assert items.grad.is_sparse == sparse
        found.append(items.grad.to_dense())
    torch.testing.assert_close(*found)


def test_lazy_adam_is_adam_where_every_row_has_a_gradient():
    torch.manual_seed(4)
    start, steps = torch.randn(5, 2), torch.randn(6, 5, 2)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    lazy, adam = LazyAdam([ours], lr=0.1), torch.optim.Adam([theirs], lr=0.1)
    for gradient in steps:
        ours.grad, theirs.grad = gradient.to_sparse(1), gradient
        lazy.step()
        adam.step()
    torch.testing.assert_close(ours, theirs)


def test_a_policy_learns_from_a_sample_of_its_actions():
    log = SyntheticBandit(n_actions=30, inverse_temperature=-2, seed=1).draw(10_000)
    parts = {name: getattr(log, name) for name in ("context", "action", "reward", "propensity")}
    learner = PolicyLearner(negatives=20, folds=None, epochs=4, learning_rate=0.05, progress=False).fit(**parts)
    assert log.value(learner.predict_proba) > log.reward.mean() + 0.1


def test_it_resumes_from_a_checkpoint(tmp_path):
    log = SyntheticBandit(n_actions=30, seed=1).draw(3_000)
    parts = {name: getattr(log, name) for name in ("context", "action", "reward", "propensity")}

    def fitted(epochs, checkpoint):
        torch.manual_seed(0)
        policy = TwoTower(log.context.shape[1], 30, dimension=4, hidden=(8,))
        learner = PolicyLearner(
            policy=policy, negatives=5, folds=None, epochs=epochs, checkpoint=checkpoint, progress=False
        )
        return learner.fit(**parts)

    whole = fitted(3, None)
    fitted(2, tmp_path / "run.safetensors")
    resumed = fitted(3, tmp_path / "run.safetensors")
    assert resumed.history_ == whole.history_
    np.testing.assert_array_equal(resumed.predict_proba(log.context[:5]), whole.predict_proba(log.context[:5]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"objective": "dr"}, "probabilities of all actions"),
        ({"norms": "all"}, "linear last layer"),
        ({"policy": ModulePolicy(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh()), 3)}, "linear last layer"),
        ({"negatives": 0}, "at least 1"),
    ],
)
def test_it_refuses_what_needs_all_actions(given, said):
    with pytest.raises(OptionError, match=said):
        PolicyLearner(**{"negatives": 5} | given).fit(
            context=np.zeros((4, 2)), action=[0, 1, 2, 0], reward=[0, 1, 0, 1], propensity=[0.5] * 4
        )
