"""`distribution`: how the reward would be distributed under a target policy, not just what it would be on average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from counterpoise.errors import Argument, OptionError
from counterpoise.evaluation.asking import Stored, question_of, read
from counterpoise.evaluation.estimates import options_of
from counterpoise.evaluation.result import choose
from counterpoise.evaluation.risk import BETA_IPS, Distribution
from counterpoise.evaluation.support import missing_by_target
from counterpoise.intervals import Method, check_level
from counterpoise.log.log import Log, LogFields, as_log, logged_propensity
from counterpoise.log.question import LOGGING
from counterpoise.log.thresholds import bin_sql, given_thresholds, thresholds_of
from counterpoise.moments import LogMoments
from counterpoise.moments.cuts import Bins, with_unweighted
from counterpoise.moments.spread import tail_shapes


def distribution(
    log: Any = None,
    *,
    target: Any = None,
    thresholds: Sequence[float] | None = None,
    weight: Any = None,
    interval: str | Method | None = None,
    level: float = 0.95,
    progress: bool | None = None,
    **parts: Unpack[LogFields],
) -> Distribution:
    r"""How the reward would be distributed under the target policies: its quantiles, and the mean of its worst part.

    .. math:: F(t) = E_\pi[1\{r \le t\}], \qquad Q(q) = \min\{t : F(t) \ge q\}, \qquad \text{CVaR}(q) = \frac1q \int_0^q Q

    Every threshold t is another reward, 1{r ≤ t}, and one pass over the log gives the β-IPS of all of them. So this holds where the
    value of `evaluate` does, and fails where that fails: look at the verdicts.

    Parameters
    ----------
    log, target, weight, interval, level, progress
        As for `evaluate`; with one reward, and without a reward model.
    thresholds
        Where to look at F. By default they come from a first look at the rewards of 100,000 rows (evenly spaced ones if the log is in
        memory, the first ones if it is in files, a database or Spark): every value if there are at most 200, about 170 quantiles if
        there are more. Rewards with few values are then treated exactly; between the thresholds of others, F is interpolated.

    Examples
    --------
    >>> import numpy as np
    >>> random = np.random.default_rng(0)
    >>> reward = random.exponential(size=10_000)
    >>> answer = distribution(reward=reward, propensity=np.full(10_000, 0.5), target=np.full(10_000, 0.5))
    >>> median = answer.quantile(0.5)
    >>> bool(abs(median.value - np.median(reward)) < 0.01), np.log(2) in median.interval
    (True, True)

    References
    ----------
    Huang, Leqi, Lipton & Azizzadenesheli, "Off-policy risk assessment in contextual bandits", NeurIPS 2021.
    """
    check_level(level)
    if isinstance(log, LogMoments):
        raise OptionError(
            "a distribution needs the log itself: the moments of its rewards do not tell their quantiles."
        )
    whole = as_log(log, parts)
    whole.need("reward")
    whole.need_only("distribution")
    _check(whole)
    chosen = None if thresholds is None else given_thresholds(thresholds)
    is_clustered = whole.cluster is not None
    (options,) = options_of(interval, level, whole.reward, is_clustered=is_clustered, reward_bounds=whole.reward_bounds)
    question = question_of(whole, {}, target, weight=weight, wants_groups=options.method.needs_groups)
    choose((BETA_IPS,), question.moment_columns, question.groups, options.method)  # before the log is read
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.first_look import first_look

    look = first_look(question)
    at = thresholds_of(look.rewards) if chosen is None else chosen
    binned = replace(question, segment=(bin_sql(look.sql, at),), is_binned=True)
    asked = read(binned, Stored(), progress)
    bins = Bins(with_unweighted(asked.moments[0], LOGGING))
    tails, missing = tail_shapes(look.rewards), missing_by_target(question, asked)
    return Distribution(bins, at, options, question.target_names, tails, missing)


def _check(log: Log) -> None:
    if log.propensity is not None and logged_propensity(log) != log.propensity:
        raise OptionError(
            "a distribution takes propensities as logged: its errors would not know of a propensity model.",
            do=["Name the column with ", Argument("propensity"), "."],
        )
