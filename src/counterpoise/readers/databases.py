"""Logs in databases: DuckDB, PostgreSQL, and every table that ibis can open, with the columns that a question names."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

import narwhals as nw
import polars as pl

from counterpoise.errors import CounterpoiseError, OptionError
from counterpoise.log.expressions import LazyRows, adds_up, cannot_compute, has_column, may_use, with_actions
from counterpoise.log.groups import CLUSTER, PRIME, checksum_of
from counterpoise.log.question import Question
from counterpoise.log.rules import check_distinct
from counterpoise.readers import connections as postgres
from counterpoise.readers.connections import (
    UNLIMITED,
    Native,
    check_expressions,
    connection_to,
    database_of,
    dialect_of,
    is_of,
    relation,
)

BATCH = 1_000_000
# text as a number, as `groups.integer_ids` does it
CHECKSUMS = {
    "duckdb": "CAST('0x' || substr(md5(CAST({} AS VARCHAR)), 1, 6) AS BIGINT)",
    "postgres": "CAST(CAST('x' || substr(md5(CAST({} AS TEXT)), 1, 6) AS BIT(24)) AS BIGINT)",
}
# a whole number by its remainder, where ibis asks for MOD and the database computes that in float64
REMAINDERS = {"sqlite": f"{{}} % {PRIME}"}


def batches(question: Question) -> Generator[pl.DataFrame, None, None]:
    """The columns we need, in batches, for policies that only run here."""

    def begun(native: Native) -> tuple[dict[str, str], Native]:
        frame, names = complete(native, question)
        fetched = {column: names.get(column, column) for column in question.wanted_columns}
        if CLUSTER in names and question.wanted_columns.count(str(question.log.cluster)) == 1:
            # already a number: Arrow does not take every id, such as a UUID
            fetched[str(question.log.cluster)] = names[CLUSTER]
        rows = frame.select(*map(nw.col, dict.fromkeys(fetched.values()))).to_native()
        if not is_of(rows, "duckdb"):
            return fetched, rows.to_pyarrow_batches(chunk_size=BATCH)
        has_reader = hasattr(type(rows), "to_arrow_reader")  # its name since DuckDB 1.5
        return fetched, rows.to_arrow_reader(BATCH) if has_reader else rows.fetch_arrow_reader(BATCH)

    with connection_to(question.log) as client:
        fetched, rows = client(lambda: begun(relation(client.place, question.log.table, question.log.query)))
        with rows:  # whose cursor would stay open if nobody wants the rest
            # each by itself: what we do meanwhile takes no database
            while (batch := client(lambda: next(rows, None))) is not None:
                piece = pl.DataFrame(pl.from_arrow(batch))
                yield piece.select(pl.col(name).alias(column) for column, name in fetched.items())


def complete(native: Native, question: Question) -> tuple[LazyRows, dict[str, str]]:
    """The rows that meet the condition, with a column for every expression and deterministic target, and their names."""
    available = list(native.columns)
    check_distinct(available, any_case=is_of(native, "duckdb"))
    if is_of(
        native, "ibis"
    ):  # decimals of more than 38 digits, which narwhals lacks: labels as text, numbers as floats
        labels = {column for _, column in question.others} - question.number_columns
        wide = [name for name, dtype in native.schema().items() if dtype.is_decimal() and (dtype.precision or 0) > 38]
        cast = {name: native[name].cast("string" if name in labels else "float64") for name in wide}
        native = native.mutate(**cast) if cast else native
    native, names = _with_columns(native, question, available)
    frame = nw.from_native(native)
    frame = frame.lazy() if isinstance(frame, nw.DataFrame) else frame
    return with_actions(frame, question, names)


def _with_columns(native: Native, question: Question, available: Sequence[str]) -> tuple[Native, dict[str, str]]:
    """The rows that meet the condition, with a column for every expression and every text that must be a number, and their names."""
    where = question.log.where
    texts = {column: part for part, column in question.columns if not has_column(part, column, available)}
    check_expressions(texts | ({} if where is None else {where: "where"}), dialect_of(native))
    names = {text: f"counterpoise expression {k}" for k, text in enumerate(texts)}
    try:
        if database_of(native) == "sqlite":
            # it allows sums next to plain columns, and returns a row of them even for an empty log
            for text, part in texts.items():
                rows = native.alias("counterpoise_rows").sql(
                    f"SELECT COUNT(*) AS n FROM (SELECT ({text}\n) FROM counterpoise_rows WHERE 1 = 0) AS counterpoise_made"
                )
                if rows.to_pyarrow()["n"][0].as_py():
                    raise adds_up(part, text)
        if names or where is not None:
            native = _without_nan(native, [*texts, *([] if where is None else [where])])
            native = _compute("counterpoise_log", native, {name: text for text, name in names.items()}, where)
    except CounterpoiseError:
        raise
    except Exception as error:
        raise cannot_compute([*texts, where], error, available) from error
    if question.log.cluster is not None:
        column = names.get(question.log.cluster, question.log.cluster)
        dtype = nw.from_native(native).collect_schema()[column]
        is_text = dtype in (nw.String, nw.Unknown)  # unknown: such as a UUID
        number = (CHECKSUMS if is_text else REMAINDERS).get(database_of(native))
        if number is not None and (is_text or dtype.is_integer()):
            quoted = '"' + column.replace('"', '""') + '"'
            native = _compute("counterpoise_clusters", native, {CLUSTER: number.format(quoted)})
            if not is_text:  # ibis guesses the type from the first rows, which may be null
                native = native.mutate(**{CLUSTER: native[CLUSTER].cast("int64")})
            names |= {CLUSTER: CLUSTER}
    for k, column in enumerate(question.hashed):
        number = CHECKSUMS.get(database_of(native))
        if number is None:
            raise OptionError(
                f"`baseline=` hashes {column!r}, and there is no MD5 in the SQL of {database_of(native)}.",
                do="Name its levels: a mapping of the column to a list of them.",
            )
        quoted = '"' + names.get(column, column).replace('"', '""') + '"'
        names |= {checksum_of(column): f"counterpoise checksum {k}"}
        native = _compute(f"counterpoise_hash{k}", native, {names[checksum_of(column)]: number.format(quoted)})
    return native, names


def _without_nan(native: Native, texts: Sequence[str]) -> Native:
    """The rows with null for NaN in whatever these texts may use: databases take a NaN to be larger than any number."""
    if database_of(native) == "sqlite":  # which has no NaN
        return native
    frame: LazyRows = nw.from_native(native)
    floats = [name for name, dtype in frame.collect_schema().items() if dtype.is_float()]
    used = may_use(texts, floats)
    if not used:
        return native
    return frame.with_columns(*(nw.when(~nw.col(x).is_nan()).then(nw.col(x)).alias(x) for x in used)).to_native()


def _compute(step: str, native: Native, expressions: Mapping[str, str], where: str | None = None) -> Native:
    """The rows that meet the condition, with further columns: name → expression; every step needs its own name."""
    if database_of(native) == "postgres":
        return postgres.add_columns(native, expressions, where)
    computed = "".join(f', ({text}\n) AS "{name}"' for name, text in expressions.items())
    if is_of(native, "duckdb"):
        kept = native if where is None else native.filter(f"({where}\n)")
        return kept.project(f"*{computed}")
    condition = "" if where is None else f" WHERE ({where}\n)"
    return native.alias(step).sql(f"SELECT *{computed} FROM {step}{condition}")


def fence_of(native: Native) -> Callable[[LazyRows], LazyRows] | None:
    """A limit that limits nothing, but keeps PostgreSQL from planning, and SQLite from computing, for minutes.

    Both copy the expressions of a subquery into the outer query wherever they are used, doubling them with every product, unless
    the subquery has a limit. Other databases do not, and need none.
    """
    return (lambda rows: rows.head(UNLIMITED)) if database_of(native) in ("postgres", "sqlite") else None
