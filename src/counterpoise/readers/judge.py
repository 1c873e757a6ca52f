"""What an SQL text may be: a query that only reads, one condition, or one expression; a parser decides before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from counterpoise.errors import Argument, ColumnError, OptionError, first_line
from counterpoise.log.targets import argument_of

Parse = Callable[[str], list[Any]]

_READING = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}


def check_query(query: str, dialect: Any) -> None:
    """Refuse a query that is not one statement, or does anything but read."""
    if dialect == "duckdb":
        reads = _duckdb_reads(query)
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
        "query must be one statement that only reads: SELECT, WITH … SELECT or VALUES, without a second one behind it"
        f"{f'; the database says: {reason}' if reason else ''}. Nothing was run."
    )


def check_expressions(texts: Mapping[str, str], dialect: Any) -> None:
    """Refuse any of these texts (text → the part it plays) that is not one condition or expression."""
    if dialect != "duckdb":
        for text, part in texts.items():
            tree_of(part, text, dialect)
    elif texts:
        with _duckdb_parser() as parse:
            for text, part in texts.items():
                _check_duckdb_expression(parse, part, text)


def not_one(part: str, text: str) -> ColumnError:
    """The error that a text is more than one expression."""
    return ColumnError([argument_of(part, text), f" must be one {_what(part)}, not a statement."])


def tree_of(part: str, text: str, dialect: Any) -> Any:
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
                [
                    argument_of(part, text),
                    f" is not an SQL {_what(part)} that {_name(dialect)} understands: {first_line(error)}.",
                ]
            ) from error
        if len(statements) != 1 or not _is_one_column(sqlglot.exp, statements[0]):
            raise not_one(part, text)
        trees.append(statements[0].expressions[0])
    if not _reads(sqlglot.exp, [trees[0].parent_select]):
        raise not_one(part, text)
    if trees[0].find(sqlglot.exp.Query, sqlglot.exp.Table) is not None:
        raise _looks_elsewhere(part, text)
    return trees[0].pop()


def _looks_elsewhere(part: str, text: str) -> ColumnError:
    """The error for a condition or expression with a query in it, which could look at anything that the connection may."""
    return ColumnError(
        [
            argument_of(part, text),
            " must read no files and no other tables: write it of the log's own columns, without SELECT.",
        ],
        do=["If it needs more, join that to the log with ", Argument("query"), "."],
    )


def _name(dialect: Any) -> str:
    return str(getattr(dialect, "__name__", dialect or "SQL"))


def _what(part: str) -> str:
    return "condition" if part == "where" else "expression"


def _statements(sqlglot: Any, text: str, dialect: Any) -> list[Any]:
    statements = sqlglot.parse(text, read=dialect)
    return [tree for tree in statements if tree is not None and not isinstance(tree, sqlglot.exp.Semicolon)]


def _reads(exp: Any, statements: list[Any]) -> bool:
    if len(statements) != 1 or not isinstance(statements[0], exp.Query | exp.Values):
        return False
    writing = (exp.DML, exp.DDL, exp.Command, exp.Copy, exp.Into, exp.Lock)
    return statements[0].find(*writing) is None


def _is_one_column(exp: Any, tree: Any) -> bool:
    clauses = {name for name, value in tree.args.items() if value}
    if not isinstance(tree, exp.Select) or clauses != {"expressions"} or len(tree.expressions) != 1:
        return False
    return not isinstance(tree.expressions[0], exp.Alias | exp.Star)


@contextmanager
def _duckdb_parser() -> Iterator[Parse]:
    """DuckDB's own parser: a text's statements as trees, or a ValueError for anything but a SELECT; the connection is ours."""
    import duckdb

    def parse(text: str) -> list[Any]:
        answer = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchone()
        tree = json.loads(str(answer[0] if answer else "{}"))
        if tree.get("error", True):
            raise ValueError(tree.get("error_message", "it cannot be read"))
        return [_without_places(statement) for statement in tree["statements"]]

    with duckdb.connect() as connection:
        yield parse


def _duckdb_reads(query: str) -> bool:
    try:
        with _duckdb_parser() as parse:
            trees = parse(query)
    except ValueError as error:
        raise not_one_query(first_line(error)) from error
    return len(trees) == 1 and all(node["type"] in _READING for node in _nodes(trees[0]) if _is_query(node))


def _check_duckdb_expression(parse: Parse, part: str, text: str) -> None:
    """The same check as in `parsed`, with DuckDB's own parser; and the text may make no rows or columns on the side."""
    try:
        bare, bracketed = (parse(f"SELECT {column}\n") for column in (text, f"({text}\n)"))
    except ValueError as error:
        raise ColumnError(
            [argument_of(part, text), f" must be one {_what(part)} that DuckDB understands: {first_line(error)}."]
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
            [argument_of(part, text), " must give one value per row. Write it without unnest and COLUMNS."]
        )


def _is_query(node: Mapping[str, Any]) -> bool:
    return str(node.get("type", "")).endswith("_NODE")


def _nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for part in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(part)


def _without_places(tree: Any) -> Any:
    """A tree that does not know where in the text it came from."""
    if isinstance(tree, dict):
        return {name: _without_places(part) for name, part in tree.items() if not name.startswith("query_location")}
    return [_without_places(part) for part in tree] if isinstance(tree, list) else tree
