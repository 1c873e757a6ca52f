"""From moments to an answer: the estimates, diagnostics and verdicts of every target, reward by reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from counterpoise.diagnostics import Caveat, Diagnostics, Verdict, judge, judge_difference, resting_on_model
from counterpoise.diagnostics.verdict import below_one, with_doubts
from counterpoise.errors import Argument, OptionError
from counterpoise.estimators import Estimate, Estimator
from counterpoise.evaluation.asking import Asked
from counterpoise.evaluation.estimates import (
    Estimates,
    Lazily,
    Options,
    View,
    diagnostics,
    doubtful_baselines,
    estimates,
)
from counterpoise.evaluation.ladder import climb
from counterpoise.evaluation.loggers import Carrier, carrier, is_by_logger, without_loggers
from counterpoise.evaluation.result import Comparison, Result, Segment, check_differences, choose, differences_of
from counterpoise.evaluation.support import MISSING, Rewards, rewards_of, with_bounds
from counterpoise.log.question import Question
from counterpoise.moments.log_moments import Contrast, LogMoments

Answer = TypeVar("Answer", bound=Result)

SIEVE = 2.0  # standard errors below 1 of a mean weight, without which none is clearly below 1


def evaluation_of(whole: Asked, options: Sequence[Options], names: tuple[str, ...]) -> Result:
    """The answer of `evaluate` from the moments of one reward or several, the first of which speaks for itself."""
    carriers = _carriers(whole)
    whole = _without_loggers(whole)
    return _together(
        [
            _with_carriers(_result(moments, names, how, whole, name), carriers)
            for moments, how, name in zip(whole.moments, options, whole.rewards, strict=True)
        ]
    )


def comparison_of(whole: Asked, options: Sequence[Options], against: object = None) -> Comparison:
    """The answer of `compare` from the moments of one reward or several; `against` is checked where it is named."""
    check_differences(options[0].method)
    whole = _without_loggers(whole)
    return _together(
        [
            _comparison(moments, how, whole, name, against)
            for moments, how, name in zip(whole.moments, options, whole.rewards, strict=True)
        ]
    )


def _result(moments: LogMoments, names: tuple[str, ...], options: Options, whole: Asked, reward: str | None) -> Result:
    contrasts = [contrast for contrast in moments.moments if not contrast[1]]
    first = moments.moments[contrasts[0]]
    mean_is_one = moments.weight.mean_is_one
    estimators = choose(names, first.columns, first.shape[1], options.method, mean_is_one=mean_is_one)
    _check_groups(moments, options)
    climbed = climb(moments, options, estimators)
    own: Estimates = Lazily({})
    diagnoses: Lazily[tuple[str, Segment], Diagnostics] = Lazily({})
    doubts: dict[str, Mapping[Segment, list[str]]] = {}
    suspects: dict[str, set[Segment]] = {}
    for contrast in contrasts:
        view = climbed.view(contrast)
        suspects[contrast[0]] = _suspects(view)
        doubts[contrast[0]] = doubtful_baselines(view)
        own |= estimates(view, estimators, options)
        diagnoses |= _by_target(contrast[0], diagnostics(view))

    def verdict(target: str, place: Segment) -> Verdict:
        judged = climbed.judged(judge(diagnoses[target, place]), (target, ""), place)
        judged = with_doubts(judged, doubts[target][place])
        judged = _resting(moments, _by_group(judged, whole.question, target), place)
        return judged.with_caveats(_checks(whole, (target,), reward, place))

    def missing(target: str, place: Segment) -> tuple[list[Caveat], ...]:
        return (_missing(whole, target, reward, place, diagnoses, suspects),)

    weighted = {name: estimator for name, estimator in estimators.items() if estimator.uses_rewards}
    rewards = rewards_of(moments, options.reward_bounds)
    answers, verdicts = _answers(own, verdict, missing, weighted, rewards)
    ladders = {target: ladder for (target, _), ladder in climbed.ladders.items()}
    return Result(climbed.moments, answers, diagnoses, verdicts, **_fields(options, whole, reward), ladders=ladders)


def _comparison(moments: LogMoments, options: Options, whole: Asked, reward: str | None, against: object) -> Comparison:
    _check_groups(moments, options)
    contrasts = [contrast for contrast in moments.moments if contrast[1]]
    if not contrasts:
        raise OptionError("these moments are of single policies; compare needs those of an earlier compare.")
    other = contrasts[0][1]
    if against not in (None, other):
        raise OptionError(f"these moments are of a comparison against {other!r}, not {against!r}.")
    climbed = climb(moments, options)
    diagnoses: Lazily[tuple[str, Segment], Diagnostics] = Lazily({})
    suspects: dict[str, set[Segment]] = {}
    for contrast in moments.moments:
        if not contrast[1]:
            single = climbed.view(contrast)
            diagnoses |= _by_target(contrast[0], diagnostics(single))
            suspects[contrast[0]] = _suspects(single)
    views = {contrast: climbed.view(contrast) for contrast in contrasts}
    own = {
        contrast[0]: estimates(view, differences_of(view.whole.columns), options) for contrast, view in views.items()
    }
    doubts = {contrast[0]: doubtful_baselines(view) for contrast, view in views.items()}
    squares = {
        contrast[0]: view.whole.covariance("u", "u") + np.square(view.whole.average("u"))
        for contrast, view in views.items()
    }

    def estimate(key: tuple[str, str, Segment]) -> Estimate:
        target, _, place = key
        has_overlap = all(diagnoses[name, place].has_overlap for name in (target, other) if (name, None) in diagnoses)
        return own[target][key] if has_overlap else _unknown(own[target][key])

    def verdict(target: str, place: Segment) -> Verdict:
        contrast = target, other
        view, k = views[contrast], views[contrast].place(place)
        # the policy that wrote the log has no weights to judge
        policies = {name: diagnoses[name, place] for name in contrast if (name, place) in diagnoses}
        judged = judge_difference(policies, float(view.carrying[k]), float(squares[target][k]))
        judged = with_doubts(climbed.judged(judged, contrast, place), doubts[target][place])
        judged = _resting(moments, _by_group(judged, whole.question, *contrast), place)
        return judged.with_caveats(_checks(whole, contrast, reward, place))

    def missing(target: str, place: Segment) -> tuple[list[Caveat], ...]:
        return tuple(_missing(whole, name, reward, place, diagnoses, suspects) for name in (target, other))

    known = Lazily(dict.fromkeys(chain(*own.values()), estimate))
    differences = differences_of(views[contrasts[0]].whole.columns)
    answers, verdicts = _answers(known, verdict, missing, differences, rewards_of(moments, options.reward_bounds))
    fields = _fields(options, whole, reward)
    ladders = {contrast[0]: climbed.ladders[contrast] for contrast in contrasts if contrast in climbed.ladders}
    return Comparison(climbed.moments, answers, diagnoses, verdicts, **fields, ladders=ladders, against=other)


def _by_target(target: str, by_place: Lazily[Segment, Diagnostics]) -> Lazily[tuple[str, Segment], Diagnostics]:
    """The diagnostics of every place, by target and place."""
    return Lazily(dict.fromkeys(((target, place) for place in by_place), lambda key: by_place[key[1]]))


def _answers(
    own: Estimates,
    judged: Callable[[str, Segment], Verdict],
    missing: Callable[[str, Segment], tuple[list[Caveat], ...]],
    estimators: Mapping[str, Estimator],
    rewards: Rewards,
) -> tuple[Estimates, Lazily[tuple[str, Segment], Verdict]]:
    """The estimates and verdicts of every place, with bounds where something is missing of a target or of its rival."""

    @cache
    def bounded(target: str, place: Segment) -> tuple[Verdict, Mapping[str, Estimate]]:
        verdict, sides = judged(target, place), missing(target, place)
        here = {name: own[target, name, place] for name in estimators} if any(sides) else {}
        return with_bounds(verdict, here, estimators, rewards, *sides) if here else (verdict, here)

    def estimate(key: tuple[str, str, Segment]) -> Estimate:
        target, name, place = key
        return bounded(target, place)[1].get(name, own[key]) if any(missing(target, place)) else own[key]

    places = dict.fromkeys((target, place) for target, _, place in own)
    return Lazily(dict.fromkeys(own, estimate)), Lazily(dict.fromkeys(places, lambda key: bounded(*key)[0]))


def _checks(whole: Asked, names: Contrast | tuple[str], reward: str | None, place: Segment) -> list[Caveat]:
    """What checks of single rows say, but for missing actions, which leave bounds."""
    return [caveat for caveat in whole.caveats(names, reward, place) if caveat.code != MISSING]


def _suspects(view: View) -> set[Segment]:
    """The places whose mean weight may be clearly below 1: a sieve, so that not every segment's weights need a test."""
    if not view.log.weight.mean_is_one:
        return set()
    mean, whole = np.asarray(view.whole.average("u")), view.whole
    error = np.sqrt(whole.covariance("u", "u") / np.maximum(whole.n, 1))
    may_be = mean < (0.0 if view.is_clustered else -SIEVE * error)
    return {view.places[k] for k in np.flatnonzero(may_be)}


