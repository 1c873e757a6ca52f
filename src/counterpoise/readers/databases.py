"""Logs in databases: DuckDB, PostgreSQL, and every table that ibis can open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

import narwhals as nw
import polars as pl

from counterpoise.errors import Argument, ColumnError, CounterpoiseError, LogError, OptionError, Pieces, first_line
from counterpoise.log.addresses import secrets_of, without
from counterpoise.log.groups import CLUSTER, PRIME
from counterpoise.log.log import Log
from counterpoise.log.question import Question
from counterpoise.log.rules import check_distinct, indicator, missing
from counterpoise.readers import judge, postgres

BATCH = 1_000_000
ONLY_DUCKDB: Pieces = [
    Argument("external_access"),
    " only works with DuckDB files that counterpoise opens; leave it out for this log.",
]
TABLE_AND_QUERY: Pieces = [Argument("table"), " and ", Argument("query")]
CLOUD = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "http", "https")

# text as a number, as `groups.integer_ids` does it
CHECKSUMS = {
    "duckdb": "CAST('0x' || substr(md5(CAST({} AS VARCHAR)), 1, 6) AS BIGINT)",
    "postgres": "CAST(CAST('x' || substr(md5(CAST({} AS TEXT)), 1, 6) AS BIT(24)) AS BIGINT)",
}
# a whole number by its remainder, where ibis asks for MOD and the database computes that in float64
REMAINDERS = {"sqlite": f"{{}} % {PRIME}"}

Table = str | Sequence[str] | None


def is_database(log: object) -> bool:
    """Whether a log lives in a database: a URL, a DuckDB file, connection or relation, or an ibis table."""
    if isinstance(log, str | PathLike):
        return "://" in str(log) or str(log).lower().endswith((".duckdb", ".ddb"))
    return _is(log, "duckdb") or _is(log, "ibis")


def check_no_database(log: Log) -> None:
    """Refuse options that only a database understands."""
    if log.table is not None or log.query is not None:
        raise OptionError([*TABLE_AND_QUERY, " only work with a database, and this log is not one."])
    if log.external_access:
        raise OptionError(ONLY_DUCKDB)


@contextmanager
def opened(log: Log) -> Iterator[Any]:
    """The log's native table or query, for as long as its connection is open."""
    with connected(log.data, external_access=log.external_access) as place:
        yield relation(place, log.table, log.query)


def batches(question: Question) -> Iterator[pl.DataFrame]:
    """The columns we need, in batches, for policies that only run here."""
    with opened(question.log) as native:
        frame, names = complete(native, question)
        asked = [*(column for _, column in question.columns), *(target.column for target in question.choices)]
        fetched = {column: names.get(column, column) for column in asked}
        if CLUSTER in names and asked.count(str(question.log.cluster)) == 1:
            # already a number: Arrow does not take every id, such as a UUID
            fetched[str(question.log.cluster)] = names[CLUSTER]
        rows = frame.select(*map(nw.col, dict.fromkeys(fetched.values()))).to_native()
        for batch in _record_batches(rows):
            found = pl.DataFrame(pl.from_arrow(batch))
            yield found.select(pl.col(name).alias(column) for column, name in fetched.items())


def relation(log: Any, table: Table, query: str | None) -> Any:
    """The native table or query; names are quoted by the library that knows the dialect, never pasted into SQL."""
    if table is not None and query is not None:
        raise OptionError(["pass ", Argument("table"), " or ", Argument("query"), ", not both."])
    if not hasattr(log, "table") or _is_table(log):
        if table is not None or query is not None:
            raise OptionError(
                ["this log is a table already; ", *TABLE_AND_QUERY, " are for connections, files and URLs."]
            )
        return _native(log)
    if _is(log, "ibis") and log.name == "duckdb":
        log = log.con
    if query is not None:
        judge.check_query(query, _dialect(log))
        return postgres.queried(log, query) if getattr(log, "name", "") == "postgres" else log.sql(query)
    if table is None:
        raise OptionError(
            ["name the log's table with ", Argument("table"), ", or select it with ", Argument("query"), "."]
        )
    path = [table] if isinstance(table, str) else list(table)
    try:
        if _is(log, "duckdb"):
            return _duckdb_table(log, path)
        return log.table(path[-1], database=tuple(path[:-1]) if path[:-1] else None)
    except Exception as error:
        if type(error).__name__ not in ("LookupError", "CatalogException", "TableNotFound"):  # ours, DuckDB's and ibis'
            raise
        name = ".".join(path)
        raise LogError(
            f"no table {name} in this database.",
            do=["Check its name; logs in the schema shop is ", Argument("table", ["shop", "logs"]), "."],
        ) from None


