"""Powers merge as their numbers would, and every engine adds up the same ones."""

import json
import math

import numpy as np
import polars as pl
import pytest
from scipy import stats

import counterpoise as cp
from counterpoise.moments import LogMoments, Powers
from counterpoise.moments.spread import NOTHING


@pytest.mark.parametrize("shift", [0.0, 7.0, -1e3])
def test_shape_is_that_of_the_numbers_whatever_the_center(shift):
    x = np.random.default_rng(0).gamma(0.5, size=500) + shift
    for center in (None, shift, shift + 3.0):
        found = Powers.of(x, center)
        assert found.kurtosis == pytest.approx(stats.kurtosis(x, fisher=False), rel=1e-7)
        assert found.skewness == pytest.approx(stats.skew(x), rel=1e-7)
        for order in (1, 2, 3, 4):
            assert found.mean(order, shift + 1.0) == pytest.approx(((x - shift - 1.0) ** order).mean(), rel=1e-7)


def test_adding_is_concatenating():
    g = np.random.default_rng(1)
    parts = [g.normal(k, 1 + k, size=100 * (k + 1)) for k in range(4)]
    whole = Powers.of(np.concatenate(parts))
    for order in (parts, parts[::-1]):
        found = sum((Powers.of(part) for part in order), NOTHING)
        assert found.n == 1000
        assert found.kurtosis == pytest.approx(whole.kurtosis, rel=1e-12)
        assert found.skewness == pytest.approx(whole.skewness, rel=1e-12)
    assert (whole + NOTHING) is whole
    assert (NOTHING + whole) is whole


def test_numbers_that_do_not_vary_have_a_kurtosis_of_one():
    for value in (0.0, 1.0, 1e6 + 0.1):
        assert Powers.of(np.full(50, value)).kurtosis == 1.0
        assert Powers.of(np.full(50, value)).skewness == 0.0
    assert NOTHING.kurtosis == 1.0
    one_of_many = np.zeros(1000)
    one_of_many[3] = 5.0
    assert Powers.of(one_of_many).kurtosis == pytest.approx(stats.kurtosis(one_of_many, fisher=False), rel=1e-9)


def log(n=4000):
    g = np.random.default_rng(2)
    p, t = g.uniform(0.1, 0.9, n), g.uniform(0, 1, n)
    return pl.DataFrame(
        {
            "r": g.gamma(0.5, size=n),
            "p": p,
            "a": t,
            "b": t * 0.9,
            "k": g.integers(0, 3, n),
            "user": g.integers(0, 90, n),
        }
    )


@pytest.mark.parametrize(
    "options", [{}, {"segment": "k"}, {"cluster": "user"}, {"segment": "k", "cluster": "user"}], ids=str
)
def test_they_are_those_of_the_rows_in_every_segment(options, tmp_path):
    rows = log()
    rows.write_parquet(tmp_path / "log.parquet")
    question = {"reward": "r", "propensity": "p", "target": "a", "against": "b"} | options
    for source in (rows, rows.lazy(), tmp_path / "log.parquet"):
        found = cp.compare(source, **question).moments
        for k, label in enumerate(found.segments):
            own = rows.filter(pl.col("k") == label[0]) if label else rows
            w, v = (own[name].to_numpy() / own["p"].to_numpy() for name in "ab")
            for contrast, u in ((("a", ""), w - 1), (("a", "b"), w - v)):
                expected = [(u**order).sum() for order in (1, 2, 3, 4)]
                assert found.excess[contrast][k].sums == pytest.approx(expected, rel=1e-10)
            assert found.rewards[k].kurtosis == pytest.approx(stats.kurtosis(own["r"], fisher=False), rel=1e-10)


def test_stored_moments_keep_them_and_refuse_damaged_ones():
    found = cp.evaluate(log(), reward="r", propensity="p", target="a", segment="k").moments
    again = LogMoments.from_json(found.to_json())
    assert [one.to_plain() for one in again.rewards] == [one.to_plain() for one in found.rewards]
    both = found + again
    assert both.rewards[0].kurtosis == pytest.approx(found.rewards[0].kurtosis, rel=1e-12)
    raw = json.loads(found.to_json())
    for damage in ([3, 0.0, 1.0], [raw["rewards"][0][0] + 1, *raw["rewards"][0][1:]], [7, 0.0, 1.0, -1.0, 0.0, 1.0]):
        broken = raw | {"rewards": [damage, *raw["rewards"][1:]]}
        with pytest.raises(cp.MomentsError):
            LogMoments.from_json(json.dumps(broken))
    assert math.isfinite(both.rewards[0].skewness)
