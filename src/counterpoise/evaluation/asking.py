"""What the verbs share: turning their arguments into a question, and getting its moments from the log or from a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from numbers import Integral
from os import PathLike

import polars as pl
import polars.selectors as cs

from counterpoise.diagnostics.verdict import check_direction
from counterpoise.engines.first_look import baseline_features, quoting, sequences_of
from counterpoise.engines.registry import columns_of, moments_of, rows
from counterpoise.engines.sampling import First
from counterpoise.errors import ColumnError, CounterpoiseError, LogError, OptionError
from counterpoise.evaluation.checks import RewardMoments, explanation_of
from counterpoise.log.baseline import Feature
from counterpoise.log.kinds import check_rows, kinds_of
from counterpoise.log.log import MODEL, Log, check_minimized, check_own_names
from counterpoise.log.parts import Columns, Data, LogFields, Unlogged
from counterpoise.log.question import GROUPS, NoWeight, Question, ask
from counterpoise.log.targets import ActionGroup, Always, Targets, check_fitting
from counterpoise.log.verbs import need_only
from counterpoise.moments import LogMoments
from counterpoise.moments.state import existing
from counterpoise.weights import Balanced, Own, Weight, as_weight, list_weight

FIRST = 10_000  # rows that are looked at for an action


@dataclass(frozen=True)
class Stored:
    """Where moments are kept from day to day, and how to add today's."""

    state: str | PathLike[str] | None = None
    batch: str | None = None
    replace: bool = False
    version: str | Mapping[str, str] | None = None

    @property
    def options(self) -> list[str]:
        """The options that were used."""
        return [name for name, value in vars(self).items() if value not in (None, False)]


def known_moments(
    log: Log | Data | LogMoments, parts: LogFields, stored: Stored, target: Targets, *others: object
) -> RewardMoments | None:
    """The moments that a verb was handed instead of a log, or those of a state that it was given alone."""
    # known in advance, not chosen from a log
    chosen = [name for name in parts if name not in ("reward_bounds", "minimize")]
    is_state = log is None and stored.state is not None and not chosen and target is None
    if not is_state and not isinstance(log, LogMoments):
        return None
    extra = [name for name in stored.options if not (is_state and name == "state")]
    if chosen or extra or any(other is not None for other in (target, *others)):
        raise OptionError(
            "moments have no columns or rows left to choose from: give columns, conditions and states with the log itself, not "
            "with its moments."
        )
    said = Log(minimize=parts.get("minimize")).minimize
    if isinstance(log, LogMoments):
        return RewardMoments((log,), (None,), minimize=said)
    state = existing(stored.state)
    check_minimized(said, state.rewards)
    return RewardMoments(
        state.moments, state.rewards, minimize=state.question.get("minimize") if said is None else said
    )


def question_of(
    log: Log,
    target: Targets,
    *,
    weight: Weight | Columns = None,
    against: Targets = None,
    segment: Columns = None,
    wants_groups: bool = False,
    smoothings: tuple[float, ...] = (),
) -> Question:
    """The question that a verb's arguments ask."""
    need_only(log, "evaluate")
    if weight is not None or log.list_id is not None:
        weight = list_weight(weight, log)
    how, target = as_weight(weight, target)
    if isinstance(log.propensity, Mapping):
        check_rows(log, "a log of several policies")
        how = Balanced.of(log, how)
        for kind in kinds_of(log):
            log = kind.of_one_policy(log, quoting(log), _rows_by)
    is_estimated = isinstance(log.propensity, Unlogged) or log.propensity == MODEL
    if is_estimated:
        _check_estimated(log, target, against)
    question = ask(
        log,
        target,
        weight=how,
        against=against,
        segment=segment,
        groups=groups_of(log, wanted=wants_groups),
        smoothings=smoothings,
        features=features_of(log, how),
        sequences=sequences_of(log),
    )
    check_own_names(log, *(name for _, name in question.columns))
    if log.cross_fit:
        check_direction(log)
        check_fitting(log, question.targets)
    if is_estimated:
        from counterpoise.models.propensity import propensity_of, with_propensities

        model = propensity_of(log)
        question = question if model is None else with_propensities(question, model)
    if log.model is not None:
        from counterpoise.models.reward import with_model

        return with_model(question)
    for extra in ("items", "value_samples"):
        if getattr(log, extra) is not None and not (extra == "items" and log.cross_fit):
            raise OptionError(f"`{extra}=` is for a reward model. Pass `model='auto'`, too.")
    return question


ONE = "2.0"  # a weight whose excess is 1


def by_value(log: Log, column: str, *, groups: int = 1, features: tuple[Feature, ...] = ()) -> tuple[LogMoments, ...]:
    """The sums of the rewards by the values of a column, with an excess of 1 in every row; in one pass."""
    plain = log.without("model_reward", "model_value", "control").without_propensities()
    question = ask(plain, {column: ONE}, weight=Own(), segment=column, groups=groups, features=features)
    return moments_of(question)