def _native(table: Any) -> Any:
    """A table as it is, except that a DuckDB table in ibis becomes DuckDB's own relation: ibis 12 cannot ask DuckDB 2 for rows."""
    if not _is(table, "ibis"):
        return table
    backend = table.get_backend()
    if backend.name != "duckdb":
        return table
    backend._run_pre_execute_hooks(table)  # as ibis does: a memtable is no table of DuckDB's until then
    return backend.con.sql(backend.compile(table))


@contextmanager
def connected(log: Any, *, external_access: bool = False) -> Iterator[Any]:
    """The connection to a log's table: ours, which is read-only and closed at the end, or the user's own, which we leave as it is.

    Whatever a driver raises becomes an error that says what to do and never contains the password.
    """
    is_ours = isinstance(log, str | PathLike)
    if external_access and not (is_ours and _duckdb_file(str(log))):
        raise OptionError(ONLY_DUCKDB)
    opened = None
    try:
        opened = _opened(str(log), external_access) if is_ours else None
        yield opened if is_ours else log
    except CounterpoiseError:
        raise
    except Exception as last:
        error = last
        while type(error).__name__ == "InvalidCursorName" and isinstance(error.__context__, Exception):
            error = error.__context__  # a cursor that went with the statement's savepoint: what ended that is the error
        message = without(secrets_of(str(log)) if is_ours else [], first_line(error))
        # `from None`: the driver's own error, which may quote the whole URL, must not be printed below ours
        raise _no_answer(error, message, is_ours) from None
    finally:
        if opened is not None:
            with suppress(Exception):  # a connection that is lost cannot be closed
                opened.close() if _is(opened, "duckdb") else opened.disconnect()


def _opened(place: str, external_access: bool) -> Any:
    """A connection of ours, or an error that says why there is none."""
    try:
        return _connect(place, external_access)
    except CounterpoiseError:
        raise
    except Exception as error:
        refused = _no_answer(error, without(secrets_of(place), first_line(error)), is_ours=True)
    raise refused  # out here, as a driver's error that holds the whole address must not even be the context of ours


def _no_answer(error: Exception, message: str, is_ours: bool) -> LogError:
    if is_ours and type(error).__name__ == "PermissionException":  # DuckDB's
        return LogError(
            f"this log reads files outside its database: {message}. A DuckDB file that counterpoise opens may not.",
            do=["If you trust it, pass ", Argument("external_access", True), "."],
        )
    if is_ours and "different configuration" in message:  # DuckDB has one set of options per file and process
        return LogError("this process has the DuckDB file open with other options. Pass that connection as the log.")
    return LogError(
        f"the database did not answer: {type(error).__name__}: {message}. Check the address, the name of the table and your "
        "rights; nothing was stored, so it can be run again."
    )


