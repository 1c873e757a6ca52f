"""`Question`: a log, the targets, what to add up for them, and the names of columns inside a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

from counterpoise.errors import OptionError, verbatim
from counterpoise.log.baseline import Feature, check_features
from counterpoise.log.columns import GROUP, MODEL_ERROR, MODEL_REWARD, PROPENSITY
from counterpoise.log.kinds import KINDS, kinds_of
from counterpoise.log.kinds.kind import NumberColumn, RowKind
from counterpoise.log.parts import MODELS, TRAINED, Arrays, Columns, column_names, is_minimized
from counterpoise.log.sequences import Sequences
from counterpoise.log.targets import (
    CHOSEN,
    LISTED,
    Always,
    Chosen,
    Probabilities,
    Target,
    Targets,
    as_remembered,
    targets_of,
)
from counterpoise.moments.columns import CONTEXT, EXCESS, MODEL, REWARD, ROW, SQUARE
from counterpoise.moments.log_moments import Contrast

if TYPE_CHECKING:
    import polars as pl

    from counterpoise.log.log import Log

# -- The names of columns inside a query, which are made here and taken apart nowhere ----------------------------------


@dataclass(frozen=True)
class Lane:
    """One set of sums: a contrast of one reward, and the columns of the query that are added up for it.

    `columns` maps the moments' columns to the query's; `target` and `other` hold the two policies' probabilities (None means the policy
    that wrote the log). Some of the columns are products with the excess: `factors` maps them to the other factor. If rewards have bad
    rows of their own, `excess` is blank on those, and `shared` is what it is made from.
    Where a question has a ladder of weights, every contrast has a lane for each `rung` of it.
    Kinds of rows add columns. `counted` maps some of them to what they are made from, each row by itself; `counts` is the column that
    says how often a row counts, `divisor` what its reward is divided by, and `watched` the column whose largest values, plus 1, are kept.
    """

    contrast: Contrast
    reward: int
    target: str
    other: str | None
    excess: str
    shared: str
    zeros: str
    columns: dict[str, str] = field(compare=False)
    weight: Any = field(compare=False)
    rung: int = 0
    factors: dict[str, str] = field(default_factory=dict, compare=False)
    counted: dict[str, str] = field(default_factory=dict, compare=False)
    counts: str = ""
    divisor: str = ""
    watched: str = ""

    @property
    def without_context(self) -> Lane:
        """The same lane without the columns of a context baseline, or of single positions."""
        wide = (CONTEXT, EXCESS, REWARD)
        kept = {name: column for name, column in self.columns.items() if name != SQUARE and not name.startswith(wide)}
        return replace(self, columns=kept, factors={name: pair for name, pair in self.factors.items() if name in kept})

    @property
    def products(self) -> dict[str, tuple[str, str]]:
        """The columns that are products with the excess: name → its two factors."""
        return {self.columns[name]: (factor, self.excess) for name, factor in self.factors.items()}

    def uncounted(self, name: str) -> str:
        """The query's column for one of the moments', each row by itself."""
        column = self.columns[name]
        return self.counted.get(column, column)

    @property
    def shifted(self) -> str:
        """The reward less its center, each row by itself."""
        return self.uncounted("s")

    @property
    def spread(self) -> list[str]:
        """The columns whose powers are added up: the excess, the reward, and what it is divided by."""
        return [self.excess, self.shifted, *([self.divisor] if self.divisor else [])]

    @property
    def peak(self) -> str:
        """The largest excess: all that is kept of the tail above the first rung."""
        return f"{self.excess}_max"


def _numbered(letter: str, of: Callable[[Names], Sized]) -> cached_property[tuple[str, ...]]:
    """A name for each of some things: a letter, and their number from 0."""
    return cached_property(lambda names: tuple(f"{letter}{k}" for k in range(len(of(names)))))


@dataclass(frozen=True)
class Names:
    """Every internal name that a question needs.

    With `apart`, each reward has its own rows: those on which it is good.
    """

    question: Question
    apart: bool = False

    rewards = _numbered("r", lambda names: names.question.log.reward)
    """The rewards."""

    shifted = _numbered("s", lambda names: names.rewards)
    """The rewards minus their centers."""

    centers = _numbered("c", lambda names: names.rewards)
    """A center for each row's segment, if a single one won't do."""

    targets = _numbered("t", lambda names: names.question.targets)
    """The targets' probabilities of the logged action, or the user's own weights."""

    values = _numbered("v", lambda names: names.question.targets if names.question.model_value else ())
    """The model's value of each target."""

    controls = _numbered("x", lambda names: names.question.control)
    """Further control variates."""

    features = _numbered("f", lambda names: names.question.features)
    """The features of a context baseline."""

    centered_features = _numbered("h", lambda names: names.features)
    """The features minus their centers."""

    centered_values = _numbered("w", lambda names: names.values)
    """The model's values minus the center."""

    @cached_property
    def value_differences(self) -> dict[str, tuple[str, str]]:
        """The model's differences minus the center, and the two values behind each; the logging policy's is that of the logged action."""
        if not self.values:
            return {}
        values = dict(zip(self.question.target_names, self.values, strict=True))
        contrasts = enumerate(self.question.contrasts)
        return {f"d{k}": (values[target], values.get(other, MODEL_REWARD)) for k, (target, other) in contrasts if other}

    centered_controls = _numbered("y", lambda names: names.controls)
    """The control variates minus their known means."""

    segments = _numbered("k", lambda names: names.question.segment)
    """The columns that segments are made of."""

    @cached_property
    def keys(self) -> list[str]:
        """What rows are grouped by: segments and hashed groups of clusters."""
        return [*self.segments, *([GROUP] if self.question.groups > 1 else [])]

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """All the sums we want: rewards × contrasts × rungs."""
        rungs, contrasts = range(len(self.question.rungs)), range(len(self.question.contrasts))
        return tuple(self._lane(j, k, i) for j in range(len(self.rewards)) for k in contrasts for i in rungs)

    def lanes_of(self, reward: int, rung: int = 0) -> tuple[Lane, ...]:
        """The lanes of one reward, with one of the weights where there is a ladder of them."""
        return tuple(lane for lane in self.lanes if (lane.reward, lane.rung) == (reward, rung))

    def product(self, a: str, b: str) -> str:
        """The name of the product of two columns; u·s and some others are columns themselves."""
        return self._products.get((a, b)) or self._products.get((b, a)) or "_".join(sorted((a, b)))

    @staticmethod
    def power(column: str, order: int) -> str:
        """The name of a power of a column."""
        return f"{column}_to_{order}"

    @staticmethod
    def weighted(lane: Lane) -> str:
        """The name of the weighted rewards of a lane."""
        return f"{lane.columns['us']}_weighted"

    @staticmethod
    def smoothed(lane: Lane, place: int) -> str:
        """The name of the smoothed rewards of a lane, for one of the question's smoothings."""
        return f"{lane.columns['us']}_smooth{place}"

    @cached_property
    def _products(self) -> dict[tuple[str, str], str]:
        products = {}
        for lane in self.lanes:
            own = set(lane.columns.values()) - {lane.excess}
            for product, factor in lane.factors.items():
                if factor in own:
                    products[factor, lane.excess] = lane.columns[product]
            for kind in self.question.kinds:
                products |= kind.products(lane)
        return products

    @property
    def is_wide(self) -> bool:
        """Whether lanes have too many columns for one query to multiply out."""
        return bool(self.features or self.question.ranks)

    def _lane(self, j: int, k: int, rung: int) -> Lane:
        target, against = self.question.contrasts[k]
        place = self.question.target_names.index(target)
        others = self.question.target_names
        other = self.targets[others.index(against)] if against and against in others else None
        shared = f"{k}c{rung}" if rung else f"{k}"
        own = f"{shared}r{j}" if self.apart else shared
        mixed = f"{shared}r{j}" if len(self.rewards) > 1 else shared
        columns = {"u": f"u{own}", "s": self.shifted[j], "us": f"us{mixed}"}
        factors = {"us": self.shifted[j]}
        if self.values:
            columns |= {"e": MODEL_ERROR, "ue": f"ue{shared}", "v": f"d{k}" if against else self.centered_values[place]}
            factors |= {"ue": MODEL_ERROR}
        if not against:
            columns |= dict(zip(self.question.control, self.centered_controls, strict=True))
        for feature, centered in zip(self.question.features, self.centered_features, strict=True):
            columns[feature.name], factors[feature.name] = f"u{own}{centered}", centered
        if self.features:
            columns[SQUARE], factors[SQUARE] = f"uu{own}", f"u{own}"
        zeros = f"zero{place}r{j}" if self.apart else f"zero{place}"
        weight, names = self.question.rungs[rung], (f"u{own}", f"u{shared}", zeros)
        lane = Lane(
            (target, against), j, self.targets[place], other, *names, columns, weight, rung, factors, watched=f"u{own}"
        )
        return reduce(lambda known, kind: kind.lane(known, self), self.question.kinds, lane)


