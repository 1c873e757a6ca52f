"""Databases, lazy frames and policies on logs that trap the unwary: the same numbers as a frame in memory, or an error."""

import math

import numpy as np
import planted
import polars as pl
import pytest
from sklearn.linear_model import LogisticRegression

import counterpoise as cp
from counterpoise.sources import frames, pushdown

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
    """Their rewards are worlds apart, so that sums around two centres would be added."""
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


def test_columns_with_our_own_names_stay_apart(log):
    ours = ["counterpoise expression 0", "expression 0", "chosen 0", "n", "u0", "k0", "g", "c", "t0", "row"]
    for name in ours[1:]:
        odd = log.with_columns(pl.col("old").alias(name))
        question = QUESTION | {"target": [name, "0.5*new"], "target_action": "chosen", "action": "action"}
        expected = cp.evaluate(odd, **question)
        assert expected[name, "ips"].value == cp.evaluate(log, **QUESTION | {"target": "old"})["old", "ips"].value
        same(cp.evaluate(duckdb.sql("select * from odd"), **question), expected)


def test_a_table_that_grows_between_statements_is_refused(log, monkeypatch):
    with duckdb.connect() as connection:
        connection.execute("create table growing as select * from log")
        split = pushdown.split

        def growing(request):
            for part in split(request):
                yield part
                connection.execute("insert into growing select * from growing limit 100")

        monkeypatch.setattr(pushdown, "split", growing)
        targets = {f"blend {k}": f"{k / 12} * new" for k in range(12)}
        with pytest.raises(cp.LogError, match="changed while it was read"):
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
    with pytest.raises(cp.LogError, match="200 rows do not"):
        cp.evaluate(some, **question | {"drop_bad_rows": False})
    words = some.with_columns(action=pl.format("a{}", "action"))
    good = log.drop_nulls()
    fitted = LogisticRegression().fit(good.select("x0", "x1").to_numpy(), [f"a{k}" for k in good["action"]])
    named = cp.evaluate(words, **question | {"target": {"clf": fitted}})
    assert named["clf", "snips"].value == pytest.approx(kept["clf", "snips"].value, rel=1e-6)
    with pytest.raises(cp.OptionError, match="same type"):
        cp.evaluate(words, **question | {"target": {"clf": policy}})


def test_no_target_disappears_behind_another_of_its_name(log):
    half = LogisticRegression()
    question = {**planted.POLICY, "drop_bad_rows": True}
    with pytest.raises(cp.OptionError, match="two targets are called 'LogisticRegression'"):
        cp.evaluate(log, **question, target=[half, LogisticRegression()])
    with pytest.raises(cp.OptionError, match="both called 'chosen'"):
        cp.evaluate(log, **QUESTION | {"target": "chosen", "target_action": "chosen", "action": "action"})
    for part in ("key", "segment"):
        with pytest.raises(cp.OptionError, match=f"{part} names a column twice"):
            cp.evaluate(log, **QUESTION, **{part: ["user", "user"]})
