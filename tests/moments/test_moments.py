"""Moments add up, whatever the parts, the centers and the stack."""

import json
from itertools import pairwise

import numpy as np
import plain
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import refuses

from counterpoise import Moments, MomentsError


def moments(log, **options):
    return Moments.of(log["t"] / log["p"], log["r"], model_reward=log["q"], model_value=log["v"], **options)


def assert_close(first, second, tolerance=1e-12):
    """The same rows, seen from whatever center; scatters compared in units of the columns' own spread."""
    moved = second.recenter(first.center)
    scale = np.sqrt(np.einsum("ii->i", first.scatter)) + 1e-100
    assert first.n == second.n
    assert first.columns == second.columns
    np.testing.assert_allclose(moved.mean, first.mean, rtol=tolerance, atol=tolerance * (1 + scale.max()))
    np.testing.assert_allclose(
        moved.scatter / np.outer(scale, scale), first.scatter / np.outer(scale, scale), atol=tolerance
    )


def test_mean_and_scatter_are_those_of_the_rows():
    log = plain.random_log(0)
    u, s = log["t"] / log["p"] - 1, log["r"] - 0.25
    rows = np.stack([u, s, u * s])
    found = Moments.of(log["t"] / log["p"], log["r"], center=0.25)
    np.testing.assert_allclose(found.mean, rows.mean(axis=1), rtol=1e-13)
    np.testing.assert_allclose(found.scatter, np.cov(rows, bias=True) * 200, rtol=1e-12)


@pytest.mark.once
@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(0, 1000))
def test_parts_add_up_to_the_whole(sizes, seed):
    log = plain.random_log(seed, n=max(sum(sizes), 1))
    ends = np.cumsum([0, *sizes])
    parts = [moments({k: v[i:j] for k, v in log.items()}) for i, j in pairwise(ends)]
    whole = moments({k: v[: ends[-1]] for k, v in log.items()})
    assert_close(whole, sum(parts), 1e-11)


def test_adding_nothing_changes_nothing():
    m = moments(plain.random_log(1))
    for total in (m + Moments.empty(m.columns), Moments.empty(m.columns) + m, sum([m])):
        assert total.to_json() == m.to_json()


def test_centres_may_differ():
    log = plain.random_log(2)
    first, second = ({k: v[part] for k, v in log.items()} for part in (slice(None, 80), slice(80, None)))
    assert_close(moments(log), moments(first, center=5.0) + moments(second, center=-3.0), 1e-11)


def test_recentring_there_and_back():
    m = moments(plain.random_log(3))
    assert_close(m, m.recenter(7.0).recenter(m.center))
    assert_close(m.recenter(2.0), moments(plain.random_log(3), center=2.0))


def test_leaving_one_out_is_merging_the_others():
    parts = [moments(plain.random_log(seed, n=5 + seed)) for seed in range(6)]
    without = Moments.stack(parts).others
    for k in range(6):
        assert_close(sum(part for j, part in enumerate(parts) if j != k), without[k], 1e-11)


def test_leaving_out_the_group_that_holds_nearly_all_of_the_scatter():
    """Subtracting it from the total would leave rounding; merging the others leaves their own digits."""
    small = [moments(plain.random_log(seed, n=50)) for seed in range(3)]
    huge = plain.random_log(9, n=50)
    huge["r"] = huge["r"] * 1e9
    without = Moments.stack([*small, moments(huge)]).others[3]
    assert_close(sum(small), without, 1e-11)


def test_sums_give_the_same_moments():
    log = plain.random_log(4)
    u, s = log["t"] / log["p"] - 1, log["r"] - 0.1
    rows = np.stack([u, s, u * s])
    found = Moments.of_sums(200, rows.sum(axis=1), rows @ rows.T, 0.1, ("u", "s", "us"))
    assert_close(Moments.of(log["t"] / log["p"], log["r"]), found, 1e-11)


@given(st.integers(0, 10_000), st.floats(-1e12, 1e12))
def test_json_is_exact(seed, offset):
    m = moments(plain.random_log(seed, n=7, offset=offset))
    back = Moments.from_json(m.to_json())
    assert back.n == m.n
    assert back.center == m.center
    assert back.mean.tolist() == m.mean.tolist()
    assert back.scatter.tolist() == m.scatter.tolist()
    assert back.columns == m.columns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 200_000,
        "{}",
        '{"n": 1}',
        '{"n": 1, "mean": [1], "scatter": [[1]], "center": 0, "columns": ["u", "s", "us"]}',
    ],
)
def test_damaged_json_is_refused(text):
    with pytest.raises(MomentsError):
        Moments.from_json(text)


@pytest.mark.parametrize("change", [{"n": -1}, {"center": float("nan")}, {"mean": [float("inf"), 0, 0]}])
def test_json_with_impossible_numbers_is_refused(change):
    raw = json.loads(Moments.of([1.0, 2.0], [0.0, 1.0]).to_json()) | change
    with pytest.raises(MomentsError):
        Moments.from_json(json.dumps(raw))


def test_different_columns_do_not_add():
    log = plain.random_log(1)
    with refuses(MomentsError):
        moments(log) + Moments.of(log["t"], log["r"])
