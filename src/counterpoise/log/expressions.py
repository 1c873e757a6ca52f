"""Columns by their exact names, and columns computed from those of the log: SQL expressions and chosen actions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import narwhals as nw
import polars as pl
import polars.selectors as cs

from counterpoise.errors import ColumnError, OptionError, first_line
from counterpoise.log.parts import usual
from counterpoise.log.targets import Always, argument_of

if TYPE_CHECKING:
    from counterpoise.log.question import Question

PolarsFrame = TypeVar("PolarsFrame", pl.DataFrame, pl.LazyFrame)
LazyRows = nw.LazyFrame[Any]  # rows that another library holds


def column(name: str) -> pl.Expr:
    """The column with exactly this name; `pl.col` would read '*' and '^…$' as patterns."""
    return cs.by_name(name).as_expr()


def columns(names: Iterable[str]) -> list[pl.Expr]:
    """The columns with exactly these names."""
    return [column(name) for name in names]


def sql_name(name: str) -> str:
    """A column's name as SQL has it: in quotes where it needs them.

    >>> sql_name("p"), sql_name("my p")
    ('p', '"my p"')
    """
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class ReadPlan:
    """Which columns of the log to read, and which expressions to compute from them."""

    read: tuple[str, ...]
    expressions: tuple[str, ...]
    number: str | None = None  # name of a column for the row's number in the log

    def complete(self, frame: PolarsFrame, question: Question) -> PolarsFrame:
        """The rows that meet the condition, with a column for every expression and deterministic target."""
        frame = only(frame if self.number is None else frame.with_row_index(self.number), question.log.where)
        frame = computed(frame, self.expressions)
        if question.choices:
            logged = str(question.log.action)
            action, schema = column(logged), frame.collect_schema()
            frame = frame.with_columns(
                pl.lit(_constant(always, logged, schema[logged])).alias(name)
                for name, always in question.constants.items()
            )
            schema = frame.collect_schema()
            for chosen in (
                target.source_column for target in question.choices
            ):  # a lazy frame would complain once it runs
                types = {"chosen": schema[chosen], "action": schema[logged]}
                try:
                    pl.DataFrame(schema=types).select(pl.col("chosen") == pl.col("action"))
                except pl.exceptions.PolarsError as error:
                    raise not_comparable(chosen, schema[chosen], logged, schema[logged]) from error
            frame = frame.with_columns(
                (column(target.source_column) == action).cast(pl.Float64).alias(target.column)
                for target in question.choices
            )
        return frame


def _constant(always: Always, logged: str, dtype: pl.DataType | nw.dtypes.DType) -> str | float:
    """The action that a target always takes, as the log has it: its text will do where logged actions are numbers or booleans."""
    action, is_number, is_boolean = always.action, dtype.is_numeric(), dtype in (pl.Boolean, nw.Boolean)
    if isinstance(action, str) and is_boolean and action.lower() in ("true", "false"):
        return action.lower() == "true"
    if isinstance(action, str) and is_number:
        for read in (int, float):
            with suppress(ValueError):
                return read(action)
    is_text = isinstance(action, str)
    fits = not is_number and not is_boolean if is_text else is_boolean if isinstance(action, bool) else is_number
    if not fits:
        raise ColumnError(
            f"{always!r} is not among the logged actions, since those in {logged!r} are {dtype}.",
            do="Give it one of them.",
        )
    return action


def not_comparable(chosen: str, its_type: object, action: str, logged_type: object) -> ColumnError:
    """The error for chosen actions that can never equal a logged one."""
    return ColumnError(
        f"the chosen actions in {chosen!r} are {its_type}, and the logged ones in {action!r} are {logged_type}.",
        do="Give both the same type.",
    )


def computed(frame: PolarsFrame, expressions: Sequence[str]) -> PolarsFrame:
    """The rows with a column for every SQL expression, under its own text."""
    if not expressions:
        return frame
    # The names are ours, so that no name of the user's needs quoting.
    names = {f"counterpoise expression {k}": text for k, text in enumerate(expressions)}
    more = "".join(f', ({text}\n) AS "{name}"' for name, text in names.items())
    try:
        frame = _run_sql(frame, f"SELECT *{more} FROM self", *expressions)
        schema = frame.collect_schema()
    except pl.exceptions.PolarsError as error:
        texts = " or ".join(map(repr, expressions))
        raise ColumnError(f"cannot compute {texts} from this log: {first_line(error)}.") from error
    return frame.rename({name: text for name, text in names.items() if name in schema})


def only(frame: PolarsFrame, where: str | None) -> PolarsFrame:
    """The rows that meet an SQL condition; it may also compare dates with text."""
    if where is None:
        return frame
    try:
        _expression("where", where, _respelt(where, _plain_names(frame.collect_schema())))
        return _run_sql(frame, f"SELECT * FROM self WHERE ({where}\n)", where)
    except (pl.exceptions.SQLSyntaxError, pl.exceptions.SQLInterfaceError, pl.exceptions.ColumnNotFoundError) as error:
        own = [name for name in frame.collect_schema() if not name.startswith("counterpoise ")]
        if isinstance(error, pl.exceptions.ColumnNotFoundError):
            roots_of("where", where, own)  # which says what is not there, and what was meant
        said = f"`where={where!r}` is not an SQL condition on this log: {first_line(error)}."
        raise ColumnError(said, do=_quoting("where", where, own)) from error
    except pl.exceptions.PolarsError as error:
        raise ColumnError(
            f"`where={where!r}` does not fit the types of this log: {first_line(error)}.",
            do="Write numbers without quotes.",
        ) from error


def may_use(texts: Iterable[str], names: Iterable[str]) -> list[str]:
    """The columns that SQL texts may use, and perhaps a few more: those whose names appear in them."""
    written = "\n".join(texts).casefold()
    return [name for name in names if name.replace('"', '""').casefold() in written]


def _run_sql(frame: PolarsFrame, query: str, *texts: str) -> PolarsFrame:
    """The answer to a query; comparing a NaN with anything in its `texts` is unknown, as it is for null."""
    floats = may_use(texts, (name for name, dtype in frame.collect_schema().items() if dtype.is_float()))
    kept = {name: f"counterpoise number {k}" for k, name in enumerate(floats)}
    if kept:
        frame = frame.with_columns(
            *(column(name).alias(copy) for name, copy in kept.items()), *(column(name).fill_nan(None) for name in kept)
        )
        frame = _try_sql(frame, query)
        return frame.with_columns(column(copy).alias(name) for name, copy in kept.items()).drop(*kept.values())
    return _try_sql(frame, query)


def _try_sql(frame: PolarsFrame, query: str) -> PolarsFrame:
    """The answer to a query, tried on one row of nulls first, because a lazy frame would complain about types only later."""
    schema = frame.collect_schema()
    plain = _plain_names(schema)
    query = _respelt(query, plain)
    probe = pl.DataFrame({name: [None] for name in schema}, schema=schema)
    probe.rename(plain).sql(query, table_name="self")
    return frame.rename(plain).sql(query, table_name="self").rename({name: odd for odd, name in plain.items()})


def _plain_names(names: Iterable[str]) -> dict[str, str]:
    """Other names for the columns that polars' SQL would read as patterns, and then refuse."""
    odd = [name for name in names if name == "*" or (name.startswith("^") and name.endswith("$"))]
    return {name: f"counterpoise column {k}" for k, name in enumerate(odd)}


