"""One encoder for models and policies: learned in any number of batches, told in JSON, and the same numbers every time."""

import json
from datetime import date
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from messages import refuses

from counterpoise.errors import ColumnError
from counterpoise.features import Encoder, Scaling

ROWS = pl.DataFrame(
    {
        "age": [20.0, None, 40.0, 60.0, float("nan"), 30.0],
        "country": ["DE", "FR", None, "DE", "IT", "DE"],
        "day": [date(2026, 1, k) for k in range(1, 7)],
        "member": [True, False, True, True, False, True],
        "taste": [[1.0, k] for k in range(6)],
    }
)
NAMES = ROWS.columns


def cut(rows, *places):
    """The rows in batches that end at these places."""
    ends = [0, *places, rows.height]
    return [rows[first:last] for first, last in pairwise(ends)]


@pytest.mark.parametrize("places", [(1,), (2, 3), (1, 2, 3, 4, 5), (0, 6)])
def test_batches_teach_what_the_whole_does(places):
    whole, parts = Encoder.learned([ROWS], NAMES), Encoder.learned(cut(ROWS, *places), NAMES)
    assert parts == whole
    for form in ("native", "plain"):
        np.testing.assert_allclose(getattr(parts, form)(ROWS), getattr(whole, form)(ROWS), rtol=1e-12)
    np.testing.assert_allclose(parts.table(ROWS), whole.table(ROWS), rtol=1e-12)


def test_a_batch_may_be_a_mapping_of_arrays():
    arrays = {name: ROWS[name].to_list() for name in NAMES}
    assert Encoder.learned([arrays], NAMES) == Encoder.learned([ROWS], NAMES)


@pytest.mark.parametrize("places", [(1,), (3, 3), (1, 2, 3, 4, 5, 6, 7)])
def test_mean_and_scale_add_up(places):
    table = np.random.default_rng(0).normal(1e9, 3.0, size=(8, 2))
    table[:, 1] = 0.1  # which varies by rounding only, if at all
    parts = np.split(table, places)
    scaling = sum((Scaling.of(part) for part in parts), Scaling.of(np.empty((0, 2))))
    assert scaling.rows == 8
    np.testing.assert_allclose(scaling.mean, table.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(scaling.scale, [table[:, 0].std(), 1.0], rtol=1e-6)  # sums of squares lose all digits


def test_the_plain_form_is_standardized_and_has_no_gaps():
    encoder = Encoder.of(ROWS, ["age", "day", "country"])
    age, marks, day, *levels = encoder.plain(ROWS).T
    known = np.array([20.0, 40.0, 60.0, 30.0])
    np.testing.assert_allclose(age[[0, 2, 3, 5]], (known - known.mean()) / known.std())
    assert age[[1, 4]].tolist() == [0.0, 0.0]
    assert marks.tolist() == [0, 1, 0, 0, 1, 0]
    assert (day.mean(), day.std()) == (pytest.approx(0.0, abs=1e-12), pytest.approx(1.0))
    assert np.sum(levels, axis=0).tolist() == [1, 1, 0, 1, 1, 1]  # a missing text is none of the levels
    assert encoder.width == encoder.plain(ROWS).shape[1] == len(encoder.features)
    assert len(encoder.is_category) == encoder.native(ROWS).shape[1]


def test_infinity_is_missing_to_a_model_and_refused_by_a_policy():
    rows = pl.DataFrame({"x": [1.0, float("inf"), 3.0]})
    assert Encoder.of(rows, ["x"]).plain(rows)[1].tolist() == [0.0, 1.0]
    encoder = Encoder.learned([rows], ["x"])
    assert encoder.features == ("x",)
    assert np.isnan(encoder.blocks(rows)["x"][1, 0])


def test_levels_that_are_equally_frequent_are_kept_by_name(monkeypatch):
    monkeypatch.setattr("counterpoise.features.encoder.LEVELS", 3)
    text = pl.Series("x", ["b", "b", *"zyxwvutsrqponm"])
    for seed in range(5):
        rows = pl.DataFrame(text.sample(fraction=1.0, shuffle=True, seed=seed))
        assert Encoder.of(rows, ["x"]).columns[0].levels == ("b", "m", "n")
        assert Encoder.learned(cut(rows, 5), ["x"]).columns[0].levels == ("b", "m", "n")


def test_a_model_takes_an_id_and_a_policy_refuses_it():
    rows = pl.DataFrame({"x": [f"user {k}" for k in range(3_000)]})
    assert Encoder.of(rows, ["x"]).width == 200
    with refuses(ColumnError):
        Encoder.learned([rows], ["x"])


@pytest.mark.parametrize("dtype", [pl.Null, pl.Float64, pl.String, pl.List(pl.Float64)])
def test_a_model_takes_a_column_that_the_sample_lacks(dtype):
    """Whatever rows that were not in the sample have there."""
    values = {pl.String: ["DE"], pl.List(pl.Float64): [[]]}.get(dtype, [1.0])
    encoder = Encoder.of(pl.DataFrame({"x": pl.Series([None, None], dtype=dtype)}), ["x"])
    for rows in (pl.DataFrame({"x": pl.Series([None], dtype=dtype)}), pl.DataFrame({"x": values})):
        assert np.isfinite(encoder.plain(rows)).all()
        assert encoder.native(rows).shape == (1, len(encoder.is_category))


def test_kinds_that_differ_between_batches_are_refused():
    with refuses(ColumnError):
        Encoder.learned([{"x": [1.0]}, {"x": ["a"]}], ["x"])
    with refuses(ColumnError):
        Encoder.learned([{"x": [[1, 2]]}, {"x": [[1]]}], ["x"])
    with refuses(ColumnError):
        Encoder.of(pl.DataFrame({"x": [{"a": 1}]}), ["x"])


# as the policy files of 0.2 have it
DESCRIBED = [
    {"name": "age", "kind": "number", "missing": True, "mean": 37.5},
    {"name": "country", "kind": "category", "levels": ["DE", "FR", "IT"], "missing": True},
    {"name": "day", "kind": "number", "unit": "microseconds since 1970-01-01"},
    {"name": "member", "kind": "number"},
    {"name": "taste", "kind": "list", "length": 2},
]


def test_what_files_say_is_what_it_was_in_0_2():
    encoder = Encoder.learned([ROWS], NAMES)
    assert json.dumps(encoder.described()) == json.dumps(DESCRIBED)
    again = Encoder.of_description(json.loads(json.dumps(DESCRIBED)))
    assert again == encoder
    np.testing.assert_array_equal(again.table(ROWS), encoder.table(ROWS))
    assert again.table(ROWS)[1].tolist()[:6] == [37.5, 1.0, 0.0, 1.0, 0.0, 0.0]
