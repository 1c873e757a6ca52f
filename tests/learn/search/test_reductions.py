"""The reduction to classification, the direct method, and policies around models of other libraries."""

import numpy as np
import polars as pl
import pytest
from learning import torch
from messages import refuses

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import LogError, OptionError, TrainingError
from counterpoise.learn import LinearSoftmax, export_onnx, save_policy
from counterpoise.learn.contenders import Direct, Reduction, Rest
from counterpoise.learn.policies import ModelPolicy, as_policy
from counterpoise.learn.rows import Rows
from counterpoise.models import Reward

linear = pytest.importorskip("sklearn.linear_model")
N = 5
LOG = SyntheticBandit(n_actions=N, inverse_temperature=-2, seed=1).draw(800)
REWARD = LOG.reward + np.random.default_rng(2).normal(size=800)  # above and below every baseline


def rest(reward=REWARD, rows=800):
    parts = LOG.context, LOG.action, reward, LOG.propensity
    context, action, reward, propensity = (torch.as_tensor(part[:rows]) for part in parts)
    return Rest(Rows(context.float(), action, reward.float(), propensity.float()), N)


def accuracy(examples, decide):
    """Σ weight · 1[π(x) = y], with the weights in the units of the costs; and all weights together."""
    x, y, weight = examples
    return float(weight[decide(x) == y].sum()), float(weight.sum())


def policies():
    """Deterministic policies: functions of contexts to actions."""
    random = np.random.default_rng(0)
    maps = [random.normal(size=(5, N)) for _ in range(4)]
    return [lambda x, m=m: (x @ m).argmax(1) for m in maps] + [lambda x: np.full(len(x), 3)]


def costs(beta):
    return [(float(np.float32(r)) - beta) / float(np.float32(p)) for r, p in zip(REWARD, LOG.propensity, strict=True)]


@pytest.mark.parametrize("baseline", [0.3, "mean", "lowest"])
def test_the_weighted_accuracy_is_the_value_up_to_a_constant(baseline):
    named = {"lowest": float(np.float32(REWARD).min()), "mean": float(np.float32(REWARD).astype(float).mean())}
    c = costs(named.get(baseline, baseline))
    given = rest()
    examples = Reduction(linear.LogisticRegression(), baseline=baseline, negatives="all").examples(given, 0)
    assert (examples[2] >= 0).all()
    assert examples[2].mean() == pytest.approx(1)
    total = sum(one if one > 0 else -one * (N - 1) for one in c)
    constant = sum(-one for one in c if one < 0)
    for decide in policies():
        taken = decide(given.rows.context.numpy())
        expected = sum(c[i] for i in range(800) if taken[i] == LOG.action[i]) + constant
        found, weights = accuracy(examples, decide)
        assert found * total / weights == pytest.approx(expected, rel=1e-6)


def test_one_drawn_negative_is_right_on_average():
    c, given = costs(0.3), rest()
    reduction = Reduction(linear.LogisticRegression(), baseline=0.3, negatives="one")
    total = sum(one if one > 0 else -one * (N - 1) for one in c)
    constant = sum(-one for one in c if one < 0)
    drawn = [reduction.examples(given, seed) for seed in range(200)]
    assert all((weight >= 0).all() and len(weight) == 800 for _, _, weight in drawn)
    for decide in policies()[:3]:
        found = np.array([accuracy(examples, decide)[0] for examples in drawn]) * total / 800
        taken = decide(given.rows.context.numpy())
        expected = sum(c[i] for i in range(800) if taken[i] == LOG.action[i]) + constant
        assert abs(found.mean() - expected) < 4 * found.std() / np.sqrt(200)
    x, y, _ = drawn[0]
    known = {tuple(row): action for row, action in zip(given.rows.context.numpy(), LOG.action, strict=True)}
    bad = sum(one < 0 for one in c)
    assert all(known[tuple(row)] != action for row, action in zip(x[-bad:], y[-bad:], strict=True))


class Strict(linear.LogisticRegression):
    """A classifier that refuses what others take in silence."""

    def fit(self, x, y, sample_weight=None):
        assert sample_weight is not None
        assert (sample_weight >= 0).all()
        return super().fit(x, y, sample_weight=sample_weight)


@pytest.mark.parametrize("negatives", ["one", "all"])
@pytest.mark.parametrize("baseline", ["mean", "lowest", 100.0])
def test_no_negative_weight_reaches_a_classifier(baseline, negatives):
    policy = Reduction(Strict(), baseline=baseline, negatives=negatives).fit(rest(), 0)
    table = policy.predict_proba(LOG.context)
    np.testing.assert_allclose(table.sum(1), 1)
    assert table.shape == (800, N)


def test_a_reduction_learns_and_serves_the_probabilities_of_its_classifier():
    given = rest(LOG.reward)
    policy = Reduction(linear.LogisticRegression()).fit(given, 0)
    x, y, weight = Reduction(linear.LogisticRegression()).examples(given, 0)
    every = given.rows.context.double().numpy()
    mean, scale = every.mean(0), every.std(0)
    model = linear.LogisticRegression().fit((x - mean) / scale, y, sample_weight=weight)
    np.testing.assert_allclose(policy.predict_proba(every), model.predict_proba((every - mean) / scale), atol=1e-4)
    policy.temperature = 0.0
    assert LOG.value(policy.predict_proba) > LOG.reward.mean() + 0.05


