"""From moments to an answer: the estimates, diagnostics and verdicts of every target, reward by reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np

from counterpoise.diagnostics import Caveat, Diagnostics, Verdict, judge, judge_difference, resting_on_model
from counterpoise.diagnostics.verdict import BY_ACTION, MISSING, below_one, looked_at, miscounted, which_way
from counterpoise.errors import OptionError
from counterpoise.estimators import Estimate, Estimator
from counterpoise.evaluation.checks import RewardMoments
from counterpoise.evaluation.choose import check_differences, choose, differences_of
from counterpoise.evaluation.estimates import (
    Estimates,
    IntervalOptions,
    Lazily,
    diagnostics,
    doubtful_baselines,
    doubtful_labels,
    estimates,
)
from counterpoise.evaluation.ladder import climb
from counterpoise.evaluation.result import Comparison, Result
from counterpoise.evaluation.support import rewards_of, with_bounds
from counterpoise.evaluation.view import View
from counterpoise.log.parts import is_minimized
from counterpoise.log.question import Question
from counterpoise.moments.columns import LABEL
from counterpoise.moments.log_moments import Contrast, LogMoments, Segment
from counterpoise.moments.reduction import counts_of, sampling_error

Answer = TypeVar("Answer", bound=Result)
Diagnoses = Lazily[tuple[str, Segment], Diagnostics]
Verdicts = Lazily[tuple[str, Segment], Verdict]

NOTHING = "not identified"  # a verdict to which only checks of rows add anything
SIEVE = 2.0  # a mean weight must be this many standard errors below 1 to be clearly below it


def evaluation_of(whole: RewardMoments, options: Sequence[IntervalOptions], names: tuple[str, ...]) -> Result:
    """The answer of `evaluate` from the moments of one reward, or of several, the first of which gets the headline."""
    return _together(
        [
            _result(moments, names, how, whole, name)
            for moments, how, name in zip(whole.moments, options, whole.rewards, strict=True)
        ]
    )


def comparison_of(whole: RewardMoments, options: Sequence[IntervalOptions], against: object = None) -> Comparison:
    """The answer of `compare` from the moments of one reward or several; `against` is checked where it is named."""
    check_differences(options[0].method)
    return _together(
        [
            _comparison(moments, how, whole, name, against)
            for moments, how, name in zip(whole.moments, options, whole.rewards, strict=True)
        ]
    )


def _together(answers: Sequence[Answer]) -> Answer:
    """The first answer, with those of the other rewards in it."""
    first, *others = answers
    return replace(first, others={str(answer.reward): answer for answer in others}) if others else first


def _result(
    log: LogMoments, names: tuple[str, ...], options: IntervalOptions, whole: RewardMoments, reward: str | None
) -> Result:
    contrasts = [contrast for contrast in log.moments if not contrast[1]]
    first = log.moments[contrasts[0]]
    method, mean_is_one = options.method, log.weight.mean_is_one
    estimators = choose(names, first.columns, first.shape[1], method, mean_is_one=mean_is_one)
    return Result(**_parts(log, contrasts, estimators, options, whole, reward))


def _comparison(
    log: LogMoments, options: IntervalOptions, whole: RewardMoments, reward: str | None, against: object
) -> Comparison:
    contrasts = [contrast for contrast in log.moments if contrast[1]]
    if not contrasts:
        raise OptionError("these moments are of single policies; compare needs those of an earlier compare.")
    other = contrasts[0][1]
    if against not in (None, other):
        raise OptionError(f"these moments are of a comparison against {other!r}, not {against!r}.")
    estimators = differences_of(log.moments[contrasts[0]].columns)
    return Comparison(**_parts(log, contrasts, estimators, options, whole, reward), against=other)


def _parts(
    log: LogMoments,
    contrasts: Sequence[Contrast],
    estimators: Mapping[str, Estimator],
    options: IntervalOptions,
    whole: RewardMoments,
    reward: str | None,
) -> dict[str, Any]:
    """What a result is made of, from the contrasts that it is about: values, or differences from the same policy."""
    _check_method(log, options)
    other = contrasts[0][1]
    climbed = climb(log, options, None if other else estimators) if log.ladder else None
    view = partial(View, log) if climbed is None else climbed.view
    views = {contrast: view(contrast) for contrast in contrasts}
    policies = {name: view((name, "")) for name, rival in log.moments if not rival}
    own: Estimates = Lazily({})
    for each in views.values():
        own |= estimates(each, estimators, options)
    diagnoses: Diagnoses = Lazily({})
    for name, each in policies.items():
        diagnoses |= _by_target(name, diagnostics(each))
    miscount = list(_miscount(views[contrasts[0]]))
    looked = [looked_at(log.looks, options.method.name)] if log.looks > 1 and not options.method.is_anytime else []
    minimize = is_minimized(whole.minimize, reward)
    doubts = {target: (doubtful_baselines(each), doubtful_labels(each)) for (target, _), each in views.items()}

    def verdict(target: str, place: Segment) -> Verdict:
        contrast = target, other
        judged = _judge(views[contrast], place, diagnoses)
        if options.reward_bounds is not None:  # there is no need to ask for them
            kept = (replace(caveat, do="") if caveat.code == "equal-rewards" else caveat for caveat in judged.caveats)
            judged = Verdict(tuple(kept))
        premises = [] if log.estimated is None else [resting_on_model(log.estimated.model)]
        premises += [*looked, *(miscount if place is None else [])]
        if climbed is not None:
            judged = judged if judged.verdict == NOTHING else climbed.not_identified(contrast, place) or judged
            premises.append(climbed.caveat(contrast))
        checks = whole.caveats(contrast, reward, place) if whole.of_rows else ()
        if judged.verdict != NOTHING:
            own_doubts = [caveat for doubt in doubts[target] for caveat in doubt[place]]
            if any(caveat.code == BY_ACTION for caveat in checks):  # which says by which action
                own_doubts = [caveat for caveat in own_doubts if caveat.code != BY_ACTION]
            mine = (*judged.caveats, *own_doubts, *_of_groups(whole.question, contrast))
            # a segment repeats a general caveat only if there is nothing else to say
            judged = Verdict((*premises, *mine) if place is None else mine or tuple(premises[-1:]))
        unsaid = [which_way(str(reward))] if minimize is None and place is None and judged.verdict != NOTHING else []
        return judged.with_caveats([*(caveat for caveat in checks if caveat.code != MISSING), *unsaid])

    if other:
        own = _where_overlap(own, other, diagnoses)
    verdicts: Verdicts = Lazily(dict.fromkeys(((target, place) for target, _, place in own), lambda key: verdict(*key)))
    suspects = {name: places for name, each in policies.items() if (places := _suspects(each))}
    if suspects or any(caveat.code == MISSING for caveat in whole.of_rows):

        def missing(target: str, place: Segment) -> tuple[list[Caveat], ...]:
            return tuple(_missing(whole, name, reward, place, diagnoses, suspects) for name in (target, other) if name)

        own, verdicts = _bounded(own, verdicts, missing, log, options, estimators)
    question = whole.question
    return {
        "moments": log if climbed is None else climbed.moments,
        "estimates": own,
        "all_diagnostics": diagnoses,
        "verdicts": verdicts,
        "level": options.level,
        "interval_method": options.method,
        "reward_bounds": options.reward_bounds,
        "reward": reward,
        "minimize": minimize,
        "question": question,
        "earlier_rows": whole.earlier_rows,
        "elsewhere": _known(whole, reward),
        "ladders": {} if climbed is None else {contrast[0]: climbed.ladders[contrast] for contrast in contrasts},
        "model": getattr(question and question.model, "quality", None),
        "propensity_model": getattr(question and question.propensity_model, "quality", None),
    }


def _known(whole: RewardMoments, reward: str | None) -> dict[str, LogMoments]:
    """By target, the moments of the rows in which the log has all that it does, where it lacks some in others."""
    k = whole.rewards.index(reward)
    return {str(caveat.target): caveat.known[k] for caveat in whole.of_rows if caveat.known}


def _by_target(target: str, by_place: Lazily[Segment, Diagnostics]) -> Diagnoses:
    """The diagnostics of every place, by target and place."""
    return Lazily(dict.fromkeys(((target, place) for place in by_place), lambda key: by_place[key[1]]))


def _judge(view: View, place: Segment, diagnoses: Diagnoses) -> Verdict:
    """What the weights and rewards of a value or of a difference say."""
    target, other = view.contrast
    if not other:
        return judge(diagnoses[target, place])
    # the logging policy has no weights to judge
    policies = {name: diagnoses[name, place] for name in view.contrast if (name, place) in diagnoses}
    k = view.place(place)
    return judge_difference(policies, float(view.carrying[k]), float(view.squares[k]))


def _miscount(view: View) -> Iterator[Caveat]:
    """Whether sampled rows add up to as many as there were, if that is known."""
    before, rows = view.log.rows_before, view.together[0]
    if before is None:
        return
    error = float(sampling_error(rows))
    if view.is_clustered:
        sizes = view.groups.n[0] * counts_of(view.groups)[0]
        error = math.sqrt(len(sizes) * float(np.var(sizes, ddof=1)))
    yield from miscounted(float(rows.n * counts_of(rows)), error, before)


def _of_groups(question: Question | None, names: Contrast) -> Iterator[Caveat]:
    """The caveat for a target that chooses among groups of actions: nothing in the log shows what that hides."""
    targets = question.targets if question is not None else ()
    grouped = [target.name for target in targets if target.by_group and target.name in names]
    if grouped:
        text = (
            f"{grouped[0]} takes groups of actions as the target does, and within a group what the logging policy took: it is the target's "
            "own value only if the actions of a group earn the same."
        )
        yield Caveat("action-groups", text)


def _where_overlap(own: Estimates, other: str, diagnoses: Diagnoses) -> Estimates:
    """Differences, marked as not identified if either policy has no overlap with the log."""

    def estimate(key: tuple[str, str, Segment]) -> Estimate:
        target, _, place = key
        known = [diagnoses[name, place].has_overlap for name in (target, other) if (name, None) in diagnoses]
        if all(known):
            return own[key]
        nowhere = replace(own[key].interval, lower=-math.inf, upper=math.inf)
        return replace(own[key], value=math.nan, stderr=math.inf, interval=nowhere)

    return Lazily(dict.fromkeys(own, estimate))


# -- Bounds, where the log lacks some of what a target does ------------------------------------------------------------


def _bounded(
    own: Estimates,
    judged: Verdicts,
    missing: Callable[[str, Segment], tuple[list[Caveat], ...]],
    log: LogMoments,
    options: IntervalOptions,
    estimators: Mapping[str, Estimator],
) -> tuple[Estimates, Verdicts]:
    """The estimates and verdicts of every place, with bounds where actions of a target or its rival are missing."""
    weighted = {name: estimator for name, estimator in estimators.items() if estimator.uses_rewards}
    rewards = rewards_of(log, options.reward_bounds)

    @cache
    def bounded(target: str, place: Segment) -> tuple[Verdict, Mapping[str, Estimate]]:
        verdict, sides = judged[target, place], missing(target, place)
        if not weighted or not any(sides):
            return verdict, {}
        here = {name: own[target, name, place] for name in weighted}
        return with_bounds(verdict, here, weighted, rewards, *sides)

    def estimate(key: tuple[str, str, Segment]) -> Estimate:
        target, name, place = key
        return bounded(target, place)[1].get(name, own[key]) if any(missing(target, place)) else own[key]

    return Lazily(dict.fromkeys(own, estimate)), Lazily(dict.fromkeys(judged, lambda key: bounded(*key)[0]))


def _suspects(view: View) -> set[Segment]:
    """The places whose mean weight may be clearly below 1: a sieve, so that not every segment's weights need a test."""
    if not view.log.weight.mean_is_one:
        return set()
    mean, whole = np.asarray(view.whole.average("u")), view.whole
    error = np.sqrt(whole.covariance("u", "u") / np.maximum(whole.n, 1))
    may_be = mean < (0.0 if view.is_clustered else -SIEVE * error)
    return {view.places[k] for k in np.flatnonzero(may_be)}


