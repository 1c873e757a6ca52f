"""`Question`: a log, the targets, and what to add up about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import Any

from counterpoise.errors import Argument, OptionError
from counterpoise.log.baseline import Feature, check_features
from counterpoise.log.lists import DISCOUNT, POSITION, Lists, excess_at, reward_at
from counterpoise.log.log import Log, LogFields, many
from counterpoise.log.names import MODEL_REWARD, PROPENSITY, Names
from counterpoise.log.targets import CHOSEN, LISTED, Probabilities, Target, targets_of
from counterpoise.moments import MODEL, ROW
from counterpoise.moments.log_moments import Contrast
from counterpoise.moments.moments import CONTEXT, LENGTH, SQUARE

LOGGING = "logging"  # as `against`: the policy that wrote the log
GROUPS = 100


@dataclass(frozen=True)
class RowWeight:
    """What is known of the weight of a single row of a list: it has a propensity."""

    needs_propensity = True
    may_be_negative = False
    by_position = False
    part = "target"


@dataclass(frozen=True)
class AsItIs:
    """The step of a question that needs context, action and candidates, and adds nothing to them."""

    identity: tuple[str, ...] = ()

    def complete(self, frame: Any, question: Question, batch: str, first_row: int) -> Any:
        """The batch itself."""
        return frame


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
    is_binned: bool = False  # segments are bins of the reward, which are only looked at together
    smoothings: tuple[float, ...] = ()  # every λ for which log(1 + λwr)/λ is added up, too
    features: tuple[Feature, ...] = ()  # what a context baseline is linear in
    model: Any = None  # what adds a reward model's columns to a batch: see `counterpoise.models.reward`
    propensity_model: Any = None  # what adds propensities to a batch: see `counterpoise.models.propensity`
    lists: Lists | None = (
        None  # what the rows are positions of: everything is then about lists, which engines make of rows
    )
    is_about_rows: bool = False  # the rows of those lists, before they are made

    def __post_init__(self) -> None:
        if not (isinstance(self.groups, int) and 1 <= self.groups <= 10_000) or isinstance(self.groups, bool):
            raise OptionError([Argument("groups", self.groups), " is not a whole number from 2 to 10,000."])
        if (self.log.model_reward is None) != (not self.model_value):
            raise OptionError(
                [
                    Argument("model_reward"),
                    " and ",
                    Argument("model_value"),
                    " go together: the model's reward of the logged action, and its value of the target.",
                ]
            )
        for name, mean in self.control.items():
            if isinstance(mean, bool) or not isinstance(mean, Real) or not abs(float(mean)) <= 1e50:
                raise OptionError(
                    [Argument("control"), f" maps a column to its known mean; that of {name!r} is {mean!r}."]
                )
        check_features(self.features)
        reserved = {name for name in self.control if name in (*ROW, *MODEL, SQUARE, LENGTH) or name.startswith(CONTEXT)}
        if reserved:
            raise OptionError(f"a control may not be called {', '.join(sorted(reserved))}: rename the column.")
        if self.model_value and len(self.log.reward) > 1:
            raise OptionError("a reward model predicts one reward: evaluate one reward at a time with it.")
        if self.smoothings and getattr(self.weight, "by_position", False):
            raise OptionError(
                "the log_smoothing interval needs one weight per list, and this one has a weight per position."
            )
        if self.lists is not None and self.model_value and not self.is_about_rows and not self.weight.by_position:
            raise OptionError(
                "a reward model by position works with a weight by position, independent or cascade: leave it out, or choose one of them."
            )
        if self.smoothings and self.weight.may_be_negative:
            raise OptionError(
                "a weight of your own may be negative, and the logarithm of the interval allows only those that are not."
            )
        if len(set(self.segment)) < len(self.segment):
            raise OptionError([Argument("segment"), f" names a column twice: {', '.join(map(repr, self.segment))}."])

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
        """The question about one of its rewards, which alone then decides which rows are good."""
        if reward is None or self.log.reward == (reward,):
            return self
        return replace(self, log=self.log.but(reward=reward))

    @property
    def propensity_named(self) -> str | None:
        """The column of the propensities; or those of several loggers, whose shares may differ from day to day."""
        return ", ".join(getattr(self.weight, "columns", ())) or self.log.propensity

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
        """Whether a batch is complete only when Python has run: a policy's, or a model's."""
        return bool(self.policies) or bool(self.models)

    @property
    def models(self) -> tuple[Any, ...]:
        """What fits models and adds their columns to a batch: the propensities first, which a reward model may ask for."""
        return tuple(one for one in (self.propensity_model, self.model) if one is not None)

    @property
    def choices(self) -> tuple[Target, ...]:
        """The deterministic targets."""
        return tuple(target for target in self.targets if not target.is_column and not target.is_policy)

    @property
    def numbers(self) -> dict[str, tuple[str, str]]:
        """Internal name → (part, column) for every column that must contain numbers."""
        log, names = self.log, self.names
        if self.makes_lists:
            parts = {name: ("reward", column) for name, column in zip(names.rewards, log.reward, strict=True)}
            parts |= {name: ("weight", one.column) for name, one in zip(names.targets, self.targets, strict=True)}
            owners = zip(names.values, self.target_names, strict=False)
            return parts | {name: ("model_value", self.model_value[owner]) for name, owner in owners}
        parts = {name: ("reward", column) for name, column in zip(names.rewards, log.reward, strict=True)}
        if self.weight.needs_propensity:
            parts[PROPENSITY] = ("propensity", str(log.propensity))
        parts |= {name: (self.weight.part, one.column) for name, one in zip(names.targets, self.targets, strict=True)}
        if log.model_reward is not None:
            parts[MODEL_REWARD] = ("model_reward", log.model_reward)
            values = [self.model_value[name] for name in self.target_names]
            parts |= {name: ("model_value", column) for name, column in zip(names.values, values, strict=True)}
        if self.lists is not None:
            parts[POSITION] = ("position", self.lists.position)
            if self.lists.discount_column is not None:
                parts[DISCOUNT] = ("discount", self.lists.discount_column)
        parts |= {name: ("control", one) for name, one in zip(names.controls, self.control, strict=True)}
        return parts | {name: ("baseline", one.column) for name, one in zip(names.features, self.features, strict=True)}

    @property
    def makes_lists(self) -> bool:
        """Whether rows are to be made into lists first."""
        return self.lists is not None and not self.is_about_rows

    @cached_property
    def of_rows(self) -> Question:
        """The question about the rows that lists are made of, whose weights are those of single rows."""
        return replace(self, weight=RowWeight(), is_about_rows=True, contrasts=(), groups=1, smoothings=())

    @property
    def ranks(self) -> range:
        """The positions with a weight of their own, counted from 1."""
        return range(1, 1 + self.lists.depth) if self.lists is not None and self.weight.by_position else range(0)

    @property
    def keeps_lengths(self) -> bool:
        """Whether it takes a test to know that the choice does not decide about the lengths of lists, which running products allow for."""
        return self.makes_lists and not self.weight.is_running

    @property
    def number_columns(self) -> set[str]:
        """The columns of the log that must contain numbers, which the categories of a baseline need not."""
        if self.makes_lists:
            return self.of_rows.number_columns
        labels = {name for name, one in zip(self.names.features, self.features, strict=True) if not one.is_number}
        return {column for name, (_, column) in self.numbers.items() if name not in labels}

    @property
    def hashed(self) -> tuple[str, ...]:
        """The columns whose values are hashed for a baseline."""
        return tuple(dict.fromkeys(one.column for one in self.features if one.kind == "bucket"))

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
        if self.lists is not None:
            yield "slate", self.lists.slate
        for column in dict.fromkeys(one.column for one in self.features if not one.is_number):
            yield "baseline", column
        if log.action is not None and (self.choices or self.needs_python):
            yield "action", log.action
        for target in self.choices:
            yield CHOSEN, target.source.column
        for target in self.tables:
            yield LISTED, target.source.column
        for column in dict.fromkeys(column for target in self.policies for column in target.reads):
            yield "target", column
        if self.models or len(self.policies) > len(self.tables):
            for column in log.context:
                yield "context", column
            if log.candidates is not None:
                yield "candidates", log.candidates
        for column in dict.fromkeys(column for one in self.models for column in one.identity):
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
        if self.makes_lists:
            return self.of_rows.columns
        made = {target.column for target in (*self.choices, *self.policies)}
        if self.model is not None:
            made |= {str(self.log.model_reward), *self.model_value.values()}
        if self.propensity_model is not None:
            made.add(str(self.log.propensity))
        read = [entry for entry in self.numbers.values() if entry[1] not in made]
        return [*read, *self.others]

    @property
    def moment_columns(self) -> tuple[str, ...]:
        """The columns of the moments of a target's value."""
        context = (*(one.name for one in self.features), SQUARE) if self.features else ()
        ranks = tuple(excess_at(k) for k in self.ranks) + tuple(reward_at(k) for k in self.ranks)
        lengths = (LENGTH,) if self.keeps_lengths else ()
        return (
            ROW + (MODEL if self.log.model_reward is not None else ()) + tuple(self.control) + context + lengths + ranks
        )


