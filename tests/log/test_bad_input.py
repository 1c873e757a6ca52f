"""Bad input gets a clear error, and drop_bad_rows loses nothing else."""

import datetime
import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from messages import refuses

import counterpoise as cp

GOOD = {"r": [1.0, 0.0, 1.0, 1.0], "p": [0.5, 0.5, 0.25, 0.5], "t": [0.5, 0.25, 0.5, 0.25]}
QUESTION = {"reward": "r", "propensity": "p", "target": "t"}


def with_bad(column, value, row=2):
    values = list(GOOD[column])
    values[row] = value
    return GOOD | {column: values}


@pytest.mark.parametrize(
    "frame", [dict, pl.DataFrame, lambda x: pl.DataFrame(x).lazy(), lambda x: pl.DataFrame(x).to_pandas()]
)
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("p", 0.0, r"propensity 'p' must lie in \(0, 1\]: 1 row does not; the first is row 2 with 0.0"),
        ("p", -0.1, r"first is row 2 with -0.1"),
        ("p", 1.5, r"first is row 2 with 1.5"),
        ("p", float("nan"), r"first is row 2 with n"),
        ("p", None, r"first is row 2 with n"),
        ("t", -0.1, r"target 't' must lie in \[0, 1\]"),
        ("t", 1.1, r"target 't' must lie in \[0, 1\]"),
        ("t", None, r"target 't' must lie in \[0, 1\]"),
        ("r", float("nan"), "reward 'r' must be a finite number"),
        ("r", float("inf"), "reward 'r' must be a finite number"),
        ("r", None, "reward 'r' must be a finite number"),
        ("r", 1e200, "reward 'r' must be a finite number"),
    ],
)
def test_bad_rows_are_named_counted_and_can_be_dropped(frame, column, value, message):
    log = frame(with_bad(column, value))
    with pytest.raises(cp.LogError, match=message) as error:
        cp.evaluate(log, **QUESTION)
    assert "drop_bad_rows=True" in str(error.value)
    assert "of 4 rows" in str(error.value)
    kept = {name: [x for k, x in enumerate(values) if k != 2] for name, values in GOOD.items()}
    found, expected = cp.evaluate(log, **QUESTION, drop_bad_rows=True), cp.evaluate(kept, **QUESTION)
    assert found.dropped_rows == 1
    assert found["t", "snips"].value == pytest.approx(expected["t", "snips"].value, rel=1e-13)
    assert found.n == 3


def test_a_propensity_too_small_to_be_meant():
    with refuses(cp.LogError):
        cp.evaluate(with_bad("p", 1e-300), **QUESTION)


def test_several_kinds_of_bad_rows_are_all_reported():
    log = {"r": [1.0, float("nan"), 1.0, float("inf")], "p": [0.5, 0.5, 2.0, 0.5], "t": [0.5, 0.25, 0.5, 0.25]}
    with refuses(cp.LogError):
        cp.evaluate(log, **QUESTION)


def test_row_numbers_count_on_across_batches(monkeypatch):
    from counterpoise.readers import frames

    monkeypatch.setattr(frames, "BATCH", 100)
    n = 1000
    p = np.full(n, 0.5)
    p[[777, 888]] = 0.0
    lazy = pl.LazyFrame({"r": np.ones(n), "p": p, "t": np.full(n, 0.5)})
    with refuses(cp.LogError):
        cp.evaluate(lazy, **QUESTION)


def test_a_clean_log_with_all_rows_bad():
    with refuses(cp.LogError):
        cp.evaluate(GOOD | {"p": [0.0] * 4}, **QUESTION, drop_bad_rows=True)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"reward": "rr"}, "no column 'rr' for reward.*Did you mean 'r'"),
        ({"propensity": "propensity"}, "no column 'propensity'.*Did you mean 'p'"),
        ({"target": ["t", "zzz"]}, "no column 'zzz' for target"),
        ({"segment": "zzz"}, "no column 'zzz' for segment"),
        ({"cluster": "zzz"}, "no column 'zzz' for cluster"),
    ],
)
def test_missing_and_misspelt_columns(question, message):
    for log in (GOOD, pl.DataFrame(GOOD), pl.LazyFrame(GOOD)):
        with pytest.raises(cp.ColumnError, match=message):
            cp.evaluate(log, **(QUESTION | question))


