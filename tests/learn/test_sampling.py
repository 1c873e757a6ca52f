"""Serving a policy: draws at a temperature, among the actions that are allowed, with the propensity that a logger must record."""

import numpy as np
import pytest
from learning import policies, small_log, torch
from messages import refuses

import counterpoise as cp
from counterpoise.environments import SyntheticBandit
from counterpoise.errors import LogError, OptionError
from counterpoise.learn import LinearSoftmax, ModulePolicy, PolicyLearner, softmax
from counterpoise.learn import policy as module

CONTEXT = small_log()[0].numpy() * 3
MASK = np.random.default_rng(0).random((len(CONTEXT), 6)) < 0.5
MASK[:, 2] |= ~MASK.any(1)


def closed_form(policy, temperature, mask):
    """The probabilities as the definition has them: powers of those at temperature 1, over the allowed actions."""
    table = policy.predict_proba(CONTEXT) ** (1 / temperature) * (1 if mask is None else mask)
    return table / table.sum(1, keepdims=True)


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("kind", ["linear", "two towers", "embedding"])
def test_the_propensity_is_that_of_the_tempered_and_masked_softmax(kind, temperature, mask, monkeypatch):
    monkeypatch.setattr(module, "CELLS", 6 * 7)  # several parts, and a last one that is shorter
    policy = policies()[kind]
    expected = closed_form(policy, temperature, mask)
    np.testing.assert_allclose(policy.predict_proba(CONTEXT, temperature=temperature, mask=mask), expected)
    action, propensity = policy.sample(CONTEXT, temperature=temperature, mask=mask, seed=1)
    assert action.dtype == np.int64
    assert propensity.dtype == np.float64
    np.testing.assert_allclose(propensity, expected[np.arange(len(CONTEXT)), action])
    again = policy.sample(
        torch.as_tensor(CONTEXT), temperature=temperature, mask=mask, generator=torch.Generator().manual_seed(1)
    )
    np.testing.assert_array_equal(again[0], action)
    np.testing.assert_array_equal(again[1], propensity)
    found = policy.propensity(CONTEXT, action, temperature=temperature, mask=mask)
    np.testing.assert_array_equal(found, propensity)


def test_frequencies_are_the_propensities():
    policy, rows = policies()["linear"], 40_000
    context, mask = np.repeat(CONTEXT[:1], rows, axis=0), np.array([True, True, False, True, True, False])
    action, _ = policy.sample(context, temperature=2.0, mask=mask, seed=3)
    expected = policy.predict_proba(CONTEXT[:1], temperature=2.0, mask=mask)[0]
    assert (expected[[2, 5]] == 0).all()
    share = np.bincount(action, minlength=6) / rows
    assert (np.abs(share - expected) <= 5 * np.sqrt(expected * (1 - expected) / rows)).all()


@pytest.mark.parametrize("temperature", [0, 1e-300])
def test_at_temperature_0_the_best_allowed_action_is_certain(temperature):
    policy = policies()["mlp"]
    best = np.where(MASK, policy.predict_proba(CONTEXT), -1).argmax(1)
    action, propensity = policy.sample(CONTEXT, temperature=temperature, mask=MASK)
    np.testing.assert_array_equal(action, best)
    np.testing.assert_array_equal(propensity, 1.0)
    np.testing.assert_array_equal(policy.predict_proba(CONTEXT, temperature=temperature, mask=MASK), np.eye(6)[best])
    np.testing.assert_array_equal(policy.propensity(CONTEXT, best, temperature=temperature, mask=MASK), 1.0)


