"""Ratios of sums, against plain computations: values, lifts, differences, errors, segments, clusters, sampled rows, states."""

import numpy as np
import polars as pl
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.errors import LogError, OptionError

RANDOM = np.random.default_rng(3)
N = 3000
ACTION, CONTEXT = RANDOM.integers(0, 3, N), RANDOM.integers(0, 2, N)
NEW = np.array([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1]])[CONTEXT, ACTION]
OLD = np.array([[0.3, 0.3, 0.4], [0.2, 0.2, 0.6]])[CONTEXT, ACTION]
SESSIONS = 1.0 + RANDOM.poisson(0.5 + ACTION, N)
LOG = pl.DataFrame(
    {
        "revenue": SESSIONS * (1.0 + ACTION + CONTEXT) * RANDOM.gamma(2.0, 0.5, N),
        "sessions": SESSIONS,
        "p": np.full(N, 1 / 3),
        "new": NEW,
        "old": OLD,
        "user": np.arange(N) // 5,
        "day": np.arange(N) % 2,
        "keep": np.where(SESSIONS > 1, 0.8, 0.4),
    }
)
ASKED = {"reward": cp.Ratio("revenue", "sessions"), "propensity": "p"}


def of(weight, log=LOG):
    """R = Σwr/Σwd, and what every row adds to it to first order: w(r − Rd)/D, with D = Σwd/n."""
    r, d = log["revenue"].to_numpy(), log["sessions"].to_numpy()
    ratio = (weight * r).sum() / (weight * d).sum()
    return ratio, weight * (r - ratio * d) / (weight * d).mean()


def best(rows, u):
    """The mean of rows less what u explains of them, and its error."""
    beta = np.cov(rows, u)[0, 1] / np.var(u, ddof=1)
    rest = rows - beta * u
    return rest.mean(), rest.std() / np.sqrt(len(rest))


def test_a_ratio_is_the_ratio_of_weighted_sums_with_the_error_of_the_delta_method():
    result = cp.evaluate(LOG, **ASKED, target="new")
    ratio, rows = of(3 * NEW)
    snips = result["new", "snips"]
    assert snips.value == pytest.approx(ratio, rel=1e-12)
    # D of a self-normalized mean is Σwd/Σw
    assert snips.stderr == pytest.approx(rows.std() / np.sqrt(N), rel=1e-9)


def test_the_best_baseline_is_that_of_the_rows_to_first_order():
    result = cp.evaluate(LOG, **ASKED, target="new")
    u = 3 * NEW - 1
    ratio, rows = of(1 + u)
    moved, error = best(ratio * (1 + u) + rows * (1 + u).mean(), u)
    assert result["new", "beta_ips"].value == pytest.approx(moved, rel=1e-9)
    assert result["new", "beta_ips"].stderr == pytest.approx(error, rel=1e-9)


def test_a_lift_is_the_difference_from_the_ratio_of_what_ran():
    result = cp.evaluate(LOG, **ASKED, target="new")
    u = 3 * NEW - 1
    (ratio, rows), (ran, ran_rows) = of(1 + u), of(np.ones(N))
    moved, error = best(ratio * (1 + u) + rows * (1 + u).mean() - ran - ran_rows, u)
    assert result["new", "lift"].value == pytest.approx(moved, rel=1e-9)
    assert result["new", "lift"].stderr == pytest.approx(error, rel=1e-9)


def test_a_difference_is_that_of_two_ratios_with_what_they_share_canceled():
    result = cp.compare(LOG, **ASKED, target="new", against="old")
    first, second = 3 * NEW, 3 * OLD
    (a, rows_a), (b, rows_b) = of(first), of(second)
    rows = a - b + rows_a * first.mean() - rows_b * second.mean()
    moved, error = best(rows, first - second)
    assert result["new", "beta_ips"].value == pytest.approx(moved, rel=1e-9)
    assert result["new", "beta_ips"].stderr == pytest.approx(error, rel=1e-9)
    same = cp.compare(LOG.with_columns(again=pl.col("new")), **ASKED, target="new", against="again")
    assert same["new", "beta_ips"].value == pytest.approx(0.0, abs=1e-12)