def _respelt(text: str, names: Mapping[str, str]) -> str:
    """SQL with other names for some quoted columns; text in single quotes stays as it is."""

    def spell(match: re.Match[str]) -> str:
        name = match[1] and match[1].replace('""', '"')
        return f'"{names[name]}"' if name in names else match[0]

    return _QUOTED.sub(spell, text) if names else text


_QUOTED = re.compile("'(?:[^']|'')*'" + '|"((?:[^"]|"")*)"')


DIGITS = 38  # of decimals: all that polars reads from files
WIDE = ("Int128", "UInt128")  # older polars versions lack one of them


def check_digits(schema: Mapping[str, pl.DataType], names: Iterable[str]) -> None:
    """Check that no decimals have more digits than we can read."""
    for name in names:
        dtype = schema[name]
        if isinstance(dtype, pl.Decimal) and (dtype.precision or 0) > DIGITS:
            raise ColumnError(
                f"column {name!r} holds decimals of {dtype.precision} digits, and at most {DIGITS} can be read. Write it as "
                f"float64, or as decimals of {DIGITS} digits."
            )


def of_64_bits(frame: pl.DataFrame, question: Question) -> pl.DataFrame:
    """The batch with actions and contexts that NumPy can hold, which has no whole numbers of 128 bits."""
    looked_at = {str(question.log.action), *question.log.context}
    wide = [name for name, dtype in frame.schema.items() if name in looked_at and str(dtype) in WIDE]
    for name in wide:
        try:
            frame = frame.with_columns(column(name).cast(pl.Int64))
        except pl.exceptions.PolarsError as error:
            raise ColumnError(
                f"column {name!r} has whole numbers of more than 64 bits, which policies and models cannot take.",
                do="Make them text, or number them from 0.",
            ) from error
    return frame


