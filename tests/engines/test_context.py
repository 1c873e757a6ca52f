"""Context baselines on every source: the same coefficients, values and errors to 1e-9, whatever the rows and wherever they are."""

import numpy as np
import planted
import polars as pl
import pytest
from messages import refuses

import counterpoise as cp
from counterpoise.engines import pushdown, scatter
from counterpoise.moments import Moments

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option"),  # ibis sets it, pandas 3 regrets it
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def log():
    return planted.with_context(planted.a_log())


@pytest.fixture(scope="module")
def expected(log):
    return planted.contexts(log)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), key


def test_the_sums_are_those_of_the_rows(log, expected):
    """One pass against arrays in NumPy, features and all."""
    good = log.filter(
        pl.col("propensity").is_between(0, 1, closed="right")
        & pl.col("new").is_between(0, 1)
        & pl.all_horizontal(pl.col("reward", "x0").fill_nan(None).abs() < 1e50)
    )
    features = {"x0": good["x0"], "d": good["device"] == 1, "de": (good["country"] == "DE").fill_null(False)}
    by_hand = Moments.of(good["new"] / good["propensity"], good["reward"], features=features)
    question = planted.BASE | {"target": "new", "baseline": {"x0": None, "device": [1], "country": ["DE"]}}
    found = cp.evaluate(log, **question)
    one = cp.ESTIMATORS["context_ips"](by_hand)
    assert found["new", "context_ips"].value == pytest.approx(one.value, rel=1e-10)
    assert found["new", "context_ips"].stderr == pytest.approx(one.stderr, rel=1e-9)
    assert found["new", "context_ips"].baseline == pytest.approx(one.baseline, rel=1e-8)
    assert found["new", "context_ips"].baseline[1] > 0.3
    assert expected["context whole rows"][1] == found.dropped_rows + 1  # a bad probability of the other target


