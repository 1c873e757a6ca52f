"""Databases, lazy frames and policies on logs that trap the unwary: the same numbers as a frame in memory, or an error."""

import math
import os
import subprocess
import sys
from contextlib import closing
from decimal import Decimal
from importlib.util import find_spec

import numpy as np
import planted
import polars as pl
import pytest
from messages import refuses
from sklearn.linear_model import LogisticRegression

import counterpoise as cp
from counterpoise.engines import pushdown
from counterpoise.readers import frames

duckdb = pytest.importorskip("duckdb")

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option"),  # ibis sets it, pandas 3 regrets it
    pytest.mark.filterwarnings("ignore:fetch_arrow_table"),  # ibis uses DuckDB's old name for it
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

QUESTION = {"reward": "reward", "propensity": "propensity", "target": "new"}


@pytest.fixture
def log():
    return planted.a_log(2000, bad=False)


def same(found, expected):
    mine, theirs = planted.numbers("", found), planted.numbers("", expected)
    assert mine.keys() == theirs.keys()
    for key, values in theirs.items():
        assert mine[key] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), key


def test_nan_and_null_are_one_missing_segment(log):
    """Their rewards are worlds apart, so that sums around two centers would be added."""
    third = pl.int_range(pl.len()) % 3
    log = log.with_columns(part=pl.when(third == 0).then(math.nan).when(third == 1).then(None).otherwise(1.0))
    log = log.with_columns(reward=pl.col("reward") + 1e7 * (third == 0))
    expected = cp.evaluate(log, **QUESTION, segment="part")
    same(cp.evaluate(duckdb.sql("select * from log"), **QUESTION, segment="part"), expected)


def test_a_text_cluster_may_play_other_parts(log):
    log = log.with_columns(name=pl.format("user {}", "user"))
    question = QUESTION | {"cluster": "name", "segment": "name", "where": "id < 100"}
    same(cp.evaluate(duckdb.sql("select * from log"), **question), cp.evaluate(log, **question))


def test_clusters_may_be_larger_than_signed_integers(log):
    log = log.with_columns(pl.col("user").cast(pl.UInt64) + 2**63) if log["user"].min() >= 0 else log.with_columns(
        user=(pl.col("user") + 50).cast(pl.UInt64) + pl.lit(2**63, dtype=pl.UInt64)
    )  # fmt: skip
    same(
        cp.evaluate(duckdb.sql("select * from log"), **QUESTION, cluster="user"),
        cp.evaluate(log, **QUESTION, cluster="user"),
    )
    assert cp.evaluate(duckdb.sql("select * from log"), **QUESTION, cluster="hash(user)").n == log.height


@pytest.mark.once
def test_columns_with_our_own_names_stay_apart(log):
    ours = ["counterpoise expression 0", "expression 0", "chosen 0", "n", "u0", "k0", "g", "c", "t0", "row"]
    for name in ours[1:]:
        odd = log.with_columns(pl.col("old").alias(name))
        question = QUESTION | {"target": [name, "0.5*new", cp.Chosen("chosen")], "action": "action"}
        expected = cp.evaluate(odd, **question)
        assert expected[name, "ips"].value == cp.evaluate(log, **QUESTION | {"target": "old"})["old", "ips"].value
        same(cp.evaluate(duckdb.sql("select * from odd"), **question), expected)


def test_a_table_that_grows_between_statements_is_refused(log, monkeypatch):
    with duckdb.connect() as connection:
        connection.execute("create table growing as select * from log")
        chunks = pushdown._chunks

        def growing(names):
            for part in chunks(names):
                yield part
                connection.execute("insert into growing select * from growing limit 100")

        monkeypatch.setattr(pushdown, "_chunks", growing)
        targets = {f"blend {k}": f"{k / 12} * new" for k in range(12)}
        with refuses(cp.LogError):
            cp.evaluate(connection, table="growing", **QUESTION | {"target": targets})