def _missing(
    whole: Asked,
    target: str,
    reward: str | None,
    place: Segment,
    diagnoses: Mapping[tuple[str, Segment], Diagnostics],
    suspects: Mapping[str, set[Segment]],
) -> list[Caveat]:
    """What says that the log lacks some of what a target does; the policy that wrote the log lacks nothing."""
    if target not in suspects:
        return []
    below = below_one(diagnoses[target, place]) if place in suspects[target] else ()
    return [*(whole.about(target, reward, place, MISSING) if whole.concerns else ()), *below]


def _resting(moments: LogMoments, verdict: Verdict, place: Segment) -> Verdict:
    """The verdict, at most `caution` where propensities were estimated."""
    if moments.estimated is None:
        return verdict
    return resting_on_model(verdict, moments.estimated.model, is_whole=place is None)


def _carriers(whole: Asked) -> dict[str, Carrier]:
    """Of a log that several loggers wrote, who carries each target's value."""
    first = whole.moments[0]
    contrasts = (
        [contrast for contrast in first.moments if not contrast[1]]
        if first.segment_columns and is_by_logger(first)
        else []
    )
    return {contrast[0]: carrier(first, contrast) for contrast in contrasts}


def _without_loggers(whole: Asked) -> Asked:
    """The same moments and question, added up over the loggers that wrote the log."""
    if not whole.moments[0].segment_columns or not is_by_logger(whole.moments[0]):
        return whole
    question = whole.question
    merged = None if question is None else replace(question, segment=question.segment[:-1])
    return replace(whole, moments=tuple(map(without_loggers, whole.moments)), question=merged)


