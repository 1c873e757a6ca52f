"""`Log`: where the rows are, and which column plays which part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, fields, replace
from numbers import Integral
from os import PathLike
from os.path import exists
from typing import Annotated, Any, Literal, Self, TypedDict, Unpack, get_type_hints

import numpy as np

from counterpoise.errors import Argument, ColumnError, OptionError, Text
from counterpoise.log.addresses import forgetting_password, without_password
from counterpoise.log.baseline import How, as_baseline
from counterpoise.log.lists import DCG, check_lists, refuse_lists

# -- Arrays given without a log, collected under the names of their parts ----------------------------------------------


class Arrays(dict[str, Any]):
    """A mapping of arrays that grows as parts are given; every name can be added only once."""

    def put(self, name: str, value: Any) -> str:
        """Add one more array, and return the name of its column."""
        if name in self:
            raise OptionError(
                f"two of the arrays are called {name!r}: give the target (or segment, or key) another name."
            )
        self[name] = value
        return name

    def copy(self) -> Arrays:
        """Another mapping of the same arrays."""
        return Arrays(self)


# -- Several loggers: the probability with which they took an action together, as SQL of their columns -----------------


Quote = Callable[[str], str]  # a column or an expression, as it stands inside an expression of the log's SQL


def check_loggers(propensity: Any, logger: Any, shares: Any) -> None:
    """Several loggers have a propensity each; who wrote a row is a question only for them."""
    several = isinstance(propensity, Mapping)
    if several and len(propensity) < 2:
        raise OptionError(
            [Argument("propensity"), f" maps {len(propensity)} logger to its column: name two or more, or one column."]
        )
    extra = "logger" if logger is not None else "shares" if shares is not None else None
    if extra and propensity is not None and not several:
        raise OptionError(
            [Argument(extra), " is about several loggers."],
            do=[Argument("propensity"), " then maps each of them to its probability of the logged action."],
        )


def checked_shares(shares: Any, names: tuple[Any, ...]) -> dict[Any, float]:
    """Shares by name, adding up to 1: 50 and 50 will do.

    >>> checked_shares({"a": 3, "b": 1}, ("a", "b"))
    {'a': 0.75, 'b': 0.25}
    """
    by_name = {str(name): share for name, share in shares.items()} if isinstance(shares, Mapping) else {}
    if set(by_name) != set(map(str, names)):
        expected, entries = ", ".join(map(repr, names)), ", ".join(map(repr, by_name)) or repr(shares)
        raise OptionError([Argument("shares"), f" needs one entry for each of {expected}; found {entries}."])
    is_number = (isinstance(share, int | float) and not isinstance(share, bool) for share in by_name.values())
    if not all(is_number) or not all(0 < share < math.inf for share in by_name.values()):
        raise OptionError([Argument("shares"), f" holds something that isn't a positive number: {by_name!r}."])
    total = sum(by_name.values())
    return {name: by_name[str(name)] / total for name in names}


def own_sql(propensity: Mapping[Any, str], logger: str, quote: Quote) -> str:
    """The probability that the row's own logger gave the logged action.

    >>> own_sql({"a": "p_a", 2: "p_b"}, "who", '"{}"'.format)
    '(CASE WHEN "who" = \\'a\\' THEN "p_a" WHEN "who" = 2 THEN "p_b" END)'
    """
    cases = (f"WHEN {quote(logger)} = {_literal(name)} THEN {quote(column)}" for name, column in propensity.items())
    return f"(CASE {' '.join(cases)} END)"


def balanced_sql(propensity: Mapping[Any, str], shares: Mapping[Any, float], logger: str, quote: Quote) -> str:
    """Σ s·p over the loggers; null where one of the probabilities is none, or the row's own logger could not have written it."""
    columns = {name: quote(column) for name, column in propensity.items()}
    mixed = " + ".join(f"{shares[name]:.17e} * {column}" for name, column in columns.items())
    ranges = " AND ".join(f"{column} >= 0 AND {column} <= 1" for column in columns.values())
    return f"CASE WHEN {own_sql(propensity, logger, quote)} > 0 AND {ranges} THEN {mixed} END"


def _literal(name: Any) -> str:
    if isinstance(name, bool):
        return "TRUE" if name else "FALSE"
    return repr(name) if isinstance(name, int | float) else "'" + str(name).replace("'", "''") + "'"