def test_ibis_tables_of_duckdb_take_conditions_and_policies(log):
    ibis = pytest.importorskip("ibis")
    connection = ibis.duckdb.connect()
    table = connection.create_table("log", log.to_arrow())
    question = QUESTION | {"where": "device = 1", "target": "0.5 * new", "segment": "country"}
    same(cp.evaluate(table, **question), cp.evaluate(log, **question))
    same(cp.evaluate(connection, query="select * from log", **question), cp.evaluate(log, **question))
    policy = planted.a_policy(log)
    same(
        cp.evaluate(table, **planted.POLICY, target={"clf": policy}),
        cp.evaluate(log, **planted.POLICY, target={"clf": policy}),
    )
    connection.disconnect()


@pytest.mark.parametrize("expression", ["reward - AVG(reward) OVER ()", "ROW_NUMBER() OVER (ORDER BY id, new)"])
def test_expressions_over_all_rows_see_all_rows(log, monkeypatch, expression):
    monkeypatch.setattr(frames, "BATCH", 300)
    question = QUESTION | {"reward": expression}
    same(cp.evaluate(log.lazy(), **question), cp.evaluate(log, **question))


def test_segments_come_in_the_same_order_however_the_log_comes(log, monkeypatch):
    monkeypatch.setattr(frames, "BATCH", 3)
    log = log.with_columns(day=20 - pl.int_range(pl.len()) // 100)
    ordered = cp.evaluate(log, **QUESTION, segment="day").moments.segments
    assert (
        cp.evaluate(log.lazy(), **QUESTION, segment="day").moments.segments
        == ordered
        == tuple((k,) for k in range(1, 21))
    )


def test_rows_without_an_action_are_bad_rows_for_every_policy(log):
    policy = planted.a_policy(log)
    some = log.with_columns(action=pl.when(pl.int_range(pl.len()) % 10 > 0).then("action"))
    question = {**planted.POLICY, "target": {"clf": policy, "half": lambda batch: np.full(batch.num_rows, 0.5)}}
    kept = cp.evaluate(some, **question)
    assert (kept.n, kept.dropped_rows) == (1800, 200)
    same_rows = cp.evaluate(some.drop_nulls("action"), **question)
    assert kept["clf", "snips"].value == pytest.approx(same_rows["clf", "snips"].value, rel=1e-12)
    with refuses(cp.LogError):
        cp.evaluate(some, **question | {"drop_bad_rows": False})
    words = some.with_columns(action=pl.format("a{}", "action"))
    good = log.drop_nulls()
    fitted = LogisticRegression().fit(good.select("x0", "x1").to_numpy(), [f"a{k}" for k in good["action"]])
    named = cp.evaluate(words, **question | {"target": {"clf": fitted}})
    assert named["clf", "snips"].value == pytest.approx(kept["clf", "snips"].value, rel=1e-6)
    with refuses(cp.OptionError):
        cp.evaluate(words, **question | {"target": {"clf": policy}})


def test_no_target_disappears_behind_another_of_its_name(log):
    half = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    question = {**planted.POLICY, "drop_bad_rows": True}
    with refuses(cp.OptionError):
        cp.evaluate(log, **question, target=[half, half])
    with refuses(cp.OptionError):
        cp.evaluate(log, **QUESTION | {"target": ["chosen", cp.Chosen("chosen")], "action": "action"})
    for part in ("key", "segment"):
        with refuses(cp.OptionError):
            cp.evaluate(log, **QUESTION, **{part: ["user", "user"]})


def test_a_query_may_not_give_two_columns_one_name(log, tmp_path):
    doubled = "select *, 0.5 * new as {} from log"
    with duckdb.connect(tmp_path / "log.duckdb") as connection:
        connection.execute("create table log as select * from log")
        for name in ("new", "New"):
            with refuses(cp.ColumnError):
                cp.evaluate(connection, query=doubled.format(name), **QUESTION)
    joined = "select * from log as a join log as b on a.id = b.id"
    with refuses(cp.ColumnError):
        cp.evaluate(str(tmp_path / "log.duckdb"), query=joined, **QUESTION)
    with refuses(cp.ColumnError):
        cp.evaluate(duckdb.sql(doubled.format("new")), **QUESTION)


def test_large_clusters_are_the_same_clusters_in_sqlite(log):
    """SQLite's MOD computes in float64, in which whole numbers beyond 2⁵³ are no longer exact."""
    ibis = pytest.importorskip("ibis")
    log = log.with_columns(user=2**62 + 1_000_003 * pl.col("user"), negative=-(2**60) - 7 * pl.col("user"))
    lite = ibis.sqlite.connect()
    lite.create_table("log", log.to_arrow())
    for cluster in ("user", "negative", "negative - 1"):
        found = cp.evaluate(lite.table("log"), **QUESTION, cluster=cluster, groups=50)
        expected = cp.evaluate(log, **QUESTION, cluster=cluster, groups=50)
        key = ("new", "")
        np.testing.assert_array_equal(found.moments.moments[key].n, expected.moments.moments[key].n)
        same(found, expected)
    lite.disconnect()


def test_clusters_in_sqlite_may_be_missing(log):
    ibis = pytest.importorskip("ibis")
    log = log.with_columns(user=pl.when(pl.int_range(pl.len()) > 20).then(2**60 + pl.col("user")))
    lite = ibis.sqlite.connect()
    lite.create_table("log", log.head(0).to_arrow())  # ibis would write whole numbers with nulls as floats
    lite.con.executemany(f"insert into log values ({', '.join('?' * log.width)})", log.rows())
    question = QUESTION | {"cluster": "user", "drop_bad_rows": True}
    same(cp.evaluate(lite.table("log"), **question), cp.evaluate(log, **question))
    lite.disconnect()


TIMES = """
import sys
import duckdb, ibis, polars as pl
import counterpoise as cp

log = pl.read_parquet(sys.argv[1])
question = {"reward": "reward", "propensity": "propensity", "target": "new"}
berlin = log.with_columns(pl.col("time").dt.convert_time_zone("Europe/Berlin"))
with duckdb.connect(sys.argv[2]) as connection:
    connection.execute("create table if not exists log as select * from berlin")
sources = [(log, {}), (berlin, {}), (berlin.to_arrow(), {}), (sys.argv[1], {}), (berlin.lazy(), {}),
           (duckdb.sql("select * from log"), {}), (sys.argv[2], {"table": "log"})]
if len(sys.argv) > 3:
    connection = ibis.connect(sys.argv[3])
    connection.create_table("timed", berlin.to_arrow(), overwrite=True)
    sources.append((sys.argv[3], {"table": "timed"}))
for source, where in sources:
    print(cp.evaluate(source, **question, segment="time", **where).moments.segments)
for source, where in [(log, {}), *sources[6:]]:  # days as the connections that we open count them
    print(cp.evaluate(source, **question, segment="CAST(time AS DATE)", **where).moments.segments)
if len(sys.argv) > 3:
    connection.drop_table("timed")
"""


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_times_are_labeled_in_utc_whatever_the_zone_of_the_process(log, tmp_path, zone):
    hour = pl.int_range(pl.len()) % 2 * 14 + 1
    log = log.with_columns(time=pl.datetime(2026, 10, 25, hour, time_zone="UTC"))
    log.write_parquet(tmp_path / "log.parquet")
    server = os.environ.get("COUNTERPOISE_POSTGRES") if find_spec("psycopg") else None
    # a file: DuckDB takes `python -c` for a terminal, and shows a slow machine its progress
    script = tmp_path / "times.py"
    script.write_text(TIMES)
    command = [sys.executable, "-W", "ignore", script, tmp_path / "log.parquet", tmp_path / "log.duckdb"]
    command += [server] if server else []
    done = subprocess.run(command, env=os.environ | {"TZ": zone}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *times, day, file_day = done.stdout.splitlines()[: None if not server else -1]
    assert set(times) == {str((("2026-10-25 01:00:00+00:00",), ("2026-10-25 15:00:00+00:00",)))}
    assert day == file_day == str((("2026-10-25",),))
    assert done.stdout.splitlines()[-1] == day


def test_tables_in_ibis_memory_are_logs(log):
    ibis = pytest.importorskip("ibis")
    question = QUESTION | {"segment": "country", "where": "device = 1"}
    expected = cp.evaluate(log, **question)
    for data in (log, log.to_arrow(), log.to_pandas()):
        same(cp.evaluate(ibis.memtable(data), **question), expected)
    same(cp.evaluate(ibis.memtable(log).filter(ibis._.device == 1), **question), expected)
    policy = planted.a_policy(log)
    same(
        cp.evaluate(ibis.memtable(log), **planted.POLICY, target={"clf": policy}),
        cp.evaluate(log, **planted.POLICY, target={"clf": policy}),
    )


DIGITS = 60  # more than the 38 that decimals of 128 bits have


def test_decimals_of_256_bits_are_numbers_in_arrow(log, tmp_path):
    pa = pytest.importorskip("pyarrow")
    log = log.with_columns(user=pl.col("user").cast(pl.String))
    table = log.to_arrow()
    for name, digits in (("reward", 20), ("propensity", 20), ("new", 20), ("user", 0)):
        values = pa.array([Decimal(str(value)) for value in log[name]], pa.decimal256(DIGITS, digits))
        table = table.set_column(table.column_names.index(name), name, values)
    for question in (QUESTION, QUESTION | {"cluster": "user", "target": "0.5 * new", "where": "new < 0.5"}):
        same(cp.evaluate(table, **question), cp.evaluate(log, **question))
    pandas = pytest.importorskip("pandas")
    same(cp.evaluate(table.to_pandas(types_mapper=pandas.ArrowDtype), **QUESTION), cp.evaluate(log, **QUESTION))
    import pyarrow.parquet

    pyarrow.parquet.write_table(table, tmp_path / "log.parquet")
    with refuses(cp.ColumnError):
        cp.evaluate(tmp_path / "log.parquet", **QUESTION)


def test_decimals_of_many_digits_are_numbers_in_postgresql(postgres, log):
    ibis = pytest.importorskip("ibis")
    connection = ibis.connect(postgres)
    connection.create_table("digits", log.to_arrow(), overwrite=True)
    wide = f'select *, new::numeric({DIGITS}, 20) as "n w", "user"::numeric({DIGITS}, 0) as id2 from digits'
    try:
        question = QUESTION | {"cluster": "id2", "segment": "device"}
        expected = cp.evaluate(log.with_columns(id2=pl.col("user").cast(pl.String)), **question)
        found = cp.evaluate(postgres, query=wide, **question | {"target": {"new": "n w"}})
        same(found, expected)
        half = QUESTION | {"target": {"new": '0.5 * "n w"'}}
        same(cp.evaluate(postgres, query=wide, **half), cp.evaluate(log, **QUESTION | {"target": {"new": "0.5 * new"}}))
    finally:
        connection.drop_table("digits")
        connection.disconnect()


def test_segments_of_floating_point_numbers_work_in_sqlite(tmp_path):
    import sqlite3

    rows = [(k % 2, 0.5, 0.4 + k % 3 / 10, None if k % 4 == 0 else k % 4 / 2) for k in range(200)]
    with closing(sqlite3.connect(tmp_path / "log.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE log (r REAL, p REAL, t REAL, size REAL)")
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", rows)
    parts = {"reward": "r", "propensity": "p", "target": "t", "segment": "size", "estimator": "ips"}
    found = cp.evaluate(f"sqlite://{tmp_path / 'log.sqlite'}", table="log", **parts)
    here = cp.evaluate(pl.DataFrame(rows, schema=["r", "p", "t", "size"], orient="row"), **parts)
    assert {key: one.n for key, one in found.estimates.items()} == {key: one.n for key, one in here.estimates.items()}
