"""This file holds the readers of databases: DuckDB, PostgreSQL, and every table that ibis knows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import narwhals as nw
import polars as pl

from counterpoise.errors import ColumnError, CounterpoiseError, LogError, OptionError, first_line
from counterpoise.log_moments import LogMoments
from counterpoise.sources import pushdown
from counterpoise.sources.checks import check_distinct, missing
from counterpoise.sources.groups import PRIME
from counterpoise.sources.query import indicator
from counterpoise.sources.request import Request

BATCH = 1_000_000
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


def read(log: Any, request: Request, table: Table = None, query: str | None = None) -> LogMoments:
    """Moments of a log in a database, computed there."""
    with _Errors(log) as errors:
        native = relation(log, table, query)
        database = pushdown.Database(lambda part: complete(native, part), errors.collect, _fence)
        return pushdown.summarise(database, request)


def batches(log: Any, request: Request, table: Table = None, query: str | None = None) -> Iterator[pl.DataFrame]:
    """The needed columns in batches, for policies that only run here."""
    with _Errors(log):
        frame, names = complete(relation(log, table, query), request)
        columns = dict.fromkeys([*(column for _, column in request.columns), *request.target_actions])
        native = frame.select(*(nw.col(names.get(column, column)) for column in columns)).to_native()
        reader = native.to_arrow_reader(BATCH) if _is(native, "duckdb") else native.to_pyarrow_batches(chunk_size=BATCH)
        for batch in reader:
            back = {name: column for column, name in names.items() if name in batch.schema.names}
            yield pl.DataFrame(pl.from_arrow(batch)).rename(back)


def relation(log: Any, table: Table, query: str | None) -> Any:
    """The native table or query; names are quoted by the library that knows the dialect, never pasted into SQL."""
    if table is not None and query is not None:
        raise OptionError("pass table= or query=, not both.")
    if isinstance(log, str | PathLike):
        log = _in_utc(_connect(str(log)))
    if not hasattr(log, "table") or _is_table(log):
        if table is not None or query is not None:
            raise OptionError("this log is a table already: table= and query= are for connections, files and URLs.")
        return _native(log)
    if _is(log, "ibis") and log.name == "duckdb":
        log = log.con
    if query is not None:
        return log.sql(query)
    if table is None:
        raise OptionError("name the log's table with table=…, or select it with query=….")
    path = [table] if isinstance(table, str) else list(table)
    try:
        if _is(log, "duckdb"):
            return log.table(".".join('"' + name.replace('"', '""') + '"' for name in path))
        return log.table(path[-1], database=tuple(path[:-1]) if path[:-1] else None)
    except Exception as error:
        if type(error).__name__ not in ("CatalogException", "TableNotFound"):  # DuckDB's and ibis'
            raise
        name = ".".join(path)
        raise LogError(
            f"no table {name} in this database. Check its name; logs in the schema shop is table=['shop', 'logs']."
        ) from None


def _native(table: Any) -> Any:
    """A table as it is, but one of DuckDB through ibis as DuckDB's own relation: ibis 12 cannot ask DuckDB 2 for rows."""
    if not _is(table, "ibis"):
        return table
    backend = table.get_backend()
    if backend.name != "duckdb":
        return table
    backend._run_pre_execute_hooks(
        table
    )  # what ibis does before it asks: a memtable is no table of DuckDB's until then
    return backend.con.sql(backend.compile(table))


def _connect(place: str) -> Any:
    if "://" not in place:
        if not Path(place).exists():  # duckdb would make an empty one
            raise LogError(f"no file {place!r}. Check the path.")
        import duckdb

        return duckdb.connect(place, read_only=True)
    kind = place.split("://")[0]
    if kind in CLOUD:
        raise OptionError(f"files in {kind}:// are read through polars: pass pl.scan_parquet(…) of them as the log.")
    if kind == "postgres":
        place = "postgresql" + place[len("postgres") :]
    try:
        import ibis
    except ImportError as error:
        raise OptionError(f"a {kind}:// log needs ibis: pip install 'counterpoise[postgres]'.") from error
    return ibis.connect(place)


def _in_utc(connection: Any) -> Any:
    """A connection of our own, in which days begin at midnight UTC; ibis does so itself."""
    if _is(connection, "duckdb"):
        connection.execute("SET TimeZone = 'UTC'")
    return connection


def complete(native: Any, request: Request) -> tuple[nw.LazyFrame[Any], dict[str, str]]:
    """The rows the condition lets through, with a column for every expression and deterministic target, and their names."""
    available = list(native.columns)
    check_distinct(available, any_case=_is(native, "duckdb"))
    native, names = _with_columns(_with_fewer_digits(native, request), request, available)
    frame = nw.from_native(native)
    frame = frame.lazy() if isinstance(frame, nw.DataFrame) else frame
    return with_actions(frame, request, names)


def _with_columns(native: Any, request: Request, available: Sequence[str]) -> tuple[Any, dict[str, str]]:
    texts = dict.fromkeys(column for part, column in request.columns if not has_column(part, column, available))
    names = {text: f"counterpoise expression {k}" for k, text in enumerate(texts)}
    try:
        if names or request.where is not None:
            native = _computed("counterpoise_log", native, {name: text for text, name in names.items()}, request.where)
    except Exception as error:
        raise cannot_compute([*texts, request.where], error, available) from error
    if request.cluster is not None:
        column = names.get(request.cluster, request.cluster)
        dtype = nw.from_native(native).collect_schema()[column]
        is_text = dtype in (nw.String, nw.Unknown)  # unknown: such as a UUID
        number = (CHECKSUMS if is_text else REMAINDERS).get(_engine(native))
        if number is not None and (is_text or dtype.is_integer()):
            quoted = '"' + column.replace('"', '""') + '"'
            native = _computed("counterpoise_clusters", native, {pushdown.CLUSTER: number.format(quoted)})
            if not is_text:  # ibis guesses the type from the first rows, which may be null
                native = native.mutate(**{pushdown.CLUSTER: native[pushdown.CLUSTER].cast("int64")})
            names |= {pushdown.CLUSTER: pushdown.CLUSTER}
    return native, names


