"""The options of commands, made from the library, and how typed text becomes the library's arguments.

Every part of a log is an option of each command whose verb takes it, in the words of `LogFields`; names come from the registries. So a new
part needs no line here, and help says what the library says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Literal, ParamSpec, get_args

import typer
from typer.models import ParameterInfo

from counterpoise.cli.printing import console, say
from counterpoise.cli.wording import quoted
from counterpoise.errors import OptionError, verbatim
from counterpoise.estimators import ESTIMATORS
from counterpoise.intervals import INTERVALS, strategy
from counterpoise.log.log import MODEL, Log
from counterpoise.log.parts import PARTS, USUAL, LogFields, guess
from counterpoise.log.question import LOGGING
from counterpoise.log.targets import Always, Chosen, name_of
from counterpoise.log.verbs import LIMITS
from counterpoise.weights import WEIGHTS, weight_of
from counterpoise.weights.lists import EPISODE_WEIGHTS, LIST_WEIGHTS

if TYPE_CHECKING:
    import polars as pl

    from counterpoise.models import Propensity

P = ParamSpec("P")
ONE, MANY = str | None, list[str] | None

# -- Help: the groups in which a command lists its options ------------------------------------------------------------

PANELS = {
    "log": "The log",
    "targets": "Targets",
    "answer": "The answer",
    "output": "Output",
    "state": "State, for logs that come day by day",
    "rows": "Advanced: where rows are, and which count",
    "lists": "Advanced: rankings",
    "episodes": "Advanced: sessions and episodes",
    "models": "Advanced: models",
    "estimates": "Advanced: estimates and checks",
    "training": "Advanced: training",
    "help": "Settings and help",
}
_TARGETS = ("target", "target_action", "always")
# the options that matter most: in each panel, these come first
FIRST = ("reward", "propensity", "action", "context", "cluster", "where", *_TARGETS, "segment", "html", "json")
log_option, target_option, answer_option, output_option, training_option = (
    partial(typer.Option, rich_help_panel=PANELS[name]) for name in ("log", "targets", "answer", "output", "training")
)
Json = Annotated[bool, output_option("--json", help="Print JSON, for machines.")]

# -- Parts of a log, as options ----------------------------------------------------------------------------------------

PYTHON_ONLY = ("logger", "shares", "cross_fit")  # loggers need a mapping of propensities, and estimators are objects
# for parts that are not columns
METAVARS = {
    "where": "SQL",
    "table": "NAME",
    "query": "SQL",
    "timeout": "SECONDS",
    "format": "NAME",
    "model": "NAME",
    "items": "FILE",
    "trained_on": "FILE",
    "value_samples": "M",
    "groups": "G",
    "max_segments": "N",
    "rows_before": "N",
    "keep": "COLUMN|P",
    "reward_bounds": "LOW HIGH",
    "minimize": "REWARD",
    "propensity_of": "MEANING",
    "discount_factor": "NUMBER",
    "control": "COLUMN=MEAN",
}
KINDS: dict[str, object] = {
    "reward_bounds": tuple[float, float] | None,
    "minimize": MANY,
    "model_value": MANY,
    "control": MANY,
    "discount_factor": float | None,
    "timeout": float | None,
}
# what to add about a part on the command line
MORE = {
    "reward": f"Guessed from {', '.join(USUAL['reward'])}.",
    "propensity": f"Guessed from {', '.join(USUAL['propensity'])}.",
    "candidates": "Text such as a|b, or a JSON list, will do.",
    "table": "shop.logs is logs in the schema shop.",
    "model": "For targets that have probabilities of all actions, with --context and --action; needs the extra models.",
    "items": "The file's first column is the action's id.",
    "trained_on": "none means that none of this log's rows were among them.",
    "model_value": "In the order of the targets.",
    "reward_bounds": "For bernstein, and where all rewards are the same.",
}


def _part(name: str, *, is_repeated: bool | None = None) -> Parameter:
    """The option of a part, typed by its form and type, and explained in the library's words."""
    several = PARTS[name].form in ("columns", "table", "baseline") if is_repeated is None else is_repeated
    hint = get_args(LogFields.__annotations__[name])[0]
    # not `int in get_args(hint)`: with older versions of NumPy, whatever may be an array may be an int
    is_count = hint == int | None
    kind = KINDS.get(name, bool if hint is bool else int | None if is_count else MANY if several else ONE)
    sentence = PARTS[name].sentence
    said = [f"{sentence[0].upper()}{sentence[1:]}.", MORE.get(name, ""), "May be repeated." if kind == MANY else ""]
    return _option(name, kind, METAVARS.get(name, "COLUMN"), " ".join(filter(None, said)), panel=PARTS[name].panel)


