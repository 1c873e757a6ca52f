"""Memory beyond parameters and gradients is the same for 10⁵ items and for 10⁶."""

import pytest
from learning import torch
from torch.profiler import ProfilerActivity, profile

from counterpoise.learn import TwoTower, blocks, softmax
from counterpoise.learn.options import Options
from counterpoise.learn.rows import Batch
from counterpoise.learn.softmax import Arithmetic
from counterpoise.learn.steps import LoggedActions

ROWS, WIDTH = 8, 4
MIB = 2**20


def peak(work):
    """The most bytes that PyTorch held at once on top of what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    held = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def made(items, features):
    torch.manual_seed(0)
    policy = TwoTower(
        3, items, dimension=WIDTH, hidden=(), item_features=torch.randn(items, WIDTH) if features else None
    )
    context, action = torch.randn(ROWS, 3), torch.randint(items, (ROWS,))
    return policy, Batch(context, action, torch.rand(ROWS), torch.full((ROWS,), 1 / items), ROWS)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(softmax, "CELLS", 1)
    monkeypatch.setattr(blocks, "BLOCK", {"cpu": 2**15})  # which parts of 10⁵ items fill, too


def beyond_gradients(items, features, arithmetic):
    policy, batch = made(items, features)
    found = peak(lambda: LoggedActions(policy, arithmetic=arithmetic).backward(batch, None))
    return found - sum(p.grad.numel() * 4 for p in policy.parameters() if not p.grad.is_sparse)


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("arithmetic", [Arithmetic(), Arithmetic(negatives=100, sparse=True)])
def test_a_step(features, arithmetic):
    few, many = (beyond_gradients(items, features, arithmetic) for items in (100_000, 1_000_000))
    assert many < few + 0.1 * MIB
    assert many < 4 * MIB  # an array of all logits has 32


@pytest.mark.parametrize("features", [False, True])
def test_what_a_policy_does(features):
    def most(items):
        policy, batch = made(items, features)

        def work():
            policy.greedy(batch.context)
            policy.sample(batch.context)
            with torch.no_grad():
                policy.target(batch.context, batch.action)

        return peak(work)

    few, many = most(100_000), most(1_000_000)
    assert many < few + 0.1 * MIB
    assert many < 8 * MIB


def test_adam():
    """The optimizer of a large policy makes no copies of its parameters on the way."""
    given = dict.fromkeys(Options.__dataclass_fields__)
    policy, batch = made(1_000_000, False)
    optimizer = Options(**given | {"learning_rate": 0.1}).optimizer_of(policy)
    LoggedActions(policy).backward(batch, None)
    optimizer.step()
    assert peak(optimizer.step) < 0.1 * MIB