def _with_fewer_digits(native: Any, request: Request) -> Any:
    """Decimals of more than 38 digits as what narwhals can hold: labels and ids as text, numbers as floats."""
    if not _is(native, "ibis"):
        return native
    labels = {column for _, column in request.others} - {column for _, column in request.numbers.values()}
    wide = [name for name, dtype in native.schema().items() if dtype.is_decimal() and (dtype.precision or 0) > 38]
    cast = {name: native[name].cast("string" if name in labels else "float64") for name in wide}
    return native.mutate(**cast) if cast else native


def _computed(step: str, native: Any, expressions: Mapping[str, str], where: str | None = None) -> Any:
    """The rows that the condition lets through, with further columns: name → expression; every step needs a name of its own."""
    computed = "".join(f', ({text}) AS "{name}"' for name, text in expressions.items())
    if _is(native, "duckdb"):
        kept = native if where is None else native.filter(where)
        return kept.project(f"*{computed}")
    condition = "" if where is None else f" WHERE {where}"
    return native.alias(step).sql(f"SELECT *{computed} FROM {step}{condition}")


def _engine(native: Any) -> str:
    """Which database a table is in, as ibis calls it."""
    return native.get_backend().name if _is(native, "ibis") else "duckdb"


def _fence(rows: nw.LazyFrame[Any], request: Request) -> nw.LazyFrame[Any]:
    """A limit that limits nothing, where PostgreSQL would otherwise plan, and SQLite compute, for minutes.

    They write the expressions of a subquery into the outer query wherever they are used, doubling them with every product, unless
    the subquery has a limit. The price is that PostgreSQL then works with one process, so that short questions go without.
    """
    is_long = len(request.numbers) > 4 or request.groups > 1
    return rows.head(2**62) if is_long and _engine(rows.to_native()) in ("postgres", "sqlite") else rows


def with_actions(
    frame: nw.LazyFrame[Any], request: Request, names: dict[str, str]
) -> tuple[nw.LazyFrame[Any], dict[str, str]]:
    """A column for every deterministic target: 1 where the logged action is the one it takes, 0 elsewhere, null if unknown."""
    action = nw.col(names.get(str(request.action), str(request.action)))
    made = {name: f"counterpoise choice {k}" for k, name in enumerate(request.target_actions)}
    chosen = []
    for name, column in request.target_actions.items():
        same = nw.col(names.get(column, column)) == action
        chosen.append(nw.when(~same.is_null()).then(indicator(same)).alias(made[name]))
    # one step for all: a step for each would be as many subqueries, one inside the other
    return frame.with_columns(*chosen) if chosen else frame, names | made


def cannot_compute(asked: Sequence[str | None], error: Exception, available: Sequence[str]) -> ColumnError:
    """The error that an expression or condition is not valid here."""
    texts = " or ".join(repr(text) for text in asked if text is not None)
    return ColumnError(
        f"the database cannot compute {texts}: {first_line(error)}. The log has {', '.join(map(repr, available))}."
    )


def has_column(part: str, column: str, available: Sequence[str]) -> bool:
    """Whether a text names a column; a text that looks like a name and is not there is a mistake, any other an expression."""
    if column in available:
        return True
    if re.fullmatch(r"\w+", column):
        raise missing(part, column, available)
    return False


class _Errors:
    """Turns whatever a database's driver raises into an error that says what to do and never holds the password."""

    def __init__(self, log: object) -> None:
        self._secrets = _secrets(log) if isinstance(log, str) else []

    def __enter__(self) -> _Errors:
        return self

    def collect(self, frame: nw.LazyFrame[Any]) -> pl.DataFrame:
        """The rows of a small answer."""
        answer: pl.DataFrame = frame.collect("polars").to_native()
        return answer

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, CounterpoiseError | GeneratorExit) or not isinstance(error, Exception):
            return
        message = _without(self._secrets, first_line(error))
        # `from None`: the driver's own error, which may quote the whole URL, must not be printed below ours
        raise LogError(
            f"the database did not answer: {type(error).__name__}: {message}. Check the address, the name of the table and your "
            "rights; nothing was stored, so it can be run again."
        ) from None


def without_password(address: str) -> str:
    """An address as it may be shown to others.

    >>> without_password("postgresql://me:hunter2@db/logs?password=hunter3")
    'postgresql://me:…@db/logs?password=…'
    """
    return _without(_secrets(address), address)


def _without(secrets: Sequence[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, "…")
    return text


def _secrets(address: str) -> list[str]:
    """What an address holds that nobody may see, longest first."""
    _, separator, rest = address.partition("://")
    if not separator:
        return []
    found = [rest.rpartition("@")[0].partition(":")[2], *re.findall(r"[?&]\w*password=([^&]*)", rest)]
    # pieces too: a driver that misreads an address may quote a part of the password as a port or a path
    found += [piece for secret in found for piece in re.split(r"[@:/?#]", secret) if len(piece) > 2]
    return sorted({one for secret in found for one in (secret, unquote(secret)) if one}, key=len, reverse=True)


def _is(log: object, library: str) -> bool:
    return type(log).__module__.split(".")[0].lstrip("_") == library


def _is_table(log: object) -> bool:
    return type(log).__name__ in ("DuckDBPyRelation", "Table")
