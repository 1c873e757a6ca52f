"""`auto` leans on the model where the log is thin, by no more than it promises, and its error knows it."""

import numpy as np
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.estimators import auto, beta_ips, dm, optimal_dr
from counterpoise.estimators.auto import auto_without
from counterpoise.moments import Moments

pytestmark = pytest.mark.once

TRUTH = 0.6  # of the target in `logs`
LOGGED = 0.15  # how often the logging policy takes the target's action


def log_of(random, n, *, bias):
    """One log of a target that always takes one action, worth 0.6, where the others are worth 0.4."""
    taken = random.random(n) < LOGGED
    reward = (random.random(n) < np.where(taken, TRUTH, 0.4)).astype(float)
    model_reward = np.where(taken, TRUTH + bias, 0.4)
    return taken / LOGGED, reward, model_reward, np.full(n, TRUTH + bias)


def logs(count, n, *, bias):
    """A stack of the moments of many such logs."""
    random = np.random.default_rng(n)
    rows = (log_of(random, n, bias=bias) for _ in range(count))
    return Moments.stack([Moments.of(w, r, model_reward=q, model_value=v) for w, r, q, v in rows])


def square_errors(estimator, stack):
    return np.square(np.asarray(estimator(stack).value) - TRUTH)


@pytest.mark.parametrize("bias", [0.0, 0.03])
def test_a_good_model_saves_most_of_the_error_of_a_thin_log(bias):
    stack = logs(1000, 30, bias=bias)
    saved = square_errors(auto, stack) - 0.7 * square_errors(beta_ips, stack)
    saved = saved[np.isfinite(saved)]  # a few logs have no overlap
    assert saved.mean() + 3 * saved.std() / np.sqrt(saved.size) < 0


@pytest.mark.parametrize("n", [60, 500, 4000])
@pytest.mark.parametrize("errors", [0.0, 1.0, 2.0, 3.0, 6.0])
def test_no_model_costs_much(n, errors):
    """However far off the model is, in standard errors: the worst of a normal estimate is 4 %, and thin logs add to it."""
    stderr = np.sqrt(TRUTH * (1 - TRUTH) / (LOGGED * n))
    stack = logs(400, n, bias=-errors * stderr)
    most = 1.5 if n == 60 else 1.15
    cost = square_errors(auto, stack) - most * square_errors(optimal_dr, stack)
    assert cost.mean() - 3 * cost.std() / 20 < 0


@pytest.mark.parametrize("off", [0.0, 0.01, 0.05, 0.5, 5.0, 1e6])
def test_in_a_large_log_it_stays_within_a_sixth_of_a_standard_error(off):
    g = np.random.default_rng(0)
    w, r, q, v = log_of(g, 50_000, bias=off)
    log = Moments.of(w, r, model_reward=q, model_value=v)
    # the standard error of the distance from the model is that of optimal_dr: this model's value does not vary
    assert abs(auto(log).value - optimal_dr(log).value) < 0.16 * optimal_dr(log).stderr * 1.01


@pytest.mark.parametrize("errors", [0.0, 1.0, 2.0, 4.0])
def test_the_interval_covers_whatever_the_model_says(errors):
    n = 2000
    stderr = np.sqrt(TRUTH * (1 - TRUTH) / (LOGGED * n))
    found = auto(logs(1000, n, bias=errors * stderr))
    covered = np.mean(np.abs(np.asarray(found.value) - TRUTH) <= 1.96 * np.asarray(found.stderr))
    assert covered >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 1000)


def test_the_error_has_the_distance_from_the_unbiased_estimate_in_it():
    w, r, q, v = log_of(np.random.default_rng(1), 300, bias=0.2)
    log = Moments.of(w, r, model_reward=q, model_value=v)
    found, share = auto(log), auto(log).baseline[-1]
    assert 0 < share < 1
    distance = share / (1 - share) * abs(dm(log).value - found.value)
    # this model's errors are those of a constant, so that optimal_dr and beta_ips are the same
    assert found.stderr**2 == pytest.approx(optimal_dr(log).stderr ** 2 + distance**2, rel=1e-9)
    assert distance > 0.05 * found.stderr


