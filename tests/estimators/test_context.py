"""Baselines that depend on the context: the fit against plain loops, what it may never do, and what it buys."""

import numpy as np
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.estimators import beta_ips, context_ips, cross_fit, difference, lift
from counterpoise.estimators.weighted import context_difference
from counterpoise.moments import Moments


def rows(n=400, p=3, slope=1.0, seed=0):
    g = np.random.default_rng(seed)
    x = g.normal(size=(n, p)) * [1.0, 5.0, 0.2][:p] + [0.0, 40.0, -3.0][:p]
    w = g.choice([0.25, 0.5, 2.0, 2.5], n, p=[0.3, 0.3, 0.2, 0.2])
    r = slope * (x[:, 0] + 0.2 * x[:, 1]) + g.normal(size=n)
    return w, r, x


def moments(w, r, x):
    return Moments.of(w, r, features={f"x{k}": column for k, column in enumerate(x.T)})


def by_hand(w, r, x, v):
    """θ and the value, with the ridge written out over rows: v·r is the response, w·r for a value and u·r for a lift."""
    n, u, y = len(w), w - 1, v * r
    design = u[:, None] * x

    def without_u(columns):
        centered = columns - columns.mean(axis=0)
        around = u - u.mean()
        return centered - np.outer(around, around @ centered) / (around @ around)

    z, t = without_u(design), without_u(y[:, None])[:, 0]
    size = np.sqrt((z**2).sum(axis=0))
    z = z / size
    correlation, right = z.T @ z, z.T @ t
    kappa = np.mean(u**2 * v**2) / np.mean(u**2) / np.mean(v**2)
    noise = kappa * (t @ t) / n
    p = x.shape[1]
    explained = right @ np.linalg.solve(correlation, right)
    signal = max(explained - (p + np.sqrt(2 * p)) * noise, 0.0) / np.trace(correlation)
    theta = np.zeros(p) if signal == 0 else np.linalg.solve(correlation + noise / signal * np.eye(p), right) / size
    left = y - design @ theta
    beta = np.cov(left, u)[0, 1] / np.var(u, ddof=1)
    return theta, np.mean(left - beta * u)


def test_the_value_and_the_coefficients_are_those_of_the_ridge_over_rows():
    w, r, x = rows()
    theta, value = by_hand(w, r, x, w)
    found = context_ips(moments(w, r, x))
    assert found.value == pytest.approx(value, rel=1e-10)
    assert found.baseline[1:] == pytest.approx(theta, rel=1e-8)
    assert found.baseline[0] == pytest.approx(beta_ips(Moments.of(w, r)).baseline, rel=1e-10)
    theta, value = by_hand(w, r, x, w - 1)
    for estimator in (lift, context_difference):
        assert estimator(moments(w, r, x)).value == pytest.approx(value, rel=1e-9)
        assert estimator(moments(w, r, x)).baseline[1:] == pytest.approx(theta, rel=1e-8)


def test_centers_and_units_of_the_features_do_not_matter():
    w, r, x = rows()
    other = context_ips(moments(w, r, 1000.0 * x + 7.0))
    found = context_ips(moments(w, r, x).with_features_moved({"u·x1": 12.0}))
    one = context_ips(moments(w, r, x))
    for again in (other, found):
        assert (again.value, again.stderr) == pytest.approx((one.value, one.stderr), rel=1e-9)
    assert other.baseline[1:] == pytest.approx(np.array(one.baseline[1:]) / 1000.0, rel=1e-8)


@pytest.mark.thorough
@pytest.mark.once
def test_a_context_that_says_nothing_leaves_the_constant():
    """Three columns of noise explain more than is asked of them with 14 % chance: 28 of 200 logs, ± 5."""
    exactly = 0
    for seed in range(200):
        w, r, x = rows(slope=0.0, seed=seed)
        x = np.random.default_rng([seed, 1]).normal(size=x.shape)
        found, plain = context_ips(moments(w, r, x)), beta_ips(Moments.of(w, r))
        exactly += not any(found.baseline[1:])
        assert found.stderr <= plain.stderr * 1.0001
        if not any(found.baseline[1:]):
            assert (found.value, found.stderr) == pytest.approx((plain.value, plain.stderr), rel=1e-9)
    assert 200 - exactly <= 28 + 4 * 5


