"""A saved policy is the policy, wherever it is used again."""

import numpy as np
import polars as pl
import pytest
from learning import policies, small_log, torch
from messages import refuses

import counterpoise as cp
from counterpoise.errors import OptionError, PolicyFileError
from counterpoise.learn import MLP, LinearSoftmax, ModulePolicy, Policy, TwoTower, export_onnx, load_policy, save_policy
from counterpoise.learn.forest import Forest
from counterpoise.learn.tensor_files import read_tensors, write_tensors

SAVED = [kind for kind in policies() if "embedding" not in kind]


@pytest.mark.parametrize("kind", SAVED)
def test_loading_gives_back_what_was_saved(kind, tmp_path):
    policy = policies()[kind].float()
    save_policy(policy, tmp_path / "policy", context=("a", "b", "c"))
    context = small_log()[0].numpy()
    found = load_policy(tmp_path / "policy")
    assert type(found) is type(policy)
    np.testing.assert_array_equal(found.predict_proba(context), policy.predict_proba(context))
    assert read_tensors(tmp_path / "policy")[1]["config"]["context"] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", SAVED)
def test_onnx_gives_the_same_probabilities(kind, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = policies()[kind].float()
    export_onnx(policy, tmp_path / "policy.onnx")
    context = small_log()[0].numpy().astype(np.float32)
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    found = session.run(["probabilities"], {"context": context})[0]
    np.testing.assert_allclose(found, policy.predict_proba(context), atol=1e-6)


def test_onnx_needs_the_width_of_a_module_only_and_leaves_the_policy_alone(tmp_path):
    pytest.importorskip("onnx")
    policy = ModulePolicy(torch.nn.Linear(3, 2), 2).train()
    export_onnx(policy, tmp_path / "policy.onnx", context_dimension=3)
    assert (tmp_path / "policy.onnx").stat().st_size > 0
    assert policy.training
    with refuses(OptionError):
        export_onnx(policy, tmp_path / "policy.onnx")
    for unfit, says in (
        (policy, "does not take contexts of 4 numbers"),
        (MLP(3, 2), "takes contexts of 3 numbers; found 4"),
    ):
        with pytest.raises(OptionError, match=says):
            export_onnx(unfit, tmp_path / "policy.onnx", context_dimension=4)
    for path in (tmp_path, tmp_path / "absent" / "policy.onnx"):
        with refuses(PolicyFileError):
            export_onnx(MLP(3, 2), path)


@pytest.mark.parametrize("kind", ["linear", "forest"])
def test_no_flipped_bit_changes_a_policy(kind, tmp_path):
    policy = LinearSoftmax(3, 4) if kind == "linear" else Forest(3, 4, trees=1, nodes=1, leaves=1, depth=1)
    policy.context_ = ("a", "b", "c")
    save_policy(policy, tmp_path / "policy")
    whole, context = (tmp_path / "policy").read_bytes(), small_log()[0].numpy()[:5, :3]
    expected = policy.predict_proba(context)
    for bit in np.random.default_rng(0).choice(8 * len(whole), 200, replace=False):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "policy").write_bytes(damaged)
        try:
            np.testing.assert_array_equal(load_policy(tmp_path / "policy").predict_proba(context), expected)
        except PolicyFileError as error:
            assert "damaged" in str(error)  # noqa: PT017
    (tmp_path / "policy").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with refuses(PolicyFileError):
        load_policy(tmp_path / "policy")


