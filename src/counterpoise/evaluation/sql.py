"""The one aggregate as SQL text, for a database that only you can reach, and the way back from its answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Unpack

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.typing import IntoFrame

from counterpoise.engines.pushdown import guard, prepare_there
from counterpoise.engines.query import Query, aggregate, is_well_centered
from counterpoise.engines.summarize import Answer, assemble, finished, labels_of, numbers_of
from counterpoise.errors import CounterpoiseError, LogError, OptionError, first_line, verbatim
from counterpoise.evaluation.asking import question_of
from counterpoise.log.columns import GROUP, PROPENSITY, ROWS
from counterpoise.log.kinds.kind import CHANCE
from counterpoise.log.log import Log, as_log
from counterpoise.log.parts import Columns, Data, LogFields
from counterpoise.log.question import Lane, Question
from counterpoise.log.targets import Targets
from counterpoise.log.verbs import need_only, takes_parts
from counterpoise.moments import Floats, LogMoments
from counterpoise.moments.log_moments import Label
from counterpoise.readers.connections import tree_of
from counterpoise.weights import Weight

if TYPE_CHECKING:
    from sqlglot.expressions import Expression, Select

CENTER = "center"


@takes_parts("sql")
def sql(
    log: Log | Data = None,
    *,
    target: Targets = None,
    dialect: str,
    segment: Columns = None,
    weight: Weight | Columns = None,
    center: float = 0.0,
    **parts: Unpack[LogFields],
) -> str:
    """The aggregate statement that `evaluate` would run, as text for a database that only you can reach.

    Describe the log by its table, which is never opened from here: ``Log(table="logs", reward="click", …)``. Run the statement, and
    pass its answer to `from_sums`. Any dialect of sqlglot will do ("bigquery", "snowflake", "trino", "postgres", …). Names of columns are
    quoted; anything else is taken as an expression in that dialect. Choose a `center` near the mean reward, because sums of rewards far
    from it lose digits.

    >>> text = sql(table="logs", reward="click", propensity="p", target="new", dialect="bigquery")
    >>> "SUM(" in text and "`click`" in text
    True
    """
    try:
        import ibis
        import sqlglot
    except ImportError as error:
        raise OptionError("writing SQL needs ibis: pip install 'counterpoise[ibis]'.") from error
    if not math.isfinite(center):
        raise OptionError(f"`center={center!r}` is not a number near the mean reward.")
    question = _question(log, parts, target, weight, segment)
    if question.log.table is None:
        raise OptionError("table is missing: name the table that the statement reads.")
    columns = [*(column for _, column in question.columns), *(choice.column for choice in question.choices)]
    names = {column: f"c{k}" for k, column in enumerate(dict.fromkeys(columns))}
    types = {names[column]: "float64" for _, column in question.numbers.values()}
    types |= {names[column]: "string" for column in question.segment}
    types |= {names[question.log.cluster]: "int64"} if question.log.cluster is not None else {}
    frame = nw.from_native(ibis.table(types, name="log"))
    rows = guard(prepare_there(frame, question, names), question).with_columns(**_tops(question))
    answer = aggregate(rows, Query(question.names, (center,)), peaks=list(_tops(question)))
    answer = answer.with_columns(nw.lit(center).alias(CENTER))
    try:
        outer = sqlglot.parse_one(ibis.to_sql(answer.to_native(), dialect="duckdb"), read="duckdb")
        inner, table = _inner(sqlglot, question, names, dialect), sqlglot.exp.Table

        def with_inner(node: Expression) -> Expression:
            is_log = isinstance(node, table) and node.name == "log"  # the only table there is
            return inner.subquery(node.alias or "log") if is_log else node

        statement = outer.transform(with_inner)
        return str(statement.sql(dialect=dialect, pretty=True))
    except CounterpoiseError:
        raise
    except ValueError as error:  # an unknown dialect
        raise OptionError(f"cannot write the statement for {dialect!r}: {verbatim(error)}.") from error


@takes_parts("sql")
def from_sums(
    rows: IntoFrame | Sequence[Mapping[str, object]],
    log: Log | Data = None,
    *,
    target: Targets = None,
    segment: Columns = None,
    weight: Weight | Columns = None,
    **parts: Unpack[LogFields],
) -> LogMoments:
    """The moments of a log, from the answer to the statement that `sql` wrote for the same log, targets and segments.

    `rows` is a frame or a list of mappings. Pass the moments to `evaluate`. Sums only include the largest weight, so the shape of
    the tail stays unknown.
    """
    question = _question(log, parts, target, weight, segment)
    names, drops = question.names, question.log.drop_bad_rows
    if isinstance(rows, Sequence):
        frame = pl.DataFrame(rows, infer_schema_length=None)
    else:
        frame = pl.DataFrame(nw.from_native(rows).lazy().collect("polars").to_native())
    answer = _check_answer(frame, question)
    total = int(answer.get_column(ROWS).sum())
    if total == 0:
        raise LogError("the log has no rows.")
    center = float(answer.get_column(CENTER)[0])
    good = answer.with_columns(pl.col(f"{names.targets[0]}_count").alias(ROWS)).filter(pl.col(ROWS) > 0)
    n = int(good.get_column(ROWS).sum())
    if n < total and (not drops or n == 0):
        others = "".join(f" or {number.part}" for number, _ in question.own_numbers if number.range is CHANCE)
        raise LogError(
            f"{total - n:,} of {total:,} rows have impossible values (propensity{others} outside (0, 1], "
            "target outside [0, 1], no finite reward).",
            do="Fix the logger, or drop them with `drop_bad_rows=True`.",
        )
    numbers, labels = numbers_of(good, names), labels_of(good, names)
    if not is_well_centered(numbers, labels, names):
        mean = center + float(numbers[names.shifted[0]].sum()) / n
        raise LogError(
            f"the rewards lie around {mean:.12g}, too far from the statement's center {center:.12g} for errors to keep their digits.",
            do=f"Write it again with `center={mean:.12g}`, or one for each segment if they are worlds apart.",
        )

    def largest(lane: Lane) -> dict[Label, Floats]:
        tops: dict[Label, Floats] = {}
        for label, top in zip(labels, good.get_column(f"top_{lane.target}").to_list(), strict=True):
            tops[label] = np.array([max(top, *tops.get(label, [0.0]))])
        return tops

    (moments,) = assemble(Answer(numbers, labels, total, n == total, largest), Query(names, (center,)), total)
    return finished(moments, question)


def _tops(question: Question) -> dict[str, nw.Expr]:
    """The weights of every target, whose largest value is wanted."""
    p = nw.col(PROPENSITY) if question.weight.needs_propensity else None
    weights = {f"top_{name}": question.weight.weight(nw.col(name), p) for name in question.names.targets}
    return {name: w if question.kept_with is None else w / nw.col(question.kept_with) for name, w in weights.items()}


def _check_answer(answer: pl.DataFrame, question: Question) -> pl.DataFrame:
    """The answer with its sums as numbers, if it belongs to the statement of this question."""
    names, tops = question.names, list(_tops(question))
    columns = [*question.numbers, *tops, *names.keys]
    empty = nw.from_native(pl.LazyFrame(schema=dict.fromkeys(columns, pl.Float64)))
    expected = [*aggregate(empty, Query(names, (0.0,)), peaks=tops).collect_schema().names(), CENTER]
    missing = [name for name in expected if name not in answer.columns]
    if missing:
        raise LogError(
            f"these are not the rows of this question's statement: {', '.join(missing[:5])} is missing. Give `from_sums` the same "
            "columns, targets and groups as `sql`."
        )
    numbers = [pl.col(name).cast(pl.Float64) for name in expected if name not in names.segments]
    try:
        answer = answer.select(*names.segments, *numbers)
    except pl.exceptions.PolarsError as error:
        raise LogError(
            f"the rows of the statement contain something that isn't a number: {first_line(error)}."
        ) from error
    if question.groups > 1 and bool((answer.get_column(GROUP) >= question.groups).any()):
        raise LogError(
            f"the rows of the statement are of more than {question.groups} groups.",
            do="Pass the same `groups=` as to `sql`.",
        )
    return answer


def _question(
    log: Log | Data, parts: LogFields, target: Targets, weight: Weight | Columns, segment: Columns
) -> Question:
    if parts.get("groups") is not None and parts.get("cluster") is None:
        raise OptionError("groups need a cluster, by which a database tells them apart.", do="Pass `cluster=`, too.")
    if log is None and not parts.get("table"):
        log = ""  # from_sums needs no table
    own_log = as_log(log, parts)
    need_only(own_log, "sql")
    if own_log.has_estimated_propensities:
        raise OptionError(
            "a propensity model runs in Python, and a statement cannot fit it.", do="Evaluate the table itself."
        )
    question = question_of(own_log, target, weight=weight, segment=segment)
    if question.policies:
        raise OptionError(
            f"the policy {question.policies[0].name!r} runs in Python, and a statement cannot call it.",
            do="Write its probabilities of the logged actions to a column, and pass that as `target=`; or evaluate the table itself.",
        )
    return question


def _inner(sqlglot: ModuleType, question: Question, names: Mapping[str, str], dialect: str) -> Select:
    """The log's columns under plain names; a single word is a name and gets quoted, anything else is an expression."""
    table, where = question.log.table, question.log.where
    parts = {column: part for part, column in question.columns}
    path = [table] if isinstance(table, str) else list(table or ())
    exp = sqlglot.exp
    quoted = [exp.to_identifier(name, quoted=True) for name in path]
    place = exp.Table(**dict(zip(("this", "db", "catalog"), reversed(quoted), strict=False)))
    taken = {choice.column: choice.source_column for choice in question.choices}
    constants = {column: exp.convert(always.action) for column, always in question.constants.items()}

    def value(text: str) -> Expression:
        # one word is a name, or what is too odd to be arithmetic; without the table at hand, that is all we have to go by
        is_name = text.isidentifier() or not any(sign in text for sign in "+-*/()<>=")
        tree: Expression = exp.column(text, quoted=True) if is_name else tree_of(parts[text], text, dialect)
        return tree

    def output(text: str) -> Expression:
        if text not in taken:
            return value(text)
        chosen, logged = constants.get(taken[text]) or value(taken[text]), value(str(question.log.action))
        same = exp.EQ(this=exp.paren(chosen), expression=exp.paren(logged))
        yes, no = (exp.cast(exp.Literal.number(number), "double") for number in (1, 0))
        case: Expression = exp.Case().when(same, yes).when(exp.not_(same), no)  # null where one of them is
        return case

    query = sqlglot.select(*(output(text).as_(name, quoted=True) for text, name in names.items())).from_(place)
    kept: Select = query.where(tree_of("where", where, dialect)) if where else query
    return kept
