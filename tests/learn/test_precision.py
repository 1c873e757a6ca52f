"""precision=: bfloat16 layers before the last, sums in float32, and what a device cannot do is refused."""

import pytest
from learning import policies, small_log, torch
from torch import nn

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import OptionError
from counterpoise.learn import MLP, ModulePolicy, PolicyLearner
from counterpoise.learn.norms import default_norms
from counterpoise.learn.objectives import OBJECTIVES
from counterpoise.learn.rows import Batch
from counterpoise.learn.softmax import Arithmetic
from counterpoise.learn.steps import LoggedActions

HALF = Arithmetic("bfloat16")


def step_of(policy, batch, arithmetic, norms, **more):
    policy.zero_grad(set_to_none=True)
    step = LoggedActions(policy, norms=norms, arithmetic=arithmetic).backward(batch, None, **more)
    return step, torch.cat([p.grad.flatten() for p in policy.parameters()])


@pytest.mark.parametrize("kind", list(policies()))
@pytest.mark.parametrize("norms", ["default", "all"])
def test_bfloat16_is_close_to_float32_and_not_the_same(kind, norms):
    """Numbers of bfloat16 have 8 bits; a few layers add up to a few percent."""
    policy = policies()[kind].float()
    norms = default_norms(policy) if norms == "default" else norms
    batch = Batch(*(part.float() if part.is_floating_point() else part for part in small_log()), 40)
    exact, gradient = step_of(policy, batch, Arithmetic(), norms)
    step, found = step_of(policy, batch, HALF, norms)
    assert found.dtype == step.variance.dtype == torch.float32
    assert (found - gradient).norm() < 0.05 * gradient.norm()
    assert abs(step.variance - exact.variance) < 0.1 * exact.variance
    body_has_products = any(isinstance(layer, nn.Linear) for layer in policy.body.modules())
    if body_has_products:
        assert not torch.equal(found, gradient)


def test_doubly_robust_steps_too():
    policy = policies()["mlp"].float()
    rows = (part.float() if part.is_floating_point() else part for part in small_log())
    batch = Batch(*rows, 40, torch.rand(40, 6))
    more = {"objective": OBJECTIVES["dr"]}
    _, gradient = step_of(policy, batch, Arithmetic(), "last_layer", **more)
    _, found = step_of(policy, batch, HALF, "last_layer", **more)
    assert 0 < (found - gradient).norm() < 0.05 * gradient.norm()


def test_the_layers_of_the_body_see_bfloat16():
    seen = []
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 6))
    module[0].register_forward_hook(lambda layer, inputs, output: seen.append(output.dtype))
    policy = ModulePolicy(module, 6)
    batch = Batch(*(part.float() if part.is_floating_point() else part for part in small_log()), 40)
    for norms in ("last_layer", "all"):
        step_of(policy, batch, HALF, norms)
        assert seen.pop() == torch.bfloat16
        assert not seen
    policy(batch.context)  # outside of training it is as it was
    assert seen == [torch.float32]


def test_a_policy_learns_in_bfloat16():
    log = SyntheticBandit(n_actions=10, inverse_temperature=-2, seed=1).draw(5_000)
    parts = {name: getattr(log, name) for name in ("context", "action", "reward", "propensity")}
    values = []
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        policy = MLP(log.context.shape[1], 10, hidden=(16,))
        learner = PolicyLearner(
            policy=policy, precision=precision, epochs=4, learning_rate=0.02, progress=False, folds=None
        )
        values.append(log.value(learner.fit(**parts).predict_proba))
        assert all(p.dtype == torch.float32 for p in policy.parameters())
    assert min(values) > log.reward.mean() + 0.05
    assert abs(values[0] - values[1]) < 0.02


@pytest.mark.parametrize(("precision", "said"), [("half", "precision must be"), ("tf32", "needs a GPU")])
def test_it_refuses_what_is_no_precision_here(precision, said):
    log = SyntheticBandit(n_actions=3, seed=1).draw(100)
    parts = {name: getattr(log, name) for name in ("context", "action", "reward", "propensity")}
    with pytest.raises(OptionError, match=said):
        PolicyLearner(precision=precision).fit(**parts)


def test_settings_of_products_come_back(monkeypatch):
    """TF32 is PyTorch's setting for the whole process, and a step leaves it as it was."""
    cuda = torch.device("cuda")
    assert torch.get_float32_matmul_precision() == "highest"
    for precision, during in ((None, "high"), ("tf32", "high"), ("bfloat16", "high"), ("float32", "highest")):
        with Arithmetic(precision).products(cuda):
            assert torch.get_float32_matmul_precision() == during
        assert torch.get_float32_matmul_precision() == "highest"
