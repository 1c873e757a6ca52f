"""The options that several commands share: each is declared once, and a command says which groups of them it takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from counterpoise.cli.typed import Typed
from counterpoise.log.parts import LogFields, help_of

P = ParamSpec("P")
ONE, MANY = str | None, list[str] | None
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def _option(
    name: str, kind: Any = ONE, metavar: str | None = "COLUMN", help: str = "", *, more: str = "", default: Any = None
) -> Parameter:
    """An option; a part of a log is explained in the words of `LogFields`, with `more` after them."""
    if name in LogFields.__annotations__ and not help:
        part = help_of(name)
        help = f"{part[0].upper()}{part[1:]}.{more and ' '}{more}"
    if kind is bool:  # without the --no-… that Typer would make up
        return _declared(name, Annotated[bool, typer.Option(f"--{name.replace('_', '-')}", help=help)], False)
    return _declared(name, Annotated[kind, typer.Option(metavar=metavar, help=help)], default)


def _declared(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


# The groups. Every command that reads a log takes LOG, and every one that asks about targets QUESTION; the others are of fewer.
LOG = (
    _declared(
        "log",
        Annotated[
            list[str],
            typer.Argument(
                help="Files (Parquet, CSV, Arrow, JSON lines), a folder or a glob; or a DuckDB file or postgresql:// URL."
            ),
        ],
        Parameter.empty,
    ),
    _option("where", metavar="SQL"),
    _option("table", metavar="NAME", more="shop.logs is logs in the schema shop."),
    _option("query", metavar="SQL"),
    _option("external_access", bool),
    _declared("json", Json, False),
)
_GUESSED = "guessed from reward, click, clicked or r."
REWARD = (_option("reward", help=f"The reward, a column or an SQL expression; {_GUESSED}"),)
REWARDS = (_option("reward", MANY, help=f"The reward, a column or an SQL expression; may be repeated; {_GUESSED}"),)
CLUSTERS = (
    _option("cluster"),
    _option("no_cluster", bool, help="Rows are independent, though a column such as user_id suggests otherwise."),
)
KEY = (_option("key", MANY, more="May be repeated."),)
TARGETS = (
    *REWARD,
    _option("propensity", more="Guessed from the usual names."),
    _option(
        "target",
        MANY,
        "[NAME=]EXPRESSION",
        "A target policy's probability of the logged action: a column, or an SQL expression of columns; or the .safetensors file "
        "that learn wrote, with --context and --action. May be repeated; guessed. What is a column's name as a whole is that column; "
        "a comparison has blanks around its equals sign, 'shown = best'.",
    ),
    _option(
        "target_action",
        MANY,
        "[NAME=]COLUMN",
        "The action that a deterministic target takes, with --action; may be repeated.",
    ),
)
QUESTION = (
    *TARGETS,
    _option("action"),
    _option("context", MANY, more="May be repeated."),
    _option("candidates", more="Text such as a|b, or a JSON list, will do."),
    CLUSTERS[0],
    _option("level", float, "SHARE", "Confidence level of the intervals.", default=0.95),
    _option("drop_bad_rows", bool),
    *LOG,
)
MODELS = (
    _option(
        "propensity_model",
        metavar="NAME",
        help="Propensities were not logged: estimate them by a model of --action given --context, logistic or boosted. With --propensity, "
        "the model speaks only for rows without a number there. Needs the extra models.",
    ),
    _option(
        "model",
        metavar="NAME",
        help="Fit a reward model on the log, with --context and --action, for targets that say how they choose among all actions: "
        "auto, logistic, ridge or boosted. Needs the extra models.",
    ),
    _option(
        "items", metavar="FILE", help="What is known of the actions, one row for each, for --model; the id comes first."
    ),
    _option("value_samples", int | None, "M"),
    _option("baseline", MANY, more="May be repeated."),
)
LISTS = (_option("slate"), _option("position"), _option("propensity_of", metavar="MEANING"), _option("discount"))
INTERVALS = (
    _option(
        "interval",
        metavar="METHOD",
        help="student (the default, with or without clusters), normal, jackknife, anytime; of evaluate also bernstein and log_smoothing.",
    ),
    _option(
        "reward_bounds",
        tuple[float, float] | None,
        "LOW HIGH",
        more="For bernstein, and where all rewards are the same.",
    ),
    _option(
        "tuned_for",
        float,
        "ROWS",
        "Size of log at which anytime intervals are narrowest; choose it before looking.",
        default=10_000,
    ),
)
VALUES = (
    _option("estimator", MANY, "NAME", "Only this estimator; may be repeated."),
    _option(
        "max_weight",
        float | None,
        "W",
        "1 / (the smallest propensity that the logging policy can give); for bernstein.",
    ),
    _option(
        "model_reward",
        help="Column of a model's reward of the logged action, for dr and the other model-based estimators.",
    ),
    _option("model_value", MANY, help="Column of the model's value of a target, in the order of the targets."),
)
ANSWER = (
    *REWARDS,
    *CLUSTERS,
    _option(
        "segment", MANY, help="Report every value of this column too, one known before the choice; may be repeated."
    ),
    _option(
        "weight",
        metavar="NAME:CONSTANT",
        help="A weight that trades bias for variance: clip:10, shrink:100, switch:10, harmonic:0.1, exponential-smoothing:0.9 or "
        "implicit-exploration:0.01; clip:slope lets the log choose the constant, clip:5,50,500 from these. For "
        "lists: independent, cascade, standard or pseudo-inverse.",
    ),
    _option("groups", int | None, "G"),
    _option("max_segments", int | None, "N"),
    _option("strict", bool, help="Exit 1 if the log does not identify some target (over the whole log)."),
    _option(
        "check_coverage",
        bool,
        help="Draw logs like this one and count how often the interval covers (reads the log again).",
    ),
    _option("coverage_runs", int, "N", "Logs that --check-coverage draws.", default=1000),
    _option(
        "sensitivity", bool, help="Say how wrong propensities must be for the conclusion to flip (reads the log again)."
    ),
)

SHARED = {option.name: option for option in (*ANSWER, *QUESTION, *MODELS, *LISTS, *INTERVALS, *VALUES, *KEY)}


def takes(
    *groups: tuple[Parameter, ...] | str,
) -> Callable[[Callable[Concatenate[Typed, P], None]], Callable[..., None]]:
    """Give a command the options of these groups, or single ones by name, beside its own.

    The command is handed what was typed of them as one record. In the help, its own options come right after the reward and the targets.
    """
    options = (option for group in groups for option in ([SHARED[group]] if isinstance(group, str) else group))
    shared = {option.name: option for option in options}
    first = {option.name: shared[option.name] for option in TARGETS if option.name in shared}

    def made(command: Callable[Concatenate[Typed, P], None]) -> Callable[..., None]:
        own = dict(list(signature(command, eval_str=True).parameters.items())[1:])

        @wraps(command)
        def run(**values: Any) -> None:
            typed = Typed({name: values.pop(name) for name in shared})
            command(typed, **values)  # type: ignore[call-arg]

        run.__signature__ = Signature(list((first | own | shared).values()))  # type: ignore[attr-defined]
        return run

    return made
