"""The options that several commands share, and the guess of columns that they leave open."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.errors import OptionError
from counterpoise.log.log import MODEL, help_of

if TYPE_CHECKING:
    from counterpoise.evaluation.result import Result
    from counterpoise.intervals import Method as IntervalMethod
    from counterpoise.log.guess import Parts
    from counterpoise.weights import Weight as Weighing


def _help(part: str, more: str = "") -> str:
    """What a part of a log is, in the words of `Log`, as a sentence."""
    said = help_of(part)
    return f"{said[0].upper()}{said[1:]}.{more and ' '}{more}"


Log = Annotated[
    list[str],
    typer.Argument(
        help="Files (Parquet, CSV, Arrow, JSON lines), a folder or a glob; or a DuckDB file or postgresql:// URL."
    ),
]
_REWARD = "guessed from reward, click, clicked or r."
Reward = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help=f"The reward, a column or an SQL expression; {_REWARD}"),
]
Rewards = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help=f"The reward, a column or an SQL expression; may be repeated; {_REWARD}"),
]
Propensity = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help=_help("propensity", "Guessed from the usual names.")),
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]EXPRESSION",
        help="A target policy's probability of the logged action: a column, or an SQL expression of columns; or the .safetensors file "
        "that learn wrote, with --context and --action. May be repeated; guessed. What is a column's name as a whole is that column; "
        "a comparison has blanks around its equals sign, 'shown = best'.",
    ),
]
TargetAction = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NAME=]COLUMN", help="The action that a deterministic target takes, with --action; may be repeated."
    ),
]
Action = Annotated[str | None, typer.Option(metavar="COLUMN", help=_help("action"))]
Context = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help=_help("context", "May be repeated."))]
Candidates = Annotated[
    str | None, typer.Option(metavar="COLUMN", help=_help("candidates", "Text such as a|b, or a JSON list, will do."))
]
Baseline = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help=_help("baseline", "May be repeated."))]
PropensityModel = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Propensities were not logged: estimate them by a model of --action given --context, logistic or boosted. With --propensity, "
        "the model speaks only for rows without a number there. Needs the extra models.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Fit a reward model on the log, with --context and --action, for targets that say how they choose among all actions: "
        "auto, logistic, ridge or boosted. Needs the extra models.",
    ),
]
Items = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="What is known of the actions, one row for each, for --model; the id comes first."
    ),
]
ValueSamples = Annotated[int | None, typer.Option(metavar="M", help=_help("value_samples"))]
Segments = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="Report every value of this column too, one known before the choice; may be repeated."
    ),
]
Cluster = Annotated[str | None, typer.Option(metavar="COLUMN", help=_help("cluster"))]
NoCluster = Annotated[
    bool, typer.Option("--no-cluster", help="Rows are independent, though a column such as user_id suggests otherwise.")
]
Slate = Annotated[str | None, typer.Option(metavar="COLUMN", help=_help("slate"))]
Position = Annotated[str | None, typer.Option(metavar="COLUMN", help=_help("position"))]
PropensityOf = Annotated[str | None, typer.Option(metavar="MEANING", help=_help("propensity_of"))]
Discount = Annotated[str | None, typer.Option(metavar="COLUMN", help=_help("discount"))]
Where = Annotated[str | None, typer.Option(metavar="SQL", help=_help("where"))]
TableName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=_help("table", "shop.logs is logs in the schema shop.")),
]
Query = Annotated[str | None, typer.Option(metavar="SQL", help=_help("query"))]
ExternalAccess = Annotated[bool, typer.Option("--external-access", help=_help("external_access"))]
Level = Annotated[float, typer.Option(metavar="SHARE", help="Confidence level of the intervals.")]
Method = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="student (the default, with or without clusters), normal, jackknife, anytime; of evaluate also bernstein and log_smoothing.",
    ),
]
Weight = Annotated[
    str | None,
    typer.Option(
        metavar="NAME:CONSTANT",
        help="A weight that trades bias for variance: clip:10, shrink:100, switch:10, harmonic:0.1, exponential-smoothing:0.9 or "
        "implicit-exploration:0.01; clip:slope lets the log choose the constant, clip:5,50,500 from these. For "
        "lists: independent, cascade, standard or pseudo-inverse.",
    ),
]
MaxSegments = Annotated[int | None, typer.Option(metavar="N", help=_help("max_segments"))]
Groups = Annotated[int | None, typer.Option(metavar="G", help=_help("groups"))]
RewardBounds = Annotated[
    tuple[float, float] | None,
    typer.Option(metavar="LOW HIGH", help=_help("reward_bounds", "For bernstein, and where all rewards are the same.")),
]
TunedFor = Annotated[
    float,
    typer.Option(
        metavar="ROWS", help="Size of log at which anytime intervals are narrowest; choose it before looking."
    ),
]
MaxWeight = Annotated[
    float | None,
    typer.Option(metavar="W", help="1 / (the smallest propensity that the logging policy can give); for bernstein."),
]
DropBadRows = Annotated[bool, typer.Option("--drop-bad-rows", help=_help("drop_bad_rows"))]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
CheckCoverage = Annotated[
    bool,
    typer.Option(
        "--check-coverage",
        help="Draw logs like this one and count how often the interval covers (reads the log again).",
    ),
]
Sensitivity = Annotated[
    bool,
    typer.Option(
        "--sensitivity",
        help="Say how wrong propensities must be for the conclusion to flip (reads the log again).",
    ),
]
CoverageRuns = Annotated[int, typer.Option(metavar="N", help="Logs that --check-coverage draws.")]
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


def cluster_of(column: str | None, no_cluster: bool) -> Any:
    """The clusters as the library takes them: a column, or False where there are none."""
    if column is not None and no_cluster:
        raise OptionError("--cluster says what moves together, and --no-cluster that nothing does: choose one of them.")
    return False if no_cluster else column


def one_or_several(rewards: Sequence[str] | None, first: str) -> Any:
    """The rewards as the library takes them: those that were named, or the one that was guessed."""
    return list(rewards) if rewards and len(rewards) > 1 else first


def items_of(path: str | None) -> Any:
    """The items of a file, as a frame."""
    return None if path is None else table_of(path)


def table_of(path: str) -> Any:
    """A file, as a frame."""
    from counterpoise.engines.rows import collect
    from counterpoise.readers import files

    return collect(files.scan(path))


def data_of(log: Sequence[str]) -> Any:
    """The log's data as the library takes them: one place, or the files that a shell made of a glob."""
    return log[0] if len(log) == 1 else list(log)


