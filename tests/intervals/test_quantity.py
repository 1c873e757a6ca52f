"""A quantity: one interval at any level, one p-value, one number of rows; each against a computation of its own."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from counterpoise.errors import OptionError
from counterpoise.estimators import DIFFERENCES, ESTIMATORS, Estimate, lift
from counterpoise.evaluation.answer import comparison_of, evaluation_of
from counterpoise.evaluation.checks import RewardMoments
from counterpoise.evaluation.estimates import IntervalOptions, OnDemand, Quantities
from counterpoise.evaluation.evaluate import compare, evaluate
from counterpoise.evaluation.ranking import ranking_of
from counterpoise.evaluation.view import View
from counterpoise.intervals import INTERVALS, Anytime, Evidence, Interval, Normal, Student
from counterpoise.intervals.method import Unseen, Unvaried
from counterpoise.intervals.quantity import (
    Quantity,
    joint_level,
    joint_width,
    over,
    share_width,
    stretched,
    times_to_show,
    variance_range,
)
from counterpoise.moments import Moments

LIFT = Quantity(Evidence(0.021, 0.008, n=4_000, carrying=300.0, extremes=(-2.0, 3.0), leverage=0.01), Student())


def rows(n=400, seed=0):
    random = np.random.default_rng(seed)
    u = random.exponential(1.0, n) - 1.0
    return 1.0 + u, 2.0 + random.normal(size=n) + 0.3 * u


# -- Intervals and p-values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("among", [1, 2, 7])
def test_an_interval_among_several_is_bonferronis(among):
    quantity = replace(LIFT, method=Normal())
    z = stats.norm.ppf(1 - 0.05 / (2 * among))
    assert tuple(quantity.interval(among=among)) == pytest.approx((0.021 - z * 0.008, 0.021 + z * 0.008), rel=1e-12)
    assert joint_width(0.95, among) == pytest.approx(z / stats.norm.ppf(0.975), rel=1e-12)


@pytest.mark.parametrize("name", ["normal", "student", "jackknife", "anytime"])
def test_an_interval_is_the_methods_own(name):
    method = INTERVALS[name]()
    evidence = replace(LIFT.evidence, groups=50, clusters=40.0)
    quantity = Quantity(evidence, method, 0.9)
    assert quantity.interval() == method.interval(evidence, 0.9)
    assert quantity.interval(0.99) == method.interval(evidence, 0.99)
    assert quantity.interval(0.9, among=10) == method.interval(evidence, joint_level(0.9, 10))


def test_a_p_value_is_that_of_the_test_behind_the_interval():
    quantity = replace(LIFT, method=Normal())
    assert quantity.p_value() == pytest.approx(2 * stats.norm.sf(0.021 / 0.008), rel=1e-9)


@pytest.mark.parametrize("method", [Normal(), Student(), Anytime(4_000)], ids=lambda method: method.name)
def test_an_interval_reaches_0_at_the_level_of_the_p_value(method):
    quantity = replace(LIFT, method=method)
    p = quantity.p_value()
    assert 0.0 in quantity.interval(1 - p / 1.001)
    assert 0.0 not in quantity.interval(1 - min(p * 1.001, 0.999))


def test_p_values_and_reaches_do_not_depend_on_where_rewards_end():
    limited = replace(LIFT, limits=(0.0, 1.0))
    assert limited.interval(0.999999).lower == 0.0
    assert limited.endless.interval(0.999999).lower < 0.0
    assert limited.p_value() == LIFT.p_value()


def test_of_what_is_unknown_every_p_value_is_1():
    assert Quantity(Evidence(np.nan, np.inf, n=10)).p_value() == 1.0
    assert Quantity(Evidence(1.0, 0.0, n=10)).p_value() == pytest.approx(1e-15)


def test_actions_that_the_log_lacks_move_the_ends_at_every_level():
    moved = replace(LIFT, moved=(-0.1, 0.2))
    for level in (0.5, 0.95):
        (low, high), (lower, upper) = LIFT.interval(level), moved.interval(level)
        assert (low - lower, upper - high) == pytest.approx((0.1, 0.2))


def test_what_is_unseen_is_added_at_the_joint_level():
    hidden = Quantity(Evidence(0.0, 0.0, n=1000), unseen=Unseen(Unvaried(0.0, (0.0, 1.0), 1000.0)))
    z = stats.norm.ppf(1 - 0.05 / 6)
    assert hidden.interval(among=3).upper == pytest.approx(z**2 / (1000 + z**2), rel=1e-12)


# -- Rows --------------------------------------------------------------------------------------------------------------


def test_rows_are_those_of_the_textbook_for_normal_intervals():
    quantity, sigma = Quantity(Evidence(0.3, 2.0 / 50, n=2500)), 2.0
    z, more = stats.norm.ppf(0.975), stats.norm.ppf(0.8)
    assert quantity.rows_needed(0.01) == np.ceil((z * sigma / 0.01) ** 2)
    assert quantity.rows_needed(0.01, power=0.8) == np.ceil(((z + more) * sigma / 0.01) ** 2)
    assert quantity.rows_needed(-0.01, power=0.8) == quantity.rows_needed(0.01, power=0.8)
    assert times_to_show(0.01, sigma, 0.95) == pytest.approx(((z + more) * sigma / 0.01) ** 2, rel=1e-12)


def test_no_number_of_rows_shows_no_difference_at_all():
    assert times_to_show(0.0, 1.0, 0.95) == np.inf
    assert Quantity(Evidence(0.0, np.inf, n=10)).rows_needed(0.1) == np.inf


def test_rows_grow_with_the_variance_and_shrink_with_the_difference():
    assert LIFT.rows_needed(0.01, variance=2.0) == pytest.approx(2 * LIFT.rows_needed(0.01), rel=0.05)
    assert LIFT.rows_needed(0.02, power=0.8, freedom=5.0) < LIFT.rows_needed(0.01, power=0.8, freedom=5.0)
    assert LIFT.rows_needed(0.01, power=0.8, freedom=5.0) > LIFT.rows_needed(0.01, power=0.8)


def test_the_range_of_a_variance_is_chi_squared():
    low, high = stats.chi2.ppf([0.025, 0.975], 10)
    assert variance_range(0.95, 10.0) == pytest.approx((10 / high, 10 / low), rel=1e-9)


# -- Shares ------------------------------------------------------------------------------------------------------------


def test_the_error_of_a_share_is_that_of_the_delta_method():
    """Of the influence of every row on the ratio, with a fixed baseline, by hand."""
    w, r = rows()
    moments, beta = Moments.of(w, r), 1.7
    own = Estimate("lift", *_of(lift(moments, baseline=beta)), interval=Interval(0.0, 1.0, 0.95, "normal"))
    wider = float(share_width(lambda m: lift(m, baseline=beta), moments, None))
    share = over(own, r.mean(), 1e-3, wider=wider)
    terms = (w - 1) * (r - beta)
    influence = (terms - terms.mean()) / r.mean() - terms.mean() / r.mean() ** 2 * (r - r.mean())
    assert share.value == pytest.approx(terms.mean() / r.mean(), rel=1e-9)
    assert share.stderr == pytest.approx(influence.std() / np.sqrt(len(r)), rel=1e-6)


def test_the_error_of_a_share_of_clusters_is_the_jackknifes_loop():
    w, r = rows()
    group = np.repeat(np.arange(20), 20)
    stack = Moments.stack([Moments.of(w[group == g], r[group == g]) for g in range(20)])
    whole = stack.merge(axis=0)
    wider = float(share_width(ESTIMATORS["lift"], whole, (stack.others, stack.n)))

    def errors(of):
        left = [of(Moments.of(w[group != g], r[group != g]), r[group != g].mean()) for g in range(20)]
        return np.sqrt(19 / 20 * np.square(np.array(left) - np.mean(left)).sum())

    alone, share = errors(lambda m, mean: lift(m).value), errors(lambda m, mean: lift(m).value / mean)
    assert wider == pytest.approx(share * r.mean() / alone, rel=1e-9)


def _of(estimate):
    return estimate.value, estimate.stderr, estimate.n, estimate.baseline


def test_a_share_of_what_is_not_clearly_above_0_is_unknown():
    own = Estimate("lift", 1.0, 0.1, 10, 0.0, Interval(0.8, 1.2, 0.95, "normal"))
    assert over(own, 0.5, 0.11, wider=1.0) is None
    assert over(own, 0.5, 0.09, wider=np.inf) is None
    assert over(own, -1.0, 0.0, wider=1.0) is None
    assert tuple(over(own, 2.0, 0.1, wider=1.5).interval) == pytest.approx((0.35, 0.65))
    assert tuple(stretched(own, 1.5).interval) == pytest.approx((0.7, 1.3))


def test_bounds_are_divided_and_not_stretched():
    bounds = Estimate("lift", np.nan, 0.1, 10, 0.0, Interval(0.8, 1.2, 0.95, "normal"))
    assert tuple(over(bounds, 2.0, 0.1, wider=3.0).interval) == pytest.approx((0.4, 0.6))


# -- The quantities of a log -------------------------------------------------------------------------------------------


def small(cluster=None, segments=3):
    random = np.random.default_rng(3)
    n = 900
    t = random.uniform(0.2, 0.8, n)
    log = {"r": (random.random(n) < 0.3) * 1.0, "p": np.full(n, 0.5), "t": t, "s": np.arange(n) % segments}
    return log | {"id": np.arange(n) // 10}, {"cluster": cluster} if cluster else {}


@pytest.mark.parametrize("cluster", [None, "id"])
@pytest.mark.parametrize("verb", [evaluate, compare])
def test_every_interval_of_a_result_is_that_of_its_quantity(verb, cluster):
    """Segments get theirs from one stack; one by one they are the same."""
    log, more = small(cluster)
    result = verb(log, reward="r", propensity="p", target="t", segment="s", **more)
    options = IntervalOptions(result.level, result.interval_method)
    registry = {name: result.registry[name] for name in result.estimators}
    quantities = Quantities(View(result.moments, ("t", result.against)), registry, options)
    for (_, name, place), estimate in result.estimates.items():
        quantity = quantities.at(name, place)
        assert (quantity.value, quantity.stderr) == pytest.approx((estimate.value, estimate.stderr), nan_ok=True)
        assert tuple(quantity.interval()) == pytest.approx(tuple(estimate.interval), rel=1e-12, abs=1e-12)


def test_the_rank_of_a_policy_has_its_quantitys_p_value_and_joint_interval():
    log, _ = small()
    log["o"] = 1.0 - log["t"]
    result = compare(log, reward="r", propensity="p", target=["t", "o"])
    options = IntervalOptions(result.level, result.interval_method)
    for ranked in ranking_of(result):
        view = View(result.moments, (ranked.target, result.against))
        quantity = Quantities(view, {"beta_ips": DIFFERENCES["beta_ips"]}, options).at("beta_ips")
        assert tuple(ranked.interval) == tuple(quantity.interval(among=2))
        assert ranked.p >= quantity.p_value()


def test_the_answers_of_all_places_are_made_on_demand():
    made = []
    squares = OnDemand(range(1000), lambda n: made.append(n) or n * n)
    assert (squares[3], squares[3], len(squares), 3 in squares, 1000 in squares) == (9, 9, 1000, True, False)
    assert made == [3]
    with pytest.raises(KeyError):
        squares[1000]
    later = OnDemand(lambda: made.append("keys") or range(3), lambda n: n * n)
    assert made == [3]  # keys that come from a function are not made before the first is asked for
    assert (list(later), made) == ([0, 1, 2], [3, "keys"])
    log, _ = small(segments=300)
    result = evaluate(log, reward="r", propensity="p", target="t", segment="s")
    assert len(result.estimates._made) < 20 < len(result.estimates)


def test_answers_are_the_same_from_moments_alone():
    log, _ = small()
    result = evaluate(log, reward="r", propensity="p", target="t")
    options = (IntervalOptions(0.95, result.interval_method),)
    whole = RewardMoments((result.moments,), ("r",))
    again = evaluation_of(whole, options, ())
    assert {key: tuple(made.interval) for key, made in again.estimates.items()} == {
        key: tuple(made.interval) for key, made in result.estimates.items()
    }
    with pytest.raises(OptionError, match="single policies"):
        comparison_of(whole, options)