def ask(
    log: Log,
    target: Any,
    *,
    weight: Any,
    against: Any = None,
    segment: Any = None,
    groups: int = 1,
    smoothings: tuple[float, ...] = (),
    features: tuple[Feature, ...] = (),
    lists: Lists | None = None,
) -> Question:
    """The question about a log; if there are only arrays, they become its columns."""
    log.need("reward", *(["propensity"] if weight.needs_propensity or lists else []))
    arrays = log.data.copy() if log.is_arrays else None
    targets = targets_of(target, log, arrays)
    contrasts: tuple[Contrast, ...] = tuple((one.name, "") for one in targets)
    if against is not None:
        rival = _rival(against, targets, log, arrays)
        rivals = [one.name for one in targets if one.name != rival.name]
        if not rivals:
            raise OptionError(
                [
                    Argument("target"),
                    " and ",
                    Argument("against"),
                    f" are both {rival.name!r}: name two different policies.",
                ]
            )
        if rival.name != LOGGING and rival.name not in {one.name for one in targets}:
            targets += (rival,)
            contrasts += ((rival.name, ""),)
        contrasts += tuple((name, rival.name) for name in rivals)
    segments = many("segment", segment, arrays)
    if log.max_segments is not None and not segments:
        raise OptionError(
            [Argument("max_segments"), " says how many segments there may be, and none were asked for."],
            do=["Leave it out, or pass ", Argument("segment"), " to evaluate or compare."],
        )
    values = _model_values(log, targets, arrays)
    if arrays is not None:
        log = log.of(arrays)
    sums: dict[str, Any] = {"smoothings": smoothings, "features": features, "lists": lists}
    return Question(log, targets, weight, contrasts, segments, groups, values, **sums)