def _rows_by(log: Log, column: str) -> dict[str, int]:
    """How many good rows a log has by the values of a column, in a pass of its own; those of arrays become columns."""
    columns = log.of(dict(log.data)) if log.is_arrays else log
    moments = by_value(columns.but(cluster=None, key=(), baseline=None), column)[0]
    (stack,) = moments.moments.values()
    return {str(label[0]): int(n) for label, n in zip(moments.segments, stack.n.sum(axis=1), strict=True)}


def _check_estimated(log: Log, *targets: Targets) -> None:
    """Refuse whatever needs logged propensities."""
    if log.baseline:
        raise OptionError(
            "`baseline=` takes propensities as logged, and here a model estimates them.",
            do="Pass `model='auto'` instead, which works with both.",
        )
    for target in targets:
        named = list(target.values()) if isinstance(target, Mapping) else target
        if any(isinstance(policy, ActionGroup) for policy in (named if isinstance(named, list | tuple) else [named])):
            raise OptionError(
                "ActionGroup takes propensities as logged, and here a model estimates them.",
                do="To estimate those of the groups, make the group the action.",
            )


def read(question: Question, stored: Stored, progress: bool | None) -> RewardMoments:
    """The moments of a question, added to those that a state holds where there is one."""
    job = None
    if stored.state is not None and question.log.cross_fit:
        raise OptionError(
            "a state adds up the days of one policy, and `cross_fit=True` fits a new one every day.",
            do="Fit it once on earlier rows, and pass the fitted policy.",
        )
    if stored.state is not None:
        from counterpoise.evaluation import summaries  # not before there is a state: most logs have none

        job = summaries.start(
            stored.state, question, batch=stored.batch, replaces=stored.replace, version=stored.version
        )
    elif stored.options:
        raise OptionError(f"`{stored.options[0]}=` only works with a state.", do="Pass `state=`, too.")
    try:
        question, today = _sum_up(question, progress)
    except ColumnError as error:
        explained = _explain(error, question)
        if explained is error:  # which must not be its own cause
            raise
        raise explained from error
    if job is None:
        return RewardMoments(today, question.log.reward, question, minimize=question.log.minimize)
    merged, minimize = summaries.finish(job, today, question.log.reward)
    earlier = merged[0].n - today[0].n
    return RewardMoments(merged, question.log.reward, question, earlier_rows=earlier, minimize=minimize)


def _sum_up(question: Question, progress: bool | None) -> tuple[Question, tuple[LogMoments, ...]]:
    """The question with its models fitted, if any, and its moments: propensities first, since a reward model may need them."""
    if question.propensity_model is not None:
        from counterpoise.models.propensity import fit_propensity_model

        question = fit_propensity_model(question, progress)
    if question.log.cross_fit or question.model is not None:
        from counterpoise.models.reward import fit_policies, fit_reward_model

        question = fit_reward_model(fit_policies(question, progress), progress)
    try:
        moments = moments_of(question, progress=progress)
    except LogError as error:
        explanation = explanation_of(error, question)
        if explanation is error:
            raise
        raise explanation from error
    return question, moments if question.propensity_model is None else with_errors(question, moments)


def _explain(error: ColumnError, question: Question) -> ColumnError:
    """The error, with what to pass instead if a target is no column but an action of the log."""
    with suppress(CounterpoiseError):
        names = columns_of(question.log)
        unknown = [target for target in question.targets if target.is_column and target.source not in names]
        # without an action, it may be in any column of text
        looked_at = tuple(names) if question.log.action is None else (question.log.action,)
        bare = Question(question.slim().log, (), NoWeight())
        texts = rows(bare, First(FIRST), looked_at).select(cs.string(), cs.categorical())
        for target, column in product(unknown, texts):
            if not (column.cast(pl.String) == target.source).any():
                continue
            part = "against" if target.name in {other for _, other in question.contrasts} else "target"
            more = f" and `action={column.name!r}`" if question.log.action is None else ""
            return ColumnError(
                f"no column {target.source!r} for {part}, but {column.name!r} has the action {target.source!r}.",
                do=f"For a policy that always takes it, pass `{part}={Always(str(target.source))!r}`{more}.",
            )
    return error


def with_errors(question: Question, moments: tuple[LogMoments, ...]) -> tuple[LogMoments, ...]:
    """The moments, with what a propensity model does to their errors, if there is one."""
    if question.propensity_model is None or question.is_binned:  # bins have no errors of their own
        return moments
    from counterpoise.models import propensity_error

    return propensity_error.with_errors(question, moments)


def features_of(log: Log, weight: Weight) -> tuple[Feature, ...]:
    """What the baseline of a log is linear in."""
    return baseline_features(log, weight) if log.baseline else ()


def groups_of(log: Log, *, wanted: bool) -> int:
    """How many groups the clusters or rows of a log are hashed into."""
    groups = log.groups
    if groups is None:
        return GROUPS if wanted or log.cluster is not None else 1
    if isinstance(groups, bool) or not isinstance(groups, Integral) or groups < 2:
        raise OptionError(f"`groups={groups!r}` is not a whole number of at least 2.")
    return int(groups)


def known_target(target: str | None, targets: Sequence[str]) -> str:
    """A target by its name, or the first one."""
    name = targets[0] if target is None else target
    if name not in targets:
        raise OptionError(f"there is no target {name!r}; choose one of {', '.join(map(repr, targets))}.")
    return name
