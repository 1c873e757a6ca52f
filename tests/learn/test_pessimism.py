"""Pessimism: imitation, clipping and logarithmic smoothing, against plain formulas; and the temperature that a policy serves with."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from learning import policies, small_log, torch
from messages import refuses

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import LogError, OptionError
from counterpoise.learn import MLP, LearningWarning, LinearSoftmax, PolicyLearner, export_onnx, load_policy, save_policy
from counterpoise.learn.criterion import pessimistic_value
from counterpoise.learn.objectives import OBJECTIVES
from counterpoise.learn.rows import Batch, Split
from counterpoise.learn.steps import LoggedActions

LOG = SyntheticBandit(n_actions=8, inverse_temperature=-3, seed=2).draw(3000)
ARRAYS = {"context": LOG.context, "action": LOG.action, "reward": LOG.reward, "propensity": LOG.propensity}
KAPPA, MOST, LAMBDA = 0.3, 1.5, 0.2


def gains():
    context, action, reward, propensity = small_log()
    return context, action, reward.abs(), propensity


def plain_value(policy, objective, beta, kappa, clip):
    """What is maximized, row by row, from the logits alone."""
    context, action, reward, propensity = gains()
    total = 0.0
    for i in range(len(action)):
        log_pi = torch.log_softmax(policy(context[i : i + 1])[0], -1)[action[i]]
        w = log_pi.exp() / propensity[i]
        if clip is not None and reward[i] > beta:
            w = torch.minimum(w, torch.tensor(clip))
        terms = {
            "ips": w * reward[i],
            "beta_ips": w * (reward[i] - beta),
            "log_smoothing": torch.log(1 + LAMBDA * w * reward[i]) / LAMBDA,
            "imitation": log_pi,
        }
        total = total + terms[objective] + kappa * log_pi
    return total / len(action)


def gradients(policy, value):
    names, parameters = zip(*policy.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(value, parameters), strict=True))


@pytest.mark.parametrize("norms", ["last_layer", "all"])
@pytest.mark.parametrize(
    ("objective", "kappa", "clip"),
    [
        ("beta_ips", KAPPA, None),
        ("beta_ips", 0.0, MOST),
        ("ips", KAPPA, MOST),
        ("log_smoothing", 0.0, None),
        ("log_smoothing", KAPPA, MOST),
        ("imitation", 0.0, None),
    ],
)
def test_the_gradient_is_that_of_the_formula(objective, kappa, clip, norms):
    context, action, reward, propensity = gains()
    for name, policy in policies().items():
        if norms == "last_layer" and name == "pooled embedding":
            continue
        chosen = replace(OBJECTIVES[objective].at(0.0, LAMBDA), imitation=kappa, clip=clip)
        beta = 1.7 if objective == "beta_ips" else 0.0
        policy.zero_grad(set_to_none=True)
        LoggedActions(policy, norms=norms).backward(
            Batch(context, action, reward, propensity, len(action)), beta, objective=chosen
        )
        expected = gradients(policy, plain_value(policy, objective, beta, kappa, clip))
        for key, parameter in policy.named_parameters():
            torch.testing.assert_close(-parameter.grad, expected[key], rtol=1e-7, atol=1e-10)


def test_the_gradient_is_that_of_finite_differences():
    context, action, reward, propensity = gains()
    policy = policies()["linear with bias"]
    chosen = replace(OBJECTIVES["log_smoothing"].at(0.0, LAMBDA), imitation=KAPPA)
    policy.zero_grad(set_to_none=True)
    LoggedActions(policy).backward(Batch(context, action, reward, propensity, len(action)), 0.0, objective=chosen)
    weight, step = policy.scores.weight, 1e-6
    for place in [(0, 0), (2, 1), (5, 2)]:
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                weight[place] += sign * step
                values.append(float(plain_value(policy, "log_smoothing", 0.0, KAPPA, None)))
                weight[place] -= sign * step
        assert -weight.grad[place].item() == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5)


def test_a_probability_of_nothing_has_a_finite_gradient():
    policy = LinearSoftmax(1, 2)
    with torch.no_grad():
        policy.scores.weight[:] = torch.tensor([[-200.0], [200.0]])
    rows = Batch(torch.ones(1, 1), torch.zeros(1, dtype=torch.long), torch.ones(1), torch.ones(1), 1)
    LoggedActions(policy).backward(rows, 0.0, objective=OBJECTIVES["imitation"])
    assert torch.isfinite(policy.scores.weight.grad).all()


def fit(*args, **options):
    return PolicyLearner(*args, **{"epochs": 8, "batch_size": 256, "learning_rate": 0.05, "folds": None} | options).fit(
        **ARRAYS
    )


def test_imitation_ends_near_the_logging_policy():
    found = fit("imitation")
    assert found.kind_ == "imitation"
    assert found.best_epoch_ == 1 + int(np.argmax([epoch.score for epoch in found.history_]))
    target = found.predict_proba(LOG.context)[np.arange(3000), LOG.action]
    likelihood = np.log(target[Split(0.1, 0).held_out(0, 3000)]).mean()
    assert found.history_[found.best_epoch_ - 1].score == pytest.approx(likelihood, rel=1e-5)
    weight = target / LOG.propensity
    assert 0.8 < np.median(weight) < 1.2
    assert LOG.value(found.predict_proba) == pytest.approx(LOG.reward.mean(), abs=0.05)


def test_more_imitation_stays_nearer_to_the_logged_actions():
    likelihoods = [
        np.log(fit(imitation=kappa).predict_proba(LOG.context)[np.arange(3000), LOG.action]).mean()
        for kappa in (0, 0.1, 10)
    ]
    assert likelihoods == sorted(likelihoods)


def test_log_smoothing_learns_and_wants_rewards_of_0_and_more():
    assert LOG.value(fit("log_smoothing").predict_proba) > LOG.reward.mean() + 0.03
    with refuses(LogError):
        PolicyLearner("log_smoothing").fit(**ARRAYS | {"reward": LOG.reward - 1})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"imitation": -1}, "imitation must be 0 or more; found -1"),
        ({"smoothing": 0}, "smoothing must be above 0"),
        ({"clip": "10"}, "clip must be above 0"),
        ({"temperature": -1}, "temperature must be 0 or more, or 'auto'; found -1"),
        ({"temperature": "auto", "holdout": 0}, "chosen on held-out rows, and with holdout=0 there are none"),
        ({"folds": 1}, "folds must be a whole number of at least 2"),
        ({"fallback": "ignore"}, "fallback must be 'warn', 'imitate' or 'raise'; found 'ignore'"),
    ],
)
def test_odd_options_are_refused(options, says):
    with pytest.raises(OptionError, match=says):
        PolicyLearner(**options).fit(**ARRAYS)


def test_the_policy_serves_with_the_temperature_it_was_asked_for():
    warm = fit().predict_proba(LOG.context)
    half = fit(temperature=0.5)
    assert half.policy_.temperature == 0.5
    np.testing.assert_allclose(
        half.predict_proba(LOG.context), warm**2 / (warm**2).sum(1, keepdims=True), rtol=1e-4, atol=1e-9
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LearningWarning)
        judged = fit(temperature=0, folds=2).result_
    assert judged.diagnostics().zero_weight_share > 0.5  # the policies of the folds take one action each


def test_the_temperature_is_the_one_with_the_largest_score_on_held_out_rows():
    held = Split(0.3, 0).held_out(0, 3000)
    options = {"holdout": 0.3, "epochs": 1}  # so that the policy takes more chances than it should
    warm = fit(**options).predict_proba(LOG.context)[held]
    scores = {}
    for one in (1.0, 0.5, 0.25, 0.0):
        table = np.eye(8)[warm.argmax(1)] if one == 0 else warm ** (1 / one)
        target = (table / table.sum(1, keepdims=True))[np.arange(len(warm)), LOG.action[held]]
        found = pessimistic_value(target / LOG.propensity[held], LOG.reward[held])
        assert found.is_measured
        scores[one] = found.criterion
    assert fit(**options, temperature="auto").policy_.temperature == max(scores, key=scores.get)
    assert max(scores, key=scores.get) != 1.0


def test_an_imitation_takes_the_chances_that_the_logging_policy_took():
    liked = ARRAYS | {"reward": 1 - LOG.reward}  # what was logged most is then best
    imitation = PolicyLearner(
        "imitation", temperature="auto", epochs=8, batch_size=256, learning_rate=0.05, folds=None
    ).fit(**liked)
    assert imitation.policy_.temperature == 1.0


@pytest.mark.parametrize("temperature", [0.5, 0.0])
def test_a_temperature_is_served_with_and_saved(tmp_path, temperature):
    torch.manual_seed(0)
    policy = MLP(3, 4)
    context = np.random.default_rng(0).normal(size=(50, 3))
    logits = policy(torch.tensor(context, dtype=torch.float32)).detach().double().numpy()
    policy.temperature = temperature
    expected = np.exp(2 * logits) / np.exp(2 * logits).sum(1, keepdims=True)
    if temperature == 0:
        expected = np.eye(4)[logits.argmax(1)]
    np.testing.assert_allclose(policy.predict_proba(context), expected, rtol=1e-5)
    action, propensity = policy.sample(torch.tensor(context, dtype=torch.float32))
    np.testing.assert_allclose(propensity, expected[np.arange(50), action], rtol=1e-5)
    save_policy(policy, tmp_path / "policy.safetensors")
    loaded = load_policy(tmp_path / "policy.safetensors")
    assert loaded.temperature == temperature
    np.testing.assert_allclose(loaded.predict_proba(context), expected, rtol=1e-5)


@pytest.mark.parametrize("temperature", [2.0, 0.0])
def test_onnx_has_the_temperature(tmp_path, temperature):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    policy = LinearSoftmax(3, 4)
    policy.temperature = temperature
    export_onnx(policy, tmp_path / "policy.onnx")
    context = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    session = runtime.InferenceSession(str(tmp_path / "policy.onnx"))
    (found,) = session.run(None, {"context": context})
    np.testing.assert_allclose(found, policy.predict_proba(context), rtol=1e-5)


def test_banditnet_s_lambdas_follow_the_scale_of_the_rewards():
    options = {"epochs": 1, "batch_size": 512, "folds": None}
    plain = PolicyLearner("lambda_ips", **options).fit(**ARRAYS)
    assert sorted(plain.tuning_) == pytest.approx([0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95], abs=1e-12)
    moved = PolicyLearner("lambda_ips", **options).fit(**ARRAYS | {"reward": 100 * LOG.reward - 20})
    assert sorted(moved.tuning_) == pytest.approx([100 * one - 20 for one in sorted(plain.tuning_)])
    assert math.isclose(moved.banditnet_lambda_, 100 * plain.banditnet_lambda_ - 20)