# -- `Question`: a log, the targets, and what to add up about them -----------------------------------------------------


LOGGING = "logging"  # as `against`: the logging policy
GROUPS = 100


@dataclass(frozen=True)
class RowWeight:
    """The weight of a single row of a list: all we know is that it has a propensity."""

    needs_propensity = True
    may_be_negative = False
    by_position = False
    part = "target"


@dataclass(frozen=True)
class NoWeight(RowWeight):
    """For rows that are only inspected: no propensity."""

    needs_propensity = False


@dataclass(frozen=True)
class Learning:
    """Marks a question that a policy learns from: contexts, actions and candidates are read and checked, too.

    Whoever reads the rows says what they turned out to be, and adds the columns that the rules of learning look at.
    """

    has_names: bool = False  # the actions are text, and not whole numbers
    vectors: tuple[str, ...] = ()  # the contexts that are several numbers each
    has_models: bool = False  # a reward model's predictions for all actions come with the rows


class ModelStep(Protocol):
    """A model that travels in the question: it adds its columns to every batch."""

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that tell rows apart."""

    @property
    def described(self) -> str:
        """What it is, as a text that stays the same tomorrow."""

    def complete(self, frame: pl.DataFrame, question: Question, batch: str, first_row: int) -> pl.DataFrame:
        """The batch with its columns."""


class PropensityStep(ModelStep, Protocol):
    """A model of the propensities."""

    @property
    def column(self) -> str | None:
        """The column with those that were logged, if some were."""


@dataclass(frozen=True)
class Question:
    """What to read from a log, and what to compute from it; this is all that readers, weights and engines get.

    A contrast is a target's own value, (name, ""), or its difference from another policy, (name, other). `weight` is a member of
    `counterpoise.weights`.
    """

    log: Log
    targets: tuple[Target, ...]
    weight: Any
    contrasts: tuple[Contrast, ...] = ()
    segment: tuple[str, ...] = ()
    groups: int = 1
    model_value: Mapping[str, str] = field(default_factory=dict)  # target → column
    is_binned: bool = False  # segments are bins of the reward, only meaningful together
    smoothings: tuple[float, ...] = ()  # every λ for which log(1 + λwr)/λ is also added up
    features: tuple[Feature, ...] = ()  # what a context baseline is linear in
    model: ModelStep | None = None  # which adds a reward model's columns: see `counterpoise.models.reward`
    propensity_model: PropensityStep | None = None  # which adds propensities: see `counterpoise.models.propensity`
    # if rows count together: everything is then about what engines make of them
    sequences: Sequences | None = None
    is_about_rows: bool = False  # the rows that those are made of
    learning: Learning | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.groups, int) and 1 <= self.groups <= 10_000) or isinstance(self.groups, bool):
            raise OptionError(f"`groups={self.groups!r}` is not a whole number from 2 to 10,000.")
        if (self.log.model_reward is None) != (not self.model_value) and self.learning is None:
            raise OptionError(
                "`model_reward=` and `model_value=` go together: the model's reward of the logged action, and its value of the target."
            )
        for name, mean in self.control.items():
            if isinstance(mean, bool) or not isinstance(mean, Real) or not abs(float(mean)) <= 1e50:
                raise OptionError(f"`control=` maps a column to its known mean; that of {name!r} is {mean!r}.")
        if self.features:
            check_features(self.features)
        if self.control:
            own = {*ROW, *MODEL, SQUARE, *(kind.mark for kind in KINDS)}.union(*(kind.columns for kind in self.kinds))
            reserved = {name for name in self.control if name in own or name.startswith(CONTEXT)}
            if reserved:
                raise OptionError(f"a control may not be called {', '.join(sorted(reserved))}: rename the column.")
        if self.model_value and len(self.log.reward) > 1:
            raise OptionError("a reward model predicts one reward: evaluate one reward at a time with it.")
        if self.smoothings and self.weight.by_position:
            raise OptionError(
                "the log_smoothing interval needs one weight per ranking, and this one has a weight per position."
            )
        if self.makes_rows and self.model_value and not self.weight.by_position:
            raise OptionError(
                "a reward model by position works with a weight by position, independent or cascade: leave it out, or choose one of them."
            )
        if self.smoothings and self.weight.may_be_negative:
            raise OptionError(
                "a weight of your own may be negative, and the logarithm of the interval allows only those that are not."
            )
        if len(set(self.segment)) < len(self.segment):
            raise OptionError(f"`segment=` names a column twice: {', '.join(map(repr, self.segment))}.")

    @cached_property
    def target_names(self) -> tuple[str, ...]:
        """The targets' names, in the order given."""
        return tuple(target.name for target in self.targets)

    @cached_property
    def rungs(self) -> tuple[Any, ...]:
        """The weights to add up side by side: the one there is, or all of a ladder, the unbiased one first."""
        return getattr(self.weight, "rungs", (self.weight,))

    @cached_property
    def names(self) -> Names:
        """The names of columns inside a query."""
        return Names(self)

    def about(self, reward: str | None) -> Question:
        """The question about one of its rewards, which alone decides which rows are good."""
        if reward is None or self.log.reward == (reward,):
            return self
        return replace(self, log=self.log.but(reward=reward, minimize=is_minimized(self.log.minimize, reward)))

    @property
    def propensity_named(self) -> str | None:
        """The column of the propensities; or those of several loggers, whose shares may differ from day to day."""
        column = self.log.propensity if isinstance(self.log.propensity, str) else None
        return ", ".join(getattr(self.weight, "columns", ())) or column

    @property
    def control(self) -> Mapping[str, float]:
        """Further control variates, and their known means."""
        return self.log.control or {}

    @property
    def policies(self) -> tuple[Target, ...]:
        """The targets whose probabilities Python computes."""
        return tuple(target for target in self.targets if target.is_policy)

    @property
    def needs_python(self) -> bool:
        """Whether Python (a policy or a model) has to complete a batch."""
        return bool(self.policies) or bool(self.models)

    @property
    def models(self) -> tuple[ModelStep, ...]:
        """The models to fit, whose columns are added to a batch: propensities first, since a reward model may need them."""
        return tuple(model for model in (self.propensity_model, self.model) if model is not None)

    @property
    def choices(self) -> tuple[Target, ...]:
        """The deterministic targets."""
        return tuple(target for target in self.targets if target.is_choice)

    @property
    def constants(self) -> dict[str, Always]:
        """The deterministic targets that always take the same action, by the column of that action, which no log has."""
        choices = ((target.source_column, target.source) for target in self.choices)
        return {column: source for column, source in choices if isinstance(source, Always)}

    @cached_property
    def numbers(self) -> dict[str, tuple[str, str]]:
        """Internal name → (part, column) for every column that must contain numbers."""
        log, names = self.log, self.names
        targets = [target.column for target in self.targets]
        values = [self.model_value[name] for name in self.target_names] if names.values else []
        parts = _of_part("reward", names.rewards, log.reward)
        if self.makes_rows:
            return parts | _of_part("weight", names.targets, targets) | _of_part("model_value", names.values, values)
        if self.weight.needs_propensity:
            parts[PROPENSITY] = ("propensity", str(log.propensity))
        parts |= _of_part(self.weight.part, names.targets, targets)
        parts |= {number.name: (number.part, column) for number, column in self.own_numbers}
        if log.model_reward is not None:
            parts[MODEL_REWARD] = ("model_reward", log.model_reward)
            parts |= _of_part("model_value", names.values, values)
        parts |= {} if self.sequences is None else self.sequences.numbers
        parts |= _of_part("control", names.controls, self.control)
        return parts | _of_part("baseline", names.features, [feature.column for feature in self.features])

    @cached_property
    def kinds(self) -> tuple[RowKind, ...]:
        """The kinds of its rows, of which there are none if they are plain; rows that others are yet to be made of are."""
        return tuple(kind for kind in kinds_of(self.log) if self.makes_rows or not kind.is_made)

    @cached_property
    def own_numbers(self) -> list[tuple[NumberColumn, str]]:
        """What rows of their kinds have besides weights and rewards, and the column of each."""
        parts = vars(self.log)
        numbers = (number for kind in self.kinds for number in kind.numbers)
        return [(number, parts[number.part]) for number in numbers if parts[number.part] is not None]

    @cached_property
    def known(self) -> str | None:
        """The column of a query that is 1 where the reward is known; None if it always is."""
        return next((kind.known for kind in self.kinds if kind.known), None)

    @cached_property
    def kept_with(self) -> str | None:
        """The column of a query with the probability that a row is there; None if none are missing."""
        return next((kind.kept_with for kind in self.kinds if kind.kept_with), None)

    @property
    def makes_rows(self) -> bool:
        """Whether a row is first made of several of the log's."""
        return self.sequences is not None and not self.is_about_rows

    @cached_property
    def of_rows(self) -> Question:
        """The question about the rows that others are made of, whose weights are those of single rows."""
        return replace(self, weight=RowWeight(), is_about_rows=True, contrasts=(), groups=1, smoothings=())

    @property
    def ranks(self) -> range:
        """The positions with a weight of their own, counted from 1."""
        sequences = self.sequences
        return range(1, 1 + sequences.depth) if sequences is not None and self.weight.by_position else range(0)

    @property
    def keeps_lengths(self) -> bool:
        """Whether to test that the choice does not decide the lengths of lists; running products allow for it."""
        return self.makes_rows and not self.weight.is_running

    @property
    def number_columns(self) -> set[str]:
        """The columns of the log that must contain numbers; a baseline's categories need not."""
        if self.makes_rows:
            return self.of_rows.number_columns
        features = zip(self.names.features, self.features, strict=True)
        labels = {name for name, feature in features if not feature.is_number}
        return {column for name, (_, column) in self.numbers.items() if name not in labels}

    @property
    def hashed(self) -> tuple[str, ...]:
        """The columns whose values are hashed for a baseline."""
        return tuple(dict.fromkeys(feature.column for feature in self.features if feature.kind == "bucket"))

    @property
    def others(self) -> Iterator[tuple[str, str]]:
        """(part, column) for the columns that may contain anything."""
        log = self.log
        for column in self.segment:
            yield "segment", column
        if log.cluster is not None:
            yield "cluster", log.cluster
        for column in log.key:
            yield "key", column
        if self.sequences is not None:
            yield self.sequences.kind.id_part, self.sequences.id
        for column in dict.fromkeys(feature.column for feature in self.features if not feature.is_number):
            yield "baseline", column
        if log.action is not None and (self.choices or self.needs_python or self.learning is not None):
            yield "action", log.action
        for target in self.choices:
            if isinstance(target.source, Chosen):
                yield CHOSEN, target.source_column
        for target in self.tables:
            yield LISTED, target.source_column
        for column in dict.fromkeys(column for target in self.policies for column in target.reads):
            yield "target", column
        if self.models or self.learning is not None or len(self.policies) > len(self.tables):
            for column in log.context:
                yield "context", column
            if log.candidates is not None:
                yield "candidates", log.candidates
        for column in dict.fromkeys(column for model in self.models for column in model.identity):
            if column not in (log.cluster, *log.key):
                yield "key", column
        if self.propensity_model is not None and self.propensity_model.column is not None:
            yield "propensity", self.propensity_model.column

    @property
    def tables(self) -> tuple[Target, ...]:
        """The targets whose probabilities of all actions are lists in a column."""
        return tuple(target for target in self.targets if isinstance(target.source, Probabilities))

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(part, column) for every column to read."""
        if self.makes_rows:
            return self.of_rows.columns
        made = {target.column for target in (*self.choices, *self.policies)}
        if self.model is not None:
            made |= {str(self.log.model_reward), *self.model_value.values()}
        if self.propensity_model is not None:
            made.add(str(self.log.propensity))
        read = [entry for entry in self.numbers.values() if entry[1] not in made]
        return [*read, *self.others]

    @property
    def wanted_columns(self) -> list[str]:
        """Every column or expression that rows from elsewhere need: those to read, the chosen actions, and whether they were taken."""
        choices = (target.column for target in self.choices)
        return [*(column for _, column in self.columns), *self.constants, *choices]

    def slim(self, *besides: str) -> Question:
        """The same about weights and rewards alone: without its `models`, `controls`, `cluster`, `key` and `segment`, but for those named.

        How policies were trained goes with the models, and a baseline with the controls.
        """
        parts = {
            "models": (*MODELS, *TRAINED),
            "controls": ("control", "baseline"),
            "cluster": ("cluster",),
            "key": ("key",),
        }
        has_models, has_controls = "models" in besides, "controls" in besides
        kept: dict[str, Any] = {
            "log": self.log.without(*(part for name, own in parts.items() if name not in besides for part in own)),
            "segment": self.segment if "segment" in besides else (),
            "groups": self.groups if "cluster" in besides else 1,
            "model_value": self.model_value if has_models or not self.model_value else {},
            "model": self.model if has_models else None,
            "features": self.features if has_controls else (),
        }
        is_slim = all(getattr(self, name) is value for name, value in kept.items())
        return self if is_slim else replace(self, **kept)  # whose names are known already

    @property
    def moment_columns(self) -> tuple[str, ...]:
        """The columns of the moments of a target's value."""
        own = (tuple(lane.columns) for lane in self.names.lanes if not lane.contrast[1])
        return next(own, ROW)


