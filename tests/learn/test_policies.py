"""What every policy can do."""

import inspect

import numpy as np
import pytest
from learning import policies, small_log, torch
from messages import refuses

import counterpoise as cp
from counterpoise.errors import CounterpoiseError, OptionError, PolicyFileError
from counterpoise.learn import (
    Average,
    LinearSoftmax,
    ModulePolicy,
    PlackettLuce,
    PolicyLearner,
    TwoTower,
    export_onnx,
    learn_policy,
    load_policy,
    portfolio,
)
from counterpoise.learn.norms import SampleGradients
from counterpoise.learn.policies import ModelPolicy
from counterpoise.learn.tensor_files import read_tensors, write_tensors


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
    with refuses(OptionError):
        LinearSoftmax(3, 0)
    with refuses(OptionError):
        TwoTower(3, 4, item_features=torch.zeros(3, 2))
    batch_norm = ModulePolicy(torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.BatchNorm1d(6)), 6)
    with refuses(OptionError):
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


def served_alike():
    """Policies of all kinds that choose among six actions by three numbers, and what each is in plain numbers."""
    made = policies()
    linear, mlp = made["linear"], made["mlp"]
    linear.temperature = 0.5
    plain = linear.scores.weight.detach().numpy()
    model = ModelPolicy(lambda context: context.astype(np.float64) @ plain.T, 6)
    return {
        "model": (model, lambda x, mask: softmax(x.astype(np.float32).astype(np.float64) @ plain.T, mask)),
        "average": (
            Average([linear, mlp], weights=[3, 1]),
            lambda x, mask: 0.75 * linear.predict_proba(x, mask) + 0.25 * mlp.predict_proba(x, mask),
        ),
    }


def softmax(logits, mask):
    table = np.exp(logits) * mask
    return table / table.sum(1, keepdims=True)


MASK = np.array([[True, False, True, True, False, True], [False, True, True, False, False, False]] * 20)


@pytest.mark.parametrize("mask", [np.ones_like(MASK), MASK], ids=["all", "masked"])
@pytest.mark.parametrize("kind", ["model", "average"])
def test_models_and_averages_serve_by_the_rules_of_all_policies(kind, mask):
    policy, plainly = served_alike()[kind]
    policy.actions_ = [3, 5, 7, 11, 13, 17]
    context, rows = small_log()[0].numpy(), np.arange(40)
    expected = plainly(context, mask)
    np.testing.assert_allclose(policy.predict_proba(context, mask), expected, rtol=1e-6)
    powers = expected**2 / (expected**2).sum(1, keepdims=True)
    np.testing.assert_allclose(policy.predict_proba(context, mask, temperature=0.5), powers, rtol=1e-6)
    best = np.asarray(policy.greedy(context, candidates=mask))
    np.testing.assert_array_equal(best, policy.classes_[expected.argmax(1)])
    action, propensity = policy.sample(context, mask=mask, seed=1)
    np.testing.assert_allclose(propensity, expected[rows, np.searchsorted(policy.classes_, action)], rtol=1e-6)
    np.testing.assert_allclose(policy.propensity(context, action, mask), propensity)
    again, _ = policy.sample(torch.as_tensor(context), mask=mask, generator=torch.Generator().manual_seed(1))
    np.testing.assert_array_equal(again, action)
    places = torch.as_tensor(expected.argmax(1))
    logged = policy.logged_probabilities(
        torch.as_tensor(context), places, torch.as_tensor(mask), temperatures=(1.0, 0.5, 0.0)
    )
    np.testing.assert_allclose(logged, np.column_stack([expected.max(1), powers.max(1), np.ones(40)]), rtol=1e-5)


def test_what_gradients_cannot_train_is_refused():
    context, action, reward, propensity = (column.numpy() for column in small_log())
    with refuses(OptionError):
        PolicyLearner(policy=ModelPolicy(lambda context: context, 6)).fit(
            context=context, action=action, reward=reward, propensity=propensity
        )


