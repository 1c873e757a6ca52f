"""What a result says, in numbers: the change by every target, whether it is decided and can be relied on, and what to do next.

`wording` makes text of it, `showing` tables and documents.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from counterpoise.diagnostics import Caveat, Verdict
from counterpoise.diagnostics.verdict import (
    CHECK_PROPENSITIES,
    EXPLORE,
    FEW_CARRYING,
    MISREAD,
    MISSING,
    ROWS,
    WHICH_WAY,
    WORDS,
    rows_until_ok,
)
from counterpoise.estimators import ESTIMATORS, Estimate
from counterpoise.evaluation.estimates import IntervalOptions, Quantities
from counterpoise.evaluation.ranking import Direction, Ranked, direction, ranking_of
from counterpoise.evaluation.support import bounded, gap_of, rewards_of
from counterpoise.evaluation.view import View
from counterpoise.intervals.quantity import times_to_show
from counterpoise.log.question import LOGGING
from counterpoise.moments.log_moments import Segment, segment_text

if TYPE_CHECKING:
    from counterpoise.evaluation.result import Result

Decision = Literal[Direction, "not decided", "cannot say"]

LIFT = "lift"  # the estimator of how much more a target earns than the logging policy
FAR = 1000  # times the rows of this log: nobody will collect so many
DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([ T]\d{2}:\d{2}.*)?)?")

TARGETS_DRAWN = 8
TARGETS_LISTED = 200
TARGETS_WITH_ALL_ESTIMATORS = 20


@dataclass(frozen=True)
class KnownPart:
    """What a target changes in the rows in which the log has all that it does, where it lacks some of it in others.

    `where` says which rows those are, in SQL; it is empty where they are those whose every choice is in the log. `looked_at` is how many
    rows they were taken from: of a long log, a sample.
    """

    where: str
    rows: int
    looked_at: int
    lift: Estimate
    relative: Estimate | None


@dataclass(frozen=True)
class Change:
    """What one target would have changed in one place, against the logging policy or against the other policy of a comparison.

    `lift` is the difference, with an interval that holds for all targets (or all segments of one) at once, and `relative` the same as a
    share of `ran`, the mean reward of the log: 0.78 is +78 %. Where the log lacks some of what a target does, both are bounds without a
    value. `decision` is about the difference, "higher" or "lower" where nobody said whether less is better; `verdict`, whether to trust
    it, is another question, and its caveats count what the reader counts.
    """

    target: str
    segment: Segment
    rows: int
    value: Estimate
    lift: Estimate | None
    relative: Estimate | None
    ran: float
    decision: Decision
    verdict: Verdict
    elsewhere: KnownPart | None = None

    @property
    def is_bounds(self) -> bool:
        """Whether only bounds are known."""
        return not self.value.identified and all(map(math.isfinite, self.value.interval))

    @property
    def is_silent(self) -> bool:
        """Whether the log has no number for it."""
        return self.decision == "cannot say" or not (self.value.identified or self.is_bounds)

    @property
    def is_known(self) -> bool:
        """Whether the log says how large it is."""
        return self.decision != "cannot say" and math.isfinite(self.size)

    @property
    def size(self) -> float:
        """How large it is, or at least is."""
        known = self.relative or self.lift or self.value
        return known.value if known.identified else known.interval.lower

    @property
    def is_from_to(self) -> bool:
        """Whether its two ends are known, and do not contradict it.

        The change is an estimate of its own. Where weights do not average 1, the two may be far apart: then neither is to be believed,
        and one of them is enough.
        """
        if not self.value.identified or not math.isfinite(self.ran):
            return False
        apart = 0.0 if self.lift is None else abs(self.value.value - self.ran - self.lift.value)
        return self.lift is None or apart <= max(self.lift.stderr, 1e-9 * abs(self.value.value))

    @property
    def missing(self) -> Caveat | None:
        """What the log lacks of what the target does, if it lacks anything."""
        return next((caveat for caveat in self.verdict.caveats if caveat.code == MISSING), None)

    @property
    def where(self) -> str:
        """The name of the segment."""
        return segment_text(self.segment)


@dataclass(frozen=True)
class NextStep:
    """What to do next, for how many rows (0 where nobody can tell), and about which caveat."""

    kind: Literal["cure", "explore", "ask", "stay", "differ", "collect", "ask again", "test", "go on exploring", "rely"]
    rows: int = 0
    caveat: Caveat | None = None


@dataclass(frozen=True)
class Reading:
    """A result of one reward, with every number that people ask it for; whatever takes time is computed when you ask for it.

    >>> from counterpoise import evaluate
    >>> log = {"click": [1, 0, 0, 1, 0, 0] * 200, "p": [0.5] * 1200, "new": [0.7, 0.3, 0.5, 0.5, 0.4, 0.6] * 200}
    >>> reading = read(evaluate(log, reward="click", propensity="p", target="new"))
    >>> round(reading.best.relative.value, 3), reading.best.decision, reading.best.verdict.verdict
    (0.2, 'better', 'ok')
    >>> [(step.kind, step.rows) for step in reading.next_steps]
    [('test', 1600), ('go on exploring', 0)]
    """

    result: Result

    # -- what was asked ------------------------------------------------------------------------------------------------

    @property
    def primary(self) -> str:
        """The estimator behind the headline."""
        return self.result.best

    @property
    def estimators(self) -> tuple[str, ...]:
        """The estimators of the same kind as the primary one: values or differences."""
        return tuple(name for name in self.result.estimators if self.result.is_difference(name) == self.is_difference)

    @property
    def reward(self) -> str:
        """The reward's name; stored moments have forgotten it."""
        return "reward" if self.result.reward is None else self.result.reward

    @property
    def unit(self) -> str:
        """What is counted: a row, a list, or what its readers call it."""
        return self.result.unit or self.result.moments.weight.unit

    @property
    def sampled_from(self) -> int | None:
        """How many rows there were before sampling; None if they were not sampled."""
        return self.result.moments.before_sampling

    @property
    def divided_by(self) -> str | None:
        """What rewards are divided by, None if by nothing; empty where stored moments have forgotten its name."""
        question = self.result.question
        return (question and question.log.per) or "" if self.result.moments.per else None

    @cached_property
    def per_units(self) -> int:
        """How many units a value is said to be of: a hundred where rewards are shares, one elsewhere."""
        moments = self.result.moments
        low, high = float(np.fmin.reduce(moments.reward_min)), float(np.fmax.reduce(moments.reward_max))
        is_share = low >= 0.0 and high <= 1.0 and moments.weight.unit == "row" and self.divided_by is None
        return 100 if is_share else 1

    @property
    def is_difference(self) -> bool:
        """Whether the estimates shown are differences, for which 0 is the mark, and not values."""
        return self.result.is_difference(self.primary)

    @property
    def is_against_log(self) -> bool:
        """Whether targets are compared with the logging policy, and not with one another."""
        return self.result.against in ("", LOGGING)

    # -- what the log itself earned ------------------------------------------------------------------------------------

    @cached_property
    def logged(self) -> tuple[float, float]:
        """The mean reward of the log, and its standard error."""
        whole = self.result.moments[self.result.moments.targets[0]]
        if whole.n == 0:
            return math.nan, math.inf
        return float(whole.center + whole.average("s")), math.sqrt(float(whole.covariance("s", "s")) / whole.n)

    @property
    def logged_digits(self) -> tuple[float, float]:
        """The mean reward of the log, and the error to whose digits it is written everywhere: that of the lift in the headline."""
        mean, error = self.logged
        lift = None if self.is_difference else self.best.lift
        return mean, lift.stderr if lift is not None and lift.identified and math.isfinite(lift.stderr) else error

    @property
    def mark(self) -> float:
        """What estimates are compared with in a plot: no difference, or what was logged."""
        return 0.0 if self.is_difference else self.logged[0]

    # -- which target is best ------------------------------------------------------------------------------------------

    @cached_property
    def best_target(self) -> str:
        """The target with the best estimate, or worse bound where there are only bounds; the highest where nobody said which is better."""
        goods = {target: self._good_of(target) for target in self.result.targets}
        known = [target for target, good in goods.items() if not math.isnan(good)]
        return max(known, key=goods.__getitem__) if known else self.result.targets[0]

    def _good_of(self, target: str) -> float:
        """How good a target is; nan where the log cannot evaluate it."""
        return self._good(self.result.stated(target, self.primary)) if self.is_known(target) else math.nan

    def _good(self, estimate: Estimate) -> float:
        """How good an estimate is: its value, or the worse end where there are only bounds; negated where less is better."""
        sign = -1.0 if self.result.minimize else 1.0
        worse = estimate.interval.lower if sign > 0 else estimate.interval.upper
        return sign * (estimate.value if estimate.identified or not math.isfinite(worse) else worse)

    def is_known(self, target: str) -> bool:
        """Whether the log says anything about a target, or a model answers without it."""
        return self.result.is_model_only(self.primary) or self.result.verdict(target).verdict != "not identified"

    def foremost(self, limit: int, among: Sequence[str] | None = None) -> tuple[str, ...]:
        """The targets to show if there is room for so many: a few in the order they were given, many with the best first.

        The other policy of a comparison always gets a place; targets that the log cannot evaluate come last.
        """
        judged = self.result.targets
        targets = judged if among is None else tuple(among)
        if len(targets) <= min(limit, TARGETS_DRAWN):
            return targets
        goods = {target: self._good_of(target) for target in judged}
        order = {target: math.inf if math.isnan(good) else -good for target, good in goods.items()}
        return tuple(sorted(targets, key=lambda target: order.get(target, -math.inf))[:limit])

    @cached_property
    def _ranked(self) -> dict[str, Ranked]:
        """For a comparison: decisions and intervals that allow for all targets, best target first."""
        return {ranked.target: ranked for ranked in ranking_of(self.result)} if self.result.against else {}

    # -- what each target changes --------------------------------------------------------------------------------------

    @cached_property
    def best(self) -> Change:
        """The change that the answer is about: the best target that the log can evaluate."""
        return self._changes(self.best_target, len(self.result.targets), is_whole=True)[0]

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The change by every target over the whole log, best first; those that the log cannot evaluate come last.

        Where nobody said whether less is better, the highest comes first. The intervals hold for all targets at once, since the headline
        is about the best one, and the best of many equal targets looks better than it is.
        """
        many = len(self.result.targets)
        others = (target for target in self.result.targets if target != self.best_target)
        changes = {target: self._changes(target, many, is_whole=True)[0] for target in others} | {
            self.best_target: self.best
        }

        def place(change: Change) -> float:
            good = self._good(change.relative or change.lift or change.value)
            return -good if change.is_known and math.isfinite(good) else math.inf

        return tuple(sorted((changes[target] for target in self.result.targets), key=place))

    def segments(self, target: str | None = None) -> tuple[Change, ...]:
        """The change in every segment, against the logging policy there: dates in order, others from the least change to the most.

        The intervals hold for all segments of the target at once.
        """
        if not self.result.segment_rows:
            return ()
        changes = self._changes(target or self.best_target, len(self.result.segment_rows), is_whole=False)
        if all(DATE.fullmatch(change.where) for change in changes):
            return tuple(sorted(changes, key=lambda change: change.where))
        return tuple(sorted(changes, key=lambda change: (change.is_known, change.size if change.is_known else 0.0)))

    def _changes(self, target: str, among: int, *, is_whole: bool) -> list[Change]:
        """The changes by one target, over the whole log or in each of its segments, with intervals that hold for so many at once."""
        result, estimator, is_against_log = self.result, self.result.lift_of_best, self.is_against_log
        options = IntervalOptions.of(result, among=among)
        is_model_only = result.is_model_only(self.primary)  # of which no difference is a part
        has_lifts = not is_model_only and (bool(result.against) or not is_whole or self.has_lifts)
        if is_whole and self._abreast is not None:
            lifts = self._abreast if has_lifts else None
            view, places = self._abreast.view, dict[Segment, Segment]({(target, ""): None})
        else:
            log = replace(result.moments, segment_columns=()) if is_whole else result.moments  # there may be thousands
            view = View(log, (target, result.against))
            lifts = Quantities(view, {LIFT: estimator}, options) if has_lifts else None
            places = {place: place for place in (view.places if is_whole else view.places[1:])}
        ran = view.whole.center + view.whole.average("s")
        changes = []
        for there, place in places.items():
            k, verdict = view.place(there), result.verdict(target, place).of_units(self.unit)
            lift, relative = None, None
            if lifts is not None:
                lift, stated = lifts.estimate(LIFT, there), result.estimates[target, self.primary, place]
                if not result.against:
                    rewards, gap = rewards_of(result.moments, result.reward_bounds), gap_of(verdict.caveats)
                    lift = bounded(lift, estimator, rewards, gap)
                elif not stated.identified:  # a comparison knows what is missing of either policy
                    lift = stated
                relative = lifts.share(LIFT, lift, there) if is_against_log else None
            decision: Decision = "not decided"
            if verdict.verdict == "not identified" and not is_model_only:
                decision = "cannot say"
            elif place is None and self._ranked:
                said = self._ranked[target].decision
                decision = decision if said == "undecided" else said
            elif lift is not None and 0.0 not in lift.interval:
                decision = direction(is_above=lift.interval.lower > 0, minimize=result.minimize)
            changes.append(
                Change(
                    target,
                    place,
                    rows=int(view.whole.n[k]),
                    value=result.stated(target, self.primary, place),
                    lift=lift,
                    relative=relative,
                    ran=float(ran[k]),
                    decision=decision,
                    verdict=verdict,
                    elsewhere=self._elsewhere(target, verdict, options) if is_whole and is_against_log else None,
                )
            )
        return changes

    @cached_property
    def _abreast(self) -> Quantities | None:
        """The lifts of all targets over the whole log, side by side, where they can be seen so."""
        result = self.result
        if result.abreast is None or result.abreast.log is not result.moments:
            return None
        options = IntervalOptions.of(result, among=len(result.targets))
        return Quantities(result.abreast, {LIFT: result.lift_of_best}, options)

    @property
    def has_lifts(self) -> bool:
        """Whether there are lifts over the whole log: not by a model alone, nor where no interval of the result's kind exists."""
        result = self.result
        names = [name for name in (result.best, LIFT) if name in result.estimators]
        is_reported = any(ESTIMATORS.get(name) is result.lift_of_best for name in names)
        return not result.is_model_only(result.best) and (is_reported or result.interval_method.allows_differences)

    def _elsewhere(self, target: str, verdict: Verdict, options: IntervalOptions) -> KnownPart | None:
        """What is known of a target some of whose choices are missing; None if nothing is missing, or too few rows can tell."""
        lacks = next((caveat for caveat in verdict.caveats if caveat.code == MISSING), None)
        known = self.result.elsewhere.get(target)
        if lacks is None or known is None or not options.method.allows_differences:
            return None
        view = View(known, (target, ""))
        if view.carrying[0] < FEW_CARRYING:
            return None
        lifts = Quantities(view, {LIFT: ESTIMATORS[LIFT]}, options)
        lift = lifts.estimate(LIFT)
        return KnownPart(lacks.rest, known.n, int(lacks.numbers["rows"]), lift, lifts.share(LIFT, lift))

    # -- what to do ----------------------------------------------------------------------------------------------------

    @cached_property
    def next_steps(self) -> tuple[NextStep, ...]:
        """What to do next: what cures the caveats, the worst first, then what the decision asks for."""
        change, decision = self.best, self.best.decision
        caveats = [caveat for caveat in change.verdict.caveats if caveat.severity != "note"]
        if any(caveat.code == MISREAD for caveat in caveats):  # which explains weights that are off
            caveats = [each for each in caveats if each.code == MISREAD or not each.cure.startswith(CHECK_PROPENSITIES)]
        if any(caveat.code == MISSING for caveat in caveats):  # which knows what is missing
            caveats = [each for each in caveats if each.code == MISSING or each.entry.cure != EXPLORE]
        caveats.sort(key=lambda caveat: -WORDS.index(caveat.severity))
        steps = [
            NextStep("explore", self._exploration_rows, each)
            if each.entry.cure == EXPLORE
            else NextStep("cure", 0, each)
            for each in caveats
            if each.entry.cure != ROWS
        ]
        questions = [NextStep("ask", 0, caveat) for caveat in change.verdict.caveats if caveat.code == WHICH_WAY]
        if steps and decision != "worse":
            return (*steps, *questions)
        if decision == "worse":
            steps.append(NextStep("stay"))
        elif decision == "not decided" and change.lift is not None:
            steps.append(self._collect(change.lift))
        elif caveats:
            steps.append(NextStep("ask again", _rounded(self.ok_rows)))
        elif decision == "better":
            steps += [NextStep("test", self._tested_rows), NextStep("go on exploring")]
        return (*steps, *questions) or (NextStep("rely"),)

    @property
    def ok_rows(self) -> float:
        """How many rows like these it takes for the verdict on the best target to be `ok`, as in `plan`; infinite if nobody can tell."""
        if self.result.against:
            return math.inf
        return rows_until_ok(self.result.diagnostics(self.best.target), self.best.verdict)

    @property
    def _exploration_rows(self) -> int:
        r"""The rows with missing actions that would make the missing part as certain as what is known, to two digits; 0 if nobody can tell.

        Of what a target does, a share m is missing. N rows that take those actions as the target would, with rewards that vary as those
        of the log (a standard deviation of σ), add :math:`m^2 \sigma^2 / N` to the variance of its value. That is as much as what is known
        has, SE², from

        .. math:: N = (m \sigma / \mathrm{SE})^2

        on. The interval is then √2 times as wide as that of what is known, and no longer bounds.
        """
        lacks, error = self.best.missing, self.best.value.stderr
        if lacks is None or not (math.isfinite(error) and error > 0):
            return 0
        variance = float(self.result.moments[self.best.target].covariance("s", "s"))
        return _rounded(variance * (lacks.numbers["share"] / error) ** 2)

    @property
    def _tested_rows(self) -> int:
        """The rows of an A/B test that shows the change four times of five, to two digits; 0 where that is not known."""
        result, lift = self.result, self.best.lift
        # the sums of sampled rows tell errors, and not how much rewards vary
        if lift is None or not lift.identified or lift.value == 0 or result.against or self.sampled_from is not None:
            return 0
        spread = math.sqrt(float(result.moments[self.best.target].covariance("s", "s")))
        return _rounded(4 * times_to_show(lift.value, spread, result.level))

    def _collect(self, lift: Estimate) -> NextStep:
        """How many rows would show a difference of this size, with the verdict `ok`."""
        growth = times_to_show(lift.value, lift.stderr, self.result.level)
        if not math.isfinite(growth) or growth > FAR:
            return NextStep("differ")
        rows = max(growth * self.result.n, 0.0 if self.best.verdict.verdict == "ok" else self.ok_rows)
        return NextStep("collect", _rounded(rows) if rows > self.result.n else 0)


def read(result: Result) -> Reading:
    """Read a result, about its own reward."""
    return Reading(result)


def _rounded(rows: float) -> int:
    """A number of rows to two digits, rounded up; 0 where nobody can tell."""
    if not math.isfinite(rows):
        return 0
    scale = 10 ** max(math.floor(math.log10(max(rows, 1.0))) - 1, 0)
    return int(math.ceil(rows / scale) * scale)
