"""Columns of a baseline that follow from the choice are doubted, and those known before it are not."""

import numpy as np
import polars as pl
import pytest
from doubts import codes
from messages import refuses

import counterpoise as cp
from counterpoise.diagnostics.verdict import after_choice

PARTS = {"reward": "r", "propensity": "p", "target": "pi"}


def world(seed, n=2000, heavy=5.0):
    """Three actions; a context, one that has a long tail, and how long people stayed, which follows from what they were shown."""
    g = np.random.default_rng(seed)
    mass = g.dirichlet([heavy] * 3, n)
    action = (mass.cumsum(axis=1) > g.random(n)[:, None]).argmax(axis=1)
    x, row = g.normal(size=n), np.arange(n)
    reward = action + 0.5 * x + g.normal(size=n)
    pi = np.array([0.1, 0.2, 0.7])[action]
    columns = {"r": reward, "p": mass[row, action], "pi": pi, "a": action, "x": x, "tail": g.lognormal(0, 2, n)}
    columns |= {"stay": 2 * reward + g.normal(size=n), "user": row // 4, "country": g.choice(["DE", "FR"], n)}
    return pl.DataFrame(columns)


@pytest.mark.parametrize("cluster", [None, "user"])
def test_what_follows_from_the_choice_is_doubted(cluster):
    log = world(0)
    u, stay = (log["pi"] / log["p"] - 1).to_numpy(), log["stay"].to_numpy()
    for ask in (cp.evaluate, cp.compare):
        result = ask(log, **PARTS, baseline=["x", "stay"], segment="country", cluster=cluster)
        for segment in (None, "DE"):
            verdict = result.verdict(segment=segment)
            assert verdict.verdict == "caution"
            (caveat,) = (caveat for caveat in verdict.caveats if caveat.code == "baseline-after-choice")
            assert "'stay'" in caveat.text
        here = (log["country"] == "DE").to_numpy()
        assert caveat.numbers["mean"] == pytest.approx((u * (stay - stay.mean()))[here].mean(), abs=0.2)
        assert ask(log, **PARTS, baseline=["x"], cluster=cluster).verdict().verdict == "ok"


@pytest.mark.thorough
@pytest.mark.once
@pytest.mark.parametrize("heavy", [5.0, 0.5])
def test_what_was_known_before_is_not(heavy):
    """Of 300 logs with three columns, one may be doubted by chance: the level is 0.001 for all of them together."""
    doubted = 0
    for seed in range(300):
        found = cp.evaluate(
            world(seed, 400, heavy), **PARTS, baseline=["x", "tail", "country"], estimator="context_ips"
        )
        doubted += "baseline-after-choice" in codes(found.verdict())
    assert doubted <= 2


def test_clusters_and_rows_that_carry_the_weights_limit_what_is_sure():
    far = {"x": (10.0, 1.0)}
    assert list(after_choice(far, carrying=400))
    assert not list(after_choice(far, carrying=400, clusters=3))
    assert not list(after_choice(far, carrying=2))


@pytest.mark.thorough
@pytest.mark.once
@pytest.mark.parametrize("users", [12, 200])
def test_few_and_unequal_users_are_no_reason_to_doubt(users):
    """All rows of a user have one context and one action; a few users have most of the rows, and large weights are rare."""
    doubted = 0
    for seed in range(300):
        g = np.random.default_rng(seed)
        size = np.ceil(g.lognormal(1, 1.5, users)).astype(int)
        mass = g.dirichlet([0.5] * 3, users) * 0.97 + 0.01
        action = (mass.cumsum(axis=1) > g.random(users)[:, None]).argmax(axis=1)
        columns = {"p": mass[np.arange(users), action], "pi": np.array([0.1, 0.2, 0.7])[action]}
        columns |= {"x": g.normal(size=users), "y": g.exponential(size=users), "user": np.arange(users)}
        log = {name: np.repeat(values, size) for name, values in columns.items()}
        log["r"] = (g.random(size.sum()) < 0.05).astype(float)
        found = cp.evaluate(log, **PARTS, baseline=["x", "y"], cluster="user", estimator="context_ips")
        doubted += "baseline-after-choice" in codes(found.verdict())
    assert doubted <= 2


@pytest.mark.parametrize(
    ("part", "name", "what"),
    [
        ("baseline", "r", "reward"),
        ("baseline", "a", "action"),
        ("baseline", "p", "propensity"),
        ("context", "r", "reward"),
    ],
)
def test_the_reward_and_the_choice_explain_no_reward(part, name, what):
    with refuses(cp.OptionError):
        cp.evaluate(world(0, 50), **PARTS, action="a", **{part: ["x", name]})
