"""One log with planted bad rows × every source: all estimates, errors, diagnostics and counts agree to 1e-9."""

import gzip
import math
import urllib.parse
import uuid

import planted
import polars as pl
import pytest
from conftest import sampled
from messages import refuses

import counterpoise as cp
from counterpoise.engines import registry
from counterpoise.readers import connections as sql

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option"),  # ibis sets it, pandas 3 regrets it
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ODD = "we ird\"; drop table' é"


@pytest.fixture(scope="module")
def log():
    return planted.a_log()


@pytest.fixture(scope="module")
def expected(log):
    return planted.answers(log)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), key


def test_the_planted_rows_are_dropped_and_counted(expected, log):
    bad = {row["id"] for row in log.filter(pl.col("propensity").is_null()).to_dicts()}
    assert len(bad) == 1
    assert expected["everything rows"] == [4000 - len(planted.BAD), len(planted.BAD)]
    finite = [value for key, values in expected.items() if "ips" in key for value in values if math.isfinite(value)]
    assert len(finite) > 300


def csv_gz(log, folder):
    log.write_csv(folder / "log.csv")
    with gzip.open(folder / "log.csv.gz", "wb") as file:
        file.write((folder / "log.csv").read_bytes())
    return folder / "log.csv.gz"


def hive(log, folder):
    for device in (0, 1):
        (folder / f"device={device}").mkdir()
        part = log.filter(pl.col("device") == device).drop("device")
        for k in range(2):
            part[k::2].write_parquet(folder / f"device={device}" / f"{k}.parquet")
    return folder


def written(ending, write):
    def make(log, folder):
        write(log, folder / f"log{ending}")
        return str(folder / f"log{ending}")

    return make


def pieces(log, folder):
    for k in range(5):
        log[k * 800 : (k + 1) * 800].write_parquet(folder / f"day {k}.parquet")
    return folder


IN_PROCESS = {
    "arrays": lambda log, folder: {name: log[name].to_numpy() for name in log.columns},
    "pandas": lambda log, folder: log.to_pandas(),
    "polars lazy": lambda log, folder: log.lazy(),
    "pyarrow": lambda log, folder: log.to_arrow(),
    "parquet": written(".parquet", pl.DataFrame.write_parquet),
    "parquet folder": hive,
    "glob": lambda log, folder: f"{pieces(log, folder)}/*.parquet",
    "list of files": lambda log, folder: sorted(pieces(log, folder).iterdir()),
    "csv": written(".csv", pl.DataFrame.write_csv),
    "csv.gz": csv_gz,
    "arrow": written(".arrow", pl.DataFrame.write_ipc),
    "json lines": written(".jsonl", pl.DataFrame.write_ndjson),
}


# one of each engine; the others are other doors to the same, and asked about a NaN below
DOORS = ("arrays", "polars lazy", "parquet folder", "csv")


@pytest.mark.parametrize("source", sampled(IN_PROCESS, *DOORS))
def test_frames_and_files_agree(source, log, expected, tmp_path):
    assert_same(planted.answers(IN_PROCESS[source](log, tmp_path)), expected)


@pytest.mark.parametrize("source", ["parquet", "parquet folder", "csv"])
def test_files_that_are_not_read_at_once_agree(source, log, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "SHORT", 0)
    assert_same(planted.answers(IN_PROCESS[source](log, tmp_path)), expected)


def test_duckdb_agrees_as_a_relation(log, expected):
    duckdb = pytest.importorskip("duckdb")
    assert_same(planted.answers(duckdb.sql("select * from log")), expected)


