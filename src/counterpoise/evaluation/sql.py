"""The statement for whoever must run it themselves: the one aggregate as SQL text, and the way back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.errors import LogError, OptionError, first_line
from counterpoise.log.arguments import arrange
from counterpoise.log.request import GROUPS, Request
from counterpoise.moments.log_moments import LogMoments
from counterpoise.readers import judge


def sql(
    *,
    dialect: str,
    table: str | Sequence[str],
    reward: str,
    propensity: str,
    target: Any,
    segment: Any = None,
    cluster: str | None = None,
    groups: int | None = None,
    model_reward: str | None = None,
    model_value: Any = None,
    control: Mapping[str, float] | None = None,
    where: str | None = None,
    centre: float = 0.0,
) -> str:
    """The aggregate statement that `evaluate` would run, as text for a database that only you can reach.

    Give its answer to `from_sums`. Any dialect of sqlglot will do ("bigquery", "snowflake", "trino", "postgres", …). Names of
    columns are quoted, anything else is taken for an expression of that dialect. `centre` should lie near the mean reward: sums
    of rewards far from it lose digits.

    >>> text = sql(dialect="bigquery", table="logs", reward="click", propensity="p", target="new")
    >>> "SUM(" in text and "`click`" in text
    True
    """
    import narwhals as nw

    from counterpoise.engines.pushdown import guard, prepare
    from counterpoise.engines.query import aggregate

    ibis, sqlglot = _libraries()
    if not math.isfinite(centre):
        raise OptionError(f"centre must be a number near the mean reward, found {centre!r}.")
    request = _request(
        reward=reward,
        propensity=propensity,
        target=target,
        segment=segment,
        cluster=cluster,
        groups=groups,
        model_reward=model_reward,
        model_value=model_value,
        control=control,
        where=where,
    )
    columns = dict.fromkeys(column for _, column in request.columns)
    names = {column: f"c{k}" for k, column in enumerate(columns)}
    types = {names[column]: "float64" for _, column in request.numbers.values()}
    types |= {names[column]: "string" for column in request.segment}
    types |= {names[request.cluster]: "int64"} if request.cluster is not None else {}
    frame = nw.from_native(ibis.table(types, name="log"))
    rows = guard(prepare(frame, request, names), request)
    largest = {f"top{k}": nw.col(f"t{k}") / nw.col("p") for k in range(len(request.targets))}
    answer = aggregate(rows.with_columns(**largest), request, centre, list(largest))
    answer = answer.with_columns(centre=nw.lit(centre))
    try:
        (outer,) = sqlglot.parse(ibis.to_sql(answer.to_native(), dialect="duckdb"), read="duckdb")
        inner = _inner(sqlglot, table, names, {column: part for part, column in request.columns}, where, dialect)
        whole = outer.transform(lambda node: inner.subquery(node.alias or "log") if _is_log(sqlglot, node) else node)
        return str(whole.sql(dialect=dialect, pretty=True))
    except ValueError as error:  # an unknown dialect
        raise OptionError(f"cannot write the statement for {dialect!r}: {error}.") from error


def from_sums(
    rows: Any,
    *,
    reward: str,
    propensity: str,
    target: Any,
    segment: Any = None,
    cluster: str | None = None,
    groups: int | None = None,
    model_reward: str | None = None,
    model_value: Any = None,
    control: Mapping[str, float] | None = None,
    where: str | None = None,
    drop_bad_rows: bool = False,
) -> LogMoments:
    """The moments of a log from the answer of the statement that `sql` wrote for the same columns.

    `rows` is a frame or a list of mappings. Pass the moments to `evaluate`. Of the weights, sums tell the largest and no more: the
    tail's shape stays unknown.
    """
    import numpy as np
    import polars as pl

    from counterpoise.engines.assemble import assemble, labels_of, numbers_of
    from counterpoise.engines.query import is_well_centred

    request = _request(
        reward=reward,
        propensity=propensity,
        target=target,
        segment=segment,
        cluster=cluster,
        groups=groups,
        model_reward=model_reward,
        model_value=model_value,
        control=control,
        where=where,
    )
    answer = _checked(_frame(rows), request)
    total = int(numbers_of(answer.select("n"))["n"].sum())
    if total == 0:
        raise LogError("the log has no rows.")
    centre = float(answer.get_column("centre")[0])
    good = answer.with_columns(n=pl.col("p_count")).filter(pl.col("n") > 0)
    n = int(numbers_of(good.select("n"))["n"].sum())
    if n < total and (not drop_bad_rows or n == 0):
        raise LogError(
            f"{total - n:,} of {total:,} rows have impossible values (propensity outside (0, 1], target outside [0, 1], no finite "
            "reward). Fix the logger, or leave them out with drop_bad_rows=True."
        )
    labels = labels_of(good, request)
    if not is_well_centred(numbers_of(good), labels):
        mean = centre + float(good.get_column("s").sum()) / n
        raise LogError(
            f"the rewards lie around {mean:.12g}, too far from the statement's centre {centre:.12g} for errors to keep their digits: write "
            f"it again with centre={mean:.12g}, or one for each segment where these are worlds apart."
        )
    largest: dict[str, dict[Any, Any]] = {}
    for k in range(len(request.targets)):
        tops = largest[f"t{k}"] = {}
        for label, top in zip(labels, good.get_column(f"top{k}").to_list(), strict=True):
            tops[label] = np.array([max(top, *tops.get(label, [0.0]))])
    return assemble(numbers_of(good), labels, largest, request, centre, dropped=total - n)


def _checked(answer: Any, request: Request) -> Any:
    """The answer with its sums as numbers, if it is one to the statement of this request."""
    import narwhals as nw
    import polars as pl

    from counterpoise.engines.query import aggregate

    tops = [f"top{k}" for k in range(len(request.targets))]
    keys = [f"k{j}" for j in range(len(request.segment))]
    columns = [*request.numbers, *tops, *keys, *(["g"] if request.groups > 1 else [])]
    empty = nw.from_native(pl.LazyFrame(schema=dict.fromkeys(columns, pl.Float64)))
    expected = [*aggregate(empty, request, 0.0, tops).collect_schema().names(), "centre"]
    missing = [name for name in expected if name not in answer.columns]
    if missing:
        raise LogError(
            f"these are not the rows of this request's statement: {', '.join(missing[:5])} is missing. Give `from_sums` the same "
            "columns, targets and groups as `sql`."
        )
    try:
        answer = answer.select(*keys, *(pl.col(name).cast(pl.Float64) for name in expected if name not in keys))
    except pl.exceptions.PolarsError as error:
        raise LogError(f"the rows of the statement hold what is no number: {first_line(error)}.") from error
    if request.groups > 1 and answer.height and answer.get_column("g").max() >= request.groups:
        raise LogError(f"the rows of the statement are of more than {request.groups} groups: give groups= as to `sql`.")
    return answer


def _request(*, cluster: str | None, groups: int | None, **parts: Any) -> Request:
    if groups is not None and cluster is None:
        raise OptionError("groups need a cluster, by which a database tells them: pass cluster= too.")
    return arrange("", cluster=cluster, groups=(groups or GROUPS) if cluster else 1, drop_bad_rows=True, **parts)[1]


def _libraries() -> tuple[Any, Any]:
    try:
        import ibis
        import sqlglot
    except ImportError as error:
        raise OptionError("writing SQL needs ibis: pip install 'counterpoise[ibis]'.") from error
    return ibis, sqlglot


def _inner(
    sqlglot: Any,
    table: str | Sequence[str],
    names: Mapping[str, str],
    parts: Mapping[str, str],
    where: str | None,
    dialect: str,
) -> Any:
    """The log's columns under plain names; what is one word is a name and quoted, all else is an expression."""
    path = [table] if isinstance(table, str) else list(table)
    quoted = [sqlglot.exp.to_identifier(name, quoted=True) for name in path]
    place = sqlglot.exp.Table(**dict(zip(("this", "db", "catalog"), reversed(quoted), strict=False)))
    chosen = []
    for text, name in names.items():
        is_name = _is_name(text)
        value = sqlglot.exp.column(text, quoted=True) if is_name else judge.parsed(parts[text], text, dialect)
        chosen.append(value.as_(name, quoted=True))
    query = sqlglot.select(*chosen).from_(place)
    return query.where(judge.parsed("where", where, dialect)) if where else query


def _is_name(text: str) -> bool:
    """Whether a text is one word, or too odd to be arithmetic: without the table at hand, that is all there is to go by."""
    return text.isidentifier() or not any(sign in text for sign in "+-*/()<>=")


def _is_log(sqlglot: Any, node: Any) -> bool:
    return isinstance(node, sqlglot.exp.Table) and node.name == "log"  # the only table there is


def _frame(rows: Any) -> Any:
    import narwhals as nw
    import polars as pl

    if isinstance(rows, list | tuple):
        return pl.DataFrame(rows, infer_schema_length=None)
    frame = nw.from_native(rows)
    return frame.lazy().collect("polars").to_native()