def test_what_cannot_be_a_reduction_is_refused():
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    with refuses(OptionError):
        Reduction(linear.Ridge())
    with refuses(OptionError):
        Reduction(linear.LogisticRegression(), negatives="two")
    with refuses(OptionError):
        Reduction(linear.LogisticRegression(), baseline="median")
    for model in (KNeighborsClassifier(), make_pipeline(StandardScaler(), linear.LogisticRegression())):
        with refuses(OptionError):
            Reduction(model).fit(rest(), 0)
    with refuses(TrainingError):
        Reduction(linear.LogisticRegression(solver="magic")).fit(rest(), 0)
    with refuses(LogError):
        Reduction(linear.LogisticRegression()).fit(rest(np.ones(800)), 0)
    only = Rows(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), torch.tensor([0.0, 1.0, 2.0]), torch.ones(3))
    with refuses(LogError):
        Reduction(linear.LogisticRegression()).fit(Rest(only, 2), 0)


def test_the_direct_method_takes_what_its_model_promises_most():
    given = rest(LOG.reward)
    policy = Direct(Reward(linear.Ridge(alpha=1e-6), per_action=True)).fit(given, 0)
    x = np.column_stack([np.ones(800), LOG.context])
    promised = np.column_stack([np.linalg.lstsq(x[LOG.action == a], LOG.reward[LOG.action == a])[0] for a in range(N)])
    expected = x @ promised / LOG.reward.std()
    np.testing.assert_allclose(policy(torch.as_tensor(LOG.context).float()), expected, atol=1e-3)
    policy.temperature = 0.1
    soft = np.exp(10 * expected) / np.exp(10 * expected).sum(1, keepdims=True)
    np.testing.assert_allclose(policy.predict_proba(LOG.context), soft, atol=1e-2)


def test_the_direct_method_takes_boosted_trees_with_a_seed():
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(max_iter=5, early_stopping=True)
    one, same, other = (Direct(model).fit(rest(), seed).predict_proba(LOG.context) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_what_cannot_be_a_reward_model_is_refused():
    with refuses(OptionError):
        Direct(linear.Ridge)
    with refuses(OptionError):
        Direct("magic")
    with refuses(OptionError):
        Direct(linear.Ridge(solver="magic")).fit(rest(), 0)


def test_samples_come_as_often_as_their_propensities_say(tmp_path):
    policy = ModelPolicy(lambda context: np.log([[0.1, 0.2, 0.7]]) + 0 * context, 3)
    policy.actions_ = np.array([4, 6, 9])
    actions, propensity = policy.sample(np.zeros((20_000, 1)), seed=0)
    for action, p in zip((4, 6, 9), (0.1, 0.2, 0.7), strict=True):
        np.testing.assert_allclose(propensity[actions == action], p)
        assert abs((actions == action).mean() - p) < 4 * np.sqrt(p * (1 - p) / 20_000)
    masked, propensity = policy.sample(np.zeros((1000, 1)), temperature=0.5, mask=[True, True, False], seed=0)
    np.testing.assert_allclose(propensity, np.where(masked == 4, 0.2, 0.8))  # 0.1² and 0.2²
    with refuses(LogError):
        policy.sample(np.zeros((2, 1)), mask=[[True, True, True], [False, False, False]])
    policy.temperature = 0.0
    actions, propensity = policy.sample(np.zeros((5, 1)), seed=0)
    assert actions.tolist() == [9] * 5
    assert propensity.tolist() == [1.0] * 5
    for save in (policy.save, lambda path: save_policy(policy, path)):
        with refuses(OptionError):
            save(tmp_path / "policy")
    with refuses(OptionError):
        export_onnx(policy, tmp_path / "policy")
    with refuses(OptionError):
        save_policy(3, tmp_path / "policy")


def test_a_model_serves_by_the_rules_of_all_policies():
    weight = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    ours = LinearSoftmax(2, 3)
    ours.scores.weight.data = weight
    policy = ModelPolicy(lambda context: context @ weight.T.numpy(), 3)
    context = np.random.default_rng(0).normal(size=(40, 2))
    frame = pl.DataFrame(context, schema=["x", "y"])
    action = np.random.default_rng(1).choice([4, 6, 9, 11], 40)  # it knows three
    for one in (ours, policy):
        one.actions_, one.context_ = np.array([4, 6, 9]), ("x", "y")
    options = [{}, {"temperature": 0.5}, {"mask": [True, False, True]}, {"candidates": [[4, 9], [6, 9]] * 20}]
    for given in options:
        np.testing.assert_allclose(policy.predict_proba(frame, **given), ours.predict_proba(frame, **given), rtol=1e-5)
        found = policy.propensity(frame, action, **given)
        np.testing.assert_allclose(found, ours.propensity(frame, action, **given), rtol=1e-5)
        assert not found[action == 11].any()
    np.testing.assert_array_equal(policy.greedy(context), ours.greedy(context))
    np.testing.assert_array_equal(policy.greedy(context, **options[-1]), ours.greedy(context, **options[-1]))
    for one in (ours, policy):
        np.testing.assert_array_equal(one.greedy(frame[["y", "x"]]), one.greedy(frame))  # by their names
        with refuses(OptionError):
            one.propensity(context, [4])
        with refuses(OptionError):
            one.sample(context, seed="a")
        with refuses(OptionError):
            one.sample(context, temperature=-1)


def test_anything_with_predict_proba_is_a_policy():
    model = linear.LogisticRegression().fit(LOG.context, np.where(LOG.action == 1, 3, LOG.action))
    policy = as_policy(model, N)
    np.testing.assert_allclose(
        policy.predict_proba(LOG.context)[:, [0, 2, 3, 4]], model.predict_proba(LOG.context), atol=1e-6
    )
    assert not policy.predict_proba(LOG.context)[:, 1].any()
    assert as_policy(policy, N) is policy
    with refuses(TrainingError):
        as_policy(3, N)