def _connect(place: str, external_access: bool) -> Any:
    if (file := _duckdb_file(place)) is not None:
        if not Path(file).exists():  # duckdb would make an empty one
            raise LogError(f"no file {file!r}. Check the path.")
        import duckdb

        opened = duckdb.connect(file, read_only=True, config={"enable_external_access": external_access})
        opened.execute("SET TimeZone = 'UTC'")  # in which days begin at midnight UTC; ibis does so itself
        return opened
    kind, _, rest = place.partition("://")
    if kind in CLOUD:
        raise OptionError(f"files in {kind}:// are read through polars: pass pl.scan_parquet(…) of them as the log.")
    try:
        import ibis
    except ImportError as error:
        raise OptionError(f"a {kind}:// log needs ibis: pip install 'counterpoise[postgres]'.") from error
    if kind in ("postgres", "postgresql"):
        return postgres.connect(f"postgresql://{rest}")
    if kind == "sqlite":
        import sqlite3

        return ibis.sqlite.from_connection(sqlite3.connect(f"file:{quote(rest)}?mode=ro", uri=True))
    return ibis.connect(place)


def _duckdb_file(place: str) -> str | None:
    """The file that a DuckDB address names; an address of MotherDuck is not a file."""
    if place.startswith("duckdb://") and not place.startswith(("duckdb://md:", "duckdb://motherduck:")):
        return place[len("duckdb://") :]
    return None if "://" in place else place


def complete(native: Any, question: Question) -> tuple[nw.LazyFrame[Any], dict[str, str]]:
    """The rows that meet the condition, with a column for every expression and deterministic target, and their names."""
    available = list(native.columns)
    check_distinct(available, any_case=_is(native, "duckdb"))
    native, names = _with_columns(_with_fewer_digits(native, question), question, available)
    frame = nw.from_native(native)
    frame = frame.lazy() if isinstance(frame, nw.DataFrame) else frame
    return with_actions(frame, question, names)


def _with_columns(native: Any, question: Question, available: Sequence[str]) -> tuple[Any, dict[str, str]]:
    texts = {column: part for part, column in question.columns if not has_column(part, column, available)}
    judge.check_expressions(
        texts | ({} if question.log.where is None else {question.log.where: "where"}), _dialect(native)
    )
    names = {text: f"counterpoise expression {k}" for k, text in enumerate(texts)}
    try:
        if names or question.log.where is not None:
            native = _computed(
                "counterpoise_log", native, {name: text for text, name in names.items()}, question.log.where
            )
    except Exception as error:
        raise cannot_compute([*texts, question.log.where], error, available) from error
    if question.log.cluster is not None:
        column = names.get(question.log.cluster, question.log.cluster)
        dtype = nw.from_native(native).collect_schema()[column]
        is_text = dtype in (nw.String, nw.Unknown)  # unknown: such as a UUID
        number = (CHECKSUMS if is_text else REMAINDERS).get(_engine(native))
        if number is not None and (is_text or dtype.is_integer()):
            quoted = '"' + column.replace('"', '""') + '"'
            native = _computed("counterpoise_clusters", native, {CLUSTER: number.format(quoted)})
            if not is_text:  # ibis guesses the type from the first rows, which may be null
                native = native.mutate(**{CLUSTER: native[CLUSTER].cast("int64")})
            names |= {CLUSTER: CLUSTER}
    return native, names


def _with_fewer_digits(native: Any, question: Question) -> Any:
    """Decimals of more than 38 digits as something narwhals can hold: labels and ids as text, numbers as floats."""
    if not _is(native, "ibis"):
        return native
    labels = {column for _, column in question.others} - {column for _, column in question.numbers.values()}
    wide = [name for name, dtype in native.schema().items() if dtype.is_decimal() and (dtype.precision or 0) > 38]
    cast = {name: native[name].cast("string" if name in labels else "float64") for name in wide}
    return native.mutate(**cast) if cast else native


def _computed(step: str, native: Any, expressions: Mapping[str, str], where: str | None = None) -> Any:
    """The rows that meet the condition, with further columns: name → expression; every step needs its own name."""
    if _engine(native) == "postgres":
        return postgres.computed(native, expressions, where)
    computed = "".join(f', ({text}\n) AS "{name}"' for name, text in expressions.items())
    if _is(native, "duckdb"):
        kept = native if where is None else native.filter(f"({where}\n)")
        return kept.project(f"*{computed}")
    condition = "" if where is None else f" WHERE ({where}\n)"
    return native.alias(step).sql(f"SELECT *{computed} FROM {step}{condition}")


