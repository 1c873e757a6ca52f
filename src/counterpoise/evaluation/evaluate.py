"""`evaluate` and `compare`: what policies would have earned, and how much more than another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Unpack

from counterpoise.estimators import ESTIMATORS
from counterpoise.evaluation.answer import compared, evaluated
from counterpoise.evaluation.asking import Stored, known_moments, question_of, read
from counterpoise.evaluation.choice import check_differences, choose, names_of
from counterpoise.evaluation.result import Comparison, Result
from counterpoise.intervals import Method, check_level, strategy
from counterpoise.log.log import Columns, Data, Log, LogFields
from counterpoise.log.question import LOGGING
from counterpoise.log.targets import Targets
from counterpoise.weights import Weight


def evaluate(
    log: Log | Data = None,
    *,
    target: Targets = None,
    segment: Columns = None,
    weight: Weight | Columns = None,
    estimator: str | Sequence[str] | None = None,
    interval: str | Method | None = None,
    level: float = 0.95,
    max_weight: float | None = None,
    tuned_for: float | None = None,
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
    check_level(level)
    asked, stored = names_of(estimator), Stored(state, batch, replace, version)
    bounds = _part(log, parts, "reward_bounds")
    own = {"tuned_for": tuned_for, "max_weight": max_weight, "reward_bounds": bounds}
    known = known_moments(log, parts, stored, target, segment, weight)
    if known is not None:
        method = strategy(interval, is_clustered=known.cluster is not None, options=own)
        return evaluated((known,), None, asked, method, level, reward_bounds=bounds)
    method = strategy(interval, is_clustered=_part(log, parts, "cluster") is not None, options=own)
    wants_groups = method.needs_groups or _need_groups(asked)
    question = question_of(log, parts, target, weight=weight, segment=segment, wants_groups=wants_groups)
    choose(asked, question.moment_columns, question.groups, method)  # before the log is read
    return evaluated(read(question, stored, progress), question, asked, method, level)


def compare(
    log: Log | Data = None,
    *,
    target: Targets = None,
    against: Targets = None,
    segment: Columns = None,
    weight: Weight | Columns = None,
    interval: str | Method | None = None,
    level: float = 0.95,
    max_weight: float | None = None,
    tuned_for: float | None = None,
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
    check_level(level)
    stored = Stored(state, batch, replace, version)
    bounds = _part(log, parts, "reward_bounds")
    own = {"tuned_for": tuned_for, "max_weight": max_weight, "reward_bounds": bounds}
    known = known_moments(log, parts, stored, target, segment, weight)
    if known is not None:
        method = strategy(interval, is_clustered=known.cluster is not None, options=own)
        return compared((known,), None, method, level, against, reward_bounds=bounds)
    method = strategy(interval, is_clustered=_part(log, parts, "cluster") is not None, options=own)
    check_differences(method)
    other = LOGGING if against is None else against
    question = question_of(
        log, parts, target, weight=weight, against=other, segment=segment, wants_groups=method.needs_groups
    )
    return compared(read(question, stored, progress), question, method, level, None)


def _part(log: Log | Data, parts: LogFields, name: str) -> Any:
    """A part of the log, before there is one."""
    return getattr(log, name) if isinstance(log, Log) else parts.get(name)


def _need_groups(asked: tuple[str, ...]) -> bool:
    return any(ESTIMATORS[name].needs == "groups" for name in asked if isinstance(name, str) and name in ESTIMATORS)
