"""The policy that a learner makes itself: contexts of any scale, rewards that depend on the action alone."""

import numpy as np
import pytest
from learning import small_log, torch

import counterpoise.learn.source as inspection
import counterpoise.learn.source as sources
from counterpoise.features import Scaling
from counterpoise.learn import LinearSoftmax, PolicyLearner, export_onnx, load_policy
from counterpoise.learn.norms import SampleGradients, reference_norms
from counterpoise.learn.objectives import baseline_of, gradient_sums
from counterpoise.learn.rows import Batch, Split
from counterpoise.learn.steps import Logged, LoggedActions
from counterpoise.log.log import Log

ROWS = 8000


def people(seed=0):
    """Age and income as a table has them; the young want action 0, the others action 1."""
    random = np.random.default_rng(seed)
    context = np.stack([random.uniform(20, 70, ROWS), random.lognormal(10.5, 0.5, ROWS)], axis=1)
    young = context[:, :1] < 45
    expected = np.where(np.hstack([young, ~young]), 0.5, 0.1)
    action = random.integers(2, size=ROWS)
    reward = (random.random(ROWS) < expected[np.arange(ROWS), action]).astype(float)
    return {"context": context, "action": action, "reward": reward, "propensity": np.full(ROWS, 0.5)}, expected


def learn(arrays, **options):
    return PolicyLearner(**({"batch_size": 256, "learning_rate": 0.05, "epochs": 10, "folds": None} | options)).fit(
        **arrays
    )


def fitted():
    return learn(people()[0], epochs=2)


def test_a_reward_of_the_action_alone_is_learned_from_centred_contexts():
    random = np.random.default_rng(1)
    expected = np.array([0.1, 0.3, 0.6])
    action = random.integers(3, size=ROWS)
    reward = (random.random(ROWS) < expected[action]).astype(float)
    context = random.normal(size=(ROWS, 3))
    found = learn({"context": context, "action": action, "reward": reward, "propensity": np.full(ROWS, 1 / 3)})
    assert (found.predict_proba(context) @ expected).mean() > 0.57  # of 0.6; without an intercept no more than 0.45


def test_raw_contexts_learn_as_much_as_standardised_ones():
    arrays, expected = people()
    context = arrays["context"]
    standard = (context - context.mean(0)) / context.std(0)
    raw, scaled = learn(arrays), learn(arrays | {"context": standard})
    values = [(p * expected).sum(1).mean() for p in (raw.predict_proba(context), scaled.predict_proba(standard))]
    assert values[0] == pytest.approx(values[1], abs=1e-3)
    assert values[0] > 0.42  # of 0.5; the logging policy has 0.3


def test_mean_and_scale_are_those_of_the_training_rows_however_they_are_read(tmp_path, monkeypatch):
    arrays, _ = people()
    arrays["context"] = np.hstack([arrays["context"], np.full((ROWS, 1), 0.1)])  # one column that never varies
    training = arrays["context"].astype(np.float32)[~Split(0.1, 0).held_out(0, ROWS)].astype(float)
    body = learn(arrays, epochs=1).policy_.body
    np.testing.assert_allclose(body.mean, training.mean(0), rtol=1e-6)
    np.testing.assert_allclose(body.scale, [*training.std(0)[:2], 1], rtol=1e-6)
    import polars as pl

    names = ["age", "income", "constant"]
    frame = pl.DataFrame(arrays["context"], schema=names).with_columns(
        pl.Series(name, arrays[name]) for name in ("action", "reward", "propensity")
    )
    frame.write_parquet(tmp_path / "log.parquet")
    for module in (sources, inspection):
        monkeypatch.setattr(module, "CHUNK", 700)
    columns = {"context": names, "action": "action", "reward": "reward", "propensity": "propensity"}
    for log in (tmp_path / "log.parquet", frame):
        found = inspection.inspect(sources.Source(Log(log, **columns)), None, Split(0.1, 0)).columns
        np.testing.assert_allclose(found.mean, training.mean(0), rtol=1e-12)
        np.testing.assert_allclose(found.scale, [*training.std(0)[:2], 1], rtol=1e-9)


