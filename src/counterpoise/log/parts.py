"""The parts of a log: the one list of them, with what each may be, what it means, and how it is read.

Signatures, help, the reply to a misspelled argument and the options of the command line are all made from
it. That is why the annotations of this module are read while the program runs, and are not postponed.
"""

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import cleandoc
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn, Protocol, TypedDict

from numpy.typing import ArrayLike

from counterpoise.errors import ColumnError, OptionError, warn_of_old_name

if TYPE_CHECKING:
    import polars as pl

MARGINAL, CONDITIONAL = "item_at_position", "item_given_above"  # what the propensities of a ranking are
# -- What users pass ---------------------------------------------------------------------------------------------------


class FrameLike(Protocol):
    """A frame or table with named columns: pandas, polars, pyarrow, DuckDB, ibis, Spark, …"""

    @property
    def columns(self) -> object:
        """The columns, or their names."""


class Connection(Protocol):
    """A connection to a database, from DuckDB or ibis."""

    @property
    def table(self) -> Callable[..., object]:
        """Opens a table by its name."""


class Learnable(Protocol):
    """A scikit-learn model, or anything with the same `fit`."""

    @property
    def fit(self) -> Callable[..., object]:
        """Learns from rows."""


Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
Data = Mapping[str, ArrayLike] | FrameLike | Connection | Paths | None  # where rows are; without it, parts are arrays
Column = str | ArrayLike | None  # a name or an SQL expression; without data, the array itself
Columns = Column | Mapping[str, ArrayLike]  # one of them, several, or several by their names
RewardBounds = tuple[float, float] | Mapping[str, tuple[float, float]] | None


class Unlogged:
    """A propensity that a model estimates, except where a column has a number: `counterpoise.models.Propensity` is one."""

    column: Column  # with the propensities that were logged, if some were


@dataclass(frozen=True)
class Ratio:
    """A reward that is a ratio of sums: revenue per session, or clicks among the rows that were seen.

    ``reward=Ratio("revenue", "sessions")`` asks for Σ revenue / Σ sessions under each policy; it is short for ``reward="revenue",
    per="sessions"``. The mean of every row's own ratio is another question: ``reward="revenue / sessions"``.
    """

    reward: Column
    per: Column


class Fittable:
    """A reward model, and how it is fitted: `counterpoise.models.Reward` is one."""


# -- The list ----------------------------------------------------------------------------------------------------------

Form = Literal["column", "columns", "table", "propensity", "baseline", "discount", "keep", "option"]
# under which the help of a command lists a part
Panel = Literal["log", "rows", "lists", "episodes", "models", "estimates"]


@dataclass(frozen=True)
class Part:
    """A part: its sentence, the form in which it is read, and the group of parts that a verb takes or refuses as one.

    `panel` is where the help of a command lists it ("log" has the parts that matter most), and `in_python` what only Python can say.
    """

    sentence: str
    form: Form = "column"
    group: Literal["lists", "predictions", "fitting", ""] = ""
    panel: Panel = "rows"
    in_python: str = ""


