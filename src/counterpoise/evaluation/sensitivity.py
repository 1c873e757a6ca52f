"""`sensitivity`: what the answers would be if the logged propensities were wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard, TypeVar, Unpack

from counterpoise.engines.first_look import first_look
from counterpoise.errors import Argument, OptionError
from counterpoise.evaluation.asking import Stored, question_of, read, with_errors
from counterpoise.evaluation.confounded import GAMMAS, Sensitivity, checked_gammas, of_comparison
from counterpoise.evaluation.estimates import Options, options_of
from counterpoise.evaluation.evaluate import compare
from counterpoise.evaluation.result import Comparison, Result
from counterpoise.evaluation.support import missing_by_target
from counterpoise.intervals import check_level
from counterpoise.log.log import Data, Log, LogFields, as_log
from counterpoise.log.question import LOGGING, Question, lean
from counterpoise.log.targets import Targets
from counterpoise.log.thresholds import bin_sql, thresholds_of
from counterpoise.moments import LogMoments
from counterpoise.weights import Ratio
from counterpoise.weights.odds import AllOdds

R = TypeVar("R", bound=Result)


def sensitivity(
    log: Log | Data = None,
    *,
    target: Targets = None,
    against: Targets = None,
    gamma: float | Sequence[float] = GAMMAS,
    level: float = 0.95,
    progress: bool | None = None,
    **parts: Unpack[LogFields],
) -> Sensitivity:
    r"""What the target policies could have earned if the propensities were wrong, and how wrong they must be for a conclusion to flip.

    The true odds of every logged action may differ from the logged ones by a factor of up to Γ, in whatever way is worst: because of a
    confounder that the policy saw and the log did not keep, or because of a logger that is a little off.

    .. math:: \frac1\Gamma \le \frac{p^* / (1 - p^*)}{p / (1 - p)} \le \Gamma
        \quad\Rightarrow\quad w^* = t + \lambda (w - t),\; \lambda \in [1/\Gamma, \Gamma]

    The bounds are the smallest and the largest self-normalized value Σw*r/Σw* over all such λ, one for each row. They are made by a
    threshold in the reward, so that one pass over the log is enough, for all Γ and the tipping point. They are exact for rewards with
    few values; others are put into about 170 bins, and all rows of a bin get the same λ.

    Against another target, lifts are the differences of the two values, and their bounds the extremes over odds that are wrong in the
    same way for both, which are closer together than the bounds of either alone. λ is then the same for rows of like rewards that are
    as much more likely under one as under the other.

    Parameters
    ----------
    log, target, level, progress
        As for `evaluate`; with one reward, and without a reward model.
    against
        Another target: the conclusion is then that the targets earn more, or less, than that one. The log is read twice.
    gamma
        The factors that `table()` shows. 1 says that the propensities are right.

    Examples
    --------
    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> new = random.random(20_000) < 0.5
    >>> reward = (random.random(20_000) < np.where(new, 0.4, 0.2)).astype(float)
    >>> answer = sensitivity(reward=reward, propensity=np.full(20_000, 0.5), target=np.where(new, 0.9, 0.1), gamma=[1, 2])
    >>> [round(end, 2) for end in answer.bounds(1.2).lift]
    [0.03, 0.12]
    >>> print(answer.tipping())
    target earns more than the logging policy unless odds of logged actions are wrong by a factor of 1.37 or more (95 %; the estimate
    itself reaches 0 by a factor of 1.4).

    References
    ----------
    Tan, "A distributional approach for causal inference using propensity scores", JASA 101 (2006); Zhao, Small & Bhattacharya,
    "Sensitivity analysis for inverse probability weighting estimators via the percentile bootstrap", JRSS B 81 (2019).
    """
    check_level(level)
    gammas = checked_gammas(gamma)
    if isinstance(log, LogMoments):
        raise OptionError("sensitivity needs the log itself: its moments do not tell which rewards have which weights.")
    whole = as_log(log, parts)
    whole.need("reward")
    if against is not None and not (isinstance(against, str) and against == LOGGING):
        question = question_of(whole, {}, target, against=against)
        _check(question)
        comparison = compare(whole, target=target, against=against, level=level, progress=progress)
        return of_result(comparison, gammas, None, progress)
    return of_question(question_of(whole, {}, target), gammas, level, progress)


def of_result(
    result: Result, gamma: float | Sequence[float], target: str | Sequence[str] | None, progress: bool | None
) -> Sensitivity:
    """The sensitivity of a result, whose log is read once more; a reward model, controls and a baseline are left out."""
    gammas, question = checked_gammas(gamma), result.asked()
    if result.earlier_rows:
        raise OptionError(
            f"sensitivity looks at rows again, and {result.earlier_rows:,} of the {result.n:,} rows come from earlier logs, of which the "
            "state keeps only sums.",
            do=["Evaluate all logs at once, without ", Argument("state"), "."],
        )
    known = result.targets if is_of_two(result) else question.target_names
    chosen = known if target is None else (target,) if isinstance(target, str) else tuple(target)
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise OptionError(f"no target {unknown[0] if unknown else ''!r}; choose from {', '.join(map(repr, known))}.")
    plain = lean(question)
    log = plain.log.but(reward_bounds=result.reward_bounds, max_segments=None)  # it is about the whole log
    lean_question = replace(plain, log=log, smoothings=())
    if is_of_two(result):
        _check(lean_question)
        return of_comparison(
            result, lean_question, chosen, options=_options(lean_question, result.level), gammas=gammas
        )
    targets = tuple(policy for policy in question.targets if policy.name in chosen)
    return of_question(replace(lean_question, targets=targets, contrasts=()), gammas, result.level, progress)


def with_tipping_points(result: R) -> R:
    """A result whose verdicts on the whole log say how wrong propensities must be for the conclusion to flip, for every reward."""
    verdicts = dict(result.verdicts)
    for target, segment in result.verdicts:
        if segment is None:
            verdicts[target, None] = result.verdict(target, sensitivity=True)
    others = {name: with_tipping_points(other) for name, other in result.others.items()}
    return replace(result, verdicts=verdicts, others=others)


def is_of_two(result: Result) -> TypeGuard[Comparison]:
    """Whether a result is the difference between two targets, and not one from the policy that wrote the log."""
    return isinstance(result, Comparison) and result.against != LOGGING


def of_question(
    question: Question, gammas: tuple[float, ...], level: float, progress: bool | None = None
) -> Sensitivity:
    """The sensitivity of what was asked of a log, which is read once more."""
    _check(question)
    options = _options(question, level)
    look = first_look(question)
    bins = bin_sql(look.sql, thresholds_of(look.rewards))
    own = tuple((name, "") for name in question.target_names)
    binned = replace(question, weight=AllOdds(), contrasts=own, segment=(bins,), is_binned=True, smoothings=())
    asked = read(binned, Stored(), progress)
    (moments,) = asked.moments
    if asked.question is not None:  # with its models fitted: the errors are those of the whole log
        whole = replace(asked.question, weight=question.weight, segment=(), is_binned=False)
        (moments,) = with_errors(whole, (moments,))
    caveats = missing_by_target(question, asked)
    return Sensitivity(moments, options, question.target_names, gammas, caveats=caveats)


def _options(question: Question, level: float) -> Options:
    log = question.log
    is_clustered = log.cluster is not None
    (options,) = options_of(None, level, log.reward, is_clustered=is_clustered, reward_bounds=log.reward_bounds)
    return options


def _check(question: Question) -> None:
    question.log.need_only("sensitivity")
    if not isinstance(question.weight, Ratio):
        raise OptionError(
            f"sensitivity is about propensities, and so about the plain weight target / propensity; found {question.weight!r}."
        )
