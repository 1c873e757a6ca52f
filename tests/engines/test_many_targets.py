"""Many targets in a database: a statement knows its own targets, and bad rows are still those of any target."""

import planted
import polars as pl
import pytest
from conftest import sampled
from messages import refuses

import counterpoise as cp
from counterpoise.engines import pushdown

duckdb = pytest.importorskip("duckdb")

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option"),  # ibis sets it, pandas 3 regrets it
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

COLUMNS = {"reward": "reward", "propensity": "propensity"}
NAMES = [*(f"t{k}" for k in range(12)), "t24"]
TARGETS = {f"blend {k}": f"{k / 25} * new + {1 - k / 25} * old" for k in range(25)}


@pytest.fixture
def clean():
    return planted.a_log(2000, bad=False)


@pytest.fixture
def statements(monkeypatch):
    """The statements that DuckDB is asked, as they are asked."""
    asked = []
    collect = pushdown.collect

    def collected(frame):
        asked.append(frame.to_native().sql_query())
        return collect(frame)

    monkeypatch.setattr(pushdown, "collect", collected)
    return asked


def assert_same(found, expected):
    mine, theirs = planted.numbers("", found), planted.numbers("", expected)
    assert mine.keys() == theirs.keys()
    for key, values in theirs.items():
        if "diagnostics" not in key:
            assert mine[key][:2] == pytest.approx(values[:2], rel=1e-9, abs=1e-12, nan_ok=True), key
        # fourth powers of weights that are near 0 in every row keep fewer digits, and intervals go by them
        assert mine[key] == pytest.approx(values, rel=1e-8, abs=1e-12, nan_ok=True), key
    assert (found.n, found.dropped_rows) == (expected.n, expected.dropped_rows)


def bad(log, kind):
    """25 targets as columns, some of whose rows are bad."""
    row = pl.int_range(pl.len())
    wide = log.with_columns((k / 25 * pl.col("new")).alias(f"t{k}") for k in range(25))
    if kind == "rows bad for all targets":
        return wide.with_columns(pl.when(row % 100 > 0).then(f"t{k}").alias(f"t{k}") for k in range(25))
    if kind == "rows bad for one target each":
        return wide.with_columns(pl.when(row != 3 * k).then(f"t{k}").otherwise(1.5).alias(f"t{k}") for k in range(25))
    if kind == "rows bad whatever the target":
        return wide.with_columns(propensity=pl.when(row % 90 > 0).then("propensity").otherwise(0.0))
    return wide.with_columns(t24=pl.when(row > 7).then("t24").otherwise(float("nan")))


KINDS = ("rows bad for all targets", "rows bad for one target each", "rows bad whatever the target", "one bad target")


def asked_for_each_number_of_targets(log, statements, kind, *numbers):
    wide = bad(log, kind) if kind else bad(log, "none").drop("t24")  # noqa: F841 - DuckDB reads it by its name
    for k in numbers:
        statements.clear()
        names = [f"t{j}" for j in range(k)]
        cp.evaluate(duckdb.sql("select * from wide"), **COLUMNS, target=names, drop_bad_rows=True)
        yield len(statements), max(map(len, statements))


@pytest.mark.once
@pytest.mark.parametrize(
    "kind", sampled([None, "rows bad for all targets", "rows bad whatever the target"], "rows bad for all targets")
)
def test_a_statement_is_no_longer_for_many_targets_than_for_ten(clean, statements, kind):
    (_, ten), (many, longest) = asked_for_each_number_of_targets(clean, statements, kind, 10, 24)
    assert longest <= 1.3 * ten
    assert many <= 24 + 11  # one of them for the rewards of dropped rows


@pytest.mark.once
@pytest.mark.parametrize("kind", sampled(KINDS, "rows bad for one target each"))
@pytest.mark.parametrize("more", [{}, {"segment": "country", "cluster": "user", "key": "id"}])
def test_a_row_bad_for_one_target_is_left_out_for_all(clean, kind, more):
    log = bad(clean, kind)
    question = COLUMNS | {"target": NAMES, "drop_bad_rows": True} | more
    assert_same(cp.evaluate(duckdb.sql("select * from log"), **question), cp.evaluate(log, **question))


@pytest.mark.once
@pytest.mark.parametrize("kind", sampled(KINDS, "rows bad for one target each"))
def test_many_comparisons_leave_the_same_rows_out(clean, kind):
    log = bad(clean, kind)
    question = COLUMNS | {"target": NAMES, "against": "t3", "drop_bad_rows": True}
    assert_same(cp.compare(duckdb.sql("select * from log"), **question), cp.compare(log, **question))


@pytest.mark.thorough
@pytest.mark.once
def test_models_expressions_and_chosen_actions_agree_when_there_are_many(clean):
    log = clean.with_columns((pl.col("value") + k).alias(f"v{k}") for k in range(12))
    log = log.with_columns(v7=pl.when(pl.int_range(pl.len()) % 50 > 0).then("v7"), old=pl.col("old") * (1 + 1e-12))
    targets = [f"{k / 12} * new" for k in range(12)]
    question = COLUMNS | {"target": targets, "drop_bad_rows": True, "model_reward": "model"}
    question |= {"model_value": [f"v{k}" for k in range(12)]}
    assert_same(cp.evaluate(duckdb.sql("select * from log"), **question), cp.evaluate(log, **question))
    question = COLUMNS | {
        "target": TARGETS | {"chosen": cp.Chosen("chosen")},
        "action": "action",
        "drop_bad_rows": True,
    }
    assert_same(cp.evaluate(duckdb.sql("select * from log"), **question), cp.evaluate(log, **question))