def _option(
    name: str,
    kind: Any = ONE,
    metavar: str | None = "COLUMN",
    help: str = "",
    *,
    panel: str = "estimates",
    default: object = None,
) -> Parameter:
    under = PANELS[panel]
    if kind is bool:  # without the --no-… that Typer would add
        flag = typer.Option(f"--{name.replace('_', '-')}", help=help, rich_help_panel=under)
        return _parameter(name, Annotated[bool, flag], False)
    return _parameter(name, Annotated[kind, typer.Option(metavar=metavar, help=help, rich_help_panel=under)], default)


def _parameter(name: str, annotation: object, default: object) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


# -- Options that are not parts of a log -------------------------------------------------------------------------------

FILES = "Files (Parquet, CSV, Arrow, JSON lines), a folder or a glob; or a DuckDB file or postgresql:// URL."
_DEFAULT = strategy(None, is_clustered=False).name
_VALUES_ALONE = " and ".join(name for name, method in INTERVALS.items() if not method.allows_differences)

FURTHER = {
    option.name: option
    for option in (
        _parameter("log", Annotated[list[str], typer.Argument(metavar="LOG", help=FILES)], Parameter.empty),
        _parameter("json", Json, False),
        _option(
            "target",
            MANY,
            "[NAME=]EXPRESSION",
            "A target policy's probability of the logged action: a column, or an SQL expression of columns; or the .safetensors file "
            "that learn wrote, which brings its own --context and --action. May be repeated; guessed. What is a column's name as a whole "
            "is that column; a comparison has blanks around its equals sign, 'shown = best'.",
            panel="targets",
        ),
        _option(
            "target_action",
            MANY,
            "[NAME=]COLUMN",
            "The action that a deterministic target takes, with --action; may be repeated.",
            panel="targets",
        ),
        _option(
            "no_cluster",
            bool,
            help="Rows are independent, though a column such as user_id suggests otherwise.",
            panel="rows",
        ),
        _option(
            "no_minimize", bool, help="More is better, although the reward's name sounds like a cost.", panel="rows"
        ),
        _option(
            "always",
            MANY,
            "[NAME=]ACTION",
            "A target that always takes this action, with --action; may be repeated.",
            panel="targets",
        ),
        _option(
            "propensity_model",
            metavar="NAME",
            help="Propensities were not logged: estimate them by a model of --action given --context, logistic or boosted. With "
            "--propensity, the model speaks only for rows without a number there. Needs the extra models.",
            panel="models",
        ),
        _option(
            "segment",
            MANY,
            help="Report every value of this column too, one known before the choice; may be repeated.",
            panel="answer",
        ),
        _option(
            "weight",
            metavar="NAME:CONSTANT",
            help=f"A weight that trades bias for variance: {', '.join(name.replace('_', '-') for name in WEIGHTS)}, with its constant, as "
            "in clip:10; clip:slope lets the log choose the constant, clip:5,50,500 from these. For rankings: "
            f"{', '.join(name.replace('_', '-') for name in LIST_WEIGHTS)}. For episodes: "
            f"{', '.join(name.replace('_', '-') for name in EPISODE_WEIGHTS)}.",
        ),
        _option("estimator", MANY, "NAME", f"Only this estimator; may be repeated: {', '.join(ESTIMATORS)}."),
        _option(
            "interval",
            metavar="METHOD",
            help=f"{_DEFAULT} (the default, with or without clusters), "
            f"{', '.join(name for name in INTERVALS if name != _DEFAULT)}; {_VALUES_ALONE} are for values alone.",
        ),
        _option("level", float, "SHARE", "Confidence level of the intervals.", default=0.95),
        _option(
            "tuned_for",
            float,
            "ROWS",
            "Size of log at which anytime intervals are narrowest; choose it before looking.",
            default=10_000,
        ),
        _option(
            "max_weight",
            float | None,
            "W",
            "1 / (the smallest propensity that the logging policy can give); for bernstein.",
        ),
        _option(
            "state",
            Path | None,
            "FILE",
            "Keeps the moments: this log is added to them, and the result covers all of it.",
            panel="state",
        ),
        _option(
            "batch",
            metavar="KEY",
            help="Key of this log in --state, such as its day; optional for files.",
            panel="state",
        ),
        _option(
            "replace",
            bool,
            help="Put this log in the place of what its batch or files had added to --state.",
            panel="state",
        ),
        _option(
            "only_new",
            bool,
            help="Add the files that --state does not have yet, each as a batch of its own; done if there are none.",
            panel="state",
        ),
        _option("unit", metavar="WORD", help="What a row is to your readers, such as visit.", panel="output"),
        _option("all", bool, help="Print every segment and estimator, and not only what matters most.", panel="output"),
        _option("strict", bool, help="Exit 1 if the log does not identify some target (over the whole log)."),
        _option(
            "check_coverage",
            bool,
            help="Draw logs like this one and count how often the interval covers (reads the log again).",
        ),
        _option("coverage_runs", int, "N", "Logs that --check-coverage draws.", default=1000),
        _option(
            "sensitivity",
            bool,
            help="Report how wrong propensities must be for the conclusion to flip (reads the log again).",
        ),
    )
}
# every option that several commands have, as Typer knows it
SHARED: dict[str, ParameterInfo] = {
    name: (FURTHER[name] if name in FURTHER else _part(name)).annotation.__metadata__[0] for name in (*PARTS, *FURTHER)
}
TARGETS = (*_TARGETS, "propensity_model", "no_cluster", "no_minimize", "level")  # of every question about targets
CHECKS = ("strict", "check_coverage", "coverage_runs", "sensitivity")
ANSWER = ("segment", "weight", "interval", "tuned_for", "state", "batch", "replace", "only_new", "unit", "all", *CHECKS)
_FIRST = ("reward", "propensity", *_TARGETS)  # in help, before a command's own


