"""A step on lists: its gradient is that of a sum over all lists, and its baselines leave the least variance."""

from itertools import permutations

import pytest
from learning import torch

from counterpoise.learn import MLP, LinearSoftmax, ModulePolicy, PlackettLuce
from counterpoise.learn.objectives import OBJECTIVES
from counterpoise.learn.plackett_luce import ABSENT, pools
from counterpoise.learn.rows import Batch
from counterpoise.learn.steps import (
    LoggedActions,
    LoggedLists,
    RunningBaselines,
    list_baselines,
    list_sums,
    list_weights,
)
from counterpoise.weights import Cascade, Independent, Standard

LISTS = torch.tensor(list(permutations(range(5), 3)))
WEIGHTS = {"standard": Standard(), "cascade": Cascade(), "independent": Independent()}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ranker(kind="linear", slots=3):
    torch.manual_seed(2)
    made = {
        "linear": LinearSoftmax(2, 5, bias=True),
        "mlp": MLP(2, 5, hidden=(4,)),
        "module": ModulePolicy(torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh()), 5),
    }
    return PlackettLuce(made[kind].double(), slots)


def logging(z, weight):
    """The propensities of all lists under logits, of the kind that a weight needs, and the probabilities of the lists."""
    given = pools(z.expand(60, 5), LISTS).log_given.exp()
    whole = given.prod(1)
    if weight.is_running:
        return given, whole
    at = torch.stack([torch.zeros(5, dtype=z.dtype).scatter_add(0, LISTS[:, k], whole) for k in range(3)])
    return torch.stack([at[k, LISTS[:, k]] for k in range(3)], 1), whole


def rewards(name):
    """Rewards of all lists that depend on what the weight allows."""
    own = draw(3, 5, seed=3)
    found = torch.stack([own[k, LISTS[:, k]] for k in range(3)], 1)
    if name != "independent":
        pair = draw(5, 5, seed=4)
        found = found + torch.stack([torch.zeros(60), *(pair[LISTS[:, 0], LISTS[:, k]] for k in (1, 2))], 1)
    return found + draw(60, 3, seed=5) if name == "standard" else found


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("kind", ["linear", "mlp", "module"])
@pytest.mark.parametrize("uniform", [False, True])
def test_the_gradient_is_that_of_the_value_over_all_lists(name, kind, uniform):
    policy, weight = ranker(kind), WEIGHTS[name]
    context, reward = draw(1, 2, seed=6).expand(60, 2), rewards(name)
    propensity, whole = logging(torch.zeros(5, dtype=torch.float64) if uniform else draw(5, seed=7), weight)
    truth = (policy.target(context, LISTS) * reward.sum(1)).sum()
    expected = torch.autograd.grad(-truth, list(policy.parameters()))
    # every list is there once: where they are not equally likely, rewards are scaled by how likely theirs is
    batch = Batch(context, LISTS, reward if uniform else reward * 60 * whole[:, None], propensity, 60)
    for baseline in (0.0, 0.7) if uniform else (0.0,):
        policy.zero_grad(set_to_none=True)
        LoggedLists(policy, weight).backward(batch, baseline, OBJECTIVES["beta_ips"])
        for parameter, gradient in zip(policy.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["standard", "cascade"])
@pytest.mark.parametrize("baseline", [0.0, 0.7])
def test_baselines_leave_the_gradient_alone_where_lists_end_because_of_an_item(name, baseline):
    policy, weight = ranker(), WEIGHTS[name]
    context = draw(1, 2, seed=6).expand(60, 2)
    ends = torch.cat([torch.zeros(60, 1, dtype=torch.bool), (LISTS == 0).cumsum(1)[:, :-1] > 0], 1)  # below item 0
    items, reward = LISTS.masked_fill(ends, ABSENT), rewards("cascade").masked_fill(ends, 0.0)
    propensity = logging(torch.zeros(5, dtype=torch.float64), weight)[0].masked_fill(ends, 1.0)
    truth = (policy.target(context, LISTS) * reward.sum(1)).sum()
    expected = torch.autograd.grad(-truth, list(policy.parameters()))
    batch = Batch(context, items, reward, propensity, 60)
    LoggedLists(policy, weight).backward(batch, baseline, OBJECTIVES["beta_ips"])
    for parameter, gradient in zip(policy.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-10)