def _engine(native: Any) -> str:
    """Which database a table is in, as ibis calls it."""
    return native.get_backend().name if _is(native, "ibis") else "duckdb"


def _dialect(log: Any) -> Any:
    """The SQL dialect of a connection or table, by sqlglot's name for it; for DuckDB we ask its own parser."""
    if _is(log, "duckdb"):
        return "duckdb"
    backend = log.get_backend() if _is_table(log) else log
    return getattr(backend, "dialect", None)


def quoted(native: Any, name: str) -> str:
    """The name of a column, quoted as its database quotes names."""
    if _engine(native) == "duckdb":
        return '"' + name.replace('"', '""') + '"'
    import sqlglot

    return str(sqlglot.exp.to_identifier(name, quoted=True).sql(_dialect(native)))


def fence(rows: nw.LazyFrame[Any], question: Question) -> nw.LazyFrame[Any]:
    """A limit that limits nothing, without which PostgreSQL could spend minutes planning, and SQLite computing.

    Both copy the expressions of a subquery into the outer query wherever they are used, doubling them with every product, unless
    the subquery has a limit. The price is that PostgreSQL then works with one process, so short questions go without it.
    """
    is_long = len(question.numbers) > 4 or question.groups > 1
    return rows.head(2**62) if is_long and _engine(rows.to_native()) in ("postgres", "sqlite") else rows


def with_actions(
    frame: nw.LazyFrame[Any], question: Question, names: dict[str, str]
) -> tuple[nw.LazyFrame[Any], dict[str, str]]:
    """A column for every deterministic target: 1 if the logged action is the one it takes, 0 if not, null if unknown."""
    action = nw.col(names.get(str(question.log.action), str(question.log.action)))
    made = {target.column: f"counterpoise choice {k}" for k, target in enumerate(question.choices)}
    chosen = []
    for target in question.choices:
        same = nw.col(names.get(target.source.column, target.source.column)) == action
        chosen.append(nw.when(~same.is_null()).then(indicator(same)).alias(made[target.column]))
    # one step for all: a step for each would be as many subqueries, one inside the other
    return frame.with_columns(*chosen) if chosen else frame, names | made


def cannot_compute(asked: Sequence[str | None], error: Exception, available: Sequence[str]) -> ColumnError:
    """The error for an expression or condition that is not valid here."""
    texts = " or ".join(repr(text) for text in asked if text is not None)
    return ColumnError(
        f"the database cannot compute {texts}: {first_line(error)}. The log has {', '.join(map(repr, available))}."
    )


def has_column(part: str, column: str, available: Sequence[str]) -> bool:
    """Whether a text names a column; a text that looks like a name but does not exist is a mistake, and any other is an expression."""
    if column in available:
        return True
    if re.fullmatch(r"\w+", column):
        raise missing(part, column, available)
    return False


def _is(log: object, library: str) -> bool:
    return type(log).__module__.split(".")[0].lstrip("_") == library


def _is_table(log: object) -> bool:
    return type(log).__name__ in ("DuckDBPyRelation", "Table")


def _duckdb_table(connection: Any, path: Sequence[str]) -> Any:
    """A table or view that really exists: DuckDB would also accept a file, or a Python variable of the caller, with that name.

    We ask in SQL, because before version 2 DuckDB's `table` finds neither views nor names with a quote in them.
    """
    there = connection.sql("SELECT table_name FROM information_schema.tables").fetchall()
    if path[-1].lower() not in {name.lower() for (name,) in there}:
        raise LookupError(path[-1])
    return connection.sql("SELECT * FROM " + ".".join('"' + part.replace('"', '""') + '"' for part in path))


def _record_batches(native: Any) -> Any:
    if not _is(native, "duckdb"):
        return native.to_pyarrow_batches(chunk_size=BATCH)
    if hasattr(type(native), "to_arrow_reader"):
        return native.to_arrow_reader(BATCH)
    return native.fetch_arrow_reader(BATCH)  # its name before DuckDB 1.5
