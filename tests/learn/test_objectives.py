"""Gradients of the objectives, and what the paper says of them."""

import pytest
from learning import policies, small_log, torch

from counterpoise.learn import objectives
from counterpoise.learn.norms import SampleGradients, last_layer_norms, logged_probability, logit_norms, reference_norms
from counterpoise.learn.objectives import RunningBaseline, baseline_of, gradient_sums

MODEL = torch.rand(40, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

OBJECTIVES = {
    "ips": lambda t, r, p, **_: objectives.ips(t, r, p),
    "lambda_ips": lambda t, r, p, **_: objectives.lambda_ips(t, r, p, banditnet_lambda=1.7),
    "beta_ips": lambda t, r, p, **_: objectives.beta_ips(t, r, p, baseline=1.7),
    "value_beta_ips": lambda t, r, p, **_: objectives.value_beta_ips(t, r, p),
    "snips": lambda t, r, p, **_: objectives.snips(t, r, p),
    "dr": lambda t, r, p, **more: objectives.dr(t, r, p, model_rewards=MODEL[: len(t)], **more),
}


def value(name, policy, rows=40):
    context, action, reward, propensity = (part[:rows] for part in small_log())
    more = {"probabilities": torch.softmax(policy(context), -1), "action": action}
    return OBJECTIVES[name](policy.target(context, action), reward, propensity, **more)


def flat_gradient(scalar, policy):
    return torch.cat([g.flatten() for g in torch.autograd.grad(scalar, list(policy.parameters()))])


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("kind", ["linear", "normalised mlp"])
def test_gradient_is_that_of_finite_differences(name, kind):
    policy = policies()[kind]
    found = flat_gradient(value(name, policy), policy)
    parameters = list(policy.parameters())
    start = torch.nn.utils.parameters_to_vector(parameters).detach()
    expected = torch.empty_like(found)
    step = 1e-5
    with torch.no_grad():
        for k in range(len(start)):
            ends = []
            for sign in (1, -1):
                moved = start.clone()
                moved[k] += sign * step
                torch.nn.utils.vector_to_parameters(moved, parameters)
                ends.append(value(name, policy).item())
            expected[k] = (ends[0] - ends[1]) / (2 * step)
        torch.nn.utils.vector_to_parameters(start, parameters)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["ips", "lambda_ips", "beta_ips", "dr"])
def test_gradient_of_a_batch_is_the_mean_over_its_rows(name):
    """What makes mini-batches right; SNIPS and the value baseline are not of this kind."""
    policy = policies()["mlp"]
    context, action, reward, propensity = small_log()
    rows = []
    for i in range(40):
        one = slice(i, i + 1)
        more = {"probabilities": torch.softmax(policy(context[one]), -1), "action": action[one]}
        if name == "dr":
            row = objectives.dr(
                policy.target(context[one], action[one]),
                reward[one],
                propensity[one],
                model_rewards=MODEL[one],
                **more,
            )
        else:
            row = OBJECTIVES[name](policy.target(context[one], action[one]), reward[one], propensity[one], **more)
        rows.append(flat_gradient(row, policy))
    torch.testing.assert_close(flat_gradient(value(name, policy), policy), torch.stack(rows).mean(0), rtol=1e-6, atol=0)


def test_beta_and_lambda_have_one_gradient():
    policy = policies()["mlp"]
    gradients = {name: flat_gradient(value(name, policy), policy) for name in ("lambda_ips", "beta_ips")}
    torch.testing.assert_close(gradients["lambda_ips"], gradients["beta_ips"])


def test_dr_with_a_constant_model_is_beta_ips():
    policy = policies()["mlp"]
    context, action, reward, propensity = small_log()
    target, probabilities = policy.target(context, action), torch.softmax(policy(context), -1)
    constant = torch.full((40, 6), 1.7, dtype=torch.float64)
    full = objectives.dr(target, reward, propensity, probabilities=probabilities, model_rewards=constant, action=action)
    torch.testing.assert_close(full, objectives.beta_ips(target, reward, propensity, baseline=1.7))


def test_snips_gradient_compares_pairs_of_rows():
    policy = policies()["linear"]
    context, action, reward, propensity = small_log()
    w = (policy.target(context, action) / propensity).detach()
    each = torch.stack(
        [
            flat_gradient(policy.target(context[i : i + 1], action[i : i + 1])[0] / propensity[i], policy)
            for i in range(40)
        ]
    )
    pairs = sum(w[i] * each[j] * (reward[j] - reward[i]) for i in range(40) for j in range(40)) / w.sum().square()
    torch.testing.assert_close(flat_gradient(value("snips", policy), policy), pairs)