def takes(
    *names: str, verb: str | None = None, without: Collection[str] = ()
) -> Callable[[Callable[Concatenate[Typed, P], None]], Callable[..., None]]:
    """Give a command every part of a log that a `verb` of the library takes, and these options by name, beside its own.

    The command gets what was typed as one record. In the help, its own options come right after the reward and the targets.
    """
    parts = [] if verb is None else [name for name in LIMITS[verb].taken if name not in PYTHON_ONLY]
    wanted = [*names, *([] if verb is None else [*parts, "log", "json"])]
    is_table = verb in ("evaluate", "compare")  # whose answers may be about several rewards
    shared = {
        name: FURTHER[name] if name in FURTHER else _part(name, is_repeated=is_table if name == "reward" else None)
        for name in wanted
        if name not in without
    }
    first = {name: shared[name] for name in _FIRST if name in shared}

    def with_options(command: Callable[Concatenate[Typed, P], None]) -> Callable[..., None]:
        own = dict(list(signature(command, eval_str=True).parameters.items())[1:])

        @wraps(command)
        def run(**values: Any) -> None:
            typed = Typed({name: values.pop(name) for name in shared if name not in own})
            command(typed, **values)  # type: ignore[call-arg]

        run.__signature__ = Signature(list((first | own | shared | own).values()))  # type: ignore[attr-defined]
        return run

    return with_options


# -- What was typed, as the library takes it ---------------------------------------------------------------------------

# no blank before the equals sign, or "shown = best" would be a name; and "a==b" is a comparison, too
_NAMED = re.compile(r"([\w.-]+)=(?!=)\s*(.+)", re.DOTALL)
_OF_COMMANDS = ("log", "json", "only_new", "unit", "all", *CHECKS)  # and not of the library
_DAY = re.compile(r"(\w+_)?(day|date)|dt|ds", re.IGNORECASE)  # as columns of days are called
_STEP = r'(?:"((?:[^"]|"")+)"|([^".]+))'  # of a table's path


