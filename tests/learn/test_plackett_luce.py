"""A Plackett–Luce policy draws the lists it says it draws, and its probabilities and gradients are those of a sum over all lists."""

from itertools import permutations

import numpy as np
import pytest
from learning import policies, torch
from messages import refuses

from counterpoise.errors import OptionError, PolicyFileError
from counterpoise.learn import LinearSoftmax, ModulePolicy, PlackettLuce, load_policy, save_policy
from counterpoise.learn.plackett_luce import ABSENT, at_slots, pools, prefix_products
from counterpoise.learn.tensor_files import read_tensors, write_tensors

LISTS = torch.tensor(list(permutations(range(5), 3)))


def scores(rows, items, scale=1.0, seed=0):
    random = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, items, generator=random, dtype=torch.float64)


def by_hand(z, items):
    """The probabilities of the items of one list given those above, one by one."""
    left, found = list(range(len(z))), []
    for a in items:
        if a == ABSENT:
            found.append(1.0)
            continue
        found.append(float(torch.exp(z[a]) / torch.exp(z[left]).sum()) if a in left else 0.0)
        left = [b for b in left if b != a]
    return found


@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0])
def test_the_probabilities_of_all_lists_sum_to_1(scale):
    policy = PlackettLuce(LinearSoftmax(2, 5).double(), 3)
    with torch.no_grad():
        policy.scores.scores.weight.mul_(10 * scale)
    context = torch.tensor([[0.3, -1.0]], dtype=torch.float64).expand(60, 2)
    assert policy.target(context, LISTS).sum().item() == pytest.approx(1, abs=1e-12)


def test_items_given_those_above_are_those_of_a_plain_loop():
    z = scores(4, 5, 2.0)
    items = torch.tensor([[0, 3, 1], [4, 4, 2], [2, ABSENT, ABSENT], [1, 0, ABSENT]])
    expected = [by_hand(z[i], items[i].tolist()) for i in range(4)]
    torch.testing.assert_close(pools(z, items).log_given.exp(), torch.tensor(expected, dtype=torch.float64))


def test_a_sharp_policy_keeps_its_digits_in_single_precision():
    z = torch.tensor([[60.0, 1.0, 0.0, 0.5]])
    exact = pools(z.double(), torch.tensor([[0, 1, 2]])).log_given
    torch.testing.assert_close(pools(z, torch.tensor([[0, 1, 2]])).log_given.double(), exact, rtol=1e-5, atol=1e-6)


def test_inner_products_of_gradients_are_those_of_autograd_row_by_row():
    z = scores(6, 5, 1.5).requires_grad_()
    items = torch.tensor([[0, 3, 1], [4, 2, ABSENT], [2, ABSENT, ABSENT], [1, 0, 4], [3, 4, 0], [4, 3, 2]])
    found = prefix_products(pools(z, items, squares=True))
    for i in range(6):
        log_given = pools(z[i : i + 1], items[i : i + 1]).log_given[0].cumsum(0)
        rows = torch.stack([torch.autograd.grad(one, z, retain_graph=True)[0][i] for one in log_given])
        torch.testing.assert_close(found[i], rows @ rows.T, rtol=1e-10, atol=1e-12)


def marginals(z):
    """P(item at slot), slots × items, by adding up all lists of 5 items and 3 slots; differentiable."""
    probability = pools(z[None].expand(60, 5), LISTS).log_given.sum(1).exp()
    zero = torch.zeros(5, dtype=z.dtype)
    return torch.stack([zero.scatter_add(0, LISTS[:, k], probability) for k in range(3)])


