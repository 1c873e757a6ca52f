"""Connections to databases, the table or query that is the log, and which SQL may run on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from math import inf
from os import PathLike
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from types import ModuleType
from typing import Any, TypeVar
from urllib.parse import quote

from counterpoise.errors import ColumnError, CounterpoiseError, LogError, OptionError, first_line, render, verbatim
from counterpoise.log.addresses import secrets_of, without
from counterpoise.log.log import Log
from counterpoise.log.targets import argument_of

T = TypeVar("T")
Native = Any  # a table or a connection of DuckDB or ibis: libraries that need not be installed

# -- What an SQL text may be, as a parser says before anything runs: a query that only reads, or one expression ---------

SyntaxTree = Any  # of sqlglot or of DuckDB's own parser
Parse = Callable[[str], list[SyntaxTree]]

_READING = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}


def check_query(query: str, dialect: object) -> None:
    """Refuse a query that is not one statement, or does anything but read."""
    if dialect == "duckdb":
        try:
            with _duckdb_parser() as parse:
                trees = parse(query)
        except ValueError as error:
            raise not_one_query(first_line(error)) from error
        reads = len(trees) == 1 and all(node["type"] in _READING for node in _nodes(trees[0]) if _is_query(node))
    else:
        import sqlglot

        try:
            reads = _reads(sqlglot.exp, _statements(sqlglot, query, dialect))
        except sqlglot.errors.SqlglotError as error:
            raise not_one_query(first_line(error)) from error
    if not reads:
        raise not_one_query()


def not_one_query(reason: str = "") -> OptionError:
    """The error for a query that does more, or less, than read."""
    return OptionError(
        "query must be one statement that only reads: SELECT, WITH … SELECT or VALUES, without a second one after it"
        f"{f'; the database reports: {reason}' if reason else ''}. Nothing was run."
    )


def check_expressions(texts: Mapping[str, str], dialect: object) -> None:
    """Refuse any of these texts (text → the part it plays) that is not one condition or expression."""
    if dialect != "duckdb":
        for text, part in texts.items():
            tree_of(part, text, dialect)
    elif texts:
        with _duckdb_parser() as parse:
            for text, part in texts.items():
                _check_duckdb_expression(parse, part, text)


def not_one(part: str, text: str) -> ColumnError:
    """The error for a text that is more than one expression."""
    return ColumnError(f"{argument_of(part, text)} must be one {_what(part)}, not a statement.")


def tree_of(part: str, text: str, dialect: object) -> SyntaxTree:
    """The tree of a text that is one condition or expression in a dialect.

    It is one if it stands for one column both with brackets around it and without: `true LIMIT 7` fails with them, and `a) AS x, (b`
    fails without.
    """
    import sqlglot

    trees = []
    for column in (text, f"({text}\n)"):
        try:
            statements = _statements(sqlglot, f"SELECT {column}\n", dialect)
        except sqlglot.errors.SqlglotError as error:
            raise ColumnError(
                f"{argument_of(part, text)} is not an SQL {_what(part)} that "
                f"{getattr(dialect, '__name__', dialect or 'SQL')} understands: {first_line(error)}."
            ) from error
        if len(statements) != 1 or not isinstance(statements[0], sqlglot.exp.Select):
            raise not_one(part, text)
        clauses, selected = {name for name, value in statements[0].args.items() if value}, statements[0].expressions
        if (
            clauses != {"expressions"}
            or len(selected) != 1
            or isinstance(selected[0], sqlglot.exp.Alias | sqlglot.exp.Star)
        ):
            raise not_one(part, text)
        trees.append(selected[0])
    if not _reads(sqlglot.exp, [trees[0].parent_select]):
        raise not_one(part, text)
    if trees[0].find(sqlglot.exp.Query, sqlglot.exp.Table) is not None:
        raise _looks_elsewhere(part, text)
    return trees[0].pop()


def _looks_elsewhere(part: str, text: str) -> ColumnError:
    """The error for a condition or expression with a query in it, which could read anything the connection can."""
    return ColumnError(
        f"{argument_of(part, text)} must read no files and no other tables: write it of the log's own columns, without SELECT.",
        do="If it needs more, join that to the log with `query=`.",
    )


def _what(part: str) -> str:
    return "condition" if part == "where" else "expression"


def _statements(sqlglot: ModuleType, text: str, dialect: object) -> list[SyntaxTree]:
    statements = sqlglot.parse(text, read=dialect)
    return [tree for tree in statements if tree is not None and not isinstance(tree, sqlglot.exp.Semicolon)]


def _reads(exp: ModuleType, statements: list[SyntaxTree]) -> bool:
    if len(statements) != 1 or not isinstance(statements[0], exp.Query | exp.Values):
        return False
    writing = (exp.DML, exp.DDL, exp.Command, exp.Copy, exp.Into, exp.Lock)
    return statements[0].find(*writing) is None


@contextmanager
def _duckdb_parser() -> Iterator[Parse]:
    """DuckDB's own parser: a text's statements as trees, or a ValueError for anything but a SELECT; the connection is ours."""
    import duckdb

    def parse(text: str) -> list[SyntaxTree]:
        answer = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchone()
        tree = json.loads(str(answer[0] if answer else "{}"))
        if tree.get("error", True):
            raise ValueError(tree.get("error_message", "it cannot be read"))
        return [_without_places(statement) for statement in tree["statements"]]

    with duckdb.connect() as connection:
        yield parse


def _check_duckdb_expression(parse: Parse, part: str, text: str) -> None:
    """The same check as in `tree_of`, with DuckDB's own parser; and the text must not create extra rows or columns."""
    try:
        bare, bracketed = (parse(f"SELECT {column}\n") for column in (text, f"({text}\n)"))
    except ValueError as error:
        raise ColumnError(
            f"{argument_of(part, text)} must be one {_what(part)} that DuckDB understands: {first_line(error)}."
        ) from error
    if len(bare) != 1 or bare != bracketed or len(bare[0]["node"]["select_list"]) != 1:
        raise not_one(part, text)
    tree = bare[0]["node"]["select_list"][0]
    if any(map(_is_query, _nodes(tree))):
        raise _looks_elsewhere(part, text)
    if any(node.get("function_name") == "unnest" for node in _nodes(tree)) or (
        part != "where" and any(node.get("class") == "STAR" for node in _nodes(tree))
    ):
        raise ColumnError(
            f"{argument_of(part, text)} must give one value per row. Write it without unnest and COLUMNS."
        )


