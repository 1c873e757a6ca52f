"""One log, however it is held, gives one answer; and a lazy one is read once."""

import hashlib
from decimal import Decimal

import doubts
import narwhals as nw
import numpy as np
import pandas as pd
import plain
import polars as pl
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.engines import compiled, memory, registry
from counterpoise.log.groups import integer_ids, with_groups
from counterpoise.readers import frames


def a_log(n=3000, seed=0):
    log = plain.random_log(seed, n=n, binary=True)
    g = np.random.default_rng(seed + 1)
    return pl.DataFrame(
        {
            "click": log["r"],
            "p": log["p"],
            "new": log["t"],
            "old": np.clip(log["t"] + g.normal(0, 0.05, n), 0, 1),
            "country": g.choice(["DE", "FR", "日本"], n),
            "device": g.choice([1, 2], n),
            "user": g.integers(-50, 500, n),
        }
    )


QUESTION = {
    "reward": "click",
    "propensity": "p",
    "target": ["new", "old"],
    "segment": ["country", "device"],
    "cluster": "user",
}


def as_numbers(diagnostics):
    named = {name: value for name, value in vars(diagnostics).items() if value is not None}
    return named | {"unit": ("row", "list", "episode").index(diagnostics.unit)}


def numbers(result):
    return {key: (e.value, e.stderr, *e.interval, e.n) for key, e in result.estimates.items()}