@pytest.mark.parametrize("temperature", [0, 0.5, 1])
def test_what_serves_and_is_judged_among_many_items_never_has_all_probabilities_in_memory(monkeypatch, temperature):
    monkeypatch.setattr(softmax, "LEAST_ITEMS", 1)
    monkeypatch.setattr(softmax, "CELLS", 6)
    policy = policies()["two towers"]
    policy.temperature = temperature
    table = policy.predict_proba(CONTEXT)
    action = np.random.default_rng(1).integers(7, size=len(CONTEXT))  # it knows six
    expected = np.where(action < 6, table[np.arange(len(CONTEXT)), np.minimum(action, 5)], 0)
    monkeypatch.setattr(module.Policy, "forward", None)  # which has all logits
    monkeypatch.setattr(module.Policy, "predict_proba", None)
    np.testing.assert_allclose(policy.propensity(CONTEXT, action), expected, rtol=1e-9)
    np.testing.assert_array_equal(policy.greedy(CONTEXT), table.argmax(1))
    columns = {name: CONTEXT[:, k] for k, name in enumerate("xyz")}
    log = columns | {"a": action, "p": np.full(len(action), 0.5), "r": np.arange(len(action)) % 2}
    asked = {"context": ["x", "y", "z"], "action": "a", "reward": "r", "propensity": "p"}
    found = cp.evaluate(log, target=policy, **asked, estimator="ips")
    assert found[found.targets[0], "ips"].value == pytest.approx((expected / 0.5 * log["r"]).mean(), rel=1e-9)


def test_the_propensity_of_names_and_of_what_is_not_an_action():
    policy = LinearSoftmax(2, 3)
    policy.actions_ = ["a", "b", "c"]
    np.testing.assert_allclose(policy.propensity(np.zeros((2, 2)), ["b", "new"]), [1 / 3, 0])
    with refuses(OptionError):
        policy.propensity(np.zeros((2, 2)), ["b"])
    with refuses(OptionError):
        LinearSoftmax(2, 3).propensity(np.zeros((1, 2)), ["b"])


def test_a_learner_samples_by_the_ids_of_its_log_and_from_frames():
    log = SyntheticBandit(n_actions=4, inverse_temperature=-3, seed=2).draw(1000)
    frame, ids = log.frame(), np.array([7, 30, 31, 90])
    names = [f"context_{k}" for k in range(5)]
    learner = PolicyLearner(epochs=1, batch_size=256).fit(
        context=log.context, action=ids[log.action], reward=log.reward, propensity=log.propensity
    )
    action, propensity = learner.sample(frame[names], seed=2)
    assert set(action) <= set(ids)
    table = learner.predict_proba(frame[names])
    np.testing.assert_array_equal(propensity, table[np.arange(1000), np.searchsorted(ids, action)])
    np.testing.assert_array_equal(learner.sample(log.context, seed=2)[0], action)
    assert not np.array_equal(learner.sample(frame[names], seed=3)[0], action)


def test_a_policy_serves_at_its_own_temperature_unless_asked_for_another():
    policy = policies()["linear"]
    expected = closed_form(policy, 0.5, None)
    policy.temperature = 0.5
    np.testing.assert_allclose(policy.predict_proba(CONTEXT), expected)
    action, propensity = policy.sample(CONTEXT, seed=1)
    np.testing.assert_allclose(propensity, expected[np.arange(len(CONTEXT)), action])
    policy.temperature = 1.0
    plain = policy.predict_proba(CONTEXT)
    policy.temperature = 0
    np.testing.assert_array_equal(policy.predict_proba(CONTEXT, temperature=1), plain)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]
)
def test_tensors_of_any_number_type_are_contexts_and_one_context_is_a_row(dtype):
    policy = LinearSoftmax(3, 6)
    context = torch.tensor([[1, 0, 1], [0, 1, 1]])
    expected = policy.sample(context.numpy(), seed=0)
    found = policy.sample(context.to(dtype), seed=0)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)
    np.testing.assert_array_equal(policy.greedy(context.to(dtype)), policy.greedy(context.numpy()))
    one = policy.sample(context[0].to(dtype), seed=0)
    assert one[0].tolist() == policy.sample(context[:1].numpy(), seed=0)[0].tolist()
    assert policy.greedy(context[0].to(dtype)).shape == (1,)
    with refuses(OptionError):
        policy.sample(context[:, :2].to(dtype))


