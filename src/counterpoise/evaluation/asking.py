"""What the verbs share: turning their arguments into a question, and getting its moments from the log or from a state."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from os import PathLike
from typing import Any

from counterpoise.diagnostics import Caveat
from counterpoise.errors import Argument, LogError, OptionError
from counterpoise.evaluation.loggers import balanced
from counterpoise.log.lists import refuse_lists
from counterpoise.log.log import MODEL, Log, as_log, check_own_names
from counterpoise.log.parts import Columns, Data, LogFields, Unlogged
from counterpoise.log.question import GROUPS, Question, ask
from counterpoise.log.targets import ActionGroup, Targets
from counterpoise.moments import LogMoments
from counterpoise.moments.log_moments import Label
from counterpoise.weights import Weight, as_weight, list_weight

EVERYWHERE = object()  # the place of a concern about all places


@dataclass(frozen=True)
class Stored:
    """Where moments are kept from day to day, and how today's are to be added there."""

    state: str | PathLike[str] | None = None
    batch: str | None = None
    replace: bool = False
    version: str | Mapping[str, str] | None = None

    @property
    def given(self) -> list[str]:
        """The options that were used."""
        return [name for name, value in vars(self).items() if value not in (None, False)]


@dataclass(frozen=True)
class Concern:
    """A caveat, and what it is about: one target or all, one reward or all, one segment (or the whole log, None) or everything."""

    caveat: Caveat
    target: str | None = None
    reward: str | None = None
    places: tuple[Label | None, ...] | None = None

    def touches(self, targets: Container[str], reward: str | None, place: Label | None) -> bool:
        """Whether it is about an answer on any of these targets."""
        return (
            (self.target is None or self.target in targets)
            and (self.reward is None or self.reward == reward)
            and (self.places is None or place in self.places)
        )


@dataclass(frozen=True)
class Asked:
    """The moments that answer a question, one for each reward; moments that were handed over have no question."""

    moments: tuple[LogMoments, ...]
    rewards: tuple[str | None, ...]  # their names, as far as anybody knows
    question: Question | None = None
    earlier_rows: int = 0  # of logs before the question's own, which a state held
    concerns: tuple[Concern, ...] = ()  # what checks of single rows say: see `counterpoise.evaluation.checks`

    @property
    def is_clustered(self) -> bool:
        """Whether groups are of clusters."""
        return self.moments[0].cluster is not None

    @cached_property
    def _by_place(self) -> dict[Any, list[Concern]]:
        """The concerns by what they are about, of which there may be as many as segments."""
        concerns: dict[Any, list[Concern]] = {}
        for concern in self.concerns:
            for place in (EVERYWHERE,) if concern.places is None else concern.places:
                concerns.setdefault(place, []).append(concern)
        return concerns

    def caveats(self, targets: Container[str], reward: str | None, place: Label | None) -> Iterator[Caveat]:
        """What the checks say about an answer on these targets."""
        near = [*self._by_place.get(EVERYWHERE, ()), *self._by_place.get(place, ())]
        return (concern.caveat for concern in near if concern.touches(targets, reward, place))

    def about(self, target: str, reward: str | None, place: Label | None, code: str) -> list[Caveat]:
        """What the checks say about one target with this code."""
        return [caveat for caveat in self.caveats((target,), reward, place) if caveat.code == code]


def known_moments(
    log: Log | Data | LogMoments, parts: LogFields, stored: Stored, target: Targets, *others: Any
) -> Asked | None:
    """The moments that a verb was handed instead of a log, or those of a state that it was given alone."""
    chosen = [name for name in parts if name != "reward_bounds"]  # which are known of rewards, not chosen from a log
    is_state = log is None and stored.state is not None and not chosen and target is None
    if not is_state and not isinstance(log, LogMoments):
        return None
    extra = [name for name in stored.given if not (is_state and name == "state")]
    if chosen or extra or any(other is not None for other in (target, *others)):
        raise OptionError(
            "moments have no columns or rows left to choose from: give columns, conditions and states with the log itself, not "
            "with its moments."
        )
    if isinstance(log, LogMoments):
        return Asked((log,), (None,))
    from counterpoise.readers import batches

    known = batches.stored_state(stored.state)
    return Asked(known.moments, known.rewards)