def _with_carriers(result: Result, carriers: Mapping[str, Carrier]) -> Result:
    """A result whose verdicts say which logger carries the estimate."""
    if not carriers:
        return result
    verdicts = dict(result.verdicts)
    for target, logger in carriers.items():
        known = verdicts[target, None]
        verdicts[target, None] = replace(known, reasons=(*known.reasons, str(logger)))
    return replace(result, verdicts=verdicts)


def _fields(options: Options, whole: Asked, reward: str | None) -> dict[str, Any]:
    """What a result remembers of how it was asked for."""
    return {
        "level": options.level,
        "interval_method": options.method,
        "reward_bounds": options.reward_bounds,
        "reward": reward,
        "question": whole.question,
        "earlier_rows": whole.earlier_rows,
        "model": getattr(whole.question and whole.question.model, "quality", None),
        "propensity_model": getattr(whole.question and whole.question.propensity_model, "quality", None),
    }


def _by_group(verdict: Verdict, question: Question | None, *names: str) -> Verdict:
    """A verdict, at most `caution` where a target chooses among groups of actions: nothing in the log says what that hides."""
    targets = question.targets if question is not None else ()
    grouped = [target.name for target in targets if target.by_group and target.name in names]
    if not grouped or verdict.verdict == "not identified":
        return verdict
    reason = (
        f"{grouped[0]} takes groups of actions as the target does, and within a group what the logging policy took: it is the target's own "
        "value only if the actions of a group earn the same."
    )
    return replace(verdict, verdict="caution", reasons=(*verdict.reasons, reason))


def _together(answers: Sequence[Answer]) -> Answer:
    """The first answer, with those of the other rewards in it."""
    first, *others = answers
    return replace(first, others={str(answer.reward): answer for answer in others}) if others else first


def _check_groups(moments: LogMoments, options: Options) -> None:
    name = options.method.name
    if moments.estimated is not None and options.method.needs_known_propensities:
        raise OptionError(
            f"the {name} interval holds at any size because the weights are known, and these rest on a propensity model.",
            do=["Pass ", Argument("interval", "student"), "."],
        )
    if options.method.needs_groups and next(iter(moments.moments.values())).shape[1] < 2:
        raise OptionError(
            f"these moments have no groups, and the {name} interval needs them.",
            do=["Evaluate the log with ", Argument("groups", 100), " or ", Argument("cluster"), "."],
        )


def _unknown(estimate: Estimate) -> Estimate:
    """The estimate, marked as one that the log cannot give."""
    nowhere = replace(estimate.interval, lower=-math.inf, upper=math.inf)
    return replace(estimate, value=math.nan, stderr=math.inf, interval=nowhere)