def test_a_module_of_whole_numbers_gets_them_as_they_are():
    policy = ModulePolicy(torch.nn.Sequential(torch.nn.Embedding(4, 3), torch.nn.Linear(3, 6)), 6)
    assert policy.sample(torch.tensor([0, 3, 2]))[0].shape == (3,)


def test_dropout_is_out_while_serving_and_back_in_afterwards():
    torch.manual_seed(0)
    policy = ModulePolicy(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 6)), 6)
    policy.double().train()
    action, propensity = policy.sample(torch.as_tensor(CONTEXT))
    np.testing.assert_allclose(propensity, policy.predict_proba(CONTEXT)[np.arange(len(CONTEXT)), action])
    assert policy.training


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"temperature": -1}, OptionError, "temperature must be a number above 0, or 0 for the most .*; found -1"),
        ({"temperature": np.nan}, OptionError, "found nan"),
        ({"temperature": "hot"}, OptionError, "found 'hot'"),
        ({"mask": [[True, True]]}, OptionError, "each of the 4 contexts and .* of the 3 actions.*found 1 × 2"),
        ({"mask": np.ones((4, 3))}, OptionError, "mask=, must be truth values.*found float64 of shape 4 × 3"),
        ({"mask": [[True] * 3] * 3 + [[False] * 3]}, LogError, "1 of 4 rows have none; the first is row 3"),
    ],
)
def test_nonsense_is_refused(options, error, says):
    policy = LinearSoftmax(2, 3)
    for serve in (policy.sample, policy.predict_proba):
        with pytest.raises(error, match=says):
            serve(np.zeros((4, 2)), **options)


def test_numbers_that_look_like_a_mask_are_not_taken_for_ids():
    policy = LinearSoftmax(2, 3)
    mask = np.array([[1, 0, 1], [1, 1, 0]])
    for odd in (mask, mask.astype(np.uint8), torch.as_tensor(mask)):
        with refuses(OptionError):
            policy.predict_proba(np.zeros((2, 2)), mask=odd)
    assert LinearSoftmax(2, 2).predict_proba(np.zeros((2, 2)), np.array([[0, 1], [1, 0]])).tolist() == [[0.5, 0.5]] * 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_contexts_that_are_no_numbers_are_refused(value):
    policy = policies()["linear"]
    odd = np.where(np.arange(CONTEXT.size).reshape(CONTEXT.shape) == 4, value, CONTEXT)
    for serve in (policy.sample, policy.predict_proba, policy.greedy):
        with refuses(LogError):
            serve(odd)


def test_candidates_and_mask_are_two_names_for_the_same_thing():
    policy = policies()["linear"]
    for serve in (policy.predict_proba, lambda *x, **given: policy.sample(*x, **given, seed=1)[0], policy.greedy):
        np.testing.assert_array_equal(serve(CONTEXT, MASK), serve(CONTEXT, mask=MASK))
        np.testing.assert_array_equal(serve(CONTEXT, candidates=MASK), serve(CONTEXT, mask=MASK))
        with refuses(OptionError):
            serve(CONTEXT, MASK, mask=MASK)


def test_a_seed_and_a_generator_are_one_too_many():
    with refuses(OptionError):
        LinearSoftmax(2, 3).sample(np.zeros((1, 2)), seed=0, generator=torch.Generator())


@pytest.mark.parametrize("seed", ["a", 1.5, True, 2**64])
def test_a_seed_is_a_whole_number(seed):
    with refuses(OptionError):
        LinearSoftmax(2, 3).sample(np.zeros((1, 2)), seed=seed)
    for good in (np.int64(3), -1):
        assert LinearSoftmax(2, 3).sample(np.zeros((1, 2)), seed=good)[0].shape == (1,)
