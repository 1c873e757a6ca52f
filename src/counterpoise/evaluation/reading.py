"""How to read a result: which target is best, what the log itself earned, and the answer in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from counterpoise.diagnostics.verdict import MISSING
from counterpoise.display import Name, Number, breakable, counted, level_of, percent
from counterpoise.estimators import ESTIMATORS, Estimate
from counterpoise.evaluation.estimates import FILLED_IN, IntervalOptions, View, estimates
from counterpoise.evaluation.ranking import Ranked, ranking_of
from counterpoise.evaluation.support import bounded, gap_of, rewards_of
from counterpoise.intervals import Interval
from counterpoise.log.question import LOGGING

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
    def lift_estimator(self) -> str:
        """The estimator of differences from the logging policy."""
        return self.primary if self.is_difference else LIFT

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
        """What is counted: rows or lists."""
        return self.result.moments.weight.unit

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

    def best(self) -> str:
        """The target with the highest estimate, or lower bound where there are only bounds."""
        values = {target: _least(self.result[target, self.primary]) for target in self.result.targets}
        known = [target for target, value in values.items() if not math.isnan(value) and self.is_known(target)]
        return max(known, key=values.__getitem__) if known else self.result.targets[0]

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
        value = _least(self.result[target, self.primary])
        return -value if self.is_known(target) and not math.isnan(value) else math.inf

    def is_known(self, target: str) -> bool:
        """Whether the log says anything about a target, or a model answers without it."""
        return self.result.is_model_only(self.primary) or self.result.verdict(target).verdict != "not identified"


def read(result: Result) -> Reading:
    """Read a result."""
    return Reading(result)


def _lifts(result: Result, targets: Sequence[str], estimator: str) -> dict[str, Estimate]:
    """The lifts of these targets, from their moments; none where no interval of the result's kind exists.

    Each interval is made for 1 − (1 − level)/m, where m is the number of all targets, so that all hold at once: the headline is about
    the best one, and the best of many equal targets looks better than it is.
    """
    is_reported = estimator in result.estimators
    if not is_reported and not result.moments.weight.mean_is_one and FILLED_IN in result.estimators:
        return {}
    if result.against or (not is_reported and not result.interval_method.allows_differences):
        return {}
    if is_reported and len(result.targets) == 1:
        return {target: result[target, estimator] for target in targets}
    together = 1 - (1 - result.level) / len(result.targets)
    options = IntervalOptions(together, result.interval_method, result.reward_bounds)
    whole = replace(result.moments, segment_columns=())  # there may be thousands of segments
    lift = {estimator: ESTIMATORS[estimator]}
    lifts = {target: estimates(View(whole, (target, "")), lift, options)[target, estimator, None] for target in targets}
    rewards = rewards_of(result.moments, result.reward_bounds)
    gaps = {target: gap_of(result.verdict(target).caveats) for target in targets}
    return {target: bounded(estimate, lift[estimator], rewards, gaps[target]) for target, estimate in lifts.items()}


def _least(estimate: Estimate) -> float:
    """The value of an estimate; where there are only bounds, the lower one."""
    return (
        estimate.value if estimate.identified or not math.isfinite(estimate.interval.lower) else estimate.interval.lower
    )


def _logged(result: Result) -> tuple[float, float]:
    whole = result.moments[result.moments.targets[0]]
    if whole.n == 0:
        return math.nan, math.inf
    spread = float(whole.covariance("s", "s"))
    return float(whole.center + whole.average("s")), math.sqrt(spread / whole.n)


# -- The answer in one sentence, made of parts that a terminal, a notebook and a report each write in their own way ------


Part = str | Name | Number


def headline(reading: Reading) -> list[Part]:
    """The answer in one sentence, about the best target that the log can judge.

    >>> from counterpoise import evaluate
    >>> log = {"r": [1, 0, 0, 1, 0, 0] * 200, "p": [0.5] * 1200, "new": [0.7, 0.3, 0.5, 0.5, 0.4, 0.6] * 200}
    >>> print(plain(headline(read(evaluate(log, reward="r", propensity="p", target="new")))))
    new would have earned 0.400 per row (95 % interval: 0.374 to 0.425), a lift of +0.0667 (+20 %) over the 0.3333 that was logged
    (+0.0605 to +0.0727).
    """
    result, best = reading.result, reading.best()
    estimate = result[best, reading.primary]
    if reading.is_known(best) and not estimate.identified and all(map(math.isfinite, estimate.interval)):
        return _between(reading, best)
    if not estimate.identified or not reading.is_known(best):
        return _cannot_say(reading, best)
    said = _difference(reading, best) if reading.is_difference else _value(reading, best)
    caution = "" if result.verdict(best).verdict == "ok" else ", but read the caution below first"
    return [*_who(reading, best), " would have earned ", *said, f"{caution}."]


def basis(reading: Reading) -> str:
    """What the estimates rest on: the estimator behind the answer, and its intervals."""
    result, targets = reading.result, len(reading.result.targets)
    dropped = f"; {counted(result.dropped_rows, f'bad {reading.unit}')} dropped" if result.dropped_rows else ""
    many = "both" if targets == 2 else f"all {targets:,}"
    together = f", which hold for {many} policies at once" if targets > 1 else ""
    return f"{level_of(result.level)} intervals ({result.method}) by {reading.primary}{together}{dropped}."


def plain(parts: list[Part]) -> str:
    """A sentence as plain text, in which a line may break at every space."""
    return breakable("".join(map(str, parts)))


def _cannot_say(reading: Reading, best: str) -> list[Part]:
    which: Part = Name(best) if len(reading.result.targets) == 1 else "any of the targets"
    unknown: list[Part] = ["what ", which, " would have earned."]
    if reading.is_difference:
        unknown = ["how ", which, " compares with ", _rival(reading), "."]
    return [f"This log of {counted(reading.result.n, reading.unit)} cannot say ", *unknown]


def _between(reading: Reading, best: str) -> list[Part]:
    """The bounds of a target some of whose actions the log lacks."""
    estimate = reading.result[best, reading.primary]
    lower, upper = (Number(end, estimate.stderr, is_signed=reading.is_difference) for end in estimate.interval)
    said: list[Part] = [" would have earned between ", lower, " and ", upper, f" per {reading.unit}"]
    if reading.is_difference:
        said += [" more than ", _rival(reading)]
    else:
        mean, error = reading.logged_digits
        if mean > 0:
            ends = [f"{'+' if end > mean else ''}{percent(end / mean - 1)}" for end in estimate.interval]
            said += [f" ({ends[0]} to {ends[1]} over the ", Number(mean, error), " that was logged)"]
    shares = [caveat.numbers["share"] for caveat in reading.result.verdict(best).caveats if caveat.code == MISSING]
    why = f": {percent(shares[0])} of what it does is not in this log" if shares else ""
    return [*_who(reading, best), *said, f"{why}."]


def _who(reading: Reading, best: str) -> list[Part]:
    """Which target the sentence is about, and out of how many."""
    targets = reading.result.targets
    known = sum(map(reading.is_known, targets))
    if len(targets) == 1:
        return [Name(best)]
    if known == 1:
        return [f"Of {len(targets):,} targets, this log can judge only one: ", Name(best)]
    among = f"{known:,} targets" if known == len(targets) else f"the {known:,} targets (out of {len(targets):,})"
    judged = "" if known == len(targets) else " that this log can judge"
    return [f"Of {among}{judged}, ", Name(best), " has the highest estimate: it"]


def _value(reading: Reading, best: str) -> list[Part]:
    estimate = reading.result[best, reading.primary]
    span = _span(estimate.interval, estimate.stderr)
    interval = f" per {reading.unit} ({level_of(reading.result.level)} interval: "
    said = [Number(estimate.value, estimate.stderr), interval, *span, ")"]
    if reading.result.is_model_only(reading.primary):
        return [*said, ", if the reward model is right: this rests on the model alone"]
    return [*said, *_against_logging(reading, best)]


def _difference(reading: Reading, best: str) -> list[Part]:
    estimate, level = reading.result[best, reading.primary], level_of(reading.result.level)
    interval, is_shown = _decision(reading, best)
    is_less = estimate.value < 0
    size = Number(abs(estimate.value), estimate.stderr, is_signed=not is_less)
    return [
        size,
        f" per {reading.unit} {'less' if is_less else 'more'} than ",
        _rival(reading),
        f" ({level} interval of the difference{_together(len(reading.result.targets))}: ",
        *_span(interval, estimate.stderr, is_signed=True),
        ")",
        ", a real difference" if is_shown else "; the log does not show which of the two is better",
    ]


def _rival(reading: Reading) -> Part:
    return "the logging policy" if reading.against in ("", LOGGING) else Name(reading.against)


def _decision(reading: Reading, target: str) -> tuple[Interval, bool]:
    """The interval of a difference that allows for looking at all targets, and whether the difference is shown."""
    if reading.is_comparison:
        return reading.ranked[target].interval, reading.ranked[target].decision != "undecided"
    lift = reading.lift(target)
    interval = reading.result[target, reading.primary].interval if lift is None else lift.interval
    return interval, 0.0 not in interval


def _against_logging(reading: Reading, target: str) -> list[Part]:
    lift, (mean, digits) = reading.lift(target), reading.logged_digits
    if lift is None or not lift.identified or math.isnan(mean) or not math.isfinite(lift.stderr):
        return []
    logged = Number(mean, digits)
    if 0.0 in lift.interval:
        return ["; the log does not show whether that beats the ", logged, " that the logging policy earned"]
    # an estimate of its own, with a smaller error than the value's, so that the two numbers need not add up to the third
    size = "" if mean <= 0 else f" ({'+' if lift.value > 0 else ''}{percent(lift.value / mean)})"
    interval = _span(lift.interval, lift.stderr, is_signed=True)
    together = _together(len(reading.result.targets))
    gain = Number(lift.value, lift.stderr, is_signed=True)
    return [", a lift of ", gain, f"{size} over the ", logged, " that was logged (", *interval, f"{together})"]


def _together(targets: int) -> str:
    return ", for all targets at once" if targets > 1 else ""


def _span(interval: Interval, error: float, *, is_signed: bool = False) -> list[Part]:
    lower, upper = (Number(end, error, is_signed) for end in interval)
    return [lower, " to ", upper]