@pytest.mark.parametrize(
    "reward",
    [
        ["1", "0", "1", "1"],
        [datetime.datetime(2026, 1, 1)] * 4,
        np.array(["2026-01-01"] * 4, dtype="datetime64[s]"),
        np.array([1, 2, 3, 4], dtype="timedelta64[s]"),
        [1 + 2j] * 4,
        [[1], [2], [3], [4]],
        [{"a": 1}] * 4,
    ],
    ids=["text", "datetime", "datetime64", "timedelta64", "complex", "nested", "dict"],
)
def test_rewards_that_are_no_numbers(reward):
    with refuses(cp.ColumnError):
        cp.evaluate(GOOD | {"r": reward}, **QUESTION)


def test_text_in_a_frame_is_no_number_either():
    for log in (pl.DataFrame(GOOD | {"r": ["1"] * 4}), pl.DataFrame(GOOD | {"r": ["1"] * 4}).to_pandas()):
        with refuses(cp.ColumnError):
            cp.evaluate(log, **QUESTION)


def test_lengths_that_differ():
    with refuses(cp.LogError):
        cp.evaluate(GOOD | {"p": [0.5] * 3}, **QUESTION)


def test_an_empty_log():
    for log in ({k: [] for k in GOOD}, pl.DataFrame(GOOD)[:0], pl.DataFrame(GOOD)[:0].lazy()):
        with refuses(cp.LogError):
            cp.evaluate(log, **QUESTION)