class LogFields(TypedDict, total=False):
    """The parts of a log, as `Log` and every other verb take them."""

    reward: Annotated[
        Columns | Ratio,
        Part(
            "the outcome of the choice: a click, an amount",
            "columns",
            panel="log",
            in_python="list several to evaluate all of them in one pass; a Ratio is a ratio of sums",
        ),
    ]
    per: Annotated[
        Column,
        Part("what the reward is divided by: the answer is the ratio of both sums, such as revenue per session"),
    ]
    minimize: Annotated[
        str | Sequence[str] | bool | None,
        Part(
            "the reward of which less is better, such as a cost or a waiting time",
            "option",
            in_python="several by name, or True for all; False means that more is better, whatever the name sounds like",
        ),
    ]
    propensity: Annotated[
        Column | Mapping[str, Column] | Unlogged,
        Part(
            "the logging policy's probability of the logged action",
            "propensity",
            panel="log",
            in_python="with several loggers, each one's; if it was not logged, 'model' or a models.Propensity",
        ),
    ]
    logger: Annotated[
        Column, Part("which of several loggers wrote the row, by the names that propensity maps to columns")
    ]
    shares: Annotated[
        Mapping[str, float] | None,
        Part("the loggers' shares of the rows; by default, those found in the log", "option"),
    ]
    action: Annotated[Column, Part("the logged action", panel="log")]
    context: Annotated[Columns, Part("what a policy looks at before it chooses", "table", panel="log")]
    candidates: Annotated[Column, Part("the actions to choose from: a list in every row")]
    cluster: Annotated[
        Column | Literal[False],
        Part("the unit of randomization, such as the user; errors allow for its rows being alike", panel="log"),
    ]
    key: Annotated[Columns, Part("what identifies a row; repeats are counted", "columns")]
    keep: Annotated[
        Column | float,
        Part(
            "the probability that a row was kept where the log was sampled; it may depend on the outcome",
            "keep",
        ),
    ]
    rows_before: Annotated[int | None, Part("with keep, how many rows there were before sampling, if known", "option")]
    proxy: Annotated[
        Column,
        Part(
            "a score that every row has and that predicts the reward, which only some rows have: a judge's score, an early signal",
        ),
    ]
    observed: Annotated[
        Column,
        Part("with proxy, whether the reward of a row is known (1) or not (0): who was labeled"),
    ]
    label_propensity: Annotated[
        Column | float,
        Part("the probability that a row was labeled; by default, the same for all rows", "keep"),
    ]
    model_reward: Annotated[
        Column,
        Part(
            "a reward model's prediction for the logged action, for dr and the other model-based estimators",
            group="predictions",
            panel="models",
        ),
    ]
    model_value: Annotated[Columns, Part("the model's value of each target", "option", "predictions", "models")]
    model: Annotated[
        str | Learnable | Fittable | None,
        Part(
            "a reward model to fit, never on the rows it predicts: auto, logistic, ridge or boosted",
            "option",
            "fitting",
            "models",
            in_python="or one of scikit-learn's",
        ),
    ]
    cross_fit: Annotated[
        bool,
        Part(
            "fit the targets that are unfitted models of the reward, and take the action with the largest prediction: each row is "
            "evaluated by a fit on other rows",
            "option",
            panel="models",
        ),
    ]
    items: Annotated[
        FrameLike | None,
        Part("what the model may know about actions: one row for each", "option", "fitting", "models", "in a frame"),
    ]
    value_samples: Annotated[
        int | None,
        Part("with many actions, how many to draw for the model's value of a target", "option", "fitting", "models"),
    ]
    control: Annotated[
        Mapping[str, float] | None,
        Part("further control variates: each column and its known mean", "option", panel="estimates"),
    ]
    baseline: Annotated[
        Columns | Mapping[str, object],
        Part(
            "columns known before the choice that rewards may depend on; the baseline is linear in them, and text is a category",
            "baseline",
            panel="estimates",
        ),
    ]
    slate: Annotated[
        Column, Part("the ranking that a row belongs to, with one row per position", group="lists", panel="lists")
    ]
    position: Annotated[
        Column, Part("a row's position in its ranking, counted from 0 or from 1", group="lists", panel="lists")
    ]
    propensity_of: Annotated[
        str | None,
        Part(
            "what propensities in rankings mean: item_at_position (whatever stands elsewhere) or item_given_above (given the items above)",
            "option",
            "lists",
            "lists",
        ),
    ]
    discount: Annotated[
        Column,
        Part(
            "how much the reward at a position counts in the value of a ranking: dcg, or a column; by default, 1",
            "discount",
            "lists",
            "lists",
        ),
    ]
    episode: Annotated[
        Column,
        Part("the session or episode that a row is a step of, with one row per step", group="lists", panel="episodes"),
    ]
    step: Annotated[
        Column, Part("a row's place in its episode, counted from 0 or from 1", group="lists", panel="episodes")
    ]
    discount_factor: Annotated[
        float | None,
        Part(
            "the discount per step: how much a reward counts, of one a step earlier; by default, 1",
            "option",
            "lists",
            "episodes",
        ),
    ]
    done: Annotated[
        Column,
        Part(
            "whether the episode ended at this row, as 0 and 1; one without it was cut off. By default, all are whole",
            group="lists",
            panel="episodes",
        ),
    ]
    where: Annotated[str | None, Part("an SQL condition: only rows that meet it count", "option", panel="log")]
    trained_on: Annotated[
        Data | Literal[False],
        Part(
            "the rows that the policies were trained on, matched by key if there is one, and else by context, action and reward; "
            "policies that saw rows of this log are flattered by them",
            "option",
            in_python="a frame, a mapping of columns or files; False means that none of this log's rows were among them",
        ),
    ]
    table: Annotated[str | Sequence[str] | None, Part("the database table that is the log", "option")]
    query: Annotated[str | None, Part("the database query that is the log", "option")]
    external_access: Annotated[bool, Part("let DuckDB read other files, as a view over Parquet needs", "option")]
    timeout: Annotated[
        float | None,
        Part("the seconds that a database may take for a pass over the log, before it is stopped", "option"),
    ]
    format: Annotated[
        str | None,
        Part(
            "the tool that wrote the files, if their names do not say so: vowpal-wabbit, obp, open-bandit, eppo, growthbook or router",
            "option",
        ),
    ]
    groups: Annotated[
        int | None,
        Part(
            "how many groups to hash clusters (or rows) into, for the jackknife and cross_fit",
            "option",
            panel="estimates",
        ),
    ]
    max_segments: Annotated[
        int | None,
        Part("the most segments to make; pass a larger number for more than 1,000", "option", panel="estimates"),
    ]
    reward_bounds: Annotated[
        RewardBounds,
        Part(
            "the smallest and the largest possible reward, if known",
            "option",
            panel="estimates",
            in_python="with several rewards, also by name",
        ),
    ]
    drop_bad_rows: Annotated[bool, Part("drop invalid rows, and count them, instead of refusing the log", "option")]