# ----------------------------------------------------------------------------------------------------------------------


MODEL = "model"  # as a propensity: it was not logged, and a model is to estimate it
OWN = "counterpoise "  # what the names of columns begin with that we add to a log
Data = Any  # where rows are: arrays, a frame, files, a database, Spark, or whatever an engine of your own holds
Column = Any  # a name or an SQL expression; without data, the array itself
Columns = Any  # one of them, or several


class Unlogged:
    """A propensity that is a model's word, and a column's only where that one has a number: `counterpoise.models.Propensity` is one."""

    column: Any  # with the propensities that were logged, if some were


class LogFields(TypedDict, total=False):
    """The parts of a log, as `Log` and every verb take them. The command line and the docs take their wording from here."""

    reward: Annotated[Columns, "the reward that came of the choice; list several to answer for all of them in one pass"]
    propensity: Annotated[
        Column | Mapping[Any, Column],
        "the logging policy's probability of the logged action; of several loggers, that of each; where it was not logged, 'model' or a "
        "models.Propensity",
    ]
    logger: Annotated[
        Column, "which of several loggers wrote the row; their names are those of a mapping as propensity"
    ]
    shares: Annotated[Mapping[Any, float] | None, "the loggers' shares of the rows; by default, those that they have"]
    action: Annotated[Column, "the logged action"]
    context: Annotated[Columns, "what a policy looks at before it chooses"]
    candidates: Annotated[Column, "the actions that there were to choose from: a list of them in every row"]
    cluster: Annotated[
        Column | Literal[False],
        "the unit of randomization, such as the user; errors allow for its rows being alike",
    ]
    key: Annotated[Columns, "what identifies a row; repeated ones are counted"]
    model_reward: Annotated[Column, "a reward model's prediction for the logged action"]
    model_value: Annotated[Columns, "the model's value of each target"]
    model: Annotated[
        Any,
        "a reward model to fit on other rows than it predicts: 'auto', 'logistic', 'ridge', 'boosted', or scikit-learn's",
    ]
    items: Annotated[Data, "what is known of the actions, for the model: a frame with one row for each"]
    value_samples: Annotated[
        int | None, "from how many actions the model's value of a target is drawn, where there are many"
    ]
    control: Annotated[Mapping[str, float] | None, "further control variates: each column and its known mean"]
    baseline: Annotated[
        Columns,
        "what a reward may depend on and is known before the choice: columns that the baseline is linear in; text is a category",
    ]
    slate: Annotated[Column, "the list that a row is a position of: there is one row per position"]
    position: Annotated[Column, "a row's place in its list, counted from 0 or from 1"]
    propensity_of: Annotated[
        str | None,
        "what propensities of lists are of: item_at_position (whatever is elsewhere) or item_given_above (chosen after those above it)",
    ]
    discount: Annotated[
        Column, "what the reward at a position counts in the value of a list: dcg, or a column; by default, 1"
    ]
    where: Annotated[str | None, "an SQL condition: only rows that meet it count"]
    table: Annotated[str | Sequence[str] | None, "which table of a database is the log"]
    query: Annotated[str | None, "which query of a database is the log"]
    external_access: Annotated[bool, "let DuckDB read other files, as a view over Parquet needs"]
    groups: Annotated[int | None, "into how many groups clusters (or rows) are hashed, for the jackknife and cross_fit"]
    max_segments: Annotated[
        int | None, "how many segments to answer for at most: above 1,000, only as many as you say here"
    ]
    reward_bounds: Annotated[
        tuple[float, float] | Mapping[str, tuple[float, float]] | None,
        "the least and the largest reward there can be, where that is known; of several rewards also by name",
    ]
    drop_bad_rows: Annotated[bool, "leave out rows with impossible values, and count them, instead of raising"]


LISTS = ("slate", "position", "propensity_of", "discount")
MODELS = ("model", "items", "value_samples", "model_reward", "model_value")


@dataclass(frozen=True)
class Limits:
    """What a verb makes no use of, and therefore refuses; `what` is how a sentence about it begins."""

    what: str
    parts: tuple[str, ...] = ()
    does: str = "is estimated from weights and rewards alone"
    one_reward: bool = True
    instead: str = ""  # a part that does what the refused ones would