def test_frames_and_files_agree(log, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(scatter, "BLOCK", 700)  # so that blocks end in the middle of a piece
    log.write_parquet(tmp_path / "log.parquet")
    log.write_csv(tmp_path / "log.csv")
    arrays = {name: log[name].to_numpy() for name in log.columns}
    for source in (arrays, log.to_pandas(), log.lazy(), log.to_arrow(), tmp_path / "log.parquet", tmp_path / "log.csv"):
        assert_same(planted.contexts(source), expected)


def test_duckdb_agrees_and_its_statements_stay_short(log, expected, monkeypatch):
    duckdb = pytest.importorskip("duckdb")
    assert_same(planted.contexts(duckdb.sql("select * from log")), expected)
    lengths, original = [], pushdown.context_aggregate

    def counted(frame, query, lanes, wanted, watch):
        lengths.append(len(wanted))
        return original(frame, query, lanes, wanted, watch)

    monkeypatch.setattr(pushdown, "context_aggregate", counted)
    cp.evaluate(duckdb.sql("select * from log"), **planted.BASE, target="new", baseline={"name": 16, "x1": None})
    assert sum(lengths) == 18 + 18 * 19 // 2 + 3 * 18 == 243
    assert max(lengths) <= 100


def test_postgresql_agrees(postgres, log, expected):
    ibis = pytest.importorskip("ibis")
    connection = ibis.connect(postgres)
    connection.create_table("context", log.to_arrow(), overwrite=True)
    try:
        assert_same(planted.contexts(postgres, table="context"), expected)
    finally:
        connection.drop_table("context")
        connection.disconnect()


def test_a_database_without_checksums_asks_for_levels(log):
    ibis = pytest.importorskip("ibis")
    connection = ibis.sqlite.connect()
    table = connection.create_table("log", log.to_arrow())
    question = planted.BASE | {"target": "new"}
    with refuses(cp.OptionError):
        cp.evaluate(table, **question, baseline=["country"])
    levels = {"country": ["DE"], "x0": None}
    found, expected = (planted.numbers("", cp.evaluate(one, **question, baseline=levels)) for one in (table, log))
    assert_same(found, expected)
    connection.disconnect()


def test_days_add_up_whatever_their_first_rows_were(log, tmp_path):
    """Each day takes the centers of its features from its own first rows, and here those are far apart."""
    log = planted.with_context(planted.a_log(bad=False)).sort("x1").with_columns(x0=pl.col("x1"))
    question = {"reward": "reward", "propensity": "propensity", "target": "new", "baseline": ["x0", "device"]}
    whole = cp.evaluate(log, **question, cluster="user", segment="device", interval="anytime")
    state = tmp_path / "state.json"
    for k in range(3):
        found = cp.evaluate(
            log[k * 1333 : (k + 1) * 1333 + k // 2],
            **question,
            cluster="user",
            segment="device",
            state=state,
            batch=str(k),
        )
    assert_same(planted.numbers("", found), planted.numbers("", whole))
    assert_same(planted.numbers("", cp.evaluate(state=state)), planted.numbers("", whole))
    first, second = (cp.evaluate(part, **question).moments for part in (log[:2000], log[2000:]))
    assert first.features != second.features
    both, all_rows = cp.evaluate(first + second), cp.evaluate(log, **question)
    assert_same(planted.coefficients("", both), planted.coefficients("", all_rows))
    with refuses(cp.MomentsError):
        cp.evaluate(log, **question | {"baseline": ["x0"]}, cluster="user", segment="device", state=state, batch="4")
    with refuses(cp.MomentsError):
        cp.evaluate(log, **question | {"baseline": None}, cluster="user", segment="device", state=state, batch="4")


def test_rewards_with_bad_rows_of_their_own_keep_their_own_features(log):
    duckdb = pytest.importorskip("duckdb")
    question = planted.BASE | {"target": "new", "reward": ["reward", "value"], "baseline": ["x0", "device"]}
    found = cp.evaluate(log, **question)
    for name in ("reward", "value"):
        alone = cp.evaluate(log, **question | {"reward": name}).by_reward
        one = found.by_reward[name]["new", "context_ips"]
        assert one.value == pytest.approx(alone[name]["new", "context_ips"].value, rel=1e-9)
    there = cp.evaluate(duckdb.sql("select * from log"), **question)
    for name in ("reward", "value"):
        assert_same(planted.numbers("", there.by_reward[name]), planted.numbers("", found.by_reward[name]))


def test_features_far_from_zero_keep_their_digits(log):
    log = planted.with_context(planted.a_log(bad=False), bad=False)
    question = {"reward": "reward", "propensity": "propensity", "target": "new"}
    near, far = (cp.evaluate(log, **question, baseline=[one]) for one in ("x0", "x0 + 1000000"))
    for name in ("context_ips", "lift"):
        assert far["new", name].value == pytest.approx(near["new", name].value, rel=1e-8)
        assert far["new", name].stderr == pytest.approx(near["new", name].stderr, rel=1e-7)


def test_policies_see_the_context_they_need_and_the_baseline_its_own():
    duckdb = pytest.importorskip("duckdb")
    log = planted.with_context(planted.a_log(), bad=False)
    policy, question = planted.a_policy(log), planted.POLICY | {"baseline": ["x0", "name"]}
    here, there = (
        cp.evaluate(one, **question, target={"clf": policy}) for one in (log, duckdb.sql("select * from log"))
    )
    assert_same(planted.numbers("", there), planted.numbers("", here))


def test_bad_features_are_named(log):
    question = {"reward": "reward", "propensity": "propensity", "target": "new", "where": "propensity is not null"}
    clean = planted.with_context(planted.a_log(bad=False))
    with refuses(cp.LogError):
        cp.evaluate(clean, **question, baseline="x0")
    for wrong, said in (
        ("nothing", "no column 'nothing' for baseline"),
        (["device", "device"], "twice"),
        ({"country": []}, "levels"),
        ({"country": 1000}, "buckets"),
        ({"device": 4}, "only text is hashed"),
        ({"name": 150, "country": 150}, "300 numbers"),
    ):
        with pytest.raises(cp.CounterpoiseError, match=said):
            cp.evaluate(clean, **question, baseline=wrong)
    dated = clean.with_columns(day=pl.lit("2026-11-16").str.to_date())
    with refuses(cp.ColumnError):
        cp.evaluate(dated, **question, baseline="day")
    with refuses(cp.OptionError):
        cp.distribution(clean, **question, baseline="x1")


@pytest.mark.parametrize(
    ("column", "level", "said"),
    [
        ("x1", "a", "column 'x1' holds numbers, and baseline= gives it the level 'a'"),
        ("device", "1", "column 'device' holds numbers, and baseline= gives it the level '1'"),
        ("country", 1, "column 'country' holds text, and baseline= gives it the level 1"),
        ("vip", "true", "column 'vip' holds truth values, and baseline= gives it the level 'true'. Pass True or False"),
        ("vip", 1, "column 'vip' holds truth values, and baseline= gives it the level 1"),
    ],
)
def test_levels_of_another_type_are_refused_by_every_engine(column, level, said, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    log = planted.with_context(planted.a_log(bad=False)).with_columns(vip=pl.col("x1") > 0)
    log.write_parquet(tmp_path / "log.parquet")
    log.write_csv(tmp_path / "log.csv")
    connection = duckdb.connect()
    connection.register("log", log.to_arrow())
    question = {"reward": "reward", "propensity": "propensity", "target": "new"}
    for one in (log, tmp_path / "log.parquet", tmp_path / "log.csv", connection.table("log")):
        with pytest.raises(cp.OptionError, match=said):
            cp.evaluate(one, **question, baseline={column: [level]})


def test_arrays_without_a_log_take_a_table_of_features():
    g = np.random.default_rng(0)
    x, p = g.normal(size=(500, 2)), np.full(500, 0.5)
    parts = {"reward": x[:, 0] + g.normal(size=500), "propensity": p, "target": g.choice([0.25, 0.75], 500)}
    by_table = cp.evaluate(**parts, baseline=x)
    by_name = cp.evaluate(**parts, baseline={"a": x[:, 0], "b": x[:, 1]})
    assert by_table["target", "context_ips"].value == by_name["target", "context_ips"].value
    assert by_table["target", "context_ips"].stderr < by_table["target", "beta_ips"].stderr
