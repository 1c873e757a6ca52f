"""`evaluate`, `compare`, `rank` and `sensitivity`: what policies would have earned, and how much more than one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack

from counterpoise.diagnostics.verdict import carrying_policies
from counterpoise.errors import OptionError
from counterpoise.estimators import ESTIMATORS
from counterpoise.evaluation.answer import comparison_of, evaluation_of
from counterpoise.evaluation.asking import Stored, known_moments, question_of, read
from counterpoise.evaluation.checks import RewardMoments, with_checks
from counterpoise.evaluation.choose import check_differences, choose, names_of
from counterpoise.evaluation.estimates import IntervalOptions, for_looks, options_of
from counterpoise.evaluation.ranking import Ranking, ranking_of
from counterpoise.evaluation.result import GAMMAS, Comparison, Result
from counterpoise.intervals import Method, check_level
from counterpoise.log.log import Log, as_log
from counterpoise.log.parts import Columns, Data, LogFields
from counterpoise.log.question import LOGGING, Question
from counterpoise.log.targets import Targets
from counterpoise.log.verbs import need_only, takes_parts
from counterpoise.moments import LogMoments
from counterpoise.weights import Balanced, Weight

if TYPE_CHECKING:
    from counterpoise.evaluation.sensitivity import Sensitivity


@takes_parts("evaluate")
def evaluate(
    log: Log | Data | LogMoments = None,
    *,
    target: Targets = None,
    segment: Columns = None,
    weight: Weight | Columns = None,
    estimator: str | Sequence[str] | None = None,
    interval: str | Method | None = None,
    level: float = 0.95,
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
        One target, a list of them, or a mapping of names to them. A target can be the column (or SQL expression) with its probability of
        the logged action; the action it takes, ``Chosen("column")``, or always takes, ``Always("action")``; its choice among groups of
        actions, ``ActionGroup(…)``; a callable on record batches of the `context` columns and the logged `action`; anything with
        `predict_proba` (of which only ``propensity(context, action)`` is asked, if it has that, too); or the file of a policy that
        counterpoise saved, which brings its own `context` and `action`.
    segment
        Also report every value of this column (or every combination of several columns).
    weight
        A member of `counterpoise.weights`, such as ``Clip(10)``; or the column with your own weight, which then needs no target.
    estimator
        Names from `ESTIMATORS`; by default, all that the columns allow.
    interval
        A member of `counterpoise.intervals`, such as ``Anytime(tuned_for=1e6)``, or its name: ``"student"``, the default, which allows for
        how few rows carry the answer, and for clusters; ``"normal"``; ``"jackknife"``; ``"anytime"``, to look as often as you like while
        the log grows, which is the default from the second look at a `state` or at added moments on.
        ``Bernstein(reward_bounds=(0, 1), max_weight=10)`` holds for `ips` at any size, if rewards and weights are bounded;
        ``"log_smoothing"`` gives a lower bound for it at any size, if no reward is negative, whatever the weights.
    level
        The confidence level of the intervals.
    state, batch
        A file that keeps the moments. This log is added to it under the key `batch`, and the answer covers everything in the file.
        A key that is already there is refused. Files are recognized by content and path, and need no key. If you pass a state
        and nothing else, the answer covers what is in it.
    replace
        Replace what this `batch`, or these files, added to the state earlier; it must be one of the last 31 batches.
    version
        Text that you change whenever a target changes, for all targets or by target; the state refuses another version. Python
        policies get one from their code and parameters, if those can be inspected.
    progress
        Whether to show a progress bar; by default, only on a terminal.

    Examples
    --------
    >>> result = evaluate(reward=[1, 0, 1, 1], propensity=[0.5, 0.5, 0.25, 0.5], target=[0.5, 0.25, 0.5, 0.25])
    >>> round(result["target", "ips"].value, 3)
    0.875
    >>> result.verdict().verdict
    'caution'
    """
    names, stored = names_of(estimator), Stored(state, batch, replace, version)
    log, whole, options = _start(log, parts, stored, interval, level, target, segment, weight)
    if whole is None:
        method = options[0].method
        wants_groups = method.needs_groups or any(
            ESTIMATORS[name].needs == "groups" for name in names if isinstance(name, str) and name in ESTIMATORS
        )
        question = question_of(
            log, target, weight=weight, segment=segment, wants_groups=wants_groups, smoothings=method.smoothings
        )
        choose(names, question.moment_columns, question.groups, method)  # before the log is read
        whole = _moments(question, stored, progress)
    options = for_looks(options, interval, whole.looks)
    if whole.is_by_policy:
        whole = whole.over_policies().with_caveats(carrying_policies(whole.moments[0]))
    return evaluation_of(whole, options, names)


