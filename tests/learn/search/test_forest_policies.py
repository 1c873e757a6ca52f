"""Forests as policies: against scikit-learn's own trees, plain loops over leaves, files and ONNX."""

import numpy as np
import pytest
from learning import torch
from messages import refuses

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import LogError, OptionError, PolicyFileError
from counterpoise.learn import Forest, export_onnx, forest, load_policy
from counterpoise.learn.contenders import Reduction, Rest
from counterpoise.learn.forest import ForestLearner, _few_enough, _rounded_down
from counterpoise.learn.rows import Rows
from counterpoise.learn.tensor_files import read_tensors, write_tensors

ensemble = pytest.importorskip("sklearn.ensemble")
LOG = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(600)
FIELDS = ("context", "action", "reward", "propensity")
ROWS = Rows(*(torch.as_tensor(getattr(LOG, field)) for field in FIELDS))
ROWS = Rows(ROWS.context.float(), ROWS.action, ROWS.reward.float(), ROWS.propensity.float())
REST = Rest(ROWS, 4)
X = ROWS.context.numpy()
LEARNER = ForestLearner(trees=7)


def grown():
    """The trees that the learner grows, by scikit-learn alone."""
    rewarded = LOG.reward > 0
    cost = 1 / ROWS.propensity.double().numpy()[rewarded]
    model = ensemble.ExtraTreesClassifier(7, min_samples_leaf=5, random_state=3)
    return model.fit(X[rewarded], LOG.action[rewarded], sample_weight=cost / cost.mean()).estimators_


def test_leaves_have_what_each_action_earned_there():
    policy, context = LEARNER.fit(REST, 3), X[:40]
    inverse, gain = 1 / ROWS.propensity.double().numpy(), LOG.reward
    overall = [(inverse * gain)[LOG.action == a].sum() / inverse[LOG.action == a].sum() for a in range(4)]
    prior, expected = np.median(inverse), np.zeros((40, 4))
    for tree in grown():
        leaves = tree.apply(X)
        for i, leaf in enumerate(tree.apply(context)):
            for a in range(4):
                rows = (leaves == leaf) & (LOG.action == a)
                earned = (inverse * gain)[rows].sum() + prior * overall[a]
                expected[i, a] += earned / (inverse[rows].sum() + prior) / 7
    with torch.no_grad():
        found = policy(torch.as_tensor(context)).numpy()
    np.testing.assert_allclose(found, expected / gain.std(), rtol=1e-5)


@pytest.mark.parametrize("kind", ["ExtraTreesClassifier", "RandomForestClassifier"])
def test_a_forest_of_scikit_learn_predicts_the_same_as_a_policy(kind):
    model = getattr(ensemble, kind)(9, max_features=1)
    policy = Reduction(model).fit(REST, 5)
    assert isinstance(policy, Forest)
    x, y, weight = Reduction(model).examples(REST, 5)
    fitted = getattr(ensemble, kind)(9, max_features=1, random_state=5).fit(x, y, sample_weight=weight)
    later = np.random.default_rng(0).normal(size=(500, 5)).astype(np.float32)
    expected = np.maximum(fitted.predict_proba(later), 1e-6)
    np.testing.assert_allclose(policy.predict_proba(later), expected, atol=1e-5)
    policy.temperature = 0.0
    np.testing.assert_array_equal(policy.predict_proba(later).argmax(1), fitted.predict_proba(later).argmax(1))


def test_actions_without_an_example_are_never_taken():
    rows = Rows(ROWS.context, ROWS.action * 2, ROWS.reward, ROWS.propensity)
    policy = Reduction(ensemble.ExtraTreesClassifier(5)).fit(Rest(rows, 8), 0)
    assert policy.predict_proba(X)[:, 1::2].max() < 1e-5


def test_thresholds_in_single_precision_send_every_context_the_same_way():
    below = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    above = np.nextafter(below, np.float32(9))
    x = np.concatenate([below, above])
    for threshold in (below.astype(np.float64), (below.astype(np.float64) + above) / 2):
        rounded = _rounded_down(threshold)
        assert rounded.dtype == np.float32
        np.testing.assert_array_equal(x <= np.tile(threshold, 2), x <= np.tile(rounded, 2))


@pytest.mark.parametrize("temperature", [0.0, 0.05])
@pytest.mark.parametrize("learner", [LEARNER, Reduction(ensemble.ExtraTreesClassifier(3))], ids=["values", "classes"])
def test_forests_are_saved_loaded_and_exported(learner, temperature, tmp_path):
    policy = learner.fit(REST, 0)
    policy.temperature, policy.actions_, policy.context_ = temperature, np.array([3, 5, 8, 9]), tuple("abcde")
    expected = policy.predict_proba(X)
    assert (expected.max(1) == 1).all() == (temperature == 0)
    policy.save(tmp_path / "forest.safetensors")
    loaded = load_policy(tmp_path / "forest.safetensors")
    assert isinstance(loaded, Forest)
    assert loaded.classes_.tolist() == [3, 5, 8, 9]
    assert (loaded.context_, loaded.temperature) == (tuple("abcde"), temperature)
    np.testing.assert_array_equal(loaded.predict_proba(X), expected)
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    export_onnx(loaded, tmp_path / "forest.onnx")
    session = runtime.InferenceSession(str(tmp_path / "forest.onnx"))
    np.testing.assert_allclose(session.run(None, {"context": X})[0], expected, atol=1e-5)


def test_a_forest_too_large_for_memory_has_fewer_trees():
    class Tree:
        n_leaves = 1000

    assert len(_few_enough([Tree()] * 100, 1000)) == 40
    assert len(_few_enough([Tree()] * 3, 10**9)) == 1


def test_damaged_forests_are_refused(tmp_path):
    with refuses(OptionError):
        Forest(2, 2, trees=1, nodes=3, leaves=2, depth=10**6)
    LEARNER.fit(REST, 0).save(tmp_path / "forest")
    tensors, description = read_tensors(tmp_path / "forest")
    description["config"]["arguments"]["depth"] = 10**9
    write_tensors(tmp_path / "forest", tensors, description)
    with refuses(PolicyFileError):
        load_policy(tmp_path / "forest")


@pytest.mark.parametrize("name", ["feature", "left", "right", "leaf", "roots"])
@pytest.mark.parametrize("place", [-1, 10**6])
def test_a_tree_that_points_to_nothing_is_refused_by_name(name, place, tmp_path):
    LEARNER.fit(REST, 0).save(tmp_path / "forest")
    tensors, description = read_tensors(tmp_path / "forest")
    tensors[f"scores.{name}"][0] = place
    write_tensors(tmp_path / "forest", tensors, description)
    with refuses(PolicyFileError):
        load_policy(tmp_path / "forest")


def test_without_rewards_there_is_no_forest():
    rows = Rows(ROWS.context, ROWS.action, torch.ones(600), ROWS.propensity)
    with refuses(LogError):
        LEARNER.fit(Rest(rows, 4), 0)


def test_rows_walk_together_or_in_parts_to_the_same_leaves(monkeypatch):
    policy = LEARNER.fit(REST, 0)
    whole = policy.predict_proba(X)
    torch.testing.assert_close(policy.scores._reached(ROWS.context), policy.scores._walked(ROWS.context))
    monkeypatch.setattr(forest, "ROWS", 7)
    np.testing.assert_array_equal(policy.predict_proba(X), whole)