def test_policies_of_version_0_2_have_no_checksum_and_are_read(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import save_file

    policy = LinearSoftmax(3, 4)
    save_policy(policy, tmp_path / "policy")
    tensors, _ = read_tensors(tmp_path / "policy")
    with safe_open(tmp_path / "policy", framework="pt") as file:
        metadata = {"counterpoise": file.metadata()["counterpoise"]}
    save_file(tensors, tmp_path / "old", metadata=metadata)
    context = small_log()[0].numpy()[:5, :3]
    np.testing.assert_array_equal(load_policy(tmp_path / "old").predict_proba(context), policy.predict_proba(context))


def test_what_does_not_fit_is_refused(tmp_path):
    path = tmp_path / "policy"
    with refuses(PolicyFileError):
        load_policy(path)
    with refuses(OptionError):
        save_policy(Policy(), path)
    save_policy(MLP(3, 6), path)
    whole = path.read_bytes()
    for spoil, says in (
        (lambda tensors, _: tensors.pop("scores.bias"), r"lacks the tensor 'scores.bias'"),
        (lambda tensors, _: tensors.update(extra=torch.zeros(1)), r"has the tensor 'extra'"),
        (
            lambda tensors, _: tensors.update({"scores.bias": torch.zeros(5)}),
            r"'scores.bias' has shape \(5,\), this one needs \(6,\)",
        ),
        (
            lambda _, description: description["config"].update(kind="Mystery"),
            r"contains a Mystery, which counterpoise does not know",
        ),
        (lambda _, description: description["config"].update(arguments={"color": 1}), r"does not describe a policy"),
        (lambda _, description: description.update(format="other"), r"is 'other', not a policy"),
    ):
        path.write_bytes(whole)
        tensors, description = read_tensors(path)
        spoil(tensors, description)
        write_tensors(path, tensors, description)
        with pytest.raises(PolicyFileError, match=says):
            load_policy(path)
    for content in (whole[:100], whole[:-10], b"", b"not a policy at all"):
        path.write_bytes(content)
        with refuses(PolicyFileError):
            load_policy(path)


def test_a_class_of_ones_own_is_made_again(tmp_path):
    class Scaled(LinearSoftmax):
        def forward(self, context):
            return 2 * super().forward(context)

    policy = Scaled(3, 4)
    save_policy(policy, tmp_path / "policy")
    found = load_policy(tmp_path / "policy", make=Scaled)
    context = small_log()[0].numpy()
    np.testing.assert_array_equal(found.predict_proba(context), policy.predict_proba(context))


def test_large_catalogues_keep_their_item_features(tmp_path):
    policy = TwoTower(3, 1000, item_features=torch.randn(1000, 4))
    save_policy(policy, tmp_path / "policy")
    torch.testing.assert_close(load_policy(tmp_path / "policy").scores.features, policy.scores.features)


def module(width=4):
    return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.GELU(), torch.nn.Linear(width, 2))


def test_a_module_gets_its_weights_back(tmp_path):
    policy = ModulePolicy(module(), 2)
    policy.actions_ = [5, 9]
    save_policy(policy, tmp_path / "policy", context=("a", "b", "c"))
    mine = module()
    found = load_policy(tmp_path / "policy", module=mine)
    assert found.scores is mine
    assert found.context_ == ("a", "b", "c")
    np.testing.assert_array_equal(found.classes_, [5, 9])
    context = small_log()[0].numpy()
    np.testing.assert_array_equal(found.predict_proba(context), policy.predict_proba(context))
    made = load_policy(tmp_path / "policy", make=lambda n_actions: ModulePolicy(module(), n_actions))
    np.testing.assert_array_equal(made.predict_proba(context), policy.predict_proba(context))


def test_a_module_with_tied_weights_is_saved_once_per_name(tmp_path):
    layer = torch.nn.Linear(3, 3)
    save_policy(ModulePolicy(torch.nn.Sequential(layer, layer), 3), tmp_path / "policy")
    other = torch.nn.Linear(3, 3)
    load_policy(tmp_path / "policy", module=torch.nn.Sequential(other, other))
    torch.testing.assert_close(other.weight, layer.weight)


def test_a_module_that_does_not_fit_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "policy"
    save_policy(ModulePolicy(module(), 2), path)
    for unfit, says in (
        (module(width=5), r"'scores.0.weight' has shape \(4, 3\), this one needs \(5, 3\)"),
        (torch.nn.Linear(3, 2), r"it has the tensor 'scores.0.bias'"),
    ):
        before = [tensor.clone() for tensor in unfit.parameters()]
        with pytest.raises(PolicyFileError, match=says):
            load_policy(path, module=unfit)
        assert all(map(torch.equal, before, unfit.parameters()))
    with refuses(PolicyFileError):
        load_policy(path)
    with refuses(OptionError):
        load_policy(path, module="module")
    with refuses(OptionError):
        load_policy(path, module=module(), make=ModulePolicy)
    save_policy(MLP(3, 2), path)
    with refuses(OptionError):
        load_policy(path, module=module())


@pytest.fixture
def shop(tmp_path):
    """A log with text, numbers and candidates, and the file of a policy that was learned from it."""
    random = np.random.default_rng(0)
    n = 600
    frame = pl.DataFrame(
        {
            "age": random.normal(size=n),
            "country": random.choice(["DE", "FR"], n),
            "item": random.choice(["jam", "tea"], n),
            "click": random.integers(0, 2, n),
            "p": 0.5,
            "pool": "jam|tea",
        }
    )
    return frame, tmp_path / "policy.safetensors"


PARTS = {"reward": "click", "propensity": "p"}
COLUMNS = {"context": ["age", "country"], "action": "item"}


def learned(frame, path, **more):
    parts = PARTS | COLUMNS | more
    learner = cp.learn.PolicyLearner(epochs=1, batch_size=None, folds=0, holdout=0).fit(frame, **parts)
    learner.save(path)
    return learner


