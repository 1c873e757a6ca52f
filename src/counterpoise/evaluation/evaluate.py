"""This file holds the front door: `evaluate` and `compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from os import PathLike
from typing import Any

from counterpoise.diagnostics import Diagnostics, Verdict
from counterpoise.errors import OptionError
from counterpoise.estimators import DIFFERENCES, Estimate
from counterpoise.estimators.estimate import unknown
from counterpoise.evaluation import answer
from counterpoise.evaluation.answer import Options, View
from counterpoise.evaluation.result import Comparison, Result, Segment
from counterpoise.intervals import Method
from counterpoise.log.arguments import arrange
from counterpoise.log.request import GROUPS, LOGGING, Request
from counterpoise.moments.log_moments import Contrast, LogMoments


def evaluate(
    log: object = None,
    *,
    reward: Any = None,
    propensity: Any = None,
    target: Any = None,
    segment: Any = None,
    cluster: Any = None,
    key: Any = None,
    model_reward: Any = None,
    model_value: Any = None,
    control: Mapping[str, float] | None = None,
    estimator: str | Sequence[str] | None = None,
    interval: Method | None = None,
    level: float = 0.95,
    groups: int | None = None,
    reward_bounds: tuple[float, float] | None = None,
    max_weight: float | None = None,
    tuned_for: float = 10_000,
    drop_bad_rows: bool = False,
    where: str | None = None,
    target_action: Any = None,
    action: str | None = None,
    context: Any = None,
    table: str | Sequence[str] | None = None,
    query: str | None = None,
    external_access: bool = False,
    state: str | PathLike[str] | None = None,
    batch: str | None = None,
    replace: bool = False,
    version: str | Mapping[str, str] | None = None,
    progress: bool | None = None,
) -> Result:
    """What the target policies would have earned on this log, and how sure we are.

    Parameters
    ----------
    log
        A mapping of arrays or any frame (pandas, polars, pyarrow, …; lazy ones are read in batches); the path of a file, a folder, a
        glob or a list of them; a DuckDB file, connection or relation; a ``postgresql://`` URL; an ibis table; a Spark DataFrame. The
        other arguments name its columns, or are SQL expressions of them. Without a log they are the arrays themselves. The `moments`
        of earlier results are a log too.
    reward, propensity, target
        The reward; the logging policy's probability of the logged action; the target's probability of it, one or several.
        A target may be a policy, too: a callable on record batches of the `context` columns and the logged `action`, or a classifier
        with `predict_proba`. Give several, or names of your own, in a mapping.
    target_action, action
        For a deterministic target: the column with the action it takes, and the column with the logged action.
    segment
        Report every value of this column (or combination of several) as well.
    cluster
        The unit of randomisation, such as the user: errors then allow for rows of one cluster to be alike.
    key
        Columns that identify a row; repeated ones are counted.
    model_reward, model_value
        A reward model's prediction for the logged action, and its value of each target, for `dm`, `dr`, `sndr`, `optimal_dr`.
    control
        Further control variates for `optimal_dr`: column → its known mean.
    estimator
        Names from `ESTIMATORS`; by default all that the columns allow.
    interval
        ``"normal"``; ``"jackknife"``, the default with a cluster; ``"anytime"``, to look as often as one likes while the log
        grows (narrowest near `tuned_for` rows); ``"bernstein"``, for `ips` at any size, with `reward_bounds` and `max_weight`.
    level
        Confidence level of the intervals.
    groups
        How many groups to hash the clusters (or rows) into, for the jackknife and `cross_fit`; 100 where one of them is wanted.
    reward_bounds, max_weight, tuned_for
        Bounds known before seeing the log, for ``"bernstein"``, and those of rewards also for a log whose rewards are all the same; the
        size of log at which ``"anytime"`` is narrowest.
    drop_bad_rows
        Leave out rows with impossible values, and count them, instead of raising.
    where
        An SQL condition: only rows that meet it count.
    table, query
        Which table of a database, or which query, is the log.
    external_access
        Whether a DuckDB file may read files outside itself, as a view over Parquet does; only for one that you trust.
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
    asked = _names(estimator)
    if _asks_again(log, state, reward, propensity, target, target_action):
        log, state = _stored(state), None
    clustered = cluster is not None or (isinstance(log, LogMoments) and log.cluster is not None)
    request: Request | None = None
    options = Options(level, interval or ("jackknife" if clustered else "normal"), reward_bounds, max_weight, tuned_for)
    if isinstance(log, LogMoments):
        columns = (reward, propensity, target, segment, cluster, key, model_reward, model_value, control, groups)
        keys = (state, batch, replace or None, version, drop_bad_rows or None, external_access or None)
        _check_stored(*columns, where, target_action, action, context, table, query, *keys)
        moments = log
    else:
        wants_groups = clustered or groups is not None or options.method == "jackknife" or "cross_fit" in asked
        log, request = arrange(
            log,
            reward=reward,
            propensity=propensity,
            target=target,
            segment=segment,
            cluster=cluster,
            key=key,
            model_reward=model_reward,
            model_value=model_value,
            control=control,
            groups=_groups(groups) if wants_groups else 1,
            drop_bad_rows=drop_bad_rows,
            where=where,
            target_action=target_action,
            action=action,
            context=context,
        )
        answer.choose(asked, request.moment_columns, request.groups, options.method)  # before the log is read
        moments = _read(log, request, table, query, external_access, state, batch, replace, version, progress)
    contrasts = [contrast for contrast in moments.moments if not contrast[1]]
    return _result(moments, contrasts, asked, options, request)