def plan(question: Question, names: Sequence[object], number: str | None = None) -> ReadPlan:
    """What to read and what to compute: a text that names a column is that column, and any other is an SQL expression."""
    available = [name for name in names if isinstance(name, str)]
    read: dict[str, None] = {}
    expressions: dict[str, None] = {}
    for part, text in question.columns:
        if text in available:
            read[text] = None
            continue
        roots = roots_of(part, text, available)
        expressions[text] = None
        read |= dict.fromkeys(roots)
    if question.log.where is not None:
        read |= dict.fromkeys(roots_of("where", question.log.where, available))
    clash = [target.name for target in (*question.choices, *question.policies) if target.column in read]
    if clash:
        raise OptionError(f"target {clash[0]!r} has the name of a column that is read: give it another name.")
    return ReadPlan(tuple(read), tuple(expressions), number)


def each_by_itself(question: Question) -> bool:
    """Whether expressions are sure to look at nothing but their own row: those that call no function, and so no window either."""
    texts = [text for _, text in question.columns] + [question.log.where or ""]
    return all(name.casefold() in _BEFORE_BRACKETS for text in texts for name in re.findall(r"(\w+)\s*\(", text))


_BEFORE_BRACKETS = (
    "in",
    "and",
    "or",
    "not",
    "case",
    "when",
    "then",
    "else",
    "between",
    "like",
    "is",
)  # words that call no function


def roots_of(part: str, text: str, available: Sequence[str]) -> list[str]:
    """The columns that an expression uses; raises an error if it is not an expression, or if they do not exist."""
    if not isinstance(text, str):
        raise ColumnError(f"`{part}=` must be the name of a column, found {type(text).__name__}.")
    plain = _plain_names(available)
    back = {name: odd for odd, name in plain.items()}
    try:
        expression = _expression(part, text, _respelt(text, plain))
        spelt = expression.meta.root_names()
        roots = [back.get(name, name) for name in spelt]
    except pl.exceptions.PolarsError as error:
        if part == "where":
            said = f"`where={text!r}` is not an SQL condition: {first_line(error)}."
            raise ColumnError(said, do=_quoting(part, text, available)) from error
        raise missing(part, text, available) from error
    unknown = [name for name in roots if name not in available]
    if unknown and (len(roots) == 1 and roots[0] == text):
        raise missing(part, text, available)
    if unknown:
        raise missing(part, unknown[0], available, inside=text)
    two_rows = pl.DataFrame({name: [None, None] for name in spelt} or {"": [None, None]}).lazy()
    with suppress(pl.exceptions.PolarsError):  # without types, this cannot always tell, but the engine will
        if roots and two_rows.select(expression.alias("probe")).collect().height != 2:
            raise adds_up(part, text)
    return roots


def adds_up(part: str, text: str) -> ColumnError:
    """The error for an aggregate where a value per row is needed."""
    return ColumnError(
        f"{argument_of(part, text)} must give one value per row, but adds up rows. Write it without aggregates."
    )


def _expression(part: str, text: str, spelt: str) -> pl.Expr:
    """A text (and how polars reads it) that is one expression and looks only at this log; a subquery could only read a file."""
    expression = pl.sql_expr(spelt)
    hidden = (name for name in expression.meta.root_names() if name.startswith("_POLARS_TMP"))
    if ".subplan(" in str(expression) or next(hidden, None) is not None:
        raise ColumnError(
            f"{argument_of(part, text)} must read no files: write it without SELECT, of the log's columns alone."
        )
    return expression


# -- Where a log lives outside this process, in a database or in Spark -------------------------------------------------


def has_column(part: str, column: str, available: Sequence[str]) -> bool:
    """Whether a text names a column; a text that looks like a name but does not exist is a mistake, and any other is an expression."""
    if column in available:
        return True
    if re.fullmatch(r"\w+", column):
        raise missing(part, column, available)
    return False