PARTS: dict[str, Part] = {name: hint.__metadata__[0] for name, hint in LogFields.__annotations__.items()}
TRAINED = ("trained_on", "cross_fit")
PLACE = ("where", "table", "query", "external_access", "timeout", "format")  # where the rows are, and which of them
LISTS, PREDICTIONS, FITTING = (
    tuple(name for name in PARTS if PARTS[name].group == group) for group in ("lists", "predictions", "fitting")
)
MODELS = (*FITTING, *PREDICTIONS)


# what an argument is called in other libraries, or in everyday language
OTHER_WORDS = {
    "target": ("policy", "policies", "targets", "evaluation_policy", "new_policy"),
    "against": ("control_policy", "old_policy", "versus"),
    "segment": ("by", "group_by", "slices"),
    "level": ("alpha", "confidence"),
    "reward": ("label", "outcome", "y"),
    "propensity": ("action_prob", "behavior_prob", "pscore"),
    "action": ("arm", "item", "treatment"),
    "context": ("covariates", "features", "x"),
    "cluster": ("unit", "user"),
    "key": ("id", "row_id"),
    "model": ("regression_model", "reward_model"),
    "items": ("action_context", "item_features"),
    "position": ("rank",),
    "episode": ("session", "trajectory"),
    "step": ("t", "time_step", "timestep"),
    "discount_factor": ("discount_rate",),
    "done": ("terminal", "terminated"),
    "where": ("condition", "filter", "segment"),
    "per": ("denominator", "divided_by"),
    "proxy": ("judge", "surrogate", "score"),
    "observed": ("labeled", "is_labeled", "labelled", "is_labelled"),
    "keep": ("sample_rate", "sampling_rate", "sample_weight", "pdrop"),
    "reward_bounds": ("bounds", "reward_range"),
    "minimize": ("direction", "less_is_better", "lower_is_better", "minimise"),
}


def help_of(part: str) -> str:
    """A part of a log in a few words."""
    return "; ".join(filter(None, (PARTS[part].sentence, PARTS[part].in_python)))


# arguments that have a new name, until version 0.5
OLD_NAMES = {"gamma": "discount_factor", "distribution": "probabilities"}


def new_name(name: str, known: Collection[str]) -> str | None:
    """What an argument that is not `known` is called now; None if that is not known either.

    >>> new_name("gamma", ["episode", "discount_factor"]), new_name("gamma", ["target", "gamma"])
    ('discount_factor', None)
    """
    new = OLD_NAMES.get(name)
    return new if name not in known and new in known else None


