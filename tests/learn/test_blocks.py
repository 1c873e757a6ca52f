"""Many items, block by block: the same step, probabilities and choices as with an array of all logits."""

import pytest
from learning import torch
from messages import refuses

from counterpoise.errors import OptionError
from counterpoise.estimators.weighted import beta_ips
from counterpoise.learn import MLP, LinearSoftmax, TwoTower, blocks, softmax
from counterpoise.learn.criterion import moments_of
from counterpoise.learn.objectives import OBJECTIVES
from counterpoise.learn.rows import Batch, Rows
from counterpoise.learn.steps import LoggedActions

ITEMS, ROWS = 203, 37
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def made(kind, dtype=torch.float64):
    torch.manual_seed(2)
    features = torch.randn(ITEMS, 6)
    kinds = {
        "linear with bias": lambda: LinearSoftmax(5, ITEMS, bias=True),
        "mlp": lambda: MLP(5, ITEMS, hidden=(7,)),
        "two towers": lambda: TwoTower(5, ITEMS, dimension=4, hidden=(7,)),
        "item features": lambda: TwoTower(5, ITEMS, dimension=4, hidden=(7,), item_features=features),
    }
    policy = kinds[kind]().to(dtype)
    with torch.no_grad():
        for parameter in policy.scores.parameters():
            parameter.mul_(4)  # a policy with an opinion
    return policy


def batch_of(dtype):
    random = torch.Generator().manual_seed(3)
    context = torch.randn(ROWS, 5, generator=random, dtype=torch.float64)
    reward = 2 + torch.randn(ROWS, generator=random, dtype=torch.float64)
    propensity = (0.5 + torch.rand(ROWS, generator=random, dtype=torch.float64)) / ITEMS
    action = torch.randint(ITEMS, (ROWS,), generator=random)
    return Batch(context.to(dtype), action, reward.to(dtype), propensity.to(dtype), ROWS)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16 rows and 50 items, which divide neither the rows nor the items."""
    monkeypatch.setattr(softmax, "CELLS", 1)
    monkeypatch.setattr(softmax, "LEAST_ITEMS", 1)
    monkeypatch.setattr(blocks, "ROWS", 16)
    monkeypatch.setattr(blocks, "BLOCK", {"cpu": 16 * 50})


KINDS = ["linear with bias", "mlp", "two towers", "item features"]


def gradients(policy):
    found = {name: parameter.grad for name, parameter in policy.named_parameters()}
    policy.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("objective", "norms"), [("beta_ips", "last_layer"), ("snips", "last_layer"), ("beta_ips", "all")]
)
def test_a_step_is_the_dense_one(kind, dtype, objective, norms, request):
    policy, batch, limit = made(kind, dtype), batch_of(dtype), TOLERANCE[dtype]
    expected = LoggedActions(policy, norms=norms).backward(batch, None, objective=OBJECTIVES[objective])
    dense = gradients(policy)
    request.getfixturevalue("small_blocks")
    step = LoggedActions(policy, norms=norms).backward(batch, None, objective=OBJECTIVES[objective])
    for name, gradient in gradients(policy).items():
        assert (gradient - dense[name]).norm() <= limit * dense[name].norm(), name
    torch.testing.assert_close(step.baseline, expected.baseline, rtol=limit, atol=0)
    torch.testing.assert_close(step.variance, expected.variance, rtol=10 * limit, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_the_dense_ones(kind, request):
    policy, batch = made(kind), batch_of(torch.float64)
    asked = (batch.context, batch.action)
    found = [policy.target(*asked), policy.log_target(*asked), policy.greedy(batch.context)]
    rows = Rows(batch.context, batch.action, batch.reward, batch.propensity)
    moments = moments_of(policy, [rows])
    (expected,) = torch.autograd.grad(found[1].sum(), [next(policy.parameters())])
    request.getfixturevalue("small_blocks")
    for one, other in zip(
        found, [policy.target(*asked), policy.log_target(*asked), policy.greedy(batch.context)], strict=True
    ):
        torch.testing.assert_close(one, other)
    (gradient,) = torch.autograd.grad(policy.log_target(*asked).sum(), [next(policy.parameters())])
    torch.testing.assert_close(gradient, expected)
    assert beta_ips(moments_of(policy, [rows])).value == pytest.approx(beta_ips(moments).value)


@pytest.mark.usefixtures("small_blocks")
def test_draws_follow_the_policy_and_know_their_probability():
    """The share of every item among 10,000 draws, by χ², which has a mean of 202 and a standard deviation of 20."""
    policy, draws = made("two towers"), 10_000
    context = batch_of(torch.float64).context[:1]
    action, propensity = policy.sample(context.expand(draws, -1), generator=torch.Generator().manual_seed(0))
    p = torch.softmax(policy(context), 1)[0].detach()
    torch.testing.assert_close(propensity, p[action])
    expected = draws * p
    square = ((torch.bincount(action, minlength=ITEMS) - expected) ** 2 / expected).sum()
    assert abs(square - (ITEMS - 1)) < 4 * (2 * (ITEMS - 1)) ** 0.5


def test_huge_logits_do_not_overflow():
    contexts = torch.tensor([[300.0, 0.0], [-300.0, 1.0]])
    items = torch.stack([torch.linspace(-5, 5, 90), torch.ones(90)], 1)
    found = blocks.Logits(contexts, items)
    seen = blocks.summary(found, torch.tensor([89, 0]), mean=True)
    torch.testing.assert_close(seen.log_total, torch.logsumexp(contexts @ items.T, 1))
    assert torch.isfinite(seen.mean).all()


def test_threads_change_nothing(monkeypatch):
    """Parts of the items are the same for any number of threads, and so are their sums to the last bit."""
    monkeypatch.setattr(blocks, "LEAST", 20)
    random = torch.Generator().manual_seed(5)
    made = blocks.Logits(*(torch.randn(n, 4, generator=random) for n in (9, 203)))
    action, scale = torch.randint(203, (9,), generator=random), torch.rand(9, generator=random)
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            seen = blocks.summary(made, action, mean=True)
            found.append(
                [seen.log_total, seen.squares, seen.mean, blocks.item_gradients(made, seen.log_total, scale)[0]]
            )
            assert torch.get_num_threads() == count
        finally:
            torch.set_num_threads(1)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("small_blocks")
def test_all_norms_refuse_a_layer_that_is_used_twice():
    policy = made("two towers")
    twice = torch.nn.Linear(5, 5, dtype=torch.float64)
    policy.body = torch.nn.Sequential(twice, torch.nn.Tanh(), twice, policy.body)
    with refuses(OptionError):
        LoggedActions(policy, norms="all").backward(batch_of(torch.float64), None)
