"""Each weight against its formula, row by row, on every way that a log is read."""

import re

import numpy as np
import polars as pl
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.report import render
from counterpoise.weights import Clip, Importance, Own


@pytest.fixture
def log():
    random = np.random.default_rng(11)
    n = 3_000
    p = random.uniform(0.02, 1.0, n)
    return pl.DataFrame(
        {
            "r": random.normal(size=n) + 3,
            "p": p,
            "t": random.uniform(0, 1, n),
            "other": random.uniform(0, 1, n),
            "w": random.normal(1.0, 2.0, n),
            "country": random.choice(["DE", "FR"], n),
        }
    )


def ways(log, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    log.write_parquet(tmp_path / "log.parquet")
    return {
        "arrays": log.to_dict(),
        "frame": log,
        "lazy": log.lazy(),
        "parquet": tmp_path / "log.parquet",
        "duckdb": duckdb.sql("select * from log"),
    }


@pytest.mark.parametrize("segment", [None, "country"])
def test_a_clipped_weight_is_the_smaller_of_the_ratio_and_the_limit(log, tmp_path, segment):
    w = np.minimum(log["t"] / log["p"], 4.0).to_numpy()
    for name, one in ways(log, tmp_path).items():
        found = cp.evaluate(one, reward="r", propensity="p", target="t", weight=Clip(4), segment=segment)
        assert found["t", "ips"].value == pytest.approx(float((w * log["r"].to_numpy()).mean()), rel=1e-10), name
        assert found["t", "snips"].value == pytest.approx(float((w * log["r"].to_numpy()).sum() / w.sum()), rel=1e-10)
        assert found.diagnostics().max_weight == pytest.approx(4.0, rel=1e-12)


def test_a_weight_of_ones_own_may_be_negative_and_needs_no_propensity(log, tmp_path):
    w, r = log["w"].to_numpy(), log["r"].to_numpy()
    for name, one in ways(log, tmp_path).items():
        found = cp.evaluate(one, reward="r", weight="w")
        assert found["w", "ips"].value == pytest.approx(float((w * r).mean()), rel=1e-10), name
        assert found.n == log.height


def test_differences_of_clipped_weights(log, tmp_path):
    w = np.minimum(log["t"] / log["p"], 4.0) - np.minimum(log["other"] / log["p"], 4.0)
    for name, one in ways(log, tmp_path).items():
        found = cp.compare(one, reward="r", propensity="p", target="t", against="other", weight=Clip(4))
        assert found["t", "ips"].value == pytest.approx(float((w * log["r"]).mean()), rel=1e-9), name


def test_a_limit_that_cuts_nothing_changes_nothing(log):
    plain = cp.evaluate(log, reward="r", propensity="p", target="t")
    loose = cp.evaluate(log, reward="r", propensity="p", target="t", weight=Clip(1e6))
    values = {key: one.value for key, one in plain.estimates.items()}
    # the mean weight of this log is far from 1, and then a lift has the baseline of the value
    values["t", "lift", None] = values["t", "beta_ips", None] - log["r"].mean()
    for key, value in values.items():
        assert loose.estimates[key].value == pytest.approx(value, rel=1e-12)


def test_only_plain_weights_are_held_to_a_mean_of_one(log):
    assert "should be 1" not in str(cp.evaluate(log, reward="r", propensity="p", target="t", weight=Clip(1)).verdict())
    found = cp.evaluate(log, reward="r", propensity="p", target="t", weight=Clip(1)).verdict()
    assert (found.verdict, "bias" in str(found)) == ("caution", True)
    assert Importance().mean_is_one
    assert not Clip(3).mean_is_one
    assert (Own().may_be_negative, Own().needs_propensity) == (True, False)


@pytest.mark.parametrize("most", [0, -1, float("nan"), float("inf"), "3", True])
def test_a_limit_is_a_positive_number(most):
    with refuses(cp.OptionError):
        Clip(most)


def test_a_weight_and_a_target_are_not_both_given(log):
    with refuses(cp.OptionError):
        cp.evaluate(log, reward="r", propensity="p", target="t", weight="w")
    with refuses(cp.OptionError):
        cp.evaluate(log, reward="r", propensity="p", target="t", weight=Clip)


def test_several_rewards_have_rows_of_their_own_and_the_numbers_of_each_alone(log, tmp_path):
    bad = pl.int_range(pl.len()) % 7 == 0
    log = log.with_columns(money=pl.when(~bad).then(pl.col("r") * 100))
    for name, one in ways(log, tmp_path).items():
        asked = {"propensity": "p", "target": ["t", "other"], "segment": "country", "drop_bad_rows": True}
        both = cp.evaluate(one, reward=["r", "money"], **asked)
        for reward in ("r", "money"):
            alone, found = cp.evaluate(log, reward=reward, **asked), both.of(reward)
            assert (found.n, found.dropped_rows) == (alone.n, alone.dropped_rows), name
            for key, expected in alone.estimates.items():
                values = (expected.value, expected.stderr)
                assert (found.estimates[key].value, found.estimates[key].stderr) == pytest.approx(values, rel=1e-9)
            for key, expected in alone.all_diagnostics.items():
                assert found.all_diagnostics[key].max_weight == pytest.approx(expected.max_weight, rel=1e-12)
        with refuses(cp.LogError):
            cp.evaluate(one, reward=["r", "money"], propensity="p", target="t")


WAYS = {"plain": {}, "clipped": {"weight": Clip(4)}, "otherwise clipped": {"weight": Clip(4.5)}}


@pytest.mark.parametrize("way", WAYS)
def test_moments_remember_their_weight_and_are_judged_by_it(log, tmp_path, way):
    asked = {"reward": "r", "propensity": "p", "target": "t", "segment": "country"} | WAYS[way]
    fresh = cp.evaluate(log, **asked)
    cp.evaluate(log, **asked, state=tmp_path / "state.json", batch="a")
    stored = {
        "moments": cp.evaluate(fresh.moments),
        "json": cp.evaluate(cp.LogMoments.from_json(fresh.moments.to_json())),
        "state": cp.evaluate(state=tmp_path / "state.json"),
        "sum": cp.evaluate(sum(cp.evaluate(log[k::2], **asked).moments for k in range(2))),
    }
    for name, one in stored.items():
        assert one.moments.weight == fresh.moments.weight, name
        assert [str(found) for found in one.verdicts.values()] == [str(found) for found in fresh.verdicts.values()]
        assert np.isnan(one.diagnostics().mean_weight_p) == (way != "plain")
    assert fresh.moments.weight.mean_is_one == (way == "plain")


def test_a_weight_of_ones_own_is_remembered_too(log):
    class Softened(Importance):
        mean_is_one = False

        def __init__(self, power):
            object.__setattr__(self, "power", power)

    asked = {"reward": "r", "propensity": "p", "target": "t"}
    first, same, other = (cp.evaluate(log, **asked, weight=Softened(x)).moments for x in (0.5, 0.5, 0.25))
    assert (first + same).n == 2 * log.height
    with refuses(cp.MomentsError):
        first + other


def test_negative_weights_of_a_short_log_can_be_stored(log, tmp_path):
    own = cp.evaluate(log[:50], reward="r", weight="w", state=tmp_path / "state.json", batch="a")
    assert min(own.moments.tails["w", ""][0].weights) < 0
    for again in (
        cp.evaluate(state=tmp_path / "state.json"),
        cp.evaluate(cp.LogMoments.from_json(own.moments.to_json())),
    ):
        assert again.estimates == own.estimates
        assert str(again.verdict()) == str(own.verdict())


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", WAYS)
def test_moments_of_different_weights_do_not_add(log, tmp_path, first, second):
    asked = {"reward": "r", "propensity": "p", "target": "t"}
    one, other = (cp.evaluate(log, **asked, **WAYS[way]).moments for way in (first, second))
    state = tmp_path / "state.json"
    cp.evaluate(log, **asked, **WAYS[first], state=state, batch="a")
    if first == second:
        assert (one + other).n == cp.evaluate(log, **asked, **WAYS[second], state=state, batch="b").n
        return
    with refuses(cp.MomentsError):
        one + other
    with refuses(cp.MomentsError):
        cp.evaluate(log, **asked, **WAYS[second], state=state, batch="b")


def test_one_limit_is_one_weight_however_it_is_written(log):
    asked = {"reward": "r", "propensity": "p", "target": "t"}
    whole, real = (cp.evaluate(log, **asked, weight=Clip(most)).moments for most in (4, np.float64(4.0)))
    assert (whole + real).n == 2 * log.height


def test_a_report_tests_no_mean_that_need_not_be_one(log):
    asked = {"reward": "r", "propensity": "p", "target": "t"}
    page = render(cp.evaluate(log, **asked, weight=Clip(4)), rows=False)
    assert "<bdi>Clip(most=4)</bdi>" in page
    assert "nan" not in re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    assert "Clip" not in render(cp.evaluate(log, **asked), rows=False)