@pytest.mark.parametrize("scale", [1.0, 6.0])
def test_items_at_positions_are_the_sums_over_all_lists_and_so_are_their_gradients(scale):
    z = scores(3, 5, scale, seed=1).requires_grad_()
    items = torch.tensor([[0, 3, 1], [4, 2, 0], [2, 1, ABSENT]])
    found, slope = at_slots(z, items)
    for i in range(3):
        table = marginals(z[i])
        for k in range(3):
            if items[i, k] == ABSENT:
                assert found[i, k] == 1
                assert not slope[i, k].any()
                continue
            expected = table[k, items[i, k]]
            assert found[i, k].item() == pytest.approx(expected.item(), rel=1e-10)
            (gradient,) = torch.autograd.grad(expected, z, retain_graph=True)
            torch.testing.assert_close(slope[i, k], gradient[i], rtol=1e-9, atol=1e-12)
    (whole,) = torch.autograd.grad(found.sum(), z)
    torch.testing.assert_close(whole, slope.sum(1))
    single, rough = at_slots(z.detach().float().requires_grad_(), items)
    torch.testing.assert_close(single.double(), found, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(rough.double(), slope, rtol=1e-4, atol=1e-6)


def test_gumbel_top_k_draws_lists_as_often_as_their_probabilities_say():
    policy = PlackettLuce(LinearSoftmax(1, 5).double(), 3)
    with torch.no_grad():
        policy.scores.scores.weight.copy_(scores(1, 5).T)
    draws = 60_000
    shown = policy.sample(np.ones((draws, 1)), seed=3)
    place = {tuple(one): k for k, one in enumerate(LISTS.tolist())}
    count = np.bincount([place[tuple(one)] for one in shown.items.tolist()], minlength=60)
    expected = draws * policy.target(torch.ones(60, 1, dtype=torch.float64), LISTS).detach().numpy()
    # the statistic has mean 59 and standard deviation √118
    assert ((count - expected) ** 2 / expected).sum() < 59 + 5 * np.sqrt(118)


def test_what_is_shown_comes_with_its_propensities_ready_to_log():
    policy = PlackettLuce(LinearSoftmax(2, 5), 3)
    policy.actions_ = [10, 20, 30, 40, 50]
    context = scores(7, 2).float()
    shown = policy.sample(context.numpy(), seed=1)
    again = policy.sample(context, seed=1)
    np.testing.assert_array_equal(shown.items, again.items)
    assert (policy.sample(context, seed=2).items != shown.items).any()
    assert set(np.unique(shown.items)) <= {10, 20, 30, 40, 50}
    z = policy(context).double().detach()
    expected = [by_hand(z[i], (shown.items[i] // 10 - 1).tolist()) for i in range(7)]
    np.testing.assert_allclose(shown.given_above, expected, rtol=1e-9)
    np.testing.assert_allclose(shown.propensity, np.prod(expected, axis=1), rtol=1e-9)
    log = shown.columns(first_list=4)
    assert log["list"].tolist() == [k for k in range(4, 11) for _ in range(3)]
    np.testing.assert_array_equal(log["item"].reshape(7, 3), shown.items)
    np.testing.assert_array_equal(log["propensity"].reshape(7, 3), shown.given_above)
    best = torch.argsort(-policy(context), dim=1)[:, :3]
    np.testing.assert_array_equal(policy.greedy(context), 10 * (best + 1))


def test_probabilities_of_logged_lists():
    policy = PlackettLuce(LinearSoftmax(2, 5).double(), 3)
    policy.actions_ = [1, 2, 3, 4, 5]
    context = np.array([[0.5, 1.0], [0.5, 1.0]])
    z = policy(torch.as_tensor(context)).detach()
    given = policy.list_probabilities(context, [[1, 5, 9], [3, -1, -1]])
    np.testing.assert_allclose(given, [[*by_hand(z[0], [0, 4]), 0.0], [by_hand(z[1], [2])[0], 1.0, 1.0]])
    at = policy.list_probabilities(context, [[1, 5, 9], [3, -1, -1]], "item_at_position")
    table = marginals(z[0])
    np.testing.assert_allclose(at, [[table[0, 0], table[1, 4], 0.0], [table[0, 2], 1.0, 1.0]], rtol=1e-9)
    with refuses(OptionError):
        policy.list_probabilities(context, np.ones((2, 4)))
    with refuses(OptionError):
        policy.list_probabilities(context, [[1], [2]], "item")


KINDS = ["linear with bias", "normalised mlp", "two towers", "two towers with item features"]


@pytest.mark.parametrize("kind", KINDS)
def test_loading_gives_back_what_was_saved(kind, tmp_path):
    policy = PlackettLuce(policies()[kind].float(), 4)
    policy.actions_ = [3, 5, 7, 11, 13, 17]
    save_policy(policy, tmp_path / "policy", context=("a", "b", "c"))
    found = load_policy(tmp_path / "policy")
    assert (found.slots, found.context_, type(found.scores)) == (4, ("a", "b", "c"), type(policy.scores))
    context = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_array_equal(found.predict_proba(context), policy.predict_proba(context))
    for one, other in zip(policy.sample(context, seed=0), found.sample(context, seed=0), strict=True):
        np.testing.assert_array_equal(one, other)


def test_modules_of_ones_own_are_loaded_with_make(tmp_path):
    module = torch.nn.Linear(3, 4)
    save_policy(PlackettLuce(ModulePolicy(module, 4), 2), tmp_path / "policy")
    with refuses(PolicyFileError):
        load_policy(tmp_path / "policy")

    def make(slots, kind, arguments):
        return PlackettLuce(ModulePolicy(torch.nn.Linear(3, 4), **arguments), slots)

    found = load_policy(tmp_path / "policy", make=make)
    torch.testing.assert_close(found.scores.scores.weight, module.weight)


def test_temperatures_and_masks():
    policy = PlackettLuce(LinearSoftmax(2, 5).double(), 3)
    context = scores(4, 2).numpy()
    z = policy(torch.as_tensor(context)).detach()
    cold = policy.sample(context, temperature=0)
    np.testing.assert_array_equal(cold.items, torch.argsort(-z, dim=1)[:, :3])
    assert (cold.given_above == 1).all()
    assert (cold.propensity == 1).all()
    warm = policy.sample(context, temperature=0.5, seed=1)
    np.testing.assert_allclose(warm.given_above[0], by_hand(2 * z[0], warm.items[0].tolist()))
    masked = policy.sample(context, mask=[True, False, True, True, False], seed=1)
    assert set(np.unique(masked.items)) == {0, 2, 3}
    np.testing.assert_allclose(
        masked.given_above[0], by_hand(z[0, [0, 2, 3]], [[0, 2, 3].index(a) for a in masked.items[0]])
    )
    with refuses(OptionError):
        policy.sample(context, mask=[True, False, True, False, False])
    policy.temperature = 0.5
    np.testing.assert_allclose(policy.list_probabilities(context, warm.items), warm.given_above)
    np.testing.assert_array_equal(policy.sample(context, seed=1).items, warm.items)


def test_what_does_not_fit_is_refused(tmp_path):
    with refuses(OptionError):
        PlackettLuce(LinearSoftmax(2, 5), 6)
    with refuses(OptionError):
        PlackettLuce(torch.nn.Linear(2, 5), 2)
    save_policy(PlackettLuce(LinearSoftmax(2, 5), 2), tmp_path / "policy")
    tensors, description = read_tensors(tmp_path / "policy")
    for change, says in (
        ({"kind": "Mine"}, "is a Mine"),
        ({"kind": 3}, "the policies it is made of are missing"),
        ({"slots": 9}, "slots"),
    ):
        arguments = description["config"]["arguments"] | change
        damaged = description | {"config": description["config"] | {"arguments": arguments}}
        write_tensors(tmp_path / "other", tensors, damaged)
        with pytest.raises(PolicyFileError, match=says):
            load_policy(tmp_path / "other")