def _is_query(node: Mapping[str, object]) -> bool:
    return str(node.get("type", "")).endswith("_NODE")


def _nodes(tree: object) -> Iterator[Mapping[str, object]]:
    if isinstance(tree, dict):
        yield tree
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(part)


def _without_places(tree: object) -> object:
    """A tree without its positions in the text."""
    if isinstance(tree, dict):
        return {name: _without_places(part) for name, part in tree.items() if not name.startswith("query_location")}
    return [_without_places(part) for part in tree] if isinstance(tree, list) else tree


# -- PostgreSQL: a connection that cannot write, and queries that the server itself describes before they run ----------


def connect(address: str) -> Native:
    """An ibis connection whose every statement runs in one read-only transaction and sees the same rows."""
    import ibis
    import psycopg

    backend = ibis.connect(address)
    connection = backend.con
    connection.autocommit = False
    connection.read_only = True
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    # begins it: what ibis calls transactions are savepoints from here on; sums of a few columns never pay for compiling them
    connection.execute("SELECT set_config(name, 'off', false) FROM pg_settings WHERE name = 'jit'")
    return backend


def query_table(backend: Native, query: str) -> Native:
    """The table that a query returns, if the server agrees that it is a query and that it only reads.

    Within brackets, PostgreSQL accepts nothing but a query, and none with a DELETE in its WITH. We don't create a view to learn the
    types, as ibis would, because a read-only transaction forbids it.
    """
    import psycopg

    text = query.strip().rstrip("; \t\r\n")
    bracketed = f"SELECT * FROM (\n{text}\n) AS counterpoise_query"
    try:
        _columns_of(backend, text)  # also without our brackets: a text that closes them is not a query
    except psycopg.errors.SyntaxError as error:
        raise not_one_query(first_line(error)) from None
    try:
        columns = _columns_of(backend, bracketed)
    except psycopg.Error as error:
        raise not_one_query(first_line(error)) from None
    names = [name for name, _ in columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ColumnError(f"every column needs a name of its own; the query gives {twice!r} twice. Rename one with AS.")
    return backend.sql(bracketed, schema=dict(columns))


def add_columns(native: Native, expressions: Mapping[str, str], where: str | None) -> Native:
    """The rows that meet the condition, with further columns: name → expression."""
    backend = native.get_backend()
    rows = f"FROM ({backend.compile(native)}) AS counterpoise_log"
    for part, text in [*(("expression", text) for text in expressions.values()), ("where", where or "true")]:
        # complete without its brackets, so that it closes none of ours
        if len(_columns_of(backend, f"SELECT {text}\n{rows}")) != 1:
            raise not_one(part, text)
    # COALESCE of one value is that value, and takes no function that makes several rows of one
    further = "".join(f', COALESCE(({text}\n)) AS "{name}"' for name, text in expressions.items())
    condition = "" if where is None else f" WHERE ({where}\n)"
    query = f"SELECT counterpoise_log.*{further} {rows}{condition}"
    return backend.sql(query, schema=dict(_columns_of(backend, query)))


UNLIMITED = 2**62  # rows: a limit that is only there to be one


def fetch(native: Native) -> Any:
    """A small answer as a frame of polars, asked so that PostgreSQL's processes share the work.

    They would not with the cursor that ibis uses, below a limit, or for a table in WITH that is written down. An offset keeps
    expressions apart just as well as a limit, if its 0 is a constant without a type.
    """
    import polars as pl
    import pyarrow as pa

    backend = native.get_backend()
    backend._run_pre_execute_hooks(native)
    tree, schema = backend.compiler.to_sqlglot(native), native.schema()
    if backend.con.info.server_version >= 120_000:
        for table in tree.ctes:
            table.set("materialized", False)
    query = tree.sql(dialect=backend.dialect).replace(f"LIMIT {UNLIMITED}", "OFFSET '0'")
    with backend.con.cursor() as cursor, backend.con.transaction():
        rows = cursor.execute(query).fetchall()
    batch = pa.RecordBatch.from_struct_array(pa.array(rows, type=schema.as_struct().to_pyarrow()))
    return native.__polars_result__(pl.from_arrow(pa.Table.from_batches([batch]).cast(schema.to_pyarrow())))


def _columns_of(backend: Native, query: str) -> list[tuple[str, object]]:
    """The names and types that a statement would return; it is prepared but never run, and the protocol takes one at a time."""
    from psycopg import errors
    from psycopg.pq import DiagnosticField, ExecStatus

    connection = backend.con
    encoding = connection.info.encoding
    with connection.transaction():
        answer = connection.pgconn.prepare(b"", query.encode(encoding))
        if answer.status != ExecStatus.COMMAND_OK:
            state, said = (
                (answer.error_field(field) or b"").decode(encoding, "replace")
                for field in (DiagnosticField.SQLSTATE, DiagnosticField.MESSAGE_PRIMARY)
            )
            raise errors.lookup(state)(said) if state else errors.OperationalError("the connection is lost")
        description = connection.pgconn.describe_prepared(b"")
        places = range(description.nfields)
        kinds = ([description.ftype(k) for k in places], [description.fmod(k) for k in places])
        types = connection.execute(_TYPES, kinds).fetchall()
    mapper = backend.compiler.type_mapper
    names = [(description.fname(k) or b"").decode(encoding) for k in places]
    return [(name, mapper.from_string(kind)) for name, (kind,) in zip(names, types, strict=True)]


_TYPES = """
SELECT CASE WHEN EXISTS (SELECT 1 FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid) THEN 'enum'
            ELSE pg_catalog.format_type(t.oid, t.modifier) END
FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS t (oid, modifier, place) ORDER BY place
"""


# ----------------------------------------------------------------------------------------------------------------------


ONLY_DUCKDB = "`external_access=` only works with DuckDB files that counterpoise opens; leave it out for this log."
TABLE_AND_QUERY = "`table=` and `query=`"
CLOUD = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "http", "https")
TableName = str | Sequence[str] | None
LISTED = 20  # tables that an error lists


