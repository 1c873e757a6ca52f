"""The doctor reads a column of percentages, logarithms, complements, odds or inverses as what it is, and right ones as right."""

import numpy as np
import polars as pl
import pytest

import counterpoise as cp

OLD, NEW = np.array([0.45, 0.3, 0.2, 0.05]), np.array([0.1, 0.2, 0.3, 0.4])
WRITTEN = {
    "p / 100": lambda p: 100 * p,
    "exp(p)": np.log,
    "1 - p": lambda p: 1 - p,
    "p / (1 + p)": lambda p: p / (1 - p),
    "1 / p": lambda p: 1 / p,
}


def a_log(written=lambda p: p, n=5000, seed=0, **more):
    g = np.random.default_rng(seed)
    action = g.choice(4, n, p=OLD)
    return pl.DataFrame(
        {
            "reward": g.integers(0, 2, n),
            "p": written(OLD[action]),
            "pi_new": NEW[action],
            "action": action,
            "noise": g.random(n),
        }
    ).with_columns(**more)


def findings(log, **options):
    found = cp.doctor(log, **options).findings
    return [one for one in found if "seems to hold" in one.message or "their range" in one.message]


@pytest.mark.parametrize("expression", WRITTEN)
def test_the_doctor_says_the_expression_that_mends_them(expression):
    log = a_log(WRITTEN[expression])
    (one,) = findings(log)
    assert cp.doctor(log).findings[0] == one
    assert one.severity == "fix"
    assert f"propensity={expression!r}" in one.message
    action = log["action"].to_numpy()
    assert f"with {expression}, the mean weight of pi_new is {(NEW / OLD)[action].mean():.3f} ±" in one.message
    mended = cp.evaluate(log, reward="reward", propensity=expression, target="pi_new")
    right = cp.evaluate(a_log(), reward="reward", propensity="p", target="pi_new")
    assert mended["pi_new", "ips"].value == pytest.approx(right["pi_new", "ips"].value, rel=1e-12)


@pytest.mark.parametrize("expression", ["p / 100", "exp(p)", "1 / p", "p / (1 + p)"])
def test_without_a_target_the_number_of_actions_tells(expression):
    (one,) = findings(a_log(WRITTEN[expression]).drop("pi_new"))
    assert f"propensity={expression!r}" in one.message
    assert "number of actions" in one.message


def test_without_anything_to_go_by_the_range_tells():
    (one,) = findings(a_log(np.log).drop("pi_new", "action"))
    assert "propensity='exp(p)'" in one.message
    (one,) = findings(a_log(lambda p: 1 / p).drop("pi_new", "action"))  # all at least 1
    assert all(f"propensity={made!r}" in one.message for made in ("p / 100", "p / (1 + p)", "1 / p"))


@pytest.mark.once
@pytest.mark.parametrize("seed", range(5))
def test_right_propensities_are_left_alone(seed):
    assert not findings(a_log(seed=seed))
    assert not findings(a_log(seed=seed, n=50))
    assert not findings(a_log(seed=seed).drop("pi_new"))


def test_what_no_reading_mends_is_left_alone():
    g = np.random.default_rng(1)
    assert not findings(a_log(lambda p: g.random(len(p))))
    few = a_log().with_columns(p=pl.when(pl.int_range(pl.len()) < 60).then(0.0).otherwise("p"))
    assert not findings(few)  # zeros for “unknown”, and the rest is right
    assert not findings(few.drop("pi_new", "action"))


def test_names_that_need_quotes_have_them():
    log = a_log(WRITTEN["p / 100"]).rename({"p": "chance of it"})
    (one,) = findings(log, propensity="chance of it")
    assert "propensity='\"chance of it\" / 100'" in one.message
    mended = cp.evaluate(log, reward="reward", propensity='"chance of it" / 100', target="pi_new")
    assert mended.n == 5000


def test_a_propensity_that_was_never_logged_can_be_estimated():
    said = [one.message for one in cp.doctor(a_log().drop("p")).findings if one.about == "propensity"]
    assert "cp.models.Propensity(" in said[0]
