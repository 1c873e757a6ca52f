"""What the theorems promise, seen in simulations with a known truth; tolerances come from the Monte Carlo error."""

import numpy as np
import pytest

from counterpoise.estimators import beta_ips, cross_fit, dr, ips, optimal_dr
from counterpoise.moments import Moments

ACTIONS = 10


def world(seed):
    """Action probabilities of logging and target policy and the mean rewards, for one context."""
    g = np.random.default_rng(seed)
    logits = g.normal(size=ACTIONS)
    softmax = lambda x: np.exp(x) / np.exp(x).sum()  # noqa: E731
    return softmax(logits), softmax(logits + g.normal(size=ACTIONS)), g.uniform(0.2, 0.8, ACTIONS)


def draws(seed, n, runs, policy, rewards):
    """Actions and rewards of many logs at once."""
    g = np.random.default_rng(seed)
    actions = g.choice(ACTIONS, size=(runs, n), p=policy)
    return actions, (g.random((runs, n)) < rewards[actions]).astype(float)


def stack_of(w, r, **columns):
    """Moments of many logs at once, one per row of the arrays."""
    return Moments.stack([Moments.of(w[k], r[k], **{name: c[k] for name, c in columns.items()}) for k in range(len(w))])


def test_the_optimal_baseline_has_the_smallest_variance_of_all_constants():
    logging, target, rewards = world(1)
    a, r = draws(2, 400, 2000, logging, rewards)
    w = (target / logging)[a]
    wr = w * r
    # the population's optimal β, exactly: Cov(wr, w)/Var(w) under the logging policy
    weight = target / logging
    second = (logging * weight**2 * rewards).sum()
    best = (second - (target * rewards).sum()) / ((logging * weight**2).sum() - 1)
    grid = best + np.linspace(-1, 1, 21)
    variances = [(beta + wr.mean(axis=1) - beta * w.mean(axis=1)).var() for beta in grid]
    assert int(np.argmin(variances)) in range(9, 12)
    # and by the estimated standard errors, in which the Monte Carlo noise is common to the grid
    m = Moments.of(w.ravel(), r.ravel())
    found = beta_ips(m)
    assert all(found.stderr <= beta_ips(m, baseline=float(beta)).stderr * (1 + 1e-12) for beta in grid)
    assert found.baseline == pytest.approx(best, abs=0.02)


@pytest.mark.once
def test_cross_fitted_beta_ips_is_unbiased_at_twenty_rows_where_the_plug_in_is_not():
    logging, target, _ = world(3)
    # rewards that rise with the weight: then the baseline of a log and its mean weight go together, and their product has a bias
    rewards = 0.1 + 0.8 * (target / logging > 1.5)
    truth = float((target * rewards).sum())
    runs, n = 20_000, 20
    a, r = draws(4, n, runs, logging, rewards)
    w = (target / logging)[a]
    u, center = w - 1, 0.5
    s = r - center
    rows = np.stack([u, s, u * s], axis=-1)
    one_each = Moments(
        np.ones((runs, n), dtype=np.int64),
        rows,
        np.zeros((runs, n, 3, 3)),
        np.full((runs, n), center),
        ("u", "s", "us"),
    )
    fitted = np.asarray(cross_fit(one_each).value)
    plugged = np.asarray(beta_ips(one_each.merge(axis=1), baseline="optimal").value)
    error = fitted.std() / np.sqrt(runs)
    assert abs(fitted.mean() - truth) < 4 * error
    assert abs(plugged.mean() - truth) > 4 * plugged.std() / np.sqrt(runs)


@pytest.mark.parametrize("spread", [0.005, 0.01, 0.02, 0.05])
def test_beta_ips_stays_sane_where_the_papers_formula_explodes(spread):
    """Target = logging policy with its logits perturbed a little: RMSE within 2 % of that of IPS, or better."""
    g = np.random.default_rng(5)
    logits = g.normal(size=ACTIONS)
    logging = np.exp(logits) / np.exp(logits).sum()
    near = np.exp(logits + spread * g.normal(size=ACTIONS))
    target, rewards = near / near.sum(), g.uniform(0.2, 0.8, ACTIONS)
    truth = float((target * rewards).sum())
    a, r = draws(6, 1000, 1000, logging, rewards)
    stack = stack_of((target / logging)[a], r)
    rmse = {
        name: float(np.sqrt(np.mean((np.asarray(estimate.value) - truth) ** 2)))
        for name, estimate in {
            "ips": ips(stack),
            "ours": beta_ips(stack),
            "paper": beta_ips(stack, baseline="plug-in"),
        }.items()
    }
    assert rmse["ours"] <= 1.02 * rmse["ips"]
    if spread == 0.005:
        assert rmse["paper"] > 1.02 * rmse["ips"]  # the reason for Cov/Var


@pytest.mark.once
@pytest.mark.parametrize("quality", [0.0, 0.5, 1.0])
def test_optimal_dr_is_as_good_as_the_better_of_beta_ips_and_dr(quality):
    """Models from useless to perfect; variances over many logs of 10,000 rows."""
    logging, target, rewards = world(7)
    g = np.random.default_rng(8)
    model = quality * rewards + (1 - quality) * g.uniform(-1, 1, ACTIONS)
    runs, n = 600, 10_000
    a, r = draws(9, n, runs, logging, rewards)
    w = (target / logging)[a]
    stack = stack_of(w, r, model_reward=model[a], model_value=np.broadcast_to(model @ target, a.shape))
    variance = {f.__name__: float(np.var(f(stack).value)) for f in (beta_ips, dr, optimal_dr)}
    # the three share their logs, so the ratio's Monte Carlo error is far below 1 %
    assert variance["optimal_dr"] <= 1.01 * min(variance["beta_ips"], variance["dr"])


def test_estimated_errors_are_the_real_ones():
    logging, target, rewards = world(10)
    a, r = draws(11, 2000, 2000, logging, rewards)
    stack = stack_of((target / logging)[a], r)
    for estimator in (ips, beta_ips):
        estimate = estimator(stack)
        real = np.std(estimate.value)
        # the sd of an sd over R runs is about sd/√(2R)
        assert np.mean(estimate.stderr) == pytest.approx(real, rel=4 / np.sqrt(2 * 2000))