@takes_parts("compare")
def compare(
    log: Log | Data | LogMoments = None,
    *,
    target: Targets = None,
    against: Targets = None,
    segment: Columns = None,
    weight: Weight | Columns = None,
    interval: str | Method | None = None,
    level: float = 0.95,
    state: str | PathLike[str] | None = None,
    batch: str | None = None,
    replace: bool = False,
    version: str | Mapping[str, str] | None = None,
    progress: bool | None = None,
    **parts: Unpack[LogFields],
) -> Comparison:
    """How much more one policy would have earned than another, from the same rows.

    The difference has its own optimal baseline, E[(w₁ − w₂)²r]/E[(w₁ − w₂)²], and its own error. Whatever the two policies share
    cancels out, so the difference is often far more certain than either value. `against` is another target, the name of one of
    the targets, or (by default) ``"logging"``, the logging policy. The other arguments are those of `evaluate`.

    Examples
    --------
    >>> log = {"r": [1, 0, 1, 1], "p": [0.5, 0.5, 0.25, 0.5], "new": [0.5, 0.25, 0.5, 0.25], "old": [0.5, 0.5, 0.25, 0.5]}
    >>> round(compare(log, reward="r", propensity="p", target="new", against="old").value, 3)
    0.125
    """
    stored = Stored(state, batch, replace, version)
    log, whole, options = _start(log, parts, stored, interval, level, target, segment, weight)
    if whole is None:
        need_only(log, "compare")
        method, other = options[0].method, LOGGING if against is None else against
        check_differences(method)
        wants_groups = method.needs_groups
        question = question_of(log, target, weight=weight, against=other, segment=segment, wants_groups=wants_groups)
        whole, against = _moments(question, stored, progress), None
    options = for_looks(options, interval, whole.looks)
    return comparison_of(whole.over_policies(), options, against)


@takes_parts("rank")
def rank(
    log: Log | Data = None,
    *,
    target: Targets = None,
    against: Targets = None,
    weight: Weight | Columns = None,
    interval: str | Method | None = None,
    level: float = 0.95,
    **parts: Unpack[LogFields],
) -> Ranking:
    r"""The policies of a log, or of a comparison you have already made, best first and corrected for their number m.

    The decision is Holm's: the k-th smallest p-value, times m − k + 1 and never below an earlier one, is compared with 1 − level.
    The chance of any false "better" or "worse" is at most 1 − level, whatever the policies have in common, as far as the tails
    of the interval's method are right, which `make statistics` checks. Nothing is decided where the verdict on the difference is
    not ``ok``: such a policy has p = 1 and stays undecided. The intervals all hold at once with at least the level, because
    each is made for 1 − (1 − level)/m. (Intervals at Holm's own stepwise levels would agree with every decision, but they do not
    all hold at once: the best policy of many would be cut too close.) So a decision can come a little before its interval
    excludes 0.

    Examples
    --------
    >>> log = {"r": [1.0, 0.0] * 50, "p": [0.5] * 100, "a": [0.9, 0.1] * 50, "b": [0.4, 0.6] * 50}
    >>> for one in rank(log, reward="r", propensity="p", target=["a", "b"]):
    ...     print(one.target, round(one.value, 2), one.decision)
    a 0.4 better
    b -0.1 worse

    References
    ----------
    Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    if isinstance(log, Comparison):
        return ranking_of(log)
    if not isinstance(log, LogMoments):
        need_only(as_log(log, parts), "rank")
    return ranking_of(
        compare(log, target=target, against=against, weight=weight, interval=interval, level=level, **parts)
    )


@takes_parts("sensitivity")
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

    Against another target, lifts are the differences of the two values, and their bounds the extremes over odds that are wrong in
    the same way for both, which are closer together than the bounds of either alone. λ is then the same for rows with similar
    rewards and a similar ratio of the two targets' probabilities.

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
    # imported here: whoever asks for less does not wait for it
    from counterpoise.evaluation.sensitivity import check_plain, checked_gammas, of_question

    check_level(level)
    gammas = checked_gammas(gamma)
    if isinstance(log, LogMoments):
        raise OptionError("sensitivity needs the log itself: moments do not keep which rewards have which weights.")
    whole = as_log(log, parts)
    whole.need("reward")
    if against is not None and not (isinstance(against, str) and against == LOGGING):
        check_plain(question_of(whole, target, against=against))
        comparison = compare(whole, target=target, against=against, level=level, progress=progress)
        return comparison.sensitivity(gammas, progress=progress)
    return of_question(question_of(whole, target), gammas, level, progress)


def _start(
    log: Log | Data | LogMoments,
    parts: LogFields,
    stored: Stored,
    interval: str | Method | None,
    level: float,
    target: Targets,
    *chosen: Any,
) -> tuple[Log, RewardMoments | None, tuple[IntervalOptions, ...]]:
    """What both verbs settle first: the log, or moments that are known already; and how intervals are made, reward by reward.

    `chosen` is what else a verb was told to look at in the log.
    """
    check_level(level)
    known = known_moments(log, parts, stored, target, *chosen)
    if known is not None:
        bounds = parts.get("reward_bounds")
        made = options_of(interval, level, known.rewards, is_clustered=known.is_clustered, reward_bounds=bounds)
        return Log(), known, made
    whole = as_log(log, parts)
    whole.need("reward")
    is_clustered = whole.cluster is not None
    made = options_of(interval, level, whole.reward, is_clustered=is_clustered, reward_bounds=whole.reward_bounds)
    return whole, None, made


def _moments(question: Question, stored: Stored, progress: bool | None) -> RewardMoments:
    """The moments of a question, by policy where several wrote the log, with what checks of its rows say."""
    if isinstance(question.weight, Balanced):
        question = question.weight.by_policy(question)
    return with_checks(read(question, stored, progress))