def _missing(
    whole: RewardMoments,
    target: str,
    reward: str | None,
    place: Segment,
    diagnoses: Diagnoses,
    suspects: Mapping[str, set[Segment]],
) -> list[Caveat]:
    """The caveats saying that the log lacks some of a target's actions; for the logging policy, none."""
    checks = whole.caveats((target,), reward, place) if (target, place) in diagnoses else ()
    below = below_one(diagnoses[target, place]) if place in suspects.get(target, ()) else ()
    return [*(caveat for caveat in checks if caveat.code == MISSING), *below]


def _check_method(moments: LogMoments, options: IntervalOptions) -> None:
    """Check that the method can make intervals from these moments."""
    name = options.method.name
    if moments.estimated is not None and options.method.needs_known_propensities:
        raise OptionError(
            f"the {name} interval holds at any size because the weights are known, and these rest on a propensity model.",
            do="Pass `interval='student'`.",
        )
    if options.method.needs_known_propensities and LABEL in next(iter(moments.moments.values())).columns:
        raise OptionError(
            f"the {name} interval bounds weights times rewards, and with `proxy=` an answer is made of more than those.",
            do="Pass `interval='student'`.",
        )
    if options.method.needs_groups and next(iter(moments.moments.values())).shape[1] < 2:
        raise OptionError(
            f"these moments have no groups, and the {name} interval needs them.",
            do="Evaluate the log with `groups=100` or `cluster=`.",
        )
