"""The options that several commands share, and the guess of columns that they leave open."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.errors import OptionError

if TYPE_CHECKING:
    from counterpoise.evaluation.result import Result
    from counterpoise.log.guess import Parts

Log = Annotated[
    str,
    typer.Argument(help="A file (Parquet, CSV, Arrow, JSON lines), folder, glob, DuckDB file or postgresql:// URL."),
]
Reward = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column of the reward; guessed from reward, click, clicked or r.")
]
Propensity = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of the logging policy's probability of the logged action; guessed from the usual names.",
    ),
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="Column of a target policy's probability of the logged action; may be repeated; guessed."
    ),
]
Segments = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="Report every value of this column too, one known before the choice; may be repeated."
    ),
]
Cluster = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Column of the unit of randomization, such as the user.")
]
Where = Annotated[str | None, typer.Option(metavar="SQL", help="Only rows that meet this condition count.")]
TableName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The log's table, where LOG is a database; shop.logs is logs in the schema shop."
    ),
]
Query = Annotated[str | None, typer.Option(metavar="SQL", help="The log's rows, where LOG is a database.")]
ExternalAccess = Annotated[
    bool, typer.Option("--external-access", help="Let a DuckDB file that you trust read files outside itself.")
]
Level = Annotated[float, typer.Option(metavar="SHARE", help="Confidence level of the intervals.")]
Method = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD", help="normal, jackknife (the default with a cluster), anytime, or (evaluate) bernstein."
    ),
]
Groups = Annotated[
    int | None,
    typer.Option(metavar="G", help="Groups that clusters or rows are hashed into, for jackknife and cross_fit."),
]
RewardBounds = Annotated[
    tuple[float, float] | None,
    typer.Option(
        metavar="LOW HIGH", help="What rewards can be, known beforehand: for bernstein, and where all are the same."
    ),
]
TunedFor = Annotated[
    float,
    typer.Option(
        metavar="ROWS", help="Size of log at which anytime intervals are narrowest; choose it before looking."
    ),
]
DropBadRows = Annotated[bool, typer.Option("--drop-bad-rows", help="Leave out rows with impossible values.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit 1 if the log does not identify some target (over the whole log).")
]


def table_path(name: str | None) -> Any:
    """A table's name as the library takes it: a list where dots separate schemas; double quotes keep a dot in a name.

    >>> table_path("logs"), table_path("shop.logs"), table_path('shop."odd.name"')
    ('logs', ['shop', 'logs'], ['shop', 'odd.name'])
    """
    if name is None:
        return None
    if not re.fullmatch(rf"{_PART}(\.{_PART})*", name):
        raise OptionError(f'{name!r} is no name of a table: write logs, shop.logs, or "odd.name" in double quotes.')
    parts = [quoted.replace('""', '"') if quoted else bare for quoted, bare in re.findall(_PART, name)]
    return parts[0] if len(parts) == 1 else parts


_PART = r'(?:"((?:[^"]|"")+)"|([^".]+))'


def guess_parts(
    columns: Sequence[str], reward: str | None, propensity: str | None, target: Sequence[str] | None, *, quiet: bool
) -> Parts:
    """The columns to use; what was guessed is printed, to standard error where standard output is for machines."""
    from counterpoise.cli.printing import console, say
    from counterpoise.log.guess import guess

    parts = guess(columns, reward=reward, propensity=propensity, target=target or ())
    if parts.guessed:
        say(console(stderr=quiet), f"Guessed from the names: {parts}.")
    return parts


def is_unidentified(result: Result) -> bool:
    """Whether the log says nothing about one of the targets; segments are too many and too small to count."""
    whole = (verdict for (_, segment), verdict in result.verdicts.items() if segment is None)
    return any(verdict.verdict == "not identified" for verdict in whole)