def with_actions(frame: LazyRows, question: Question, names: dict[str, str]) -> tuple[LazyRows, dict[str, str]]:
    """A column for every deterministic target: 1 if the logged action is the one it takes, 0 if not, null if unknown."""
    action = nw.col(names.get(str(question.log.action), str(question.log.action)))
    choice_names = {target.column: f"counterpoise choice {k}" for k, target in enumerate(question.choices)}
    chosen = []
    types = frame.collect_schema() if question.choices else {}
    logged = str(question.log.action)
    constants = {name: f"counterpoise action {k}" for k, name in enumerate(question.constants)}
    if constants:
        dtype = types[names.get(logged, logged)]
        actions = zip(constants.values(), question.constants.values(), strict=True)
        frame = frame.with_columns(nw.lit(_constant(always, logged, dtype)).alias(name) for name, always in actions)
        names, types = names | constants, frame.collect_schema()
    for target in question.choices:
        its, other = (types[names.get(name, name)] for name in (target.source_column, logged))
        if nw.String in (its, other) and (its.is_numeric() or other.is_numeric()):
            raise not_comparable(target.source_column, its, logged, other)
    for target in question.choices:
        same = nw.col(names.get(target.source_column, target.source_column)) == action
        chosen.append(nw.when(~same.is_null()).then(indicator(same)).alias(choice_names[target.column]))
    # one step for all: a step for each would nest that many subqueries
    return frame.with_columns(*chosen) if chosen else frame, names | choice_names


def cannot_compute(expressions: Sequence[str | None], error: Exception, available: Sequence[str]) -> ColumnError:
    """The error for an expression or condition that is not valid here."""
    texts = [text for text in expressions if text is not None]
    quoted = next(filter(None, (in_quotes(text, available) for text in texts)), "")
    return ColumnError(
        f"the database cannot compute {' or '.join(map(repr, texts))}: {first_line(error)}. The log has "
        f"{', '.join(map(repr, available))}.",
        do=f"Text needs single quotes: {quoted!r}." if quoted else "",
    )


# what a comparison has on its right, unless that is in single quotes; a name before a bracket is a function
_COMPARED = re.compile(
    r"""'(?:[^']|'')*'|(?:[=<>]|\blike\s|\bin\s*\((?:[^()]*,)?)\s*(?P<word>[^\W\d]\w*|"[^"]+")(?!\w|\s*[(=<>])""",
    re.IGNORECASE,
)
_WORDS = {"true", "false", "null", "not", "case", "date", "timestamp", "interval", "cast", "current_date"}


def in_quotes(text: str, available: Sequence[str]) -> str | None:
    """A condition with the words that it compares with in single quotes, if some are not columns; None if all are.

    >>> in_quotes("country in (DE, FR) and age > 3", ["country", "age"]), in_quotes("age > old", ["age", "old"])
    ("country in ('DE', 'FR') and age > 3", None)
    """
    words = {name.lower() for name in available} | _WORDS
    for match in _COMPARED.finditer(text):
        word = (match["word"] or "").strip('"')
        if word and word.lower() not in words:
            quoted = f"{text[: match.start('word')]}'{word}'{text[match.end('word') :]}"
            return in_quotes(quoted, available) or quoted
    return None


def _quoting(part: str, text: str, available: Sequence[str]) -> str:
    """What to do about words without quotes, if there are any."""
    quoted = in_quotes(text, available)
    return f"Text needs single quotes: {argument_of(part, quoted)}." if quoted else ""


def missing(part: str, column: str, available: Sequence[str], inside: str = "") -> ColumnError:
    """The error for a column that does not exist, which suggests the nearest names."""
    near = difflib.get_close_matches(column, available, n=1) or [name for name in (usual(part, available),) if name]
    shown = ", ".join(map(repr, available[:20])) + (f" and {len(available) - 20} more" if len(available) > 20 else "")
    hint, has = f"Did you mean {near[0]!r}?" if near else "", f"; the log has {shown or 'no columns'}."
    if inside:
        do = _quoting(part, inside, available)
        return ColumnError(f"no column {column!r} in {argument_of(part, inside)}{has}", suggestion=hint, do=do)
    value = f"{argument_of(part, near[0])}." if near else f"`{part}=` one of these, or an SQL expression of them."
    return ColumnError(f"no column {column!r} for {part}{has}", suggestion=hint, do=f"Pass {value}")


def indicator(condition: nw.Expr) -> nw.Expr:
    """1.0 where a condition holds, else 0.0; some engines cannot add up booleans, and some read 1.0 as an exact decimal."""
    return nw.when(condition).then(nw.lit(1)).otherwise(nw.lit(0)).cast(nw.Float64)