def a_batch(rows=50, seed=8):
    random = torch.Generator().manual_seed(seed)
    items = torch.stack([torch.randperm(5, generator=random)[:3] for _ in range(rows)])
    items[::7, 2] = ABSENT
    there = items != ABSENT
    reward = torch.where(there, 1 + draw(rows, 3, seed=9), 0.0)
    propensity = torch.where(there, 0.2 + 0.5 * torch.rand(rows, 3, generator=random, dtype=torch.float64), 1.0)
    return Batch(draw(rows, 2, seed=10), items, reward, propensity, rows)


def gradients_of_rows(policy, batch, weight, parameters):
    """∇w of every list and term, lists × terms × parameters, by autograd."""
    found = []
    for i in range(len(batch.reward)):
        one = list_weights(
            policy(batch.context[i : i + 1]), batch.action[i : i + 1], batch.propensity[i : i + 1], weight
        )
        terms = []
        for w in one.weight[0]:
            if w.requires_grad:
                parts = torch.autograd.grad(w, parameters, retain_graph=True)
                terms.append(torch.cat([part.flatten() for part in parts]))
        found.append(torch.stack(terms))
    return torch.stack(found)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_products_baselines_and_variance_are_those_of_the_gradients_row_by_row(name, kind):
    policy, weight, batch = ranker(kind), WEIGHTS[name], a_batch()
    logged = LoggedLists(policy, weight)
    rows = gradients_of_rows(policy, batch, weight, list(policy.scores.scores.parameters()))
    found, _ = logged.weights(batch.context, batch.action, batch.propensity)
    torch.testing.assert_close(found.products, rows @ rows.transpose(1, 2), rtol=1e-8, atol=1e-10)
    reward = logged.rewards(batch.reward)
    # least squares: the baselines that leave the gradients of all lists the least sum of squares
    flat = rows.transpose(1, 2).reshape(-1, rows.shape[1])
    beta = torch.linalg.lstsq(flat, (rows * reward[:, :, None]).sum(1).flatten()[:, None]).solution[:, 0]
    policy.zero_grad(set_to_none=True)
    step = logged.backward(batch, None, OBJECTIVES["beta_ips"])
    torch.testing.assert_close(list_baselines(step.sums), beta, rtol=1e-6, atol=1e-8)
    assert step.baseline.item() == pytest.approx(beta.sum().item(), rel=1e-6)
    each = (rows * (reward - beta)[:, :, None]).sum(1)
    assert step.variance.item() == pytest.approx(each.var(0, correction=0).sum().item() / len(each), rel=1e-6)


@pytest.mark.parametrize("objective", ["snips", "value_beta_ips"])
def test_an_objective_is_computed_position_by_position_and_added_up(objective):
    policy, batch = ranker(), a_batch()
    w = list_weights(policy(batch.context), batch.action, batch.propensity, Cascade()).weight
    value = sum(OBJECTIVES[objective](w[:, k], batch.reward[:, k], torch.ones(50)) for k in range(3))
    expected = torch.autograd.grad(-value, list(policy.parameters()))
    LoggedLists(policy, Cascade()).backward(batch, None, OBJECTIVES[objective])
    for parameter, gradient in zip(policy.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("name", WEIGHTS)
def test_lists_of_one_item_are_single_rows(name):
    policy, whole = ranker(slots=1), a_batch()
    batch = Batch(whole.context, whole.action[:, :1], whole.reward[:, :1], whole.propensity[:, :1], whole.total)
    step = LoggedLists(policy, WEIGHTS[name]).backward(batch, None)
    found = [parameter.grad for parameter in policy.parameters()]
    policy.zero_grad(set_to_none=True)
    rows = Batch(batch.context, *(part[:, 0] for part in (batch.action, batch.reward, batch.propensity)), batch.total)
    expected = LoggedActions(policy.scores).backward(rows, None)
    torch.testing.assert_close(step.baseline, expected.baseline)
    torch.testing.assert_close(step.variance, expected.variance)
    for one, parameter in zip(found, policy.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad)


def test_running_baselines_are_those_of_the_batches_before():
    running = RunningBaselines(2, decay=0.5)
    assert running.value.tolist() == [0.0, 0.0]
    products, reward = draw(4, 2, 3).matmul(draw(4, 3, 2, seed=1)), draw(4, 2, seed=2)
    products = products @ products.transpose(1, 2)
    sums = list_sums(products, reward)
    running.update(sums)
    expected = torch.linalg.solve(products.sum(0), (products @ reward[:, :, None]).sum(0))[:, 0]
    torch.testing.assert_close(running.value, expected)
    running.update(2 * sums)
    torch.testing.assert_close(running.value, expected)
    torch.testing.assert_close(running.sums, 2.5 * sums)
