"""`Log`: where the rows are, and which column plays which part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, fields, replace
from math import inf
from numbers import Integral, Real
from os import PathLike
from os.path import exists
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from counterpoise.errors import ColumnError, OptionError, warn_of_old_name
from counterpoise.log.addresses import forgetting_password, without_password
from counterpoise.log.baseline import How, as_baseline
from counterpoise.log.kinds import check_parts, known_parts
from counterpoise.log.parts import (
    CONDITIONAL,
    OLD_NAMES,
    PARTS,
    PLACE,
    Arrays,
    Columns,
    Data,
    Fittable,
    Form,
    FrameLike,
    Learnable,
    LogFields,
    Minimize,
    Ratio,
    RewardBounds,
    Unlogged,
    by_name,
    column_name,
    column_names,
    with_parts,
)
from counterpoise.log.sequences import DCG

MODEL = "model"  # as a propensity: not logged, so a model estimates it
ESTIMATED = "counterpoise propensity"  # the column with what it estimates
OWN = "counterpoise "  # how the names of columns that we add to a log begin


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

    data: Any  # whatever an engine reads
    _: KW_ONLY
    reward: tuple[str, ...] = ()
    per: str | None = None
    minimize: bool | tuple[str, ...] | None = None  # None if nobody said
    # a column; of several loggers, a mapping of names to columns; an `Unlogged` until the question is asked
    propensity: str | Mapping[str, str] | Unlogged | None = None
    logger: str | None = None
    shares: Mapping[str, float] | None = None
    action: str | None = None
    context: tuple[str, ...] = ()
    candidates: str | None = None
    cluster: str | None = None
    key: tuple[str, ...] = ()
    keep: str | None = None
    rows_before: int | None = None
    proxy: str | None = None
    observed: str | None = None
    label_propensity: str | None = None
    model_reward: str | None = None
    model_value: Columns = None  # by target; only the question knows which belongs to which
    model: str | Learnable | Fittable | None = None
    cross_fit: bool = False
    items: FrameLike | None = None
    value_samples: int | None = None
    control: Mapping[str, float] | None = None
    baseline: Mapping[str, How] | None = None
    slate: str | None = None
    position: str | None = None
    propensity_of: str | None = None
    discount: str | None = None
    episode: str | None = None
    step: str | None = None
    discount_factor: float | None = None
    done: str | None = None
    where: str | None = None
    trained_on: Any = None  # rows, as data
    table: str | Sequence[str] | None = None
    query: str | None = None
    external_access: bool = False
    timeout: float | None = None
    format: str | None = None
    groups: int | None = None
    max_segments: int | None = None
    reward_bounds: RewardBounds = None
    drop_bad_rows: bool = False
    rows_are_independent: bool = False  # which ``cluster=False`` says

    def __init__(self, data: Data = None, **parts: Unpack[LogFields]) -> None:
        self._fill(data, by_name("Log", parts, known_parts()))

    @property
    def gamma(self) -> float | None:
        """What `discount_factor` was called until 0.4."""
        warn_of_old_name("log.gamma", "log.discount_factor")
        return self.discount_factor

    @property
    def short_name(self) -> str:
        """Where the rows are, in a word or two; empty for arrays and frames, which have no name."""
        if self.table is not None:
            return self.table if isinstance(self.table, str) else ".".join(self.table)
        if isinstance(self.data, str | PathLike):
            shown = without_password(str(self.data))
            return Path(shown).name or shown
        return f"{len(self.data):,} files" if isinstance(self.data, list | tuple) else ""

    def _fill(self, data: Data | Arrays, parts: Mapping[str, object]) -> None:
        # a table without a database is one that only its owner can reach: see `sql`
        arrays = Arrays() if data is None and not (parts.get("table") or parts.get("query")) else None
        normal = _normal(parts, arrays)
        if arrays is not None:
            data = arrays
        for field in fields(self):
            object.__setattr__(self, field.name, normal.get(field.name, field.default))
        if (known := known_parts()) is not PARTS:
            for part in known.keys() - PARTS.keys():
                object.__setattr__(self, part, normal.get(part))
        object.__setattr__(self, "data", data)
        _check(self)

    def but(self, **changed: Unpack[LogFields]) -> Self:
        """The same log with some parts changed."""
        return self._with(self.data, by_name("but", changed, known_parts()))

    def without(self, *parts: str) -> Self:
        """The same log without some of its parts."""
        own = type(self).__dataclass_fields__
        is_without = all(part in own and getattr(self, part) is own[part].default for part in parts)
        if is_without and not ("cluster" in parts and self.rows_are_independent):
            return self
        return self._with(self.data, by_name("without", dict.fromkeys(parts), PARTS))

    def only(self, *parts: str) -> Self:
        """The same rows with some of its parts alone."""
        return self.without(*(part for part in PARTS if part not in (*PLACE, *parts)))

    def of(self, data: Data) -> Self:
        """The same parts, for other data; what was read from another tool's files is no longer in its format."""
        is_files = isinstance(data, str | PathLike | list | tuple)
        if is_files or self.format is None:  # parts that went together still do
            made = object.__new__(type(self))
            made.__dict__.update(vars(self) | {"data": data})
            return made
        return self._with(data, {"format": None})

    def _with(self, data: Data, changed: Mapping[str, object]) -> Self:
        kept: dict[str, object] = {part: getattr(self, part, None) for part in known_parts()}
        if self.rows_are_independent:
            kept["cluster"] = False
        if "reward" in changed and isinstance(self.minimize, tuple):
            kept["minimize"] = None  # which names rewards that are no longer there
        made = object.__new__(type(self))
        made._fill(data, kept | dict(changed))
        return made

    def without_propensities(self) -> Self:
        """The same log without what the probabilities of its actions were, and whose."""
        return self.without("propensity", "logger", "shares")

    @property
    def loggers(self) -> Mapping[str, str]:
        """The columns of the propensities of several loggers, by their names; none, if one policy wrote the log."""
        return self.propensity if isinstance(self.propensity, Mapping) else {}

    @property
    def has_estimated_propensities(self) -> bool:
        """Whether a model is to estimate the propensities."""
        return isinstance(self.propensity, Unlogged) or self.propensity == MODEL

    @property
    def is_arrays(self) -> bool:
        """Whether the parts were given as arrays, so that targets and segments may be arrays too."""
        return isinstance(self.data, Arrays)

    @property
    def list_id(self) -> str | None:
        """The column that says which rows belong together, as a list or as an episode; None where rows stand on their own."""
        return self.slate if self.episode is None else self.episode

    @property
    def shows_several(self) -> bool:
        """Whether the rows that belong together are shown at once; an episode takes one action after the other."""
        return self.episode is None

    @property
    def list_place(self) -> str | None:
        """The column with a row's place in its list or episode."""
        return self.position if self.episode is None else self.step

    @property
    def list_meaning(self) -> str | None:
        """What the propensities of lists are of; those of episodes are always given what came before."""
        return self.propensity_of if self.episode is None else CONDITIONAL

    def has(self, part: str) -> bool:
        """Whether a part was named, or an option set; a `Log` of defaults has none."""
        value = getattr(self, part)
        return not (value is None or value is False or (isinstance(value, tuple | Mapping) and not value))

    def need(self, *parts: str) -> None:
        """Raise an error for the first of these parts that is missing."""
        for part in parts:
            if getattr(self, part) in (None, ()):
                raise OptionError(f"{part} is missing: name its column with `{part}=`, or pass its array.")

    def __getstate__(self) -> dict[str, object]:
        # pickles lie around in files and queues: whoever opens one supplies the database's password
        is_address = isinstance(self.data, str) and not exists(self.data)  # files may have odd names
        return {**self.__dict__, "data": forgetting_password(self.data) if is_address else self.data}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.__dict__.update({OLD_NAMES.get(part, part): value for part, value in state.items()})

    def __copy__(self) -> Self:
        return self._with(self.data, {})  # a copy made through a pickle would lose its password

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self._with(deepcopy(self.data, memo), {})

    def __repr__(self) -> str:
        shown = [_describe(self.data)]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("items", "trained_on") and value is not None and value is not False:
                shown.append(f"{field.name}={_describe(value)}")
            elif field.name == "rows_are_independent" and value:
                shown.append("cluster=False")
            elif field.name not in ("data", "items") and value is not field.default and value != field.default:
                shown.append(f"{field.name}={_single(value)!r}")
        return f"Log({', '.join(shown)})"


