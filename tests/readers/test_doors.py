"""Doors that stay shut: queries only read, conditions are one condition, connections of ours are read-only, secrets stay secret."""

import contextlib
import copy
import pickle
import re
import sqlite3
import uuid

import polars as pl
import pytest
from command_line import invoke, shop
from messages import refuses

import counterpoise as cp
from counterpoise.evaluation.doctor import doctor as examine
from counterpoise.log.addresses import forgetting_password, without_password
from counterpoise.log.log import Log
from counterpoise.readers import connections as sql

duckdb = pytest.importorskip("duckdb")
ibis = pytest.importorskip("ibis")

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option"),  # ibis sets it, pandas 3 regrets it
    pytest.mark.filterwarnings("ignore:fetch_arrow_table"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

QUESTION = {"reward": "click", "propensity": "p", "target": "pi_new"}

# every one was answered, or ran, before it was refused
WRITING = [
    "SELECT * FROM {t}; DELETE FROM {t} WHERE click = 0",
    "DELETE FROM {t} RETURNING *",
    "WITH gone AS (DELETE FROM {t} RETURNING *) SELECT * FROM gone",
    "INSERT INTO {t} SELECT * FROM {t} RETURNING *",
    "UPDATE {t} SET click = 0 RETURNING *",
    "CREATE TABLE more AS SELECT * FROM {t}",
    "COPY {t} TO '{out}'",
    "COPY (SELECT 1) TO '{out}'",
    "EXPORT DATABASE '{out}'",
    "EXPLAIN ANALYZE DELETE FROM {t}",
    "SELECT 1) AS q; DELETE FROM {t}; SELECT * FROM (SELECT 1",
    "",
    " ; ",
]
NOT_ONE = [
    "true LIMIT 7",
    "true UNION ALL SELECT * FROM {t}",
    "true ORDER BY click",
    "click = 1) OR (click = 0",
    "true; DELETE FROM {t}",
    "true AS x",
    "true, true",
    "exists (DELETE FROM {t} RETURNING 1)",
    "/* click = 1",
    "'click = 1",
    "",
]
NOT_AN_EXPRESSION = [
    "pi_new) AS x, (p",
    "pi_new AS x",
    "pi_new, p",
    "pi_new LIMIT 7",
    "pi_new FROM {t} UNION ALL SELECT p",
    "pi_new; DELETE FROM {t}",
    "pi_new) FROM {t}; DELETE FROM {t}; SELECT (p",
    "DISTINCT pi_new",
]


def value(result):
    return result.estimates["pi_new", "beta_ips", None].value


class Database:
    """A log in a database: how to name it, and how many rows it still has."""

    def __init__(self, log, table, count):
        self.log, self.table, self.count = log, table, count

    def __call__(self, **options):
        place = {} if "query" in options else {"table": self.table}
        return cp.evaluate(self.log, **place, **(QUESTION | options))


@contextlib.contextmanager
def stored(postgres):
    """The log on a PostgreSQL server, in a table of its own."""
    name = f"doors_{uuid.uuid4().hex[:12]}"
    connection = ibis.connect(postgres)
    connection.create_table(name, shop().to_arrow())
    try:
        yield Database(postgres, name, lambda: connection.table(name).count().execute())
    finally:
        connection.drop_table(name)
        connection.disconnect()


# everything below only reads, and most of it looks whether all rows are still there, so one log per place is enough
@pytest.fixture(scope="module")
def server(postgres):
    with stored(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The log in a DuckDB file."""
    place = tmp_path_factory.mktemp("file") / "log.duckdb"
    rows = shop()
    with duckdb.connect(place) as made:
        made.register("rows", rows.to_arrow())
        made.execute("create table log as select * from rows")

    def count():
        with duckdb.connect(place, read_only=True) as again:
            return again.execute("select count(*) from log").fetchone()[0]

    return Database(str(place), "log", count)


@pytest.fixture(scope="module")
def own():
    """The log on a DuckDB connection of the user's own, which may do anything."""
    connection = duckdb.connect()
    connection.register("rows", shop().to_arrow())
    connection.execute("create table log as select * from rows")
    yield Database(connection, "log", lambda: connection.execute("select count(*) from log").fetchall()[0][0])
    connection.close()


@pytest.fixture(params=["server", "file", "own"])
def database(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("query", WRITING)
def test_a_query_is_one_statement_that_only_reads(database, tmp_path, query):
    out = tmp_path / "out.csv"
    query = query.format(t=database.table, out=out)
    for ask in (lambda: database(query=query), lambda: examine(database.log, query=query)):
        with refuses(cp.OptionError):
            ask()
    assert database.count() == 2000
    assert not out.exists()


def test_queries_that_read_are_taken_as_they_are_written(database):
    name = database.table
    expected = cp.evaluate(shop(), **QUESTION)
    queries = [
        f"SELECT * FROM {name}",
        f"SELECT * FROM {name} ; ",
        f"-- all of it\nSELECT * FROM {name} -- yes",
        f"WITH part AS (SELECT * FROM {name}) SELECT * FROM part",
        f"(SELECT * FROM {name})",
        f"SELECT * FROM {name} WHERE click = 1 UNION ALL SELECT * FROM {name} WHERE click <> 1",
        f"SELECT *, ';' AS odd, 'DELETE FROM {name}' AS text FROM {name}",
    ]
    if database.log is not None and not str(database.log).startswith("postgres"):
        queries.append(f"FROM {name}")
    for query in queries:
        found = database(query=query)
        assert found.n == expected.n, query
        assert value(found) == pytest.approx(value(expected), rel=1e-9), query


def test_values_are_a_query(database):
    names = ("column1", "column2", "column3") if "postgres" in str(database.log) else ("col0", "col1", "col2")
    reward, propensity, target = names
    rows = "VALUES (1.0, 0.5, 0.9), (0.0, 0.5, 0.1), (1.0, 0.5, 0.8)"
    assert database(query=rows, reward=reward, propensity=propensity, target=target).n == 3


@pytest.mark.parametrize("command", ["evaluate", "doctor", "compare", "plan"])
def test_the_command_line_runs_no_second_statement(server, command):
    more = {"compare": ["--against", "pi_old"], "plan": ["--difference", "0.1"]}.get(command, [])
    query = f"SELECT * FROM {server.table}; DELETE FROM {server.table} WHERE click = 0"
    done = invoke(command, server.log, "--query", query, *more)
    assert done.exit_code == 2
    assert "query must be one statement that only reads" in done.output
    assert server.count() == 2000


@pytest.mark.parametrize("where", NOT_ONE)
def test_a_condition_is_one_condition(database, where):
    with pytest.raises(cp.ColumnError):
        database(where=where.format(t=database.table))
    assert database.count() == 2000


@pytest.mark.parametrize("where", NOT_ONE)
def test_a_condition_on_a_file_or_frame_is_one_condition(tmp_path, where):
    shop().write_parquet(tmp_path / "log.parquet")
    where = where.format(t="self")
    for log in (shop(), shop().lazy(), tmp_path / "log.parquet"):
        for ask in (
            lambda log=log: cp.evaluate(log, **QUESTION, where=where),
            lambda log=log: examine(log, where=where),
        ):
            with pytest.raises(cp.ColumnError):
                ask()


@pytest.mark.parametrize("text", NOT_AN_EXPRESSION)
@pytest.mark.parametrize("part", ["target", "reward", "propensity", "segment", "cluster", "key"])
def test_an_expression_is_one_expression(own, text, part):
    with pytest.raises(cp.ColumnError):
        own(**{part: text.format(t=own.table)})
    assert own.count() == 2000


@pytest.mark.parametrize("text", NOT_AN_EXPRESSION)
def test_an_expression_is_one_expression_everywhere(database, tmp_path, text):
    shop().write_parquet(tmp_path / "log.parquet")
    with pytest.raises(cp.ColumnError):
        database(target=text.format(t=database.table))
    for log in (shop(), tmp_path / "log.parquet"):
        with pytest.raises(cp.ColumnError):
            cp.evaluate(log, **QUESTION | {"target": text.format(t="self")})
    assert database.count() == 2000


def test_what_is_one_expression_is_computed(database):
    rows = shop().filter(pl.col("country") == "DE")
    expected = cp.evaluate(rows, **QUESTION, segment="action")
    found = database(
        target={"pi_new": "pi_new + 0 * p -- a comment"},
        where="country = 'DE' OR false /* as written */",
        segment="action + 0",
    )
    assert found.n == expected.n
    assert value(found) == pytest.approx(value(expected), rel=1e-9)
    assert database(segment="CASE WHEN country IN ('DE', 'a;b') THEN 1 ELSE 0 END").n == 2000
    assert database(reward="click - avg(click) OVER ()").n == 2000


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory):
    """The log in an SQLite file."""
    place = tmp_path_factory.mktemp("sqlite") / "log.sqlite"
    made = ibis.sqlite.connect(place)
    made.create_table("log", shop().to_arrow())
    made.disconnect()

    def count():
        with contextlib.closing(sqlite3.connect(place)) as again:
            return again.execute("select count(*) from log").fetchone()[0]

    return Database(f"sqlite://{place}", "log", count)


@pytest.mark.parametrize("reading", ["(SELECT avg(click) FROM {t})", "exists (SELECT 1 FROM {t})", "(SELECT 1)"])
@pytest.mark.parametrize("kind", ["server", "file", "own", "sqlite"])
def test_conditions_and_expressions_look_at_no_other_table(kind, reading, request):
    database = request.getfixturevalue(kind)
    reading = reading.format(t=database.table)
    parts = ({"where": f"click >= {reading}"}, {"reward": f"click + {reading}"}, {"target": f"pi_new * {reading}"})
    for part in (*parts, {"segment": reading}, {"cluster": reading}):
        with refuses(cp.ColumnError):
            database(**part)


@pytest.mark.parametrize(
    "text", ["max(click)", "count(*)", "click - avg(click)", "total(click)", "group_concat(click)"]
)
@pytest.mark.parametrize("part", ["reward", "target", "propensity", "segment", "cluster"])
def test_sqlite_takes_no_aggregates(sqlite, text, part):
    with refuses(cp.ColumnError):
        sqlite(**{part: text})


def test_sqlite_takes_what_gives_a_value_per_row(sqlite):
    assert sqlite(reward="max(click, 0)").n == 2000
    assert sqlite(reward="click - avg(click) OVER ()").n == 2000
    with refuses(cp.CounterpoiseError):
        sqlite(where="max(click) > 0")


def test_an_expression_makes_no_rows(server, own):
    """One that unfolds a list would count rows twice."""
    with pytest.raises(cp.ColumnError):
        server(reward="click + 0 * generate_series(1, 2)")
    with pytest.raises(cp.ColumnError):
        own(reward="click + 0 * unnest([1, 2])")
    with pytest.raises(cp.ColumnError):
        own(target="COLUMNS('pi_.*')")


@pytest.mark.parametrize(
    "reading",
    [
        "(SELECT content FROM read_text('{path}')) <> ''",
        "exists (FROM read_csv('{path}'))",
        "exists (SELECT * FROM '{path}')",
        "exists (FROM glob('{folder}/*'))",
        "exists (FROM query('SELECT 1'))",
        "click IN (SELECT 1 FROM read_blob('{path}'))",
        "exists (WITH x AS (FROM read_text('{path}')) FROM x)",
    ],
)
def test_conditions_and_expressions_read_no_files(file, own, tmp_path, reading):
    path = tmp_path / "secret.csv"
    path.write_text("a\n1\n")
    reading = reading.format(path=path, folder=tmp_path)
    for database in (file, own):
        for part in (
            {"where": reading},
            {"segment": reading},
            {"target": f"CASE WHEN {reading} THEN pi_new ELSE p END"},
        ):
            with refuses(cp.ColumnError):
                database(**part)


@pytest.mark.parametrize(
    "reading",
    [
        "exists (select * from read_csv('{path}'))",
        "click in (select a from read_csv('{path}'))",
        "(select max(a) from read_csv('{path}')) = 1",
    ],
)
def test_conditions_on_frames_read_no_files(tmp_path, reading):
    path = tmp_path / "secret.csv"
    path.write_text("a\n1\n")
    reading = reading.format(path=path)
    asks = (
        lambda: cp.evaluate(shop(), **QUESTION, where=reading),
        lambda: cp.evaluate(shop(), **QUESTION, segment=reading),
        lambda: examine(shop(), where=reading),
    )
    for ask in asks:
        with pytest.raises(cp.ColumnError):
            ask()


def test_a_query_on_our_duckdb_connection_reads_no_files(file, tmp_path):
    for query in ("FROM read_text('/etc/hostname')", "FROM '/etc/passwd.csv'", "FROM glob('/etc/*')"):
        with refuses(cp.LogError):
            file(query=query)


def test_a_view_over_files_needs_external_access_and_the_error_says_so(tmp_path):
    shop().write_parquet(tmp_path / "log.parquet")
    place = tmp_path / "views.duckdb"
    with duckdb.connect(place) as made:
        made.execute(f"create view log as from '{tmp_path / 'log.parquet'}'")
    with refuses(cp.LogError):
        cp.evaluate(place, table="log", **QUESTION)
    assert cp.evaluate(place, table="log", **QUESTION, external_access=True).n == 2000
    refused = invoke("evaluate", place, "--table", "log")
    assert refused.exit_code == 2
    assert "--external-access" in refused.output
    for command, *more in (
        ["evaluate"],
        ["doctor"],
        ["compare", "--against", "pi_old"],
        ["plan", "--difference", "0.1"],
    ):
        done = invoke(command, place, "--table", "log", "--external-access", "--target", "pi_new", *more)
        assert done.exit_code == 0, done.output


def test_external_access_is_for_duckdb_files(own, tmp_path):
    shop().write_parquet(tmp_path / "log.parquet")
    for log in (shop(), tmp_path / "log.parquet", "postgresql://me@127.0.0.1:1/db"):
        with refuses(cp.OptionError):
            cp.evaluate(log, **QUESTION, external_access=True)
    with refuses(cp.OptionError):
        own(external_access=True)


def test_our_postgresql_connection_is_one_read_only_snapshot(postgres):
    """Even a function of the server's that writes cannot, and every statement sees the same rows."""
    with stored(postgres) as server, sql.connection_to(Log(server.log)) as asked:
        connection = asked.place
        shown = [
            connection.con.execute(f"SHOW {name}").fetchone()[0]
            for name in ("transaction_read_only", "transaction_isolation")
        ]
        assert shown == ["on", "repeatable read"]
        before = connection.table(server.table).count().execute()
        writer = ibis.connect(server.log)
        writer.raw_sql(f"DELETE FROM {server.table} WHERE click = 0").close()
        writer.con.commit()
        assert connection.table(server.table).count().execute() == before == 2000
        writer.disconnect()
    assert connection.con.closed


def test_a_function_that_writes_is_refused_by_the_server(server):
    owner = ibis.connect(server.log)
    name = f"{server.table}_gone"
    body = f"DELETE FROM {server.table}; SELECT 1.0::float8"
    owner.con.execute(f"CREATE FUNCTION {name}() RETURNS float8 LANGUAGE sql AS $$ {body} $$")
    try:
        for ask in (
            lambda: server(where=f"{name}() = 1"),
            lambda: server(reward=f"{name}()"),
            lambda: server(query=f"SELECT *, {name}() FROM {server.table}"),
        ):
            with refuses(cp.CounterpoiseError):
                ask()
        assert server.count() == 2000
    finally:
        owner.con.execute(f"DROP FUNCTION {name}")
        owner.disconnect()


def test_our_duckdb_connection_is_read_only_and_closed(file):
    with sql.connection_to(Log(file.log)) as asked, pytest.raises(duckdb.InvalidInputException, match="read-only"):
        asked.place.execute("delete from log")
    for log in (file.log, f"duckdb://{file.log}"):
        assert cp.evaluate(log, table="log", **QUESTION).n == 2000
        duckdb.connect(file.log).close()  # for writing: nobody holds the file any more


def test_a_duckdb_file_that_is_open_already_is_asked_through_its_connection(file):
    with duckdb.connect(file.log, read_only=True) as theirs:
        with refuses(cp.LogError):
            file()
        assert cp.evaluate(theirs, table="log", **QUESTION).n == 2000


@pytest.mark.parametrize("parts", [{}, {"segment": "day"}, {"cluster": "user"}], ids=str)
def test_a_text_among_the_numbers_of_sqlite_is_a_bad_row(tmp_path, parts):
    """Its columns hold what is put there, whatever their type; such a row comes up even where the first rewards are looked at."""
    place = tmp_path / "log.sqlite"
    with contextlib.closing(sqlite3.connect(place)) as made:
        made.execute("CREATE TABLE log (click REAL, p REAL, new REAL, day INTEGER, user INTEGER)")
        rows = [("lost" if k == 40 else k % 2, 0.5, 0.25 + k % 3 / 4, k % 2, k // 5) for k in range(200)]
        made.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?)", rows)
        made.commit()
    question = {"table": "log", "reward": "click", "propensity": "p", "target": "new", **parts}
    result = cp.evaluate(f"sqlite://{place}", **question, drop_bad_rows=True)
    assert (result.n, result.dropped_rows) == (199, 1)


def test_our_sqlite_connection_is_read_only(tmp_path):
    place = tmp_path / "log.sqlite"
    made = ibis.sqlite.connect(place)
    made.create_table("log", shop().to_arrow())
    made.disconnect()
    address = f"sqlite://{place}"
    with sql.connection_to(Log(address)) as asked, pytest.raises(Exception, match="readonly"):
        asked.place.con.execute("delete from log")
    assert cp.evaluate(address, table="log", **QUESTION, where="country = 'DE'").n > 0
    for query in ("SELECT * FROM log; DELETE FROM log", "DELETE FROM log RETURNING *"):
        with refuses(cp.OptionError):
            cp.evaluate(address, query=query, **QUESTION)
    with pytest.raises(cp.LogError):
        cp.evaluate(f"sqlite://{tmp_path / 'none.sqlite'}", table="log", **QUESTION)
    assert not (tmp_path / "none.sqlite").exists()


def test_a_users_own_connection_is_not_changed(own, server):
    setting = "select value from duckdb_settings() where name = 'enable_external_access'"
    own(where="click >= 0", target="pi_new + 0")
    assert own.log.execute(setting).fetchall() == [("true",)]
    own.log.execute("create table still as select 1").fetchall()
    theirs = ibis.connect(server.log)
    table = theirs.table(server.table)
    assert cp.evaluate(table, **QUESTION, where="click >= 0", segment="action + 0").n == 2000
    assert theirs.con.autocommit
    assert not theirs.con.closed
    assert theirs.con.execute("SHOW transaction_read_only").fetchone() == ("off",)
    with refuses(cp.OptionError):
        cp.evaluate(theirs, query=f"DELETE FROM {server.table} RETURNING *", **QUESTION)
    with pytest.raises(cp.ColumnError):
        cp.evaluate(table, **QUESTION, where="true LIMIT 7")
    assert server.count() == 2000
    theirs.disconnect()


ADDRESSES = [
    "postgresql:/me:hunter2@db.example/shop",
    "postgresql:me:hunter2@db.example/shop",
    "postgresql//me:hunter2@db.example/shop",
    "postgresql;//me:hunter2@db.example/shop",
    "postgres:/me:hunter2/and@more@db.example/shop",
    "me:hunter2@db.example/shop",
    "postgresql:/me:hunter2 with spaces@db.example/shop",
    "postgresql:/me:hunter2'quoted@db.example/shop",
    "host=db.example user=me password=hunter2 dbname=shop",
    "host=db.example user=me password='hunter2 it\\'s' dbname=shop",
    "host=db.example user=me PASSWORD = hunter2",
    "postgresql:/db.example/shop?user=me&password=hunter2",
    "jdbc:postgresql:/db.example/shop?user=me&password=hunter2",
    "postgresql:/me:hunter%32@db.example/shop*.parquet",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_what_looks_like_an_address_is_never_shown_whole(address, tmp_path):
    shop().write_parquet(tmp_path / "log.parquet")
    asks = [
        lambda: cp.evaluate(address, **QUESTION),
        lambda: cp.evaluate([tmp_path / "log.parquet", address], **QUESTION),
        lambda: cp.evaluate(address, **QUESTION, table="log"),
        lambda: examine(address),
    ]
    for ask in asks:
        with pytest.raises(cp.CounterpoiseError) as error:
            ask()
        assert "hunter" not in str(error.value)
        assert "hunter" not in str(error.value.__cause__)
    with pytest.raises(cp.CounterpoiseError, match=re.escape("postgresql://user:…@host/database")):
        cp.evaluate(address, **QUESTION)
    for command in (["evaluate"], ["doctor"], ["learn", "--out", tmp_path / "p.safetensors"]):
        done = invoke(command[0], address, *command[1:])
        assert done.exit_code == 2
        assert "hunter" not in done.output
    assert "hunter" not in without_password(address)


def test_any_error_masks_addresses():
    for text in (
        "postgresql://me:hunter2@db/shop",
        "me:hunter2@db",
        "host=db password=hunter2",
        "?password=hunter2&x=1",
    ):
        said = str(cp.LogError(f"cannot read '{text}': it is no file."))
        assert "hunter2" not in said
        assert said.endswith("it is no file.")
    assert str(cp.LogError("no file 'logs/10:30.parquet'")) == "no file 'logs/10:30.parquet'"


@pytest.fixture
def secret(server):
    """A password that is nobody else's, and the address of the log's server for a user who has it."""
    name, password = f"reader_{uuid.uuid4().hex[:12]}", f"hunter{uuid.uuid4().hex}"
    owner = ibis.connect(server.log)
    owner.raw_sql(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'").close()
    owner.raw_sql(f"GRANT SELECT ON {server.table} TO {name}").close()
    place = server.log.rpartition("@")[2]
    try:
        yield password, f"postgresql://{name}:{password}@{place}"
    finally:
        owner.raw_sql(f"DROP OWNED BY {name}").close()
        owner.raw_sql(f"DROP ROLE {name}").close()
        owner.disconnect()


def everything_said(result, folder):
    """What a result shows or stores, in all its forms."""
    from counterpoise.display import as_text
    from counterpoise.evaluation.showing import evaluation

    page = result.report(folder / "report.html", command=f"evaluate {result.question.log.data}").read_bytes()
    yield from (repr(result), str(result), result._repr_html_(), str(result.table()), repr(result.question))
    yield from (
        result.moments.to_json(),
        as_text(evaluation(result)),
        page.decode(),
        pickle.dumps(result).decode("latin1"),
    )
    yield from (pickle.dumps(result.moments).decode("latin1"), pickle.dumps(result.question).decode("latin1"))


def test_a_log_on_a_server_keeps_its_password_to_itself(server, secret, tmp_path):
    password, address = secret
    log = cp.Log(address, table=server.table, reward=["click", "p"], propensity="p", key="user_id")
    said = [repr(log), str(log), f"{log}", repr([log]), pickle.dumps(log).decode("latin1")]
    for verb in (cp.evaluate, cp.compare):
        state = tmp_path / f"{verb.__name__}.json"
        result = verb(log, target="pi_new", segment="country", state=state, batch="today")
        assert result.n == 2000
        said += [state.read_bytes().decode(), repr(verb(state=state)), *everything_said(result, tmp_path)]
        said += everything_said(result.of("p"), tmp_path)
    said += [repr(cp.rank(log.but(reward="click"), target=["pi_new", "pi_old"]))]
    said += [repr(cp.plan(log.but(reward="click"), target="pi_new", difference=0.1)), repr(examine(log))]
    for text in said:
        assert password not in text
    asked = [address, "--table", server.table, "--propensity", "p", "--target", "pi_new", "--reward", "click"]
    done = invoke("evaluate", *asked, "--html", tmp_path / "page.html", "--state", tmp_path / "s.json", "--batch", "a")
    assert done.exit_code == 0, done.output
    shown = invoke("state", "show", tmp_path / "s.json", "--json").output
    for text in (done.output, shown, (tmp_path / "page.html").read_text(), (tmp_path / "s.json").read_text()):
        assert password not in text


def test_errors_about_a_log_on_a_server_keep_its_password_to_themselves(server, secret):
    password, address = secret
    log = cp.Log(address, table=server.table, reward="click", propensity="p")
    wrong = [
        (log.but(reward="clik"), {"target": "pi_new"}),
        (log.but(where="nothing = 1"), {"target": "pi_new"}),
        (log.but(where="(("), {"target": "pi_new"}),
        (log.but(table="nowhere"), {"target": "pi_new"}),
        (log.but(table=None, query="SELECT 1 / 0 AS click"), {"target": "pi_new"}),
        (log.but(table=None, query="DELETE FROM x"), {"target": "pi_new"}),
        (log.but(reward="click / (click - click)"), {"target": "pi_new"}),
        (log.of(address.replace("@", "x@")), {"target": "pi_new"}),
        (log.of(address + "_nowhere"), {"target": "pi_new"}),
        (log, {"target": lambda batch: 1 / 0}),
        (log, {"target": "pi_new", "reward": "click"}),
    ]
    for one, asked in wrong:
        with pytest.raises((cp.CounterpoiseError, ZeroDivisionError)) as caught:
            cp.evaluate(one, **asked)
        error = caught.value
        while error is not None:
            assert password not in "".join([str(error), repr(error), repr(error.__dict__)])
            error = error.__cause__ or error.__context__


def test_a_pickled_log_leads_to_its_database_without_its_password(server, secret, monkeypatch):
    password, address = secret
    log = cp.Log(address, table=server.table, reward="click", propensity="p")
    back = pickle.loads(pickle.dumps(log))
    assert back.data == address.replace(f":{password}", "")
    assert (back.table, back.reward) == (log.table, log.reward)
    monkeypatch.setenv("PGPASSWORD", password)
    assert value(cp.evaluate(back, target="pi_new")) == value(cp.evaluate(log, target="pi_new"))
    assert copy.copy(log).data == copy.deepcopy(log).data == address


@pytest.mark.parametrize("address", ADDRESSES)
def test_what_looks_like_an_address_forgets_its_password(address):
    assert "hunter" not in forgetting_password(address)
    assert "hunter" not in pickle.dumps(cp.Log(address, reward="r")).decode("latin1")
    assert "hunter" not in repr(cp.Log(address, reward="r"))


def test_files_and_addresses_without_a_password_stay_as_they_are():
    for text in (
        "logs/10:30.parquet",
        "C:\\logs\\a@b.parquet",
        "postgresql://me@db/shop?sslmode=require",
        "at 10:30.csv",
    ):
        assert forgetting_password(text) == text


def test_files_with_odd_names_are_files(tmp_path):
    place = tmp_path / "at 10:30@home.parquet"
    shop().write_parquet(place)
    assert cp.evaluate(place, **QUESTION).n == 2000
    assert pickle.loads(pickle.dumps(cp.Log(str(place), reward="click"))).data == str(place)
