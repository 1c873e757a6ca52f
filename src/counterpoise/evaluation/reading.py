"""How to read a result: which target is best, how much more it earns, what the log itself earned, and what all of it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from counterpoise.display import counted, level_of
from counterpoise.estimators import ESTIMATORS, Estimate, Estimator
from counterpoise.evaluation.estimates import IntervalOptions, estimates
from counterpoise.evaluation.ranking import Ranked, ranking_of
from counterpoise.evaluation.support import bounded, gap_of, rewards_of
from counterpoise.evaluation.view import View

if TYPE_CHECKING:
    from counterpoise.evaluation.result import Result

LIFT = "lift"  # the estimator of how much more a target earns than what ran

TARGETS_DRAWN = 8
TARGETS_LISTED = 200
TARGETS_WITH_ALL_ESTIMATORS = 20


@dataclass(frozen=True)
class Reading:
    """A result, with everything you need to show it; whatever takes time is computed when you ask for it."""

    result: Result

    @property
    def primary(self) -> str:
        """The estimator behind the headline."""
        return self.result.best

    @property
    def estimators(self) -> tuple[str, ...]:
        """The estimators of the same kind as the primary one: values or differences."""
        return tuple(name for name in self.result.estimators if self.result.is_difference(name) == self.is_difference)

    @cached_property
    def lifts(self) -> dict[str, Estimate]:
        """The lift of every target, with intervals that hold for all targets at once."""
        return _lifts(self.result, self.result.targets, self.lift_estimator)

    @property
    def lift_estimator(self) -> Estimator:
        """The estimator of differences from the logging policy that belongs to the primary one."""
        return self.result.lift_of_best

    def lift(self, target: str) -> Estimate | None:
        """The lift of one target, as in `lifts`; None if no interval of the result's kind exists."""
        return _lifts(self.result, (target,), self.lift_estimator).get(target)

    @cached_property
    def ranked(self) -> dict[str, Ranked]:
        """For a comparison: decisions and intervals that allow for all targets, best target first."""
        return {ranked.target: ranked for ranked in ranking_of(self.result)} if self.is_comparison else {}

    @cached_property
    def logged(self) -> tuple[float, float]:
        """The mean reward of the log, and its standard error."""
        return _logged(self.result)

    @property
    def logged_digits(self) -> tuple[float, float]:
        """The mean reward of the log, and the error to whose digits it is written everywhere: that of the lift in the headline."""
        mean, error = self.logged
        lift = None if self.is_difference else self.lift(self.best())
        return mean, lift.stderr if lift is not None and lift.identified and math.isfinite(lift.stderr) else error

    @property
    def unit(self) -> str:
        """What is counted: a row, a list, or what its readers call it."""
        return self.result.unit or self.result.moments.weight.unit

    @property
    def is_comparison(self) -> bool:
        """Whether the estimates are differences between two policies."""
        return bool(self.result.against)

    @property
    def against(self) -> str:
        """The other policy of a comparison."""
        return self.result.against

    @property
    def is_difference(self) -> bool:
        """Whether the estimates shown are differences, for which 0 is the mark, and not values."""
        return self.result.is_difference(self.primary)

    @property
    def mark(self) -> float:
        """What estimates are compared with in a plot: no difference, or what was logged."""
        return 0.0 if self.is_difference else self.logged[0]

    @property
    def sign(self) -> float:
        """1 where more is better, −1 where less is; where nobody said, what is highest comes first."""
        return -1.0 if self.result.minimize else 1.0

    @property
    def first(self) -> str:
        """What comes first in words."""
        return {True: "lowest estimates", False: "highest estimates", None: "highest estimates"}[self.result.minimize]

    def best(self) -> str:
        """The target with the best estimate, or worse bound where there are only bounds."""
        goods = {target: self.good(self.result.stated(target, self.primary)) for target in self.result.targets}
        known = [target for target, good in goods.items() if not math.isnan(good) and self.is_known(target)]
        return max(known, key=goods.__getitem__) if known else self.result.targets[0]

    def good(self, estimate: Estimate) -> float:
        """How good an estimate is: its value, or the worse end where there are only bounds; negated where less is better."""
        worse = estimate.interval.lower if self.sign > 0 else estimate.interval.upper
        return self.sign * (estimate.value if estimate.identified or not math.isfinite(worse) else worse)

    def foremost(self, limit: int, among: Sequence[str] | None = None) -> tuple[str, ...]:
        """The targets to show if there is room for so many: a few in the order they were given, many with the best first.

        The other policy of a comparison always gets a place; targets that the log cannot judge come last.
        """
        judged = self.result.targets
        targets = judged if among is None else tuple(among)
        if len(targets) <= min(limit, TARGETS_DRAWN):
            return targets
        order = dict.fromkeys(targets, -math.inf) | {target: self._order(target) for target in judged}
        return tuple(sorted(targets, key=order.__getitem__)[:limit])

    def _order(self, target: str) -> float:
        good = self.good(self.result.stated(target, self.primary))
        return -good if self.is_known(target) and not math.isnan(good) else math.inf

    def is_known(self, target: str) -> bool:
        """Whether the log says anything about a target, or a model answers without it."""
        return self.result.is_model_only(self.primary) or self.result.verdict(target).verdict != "not identified"


def read(result: Result) -> Reading:
    """Read a result."""
    return Reading(result)


def _lifts(result: Result, targets: Sequence[str], estimator: Estimator) -> dict[str, Estimate]:
    """The lifts of these targets, from their moments; none where no interval of the result's kind exists, nor by a model alone.

    The intervals hold for all targets at once: the headline is about the best one, and the best of many equal targets looks better than
    it is.
    """
    names = (result.best, LIFT)  # in the result, if it is among its estimators
    reported = next((name for name in names if name in result.estimators and ESTIMATORS.get(name) is estimator), None)
    if result.against or result.is_model_only(result.best):
        return {}
    if reported is None and not result.interval_method.allows_differences:
        return {}
    if reported is not None and len(result.targets) == 1:
        return {target: result[target, reported] for target in targets}
    options = IntervalOptions.of(result, among=len(result.targets))
    whole = replace(result.moments, segment_columns=())  # there may be thousands of segments
    own = {LIFT: estimator}
    lifts = {target: estimates(View(whole, (target, "")), own, options)[target, LIFT, None] for target in targets}
    rewards = rewards_of(result.moments, result.reward_bounds)
    gaps = {target: gap_of(result.verdict(target).caveats) for target in targets}
    return {target: bounded(estimate, estimator, rewards, gaps[target]) for target, estimate in lifts.items()}


def _logged(result: Result) -> tuple[float, float]:
    whole = result.moments[result.moments.targets[0]]
    if whole.n == 0:
        return math.nan, math.inf
    spread = float(whole.covariance("s", "s"))
    return float(whole.center + whole.average("s")), math.sqrt(spread / whole.n)


def basis(reading: Reading) -> str:
    """What the estimates rest on: the estimator behind the answer, and its intervals."""
    result, targets = reading.result, len(reading.result.targets)
    dropped = f"; {counted(result.dropped_rows, f'bad {reading.unit}')} dropped" if result.dropped_rows else ""
    many = "both" if targets == 2 else f"all {targets:,}"
    together = f", which hold for {many} policies at once" if targets > 1 else ""
    looks = "" if result.moments.looks < 2 else f" {result.moments.looks:,} looks so far."
    if looks and result.interval_method.is_anytime:
        looks = f"{looks[:-1]}: these intervals hold at all of them at once, however often you look."
    return f"{level_of(result.level)} intervals ({result.method}) by {reading.primary}{together}{dropped}.{looks}"
