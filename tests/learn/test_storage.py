"""A saved policy is the policy, wherever it is used again."""

import numpy as np
import pytest
from learning import policies, small_log, torch

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
    with pytest.raises(OptionError, match="Pass context_dimension"):
        export_onnx(policy, tmp_path / "policy.onnx")
    for unfit, says in (
        (policy, "does not take contexts of 4 numbers"),
        (MLP(3, 2), "takes contexts of 3 numbers; found 4"),
    ):
        with pytest.raises(OptionError, match=says):
            export_onnx(unfit, tmp_path / "policy.onnx", context_dimension=4)
    for path in (tmp_path, tmp_path / "absent" / "policy.onnx"):
        with pytest.raises(PolicyFileError, match=r"cannot write .* Name another file"):
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
    with pytest.raises(PolicyFileError, match=r"damaged: its checksum is .* Copy it again"):
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
    with pytest.raises(PolicyFileError, match="no file"):
        load_policy(path)
    with pytest.raises(OptionError, match="has no config"):
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
        with pytest.raises(PolicyFileError, match="damaged"):
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
    with pytest.raises(PolicyFileError, match=r"weights of a module of your own, without the module. Pass module="):
        load_policy(path)
    with pytest.raises(OptionError, match=r"module= must be a torch.nn.Module; found str"):
        load_policy(path, module="module")
    with pytest.raises(OptionError, match="both make= and module="):
        load_policy(path, module=module(), make=ModulePolicy)
    save_policy(MLP(3, 2), path)
    with pytest.raises(OptionError, match="contains a MLP, which needs no module"):
        load_policy(path, module=module())