class Typed(dict[str, Any]):
    """The values of the options that a command shares with others, by name.

    >>> Typed(log=["log.csv"], table="shop.logs", cluster="user", no_cluster=False, context=[]).arguments()
    {'table': ['shop', 'logs'], 'cluster': 'user', 'context': None}
    """

    @property
    def data(self) -> str | list[str]:
        """The log's data: one place, or the files that a shell made of a glob."""
        places: list[str] = self["log"]
        return places[0] if len(places) == 1 else places

    @cached_property
    def columns(self) -> list[str]:
        """The names of the log's columns."""
        from counterpoise.engines.registry import columns_of

        place = self["table"] and table_path(self["table"])
        access, seconds, form = self["external_access"], self["timeout"], self.get("format")
        log = Log(self.data, table=place, query=self["query"], external_access=access, timeout=seconds, format=form)
        return list(columns_of(log))

    def mention(self) -> None:
        """Say once, to standard error, what the log has that was not asked about: arms of a test, or days."""
        texts = [text for value in self.values() for text in (value if isinstance(value, list) else [value])]
        said = " ".join(text for text in texts if isinstance(text, str) and text not in self["log"])
        unused = [name for name in self.columns if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said)]
        out = console(stderr=True)
        if arms := [name for name in unused if name.lower() == "arm"]:
            say(out, f"The log has a column of arms, {arms[0]!r}: is this an A/B test? See counterpoise ab-test.")
        days = [name for name in unused if _DAY.fullmatch(name)]
        if days and "segment" in self:
            say(out, f"The log has a column of days, {days[0]!r}: --segment {quoted(days[0])} shows each.")

    def arguments(self) -> dict[str, Any]:
        """The library's arguments; those that were not typed are None."""
        # what may be repeated and was not typed at all is [], or None, depending on Typer's version
        typed = ((name, value) for name, value in self.items() if name not in _OF_COMMANDS)
        values: dict[str, Any] = {name: None if value == [] else value for name, value in typed}
        values |= {name: read(values[name]) for name, read in _READ.items() if values.get(name) is not None}
        values |= {part: column for part, column in self._own_parts().items() if part in values and not values[part]}
        if "no_cluster" in values:
            values["cluster"] = cluster_of(values.get("cluster"), values.pop("no_cluster"))
        if values.pop("no_minimize", False):
            if values.get("minimize"):
                raise OptionError(
                    "--minimize means that less is better, and --no-minimize that more is: pass one of them."
                )
            values["minimize"] = False
        own: dict[str, object] = {name: values.pop(name) for name in ("tuned_for", "max_weight") if name in values}
        if values.get("interval") is not None:
            own["reward_bounds"] = values.get("reward_bounds")
            values["interval"] = strategy(values["interval"], is_clustered=False, options=own)
        return values

    def _own_parts(self) -> Mapping[str, object]:
        """The parts that the columns of another tool's log play, which need not be typed."""
        if not self.get("log"):
            return {}
        from counterpoise.readers import formats

        log = Log(self.data, format=self.get("format"))
        return formats.opened(log.data, log.format).parts if formats.is_foreign(log) else {}

    def question(self, *, against: str | None = None) -> dict[str, Any]:
        """The arguments of a question about targets, with the columns that were not named guessed.

        What was guessed is printed, to standard error where standard output is for machines.
        """
        values = self.arguments()
        names = self.columns
        targets = typed_targets(values["target"], values.pop("target_action"), names, values.pop("always"))
        if against is not None:
            name, source = rival(against, targets, names)
            values["against"] = {name: source} if name else source
            names = [column for column in names if column != source]
        rewards = [values["reward"]] if isinstance(values["reward"], str) else values["reward"] or [None]
        model, propensity = values.pop("propensity_model", None), values["propensity"]
        logged = MODEL if model is not None and propensity is None else propensity
        parts = guess(names, reward=rewards[0], propensity=logged, target=tuple(targets))
        if parts.guessed:
            say(console(stderr=self["json"]), f"Guessed from the names: {parts}.")
        return values | {
            "reward": rewards if len(rewards) > 1 else parts.reward,
            "propensity": propensity_of(parts.propensity, model),
            "target": targets or {name: name for name in parts.target},
        }