def part_of(question: Question, targets: tuple[Target, ...], contrasts: tuple[Contrast, ...]) -> Question:
    """The same question about some of its targets."""
    values = {one.name: question.model_value[one.name] for one in targets} if question.model_value else {}
    return replace(question, targets=targets, contrasts=contrasts, model_value=values)


def lean(question: Question) -> Question:
    """The same question about weights and rewards alone: without a reward model, controls and a baseline."""
    extra: LogFields = {
        "model": None, "items": None, "value_samples": None, "model_reward": None, "model_value": None, "control": None, "baseline": None,
    }  # fmt: skip
    return replace(question, log=question.log.but(**extra), model_value={}, features=(), model=None)


def _rival(against: Any, targets: tuple[Target, ...], log: Log, arrays: Any) -> Target:
    """The other policy of a comparison: one of the targets by name, the logging policy, or a separate target."""
    if isinstance(against, str) and (against == LOGGING or against in {one.name for one in targets}):
        return next((one for one in targets if one.name == against), Target(LOGGING, LOGGING))
    if isinstance(against, str) and not against:
        raise OptionError([Argument("against"), " must name a policy."])
    if arrays is not None:
        return Target("against", many("against", {"against": against}, arrays)[0])
    found = targets_of(against, log)
    if len(found) != 1:
        raise OptionError([Argument("against"), f" must be one policy, found {len(found)}."])
    return found[0]


def _model_values(log: Log, targets: tuple[Target, ...], arrays: Any) -> dict[str, str]:
    """The model's value of each target, in the order of the targets; a mapping gives them by target."""
    value, names = log.model_value, [one.name for one in targets]
    if isinstance(value, Mapping):
        if set(value) != set(names):
            raise OptionError(
                [
                    Argument("model_value"),
                    f" needs one entry per target: {', '.join(names)}; found {', '.join(map(str, value))}.",
                ]
            )
        ordered = [value[name] for name in names]
        own = [f"model_value of {name}" for name in names]
        value = ordered if arrays is None else dict(zip(own, ordered, strict=True))
    values = many("model_value", value, arrays)
    if values and len(values) != len(names):
        raise OptionError(
            [Argument("model_value"), f" needs one column per target ({len(names)}), found {len(values)}."]
        )
    return dict(zip(names, values, strict=True)) if values else {}