def is_database(log: object) -> bool:
    """Whether a log lives in a database: a URL, a DuckDB file, connection or relation, or an ibis table."""
    if isinstance(log, str | PathLike):
        return "://" in str(log) or str(log).lower().endswith((".duckdb", ".ddb"))
    return is_of(log, "duckdb") or is_of(log, "ibis")


def check_no_database(log: Log) -> None:
    """Refuse options that only a database understands."""
    if log.table is not None or log.query is not None:
        raise OptionError(f"{TABLE_AND_QUERY} only work with a database, and this log is not one.")
    if log.external_access:
        raise OptionError(ONLY_DUCKDB)
    if log.timeout is not None:
        raise OptionError(
            "`timeout=` only works with a database, which can be told to stop, and this log is not one: leave it out.",
            do="Ctrl-C ends a command at once.",
        )


def ask(log: Log, work: Callable[[Native], T]) -> T:
    """What `work` makes of the log's native table or query, in the time that the log allows."""
    with connection_to(log) as client:
        return client(lambda: work(relation(client.place, log.table, log.query)))


@contextmanager
def connection_to(log: Log) -> Iterator[Client]:
    """How to ask the connection to a log: ours, which is read-only and closed at the end, or the user's own, which we leave as it is.

    Whatever a driver raises becomes an error that says what to do and never contains the password.
    """
    data, is_ours = log.data, isinstance(log.data, str | PathLike)
    if log.external_access and not (is_ours and _duckdb_file(str(data))):
        raise OptionError(ONLY_DUCKDB)
    client = None
    try:
        client = Client(_open_ours(str(data), log.external_access) if is_ours else data, log.timeout, is_ours)
        yield client
    except CounterpoiseError:
        raise
    except Exception as last:
        error = last
        # a cursor that went away with the statement's savepoint: whatever ended that is the error
        while type(error).__name__ == "InvalidCursorName" and isinstance(error.__context__, Exception):
            error = error.__context__
        # `from None`: the driver's own error, which may quote the whole URL, must not be printed below ours
        raise _no_answer(error, secrets_of(str(data)) if is_ours else [], is_ours) from None
    finally:
        if client is not None and is_ours:

            def close(_: object) -> None:
                with suppress(Exception):  # a connection that is lost cannot be closed
                    client.place.close() if is_of(client.place, "duckdb") else client.place.disconnect()

            client.answer.add_done_callback(close)  # at once, unless a statement is left behind


