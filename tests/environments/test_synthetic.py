"""The simulator: exact to the draw, light, and what its options promise."""

import subprocess
import sys
import tracemalloc
from itertools import combinations_with_replacement
from math import comb

import numpy as np
import pytest
from messages import refuses

from counterpoise.environments import SyntheticBandit
from counterpoise.environments.synthetic import polynomial
from counterpoise.errors import OptionError


def dense_batches(n_actions, temperature, seed, n, batches):
    """The recipe word for word, with every action monomial written out: what the sparse form must equal."""

    def monomials(x):
        columns = [np.ones(len(x))]
        for k in range(1, 5):
            columns += [
                np.prod(x[:, c], axis=1) for c in map(list, combinations_with_replacement(range(x.shape[1]), k))
            ]
        return np.stack(columns, axis=1)

    random = np.random.RandomState(seed)
    d = comb(n_actions + 4, 4)
    chosen_context = random.choice(126, 12, replace=False)
    chosen_action = random.choice(d, int(0.1 * d), replace=False)
    theta_x, theta_a = random.uniform(-1, 1, size=12), random.uniform(-1, 1, size=int(0.1 * d))
    matrix = random.uniform(-1, 1, size=(12, int(0.1 * d)))
    psi = monomials(np.eye(n_actions))[:, chosen_action]
    stream = np.random.RandomState(seed)
    found = []
    for _ in range(batches):
        x = stream.normal(size=(n, 5))
        phi = monomials(x)[:, chosen_context]
        v = (phi @ theta_x)[:, None] + psi @ theta_a + phi @ matrix @ psi.T
        v = v - v.mean() / v.std()
        q = 1 / (1 + np.exp(-4 * v))
        policy = np.exp(temperature * q)
        policy /= policy.sum(axis=1, keepdims=True)
        uniform = np.random.RandomState(seed).uniform(size=n)
        action = (policy.cumsum(axis=1) > uniform[:, None]).argmax(axis=1)
        rows = np.arange(n)
        reward = stream.binomial(1, q[rows, action])
        found.append((x, q, action, reward, policy[rows, action]))
    return found


@pytest.mark.parametrize(("n_actions", "temperature", "seed"), [(2, 1, 0), (7, -5, 3), (12, 5, 11), (20, -1, 2)])
def test_batches_equal_the_dense_recipe(n_actions, temperature, seed):
    world = SyntheticBandit(n_actions, inverse_temperature=temperature, seed=seed)
    for x, q, action, reward, propensity in dense_batches(n_actions, temperature, seed, 400, batches=2):
        log = world.draw(400)
        assert np.array_equal(log.context, x)
        assert np.array_equal(log.action, action)
        assert np.array_equal(log.reward, reward)
        np.testing.assert_allclose(log.propensity, propensity, rtol=1e-12)
        np.testing.assert_allclose(log.expected(slice(0, 400)), q, rtol=1e-11)


def test_a_hundred_actions_build_in_little_memory():
    polynomial.cache_clear()
    tracemalloc.start()
    SyntheticBandit(100, seed=5).draw(100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


def test_chunks_do_not_change_a_batch(monkeypatch):
    whole = SyntheticBandit(9, inverse_temperature=-2, seed=1).draw(500)
    monkeypatch.setattr("counterpoise.environments.feedback.CHUNK", 100)
    parts = SyntheticBandit(9, inverse_temperature=-2, seed=1).draw(500)
    assert np.array_equal(whole.action, parts.action)
    assert np.array_equal(whole.reward, parts.reward)
    np.testing.assert_allclose(whole.propensity, parts.propensity, rtol=1e-12)
    best = np.argmax(whole.expected(slice(0, 500)), axis=1)
    assert whole.value(best) == pytest.approx(parts.value(best), rel=1e-12)


def test_the_value_of_a_policy_is_the_same_however_it_is_given():
    log = SyntheticBandit(6, seed=2).draw(300)
    action = np.argmax(log.context, axis=1)
    one_hot = np.eye(6)[action]
    assert log.value(action) == pytest.approx(log.value(one_hot), rel=1e-14)
    assert log.value(action) == log.value(lambda context: np.argmax(context, axis=1))
    assert log.value(np.full((300, 6), 1 / 6)) == pytest.approx(log.expected(slice(0, 300)).mean(), rel=1e-12)
    assert np.array_equal(log.target(action), (action == log.action).astype(float))
    assert np.array_equal(log.target(one_hot), log.target(action))


def test_weighted_rewards_average_to_the_true_value():
    log = SyntheticBandit(5, inverse_temperature=2, seed=4).draw(40_000)
    policy = np.tile([0.4, 0.3, 0.2, 0.1, 0.0], (40_000, 1))
    terms = log.target(policy) / log.propensity * log.reward
    assert abs(terms.mean() - log.value(policy)) < 4 * terms.std() / np.sqrt(terms.size)


def test_a_uniform_and_a_given_logging_policy_log_what_they_say():
    uniform = SyntheticBandit(4, seed=0, logging="uniform").draw(8000)
    assert np.all(uniform.propensity == 0.25)
    share = np.bincount(uniform.action, minlength=4) / 8000
    assert np.all(np.abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 8000))
    given = SyntheticBandit(4, seed=0, logging=lambda x: np.tile([0.1, 0.2, 0.3, 0.4], (len(x), 1))).draw(100)
    np.testing.assert_allclose(given.propensity, np.array([0.1, 0.2, 0.3, 0.4])[given.action], rtol=1e-12)