def typed_targets(
    target: Sequence[str] | None,
    chosen: Sequence[str] | None,
    columns: Collection[str],
    always: Sequence[str] | None = None,
) -> dict[str, str | Chosen | Always]:
    """The targets of a command by their names, `--target` before `--target-action` before `--always`.

    >>> typed_targets(["pi_new", "half=pi_new / 2"], ["greedy=item_new"], ["pi_new", "item_new"])
    {'pi_new': 'pi_new', 'half': 'pi_new / 2', 'greedy': Chosen(column='item_new')}
    """
    sources: list[tuple[str, str | Chosen | Always]] = []
    for name, source in (split_name(text, columns) for text in target or ()):
        sources.append((name or name_of(source), source))
    for name, column in (split_name(text, columns) for text in chosen or ()):
        sources.append((name or column, Chosen(column)))
    for name, action in (split_name(text, ()) for text in always or ()):
        sources.append((name or action, Always(action)))
    targets = dict(sources)
    if len(targets) < len(sources):
        names = [name for name, _ in sources]
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        another = "Give one of them another name: `target=NAME=EXPRESSION`."
        raise OptionError(f"two targets are called {twice!r}.", do=another)
    return targets


def split_name(text: str, columns: Collection[str]) -> tuple[str | None, str]:
    """A name, if there is one, and what it stands for; a text that is a column's name is that column, whatever is in it.

    >>> split_name("new=pi_new", ["pi_new"]), split_name("a=b", ["a=b"]), split_name("shown = best", []), split_name("a>=b", [])
    (('new', 'pi_new'), (None, 'a=b'), (None, 'shown = best'), (None, 'a>=b'))
    """
    match = None if text in columns else _NAMED.fullmatch(text)
    return (match[1], match[2]) if match else (None, text)


def rival(text: str, targets: Collection[str], columns: Sequence[str]) -> tuple[str | None, str]:
    """The policy that targets are compared with: its name, if it has one, and what it stands for."""
    from counterpoise.log.expressions import missing

    names = (LOGGING, *targets, *columns)
    if text not in names and text.isidentifier():
        raise missing("against", text, columns)
    return split_name(text, names)


def table_path(name: str) -> str | list[str]:
    """A table's name as the library takes it: a list where dots separate schemas; double quotes keep a dot in a name.

    >>> table_path("logs"), table_path("shop.logs"), table_path('shop."odd.name"')
    ('logs', ['shop', 'logs'], ['shop', 'odd.name'])
    """
    if not re.fullmatch(rf"{_STEP}(\.{_STEP})*", name):
        raise OptionError(f'{name!r} is not a valid table name: write logs, shop.logs, or "odd.name" in double quotes.')
    steps = [quoted.replace('""', '"') if quoted else bare for quoted, bare in re.findall(_STEP, name)]
    return steps[0] if len(steps) == 1 else steps


def cluster_of(column: str | None, no_cluster: bool) -> str | Literal[False] | None:
    """The clusters as the library takes them: a column, or False if rows are independent."""
    if column is not None and no_cluster:
        raise OptionError(
            "--cluster names what moves together, and --no-cluster means that nothing does: pass one of them."
        )
    return False if no_cluster else column


def table_of(path: str) -> pl.DataFrame:
    """A file, as a frame."""
    from counterpoise.readers.files import collect, scan

    return collect(scan(path))


def propensity_of(column: str, model: str | None) -> str | Propensity:
    """The propensities as the library takes them: a column, or a model for all rows, or for those without a number in the column."""
    if model is None:
        return column
    from counterpoise.models import Propensity

    return Propensity(model, column=None if column == MODEL else column)


def pairs(option: str, texts: list[str] | None) -> dict[str, str] | None:
    """Options of the form NAME=VALUE, by name.

    >>> pairs("shares", ["A=0.5", "B=0.5"])
    {'A': '0.5', 'B': '0.5'}
    """
    if not texts:
        return None
    values = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise OptionError(f"--{option} takes NAME=VALUE, found {text!r}.")
        values[name] = value
    return values


def numbers(option: str, values: dict[str, str] | None) -> dict[str, float] | None:
    """The values of such options as numbers."""
    try:
        return None if values is None else {name: float(value) for name, value in values.items()}
    except ValueError as error:
        raise OptionError(f"--{option} takes numbers, such as A=0.5; {verbatim(error)}.") from None


# how typed text becomes what the library takes
_READ: dict[str, Callable[[Any], object]] = {
    "table": table_path,
    "items": table_of,
    "trained_on": lambda text: False if text.lower() in ("none", "false") else text,
    "weight": weight_of,
    "control": lambda texts: numbers("control", pairs("control", texts)),
    "propensity_of": lambda meaning: meaning.replace("-", "_"),
}


# -- What a report is called -------------------------------------------------------------------------------------------

Title = Annotated[str | None, output_option(metavar="TEXT", help="The title of the report; by default, its answer.")]