# -- Asking in such a way that the end of the time and Ctrl-C are noticed -----------------------------------------------

GRACE = 2.0  # seconds in which a database should have stopped
AGAIN = 0.1  # seconds from one look to the next, and until it is told to stop once more: it may have been between two statements


class Client:
    """A connection, and how its answers are waited for: for so many seconds at most, and so that Ctrl-C ends it.

    The native code of DuckDB and SQLite sees no Ctrl-C, and DuckDB finishes an expression for a whole batch of rows before it stops. So
    they work in a thread of their own, and what does not stop is left behind. The user's own SQLite works only in the thread that made it.
    """

    def __init__(self, place: Native, seconds: float | None, is_ours: bool) -> None:
        self.place = place
        self.answer: Future[Any] = Future()  # the last one
        self.answer.set_result(None)
        self._seconds = seconds
        backend = place if is_of(place, "duckdb") else place.get_backend() if _is_table(place) else place
        name = getattr(backend, "name", "duckdb")
        self._is_apart = name == "duckdb" or (name == "sqlite" and is_ours)
        connection = getattr(backend, "con", backend)
        self._stop: Any = getattr(connection, "interrupt", None) or getattr(connection, "cancel", None)
        if self._stop is None and name == "duckdb":  # a relation; before DuckDB 2, of the usual connection, it seems
            import duckdb

            self._stop = getattr(backend, "_con", duckdb).interrupt
        if seconds is not None and self._stop is None:
            raise OptionError(f"`timeout=` cannot stop {name}: leave it out.", do="Set a limit in the database.")

    def __call__(self, work: Callable[[], T]) -> T:
        """What `work` returns."""
        if self._is_apart:
            return self._apart(work)
        return work() if self._seconds is None else self._in_time(work)

    def _apart(self, work: Callable[[], T]) -> T:
        answer: Future[T] = Future()
        self.answer = answer

        def there() -> None:
            try:
                answer.set_result(work())
            except BaseException as error:
                answer.set_exception(error)

        Thread(target=copy_context().run, args=(there,), daemon=True).start()
        until = inf if self._seconds is None else monotonic() + self._seconds
        try:
            while not answer.done() and (left := until - monotonic()) > 0:
                wait(
                    [answer], min(left, AGAIN)
                )  # Ctrl-C may reach another thread: it is noticed when this one wakes up
        except BaseException:
            self._end()
            raise
        if not answer.done():
            self._end()
            raise self._too_long()
        return answer.result()

    def _in_time(self, work: Callable[[], T]) -> T:
        self.answer, is_late = Future(), Event()

        def watch() -> None:
            if not wait([self.answer], self._seconds).done:
                is_late.set()
                self._end()

        Thread(target=watch, daemon=True).start()
        try:
            return work()
        except Exception:
            if is_late.is_set():
                raise self._too_long() from None
            raise
        finally:
            self.answer.set_result(None)

    def _end(self) -> None:
        """Tell the database to stop until it does, and wait a while for it."""
        until = monotonic() + GRACE
        while not self.answer.done() and monotonic() < until:
            with suppress(Exception):
                self._stop()
            wait([self.answer], AGAIN)

    def _too_long(self) -> OptionError:
        """The error of the option that it exceeds, which no check passes over as it does logs that cannot be read."""
        is_left = self._is_apart and not self.answer.done()
        left = " It was told to stop and has not yet; at the latest, it does when this process ends." if is_left else ""
        return OptionError(
            f"the database did not respond within {self._seconds:g} seconds, which is what `timeout={self._seconds:g}` allows.{left}",
            do="Allow more if the log is large; if not, look for what never ends in `where=`, `query=` and the other expressions.",
        )


