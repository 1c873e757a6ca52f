"""What people from statsmodels ask a result for: `summary`, `conf_int` and `p_value`."""

import math

import numpy as np
import polars as pl
import pytest

import counterpoise as cp

N = 4000
ASKED = {"reward": "click", "propensity": "p"}


def a_log(seed=0, lift=0.3):
    g = np.random.default_rng(seed)
    new = g.random(N) < 0.5
    return {
        "click": (g.random(N) < 0.2 * (1 + lift * new)).astype(float),
        "revenue": g.exponential(1.0, N) * (1 + lift * new),
        "p": np.full(N, 0.5),
        "good": np.where(new, 0.8, 0.2),
        "same": np.full(N, 0.5),
        "country": np.where(np.arange(N) % 3, "DE", "FR"),
        "user": np.arange(N) // 4,
    }


def normal_p(estimate):
    return math.erfc(abs(estimate.value / estimate.stderr) / math.sqrt(2))


def test_the_p_value_of_a_lift_is_that_of_its_normal_interval():
    result = cp.evaluate(a_log(lift=0.1), **ASKED, target="good", interval="normal", estimator=["beta_ips", "lift"])
    assert result.p_value() == pytest.approx(normal_p(result["good", "lift"]), rel=1e-6)


def test_the_p_value_of_a_comparison_is_that_of_its_difference():
    result = cp.compare(a_log(lift=0.1), **ASKED, target="good", against="same", interval="normal")
    assert result.p_value("good") == pytest.approx(normal_p(result.difference), rel=1e-6)
    assert cp.rank(result)[0].p == result.p_value()


@pytest.mark.parametrize("how", [{}, {"cluster": "user"}, {"interval": "anytime"}])
@pytest.mark.parametrize("segment", [None, "DE"])
def test_the_interval_at_one_less_the_p_value_ends_at_no_difference(how, segment):
    log = a_log(lift=0.25)
    asked = ASKED | {"target": "good", "estimator": ["beta_ips", "lift"], "segment": "country"} | how
    p = cp.evaluate(log, **asked).p_value(segment=segment)
    assert 1e-12 < p < 0.9
    ends = cp.evaluate(log, **asked, level=1 - p)["good", "lift", segment].interval
    scale = cp.evaluate(log, **asked)["good", "lift", segment].stderr
    assert min(abs(end) for end in ends) < 1e-6 * scale


def test_the_p_value_of_one_of_several_targets_is_its_own_and_so_is_that_of_a_reward():
    log = a_log(lift=0.1)
    result = cp.evaluate(log, reward=["click", "revenue"], propensity="p", target=["good", "same"], segment="country")
    alone = cp.evaluate(log, reward="revenue", propensity="p", target="good")
    assert result.of("revenue").p_value("good") == pytest.approx(alone.p_value(), rel=1e-9)
    with pytest.raises(
        cp.OptionError, match=r"2 targets .* no single p-value. Ask for one of them: result.p_value\('good'\)"
    ):
        result.p_value()
    with pytest.raises(cp.OptionError, match="no target 'bad'"):
        result.p_value("bad")


def test_a_comparison_of_two_targets_has_no_single_value():
    result = cp.compare(a_log(), **ASKED, target=["good", "same"])
    for ask in ("value", "stderr", "interval", "difference", "baseline"):
        with pytest.raises(cp.OptionError, match="no single value"):
            getattr(result, ask)


def test_where_there_is_no_p_value_it_is_refused_in_words():
    log = a_log()
    known = cp.intervals.Bernstein(reward_bounds=(0, 1), max_weight=10)
    with pytest.raises(cp.OptionError, match="bernstein interval works for values, not for differences"):
        cp.evaluate(log, **ASKED, target="good", interval=known).p_value()
    never = log | {"good": np.zeros(N)}
    with pytest.raises(cp.OptionError, match="lift of 'good' has no p-value, since the log does not identify it"):
        cp.evaluate(never, **ASKED, target="good").p_value()
    modeled = log | {"q": log["click"].mean() + np.zeros(N), "v": log["click"].mean() + np.zeros(N)}
    with pytest.raises(cp.OptionError, match="dm is what a reward model predicts"):
        cp.evaluate(modeled, **ASKED, target="good", model_reward="q", model_value="v", estimator="dm").p_value()


def test_confidence_intervals_are_a_frame_by_reward_target_and_segment():
    log = a_log()
    result = cp.evaluate(log, **ASKED, target="good")
    assert result.conf_int().columns == ["target", "lower", "upper"]
    assert result.conf_int().row(0) == ("good", *result.interval)
    more = cp.evaluate(log, reward=["click", "revenue"], propensity="p", target=["good", "same"], segment="country")
    frame = more.conf_int()
    assert type(frame) is pl.DataFrame
    assert frame.columns == ["reward", "target", "segment", "lower", "upper"]
    assert frame.height == 2 * 2 * 3
    (row,) = frame.filter(pl.col("reward") == "revenue", pl.col("target") == "same", pl.col("segment") == "DE").rows()
    assert row[3:] == tuple(more.of("revenue")["same", more.best, "DE"].interval)
    difference = cp.compare(log, **ASKED, target="good", against="same")
    assert difference.conf_int().row(0)[1:] == tuple(difference.interval)


def test_a_summary_is_the_answer_with_all_of_its_estimators():
    result = cp.evaluate(a_log(), **ASKED, target="good", segment="country")
    said = str(result.summary())
    assert said.startswith(str(result).splitlines()[0])
    assert all(f" {name} " in said for name in result.estimators)
    assert result.summary().document() == result.document()
    assert "<table" in result.summary()._repr_html_()