def test_useless_features_degenerate_logs_and_repeated_columns_are_harmless():
    w, r, x = rows(n=50)
    constant = np.column_stack([np.full(50, 3.0), x[:, 0], x[:, 0], 2.0 * x[:, 0]])
    found, plain = context_ips(moments(w, r, constant)), context_ips(moments(w, r, x[:, :1]))
    assert np.isfinite(found.value)
    assert found.stderr == pytest.approx(plain.stderr, rel=0.1)
    for weights, rewards in ((np.ones(50), r), (w, np.full(50, 3.0)), (np.zeros(50), r)):
        found, plain = context_ips(moments(weights, rewards, x)), beta_ips(Moments.of(weights, rewards))
        assert found.value == pytest.approx(plain.value, rel=1e-12, nan_ok=True)
        assert found.stderr == pytest.approx(plain.stderr, rel=1e-6, abs=1e-9)


def test_the_interval_of_lift_shrinks_as_the_share_explained_says():
    g = np.random.default_rng(1)
    n, share = 20_000, 0.3
    x, w = g.normal(size=(n, 4)), g.choice([0.5, 1.5], n)
    r = 10.0 + np.sqrt(share) * x @ np.full(4, 0.5) + np.sqrt(1 - share) * g.normal(size=n)
    log = moments(w, r, x)
    assert lift(log).stderr / lift(Moments.of(w, r)).stderr == pytest.approx(np.sqrt(1 - share), abs=0.01)
    assert context_difference(log).stderr / difference(log).stderr == pytest.approx(np.sqrt(1 - share), abs=0.01)


@pytest.mark.thorough
@pytest.mark.once
@pytest.mark.parametrize("estimator", [context_ips, lift])
def test_the_error_is_honest(estimator):
    """500 logs of 500 rows with 8 features: 95 % intervals cover 93 to 97 % within four Monte Carlo errors of 0.95."""
    covered, runs, n = 0, 500, 500
    for seed in range(runs):
        g = np.random.default_rng([seed, 5])
        x, w = g.normal(size=(n, 8)), g.choice([0.2, 0.6, 2.0], n, p=[0.3, 0.4, 0.3])
        w = w * 1.0 + (1.0 - 0.9)  # E[w] = 1
        r = 1.0 + x[:, 0] - 0.5 * x[:, 1] + g.normal(size=n)
        truth = 1.0 if estimator is context_ips else 0.0
        found = estimator(moments(w, r, x))
        covered += abs(found.value - truth) <= 1.96 * found.stderr
    assert abs(covered / runs - 0.95) <= 4 * np.sqrt(0.95 * 0.05 / runs)


def test_cross_fitting_takes_every_groups_baseline_from_the_others():
    w, r, x = rows(n=300)
    fold = np.arange(300) % 5
    groups = Moments.stack([moments(w[fold == k], r[fold == k], x[fold == k]) for k in range(5)])
    # features are centered fold by fold in `of`, so that they need one center before they add up
    shift = [{f"u·x{j}": float(x[fold == k, j].mean()) for j in range(3)} for k in range(5)]
    groups = Moments.stack([groups[k].with_features_moved(shift[k]) for k in range(5)])
    total = 0.0
    for k in range(5):
        mine, others = fold == k, fold != k
        theta, _ = by_hand(w[others], r[others], x[others], w[others])
        left = w[others] * r[others] - (w[others] - 1) * (x[others] @ theta)
        beta = np.cov(left, w[others])[0, 1] / np.var(w[others], ddof=1)
        total += (w[mine] * r[mine] - (w[mine] - 1) * (beta + x[mine] @ theta)).sum()
    assert cross_fit(groups).value == pytest.approx(total / 300, rel=1e-9)


def test_it_obeys_the_laws_of_the_other_estimators():
    w, r, x = rows()
    one, moved = context_ips(moments(w, r, x)), context_ips(moments(w, r + 1e6, x))
    assert moved.value - 1e6 == pytest.approx(one.value, abs=1e-7)
    assert moved.stderr == pytest.approx(one.stderr, rel=1e-6)
    assert context_ips(moments(np.ones(400), r, x)).value == pytest.approx(r.mean(), rel=1e-12)
    order = np.random.default_rng(0).permutation(400)
    assert context_ips(moments(w[order], r[order], x[order])).value == pytest.approx(one.value, rel=1e-12)


def test_without_a_baseline_the_estimator_says_what_it_needs():
    with refuses(cp.OptionError):
        context_ips(Moments.of([1.0, 2.0], [1, 0]))
    with refuses(cp.OptionError):
        cp.evaluate(reward=[1, 0], propensity=[0.5, 0.5], target=[0.5, 0.5], estimator="context_ips")