@pytest.mark.once
def test_what_is_wrong_is_said_once_and_in_order(clean):
    log = bad(clean, "rows bad whatever the target").with_columns(  # noqa: F841 - DuckDB reads it by its name
        t2=pl.when(pl.int_range(pl.len()) != 5).then("t2"), t20=pl.lit(2.0)
    )
    with pytest.raises(cp.LogError) as error:
        cp.evaluate(duckdb.sql("select * from log"), **COLUMNS, target=[f"t{k}" for k in range(25)])
    said = [part.split(" must ")[0] for part in str(error.value).removeprefix("of 2,000 rows: ").split(" Also: ")]
    assert said == ["propensity 'propensity'", "target 't2'", "target 't20'"]
    assert "propensity 'propensity' must lie in (0, 1]: 23 rows do not" in str(error.value)
    question = COLUMNS | {"target": [f"t{k}" for k in range(25)], "drop_bad_rows": True}
    with refuses(cp.LogError):
        cp.evaluate(duckdb.sql("select * from log"), **question)


@pytest.mark.parametrize("wrong", ["nothing", "new + nothing", "country"])
def test_a_mistake_in_the_last_target_is_found_before_the_first_statement(clean, statements, wrong):
    relation = duckdb.sql("select * from clean")
    with pytest.raises(cp.ColumnError, match=wrong[-7:]):
        cp.evaluate(relation, **COLUMNS, target=TARGETS | {"last": wrong})
    assert statements == []


def test_postgresql_agrees_on_many_targets(postgres, clean):
    ibis = pytest.importorskip("ibis")
    connection = ibis.connect(postgres)
    try:
        for kind, more in (
            ("rows bad for all targets", {"segment": "country", "cluster": "user"}),
            ("one bad target", {}),
        ):
            log = bad(clean, kind)
            connection.create_table("many targets", log.to_arrow(), overwrite=True)
            question = COLUMNS | {"target": NAMES, "drop_bad_rows": True} | more
            assert_same(cp.evaluate(postgres, table="many targets", **question), cp.evaluate(log, **question))
    finally:
        connection.drop_table("many targets", force=True)
        connection.disconnect()


@pytest.mark.once
@pytest.mark.parametrize("targets", [1, 10])
def test_a_clean_log_takes_two_statements_and_the_answer_says_so(clean, statements, targets):
    """One for the first rewards and the largest weights, one for the sums, which show that no row is bad."""
    wide = bad(clean, "none").drop("t24")
    names = [f"t{k}" for k in range(targets)]
    found = cp.evaluate(duckdb.sql("select * from wide"), **COLUMNS, target=names)
    assert found.queries == len(statements) == 2
    assert cp.evaluate(wide, **COLUMNS, target=names).queries == 0
    assert_same(found, cp.evaluate(wide, **COLUMNS, target=names))


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS)
def test_a_log_with_bad_rows_takes_few_statements_more(clean, statements, kind):
    wide = bad(clean, kind)  # noqa: F841 - DuckDB reads it by its name
    found = cp.evaluate(duckdb.sql("select * from wide"), **COLUMNS, target=["t0", "t3", "t24"], drop_bad_rows=True)
    # the two that find it unclean, the sums of good rows, who is to blame, the rewards left out, and the weights of good rows
    assert found.queries == len(statements) <= 6


@pytest.mark.once
def test_a_weight_too_large_to_be_squared_is_found_by_its_propensity(clean):
    """No other sum shows it: its probabilities are fine by themselves, and its fourth power is a number."""
    row = pl.int_range(pl.len())
    odd = clean.with_columns(propensity=pl.when(row == 7).then(1e-55).otherwise("propensity"))
    question = COLUMNS | {"target": "new", "drop_bad_rows": True}
    assert odd["new"][7] > 1e-5
    assert cp.evaluate(duckdb.sql("select * from odd"), **question).dropped_rows == 1


def test_postgresql_is_asked_so_that_its_processes_share_the_work(postgres, clean, monkeypatch):
    """No limit, no cursor, no table that is written down first: each of those leaves the work to one process."""
    psycopg, ibis = pytest.importorskip("psycopg"), pytest.importorskip("ibis")
    connection, plans = ibis.connect(postgres), []
    execute = psycopg.Cursor.execute

    def planned(cursor, query, *more, **options):
        if "SUM(" in str(query) or 'AS "place"' in str(query):
            execute(cursor, "SET LOCAL parallel_setup_cost = 0")
            execute(cursor, "SET LOCAL parallel_tuple_cost = 0")
            execute(cursor, "SET LOCAL min_parallel_table_scan_size = 0")
            plans.append("\n".join(line for (line,) in execute(cursor, f"EXPLAIN {query}").fetchall()))
        return execute(cursor, query, *more, **options)

    try:
        connection.create_table("shared work", clean.to_arrow(), overwrite=True)
        connection.raw_sql('ANALYZE "shared work"')
        connection.con.commit()
        monkeypatch.setattr(psycopg.Cursor, "execute", planned)
        found = cp.evaluate(postgres, table="shared work", **COLUMNS, target=["new", "0.5 * old"], where="device < 2")
        monkeypatch.undo()
        assert found.queries == len(plans) == 2
        assert all("Gather" in plan for plan in plans), plans
    finally:
        connection.drop_table("shared work", force=True)
        connection.disconnect()