def _open_ours(place: str, external_access: bool) -> Native:
    """Our own connection, or an error that says why there is none."""
    try:
        if (file := _duckdb_file(place)) is not None:
            if not Path(file).exists():  # duckdb would make an empty one
                raise LogError(f"no file {file!r}. Check the path.")
            import duckdb

            opened = duckdb.connect(file, read_only=True, config={"enable_external_access": external_access})
            opened.execute("SET TimeZone = 'UTC'")  # in which days begin at midnight UTC; ibis does so itself
            return opened
        kind, _, rest = place.partition("://")
        kind = kind.lower()  # as ibis reads it: DuckDB:// is no way around what a DuckDB file may reach
        if kind in CLOUD:
            raise OptionError(
                f"files in {kind}:// are read through polars: pass pl.scan_parquet(…) of them as the log."
            )
        try:
            import ibis
        except ImportError as error:
            raise OptionError(f"a {kind}:// log needs ibis: pip install 'counterpoise[postgres]'.") from error
        if kind in ("postgres", "postgresql"):
            return connect(f"postgresql://{rest}")
        if kind == "sqlite":
            import sqlite3

            return ibis.sqlite.from_connection(
                sqlite3.connect(
                    f"file:{quote(rest)}?mode=ro", uri=True, check_same_thread=False
                )  # one thread at a time
            )
        return ibis.connect(place)
    except CounterpoiseError:
        raise
    except Exception as error:
        refused = _no_answer(error, secrets_of(place), is_ours=True)
    raise refused  # out here: a driver's error may contain the whole address, and must not even be the context of ours


def _no_answer(error: Exception, secrets: Sequence[str], is_ours: bool) -> LogError:
    message = verbatim(without(secrets, render(first_line(error))))
    if is_ours and type(error).__name__ == "PermissionException":  # DuckDB's
        return LogError(
            f"this log reads files outside its database: {message}. A DuckDB file that counterpoise opens may not.",
            do="If you trust it, pass `external_access=True`.",
        )
    if is_ours and "different configuration" in message:  # DuckDB has one set of options per file and process
        return LogError("this process has the DuckDB file open with other options. Pass that connection as the log.")
    return LogError(
        f"the database did not respond: {type(error).__name__}: {message}. Check the address, the name of the table and your "
        "rights; nothing was stored, so it can be run again."
    )


def _duckdb_file(place: str) -> str | None:
    """The file that a DuckDB address names; an address of MotherDuck is not a file."""
    kind, is_address, rest = place.partition("://")
    if is_address and kind.lower() == "duckdb" and not rest.startswith(("md:", "motherduck:")):
        return rest
    return None if is_address else place