def test_an_average_is_saved_loaded_and_exported(tmp_path):
    made = {name: policy.float() for name, policy in policies().items()}
    made["mlp"].temperature = 0.3
    members = [made["linear"], Average([made["mlp"], made["two towers with item features"]], weights=[1, 2])]
    policy = Average(members)
    policy.actions_, policy.temperature = ["a", "b", "c", "d", "e", "f"], 0.7
    context = small_log()[0].numpy().astype(np.float32)
    policy.save(tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    expected = policy.predict_proba(context)
    np.testing.assert_array_equal(loaded.predict_proba(context), expected)
    assert (loaded.weights, loaded.policies[1].policies[0].temperature) == ([0.5, 0.5], 0.3)
    onnxruntime = pytest.importorskip("onnxruntime")
    export_onnx(loaded, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    np.testing.assert_allclose(session.run(["probabilities"], {"context": context})[0], expected, atol=1e-6)
    for change, says in (
        ({"policies": 3}, "the policies it averages are missing"),
        ({"policies": [3]}, "the policies it is made of are missing"),
        ({"weights": [1.0, -1.0]}, "must be 2 numbers from 0 on"),
        ({"weights": [1.0] * 999}, "more layers than it has tensors"),
    ):
        tensors, description = read_tensors(tmp_path / "policy")
        description["config"]["arguments"] |= change
        write_tensors(tmp_path / "other", tensors, description)
        with pytest.raises(PolicyFileError, match=says):
            load_policy(tmp_path / "other")


def test_averages_of_what_does_not_belong_together_are_refused(tmp_path):
    linear, other = LinearSoftmax(3, 6), LinearSoftmax(3, 6)
    for odd, says in (
        ([], "a list of policies .* found none"),
        (linear, "found LinearSoftmax"),
        ([linear, 3], "found int"),
        ([linear, PlackettLuce(other, 2)], "found PlackettLuce"),
        ([linear, LinearSoftmax(3, 5)], "the actions of policy 2 are not those of the first"),
        ([linear, LinearSoftmax(2, 6)], "the number of inputs of policy 2"),
    ):
        with pytest.raises(OptionError, match=says):
            Average(odd)
    other.context_ = ("a", "b", "c")
    with refuses(OptionError):
        Average([linear, other])
    with refuses(OptionError):
        Average([linear], weights=[1, 2])
    model = Average([ModelPolicy(lambda context: context, 3)])
    for write in (model.save, lambda path: export_onnx(model, path)):
        with refuses(OptionError):
            write(tmp_path / "policy")


@pytest.mark.filterwarnings("ignore::counterpoise.learn.LearningWarning")
def test_a_learner_and_what_a_search_found_serve_as_their_policies_do(tmp_path):
    context, action, reward, propensity = (column.numpy() for column in small_log(400))
    log = {"context": context, "action": action, "reward": reward, "propensity": propensity}
    learner = PolicyLearner(epochs=1, folds=None, batch_size=100)
    for serve in (learner.predict_proba, learner.greedy, learner.sample, learner.save):
        with refuses(CounterpoiseError):
            serve(context)
    learner.fit(**log)
    found = learn_policy(**log, contenders=portfolio(6)[:1], fallback="warn", minutes=None)
    for served, policy in ((learner, learner.policy_), (found, found.policy)):
        np.testing.assert_array_equal(served.predict_proba(context), policy.predict_proba(context))
        np.testing.assert_array_equal(served.propensity(context, action), policy.propensity(context, action))
        np.testing.assert_array_equal(served.greedy(context), policy.greedy(context))
        np.testing.assert_array_equal(served.sample(context, seed=1)[0], policy.sample(context, seed=1)[0])
        np.testing.assert_array_equal(served.classes_, policy.classes_)
        assert (served.lesson_, served.encoding_, served.candidates_) == (policy.lesson_, None, None)
        served.save(tmp_path / "policy")
        np.testing.assert_array_equal(
            load_policy(tmp_path / "policy").predict_proba(context), policy.predict_proba(context)
        )
        assert list(inspect.signature(served.sample).parameters) == list(inspect.signature(policy.sample).parameters)
    mean = np.mean([policy.predict_proba(context) for policy in found.policies], axis=0)
    np.testing.assert_allclose(Average(found.policies).predict_proba(context), mean, rtol=1e-6)


def test_the_average_of_policies_earns_the_average_of_what_they_earn():
    context, action, reward, propensity = (column.numpy() for column in small_log(200))
    log = {f"x{k}": context[:, k] for k in range(3)} | {"a": action, "r": reward, "p": propensity}
    members = [policies()[kind] for kind in ("linear", "mlp", "two towers")]
    members[1].temperature = 0.0
    targets = {str(k): member for k, member in enumerate(members)} | {"average": Average(members, weights=[1, 2, 1])}
    parts = {"context": ["x0", "x1", "x2"], "action": "a", "reward": "r", "propensity": "p", "estimator": "ips"}
    result = cp.evaluate(log, target=targets, **parts)
    values = [result[str(k), "ips"].value for k in range(3)]
    assert result["average", "ips"].value == pytest.approx(np.average(values, weights=[1, 2, 1]), rel=1e-9)
