"""PostgreSQL: a connection that cannot write, and queries that the server itself describes before they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterpoise.errors import ColumnError, first_line
from counterpoise.readers.judge import not_one, not_one_query


def connect(address: str) -> Any:
    """An ibis connection whose every statement runs in one read-only transaction and sees the same rows."""
    import ibis
    import psycopg

    backend = ibis.connect(address)
    connection = backend.con
    connection.autocommit = False
    connection.read_only = True
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("SELECT 1")  # begins it: what ibis calls transactions are savepoints from here on
    return backend


def queried(backend: Any, query: str) -> Any:
    """The table that a query returns, if the server agrees that it is a query and that it only reads.

    Within brackets, PostgreSQL accepts nothing but a query, and none with a DELETE in its WITH. We don't create a view to learn the
    types, as ibis would, because a read-only transaction forbids it.
    """
    import psycopg

    text = query.strip().rstrip("; \t\r\n")
    whole = f"SELECT * FROM (\n{text}\n) AS counterpoise_query"
    try:
        _columns_of(backend, text)  # without our brackets, too: a text that closes them is no query
    except psycopg.errors.SyntaxError as error:
        raise not_one_query(first_line(error)) from None
    try:
        columns = _columns_of(backend, whole)
    except psycopg.Error as error:
        raise not_one_query(first_line(error)) from None
    names = [name for name, _ in columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ColumnError(f"every column needs a name of its own; the query gives {twice!r} twice. Rename one with AS.")
    return backend.sql(whole, schema=dict(columns))


def computed(native: Any, expressions: Mapping[str, str], where: str | None) -> Any:
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


def _columns_of(backend: Any, query: str) -> list[tuple[str, Any]]:
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
        found = connection.pgconn.describe_prepared(b"")
        places = range(found.nfields)
        kinds = ([found.ftype(k) for k in places], [found.fmod(k) for k in places])
        types = connection.execute(_TYPES, kinds).fetchall()
    mapper = backend.compiler.type_mapper
    names = [(found.fname(k) or b"").decode(encoding) for k in places]
    return [(name, mapper.from_string(kind)) for name, (kind,) in zip(names, types, strict=True)]


_TYPES = """
SELECT CASE WHEN EXISTS (SELECT 1 FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid) THEN 'enum'
            ELSE pg_catalog.format_type(t.oid, t.modifier) END
FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS t (oid, modifier, place) ORDER BY place
"""