def question_of(
    log: Log | Data,
    parts: LogFields,
    target: Targets,
    *,
    weight: Weight | Columns = None,
    against: Targets = None,
    segment: Columns = None,
    wants_groups: bool = False,
    smoothings: tuple[float, ...] = (),
) -> Question:
    """The question that a verb's arguments ask."""
    whole = as_log(log, parts)
    whole.need_only("evaluate")
    if weight is not None or whole.propensity_of is not None:
        weight = list_weight(weight, whole.propensity_of)
    how, target = as_weight(weight, target)
    if isinstance(whole.propensity, Mapping):
        refuse_lists(whole.slate, "a log of several policies")
        whole, how = balanced(whole, how)
    _check_estimated(whole, target, against)
    groups = groups_of(whole, wanted=wants_groups)
    sums: dict[str, Any] = {"groups": groups, "smoothings": smoothings, "features": features_of(whole, how)}
    sums["lists"] = _lists(whole)
    question = ask(whole, target, weight=how, against=against, segment=segment, **sums)
    check_own_names(whole, *(name for _, name in question.columns))
    if not isinstance(whole.propensity, str) or whole.propensity == MODEL:
        question = _with_propensities(question)
    if whole.model is None:
        if whole.items is not None or whole.value_samples is not None:
            extra = "items" if whole.items is not None else "value_samples"
            raise OptionError(
                [Argument(extra), " is for a reward model.", " Pass ", Argument("model", "auto"), ", too."]
            )
        return question
    from counterpoise.models.reward_fitting import with_model

    return with_model(question)


def _check_estimated(log: Log, *targets: Targets) -> None:
    """Check that nothing is asked that needs propensities as they were logged, where a model is to estimate them."""
    if not (isinstance(log.propensity, Unlogged) or log.propensity == MODEL):
        return
    if log.baseline:
        raise OptionError(
            [Argument("baseline"), " takes propensities as logged, and a model is to estimate them."],
            do=["Pass ", Argument("model", "auto"), " instead, which works with both."],
        )
    for target in targets:
        named = list(target.values()) if isinstance(target, Mapping) else target
        if any(isinstance(policy, ActionGroup) for policy in (named if isinstance(named, list | tuple) else [named])):
            raise OptionError(
                "ActionGroup takes propensities as logged, and a model is to estimate them.",
                do="Estimate those of the groups: make the group the action.",
            )


def _with_propensities(question: Question) -> Question:
    """The question with a propensity model in it, if its log has one."""
    if question.log.propensity is None:
        return question
    from counterpoise.models.propensity import propensity_of
    from counterpoise.models.propensity_fitting import with_propensities

    model = propensity_of(question.log)
    return question if model is None else with_propensities(question, model)


def read(question: Question, stored: Stored, progress: bool | None) -> Asked:
    """The moments of a question, added to those that a state holds where there is one."""
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.registry import moments_of
    from counterpoise.readers import batches

    if stored.state is None:
        if stored.given:
            raise OptionError(
                [Argument(stored.given[0]), " says what a state keeps of this log."],
                do=["Pass ", Argument("state"), ", too."],
            )
        question = _fit_models(question, progress)
        with explain_bad_rows(question):
            moments = moments_of(question, progress=progress)
        return Asked(with_errors(question, moments), question.log.reward, question)
    job = batches.start(stored.state, question, batch=stored.batch, replaces=stored.replace, version=stored.version)
    question = _fit_models(question, progress)
    with explain_bad_rows(question):
        today = with_errors(question, moments_of(question, progress=progress))
    merged = batches.finish(job, today)
    return Asked(merged, question.log.reward, question, earlier_rows=merged[0].n - today[0].n)


@contextmanager
def explain_bad_rows(question: Question) -> Iterator[None]:
    """Whatever is wrong with rows, with what their propensities seem to be instead."""
    try:
        yield
    except LogError as error:
        from counterpoise.evaluation.checks import explanation_of  # which stands on this module

        explanation = explanation_of(error, question)
        if explanation is error:
            raise
        raise explanation from error


def features_of(log: Log, weight: Weight) -> tuple[Any, ...]:
    """What the baseline of a log is linear in."""
    if not log.baseline:
        return ()
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.first_look import baseline_features

    return baseline_features(log, weight)


def groups_of(log: Log, *, wanted: bool) -> int:
    """Into how many groups the clusters or rows of a log are hashed."""
    return _groups(log.groups) if wanted or log.cluster is not None or log.groups is not None else 1


def _fit_models(question: Question, progress: bool | None) -> Question:
    """The question with its models fitted, if it has any: that of propensities first, which a reward model may ask for."""
    if question.propensity_model is not None:
        from counterpoise.models.propensity_fitting import fit_propensity_model

        question = fit_propensity_model(question, progress)
    if question.model is None:
        return question
    from counterpoise.models.reward_fitting import fit_reward_model

    return fit_reward_model(question, progress)


def with_errors(question: Question, moments: tuple[LogMoments, ...]) -> tuple[LogMoments, ...]:
    """The moments, with what a propensity model does to their errors, if there is one."""
    if question.propensity_model is None or question.is_binned:  # bins have no errors of their own
        return moments
    from counterpoise.models import propensity_error

    return propensity_error.with_errors(question, moments)


def _lists(log: Log) -> Any:
    """The lists that a log's rows are positions of, if they are."""
    if log.slate is None:
        return None
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.first_look import lists_of

    return lists_of(log)


def _groups(groups: Any) -> int:
    if groups is None:
        return GROUPS
    if isinstance(groups, bool) or not isinstance(groups, Integral) or groups < 2:
        raise OptionError([Argument("groups", groups), " is not a whole number of at least 2."])
    return int(groups)