def test_levels_stay_0_and_1_in_the_folds_as_in_the_whole():
    arrays, _ = people()
    log = {"kind": np.array(["a", "b", "c", "d"])[np.arange(ROWS) % 4], "age": arrays["context"][:, 0]}
    parts = {name: arrays[name] for name in ("action", "reward", "propensity")}
    source = sources.Source(Log(log | parts, context=["kind", "age"], **{name: name for name in parts}))
    whole = inspection.inspect(source, None, Split(0.1, 0))
    source.number(whole.ids)
    for found in (whole, inspection.without_fold(whole, source, Split(0.1, 0, fold=0, folds=3))):
        assert found.columns.mean[:4].tolist() == [0.0] * 4
        assert found.columns.scale[:4].tolist() == [1.0] * 4
        assert found.columns.mean[4] == pytest.approx(45, abs=1)


def test_large_offsets_keep_their_scale():
    values = 1.7e9 + np.arange(1000.0)
    scaling = sum((Scaling.of(part[:, None]) for part in np.split(values, 4)), Scaling.of(np.empty((0, 1))))
    assert scaling.scale.item() == pytest.approx(values.std(), rel=1e-9)


def test_a_policy_that_is_passed_sees_contexts_as_they_are():
    torch.manual_seed(0)
    policy = LinearSoftmax(2, 2)
    arrays, _ = people()
    policy = learn(arrays, policy=policy, epochs=1).policy_
    assert set(policy.state_dict()) == {"scores.weight"}
    context = torch.tensor(arrays["context"][:5], dtype=torch.float32)
    torch.testing.assert_close(policy(context), context @ policy.scores.weight.T)


def test_saved_and_exported_policies_keep_the_scale(tmp_path):
    context = people()[0]["context"][:50].astype(np.float32)
    learner = fitted()
    expected = learner.predict_proba(context)
    learner.save(tmp_path / "policy")
    np.testing.assert_array_equal(load_policy(tmp_path / "policy").predict_proba(context), expected)
    onnxruntime = pytest.importorskip("onnxruntime")
    export_onnx(learner.policy_, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    found = session.run(["probabilities"], {"context": context})[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_checkpoint_continues_with_the_scale(tmp_path):
    arrays, _ = people()
    learn(arrays, epochs=1, checkpoint=tmp_path / "checkpoint")
    resumed = learn(arrays, epochs=2, checkpoint=tmp_path / "checkpoint")
    whole = learn(arrays, epochs=2)
    for name, tensor in whole.policy_.state_dict().items():
        assert torch.equal(tensor, resumed.policy_.state_dict()[name]), name
    assert resumed.history_ == whole.history_


def test_norms_and_steps_are_those_of_the_standardised_policy():
    context, action, reward, propensity = small_log()
    policy = LinearSoftmax(3, 6, bias=True, standardize=True).double()
    scale = {"mean": torch.tensor([5.0, -2.0, 0.5]), "scale": torch.tensor([0.1, 3.0, 1.0])}
    policy.body.load_state_dict(scale)
    norms = reference_norms(policy, context, action)
    found = SampleGradients(policy, context, action)
    assert found.by_layer
    torch.testing.assert_close(found.squared_norms, norms)
    torch.testing.assert_close(Logged(policy)(context, action)[1], norms)
    expected = baseline_of(gradient_sums(norms, reward, propensity))
    for way in ("last_layer", "all"):
        policy.zero_grad()
        step = LoggedActions(policy, norms=way).backward(Batch(context, action, reward, propensity, 40), None)
        torch.testing.assert_close(step.baseline, expected)
        weight = (reward - step.baseline) / propensity
        target = policy.target(context, action)
        plain = torch.autograd.grad(-(weight * target).mean(), list(policy.parameters()))
        for parameter, gradient in zip(policy.parameters(), plain, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
            parameter.grad = None