def _of_part(part: str, names: Iterable[str], columns: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Internal name → (part, column) for the columns of one part."""
    return {name: (part, column) for name, column in zip(names, columns, strict=True)}


def ask(
    log: Log,
    target: Targets,
    *,
    weight: Any,
    against: Targets = None,
    segment: Columns = None,
    groups: int = 1,
    smoothings: tuple[float, ...] = (),
    features: tuple[Feature, ...] = (),
    sequences: Sequences | None = None,
) -> Question:
    """The question about a log; if there are only arrays, they become its columns."""
    log.need("reward", *(["propensity"] if weight.needs_propensity or sequences else []))
    arrays = log.data.copy() if log.is_arrays else None
    targets = targets_of(target, log, arrays)
    log = as_remembered(log, targets)
    contrasts: tuple[Contrast, ...] = tuple((policy.name, "") for policy in targets)
    if against is not None:
        rival = _rival(against, targets, log, arrays)
        rivals = [policy.name for policy in targets if policy.name != rival.name]
        if not rivals:
            raise OptionError(f"`target=` and `against=` are both {rival.name!r}: name two different policies.")
        if rival.name != LOGGING and rival.name not in {policy.name for policy in targets}:
            targets += (rival,)
            log = as_remembered(log, targets)
            contrasts += ((rival.name, ""),)
        contrasts += tuple((name, rival.name) for name in rivals)
    shows_several = sequences is not None and sequences.kind.shows_several
    if shows_several and any(isinstance(policy.source, Always) for policy in targets):
        raise OptionError(
            "a ranking shows several items, and `Always` takes one and the same.",
            do="Name the target's probabilities of what was shown, with `target=`.",
        )
    segments = column_names("segment", segment, arrays)
    if log.max_segments is not None and not segments:
        raise OptionError(
            "`max_segments=` limits the number of segments, and there is no `segment=`.",
            do="Leave it out, or pass `segment=` to evaluate or compare.",
        )
    values = _model_values(log, targets, arrays)
    if arrays is not None:
        log = log.of(arrays)
    return Question(
        log, targets, weight, contrasts, segments, groups, values,
        smoothings=smoothings, features=features, sequences=sequences,
    )  # fmt: skip


def part_of(question: Question, targets: tuple[Target, ...], contrasts: tuple[Contrast, ...]) -> Question:
    """The same question about some of its targets."""
    values = {target.name: question.model_value[target.name] for target in targets} if question.model_value else {}
    return replace(question, targets=targets, contrasts=contrasts, model_value=values)


def _rival(against: Targets, targets: tuple[Target, ...], log: Log, arrays: Arrays | None) -> Target:
    """The other policy of a comparison: one of the targets by name, the logging policy, or a separate target."""
    if isinstance(against, str) and (against == LOGGING or against in {target.name for target in targets}):
        return next((target for target in targets if target.name == against), Target(LOGGING, LOGGING))
    if isinstance(against, str) and not against:
        raise OptionError("`against=` must name a policy.")
    if arrays is not None and not isinstance(against, Always):
        return Target("against", column_names("against", {"against": against}, arrays)[0])
    rivals = targets_of(against, log, arrays)
    if len(rivals) != 1:
        raise OptionError(f"`against=` must be one policy, found {len(rivals)}.")
    return rivals[0]


def _model_values(log: Log, targets: tuple[Target, ...], arrays: Arrays | None) -> dict[str, str]:
    """The model's value of each target, in the order of the targets; a mapping gives them by target."""
    value: object = log.model_value
    names = [target.name for target in targets]
    if isinstance(value, Mapping):
        if set(value) != set(names):
            raise OptionError(
                f"`model_value=` needs one entry per target: {verbatim(', '.join(names))}; found {verbatim(', '.join(map(str, value)))}."
            )
        ordered = [value[name] for name in names]
        own = [f"model_value of {name}" for name in names]
        value = ordered if arrays is None else dict(zip(own, ordered, strict=True))
    values = column_names("model_value", value, arrays)
    if values and len(values) != len(names):
        raise OptionError(
            f"`model_value=` needs one column per target ({len(names)}), found {len(values)}.",
            do=f"Pass them in the order of the targets: {verbatim(', '.join(names))}.",
        )
    return dict(zip(names, values, strict=True)) if values else {}