def compare(
    log: object = None,
    *,
    reward: Any = None,
    propensity: Any = None,
    target: Any = None,
    against: Any = None,
    segment: Any = None,
    cluster: Any = None,
    key: Any = None,
    interval: Method | None = None,
    level: float = 0.95,
    groups: int | None = None,
    reward_bounds: tuple[float, float] | None = None,
    tuned_for: float = 10_000,
    drop_bad_rows: bool = False,
    where: str | None = None,
    target_action: Any = None,
    action: str | None = None,
    context: Any = None,
    table: str | Sequence[str] | None = None,
    query: str | None = None,
    external_access: bool = False,
    state: str | PathLike[str] | None = None,
    batch: str | None = None,
    replace: bool = False,
    version: str | Mapping[str, str] | None = None,
    progress: bool | None = None,
) -> Comparison:
    """How much more one policy would have earned than another, from the same rows.

    The difference has its own optimal baseline, E[(w₁ − w₂)²r]/E[(w₁ − w₂)²], and its own error: what the two policies share cancels,
    so it is often far more certain than either value. `against` names the other target's column, or is ``"logging"``, the default: the
    policy that wrote the log. The other arguments are those of `evaluate`.

    Examples
    --------
    >>> log = {"r": [1, 0, 1, 1], "p": [0.5, 0.5, 0.25, 0.5], "new": [0.5, 0.25, 0.5, 0.25], "old": [0.5, 0.5, 0.25, 0.5]}
    >>> round(compare(log, reward="r", propensity="p", target="new", against="old").value, 3)
    0.125
    """
    if _asks_again(log, state, reward, propensity, target, target_action):
        log, state = _stored(state), None
    clustered = cluster is not None or (isinstance(log, LogMoments) and log.cluster is not None)
    request: Request | None = None
    options = Options(level, interval or ("jackknife" if clustered else "normal"), reward_bounds, tuned_for=tuned_for)
    if options.method == "bernstein":
        raise OptionError("the bernstein interval is for values, not differences: use normal, jackknife or anytime.")
    if isinstance(log, LogMoments):
        columns = (reward, propensity, target, segment, cluster, key, groups)
        keys = (state, batch, replace or None, version, drop_bad_rows or None, external_access or None)
        _check_stored(*columns, where, target_action, action, context, table, query, *keys)
        moments = log
    else:
        log, request = arrange(
            log,
            reward=reward,
            propensity=propensity,
            target=target,
            against=LOGGING if against is None else against,
            segment=segment,
            cluster=cluster,
            key=key,
            groups=_groups(groups) if clustered or groups is not None or options.method == "jackknife" else 1,
            drop_bad_rows=drop_bad_rows,
            where=where,
            target_action=target_action,
            action=action,
            context=context,
        )
        moments = _read(log, request, table, query, external_access, state, batch, replace, version, progress)
    _check_groups(moments, options)
    contrasts = [contrast for contrast in moments.moments if contrast[1]]
    if not contrasts:
        raise OptionError("these moments are of single policies; compare needs those of an earlier compare.")
    other = contrasts[0][1]
    if isinstance(log, LogMoments) and against not in (None, other):
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
    how = options.level, options.method, options.tuned_for, options.reward_bounds, request
    return Comparison(moments, estimates, diagnostics, verdicts, *how, against=other)


def _result(
    moments: LogMoments,
    contrasts: Sequence[Contrast],
    asked: tuple[str, ...],
    options: Options,
    request: Request | None,
) -> Result:
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
    how = options.level, options.method, options.tuned_for, options.reward_bounds, request
    return Result(moments, estimates, diagnostics, verdicts, *how)


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


def _groups(groups: int | None) -> int:
    if groups is None:
        return GROUPS
    if isinstance(groups, bool) or not isinstance(groups, Integral) or groups < 2:
        raise OptionError(f"groups must be a whole number of at least 2, found {groups!r}.")
    return int(groups)


def _check_stored(*columns: object) -> None:
    """Stored moments are sums already: no column or row can be chosen any more."""
    if any(column is not None for column in columns):
        raise OptionError(
            "moments have no columns or rows left to choose from: give columns, conditions and states with the log itself, not "
            "with its moments."
        )


def _check_groups(moments: LogMoments, options: Options) -> None:
    if options.method == "jackknife" and next(iter(moments.moments.values())).shape[1] < 2:
        raise OptionError(
            "these moments have no groups, so no jackknife: evaluate the log with groups=100 or a cluster."
        )


def _asks_again(log: object, state: object, *parts: object) -> bool:
    """Whether a state alone was given: a question about what it holds already."""
    return log is None and state is not None and all(part is None for part in parts)


def _stored(state: Any) -> LogMoments:
    from counterpoise.readers import batches

    return batches.stored_moments(state)


def _read(
    log: object,
    request: Request,
    table: str | Sequence[str] | None,
    query: str | None,
    external_access: bool,
    state: str | PathLike[str] | None,
    batch: str | None,
    replace: bool,
    version: str | Mapping[str, str] | None,
    progress: bool | None,
) -> LogMoments:
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.read import read
    from counterpoise.readers import batches

    place: dict[str, Any] = {"table": table, "query": query, "external_access": external_access, "progress": progress}
    if state is None:
        for name, given in (("batch", batch is not None), ("replace", replace), ("version", version is not None)):
            if given:
                raise OptionError(f"{name}= is about what a state keeps of this log: pass state= too.")
        return read(log, request, **place)
    job = batches.start(state, log, request, batch=batch, replaces=replace, version=version)
    return batches.finish(job, read(log, request, **place))