def same(found, expected):
    assert found.targets == expected.targets
    for key, estimate in expected.estimates.items():
        assert found.estimates[key].value == pytest.approx(estimate.value, rel=1e-12), key


def test_a_saved_policy_brings_its_own_context_and_action(shop, tmp_path):
    frame, path = shop
    learner = learned(frame, path)
    assert (load_policy(path).context_, load_policy(path).action_) == (("age", "country"), "item")
    expected = cp.evaluate(frame, **PARTS, **COLUMNS, target=path)
    frame.write_parquet(tmp_path / "log.parquet")
    for log in (frame, frame.to_pandas(), tmp_path / "log.parquet", cp.Log(frame, **PARTS)):
        same(cp.evaluate(log, target=str(path), **({} if isinstance(log, cp.Log) else PARTS)), expected)
    same(cp.evaluate(frame, **PARTS, action="item", target=path), expected)
    same(cp.evaluate(frame, **PARTS, context=["age", "country"], target=path), expected)
    same(cp.evaluate(frame, **PARTS, target={"policy": learner.policy_}), expected)
    same(cp.evaluate(frame, **PARTS, target={"policy": learner}), expected)
    # beside others, as the rival, from day to day, and by every verb
    both = cp.evaluate(frame, **PARTS, target=[path, cp.Always("jam"), "p"])
    assert both["policy", "ips"].value == pytest.approx(expected["policy", "ips"].value, rel=1e-12)
    rival = cp.compare(frame, **PARTS, target="p", against=path)
    assert rival.value == pytest.approx(-cp.compare(frame, **PARTS, target=path, against="p").value, rel=1e-12)
    state = {"state": tmp_path / "state.json", "version": "1"}
    cp.evaluate(frame[:300], **PARTS, target=path, **state, batch="mon")
    same(cp.evaluate(frame[300:], **PARTS, **COLUMNS, target=path, **state, batch="tue"), expected)
    cp.plan(frame, **PARTS, target=path, difference=0.1)
    cp.sensitivity(frame, **PARTS, target=path)
    cp.distribution(frame, **PARTS, target=path)


def test_a_saved_policy_asks_for_its_candidates(shop):
    frame, path = shop
    learned(frame, path, candidates="pool")
    expected = cp.evaluate(frame, **PARTS, **COLUMNS, candidates="pool", target=path)
    same(cp.evaluate(frame, **PARTS, candidates="pool", target=path), expected)
    with refuses(OptionError):
        cp.evaluate(frame, **PARTS, target=path)


def test_what_a_saved_policy_does_not_know_is_asked_for(shop):
    frame, path = shop
    policy = learned(frame, path).policy_
    policy.action_ = None  # as in files of 0.2
    policy.save(path)
    with refuses(OptionError):
        cp.evaluate(frame, **PARTS, target=path)
    cp.evaluate(frame, **PARTS, action="item", target=path)
    bare = LinearSoftmax(1, 2)
    bare.actions_ = np.array(["jam", "tea"], dtype=object)
    bare.save(path)
    with refuses(OptionError):
        cp.evaluate(frame, **PARTS, action="item", target=path)


def test_columns_that_are_not_the_policys_are_refused(shop, tmp_path):
    frame, path = shop
    learned(frame, path)
    with refuses(OptionError):
        cp.evaluate(frame, **PARTS, context=["age"], target=path)
    with refuses(cp.ColumnError):
        cp.evaluate(frame.drop("country"), **PARTS, target=path)
    learned(frame, tmp_path / "other.safetensors", context=["age"])
    with refuses(OptionError):
        cp.evaluate(frame, **PARTS, target=[path, tmp_path / "other.safetensors"])
    # what the logging policy looked at is not what this one was learned from
    with refuses(OptionError):
        cp.evaluate(frame, reward="click", propensity=cp.models.Propensity("logistic"), action="item", target=path)


def test_a_policy_of_arrays_has_no_names_to_bring(tmp_path):
    x, action, reward, propensity = (tensor.numpy() for tensor in small_log())
    parts = {"context": x, "action": action, "reward": reward, "propensity": propensity}
    learner = cp.learn.PolicyLearner(epochs=1, batch_size=None, folds=0, holdout=0).fit(**parts)
    learner.save(tmp_path / "policy.safetensors")
    assert (load_policy(tmp_path / "policy.safetensors").action_, learner.action_) == (None, None)


def test_the_name_of_its_action_must_be_text(shop):
    frame, path = shop
    learned(frame, path)
    tensors, description = read_tensors(path)
    description["config"]["action"] = ["item"]
    write_tensors(path, tensors, description)
    with refuses(PolicyFileError):
        load_policy(path)