def test_continuous_rewards_scatter_around_their_expectation():
    log = SyntheticBandit(8, seed=3, reward="continuous", noise=0.5).draw(20_000)
    residual = log.reward - log.expected_of(log.action)
    assert abs(residual.mean()) < 4 * 0.5 / np.sqrt(20_000)
    assert abs(residual.std() - 0.5) < 4 * 0.5 / np.sqrt(2 * 20_000)


def test_degree_one_with_all_monomials_is_linear_in_the_context():
    log = SyntheticBandit(3, seed=1, degree=1, ratio=1.0, reward="continuous").draw(200)
    design = np.hstack([np.ones((200, 1)), log.context])
    residual = (
        log.expected(slice(0, 200)) - design @ np.linalg.lstsq(design, log.expected(slice(0, 200)), rcond=None)[0]
    )
    assert np.abs(residual).max() < 1e-12


def test_a_thousand_actions_work_although_their_monomials_cannot_be_permuted():
    log = SyntheticBandit(1000, seed=0).draw(50)
    assert log.expected(slice(0, 50)).shape == (50, 1000)
    assert 0 < log.value(np.zeros(50, dtype=int)) < 1


def test_frames_have_the_columns_an_evaluation_needs():
    log = SyntheticBandit(3, seed=0).draw(20)
    frame = log.frame(greedy=np.zeros(20, dtype=int))
    assert frame.columns == [*(f"context_{j}" for j in range(5)), "action", "reward", "propensity", "greedy"]
    assert np.array_equal(frame["greedy"].to_numpy(), (log.action == 0).astype(float))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_actions": 1}, "n_actions=1 is too small; it must be at least 2"),
        ({"seed": -1}, "seed=-1 is out of range"),
        ({"ratio": 0.0}, "ratio=0.0 must lie in"),
        ({"degree": 0}, "degree=0 is too small"),
        ({"inverse_temperature": float("nan")}, "inverse_temperature=nan is not a finite number"),
        ({"reward": "count"}, "not one of 'binary', 'continuous'"),
        ({"noise": -1.0}, "noise=-1.0 is not a standard deviation"),
        ({"logging": "greedy"}, "not one of 'softmax', 'uniform'. Or pass a function of the contexts"),
        ({"context_dimension": 60, "degree": 6}, r"more than 1,000,000\. Lower degree= or context_dimension="),
    ],
)
def test_impossible_worlds_are_refused(options, words):
    with pytest.raises(OptionError, match=words) as error:
        SyntheticBandit(**{"n_actions": 5} | options)
    named = error.value.render(lambda name, value: f"--{name}")  # each front end writes arguments its own way
    assert any(f"--{name}" in named for name in options)
    assert "=" not in named


def test_impossible_policies_are_refused():
    log = SyntheticBandit(3, seed=0).draw(10)
    with refuses(OptionError):
        SyntheticBandit(3).draw(0)
    with refuses(OptionError):
        log.value(np.full(10, 3))
    with refuses(OptionError):
        log.value(np.zeros(9, dtype=int))
    with refuses(OptionError):
        log.value(np.zeros((10, 2)))
    with refuses(OptionError):
        log.value(np.full((10, 3), 0.5))
    with refuses(OptionError):
        SyntheticBandit(3, logging=lambda x: np.ones((len(x), 3))).draw(5)


def test_environments_need_nothing_but_numpy():
    code = """
import sys

class OnlyNumPy:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"polars", "scipy", "narwhals", "numba", "sklearn", "pandas", "rich", "typer"}:
            raise ImportError(name)

sys.meta_path.insert(0, OnlyNumPy())
from counterpoise.environments import SyntheticBandit
print(len(SyntheticBandit(5).draw(10)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("10\n", "")