def test_duckdb_agrees_as_connection_and_file(log, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "log.duckdb"
    with duckdb.connect(path) as connection:
        connection.execute(f'create table "{ODD.replace(chr(34), chr(34) * 2)}" as select * from log')
        assert_same(planted.sample(connection, table=ODD), planted.sample(log))
    query = f'select * from "{ODD.replace(chr(34), chr(34) * 2)}"'
    assert_same(planted.sample(str(path), query=query), planted.sample(log))


def test_a_view_of_duckdb_is_a_table_and_a_variable_is_none(log, monkeypatch):
    duckdb = pytest.importorskip("duckdb")
    question = planted.BASE | {"target": "new"}
    with duckdb.connect() as connection:
        connection.execute(
            "create table rows as select * from log; create schema shop; create view shop.seen as from rows"
        )
        assert cp.evaluate(connection, table=["shop", "seen"], **question).n == cp.evaluate(log, **question).n
        monkeypatch.setattr(sql, "frame", log.to_arrow(), raising=False)  # where DuckDB looks for variables
        with refuses(cp.LogError):
            cp.evaluate(connection, table="frame", **question)


@pytest.mark.thorough
def test_sqlite_through_ibis_agrees(log, expected, tmp_path):
    ibis = pytest.importorskip("ibis")
    connection = ibis.sqlite.connect(tmp_path / "log.sqlite")
    connection.create_table("log", log.to_arrow())
    assert_same(planted.answers(connection.table("log")), expected)
    connection.disconnect()


def test_text_clusters_are_the_same_clusters_in_databases(postgres, log):
    """Checksums of text are the same everywhere, as numbers are; where a database has none, the error says what to do."""
    ibis = pytest.importorskip("ibis")
    duckdb = pytest.importorskip("duckdb")
    log = log.with_columns(name=pl.format("usér {}", pl.col("user")))
    question = planted.BASE | {"target": "new", "cluster": "name"}
    expected = planted.numbers("", cp.evaluate(log, **question))
    assert_same(planted.numbers("", cp.evaluate(duckdb.sql("select * from log"), **question)), expected)
    connection = ibis.connect(postgres)
    connection.create_table("named", log.to_arrow(), overwrite=True)
    try:
        for cluster in ("name", "name || ''"):
            found = cp.evaluate(postgres, table="named", **question | {"cluster": cluster})
            assert_same(planted.numbers("", found), expected)
        uuids = 'select *, md5(name)::uuid as "i d", md5(name)::uuid::text as text from named'
        of_uuid, of_text = (
            cp.evaluate(postgres, query=uuids, **question | {"cluster": one}) for one in ("i d", "text")
        )
        assert_same(planted.numbers("", of_uuid), planted.numbers("", of_text))
    finally:
        connection.drop_table("named")
        connection.disconnect()
    lite = ibis.sqlite.connect()
    lite.create_table("named", log.to_arrow())
    with refuses(cp.ColumnError):
        cp.evaluate(lite.table("named"), **question)
    lite.disconnect()


def test_postgresql_agrees_as_table_and_as_query(postgres, log, expected):
    ibis = pytest.importorskip("ibis")
    connection = ibis.connect(postgres)
    connection.create_table(ODD, log.to_arrow(), overwrite=True)
    try:
        assert_same(planted.answers(postgres, table=ODD), expected)
        quoted = ODD.replace('"', '""')
        assert_same(planted.sample(postgres, query=f'select * from "{quoted}"'), planted.sample(log))
        policy = planted.a_policy(log)
        found = cp.evaluate(postgres, table=ODD, **planted.POLICY, target={"clf": policy})
        assert_same(
            planted.numbers("", found), planted.numbers("", cp.evaluate(log, **planted.POLICY, target={"clf": policy}))
        )
    finally:
        connection.drop_table(ODD)
        connection.disconnect()


def test_a_wrong_password_is_not_printed(postgres):
    parts = urllib.parse.urlsplit(postgres)
    for secret in ("hunter2", "p%40ss:word%2F"):
        url = f"postgresql://{parts.username}:{secret}@{parts.hostname}:{parts.port}{parts.path}"
        with refuses(cp.LogError) as error:
            cp.evaluate(url, table="log", reward="r", propensity="p", target="t")
        said = str(error.value) + repr(error.getrepr(showlocals=False, style="native"))
        assert secret not in said
        assert urllib.parse.unquote(secret) not in said
        assert error.value.__cause__ is None


def test_a_server_that_is_not_there_is_an_error_that_says_so():
    pytest.importorskip("psycopg")
    with refuses(cp.LogError) as error:
        cp.evaluate("postgresql://me:hunter2@127.0.0.1:1/db", table="t", reward="r", propensity="p", target="t")
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("secret", ["hunter2#x", "hunter2/x", "hunter2?x", "x:hunter2", "hunter2@x"])
def test_a_password_that_is_not_encoded_is_not_printed(secret):
    """Drivers take part of such a password for the port, and quote it."""
    pytest.importorskip("psycopg")
    with pytest.raises(cp.LogError) as error:
        cp.evaluate(f"postgresql://me:{secret}@127.0.0.1:1/db", table="t", reward="r", propensity="p", target="t")
    assert "hunter2" not in str(error.value) + repr(error.getrepr(showlocals=False, style="native"))


def test_wrong_tables_and_columns_in_postgresql_are_named(postgres, log):
    ibis = pytest.importorskip("ibis")
    connection = ibis.connect(postgres)
    connection.create_table("faults", log.to_arrow(), overwrite=True)
    question = {"propensity": "propensity", "target": "new", "reward": "reward"}
    try:
        with refuses(cp.LogError):
            cp.evaluate(postgres, table="nowhere", **question)
        with refuses(cp.ColumnError):
            cp.evaluate(postgres, table="faults", **question | {"reward": "rewards"})
        with refuses(cp.ColumnError):
            cp.evaluate(postgres, table="faults", **question | {"target": "new + nothing"})
        with refuses(cp.LogError):
            cp.evaluate(postgres, table="faults", **question)
        with refuses(cp.OptionError):
            cp.evaluate(postgres, table="faults", **question, groups=10)
    finally:
        connection.drop_table("faults")
        connection.disconnect()


def test_a_connection_dropped_in_the_middle_is_an_error_and_nothing_is_stored(postgres, log, tmp_path, monkeypatch):
    ibis, psycopg = pytest.importorskip("ibis"), pytest.importorskip("psycopg")
    from counterpoise.engines import pushdown

    # a database of its own: only its connections are dropped, and none of those that other tests have at the time
    name = f"dropped_{uuid.uuid4().hex}"
    server = psycopg.connect(postgres, autocommit=True)
    server.execute(f"create database {name}")
    postgres = urllib.parse.urlsplit(postgres)._replace(path=f"/{name}").geturl()
    connection = ibis.connect(postgres)
    connection.create_table("dropped", log.to_arrow(), overwrite=True)
    aggregate = pushdown.aggregate

    def drop_the_others(*arguments, **options):
        connection.raw_sql(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        ).close()
        return aggregate(*arguments, **options)

    monkeypatch.setattr(pushdown, "aggregate", drop_the_others)
    try:
        with refuses(cp.LogError):
            cp.evaluate(
                postgres, table="dropped", **planted.QUESTIONS["whole"], state=tmp_path / "state.json", batch="today"
            )
        assert not (tmp_path / "state.json").exists()
    finally:
        connection.disconnect()
        server.execute(f"drop database {name} with (force)")
        server.close()


# -- a NaN is missing ----------------------------------------------------------------------------------------------------------

CONDITIONS = ["x > 5", "NOT x > 5", "x IS NULL", "x <> 3 OR id < 50", "x / 2 > 1"]


def holes():
    """Numbers with a NaN in every seventh row."""
    log = pl.DataFrame({"id": range(700)}).with_columns(
        r=(pl.col("id") * 37 % 101 / 101),
        p=pl.lit(0.5),
        t=(pl.col("id") * 17 % 7 / 7),
        x=(pl.col("id") * 13 % 10).cast(float),
    )
    return log.with_columns(x=pl.when(pl.col("id") % 7 == 3).then(float("nan")).otherwise("x"))


def holed(source):
    """What depends on a column with NaN: how many rows meet conditions, the rows of segments, repeated keys."""
    asked = {"reward": "r", "propensity": "p", "target": "t"}
    met = [cp.evaluate(source, where=where, **asked) for where in CONDITIONS]
    found = {where: [one.n, one["t", "ips"].value] for where, one in zip(CONDITIONS, met, strict=True)}
    for segment in ("x", "CASE WHEN x > 5 THEN 1 WHEN x <= 5 THEN 2 ELSE 3 END"):
        one = cp.evaluate(source, segment=segment, **asked)
        found[segment] = sorted(one.segment_rows.values())
    found["key"] = [cp.evaluate(source, key="x", **asked).moments.duplicates]
    return found


def test_a_nan_is_missing_in_arrays():
    found = holed({name: holes()[name].to_numpy() for name in holes().columns})
    x = holes()["x"].to_list()
    assert found["x > 5"][0] == sum(one > 5 for one in x)
    assert found["NOT x > 5"][0] == sum(one <= 5 for one in x)
    assert found["x IS NULL"][0] == 100
    assert found["key"] == [700 - 11]


HOLED = [
    source for source in IN_PROCESS if source not in ("parquet folder", "glob", "list of files")
]  # which are parquet


@pytest.mark.parametrize("source", HOLED)
def test_a_nan_is_missing_whatever_the_source(source, tmp_path):
    log = holes().fill_nan(None) if source == "json lines" else holes()  # JSON has no NaN
    assert_same(holed(IN_PROCESS[source](log, tmp_path)), holed(holes()))


def test_a_nan_is_missing_in_databases(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    log = holes()
    assert_same(holed(duckdb.sql("select * from log")), holed(log))
    ibis = pytest.importorskip("ibis")
    connection = ibis.sqlite.connect(tmp_path / "log.sqlite")
    connection.create_table("log", log.fill_nan(None).to_arrow())
    assert_same(holed(connection.table("log")), holed(log))
    connection.disconnect()


def test_a_nan_is_missing_in_postgresql(postgres):
    ibis = pytest.importorskip("ibis")
    connection = ibis.connect(postgres)
    connection.create_table("holes", holes().to_arrow(), overwrite=True)
    try:
        assert_same(holed(connection.table("holes")), holed(holes()))
    finally:
        connection.drop_table("holes")
        connection.disconnect()