def guess_parts(
    columns: Sequence[str],
    reward: str | None,
    propensity: str | None,
    target: Mapping[str, Any],
    *,
    quiet: bool,
    propensity_model: str | None = None,
) -> tuple[Parts, dict[str, Any]]:
    """The columns to use, and the targets by name; what was guessed is printed, to standard error where standard output is for machines."""
    from counterpoise.cli.printing import console, say
    from counterpoise.log.guess import guess

    logged = MODEL if propensity_model is not None and propensity is None else propensity
    parts = guess(columns, reward=reward, propensity=logged, target=tuple(target))
    if parts.guessed:
        say(console(stderr=quiet), f"Guessed from the names: {parts}.")
    return parts, dict(target) or {name: name for name in parts.target}


def propensity_of(column: str, model: str | None) -> Any:
    """The propensities as the library takes them: a column, or a model for all rows, or for those without a number in the column."""
    if model is None:
        return column
    from counterpoise.models import Propensity

    return Propensity(model, column=None if column == MODEL else column)


def method(interval: str | None, **own: Any) -> IntervalMethod | None:
    """The interval that a name and its own options ask for; without a name, whichever suits the log."""
    from counterpoise.intervals import strategy

    return None if interval is None else strategy(interval, is_clustered=False, options=own)


def weight_of(text: str | None) -> Weighing | None:
    """The weight that a name and its constant ask for; without a name, the importance weight."""
    from counterpoise.weights.names import weight_of

    return None if text is None else weight_of(text)


def is_unidentified(result: Result) -> bool:
    """Whether the log says nothing about one of the targets; segments are too many and too small to count."""
    verdicts = (pair for answer in result.by_reward.values() for pair in answer.verdicts.items())
    whole = (verdict for (_, segment), verdict in verdicts if segment is None)
    return any(verdict.verdict == "not identified" for verdict in whole)