Log.__doc__ = with_parts(Log.__doc__, PARTS)


def as_log(log: Any, parts: LogFields) -> Log:
    """The log that a verb was given, as a `Log` or as data and parts; parts that a `Log` lacks are added to it.

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
            f"the log already defines its {known[0]}.",
            do=f"Leave out {', '.join(known)}, or pass log.but({known[0]}=…).",
        )
    if parts and log.is_arrays:
        raise OptionError(
            "this log's parts are arrays, and others cannot be added to it by name.",
            do=f"Make the log with {', '.join(parts)} in it.",
        )
    return log.but(**parts) if parts else log


def check_own_names(log: Log, *more: str) -> None:
    """Refuse columns with the names of those that we add ourselves, which would otherwise be mixed up silently."""
    parts = [getattr(log, field.name) for field in fields(log) if field.name != "data"]
    names = [name for part in parts for name in (part if isinstance(part, tuple) else (part,))]
    own = [name for name in (*names, *more) if isinstance(name, str) and OWN in name]
    if own:
        raise ColumnError(
            f"column {own[0]!r} is called like those that counterpoise adds to a log, which begin with {OWN!r}.",
            do="Rename it.",
        )


def logged_propensity(log: Log) -> str | None:
    """The column with the logged propensities; None if a model estimates all of them."""
    column = log.propensity.column if isinstance(log.propensity, Unlogged) else log.propensity
    return column if isinstance(column, str) and column != MODEL else None


def _normal(raw: Mapping[str, object], arrays: Arrays | None) -> dict[str, object]:
    """Every part in one form: a name, or a tuple of names; arrays go to the other arrays."""
    parts = {name: value for name, value in raw.items() if value is not None}
    if isinstance(ratio := parts.get("reward"), Ratio):
        if "per" in parts:
            raise OptionError("`reward=` is a Ratio already, with a denominator of its own: leave out `per=`.")
        parts |= {"reward": ratio.reward, "per": ratio.per}
    if parts.get("cluster") is False:
        del parts["cluster"]
        parts["rows_are_independent"] = True
    if "minimize" in parts:
        parts["minimize"] = _minimize(parts["minimize"])
    known = known_parts()
    for form, read in _FORMS.items():  # in this order: what comes later may name the array of an earlier part
        for part in known:
            if part in parts and known[part].form == form:
                parts[part] = read(part, parts[part], arrays)
    return parts


def _minimize(value: object) -> bool | tuple[str, ...]:
    """The rewards of which less is better, by their names; or whether that is so of all."""
    if isinstance(value, bool):
        return value
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise OptionError(f"`minimize={value!r}` is neither the name of a reward, nor several, nor True or False.")
    return tuple(names)


def check_minimized(minimize: Minimize, rewards: Sequence[str | None]) -> None:
    """Check that what is to be small is one of the rewards."""
    names = () if minimize is None or isinstance(minimize, bool) else minimize
    unknown = [name for name in names if name not in rewards]
    if unknown and any(name is not None for name in rewards):
        known = ", ".join(map(repr, rewards))
        raise OptionError(
            f"`minimize={unknown[0]!r}` is not the reward {known}."
            if len(rewards) == 1
            else f"`minimize={unknown[0]!r}` is not one of the rewards {known}.",
            do=f"Pass `minimize={rewards[0]!r}` if less of it is better.",
        )


def _check(log: Log) -> None:
    for part in PARTS:
        columns = getattr(log, part) if PARTS[part].form in ("columns", "table") else ()
        if len(set(columns)) < len(columns):
            raise OptionError(f"`{part}=` names a column twice: {', '.join(map(repr, columns))}.")
    if log.reward:
        check_minimized(log.minimize, log.reward)
    _check_known_before(log)
    control, where, most = log.control, log.where, log.max_segments
    if control and log.is_arrays:
        raise OptionError("`control=` names columns: pass them in a log; a mapping of arrays will do.")
    if control is not None and not isinstance(control, Mapping):
        raise OptionError(f"`control=` maps columns to their known means, found {type(control).__name__}.")
    if most is not None and (isinstance(most, bool) or not isinstance(most, Integral) or most < 1):
        raise OptionError(f"`max_segments={most!r}` is not a whole number of at least 1.")
    seconds = log.timeout
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, Real) or not 0 < seconds < inf):
        raise OptionError(f"`timeout={seconds!r}` is not a number of seconds above 0.")
    if where is not None and not isinstance(where, str):
        raise OptionError(f"`where=` must be an SQL condition as text, found {type(where).__name__}.")
    check_parts(log)


def _check_known_before(log: Log) -> None:
    """Check that rewards are not explained by the choice itself, or by something that follows from it."""
    rewards: dict[str | None, str] = dict.fromkeys(log.reward, "reward")
    propensity = log.propensity if isinstance(log.propensity, str) else None
    choice = {log.action: "action", propensity: "propensity"}
    for part, known in (("context", rewards), ("baseline", {**choice, **rewards})):
        for name in getattr(log, part) or ():
            if name in known:
                raise OptionError(
                    f"`{part}=` names {name!r}, which is the {known[name]}.",
                    do="Name columns that were known before the choice.",
                )


def _keep(part: str, value: object, arrays: Arrays | None) -> str:
    """The column of the probabilities with which rows were kept (or labeled), or an expression that is one number."""
    if isinstance(value, Real) and not isinstance(value, bool):
        if not 0 < float(value) <= 1:
            raise OptionError(f"`{part}={value!r}` is not a probability: it lies above 0, and is at most 1.")
        return repr(float(value))
    return column_name(part, value, arrays)


def _discount(part: str, value: object, arrays: Arrays | None) -> str:
    """The column that says how much positions count, or the name of a rule."""
    return value if isinstance(value, str) and value == DCG else column_name(part, value, arrays)


def _propensity(part: str, value: object, arrays: Arrays | None) -> object:
    """The column of the propensities, those of several loggers, or the model that takes its place; arrays join the others."""
    model: Any = value
    named = model.column if isinstance(value, Unlogged) else value
    if isinstance(named, Mapping):
        columns = [value, *named.values()]
        if any(isinstance(column, Unlogged) or (isinstance(column, str) and column == MODEL) for column in columns):
            raise OptionError(
                "a propensity model is of one policy: of several loggers, the probabilities must have been logged.",
                do=f"Without them, pass `propensity={MODEL!r}` alone, with the logger among the columns of `context=`.",
            )
        return {name: column_name(f"propensity of {name}", column, arrays) for name, column in named.items()}
    if named is None or (isinstance(value, str) and value == MODEL):
        return value
    column = column_name(part, named, arrays)
    return replace(model, column=column) if isinstance(value, Unlogged) else column


def _baseline(part: str, value: object, arrays: Arrays | None) -> dict[str, How] | None:
    """The columns of a baseline, and what is known of their levels; arrays, a mapping of names to them, or a table of numbers."""
    if isinstance(value, Mapping) and arrays is None:
        return as_baseline(value) or None
    return as_baseline(_table(part, value, arrays)) or None


def _table(part: str, value: Any, arrays: Arrays | None) -> tuple[str, ...]:
    """The columns of a part that may be given as a table of numbers, one column each."""
    if arrays is not None and np.ndim(value) == 2 and not isinstance(value, list | tuple):
        table = np.asarray(value)
        return tuple(arrays.put(f"{part}_{k}", table[:, k]) for k in range(table.shape[1]))
    return column_names(part, value, arrays)


# how the value of a part becomes names of columns; an option stays as it is
_FORMS: dict[Form, Callable[[str, object, Arrays | None], object]] = {
    "propensity": _propensity,
    "column": column_name,
    "discount": _discount,
    "keep": _keep,
    "columns": column_names,
    "table": _table,
    "baseline": _baseline,
}


def _describe(data: object) -> str:
    if isinstance(data, Mapping):
        return f"{len(data)} array{'s' if len(data) != 1 else ''}"
    if isinstance(data, str | PathLike):
        return repr(without_password(str(data)))
    if isinstance(data, list | tuple):
        return f"{len(data)} files"
    return type(data).__name__


def _single(value: object) -> object:
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value