def by_name(
    caller: str, arguments: Mapping[str, object], known: Collection[str], taken: Collection[str] | None = None
) -> dict[str, object]:
    """The arguments by the names that they have now; an old name warns.

    The first unknown one is refused with the one that was probably meant; only those that are `taken` are suggested, if some are refused.

    >>> by_name("evaluate", {"segments": "country"}, ["segment", "reward"])
    Traceback (most recent call last):
    TypeError: evaluate has no argument 'segments'. Did you mean segment?
    """
    named = {}
    for name, value in arguments.items():
        if name in known:
            named[name] = value
            continue
        if (new := new_name(name, known)) is not None:
            if new in arguments:
                raise TypeError(f"{caller} was given both {name!r} and {new!r}, which are the same argument.")
            warn_of_old_name(f"{name}=", f"{new}=", depth=4)
            named[new] = value
            continue
        useful = known if taken is None else taken
        near = [word for word, others in OTHER_WORDS.items() if word in useful and name.lower() in others]
        near = near or difflib.get_close_matches(name, useful, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Its arguments are {', '.join(useful)}."
        raise TypeError(f"{caller} has no argument {name!r}. {hint}")
    return named


# -- Arrays given without a log, collected under the names of their parts ----------------------------------------------


class Arrays(dict[str, object]):
    """A mapping of arrays that grows as parts are passed; a name can be added only once."""

    def put(self, name: str, value: object) -> str:
        """Add one more array, and return the name of its column."""
        if name in self:
            raise OptionError(
                f"two of the arrays are called {name!r}: give the target (or segment, or key) another name."
            )
        self[name] = value
        return name

    def copy(self) -> "Arrays":
        """Another mapping of the same arrays."""
        return Arrays(self)


def column_name(part: str, value: object, arrays: Arrays | None) -> str:
    """The name of one column; an array joins the others under the name of its part."""
    if arrays is None or (isinstance(value, str) and value in arrays):
        if not isinstance(value, str):
            raise OptionError(
                f"`{part}=` must name a column of the log, found {type(value).__name__}. Without a log, pass arrays."
            )
        return value
    if isinstance(value, str):
        raise OptionError(
            f"`{part}={value!r}` names a column, but there is no log: pass the log first, or the array itself."
        )
    return arrays.put(part, value)


def column_names(part: str, value: object, arrays: Arrays | None) -> tuple[str, ...]:
    """The names of one or several columns, or of one array, a mapping of names to arrays, or a list of arrays."""
    if value is None or (isinstance(value, list | tuple) and not value):
        return ()
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return tuple(column_name(part, name, arrays) for name in value)
    if arrays is None:
        if isinstance(value, str):
            return (value,)
        raise OptionError(f"`{part}=` must be the name of a column or a list of names, found {type(value).__name__}.")
    if isinstance(value, Mapping):
        return tuple(arrays.put(str(name), column) for name, column in value.items())
    if isinstance(value, list | tuple) and hasattr(value[0], "__len__") and not isinstance(value[0], str):
        return tuple(arrays.put(f"{part}_{k}", column) for k, column in enumerate(value))
    return (column_name(part, value, arrays),)


def with_parts(docstring: str | None, parts: Collection[str]) -> str:
    """A docstring with an entry for each of these parts, unless it has one of its own."""
    text = cleandoc(docstring or "")
    later = re.search(r"^(Returns|Notes|Examples|References)\n-+$", text, re.MULTILINE)
    end = later.start() if later else len(text)
    before = text[:end].rstrip()
    if "\nParameters\n" not in before:
        before += "\n\nParameters\n----------"
    described = {name for names in re.findall(r"^\w+(?:, \w+)*$", before, re.MULTILINE) for name in names.split(", ")}
    for part in parts:
        if part not in described:
            sentence = help_of(part)
            before += f"\n{part}\n    {sentence[0].upper()}{sentence[1:]}."
    return f"{before}\n\n{text[end:]}".rstrip()


# -- Which column plays which part, guessed from their names -----------------------------------------------------------

USUAL = {
    "reward": ("reward", "click", "clicked", "r"),
    "propensity": ("propensity", "propensity_score", "pscore", "p", "action_prob"),
    "target": ("target", "pi", "pi_new", "target_prob", "evaluation_prob", "new"),
    "action": ("action", "a", "arm", "item_id", "action_id"),
}
_TARGETS = re.compile(r"(pi|target)(_(?!action)\w+)?", re.IGNORECASE)  # pi_new, pi_old, target_b; not target_action
_ID = r"(_?(id|key|uuid|guid|hash))"
_WHO = (
    "user|visitor|customer|client|session|device|member|household|account|cookie|person|people|patient|player|subscriber|guest|shopper|"
    "buyer|driver|rider|student|viewer|reader|browser|consumer|panelist|subject|participant|employee|passenger|traveler|tenant|owner"
)
_UNIT = re.compile(rf"({_WHO}|uid|(.*_)?({_WHO}){_ID}|(anon|anonymous|visit|trip|unit|cluster){_ID})")
# what is chosen, or where and when: such rows are alike, and yet drawn one by one
_THING = re.compile(
    r"(.*_)?(action|arm|item|product|article|ad|ads|creative|banner|variant|treatment|campaign|offer|content|movie|film|song|track|video|doc|"
    r"document|sku|listing|hotel|poi|policy|model|logger|experiment|test|bucket|group|segment|category|brand|store|shop|region|country|city|"
    r"state|zip|zone|market|location|place|site|publisher|channel|hour|day|week|month|year|date|time|slot|position|rank|type|kind|class|"
    r"topic|genre|language|template|version|choice|option|candidate|reward|label|row|index|event|impression|request|decision|log|record|"
    r"click|order|query|search|page|list|slate|carousel|feed)s?" + _ID
)
_ANY_ID = re.compile(r".+_(id|uuid|guid)")
# what tells about a decision, and not from whom it comes: rows with one value are alike, and yet drawn one by one
_FEATURE = re.compile(
    r"(.*_)?(age|birth_?year|born|gender|sex|income|salary|country|nation|nationality|continent|region|area|county|province|district|city|"
    r"town|state|zip|zip_?code|post_?code|postal|postal_?code|market|location|geo|timezone|lat|lon|latitude|longitude|language|lang|locale|"
    r"hour|minute|second|day|week|weekday|dow|month|quarter|season|year|date|time|timestamp|ts|epoch|created_at|"
    r"price|cost|amount|revenue|spend|budget|discount|fee|bid|score|rating|stars|count|number|num|total|quantity|qty|stock|"
    r"duration|dwell|length|width|height|size|weight|distance|temperature|tenure|level|tier|plan|step|position|pos|rank|slot|index|"
    r"action|arm|item|product|article|ad|ads|creative|banner|variant|treatment|campaign|offer|content|movie|film|song|track|video|doc|"
    r"document|sku|hotel|poi|policy|model|experiment|test|bucket|group|segment|cohort|category|brand|make|publisher|channel|"
    r"source|medium|referrer|referer|keyword|query|search|term|topic|tag|genre|template|version|os|platform|carrier|isp|currency|color|"
    r"colour|type|kind|class|choice|option|candidate|reward|label|domain|url|domain_name|job|occupation|industry|education)s?"
    r"(_?(id|code|name|key|no|nr|number|value|band|bin))?|(n|num|no|count)_.+|"
    r"(.*_)?(context|ctx|covariate|cov|feature|feat|attribute|attr|category|cat|dimension|dim|variable|var|column|col|field|[a-z])_?[0-9]*"
)
_SHARE = "(rate|prob|probability|ratio|fraction|weight|factor)"
_SAMPLING = re.compile(rf"((down|sub)?_?sampl(e|ing)_{_SHARE}|keep_{_SHARE}|p_?drop|drop_(rate|prob|probability))")
_MAYBE_SAMPLING = re.compile(rf"{_SAMPLING.pattern}|keep|weight|weights|row_weight")


@dataclass(frozen=True)
class GuessedParts:
    """Which columns play which part, and which of those were guessed."""

    reward: str
    propensity: str
    target: tuple[str, ...]
    guessed: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{part} {column!r}" for part, column in self.guessed)


def guess(
    columns: Sequence[str], *, reward: str | None = None, propensity: str | None = None, target: Sequence[str] = ()
) -> GuessedParts:
    """Keep what you name, and look up the rest among the usual names, in upper or lower case.

    Every column called pi, target, pi_… or target_… is a target.

    >>> guess(["Click", "pscore", "pi_new", "pi_old", "country"])
    GuessedParts(reward='Click', propensity='pscore', target=('pi_new', 'pi_old'),
                 guessed=(('reward', 'Click'), ('propensity', 'pscore'), ('target', 'pi_new'), ('target', 'pi_old')))
    """
    guessed: list[tuple[str, str]] = []
    if reward is None:
        reward = usual("reward", columns) or which_column("reward", columns)
        guessed.append(("reward", reward))
    if propensity is None:
        propensity = usual("propensity", columns) or which_column("propensity", columns)
        guessed.append(("propensity", propensity))
    targets = tuple(target)
    if not targets:
        targets = targets_among(columns, (reward, propensity)) or (which_column("target", columns),)
        guessed += [("target", name) for name in targets]
    return GuessedParts(reward, propensity, targets, tuple(guessed))


def usual(part: str, columns: Sequence[str]) -> str | None:
    """The column with the first of the usual names of a part."""
    for name in USUAL.get(part, ()):
        for column in columns:
            if column.lower() == name:
                return column
    return None


def targets_among(columns: Sequence[str], taken: Sequence[str | None] = ()) -> tuple[str, ...]:
    """Every column whose name says that it is a target's probability."""
    free = [column for column in columns if column not in taken]
    named = tuple(column for column in free if _TARGETS.fullmatch(column))
    usual_name = usual("target", free)
    return named or ((usual_name,) if usual_name else ())


def ids_among(columns: Collection[str], taken: Collection[str | None] = ()) -> dict[str, bool]:
    """The columns whose names say that they identify somebody, and whether that is certain: user_id does, and panel_id may.

    >>> ids_among(["click", "user_id", "sessionId", "item_id", "panel_id", "p"])
    {'user_id': True, 'sessionId': True, 'panel_id': False}
    """
    return {name: sure for name in columns if name not in taken and (sure := _is_id(name)) is not None}


@lru_cache(maxsize=10_000)  # names repeat from call to call
def describes(name: str) -> bool:
    """Whether a column's name says that it tells about a decision (when, where, which, how much), and not from whom it comes.

    >>> [name for name in ("store", "sid", "email", "age", "zipCode", "campaign_id", "page", "n_items") if not describes(name)]
    ['store', 'sid', 'email', 'page']
    """
    return _FEATURE.fullmatch(_in_words(name)) is not None


@lru_cache(maxsize=10_000)
def _is_id(name: str) -> bool | None:
    plain = _in_words(name)
    if _UNIT.fullmatch(plain):
        return True
    return False if _ANY_ID.fullmatch(plain) and not _THING.fullmatch(plain) else None


def sampling_among(columns: Collection[str], taken: Collection[str | None] = ()) -> dict[str, bool]:
    """The columns whose names say that they are about how rows were sampled, and whether that is certain: a weight may be anything.

    >>> sampling_among(["click", "sampleRate", "weight", "pdrop", "action_weight"])
    {'sampleRate': True, 'weight': False, 'pdrop': True}
    """
    plain = {name: _in_words(name) for name in columns if name not in taken}
    return {
        name: _SAMPLING.fullmatch(word) is not None for name, word in plain.items() if _MAYBE_SAMPLING.fullmatch(word)
    }


def sampling_advice(values: "pl.Series") -> str | None:
    """What to do about a column that may say how rows were sampled: as it stands, of the others, or as its inverse; None if it cannot.

    >>> import polars as pl
    >>> sampling_advice(pl.Series("pdrop", [0.9, 0.0]))
    "If it is, pass `keep='1 - pdrop'`; if every <row> was kept, pass `keep=1`."
    >>> sampling_advice(pl.Series("weight", [1, 10]))
    "If it is, pass `keep='1.0 / weight'`; if every <row> was kept, pass `keep=1`."
    >>> sampling_advice(pl.Series("weight", [55.5, 0]))
    """
    if not values.dtype.is_numeric() or values.null_count() == values.len():
        return None
    column = values.name if values.name.isidentifier() else f'"{values.name}"'
    numbers = values.drop_nulls().cast(float).to_numpy()
    low, high = float(numbers.min()), float(numbers.max())
    keep = None
    if "drop" in _in_words(values.name):
        keep = f"1 - {column}" if low >= 0.0 and 0.0 < high < 1.0 else None
    elif 0.0 < low < 1.0 and high <= 1.0:
        keep = column
    elif low >= 1.0 and high > 1.0:
        keep = f"1.0 / {column}"
    return None if keep is None else f"If it is, pass `keep={keep!r}`; if every <row> was kept, pass `keep=1`."


# words of which less is usually better, and those beside which they say nothing: cost_saving, error_free, weight_loss
_COST = re.compile(
    r"costs?|expenses?|latency|latencies|delays?|lateness|tardiness|downtime|timeouts?|waits?|churn|churned|attrition|refunds?|refunded|"
    r"chargebacks?|errors?|bugs?|fails?|failed|failures?|crash|crashes|crashed|defects?|mistakes?|bounces?|bounced|complaints?|complained|"
    r"unsubscribes?|unsubscribed|uninstalls?|uninstalled|cancellations?|cancell?ed|abandon|abandoned|abandonment|loss|losses|regret|"
    r"penalty|penalties|dislikes?|spam|fraud|stockouts?|spoilage|mortality|deaths?|injury|injuries|readmissions?|readmitted|toxicity|"
    r"hallucinations?|violations?|rmse"
)
_NOT_COST = re.compile(
    r"no|not|non|without|free|savings?|saved?|avoided|avoidance|reductions?|reduced|prevented|prevention|resolved|resolution|fixed|"
    r"recovered|recovery|less|minus|neg|negative|negated|inverse|inv|effective|effectiveness|improvements?|improved|gains?|decreases?|"
    r"detected|detection|caught|covered|weight|stop|success|benefits?|adjusted|after|net|profits?|revenue|margin|rewards?|utility|handled|"
    r"won|back"
)
_WAIT = re.compile(r"(.*_)?(waiting|response|load|loading|idle|queue)_(times?|days|hours|minutes|seconds)(_[a-z]+)?")
_UNTIL = re.compile(
    r"(?:time|days|hours|minutes|seconds)_to_(.+)"
)  # and the longer it takes to something bad, the better


@lru_cache(maxsize=10_000)
def sounds_like_cost(name: str) -> bool:
    """Whether a reward's name says that less of it is usually better; an expression of several columns says nothing.

    >>> [name for name in ("cost", "refundAmount", "time_to_answer", "cost_saving", "lossless", "watch_time") if sounds_like_cost(name)]
    ['cost', 'refundAmount', 'time_to_answer']
    """
    if not re.fullmatch(r"[^\W\d][\w .-]*", name) or " - " in name:
        return False
    plain = "_".join(re.findall(r"[^\W\d_]+", _in_words(name)))
    if until := _UNTIL.fullmatch(plain):
        return not sounds_like_cost(until[1]) and until[1] != "live"
    words = plain.partition("_per_")[0].split("_")  # clicks_per_cost are clicks
    if any(map(_NOT_COST.fullmatch, words)):
        return False
    return _WAIT.fullmatch(plain) is not None or any(map(_COST.fullmatch, words))


Minimize = bool | Collection[str] | None  # what a log says of its rewards, as `Log` keeps it


def is_minimized(minimize: Minimize, reward: str | None) -> bool | None:
    """Whether less of a reward is better; None if nobody said, and its name sounds like a cost.

    >>> is_minimized(("cost",), "cost"), is_minimized(("cost",), "click"), is_minimized(None, "cost"), is_minimized(False, "cost")
    (True, False, None, False)
    """
    if minimize is None:
        return None if reward is not None and sounds_like_cost(reward) else False
    return minimize if isinstance(minimize, bool) else reward in minimize


def _in_words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def checked_shares(shares: object, names: tuple[str, ...]) -> dict[str, float]:
    """Shares by name, scaled to add up to 1: 50 and 50 will do.

    >>> checked_shares({"a": 3, "b": 1}, ("a", "b"))
    {'a': 0.75, 'b': 0.25}
    """
    by_name = {str(name): share for name, share in shares.items()} if isinstance(shares, Mapping) else {}
    if set(by_name) != set(map(str, names)):
        expected, entries = ", ".join(map(repr, names)), ", ".join(map(repr, by_name)) or repr(shares)
        raise OptionError(f"`shares=` needs one entry for each of {expected}; found {entries}.")
    is_number = (isinstance(share, int | float) and not isinstance(share, bool) for share in by_name.values())
    if not all(is_number) or not all(0 < share < math.inf for share in by_name.values()):
        raise OptionError(f"`shares=` holds something that isn't a positive number: {by_name!r}.")
    total = sum(by_name.values())
    return {name: by_name[str(name)] / total for name in names}


def which_column(part: str, columns: Sequence[str]) -> NoReturn:
    """Refuse to guess a part that no column has a usual name for, and say what to pass."""
    shown = ", ".join(map(repr, columns[:20])) + (f" and {len(columns) - 20} more" if len(columns) > 20 else "")
    raise ColumnError(
        f"which column is the {part}? None has a usual name ({', '.join(USUAL[part])}); the log has {shown or 'no columns'}.",
        do=f"Pass `{part}=COLUMN`{_OTHERWISE.get(part, '.')}",
    )


# what to do if there is no such column
_OTHERWISE = {
    "propensity": "; if propensities were not logged, estimate them: `propensity='model'`, with `action=` and `context=`.",
    "target": "; if a column holds the action that a policy takes, `target=Chosen(column='COLUMN')`, with `action=`.",
}