def test_a_missing_cluster_is_a_bad_row():
    log = GOOD | {"user": [1, 2, None, 4]}
    with refuses(cp.LogError):
        cp.evaluate(log, **QUESTION, cluster="user")
    assert cp.evaluate(log, **QUESTION, cluster="user", drop_bad_rows=True).dropped_rows == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 1 - 1e-16}, "level=.* does not lie"),
        ({"level": 95}, "level=95 does not lie strictly between 0 and 1"),
        ({"level": float("nan")}, "level=.* does not lie"),
        ({"interval": "bootstrap"}, "interval='bootstrap' is not an interval; choose from student"),
        ({"interval": "bernstein"}, r"interval=cp\.intervals\.Bernstein\(reward_bounds=\(0, 1\), max_weight=10\)"),
        ({"interval": "bernstein", "reward_bounds": (0, 5)}, r"Bernstein\(reward_bounds=\(0, 5\), max_weight=10\)"),
        ({"interval": cp.intervals.Bernstein((0, 1), 9), "estimator": "snips"}, "only works for ips"),
        ({"estimator": "dr"}, "dr needs model='auto', or a model's columns in model_reward= and model_value="),
        ({"estimator": "magic"}, "no estimator 'magic'"),
        ({"groups": 1}, "groups=1 is not a whole number"),
        ({"groups": True}, "groups=True is not a whole number"),
        ({"estimator": 5}, "estimator=5 must be"),
        ({"estimator": [["ips"]]}, "no estimator"),
        ({"target": []}, "no target"),
        ({"target": ["t", "t"]}, "two targets are called 't'"),
        ({"target": 3}, "a target is the name of a column"),
        ({"reward": 3}, "must be the name of a column"),
        ({"reward": None}, "reward is missing"),
        ({"model_reward": "r"}, "go together"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(cp.OptionError, match=message):
        cp.evaluate(GOOD, **(QUESTION | options))


def test_a_log_that_is_no_log():
    for log in (3, "nowhere.parquet", object()):
        with pytest.raises(cp.CounterpoiseError):
            cp.evaluate(log, **QUESTION)
    with refuses(cp.OptionError):
        cp.evaluate(reward="r", propensity="p", target="t")


def test_asking_a_result_for_what_it_has_not():
    result = cp.evaluate(GOOD, **QUESTION)
    for key, message in (
        (("q", "ips"), "no target 'q'"),
        (("t", "ipps"), "Did you mean 'ips'"),
        (("t", "ips", "DE"), "no segment"),
    ):
        with pytest.raises(cp.OptionError, match=message):
            result[key]


def test_comparing_a_policy_with_itself():
    with refuses(cp.OptionError):
        cp.compare(GOOD, reward="r", propensity="p", target="t", against="t")


def test_arrays_that_would_overwrite_each_other():
    log = {"reward": GOOD["r"], "propensity": GOOD["p"]}
    for target in ({"reward": GOOD["t"]}, {"propensity": GOOD["t"]}):
        with refuses(cp.OptionError):
            cp.evaluate(**log, target=target)
    with_model = cp.evaluate(**log, target={"new": GOOD["t"]}, model_reward=[0.5] * 4, model_value={"new": [0.4] * 4})
    assert with_model["new", "ips"].value == pytest.approx(0.875)
    assert with_model["new", "dm"].value == pytest.approx(0.4)


def test_masked_arrays():
    masked = np.ma.array([1.0, 0.0, 1.0, 1.0], mask=[False, True, False, False])
    with refuses(cp.LogError):
        cp.evaluate(GOOD | {"r": masked}, **QUESTION)
    assert cp.evaluate(GOOD | {"r": masked}, **QUESTION, drop_bad_rows=True).dropped_rows == 1


def test_one_wrong_value_is_reported_once():
    for column, value in (("p", None), ("t", float("nan"))):
        with pytest.raises(cp.LogError) as error:
            cp.evaluate(with_bad(column, value), **QUESTION)
        assert "Also" not in str(error.value)


@pytest.mark.parametrize("frame", [pl.DataFrame, lambda x: pl.DataFrame(x).to_pandas()])
def test_odd_column_names(frame):
    log = frame(GOOD)
    if not isinstance(log, pl.DataFrame):
        log[0] = 1.0  # a name that is no text
    with refuses(cp.ColumnError):
        cp.evaluate(log, **(QUESTION | {"reward": "zzz"}))
    if not isinstance(log, pl.DataFrame):
        log.columns = ["r", "p", "t", "t"]
        with refuses(cp.ColumnError):
            cp.evaluate(log, **QUESTION)


@pytest.mark.parametrize("cluster", [[[1], [2], [3], [4]], [b"\xff", b"\xfe", b"a", b"b"]], ids=["lists", "bytes"])
def test_clusters_that_are_no_ids(cluster):
    log = pl.DataFrame(GOOD | {"user": cluster})
    with refuses(cp.ColumnError):
        cp.evaluate(log, **QUESTION, cluster="user")


@pytest.mark.parametrize(
    "control", [{"t": float("nan")}, {"t": float("inf")}, {"t": None}, {"t": "a"}, ["t"], "t"], ids=str
)
def test_controls_need_a_known_mean(control):
    with refuses(cp.OptionError):
        cp.evaluate(GOOD, **QUESTION, control=control)


def test_controls_with_different_means_do_not_add():
    first, second = (cp.evaluate(GOOD, **QUESTION, control={"t": mean}).moments for mean in (0.0, 0.5))
    with refuses(cp.MomentsError):
        first + second


def test_moments_have_no_columns_to_choose_from():
    moments = cp.evaluate(GOOD, **QUESTION).moments
    rows = (
        {"where": "r > 0"},
        {"state": "s.json"},
        {"batch": "b"},
        {"query": "q"},
        {"table": "t"},
        {"drop_bad_rows": True},
    )
    for options in ({"target": "t"}, {"cluster": "t"}, {"segment": "t"}, {"groups": 5}, {"action": "t"}, *rows):
        with refuses(cp.OptionError):
            cp.evaluate(moments, **options)
        with refuses(cp.OptionError):
            cp.compare(moments, **options)
    compared = cp.compare(GOOD, **QUESTION).moments
    with refuses(cp.OptionError):
        cp.compare(compared, against="t")
    assert cp.compare(compared, against="logging").value == cp.compare(compared).value
    with refuses(cp.OptionError):
        cp.evaluate(moments, interval="jackknife")
    with refuses(cp.OptionError):
        cp.compare(moments)


@pytest.mark.parametrize(
    "change",
    [
        {"dropped": float("inf")},
        {"reward_min": []},
        {"reward_min": ["a"]},
        {"duplicates": "x"},
        {"contrasts": []},
        {"segments": []},
        {"format": 99},
    ],
    ids=str,
)
def test_damaged_state_is_refused(change):
    raw = json.loads(cp.evaluate(GOOD, **QUESTION).moments.to_json()) | change
    with pytest.raises(cp.MomentsError):
        cp.LogMoments.from_json(json.dumps(raw))


def test_numpy_numbers_are_numbers():
    result = cp.evaluate(
        GOOD, **QUESTION, level=np.float32(0.9), groups=np.int64(2), interval=cp.intervals.Anytime(1e4)
    )
    assert result.level == pytest.approx(0.9)


numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)
tame = st.floats(0.0, 1.0) | st.sampled_from([0.0, 1.0, 1e-300, 0.5])