SOURCES = {
    "arrays": lambda log: {name: log[name].to_numpy() for name in log.columns},
    "lists": lambda log: log.to_dict(as_series=False),
    "polars lazy": lambda log: log.lazy(),
    "pandas": lambda log: log.to_pandas(),
    "pandas nullable": lambda log: log.to_pandas().convert_dtypes(),
    "pyarrow": lambda log: log.to_arrow(),
    "pyarrow in pieces": lambda log: pl.concat([log[:7], log[7:]]).to_arrow(),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_numbers(source):
    log = a_log()
    expected = cp.evaluate(log, **QUESTION)
    found = cp.evaluate(SOURCES[source](log), **QUESTION)
    assert numbers(found).keys() == numbers(expected).keys()
    for key, values in numbers(expected).items():
        assert numbers(found)[key] == pytest.approx(values, rel=1e-10, abs=1e-12), key
    for key, one in expected.all_diagnostics.items():
        other = found.all_diagnostics[key]
        assert as_numbers(other) == pytest.approx(as_numbers(one), rel=1e-10, nan_ok=True), key
    assert {k: v.verdict for k, v in found.verdicts.items()} == {k: v.verdict for k, v in expected.verdicts.items()}


def test_duckdb_relations_are_frames_too():
    duckdb = pytest.importorskip("duckdb")
    log = a_log(200)
    relation = duckdb.sql("select * from log")
    expected = cp.evaluate(log, **QUESTION)
    assert cp.evaluate(relation, **QUESTION)["new", "snips"].value == pytest.approx(
        expected["new", "snips"].value, rel=1e-12
    )


def test_segments_are_the_rows_with_that_value():
    log = a_log()
    result = cp.evaluate(log, reward="click", propensity="p", target="new", segment="country")
    for country in ("DE", "FR", "日本"):
        alone = cp.evaluate(log.filter(pl.col("country") == country), reward="click", propensity="p", target="new")
        for name in ("ips", "snips", "beta_ips", "lift"):
            found, expected = result["new", name, country], alone["new", name]
            assert found.value == pytest.approx(expected.value, rel=1e-11)
            assert found.stderr == pytest.approx(expected.stderr, rel=1e-10)
        one, other = result.diagnostics("new", country), alone.diagnostics("new")
        assert as_numbers(one) == pytest.approx(as_numbers(other), rel=1e-10, nan_ok=True)


def test_logs_with_different_segments_add_up():
    log = a_log(2000)
    question = QUESTION | {"segment": "country"}
    first, second = log[:700].filter(pl.col("country") != "FR"), log[700:].filter(pl.col("country") != "DE")
    merged = cp.evaluate(cp.evaluate(first, **question).moments + cp.evaluate(second, **question).moments)
    expected = cp.evaluate(pl.concat([first, second]), **question, interval="anytime")
    assert numbers(merged).keys() == numbers(expected).keys()
    for key, values in numbers(expected).items():
        assert numbers(merged)[key] == pytest.approx(values, rel=1e-9, abs=1e-12), key
    for key, one in expected.all_diagnostics.items():
        assert as_numbers(merged.all_diagnostics[key]) == pytest.approx(as_numbers(one), rel=1e-10, nan_ok=True), key


def test_missing_segment_values_are_a_segment():
    log = a_log(100).with_columns(pl.when(pl.col("device") == 1).then(pl.col("country")).alias("country"))
    result = cp.evaluate(log, reward="click", propensity="p", target="new", segment="country")
    assert result["new", "ips", (None,)].n == int(log["country"].null_count())
    assert "(missing)" in str(result.table())


def test_dates_as_segments_survive_storing():
    days = pl.date_range(pl.date(2026, 1, 1), pl.date(2026, 1, 4), eager=True)
    log = a_log(400).with_columns(day=pl.concat([days] * 100))
    result = cp.evaluate(log, reward="click", propensity="p", target="new", segment="day")
    stored = cp.LogMoments.from_json(result.moments.to_json())
    assert len((stored + result.moments).segments) == 4


def test_a_lazy_frame_is_read_once_for_ten_targets_and_five_segments():
    log = a_log(50_000).with_columns(pl.Series("five", np.arange(50_000) % 5))
    turns = 1 - 2 * (pl.int_range(50_000) % 2)  # a mean weight of 1: odd ones get a second look
    log = log.with_columns(p=pl.col("p") / 2).with_columns(
        **{f"pi_{k}": pl.col("p") * (1 + turns * k / 20) for k in range(10)}
    )
    seen = []

    def count(batch):
        seen.append(batch.height)
        return batch

    lazy = log.lazy().map_batches(count, schema=log.schema, streamable=True)
    targets = [f"pi_{k}" for k in range(10)]
    result = cp.evaluate(lazy, reward="click", propensity="p", target=targets, segment="five", cluster="user")
    assert sum(seen) == 50_000
    assert result.n == 50_000
    assert len(result.targets) == 10


def test_batches_of_a_lazy_frame_add_up(monkeypatch):
    monkeypatch.setattr(frames, "BATCH", 700)
    log = a_log(5000)
    found, expected = cp.evaluate(log.lazy(), **QUESTION), cp.evaluate(log, **QUESTION)
    for key, values in numbers(expected).items():
        assert numbers(found)[key] == pytest.approx(values, rel=1e-9, abs=1e-12), key


def test_the_frame_itself_is_left_alone():
    log = a_log(50).to_pandas()
    before = log.copy()
    cp.evaluate(log, **QUESTION)
    pd.testing.assert_frame_equal(log, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f8", np.longdouble, np.float16])
def test_floats_of_every_width(dtype):
    log = a_log(300)
    arrays = {name: log[name].to_numpy().astype(dtype) for name in ("click", "p", "new")}
    wide = {name: column.astype(np.float64) for name, column in arrays.items()}
    question = {"reward": "click", "propensity": "p", "target": "new"}
    found, expected = cp.evaluate(arrays, **question), cp.evaluate(wide, **question)
    assert found["new", "beta_ips"].value == pytest.approx(expected["new", "beta_ips"].value, rel=1e-13)


@pytest.mark.parametrize(
    "reward",
    [
        [True, False, True, True],
        [Decimal("1.0"), Decimal("0.0"), Decimal("1"), 1],
        np.array([1, 0, 1, 1], dtype=np.int8),
        np.array([1, 0, 1, 1], dtype=np.uint64),
        pl.Series([1, 0, 1, 1], dtype=pl.Decimal(10, 2)),
        pd.Series([1, 0, 1, 1], dtype="Int64"),
    ],
    ids=["bool", "Decimal", "int8", "uint64", "polars Decimal", "pandas Int64"],
)
def test_rewards_of_every_numeric_type(reward):
    arrays = {"r": reward, "p": [0.5, 0.5, 0.25, 0.5], "t": [0.5, 0.25, 0.5, 0.25]}
    assert cp.evaluate(arrays, reward="r", propensity="p", target="t")["t", "ips"].value == pytest.approx(0.875)


def test_integers_beyond_64_bits_are_numbers_too():
    arrays = {"r": [2**70, 2**70 + 2**60], "p": [0.5, 0.5], "t": [0.5, 0.5]}
    assert cp.evaluate(arrays, reward="r", propensity="p", target="t")["t", "ips"].value == pytest.approx(
        2.0**70, rel=1e-3
    )


def test_large_integers_do_not_overflow_when_summed():
    arrays = {"r": np.full(1000, 2**62), "p": np.full(1000, 0.5), "t": np.full(1000, 0.5)}
    assert cp.evaluate(arrays, reward="r", propensity="p", target="t")["t", "snips"].value == pytest.approx(2.0**62)


@pytest.mark.parametrize("apart", [1e3, 1e8])
def test_segments_whose_rewards_are_worlds_apart(apart):
    log = a_log(4000).with_columns(click=pl.col("click") + apart * (pl.col("device") == 2))
    question = {"reward": "click", "propensity": "p", "target": "new"}
    for source in (log, log.lazy()):
        result = cp.evaluate(source, **question, segment="device", cluster="user")
        for device in (1, 2):
            alone = cp.evaluate(log.filter(pl.col("device") == device), **question, cluster="user")
            for name in ("snips", "beta_ips", "lift"):
                found, expected = result["new", name, device], alone["new", name]
                assert found.value == pytest.approx(expected.value, rel=1e-9)
                assert found.stderr == pytest.approx(expected.stderr, rel=1e-7)


def test_first_rows_unlike_the_rest():
    """The provisional center is taken from the first rows; nothing may depend on it."""
    n = 30_000
    g = np.random.default_rng(0)
    r = np.where(np.arange(n) < 1000, 0.0, 1e8) + g.normal(size=n)
    p, t = np.full(n, 0.5), g.uniform(0, 1, n)
    w = t / p
    value = (w * (r - 1e8)).sum() / w.sum()
    found = cp.evaluate(reward=r, propensity=p, target=t)["target", "snips"]
    assert found.value == pytest.approx(1e8 + value, rel=1e-12)
    assert found.stderr == pytest.approx(np.sqrt(((w * (r - 1e8 - value)) ** 2).sum()) / w.sum(), rel=1e-8)
    long = {"reward": np.tile(r, 40), "propensity": np.tile(p, 40), "target": np.tile(t, 40)}  # the compiled loop
    assert cp.evaluate(**long)["target", "snips"].stderr == pytest.approx(found.stderr / np.sqrt(40), rel=1e-7)


def test_a_bad_row_does_not_spoil_the_good_ones():
    log = a_log(500)
    question = {"reward": "click", "propensity": "p", "target": "new", "drop_bad_rows": True}
    sentinel = pl.concat([log[:1].with_columns(click=pl.lit(1e12), p=pl.lit(0.0)), log])
    found, expected = cp.evaluate(sentinel, **question), cp.evaluate(log, **question)
    for name in ("ips", "snips", "beta_ips", "lift"):
        assert found["new", name].value == pytest.approx(expected["new", name].value, rel=1e-12)
        assert found["new", name].stderr == pytest.approx(expected["new", name].stderr, rel=1e-9)


def test_cancellation_is_never_certainty():
    """A reward of 10¹² in a row of weight 0 leaves no digits for the others: the error must say so, not 0."""
    log = a_log(2000).with_columns(new=pl.when(pl.int_range(pl.len()) == 700).then(0.0).otherwise("new"))
    log = log.with_columns(click=pl.when(pl.int_range(pl.len()) == 700).then(1e12).otherwise("click"))
    found = cp.evaluate(log, reward="click", propensity="p", target="new")["new", "snips"]
    assert found.stderr > 0.01


def test_missing_and_nan_segments_are_one():
    log = a_log(4000).with_columns(part=pl.Series([None, float("nan"), 1.0, 2.0] * 1000))
    result = cp.evaluate(log, reward="click", propensity="p", target="new", segment="part")
    assert (result.n, result.dropped_rows) == (4000, 0)
    assert result["new", "ips", (None,)].n == 2000


def test_segments_and_clusters_from_python_lists():
    log = {"r": [1, 0, 1, 1], "p": [0.5] * 4, "t": [0.5] * 4, "s": [2, 10, None, 2], "m": ["a", float("nan"), None, 3]}
    question = {"reward": "r", "propensity": "p", "target": "t"}
    assert cp.evaluate(log, **question, segment="s").moments.segments == ((2,), (10,), (None,))
    assert cp.evaluate(log, **question, segment="m").moments.segments == (("3",), ("a",), (None,))


DAYS = ["2026-01-01", "NaT", "2026-01-02", "2026-01-01"]
SPANS = [1, "NaT", 2, 1]
ARRAYS = np.empty(4, dtype=object)
ARRAYS[:] = [np.array([1, 2]), None, np.array([3]), np.array([1, 2])]


@pytest.mark.parametrize(
    ("array", "series"),
    [
        *((np.array(DAYS, f"M8[{unit}]"), np.array(DAYS, "M8[ms]")) for unit in ("ns", "us", "ms", "s", "m", "h")),
        *(
            (np.array(DAYS[:1] * 2 + ["NaT"] * 2, f"M8[{unit}]"), np.array(DAYS[:1] * 2 + ["NaT"] * 2, "M8[D]"))
            for unit in "DMY"
        ),
        (pd.Series(np.array(DAYS, "M8[ns]")), np.array(DAYS, "M8[ns]")),
        (np.ma.masked_array(np.array(DAYS, "M8[ns]"), [0, 0, 1, 0]), np.array([*DAYS[:2], "NaT", DAYS[0]], "M8[ns]")),
        (np.array(SPANS, "m8[D]"), np.array(SPANS, "m8[D]").astype("m8[ms]")),
        (np.array(SPANS, "m8[ns]"), np.array(SPANS, "m8[ns]")),
        (["a", float("nan"), "b", "a"], ["a", None, "b", "a"]),
        (("a", None, "b", "a"), ["a", None, "b", "a"]),
        (pd.Series(["a", None, "b", "a"], dtype="string"), ["a", None, "b", "a"]),
        (np.array(["a", "c", "b", "a"], dtype=np.dtypes.StringDType()), ["a", "c", "b", "a"]),
        (np.array(["a", None, "b", "a"], dtype=np.dtypes.StringDType(na_object=None)), ["a", None, "b", "a"]),
        (ARRAYS, [[1, 2], None, [3], [1, 2]]),
    ],
    ids=lambda values: str(getattr(values, "dtype", type(values).__name__)),
)
def test_segments_of_arrays_are_those_of_frames(array, series):
    log = {"r": [1, 0, 1, 1], "p": [0.5] * 4, "t": [0.5] * 4}
    question = {"reward": "r", "propensity": "p", "target": "t", "segment": "s"}
    frame = pl.DataFrame(log | {"s": pl.Series(series)})
    assert (
        cp.evaluate(log | {"s": array}, **question).moments.segments == cp.evaluate(frame, **question).moments.segments
    )


def test_text_is_no_reward_whatever_holds_it():
    log = {"r": np.array(["1", "0"], dtype=np.dtypes.StringDType()), "p": [0.5] * 2, "t": [0.5] * 2}
    with refuses(cp.ColumnError):
        cp.evaluate(log, reward="r", propensity="p", target="t")


@pytest.mark.parametrize(
    "dtype", [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt32, pl.UInt64, pl.Float32, pl.Float64]
)
def test_an_id_finds_its_group_whatever_its_type(dtype):
    ids = pl.Series(range(100))
    expected = group_of_series(ids)
    assert group_of_series(ids.cast(dtype)) == expected
    assert group_of_series(pl.Series([*map(float, range(100)), 4.5]))[:100] == expected


def group_of_series(ids):
    frame = nw.from_native(pl.DataFrame({"g": integer_ids(ids)}))
    return with_groups(frame, 100)["g"].to_list()


def test_compiled_checksums_are_md5():
    """Of every length around the ends of a block of 64 bytes, and of text that is no ASCII."""
    pytest.importorskip("numba")
    from counterpoise.log.checksums import checksums

    texts = ["", None, "é日本", *("x" * k for k in (1, 54, 55, 56, 63, 64, 65, 119, 120, 1000)), *map(str, range(300))]
    expected = [t and int(hashlib.md5(t.encode()).hexdigest()[:6], 16) for t in texts]
    expected[0] = int(hashlib.md5(b"").hexdigest()[:6], 16)
    assert checksums(pl.Series(texts)).to_list() == expected
    assert checksums(pl.Series(texts[3:])).to_list() == expected[3:]


def test_groups_are_even():
    """Consecutive ids spread over the groups like balls thrown at random: χ² with 99 degrees of freedom."""
    counts = np.bincount(group_of_series(pl.Series(range(100_000))), minlength=100)
    statistic = ((counts - 1000) ** 2 / 1000).sum()
    assert 50 < statistic < 160


def test_a_cluster_column_called_row():
    log = a_log(1000).rename({"user": "row"})
    result = cp.evaluate(log, **(QUESTION | {"cluster": "row"}))
    assert result.method == cp.evaluate(result.moments).method == "student"
    assert result.diagnostics().cluster_groups > 50


def test_dropped_rows_are_no_duplicates():
    log = {"r": [1, 0, 1], "p": [0.5, 0.5, 0.0], "t": [0.5] * 3, "id": [1, 2, 2]}
    result = cp.evaluate(log, reward="r", propensity="p", target="t", key="id", drop_bad_rows=True)
    assert result.diagnostics().duplicates == 0


def test_clusters_by_name_and_by_number_alike():
    log = a_log(2000)
    named = log.with_columns(user=pl.format("user {}", "user"))
    by_name = cp.evaluate(named, **QUESTION)["new", "snips"]
    by_number = cp.evaluate(log, **QUESTION)["new", "snips"]
    assert by_name.value == pytest.approx(by_number.value, rel=1e-12)
    # other groups, so another jackknife of the same error: each is good to about 1/√(2·99)
    assert by_name.stderr == pytest.approx(by_number.stderr, rel=0.4)
    assert by_name.stderr != by_number.stderr


def test_duplicate_keys_are_counted():
    log = a_log(100).with_columns(id=pl.Series([*range(90), *range(10)]))
    result = cp.evaluate(log, reward="click", propensity="p", target="new", key="id")
    assert result.diagnostics().duplicates == 10
    assert doubts.numbers(result.verdict(), "repeated-keys") == {"rows": 10}
    assert (
        cp.evaluate(log, reward="click", propensity="p", target="new", key=["id", "user"]).diagnostics().duplicates <= 1
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_compiled_loop_and_the_embedded_engine_agree(monkeypatch, dtype):
    pytest.importorskip("numba")
    g = np.random.default_rng(0)
    monkeypatch.setattr(compiled, "SHORTEST", 1_000_000)
    n = compiled.SHORTEST + 777
    log = {"p": g.uniform(0.05, 1, n), "t": g.uniform(0, 1, n) * (g.random(n) < 0.9), "r": 1e6 + g.normal(size=n)}
    log = {name: column.astype(dtype) for name, column in log.items()}
    question = {"reward": "r", "propensity": "p", "target": "t"}
    calls = []
    monkeypatch.setattr(compiled, "Running", lambda *args, made=compiled.Running: calls.append(1) or made(*args))
    fast = cp.evaluate(log, **question)
    change = cp.compare(log, **question)
    assert calls == [1, 1]
    monkeypatch.setattr(compiled, "suits", lambda *args: False)
    slow = cp.evaluate(log, **question)
    for key, values in numbers(slow).items():
        assert numbers(fast)[key] == pytest.approx(values, rel=1e-10)
    assert as_numbers(fast.diagnostics()) == pytest.approx(as_numbers(slow.diagnostics()), rel=1e-10)
    assert change.value == pytest.approx(cp.compare(log, **question).value, rel=1e-10)


@pytest.mark.parametrize(
    "parts",
    [
        {"segment": "s"},
        {"segment": ["s", "d"]},
        {"cluster": "u"},
        {"segment": "d", "cluster": "u"},
        {"cluster": "name"},
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["memory", "file"])
def test_the_compiled_loop_by_segment_and_group_is_the_embedded_engine(monkeypatch, tmp_path, where, parts):
    """Segments come up one after the other, in pieces of the log; rewards of one are far from those of the others."""
    pytest.importorskip("numba")
    g, n = np.random.default_rng(0), 6000
    p = g.uniform(0.05, 1, n)
    segment = np.minimum(g.integers(0, 7, n), np.arange(n) // 500)
    user = g.integers(0, 900, n)
    log = pl.DataFrame(
        {"p": p, "t": np.minimum(p * g.exponential(1, n), 1.0), "o": p, "r": g.normal(size=n) + 1e6 * (segment == 3)}
    )
    log = log.with_columns(
        s=segment, u=user, name=pl.format("user {}", pl.Series(user)), d=pl.date(2026, 1, 1 + pl.Series(user % 3))
    )
    log = log.with_columns(s=pl.when(pl.col("s") > 0).then(pl.col("s")))
    log.write_parquet(tmp_path / "log.parquet", row_group_size=700)
    place = log if where == "memory" else tmp_path / "log.parquet"
    question = {"reward": "r", "propensity": "p", "target": ["t", "o"], **parts}
    for module, limit in ((memory, "LONGEST"), (registry, "SHORT")):
        monkeypatch.setattr(module, limit, 0)
    expected = cp.evaluate(place, **question), cp.compare(place, **(question | {"target": "t", "against": "o"}))
    for module, limit in ((compiled, "BY_SEGMENT"), (registry, "BY_SEGMENT"), (registry, "STARTED")):
        monkeypatch.setattr(module, limit, 0)
    monkeypatch.setattr(compiled, "PENDING", 100)
    answered, answer = [], compiled.RunningBy.answer
    monkeypatch.setattr(compiled.RunningBy, "answer", lambda self: answered.append(found := answer(self)) or found)
    made = cp.evaluate(place, **question), cp.compare(place, **(question | {"target": "t", "against": "o"}))
    assert answered
    assert None not in answered
    for one, other in zip(expected, made, strict=True):
        assert list(one.estimates) == list(other.estimates)
        for key, values in numbers(one).items():
            assert numbers(other)[key] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), key
    for first, second in zip(expected[0].moments.tails["t", ""], made[0].moments.tails["t", ""], strict=True):
        assert second.weights == pytest.approx(first.weights, rel=1e-14)
        assert second.zeros == first.zeros


def test_segments_too_many_for_a_table_of_all_cells_are_left_to_the_embedded_engine(monkeypatch):
    """As when an id is passed as `segment=`: the refusal must come before the memory runs out."""
    pytest.importorskip("numba")
    g, n = np.random.default_rng(0), 4000
    log = pl.DataFrame(
        {"p": np.full(n, 0.5), "t": g.random(n), "r": g.random(n), "id": np.arange(n), "u": g.integers(0, 300, n)}
    )
    question = {"reward": "r", "propensity": "p", "target": "t", "segment": "id", "cluster": "u", "groups": 100}
    for module, limit in ((memory, "LONGEST"), (compiled, "BY_SEGMENT"), (compiled, "LONGEST")):
        monkeypatch.setattr(module, limit, 0)
    cells, of_cells = [], compiled._CellSums.add
    monkeypatch.setattr(
        compiled._CellSums, "add", lambda self, total, *rest: cells.append(len(total)) or of_cells(self, total, *rest)
    )
    with pytest.raises(cp.OptionError, match="makes 4,000 segments"):
        cp.evaluate(log, **question)
    assert max(cells, default=0) <= compiled.CELLS


@pytest.mark.parametrize(
    ("column", "value"), [("p", 0.0), ("p", 1.5), ("t", -0.1), ("t", 1.5), ("t", np.nan), ("r", np.nan), ("r", np.inf)]
)
def test_bad_rows_of_long_logs_are_found_too(monkeypatch, column, value):
    monkeypatch.setattr(compiled, "SHORTEST", 1_000_000)
    n = compiled.SHORTEST
    log = {"p": np.full(n, 0.5), "t": np.full(n, 0.5), "r": np.ones(n)}
    log[column][654_321] = value
    with refuses(cp.LogError):
        cp.evaluate(log, reward="r", propensity="p", target="t")
    result = cp.evaluate(log, reward="r", propensity="p", target="t", drop_bad_rows=True)
    assert (result.n, result.dropped_rows) == (n - 1, 1)


@pytest.mark.parametrize("shortest", [1_000_000, 2_000_000])
def test_the_largest_weights_of_a_long_log_are_exact(monkeypatch, shortest):
    monkeypatch.setattr(compiled, "SHORTEST", shortest)
    g = np.random.default_rng(0)
    n = 1_200_000
    p, t = g.uniform(0.01, 1, n), g.uniform(0, 1, n)
    tail = cp.evaluate(reward=t, propensity=p, target=t).moments.tails["target", ""][0]
    np.testing.assert_allclose(tail.weights, np.sort(t / p)[::-1][:1000], rtol=1e-14)
    few = np.where(np.arange(n) % 2, 0.5, 0.0)  # two values only: a threshold cannot single out a thousand
    tail = cp.evaluate(reward=few, propensity=np.full(n, 0.5), target=few).moments.tails["target", ""][0]
    assert tail.weights.tolist() == [1.0] * 1000
    assert tail.zeros == n // 2