_CONTROLLED = ("control",), "takes no further control variates"
_LEARNS = "learns from contexts, actions and rewards"

# Every part of a log is used by a verb, refused by it, or named here as one that no answer can depend on: `action`, `context` and
# `candidates` where no policy or model looks at them, `key` where repeated rows are not counted, and for the doctor whatever says how to
# estimate. A test walks through all of them.
LIMITS = {
    "evaluate": Limits("evaluate", one_reward=False),
    "compare": Limits("compare", *_CONTROLLED, one_reward=False, instead="baseline"),
    "rank": Limits("rank", *_CONTROLLED, instead="baseline"),
    "plan": Limits("plan", *_CONTROLLED, instead="baseline"),
    "backtest": Limits("backtest", *_CONTROLLED, instead="baseline"),
    "doctor": Limits("doctor", one_reward=False),
    "ab_test": Limits("ab_test", (*LISTS, *MODELS, "control"), "compares the mean rewards of arms, row by row", instead="baseline"),
    "distribution": Limits("a distribution", (*LISTS, *MODELS, "control", "baseline")),
    "sensitivity": Limits("sensitivity", (*LISTS, *MODELS, "control", "baseline"), "is about weights and rewards alone"),
    "sql": Limits(
        "sql",
        (*LISTS, *MODELS[:3], "baseline", "key", "query", "external_access", "reward_bounds"),
        "writes one statement about a table, and looks at no row",
    ),
    # learning says in its own words that it is about one reward
    "learn_policy": Limits("learn_policy", ("value_samples", "model_value", "baseline"), _LEARNS, one_reward=False),
    "PolicyLearner": Limits("PolicyLearner", ("value_samples", "model_value", "baseline"), _LEARNS, one_reward=False),
    "RankingLearner": Limits(
        "RankingLearner", ("candidates", *MODELS, "baseline"), "learns from lists and their rewards alone", one_reward=False
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Log:
    """A log: its data, and the names of the columns that play a part.

    `data` can be a mapping of arrays or any frame (pandas, polars, pyarrow, …; lazy ones are read in batches); the path of a file, a
    folder, a glob or a list of them; a DuckDB file, connection or relation; a ``postgresql://`` URL; an ibis table; or a Spark DataFrame.
    Every column may be an SQL expression of others. Without data, the parts are the arrays themselves.

    Examples
    --------
    >>> log = Log({"click": [1, 0], "p": [0.5, 0.5]}, reward="click", propensity="p")
    >>> log
    Log(2 arrays, reward='click', propensity='p')
    >>> log.but(where="click = 1").where
    'click = 1'
    """

    data: Data
    _: KW_ONLY
    reward: tuple[str, ...] = ()
    # a column; of several loggers, a mapping of names to columns; an `Unlogged` until the question is asked
    propensity: Any = None
    logger: str | None = None
    shares: Mapping[Any, float] | None = None
    action: str | None = None
    context: tuple[str, ...] = ()
    candidates: str | None = None
    cluster: str | None = None
    key: tuple[str, ...] = ()
    model_reward: str | None = None
    model_value: Any = None  # by target, so that only the question can tell which is whose
    model: Any = None  # whatever `counterpoise.models` makes a reward model of
    items: Any = None
    value_samples: int | None = None
    control: Mapping[str, float] | None = None
    baseline: Mapping[str, How] | None = None
    slate: str | None = None
    position: str | None = None
    propensity_of: str | None = None
    discount: str | None = None
    where: str | None = None
    table: str | Sequence[str] | None = None
    query: str | None = None
    external_access: bool = False
    groups: int | None = None
    max_segments: int | None = None
    reward_bounds: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None
    drop_bad_rows: bool = False
    rows_are_independent: bool = False  # which ``cluster=False`` says

    def __init__(self, data: Data = None, **parts: Unpack[LogFields]) -> None:
        unknown = sorted(set(parts) - set(LogFields.__annotations__))
        if unknown:
            raise TypeError(f"a log has no part {unknown[0]!r}; its parts are {', '.join(LogFields.__annotations__)}.")
        # a table without its database is one that only its owner can reach: see `sql`
        arrays = Arrays() if data is None and not (parts.get("table") or parts.get("query")) else None
        normal = _normal(parts, arrays)
        if arrays is not None:
            data = arrays
        _check(data, normal)
        for field in fields(self):
            object.__setattr__(self, field.name, normal.get(field.name, field.default))
        object.__setattr__(self, "data", data)

    def but(self, **changed: Unpack[LogFields]) -> Self:
        """The same log with some parts changed."""
        return self._with(self.data, changed)

    def without(self, *parts: str) -> Self:
        """The same log without some of its parts."""
        return self._with(self.data, dict.fromkeys(parts))

    def of(self, data: Data) -> Self:
        """The same parts, for other data."""
        return self._with(data, {})

    def _with(self, data: Data, changed: Mapping[str, object]) -> Self:
        kept: Any = {part: getattr(self, part) for part in LogFields.__annotations__}
        if self.rows_are_independent:
            kept["cluster"] = False
        return type(self)(data, **(kept | changed))

    @property
    def is_arrays(self) -> bool:
        """Whether the parts were given as arrays, so that targets and segments may be arrays too."""
        return isinstance(self.data, Arrays)

    def need(self, *parts: str) -> None:
        """Raise an error for the first of these parts that has no name."""
        for part in parts:
            if getattr(self, part) in (None, ()):
                raise OptionError([f"{part} is missing: name its column with ", Argument(part), ", or pass its array."])

    def need_only(self, verb: str) -> None:
        """Raise an error for the first part that a verb would have to ignore."""
        limits = LIMITS[verb]
        if limits.one_reward and len(self.reward) > 1:
            raise OptionError(
                f"{limits.what} is about one reward, and this log has {', '.join(map(repr, self.reward))}: ask for one at a time."
            )
        for part in limits.parts:
            value = getattr(self, part)
            if value is None or value is False or (isinstance(value, tuple) and not value):
                continue
            if part in LISTS:
                refuse_lists(self.slate, verb)
            instead: Text = (
                ["Name what rewards depend on with ", Argument(limits.instead), "."] if limits.instead else ""
            )
            raise OptionError([f"{limits.what} {limits.does}: leave out ", Argument(part), "."], do=instead)
        if self.max_segments is not None and verb not in ("evaluate", "compare"):
            raise OptionError([f"{limits.what} makes no segments: leave out ", Argument("max_segments"), "."])
        names_loggers = self.logger is not None or self.shares is not None
        if (
            names_loggers and not isinstance(self.propensity, Mapping) and verb != "ab_test"
        ):  # whose arms they are about
            check_loggers("", self.logger, self.shares)

    def need_one_logger(self, who: str) -> None:
        """Raise an error if several policies wrote the log."""
        if isinstance(self.propensity, Mapping):
            raise OptionError(
                f"{who} looks at the propensities of one policy, and {len(self.propensity)} wrote this log.",
                do=[
                    "Choose one of them: its column as ",
                    Argument("propensity"),
                    ", and its rows with ",
                    Argument("where"),
                    ".",
                ],
            )

    def __getstate__(self) -> dict[str, Any]:
        # a pickle lies around in files and queues: whoever opens it brings the password of a database themselves
        is_address = isinstance(self.data, str) and not exists(self.data)  # files may have odd names
        return {**self.__dict__, "data": forgetting_password(self.data) if is_address else self.data}

    def __copy__(self) -> Self:
        return self.of(self.data)  # by way of a pickle, a copy would have no password

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.of(deepcopy(self.data, memo))

    def __repr__(self) -> str:
        shown = [_describe(self.data)]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "items" and value is not None:
                shown.append(f"items={_describe(value)}")
            elif field.name == "rows_are_independent" and value:
                shown.append("cluster=False")
            elif field.name not in ("data", "items") and value != field.default:
                shown.append(f"{field.name}={_single(value)!r}")
        return f"Log({', '.join(shown)})"


def as_log(log: Log | Data, parts: LogFields) -> Log:
    """The log that a verb was given, as a `Log` or as its data and parts; parts that a `Log` has not got yet are added to it.

    >>> as_log({"r": [1]}, {"reward": "r"})
    Log(1 array, reward='r')
    >>> as_log(Log({"r": [1]}, reward="r"), {"where": "r > 0"})
    Log(1 array, reward='r', where='r > 0')
    """
    if not isinstance(log, Log):
        made = Log(log, **parts)
        check_own_names(made)
        return made
    check_own_names(log)
    default = {field.name: field.default for field in fields(Log)}
    known = [part for part in parts if part in default and getattr(log, part) is not default[part]]
    if known:
        raise OptionError(
            f"the log already says what its {known[0]} is.",
            do=f"Leave out {', '.join(known)}, or ask about log.but({known[0]}=…).",
        )
    if parts and log.is_arrays:
        raise OptionError(
            "this log's parts are arrays, and others cannot be added to it by name.",
            do=f"Make the log with {', '.join(parts)} in it.",
        )
    return log.but(**parts) if parts else log


def check_own_names(log: Log, *more: str) -> None:
    """Refuse columns called as those that we add to a log ourselves, which would otherwise be mixed up in silence."""
    parts = [getattr(log, field.name) for field in fields(log) if field.name != "data"]
    names = [name for part in parts for name in (part if isinstance(part, tuple) else (part,))]
    own = [name for name in (*names, *more) if isinstance(name, str) and OWN in name]
    if own:
        raise ColumnError(
            f"column {own[0]!r} is called like those that counterpoise adds to a log, which begin with {OWN!r}.",
            do="Rename it.",
        )


def logged_propensity(log: Log) -> str | None:
    """The column with the logged propensities; none, if a model is to estimate all of them."""
    column: str | None = log.propensity.column if isinstance(log.propensity, Unlogged) else log.propensity
    return None if column == MODEL else column


def help_of(part: str) -> str:
    """What a part of a log is, in a few words."""
    return str(get_type_hints(LogFields, include_extras=True)[part].__metadata__[0])


def _normal(raw: Mapping[str, Any], arrays: Arrays | None) -> dict[str, Any]:
    """Every part in one form: a name, or a tuple of names; arrays go to the other arrays."""
    parts = {name: value for name, value in raw.items() if value is not None}
    if parts.get("cluster") is False:
        del parts["cluster"]
        parts["rows_are_independent"] = True
    if "propensity" in parts:
        parts["propensity"] = _propensity(parts["propensity"], arrays)
    for part in ("logger", "action", "candidates", "cluster", "model_reward", "slate", "position", "discount"):
        if part in parts and not (part == "discount" and isinstance(parts[part], str) and parts[part] == DCG):
            parts[part] = column_name(part, parts[part], arrays)
    for part in ("reward", "key"):
        if part in parts:
            parts[part] = column_names(part, parts[part], arrays)
    if "context" in parts:
        parts["context"] = _table("context", parts["context"], arrays)
    if "baseline" in parts:
        parts["baseline"] = _baseline(parts["baseline"], arrays)
    return parts


def _check(data: Data, parts: Mapping[str, Any]) -> None:
    for part in ("reward", "key", "context"):
        columns = parts.get(part, ())
        if len(set(columns)) < len(columns):
            raise OptionError([Argument(part), f" names a column twice: {', '.join(map(repr, columns))}."])
    _check_known_before(parts)
    check_loggers(parts.get("propensity"), parts.get("logger"), parts.get("shares"))
    control, where = parts.get("control"), parts.get("where")
    if control and isinstance(data, Arrays):
        raise OptionError([Argument("control"), " names columns: pass them in a log; a mapping of arrays will do."])
    if control is not None and not isinstance(control, Mapping):
        raise OptionError([Argument("control"), f" maps columns to their known means, found {type(control).__name__}."])
    most = parts.get("max_segments")
    if most is not None and (isinstance(most, bool) or not isinstance(most, Integral) or most < 1):
        raise OptionError([Argument("max_segments", most), " is not a whole number of at least 1."])
    if where is not None and not isinstance(where, str):
        raise OptionError([Argument("where"), f" must be an SQL condition as text, found {type(where).__name__}."])
    if any(parts.get(part) is not None for part in LISTS):
        check_lists(parts)


def _check_known_before(parts: Mapping[str, Any]) -> None:
    """Check that what a reward is explained by is not what follows from the choice, or the choice itself."""
    rewards = dict.fromkeys(parts.get("reward", ()), "reward")
    propensity = parts.get("propensity")
    choice = {parts.get("action"): "action", propensity if isinstance(propensity, str) else None: "propensity"}
    for part, known in (("context", rewards), ("baseline", {**choice, **rewards})):
        for name in parts.get(part) or ():
            if name in known:
                raise OptionError(
                    [Argument(part), f" names {name!r}, which is the {known[name]}."],
                    do="Name columns that were known before the choice.",
                )


def column_name(part: str, value: Any, arrays: Arrays | None) -> str:
    """The name of one column; an array joins the others under the name of its part."""
    if arrays is None or (isinstance(value, str) and value in arrays):
        if not isinstance(value, str):
            raise OptionError(
                [
                    Argument(part),
                    f" must name a column of the log, found {type(value).__name__}. Without a log, pass arrays.",
                ]
            )
        return value
    if isinstance(value, str):
        raise OptionError(
            [Argument(part, value), " names a column, but there is no log: pass the log first, or the array itself."]
        )
    return arrays.put(part, value)


def column_names(part: str, value: Any, arrays: Arrays | None) -> tuple[str, ...]:
    """The names of one or several columns, or of one array, a mapping of names to arrays, or a list of arrays."""
    if value is None or (isinstance(value, list | tuple) and not value):
        return ()
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return tuple(column_name(part, name, arrays) for name in value)
    if arrays is None:
        if isinstance(value, str):
            return (value,)
        raise OptionError(
            [Argument(part), f" must be the name of a column or a list of names, found {type(value).__name__}."]
        )
    if isinstance(value, Mapping):
        return tuple(arrays.put(str(name), column) for name, column in value.items())
    if isinstance(value, list | tuple) and hasattr(value[0], "__len__") and not isinstance(value[0], str):
        return tuple(arrays.put(f"{part}_{k}", column) for k, column in enumerate(value))
    return (column_name(part, value, arrays),)


def _propensity(value: Any, arrays: Arrays | None) -> Any:
    """The column of the propensities, those of several loggers, or the model that takes its place; arrays join the others."""
    if isinstance(value, Mapping):
        return {name: _of_logger(name, column, arrays) for name, column in value.items()}
    if isinstance(value, Unlogged):
        model: Any = value
        if isinstance(model.column, Mapping):
            raise _no_models_of_loggers()
        return model if model.column is None else replace(model, column=column_name("propensity", model.column, arrays))
    return value if isinstance(value, str) and value == MODEL else column_name("propensity", value, arrays)


def _of_logger(name: Any, column: Any, arrays: Arrays | None) -> str:
    """The column of one of several loggers; an array joins the others under a name of its own."""
    if isinstance(column, Unlogged) or (isinstance(column, str) and column == MODEL):
        raise _no_models_of_loggers()
    return column_name(f"propensity of {name}", column, arrays)


def _no_models_of_loggers() -> OptionError:
    return OptionError(
        "a propensity model is of one policy: of several loggers, the probabilities must have been logged.",
        do=[
            "Without them, pass ",
            Argument("propensity", MODEL),
            " alone, with the logger among the columns of ",
            Argument("context"),
            ".",
        ],
    )


def _baseline(value: Any, arrays: Arrays | None) -> dict[str, How] | None:
    """The columns of a baseline, and what is known of their levels; arrays, a mapping of names to them, or a table of numbers."""
    if isinstance(value, Mapping) and arrays is None:
        return as_baseline(value) or None
    return as_baseline(_table("baseline", value, arrays)) or None


def _table(part: str, value: Any, arrays: Arrays | None) -> tuple[str, ...]:
    """The columns of a part that may be given as a table of numbers, one column each."""
    if arrays is not None and np.ndim(value) == 2 and not isinstance(value, list | tuple):
        table = np.asarray(value)
        return tuple(arrays.put(f"{part}_{k}", table[:, k]) for k in range(table.shape[1]))
    return column_names(part, value, arrays)


def _describe(data: Data) -> str:
    if isinstance(data, Mapping):
        return f"{len(data)} array{'s' if len(data) != 1 else ''}"
    if isinstance(data, str | PathLike):
        return repr(without_password(str(data)))
    if isinstance(data, list | tuple):
        return f"{len(data)} files"
    return type(data).__name__


def _single(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value