@pytest.mark.parametrize("kind", ["linear", "normalised mlp", "two towers"])
def test_optimal_baseline_has_the_least_measured_gradient_variance(kind):
    """Theorem 1: the sum over parameters of the variance, over rows, of ∇π/π₀ (r − β), its mean square left in."""
    policy = policies()[kind]
    context, action, reward, propensity = small_log(rows=400)
    each = torch.stack(
        [flat_gradient(policy.target(context[i : i + 1], action[i : i + 1])[0], policy) for i in range(400)]
    )
    found = baseline_of(gradient_sums(reference_norms(policy, context, action), reward, propensity)).item()
    grid = torch.linspace(found - 0.5, found + 0.5, 1001, dtype=torch.float64)
    # E[∇π/π₀] = 0 under the logging policy, so the theorem's variance is the second moment
    second_moment = [((each * ((reward - beta) / propensity)[:, None]).square().sum(1)).mean() for beta in grid]
    assert abs(grid[torch.stack(second_moment).argmin()].item() - found) < 1e-3


def test_on_policy_optimum_has_the_least_gradient_variance_too():
    policy = policies()["mlp"]
    context, action, reward, _ = small_log(rows=200)
    target = policy.target(context, action).detach()
    norms = reference_norms(policy, context, action) / target.square()
    each = torch.stack(
        [flat_gradient(policy.log_target(context[i : i + 1], action[i : i + 1])[0], policy) for i in range(200)]
    )
    torch.testing.assert_close(norms, each.square().sum(1))
    found = baseline_of(gradient_sums(norms, reward, torch.ones_like(reward))).item()
    grid = torch.linspace(found - 0.5, found + 0.5, 1001, dtype=torch.float64)
    second_moment = [((each * (reward - beta)[:, None]).square().sum(1)).mean() for beta in grid]
    assert abs(grid[torch.stack(second_moment).argmin()].item() - found) < 1e-3


@pytest.mark.parametrize("kind", policies())
def test_norms_by_layer_are_those_of_torch_func(kind):
    policy = policies()[kind]
    context, action, reward, propensity = small_log()
    found = SampleGradients(policy, context, action)
    assert found.by_layer
    torch.testing.assert_close(found.squared_norms, reference_norms(policy, context, action), rtol=1e-6, atol=1e-12)
    weight = (reward - 1.7) / propensity
    gradients = found.weighted_sum(weight)
    plain = torch.autograd.grad((weight * policy.target(context, action)).sum(), list(policy.parameters()))
    for parameter, expected in zip(policy.parameters(), plain, strict=True):
        torch.testing.assert_close(gradients[parameter], expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "linear with bias"])
def test_closed_form_is_exact_for_linear_policies(kind):
    policy = policies()[kind]
    context, action, *_ = small_log()
    norms = last_layer_norms(logit_norms(*logged_probability(policy(context), action)), context, bias="bias" in kind)
    torch.testing.assert_close(norms, reference_norms(policy, context, action), rtol=1e-6, atol=1e-12)


def test_closed_form_survives_certainty():
    """Where π is all but 1 the gradient is all but 0, and must not be rounding error."""
    logits = torch.tensor([[30.0, 0.0, 0.0]], dtype=torch.float64)
    found = logit_norms(*logged_probability(logits, torch.tensor([0]))).item()
    assert 0 <= found < 1e-15


def test_layers_without_rules_fall_back():
    shared = torch.nn.Linear(3, 3)
    from counterpoise.learn import ModulePolicy

    context, action, reward, propensity = small_log()
    for module in (
        torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.PReLU()),
        torch.nn.Sequential(shared, torch.nn.Tanh(), shared, torch.nn.Linear(3, 6)),
    ):
        policy = ModulePolicy(module, 6).double()
        found = SampleGradients(policy, context, action)
        assert not found.by_layer
        torch.testing.assert_close(found.squared_norms, reference_norms(policy, context, action))
        gradients = found.weighted_sum(reward / propensity)
        plain = torch.autograd.grad(
            (reward / propensity * policy.target(context, action)).sum(), list(policy.parameters())
        )
        for parameter, expected in zip(policy.parameters(), plain, strict=True):
            torch.testing.assert_close(gradients[parameter], expected)


def test_running_baseline_does_not_see_the_batch_it_is_used_on():
    context, action, reward, propensity = small_log()
    norms = reference_norms(policies()["linear"], context, action)
    running = RunningBaseline(initial=0.3)
    assert running.value.item() == pytest.approx(0.3)
    running.update(gradient_sums(norms, reward, propensity))
    assert running.value.item() == pytest.approx(baseline_of(gradient_sums(norms, reward, propensity)).item())


def test_sums_of_parts_add_up_to_those_of_the_whole():
    """So that one all-reduce of two numbers gives every process the same baseline."""
    context, action, reward, propensity = small_log()
    norms = reference_norms(policies()["linear"], context, action)
    whole = gradient_sums(norms, reward, propensity)
    parts = [gradient_sums(norms[k::2], reward[k::2], propensity[k::2]) for k in range(2)]
    torch.testing.assert_close(parts[0] + parts[1], whole)
