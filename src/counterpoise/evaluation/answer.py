"""From moments to an answer: the estimates, diagnostics and verdicts of every target, reward by reward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from counterpoise.diagnostics import Diagnostics, Verdict, judge, judge_difference, resting_on_model
from counterpoise.diagnostics.before_choice import with_doubts
from counterpoise.errors import Argument, OptionError
from counterpoise.estimators import Estimate
from counterpoise.evaluation.asking import Asked
from counterpoise.evaluation.choice import check_differences, choose, differences_of
from counterpoise.evaluation.estimates import Options, diagnostics, doubtful_baselines, estimates
from counterpoise.evaluation.ladder import climb
from counterpoise.evaluation.loggers import Carrier, carrier, is_by_logger, without_loggers
from counterpoise.evaluation.result import Comparison, Result, Segment
from counterpoise.log.question import Question
from counterpoise.moments.log_moments import LogMoments

Answer = TypeVar("Answer", bound=Result)


def evaluated(found: Asked, options: Sequence[Options], asked: tuple[str, ...]) -> Result:
    """The answer of `evaluate` from the moments of one reward or several, the first of which speaks for itself."""
    carriers = _carriers(found)
    found = _without_loggers(found)
    return _together(
        [
            _carried(_evaluated(one, asked, how, found, name), carriers)
            for one, how, name in zip(found.moments, options, found.rewards, strict=True)
        ]
    )


def compared(found: Asked, options: Sequence[Options], against: str | None = None) -> Comparison:
    """The answer of `compare` from the moments of one reward or several; `against` is checked where it is named."""
    check_differences(options[0].method)
    found = _without_loggers(found)
    return _together(
        [
            _compared(one, how, found, name, against)
            for one, how, name in zip(found.moments, options, found.rewards, strict=True)
        ]
    )


def _evaluated(
    moments: LogMoments, asked: tuple[str, ...], options: Options, whole: Asked, reward: str | None
) -> Result:
    contrasts = [contrast for contrast in moments.moments if not contrast[1]]
    first = moments.moments[contrasts[0]]
    mean_is_one = moments.weight.mean_is_one
    estimators = choose(asked, first.columns, first.shape[1], options.method, mean_is_one=mean_is_one)
    _check_groups(moments, options)
    climbed = climb(moments, options, estimators)
    found: dict[tuple[str, str, Segment], Estimate] = {}
    seen: dict[tuple[str, Segment], Diagnostics] = {}
    doubts: dict[tuple[str, Segment], list[str]] = {}
    for contrast in contrasts:
        view = climbed.view(contrast)
        doubts |= {(contrast[0], place): reasons for place, reasons in doubtful_baselines(view).items()}
        found |= estimates(view, estimators, options)
        seen |= {(contrast[0], place): one for place, one in diagnostics(view).items()}
    verdicts = {
        key: _resting(
            moments,
            _by_group(
                with_doubts(climbed.judged(judge(one), (key[0], ""), key[1]), doubts[key]), whole.question, key[0]
            ),
            key[1],
        ).with_caveats(whole.caveats((key[0],), reward, key[1]))
        for key, one in seen.items()
    }
    ladders = {target: ladder for (target, _), ladder in climbed.ladders.items()}
    return Result(climbed.moments, found, seen, verdicts, **_asked(options, whole, reward), ladders=ladders)


def _compared(
    moments: LogMoments, options: Options, whole: Asked, reward: str | None, against: str | None
) -> Comparison:
    _check_groups(moments, options)
    contrasts = [contrast for contrast in moments.moments if contrast[1]]
    if not contrasts:
        raise OptionError("these moments are of single policies; compare needs those of an earlier compare.")
    other = contrasts[0][1]
    if against not in (None, other):
        raise OptionError(f"these moments are of a comparison against {other!r}, not {against!r}.")
    climbed = climb(moments, options)
    seen = {
        (contrast[0], place): one
        for contrast in moments.moments
        if not contrast[1]
        for place, one in diagnostics(climbed.view(contrast)).items()
    }
    found: dict[tuple[str, str, Segment], Estimate] = {}
    verdicts: dict[tuple[str, Segment], Verdict] = {}
    for contrast in contrasts:
        view, target = climbed.view(contrast), contrast[0]
        for key, estimate in estimates(view, differences_of(view.whole.columns), options).items():
            has_overlap = all(seen[name, key[2]].has_overlap for name in contrast if (name, None) in seen)
            found[key] = estimate if has_overlap else _unknown(estimate)
        doubts = doubtful_baselines(view)
        squares = view.whole.covariance("u", "u") + np.square(view.whole.average("u"))
        for k, place in enumerate(view.places):
            # the policy that wrote the log has no weights to judge
            policies = {name: seen[name, place] for name in contrast if (name, place) in seen}
            verdict = judge_difference(policies, view.carrying[k], float(squares[k]))
            verdict = with_doubts(climbed.judged(verdict, contrast, place), doubts[place])
            verdict = _by_group(verdict, whole.question, *contrast)
            caveats = whole.caveats(contrast, reward, place)
            verdicts[target, place] = _resting(moments, verdict, place).with_caveats(caveats)
    asked = _asked(options, whole, reward)
    ladders = {contrast[0]: climbed.ladders[contrast] for contrast in contrasts if contrast in climbed.ladders}
    return Comparison(climbed.moments, found, seen, verdicts, **asked, ladders=ladders, against=other)


def _resting(moments: LogMoments, verdict: Verdict, place: Segment) -> Verdict:
    """The verdict, at most `caution` where propensities were estimated."""
    if moments.estimated is None:
        return verdict
    return resting_on_model(verdict, moments.estimated.model, is_whole=place is None)


def _carriers(found: Asked) -> dict[str, Carrier]:
    """Of a log that several loggers wrote, who carries each target's value."""
    first = found.moments[0]
    contrasts = [contrast for contrast in first.moments if not contrast[1]] if is_by_logger(first) else []
    return {contrast[0]: carrier(first, contrast) for contrast in contrasts}


def _without_loggers(found: Asked) -> Asked:
    """The same moments and question, added up over the loggers that wrote the log."""
    if not is_by_logger(found.moments[0]):
        return found
    question = found.question
    asked = None if question is None else replace(question, segment=question.segment[:-1])
    return replace(found, moments=tuple(map(without_loggers, found.moments)), question=asked)


def _carried(result: Result, carriers: Mapping[str, Carrier]) -> Result:
    """A result whose verdicts say which logger carries the estimate."""
    verdicts = dict(result.verdicts)
    for target, one in carriers.items():
        known = verdicts[target, None]
        verdicts[target, None] = replace(known, reasons=(*known.reasons, str(one)))
    return replace(result, verdicts=verdicts)


def _asked(options: Options, whole: Asked, reward: str | None) -> dict[str, Any]:
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
    grouped = [one.name for one in targets if one.by_group and one.name in names]
    if not grouped or verdict.verdict == "not identified":
        return verdict
    reason = (
        f"{grouped[0]} takes groups of actions as the target does, and within a group what the logging policy took: it is the target's own "
        "value only if the actions of a group earn the same."
    )
    return Verdict("caution", (*verdict.reasons, reason))


def _together(found: Sequence[Answer]) -> Answer:
    """The first answer, with those of the other rewards in it."""
    first, *others = found
    return replace(first, others={str(one.reward): one for one in others}) if others else first


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