def test_clusters_are_left_out_one_group_at_a_time():
    result = cp.evaluate(LOG, **ASKED, target="new", cluster="user", estimator="snips")
    single = cp.evaluate(LOG, **ASKED, target="new", estimator="snips")
    assert result["new", "snips"].value == pytest.approx(single["new", "snips"].value, rel=1e-12)
    assert result["new", "snips"].stderr == pytest.approx(single["new", "snips"].stderr, rel=0.25)


def test_drivers_add_up():
    from counterpoise.evaluation.ranking import drivers

    comparison = cp.compare(LOG, **ASKED, target="new", against="old", segment="day")
    whole = comparison["new", "beta_ips"].value
    assert sum(driver.contribution for driver in drivers(comparison)) == pytest.approx(whole, rel=1e-9)


def test_sampled_rows_count_as_often_as_they_stand_for_others():
    result = cp.evaluate(LOG, **ASKED, target="new", keep="keep")
    h, w = 1 / LOG["keep"].to_numpy(), 3 * NEW
    ratio, _ = of(h * w)
    assert result["new", "snips"].value == pytest.approx(ratio, rel=1e-12)
    r, d = LOG["revenue"].to_numpy(), SESSIONS
    rows = h * w * (r - ratio * d)
    assert result["new", "snips"].stderr == pytest.approx(np.sqrt((rows**2).sum()) / (h * w * d).sum(), rel=1e-9)


def test_a_constant_divisor_changes_nothing_but_the_scale():
    ratio = cp.evaluate(LOG.with_columns(two=2.0), reward="revenue", per="two", propensity="p", target="new")
    plain = cp.evaluate(LOG, reward="revenue", propensity="p", target="new")
    assert 2 * ratio["new", "snips"].value == pytest.approx(plain["new", "snips"].value, rel=1e-12)
    # the linear reward is centered on its own self-normalized mean, so that the best baseline agrees to first order
    for name in ("beta_ips", "lift"):
        assert 2 * ratio["new", name].value == pytest.approx(plain["new", name].value, rel=1e-9)
        assert 2 * ratio["new", name].stderr == pytest.approx(plain["new", name].stderr, rel=1e-9)
    assert ratio.verdict().verdict == plain.verdict().verdict
    widths = [result["new", "beta_ips"].interval.width for result in (ratio, plain)]
    assert 2 * widths[0] == pytest.approx(widths[1], rel=1e-6)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"estimator": "ips"}, "snips"),
        ({"control": {"old": 1 / 3}}, "control"),
        ({"baseline": ["day"]}, "baseline"),
        ({"model_reward": "old", "model_value": "old"}, "model"),
        ({"reward_bounds": (0, 100)}, "reward_bounds"),
        ({"per": "sessions"}, "already"),
    ],
)
def test_what_does_not_go_with_a_ratio_is_refused_by_name(more, said):
    with pytest.raises(OptionError, match=said):
        cp.evaluate(LOG, **ASKED, target="new", **more)


def test_what_is_divided_by_is_never_negative_and_never_missing():
    for bad in (-1.0, None, float("nan")):
        log = LOG.with_columns(sessions=pl.when(pl.int_range(N) == 7).then(bad).otherwise("sessions"))
        with refuses(LogError):
            cp.evaluate(log, **ASKED, target="new")
        assert cp.evaluate(log, **ASKED, target="new", drop_bad_rows=True).dropped_rows == 1


def test_a_rate_among_rows_that_do_not_count_is_not_identified():
    nowhere = LOG.with_columns(sessions=0.0)
    result = cp.evaluate(nowhere, **ASKED, target="new")
    assert not result["new", "snips"].identified


def test_the_answer_says_what_it_is_divided_by():
    said = str(cp.evaluate(LOG, **ASKED, target="new"))
    assert "revenue per sessions: new against the logging policy" in said
    assert "per sessions." in said
    assert "per row" not in said