def relation(log: Native, table: TableName, query: str | None) -> Native:
    """The native table or query; names are quoted by the library that knows the dialect, never pasted into SQL."""
    if table is not None and query is not None:
        raise OptionError("pass `table=` or `query=`, not both.")
    if not hasattr(log, "table") or _is_table(log):
        if table is not None or query is not None:
            raise OptionError(f"this log is already a table; {TABLE_AND_QUERY} are for connections, files and URLs.")
        backend = log.get_backend() if is_of(log, "ibis") else None
        if backend is None or backend.name != "duckdb":
            return log
        # DuckDB's own relation: ibis 12 cannot ask DuckDB 2 for rows
        backend._run_pre_execute_hooks(log)  # as ibis does: until then, a memtable is not a DuckDB table
        return backend.con.sql(backend.compile(log))
    if is_of(log, "ibis") and log.name == "duckdb":
        log = log.con
    if query is not None:
        check_query(query, dialect_of(log))
        return query_table(log, query) if getattr(log, "name", "") == "postgres" else log.sql(query)
    if table is None:
        raise OptionError("name the log's table with `table=`, or select it with `query=`.", found=_tables(log))
    path = [table] if isinstance(table, str) else list(table)
    try:
        if not is_of(log, "duckdb"):
            return log.table(path[-1], database=tuple(path[:-1]) if path[:-1] else None)
        # DuckDB would also accept a file, or a Python variable of the caller, with that name; and we ask in SQL, because before
        # version 2 its `table` finds neither views nor names with a quote in them
        listed = (
            "SELECT table_name FROM duckdb_tables() UNION ALL SELECT view_name FROM duckdb_views() WHERE NOT internal"
        )
        tables = log.sql(listed).fetchall()
        if path[-1].lower() not in {name.lower() for (name,) in tables}:
            raise LookupError(path[-1])
        return log.sql("SELECT * FROM " + ".".join('"' + part.replace('"', '""') + '"' for part in path))
    except Exception as error:
        if type(error).__name__ not in ("LookupError", "CatalogException", "TableNotFound"):  # ours, DuckDB's and ibis'
            raise
        name = ".".join(path)
        raise LogError(
            f"no table {name} in this database.",
            found=_tables(log),
            do="Check its name; logs in the schema shop is `table=['shop', 'logs']`.",
        ) from None


def _tables(log: Native) -> str:
    """The tables of a database, as they are passed; empty where it will not list them."""
    paths: list[list[str]] = []
    with suppress(Exception):  # a list that only helps; the error it stands in is the one to raise
        if is_of(log, "duckdb"):
            rows = log.sql(
                "SELECT table_schema, table_name FROM information_schema.tables WHERE table_catalog = current_database() "
                "AND table_schema NOT IN ('information_schema', 'pg_catalog') ORDER BY ALL"
            ).fetchall()
            paths = [[name] if schema == "main" else [schema, name] for schema, name in rows]
        else:
            paths = [[name] for name in log.list_tables()]
    listed = [f"`table={(path[0] if len(path) == 1 else path)!r}`" for path in paths[:LISTED]]
    more = f" and {len(paths) - LISTED:,} more" if len(paths) > LISTED else ""
    return f"It has {', '.join(listed)}{more}." if listed else ""


def database_of(native: Native) -> str:
    """Which database a table is in, as ibis calls it."""
    return native.get_backend().name if is_of(native, "ibis") else "duckdb"


def dialect_of(log: Native) -> str | None:
    """The SQL dialect of a connection or table, by sqlglot's name for it; for DuckDB we ask its own parser."""
    if is_of(log, "duckdb"):
        return "duckdb"
    backend = log.get_backend() if _is_table(log) else log
    return getattr(backend, "dialect", None)


def quoted(native: object, name: str) -> str:
    """The name of a column, quoted as its database quotes names."""
    if database_of(native) == "duckdb":
        return '"' + name.replace('"', '""') + '"'
    import sqlglot

    return str(sqlglot.exp.to_identifier(name, quoted=True).sql(dialect_of(native)))


def is_of(log: object, library: str) -> bool:
    """Whether an object comes from a library, without importing it."""
    return type(log).__module__.split(".")[0].lstrip("_") == library


def _is_table(log: object) -> bool:
    return type(log).__name__ in ("DuckDBPyRelation", "Table")