@pytest.mark.once
@settings(max_examples=300, deadline=None)
@given(data=st.data(), n=st.integers(0, 12), drop=st.booleans(), wild=st.booleans())
def test_arbitrary_arrays_are_answered_or_refused(data, n, drop, wild):
    """Never a NaN in silence, never a bare warning (warnings are errors here)."""
    probabilities = numbers if wild else tame
    p = data.draw(hnp.arrays(np.float64, n, elements=probabilities))
    t = data.draw(hnp.arrays(np.float64, n, elements=probabilities))
    r = data.draw(hnp.arrays(np.float64, n, elements=numbers if wild else st.floats(-1e6, 1e6)))
    user = data.draw(hnp.arrays(np.int64, n, elements=st.integers(-(2**63), 2**63 - 1)))
    try:
        result = cp.evaluate(
            reward=r,
            propensity=p,
            target=t,
            cluster=user if data.draw(st.booleans()) else None,
            segment=(user % 3) if data.draw(st.booleans()) else None,
            model_reward=r / 2 if not wild else None,
            model_value=r / 3 if not wild else None,
            interval=data.draw(st.sampled_from([None, "normal", "anytime"])),
            drop_bad_rows=drop,
        )
    except cp.CounterpoiseError:
        return
    for (target, name, segment), estimate in result.estimates.items():
        lower, upper = estimate.interval
        assert lower <= upper
        if name != "dm" and not estimate.identified:
            # cross-fitting needs two groups; all else needs overlap
            assert result.verdicts[target, segment].verdict == "not identified" or name == "cross_fit"
        if estimate.identified:
            assert np.isfinite(estimate.value)
            assert estimate.stderr >= 0
    str(result)


@pytest.mark.thorough
@pytest.mark.once
@settings(max_examples=200, deadline=None)
@given(data=st.data(), n=st.integers(1, 12))
def test_arbitrary_models_controls_segments_and_comparisons_are_answered_or_refused(data, n):
    def draw(elements):
        return data.draw(st.lists(elements, min_size=n, max_size=n))

    wild = data.draw(st.booleans())
    anything = numbers | st.none() if wild else st.floats(-1e6, 1e6)
    log = {
        "r": draw(anything),
        "p": draw(st.floats(0.01, 1.0)),
        "t": draw(tame),
        "o": draw(tame),
        "q": draw(anything),
        "v": draw(anything),
    }
    log |= {
        "x": draw(anything),
        "s": draw(st.sampled_from([None, float("nan"), 1.5, "a"]) if wild else st.floats(allow_nan=True)),
    }
    log |= {"user": np.array(draw(st.integers(-128, 127)), dtype=data.draw(st.sampled_from(["i1", "i2", "i4", "i8"])))}
    drop = data.draw(st.booleans())
    question = {"reward": "r", "propensity": "p", "target": "t", "segment": "s", "drop_bad_rows": drop}
    clustered = data.draw(st.sampled_from([{}, {"cluster": "user"}, {"groups": 3}]))
    bounded = {"interval": cp.intervals.Bernstein((-1e6, 1e6), max_weight=100.0)}
    for ask in (
        lambda: cp.evaluate(log, **question, **clustered, model_reward="q", model_value="v", control={"x": 0.5}),
        lambda: cp.compare(log, **question, **clustered, against=data.draw(st.sampled_from(["o", "logging"]))),
        lambda: cp.evaluate(log, **question, **bounded),
    ):
        try:
            result = ask()
        except cp.CounterpoiseError:
            continue
        for estimate in result.estimates.values():
            assert estimate.interval.lower <= estimate.interval.upper
            assert estimate.stderr >= 0
            assert np.isfinite(estimate.value) or not estimate.identified
        assert cp.LogMoments.from_json(result.moments.to_json()).n == result.n
        str(result)