def test_rewards_that_did_not_come_up_are_in_the_error():
    """A mean weight of 0.5 says that half of what the target does was not seen."""
    g = np.random.default_rng(2)
    w, r = np.repeat([1.0, 0.0], 500), (g.random(1000) < 0.5).astype(float)
    log = Moments.of(w, r, model_reward=np.full(1000, 0.5), model_value=np.full(1000, 0.5))
    assert auto(log).stderr > 0.5 * r.std()


def test_the_more_rows_the_less_it_leans():
    w, r, q, v = log_of(np.random.default_rng(3), 100, bias=0.1)
    shares = []
    for times in (1, 4, 16, 64):
        rows = [np.tile(column, times) for column in (w, r, q, v)]
        shares.append(auto(Moments.of(*rows[:2], model_reward=rows[2], model_value=rows[3])).baseline[-1])
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 10 * shares[-1]


def test_without_overlap_it_is_the_model_and_its_error_is_unknown():
    log = Moments.of(np.zeros(50), np.arange(50) % 2, model_reward=np.full(50, 0.3), model_value=np.full(50, 0.3))
    found = auto(log)
    assert found.value == pytest.approx(0.3)
    assert (found.stderr, found.baseline[-1]) == (np.inf, 1.0)


def test_two_rows_leave_it_to_the_model():
    log = Moments.of([1.5, 0.5], [1, 0], model_reward=[0.4, 0.4], model_value=[0.3, 0.3])
    assert auto(log).value == pytest.approx(0.3)
    assert auto(log).stderr == np.inf


def test_a_stack_is_its_members():
    stack = logs(5, 200, bias=0.1)
    together = auto(stack)
    for k in range(5):
        one = auto(stack[k])
        assert (one.value, one.stderr) == pytest.approx((together.value[k], together.stderr[k]), rel=1e-12)


# -- as users meet it ----------------------------------------------------------------------------------------------------


def columns(n=2000, bias=0.1):
    w, r, q, v = log_of(np.random.default_rng(4), n, bias=bias)
    return {"r": r, "p": np.full(n, LOGGED), "t": w * LOGGED, "q": q, "v": v, "user": np.arange(n) // 4}


PARTS = {"reward": "r", "propensity": "p", "target": "t", "model_reward": "q", "model_value": "v"}


def test_it_is_there_by_name_and_never_the_headline_unasked():
    log = columns()
    asked = cp.evaluate(log, **PARTS, estimator="auto")
    assert "by auto" in str(asked)
    everything = cp.evaluate(log, **PARTS)
    assert everything["t", "auto"].value == asked["t", "auto"].value
    assert "by optimal_dr" in str(everything)


def test_it_says_what_it_needs():
    log = columns(50)
    with refuses(cp.OptionError):
        cp.evaluate(log, reward="r", propensity="p", target="t", estimator="auto")


def test_with_clusters_the_error_is_no_smaller_than_that_of_the_unbiased_estimate():
    """The jackknife of a value that the model dominates would be next to nothing."""
    log = columns(120, bias=0.0)
    found = cp.evaluate(log, **PARTS, cluster="user", estimator=["auto", "optimal_dr", "beta_ips", "dm"])
    assert found["t", "auto"].baseline[-1] > 0.5
    assert found["t", "auto"].stderr > 0.9 * min(found["t", name].stderr for name in ("optimal_dr", "beta_ips"))
    assert found["t", "dm"].stderr < 1e-9


def test_without_each_group_the_unbiased_part_moves():
    g = np.random.default_rng(6)
    groups = Moments.stack(
        [Moments.of(w, r, model_reward=q, model_value=v) for w, r, q, v in (log_of(g, 80, bias=0.1) for _ in range(40))]
    )
    without = auto_without(groups)
    count = 40
    error = np.sqrt((count - 1) / count * np.square(without - without.mean()).sum())
    # 40 groups know their error to 1/√78 = 11 %
    assert error == pytest.approx(auto(groups.merge(axis=0)).stderr, rel=0.35)


def test_further_control_variates_are_used():
    log = columns() | {"x": np.random.default_rng(7).normal(size=2000)}
    log["r"] = log["r"] + 2 * log["x"]
    plain = cp.evaluate(log, **PARTS, estimator="auto")["t", "auto"]
    controlled = cp.evaluate(log, **PARTS, control={"x": 0.0}, estimator="auto")["t", "auto"]
    assert controlled.stderr < plain.stderr
