"""The statement that `sql` writes, run by a database and read back by `from_sums`, gives the numbers of `evaluate`."""

import planted
import polars as pl
import pytest
from messages import refuses

import counterpoise as cp

QUESTIONS = {
    "everything": {key: value for key, value in planted.QUESTIONS["everything"].items() if key != "key"},
    "expression": planted.QUESTIONS["expression"],
    "whole": planted.QUESTIONS["whole"],
}


def columns(question):
    return {key: value for key, value in question.items() if key != "drop_bad_rows"}


def assert_same(found, expected):
    assert found.dropped_rows == expected.dropped_rows
    for key, one in expected.estimates.items():
        values = [one.value, one.stderr, *one.interval, one.n]
        other = found.estimates[key]
        assert [other.value, other.stderr, *other.interval, other.n] == pytest.approx(values, rel=1e-9, nan_ok=True), (
            key
        )
    for key, one in expected.all_diagnostics.items():
        assert found.all_diagnostics[key].max_weight == pytest.approx(one.max_weight, rel=1e-12)


@pytest.mark.parametrize("name", QUESTIONS)
def test_duckdb_runs_the_statement(name):
    duckdb = pytest.importorskip("duckdb")
    question = QUESTIONS[name]
    log = planted.a_log()
    with duckdb.connect() as connection:
        connection.execute('create table "the ""log""; x" as select * from log')
        text = cp.sql(dialect="duckdb", table='the "log"; x', **columns(question), center=100.0)
        answer = connection.sql(text).pl()
    expected = cp.evaluate(log, **question)
    assert_same(cp.evaluate(cp.from_sums(answer, **question)), expected)
    assert_same(cp.evaluate(cp.from_sums(answer.to_dicts(), **question)), expected)
    with refuses(cp.LogError):
        cp.from_sums(answer, **columns(question))


def test_the_statement_knows_chosen_actions():
    duckdb = pytest.importorskip("duckdb")
    log = pl.DataFrame(
        {"r": [1.0, 0.0, 1.0, 1.0], "p": [0.5, 0.5, 0.25, 0.5], "a": ["x", "y", "x", "y"], "b": ["x", "x", "x", None]}
    )
    question = {
        "reward": "r",
        "propensity": "p",
        "action": "a",
        "target": {"b": cp.Chosen("b"), "upper": cp.Chosen("lower(b)")},
    }
    with duckdb.connect() as connection:
        connection.register("logs", log)
        answer = connection.sql(cp.sql(dialect="duckdb", table="logs", **question)).pl()
    expected = cp.evaluate(log, **question, drop_bad_rows=True)
    assert expected.dropped_rows == 1
    assert_same(cp.evaluate(cp.from_sums(answer, **question, drop_bad_rows=True)), expected)


def test_postgresql_runs_the_statement(postgres):
    ibis = pytest.importorskip("ibis")
    connection = ibis.connect(postgres)
    log = planted.a_log()
    connection.create_table("the log", log.to_arrow(), overwrite=True)
    try:
        question = QUESTIONS["whole"]
        text = cp.sql(dialect="postgres", table="the log", **columns(question), center=100.0)
        cursor = connection.raw_sql(text)
        names = [column.name for column in cursor.description]
        answer = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        cursor.close()
        assert_same(cp.evaluate(cp.from_sums(answer, **question)), cp.evaluate(log, **question))
    finally:
        connection.drop_table("the log")
        connection.disconnect()


@pytest.mark.parametrize("dialect", ["bigquery", "snowflake", "trino", "clickhouse", "spark", "redshift", "mysql"])
def test_every_dialect_has_a_statement(dialect):
    pytest.importorskip("ibis")
    text = cp.sql(dialect=dialect, table=("shop", "logs"), reward="click", propensity="p", target="new", cluster="user")
    assert "SUM(" in text.upper()
    assert "shop" in text


def test_what_is_no_dialect_or_no_answer_is_refused():
    pytest.importorskip("ibis")
    with refuses(cp.OptionError):
        cp.sql(dialect="klingon", table="t", reward="r", propensity="p", target="t")
    with refuses(cp.LogError):
        cp.from_sums([{"a": 1}], reward="r", propensity="p", target="t")


def test_answers_to_another_question_or_around_a_far_center_are_refused():
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("ibis")
    log = planted.a_log(bad=False)
    question = {"reward": "reward + 1000000000", "propensity": "propensity", "target": "new", "cluster": "user"}

    def answer(rows=log, **changes):
        with duckdb.connect() as connection:
            connection.register("rows", rows)
            return connection.sql(cp.sql(dialect="duckdb", table="rows", **question | changes)).pl()

    with refuses(cp.LogError):
        cp.from_sums(answer(), **question)
    good = answer(center=1e9 + 100)
    found = cp.evaluate(cp.from_sums(good, **question))["new", "snips"].stderr
    assert found == pytest.approx(cp.evaluate(log, **question)["new", "snips"].stderr, rel=1e-6)
    as_text = [{name: str(value) for name, value in row.items()} for row in good.to_dicts()]
    assert cp.evaluate(cp.from_sums(as_text, **question))["new", "snips"].stderr == pytest.approx(found)
    with refuses(cp.LogError):
        cp.from_sums(good, **question, groups=7)
    with refuses(cp.LogError):
        cp.from_sums(good, **question | {"target": ["new", "old"]})
    with refuses(cp.LogError):
        cp.from_sums(good.with_columns(s0=pl.lit("x")), **question)
    with refuses(cp.LogError):
        cp.from_sums(answer(log.clear(), center=1e9 + 100), **question)
    with refuses(cp.OptionError):
        cp.from_sums(good, **question | {"cluster": None, "groups": 7})


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"reward": "click +"}, cp.ColumnError, "reward='click \\+' is not an SQL expression that duckdb understands"),
        ({"target": "(new"}, cp.ColumnError, r"target='\(new' is not an SQL expression"),
        ({"where": "country = 'DE"}, cp.ColumnError, 'where="country = \'DE" is not an SQL condition'),
        ({"where": "a >"}, cp.ColumnError, "where='a >' is not an SQL condition"),
        ({"where": "a > 0; drop table log"}, cp.ColumnError, "must be one condition, not a statement"),
        ({"reward": "(select 1); drop table log"}, cp.ColumnError, "must be one expression, not a statement"),
        ({"center": float("nan")}, cp.OptionError, "center=nan is not a number near the mean reward"),
        ({"center": float("inf")}, cp.OptionError, "center=inf is not a number"),
    ],
)
def test_what_is_no_sql_is_refused_by_the_name_of_its_part(wrong, kind, words):
    pytest.importorskip("ibis")
    asked = {"reward": "click", "propensity": "p", "target": "new"} | wrong
    with pytest.raises(kind, match=words):
        cp.sql(dialect="duckdb", table="logs", **asked)
