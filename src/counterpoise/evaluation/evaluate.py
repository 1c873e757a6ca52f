"""`evaluate` and `compare`: what policies would have earned, and how much more than another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Unpack

from counterpoise.diagnostics import Diagnostics, Verdict
from counterpoise.errors import OptionError
from counterpoise.estimators import DIFFERENCES, ESTIMATORS, Estimate
from counterpoise.estimators.estimate import unknown
from counterpoise.evaluation import answer
from counterpoise.evaluation.answer import Options, View, choose
from counterpoise.evaluation.asking import Stored, known_moments, question_of, read
from counterpoise.evaluation.result import Comparison, Result, Segment
from counterpoise.intervals import Method
from counterpoise.log.log import Log, LogFields
from counterpoise.log.question import LOGGING, Question
from counterpoise.moments import LogMoments


def evaluate(
    log: Any = None,
    *,
    target: Any = None,
    segment: Any = None,
    weight: Any = None,
    estimator: str | Sequence[str] | None = None,
    interval: Method | None = None,
    level: float = 0.95,
    max_weight: float | None = None,
    tuned_for: float = 10_000,
    state: str | PathLike[str] | None = None,
    batch: str | None = None,
    replace: bool = False,
    version: str | Mapping[str, str] | None = None,
    progress: bool | None = None,
    **parts: Unpack[LogFields],
) -> Result:
    """What the target policies would have earned on this log, and how sure we are.

    Parameters
    ----------
    log
        A `Log`; or its data, with the parts of a log (`reward`, `propensity`, `cluster`, `where`, …) as further arguments; or the
        moments of an earlier result. Without a log, the parts are the arrays themselves.
    target
        One target, a list of them, or a mapping of names to them. A target is the column (or SQL expression) of its probability of the
        logged action; the action it takes, ``Chosen("column")``; a callable on record batches of the `context` columns and the logged
        `action`; anything with `predict_proba`; or the file of a policy that counterpoise saved.
    segment
        Report every value of this column (or combination of several) as well.
    weight
        A member of `counterpoise.weights`, such as ``Clip(10)``; or the column of a weight of your own, which then needs no target.
    estimator
        Names from `ESTIMATORS`; by default all that the columns allow.
    interval
        A member of `counterpoise.intervals`, or its name: ``"normal"``; ``"jackknife"``, the default with a cluster; ``"anytime"``, to look
        as often as one likes while the log grows; ``"bernstein"``, for `ips` at any size, where rewards and weights are bounded.
    level
        Confidence level of the intervals.
    state, batch
        A file that keeps the moments: this log, under its key `batch`, is added to what it holds, and the answer is about all of
        it. The same key is refused the second time. Files are known by their content and their path, and need no key. With a state
        and nothing else, the answer is about what it holds.
    replace
        Put this log in the place of what its `batch`, or its files, had added to the state; one of the last 31 batches.
    version
        A text that changes when a target does, for all targets or by target; the state refuses another version. Python policies have
        one from their code and parameters, where these can be looked at.
    progress
        Whether to show rows and rate; by default on a terminal only.

    Examples
    --------
    >>> result = evaluate(reward=[1, 0, 1, 1], propensity=[0.5, 0.5, 0.25, 0.5], target=[0.5, 0.25, 0.5, 0.25])
    >>> round(result["target", "ips"].value, 3)
    0.875
    >>> result.verdict().verdict
    'caution'
    """
    asked, stored = _names(estimator), Stored(state, batch, replace, version)
    known = known_moments(log, parts, stored, target, segment, weight)
    if known is not None:
        options = Options(
            level, interval or ("jackknife" if known.cluster is not None else "normal"), None, max_weight, tuned_for
        )
        return _evaluated((known,), None, asked, options)
    clustered = _is_clustered(log, parts)
    bounds = log.reward_bounds if isinstance(log, Log) else parts.get("reward_bounds")
    options = Options(level, interval or ("jackknife" if clustered else "normal"), bounds, max_weight, tuned_for)
    wants_groups = options.method == "jackknife" or any(
        ESTIMATORS[name].needs == "groups" for name in asked if isinstance(name, str) and name in ESTIMATORS
    )
    question = question_of(log, parts, target, weight=weight, segment=segment, wants_groups=wants_groups)
    choose(asked, question.moment_columns, question.groups, options.method)  # before the log is read
    return _evaluated(read(question, stored, progress), question, asked, options)


def compare(
    log: Any = None,
    *,
    target: Any = None,
    against: Any = None,
    segment: Any = None,
    weight: Any = None,
    interval: Method | None = None,
    level: float = 0.95,
    max_weight: float | None = None,
    tuned_for: float = 10_000,
    state: str | PathLike[str] | None = None,
    batch: str | None = None,
    replace: bool = False,
    version: str | Mapping[str, str] | None = None,
    progress: bool | None = None,
    **parts: Unpack[LogFields],
) -> Comparison:
    """How much more one policy would have earned than another, from the same rows.

    The difference has its own optimal baseline, E[(w₁ − w₂)²r]/E[(w₁ − w₂)²], and its own error: what the two policies share cancels,
    so it is often far more certain than either value. `against` is another target, the name of one of the targets, or ``"logging"``, the
    default: the policy that wrote the log. The other arguments are those of `evaluate`.

    Examples
    --------
    >>> log = {"r": [1, 0, 1, 1], "p": [0.5, 0.5, 0.25, 0.5], "new": [0.5, 0.25, 0.5, 0.25], "old": [0.5, 0.5, 0.25, 0.5]}
    >>> round(compare(log, reward="r", propensity="p", target="new", against="old").value, 3)
    0.125
    """
    stored = Stored(state, batch, replace, version)
    known = known_moments(log, parts, stored, target, segment, weight)
    if known is not None:
        options = Options(
            level, interval or ("jackknife" if known.cluster is not None else "normal"), tuned_for=tuned_for
        )
        return _compared((known,), None, options, against)
    bounds = log.reward_bounds if isinstance(log, Log) else parts.get("reward_bounds")
    options = Options(
        level, interval or ("jackknife" if _is_clustered(log, parts) else "normal"), bounds, tuned_for=tuned_for
    )
    if options.method == "bernstein":
        raise OptionError("the bernstein interval is for values, not differences: use normal, jackknife or anytime.")
    other = LOGGING if against is None else against
    question = question_of(
        log, parts, target, weight=weight, against=other, segment=segment, wants_groups=options.method == "jackknife"
    )
    return _compared(read(question, stored, progress), question, options, None)


def _evaluated(
    moments: tuple[LogMoments, ...], question: Question | None, asked: tuple[str, ...], options: Options
) -> Result:
    results = [_result(one, question, asked, options) for one in moments]
    if question is None or len(results) == 1:
        return results[0]
    return dataclasses.replace(results[0], others=dict(zip(question.log.reward[1:], results[1:], strict=True)))


def _compared(moments: tuple[LogMoments, ...], question: Question | None, options: Options, against: Any) -> Comparison:
    results = [_comparison(one, question, options, against) for one in moments]
    if question is None or len(results) == 1:
        return results[0]
    return dataclasses.replace(results[0], others=dict(zip(question.log.reward[1:], results[1:], strict=True)))


def _result(moments: LogMoments, question: Question | None, asked: tuple[str, ...], options: Options) -> Result:
    contrasts = [contrast for contrast in moments.moments if not contrast[1]]
    first = moments.moments[contrasts[0]]
    estimators = answer.choose(asked, first.columns, first.shape[1], options.method)
    _check_groups(moments, options)
    estimates: dict[tuple[str, str, Segment], Estimate] = {}
    diagnostics: dict[tuple[str, Segment], Diagnostics] = {}
    verdicts: dict[tuple[str, Segment], Verdict] = {}
    for contrast in contrasts:
        view = View(moments, contrast)
        estimates |= answer.estimates(view, estimators, options)
        found = answer.diagnostics(view)
        diagnostics |= {(contrast[0], place): one for place, one in found.items()}
        verdicts |= {(contrast[0], place): verdict for place, verdict in answer.verdicts(found).items()}
    how = options.level, options.method, options.tuned_for, options.reward_bounds, question
    return Result(moments, estimates, diagnostics, verdicts, *how)


def _comparison(moments: LogMoments, question: Question | None, options: Options, against: Any) -> Comparison:
    _check_groups(moments, options)
    contrasts = [contrast for contrast in moments.moments if contrast[1]]
    if not contrasts:
        raise OptionError("these moments are of single policies; compare needs those of an earlier compare.")
    other = contrasts[0][1]
    if against not in (None, other):
        raise OptionError(f"these moments are of a comparison against {other!r}, not {against!r}.")
    found = {contrast: answer.diagnostics(View(moments, contrast)) for contrast in moments.moments if not contrast[1]}
    judged = {contrast[0]: answer.verdicts(one) for contrast, one in found.items()}
    estimates: dict[tuple[str, str, Segment], Estimate] = {}
    verdicts: dict[tuple[str, Segment], Verdict] = {}
    for contrast in contrasts:
        for key, estimate in answer.estimates(View(moments, contrast), DIFFERENCES, options).items():
            seen = all(found[name, ""][key[2]].has_overlap for name in contrast if (name, "") in found)
            estimates[key] = estimate if seen else unknown(estimate)
        for segment_, verdict in judged[contrast[0]].items():
            rival = judged[other][segment_] if other in judged else Verdict("ok", ())
            verdicts[contrast[0], segment_] = _worse(contrast[0], verdict, other, rival)
    diagnostics = {(contrast[0], place): one for contrast, all_ in found.items() for place, one in all_.items()}
    how = options.level, options.method, options.tuned_for, options.reward_bounds, question
    return Comparison(moments, estimates, diagnostics, verdicts, *how, against=other)


def _worse(name: str, verdict: Verdict, other: str, rival: Verdict) -> Verdict:
    """The worse of two verdicts, with the reasons of both."""
    order = ("ok", "caution", "not identified")
    worst = max(verdict.verdict, rival.verdict, key=order.index)
    reasons = [f"{who}: {reason}" for who, one in ((name, verdict), (other, rival)) for reason in one.reasons]
    return Verdict(worst, tuple(reasons))


def _names(estimator: str | Sequence[str] | None) -> tuple[str, ...]:
    if estimator is None:
        return ()
    if not isinstance(estimator, str | list | tuple):
        raise OptionError(f"estimator must be a name or a list of names, found {type(estimator).__name__}.")
    return (estimator,) if isinstance(estimator, str) else tuple(estimator)


def _check_groups(moments: LogMoments, options: Options) -> None:
    if options.method == "jackknife" and next(iter(moments.moments.values())).shape[1] < 2:
        raise OptionError(
            "these moments have no groups, so no jackknife: evaluate the log with groups=100 or a cluster."
        )


def _is_clustered(log: Any, parts: LogFields) -> bool:
    return (log.cluster if isinstance(log, Log) else parts.get("cluster")) is not None
