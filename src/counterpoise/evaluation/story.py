"""What an answer says to people: the change against what ran, whether to decide on it, whether to trust it, and what to do next."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
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
from counterpoise.display import (
    Name,
    Number,
    Phrase,
    counted,
    level_of,
    number,
    percent,
    percent_change,
    percent_span,
    sample_of,
    shortened,
)
from counterpoise.errors import Sentence, in_units, verbatim
from counterpoise.estimators import ESTIMATORS, Estimate, Estimator, gradient
from counterpoise.estimators.estimate import estimate_of
from counterpoise.evaluation.estimates import IntervalOptions, estimates, logged_range, reward_limits
from counterpoise.evaluation.ranking import Direction, direction
from counterpoise.evaluation.reading import LIFT, Reading, read
from counterpoise.evaluation.support import bounded, gap_of, rewards_of
from counterpoise.evaluation.view import View
from counterpoise.intervals.jackknife import jackknife_error
from counterpoise.intervals.method import UNKNOWN, normal_quantile
from counterpoise.log.question import LOGGING
from counterpoise.moments import Floats, Moments
from counterpoise.moments.log_moments import Segment, segment_text

if TYPE_CHECKING:
    from counterpoise.evaluation.result import Result

Decision = Literal[Direction, "not decided", "cannot say"]
Part = str | Name | Number

DECIDED = ("better", "worse", "higher", "lower")
SURE = 5.0  # errors above 0 of what ran, from which a share of it has an error that the delta method knows
POWER = 0.8  # of the test that a next step proposes
NEARLY_ALL, ALL = 0.9, 0.999  # of what is missing
FAR = 1000  # times the rows of this log: nobody will collect so many
DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([ T]\d{2}:\d{2}.*)?)?")


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
class AnswerParts:
    """The sentence that answers, in the parts that a page sets apart: about whom, the change, how certain it is, and the rest."""

    who: Sequence[Part]
    change: Sequence[Part]
    certainty: Sequence[Part] = ()
    rest: Sequence[Part] = ()


@dataclass(frozen=True)
class Change:
    """What one target would have changed in one place, against what ran or against the other policy of a comparison.

    `lift` is the difference, with an interval that holds for all targets (or all segments of one) at once, and `relative` the same as a
    share of what ran: 0.78 is +78 %. Where the log lacks some of what a target does, both are bounds without a value. `decision` is about
    the difference, "higher" or "lower" where nobody said whether less is better; `verdict`, whether to trust it, is another question.
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
    def points(self) -> float | None:
        """The error to whose digits the share is written everywhere; bounds have their own."""
        return None if self.relative is None else points_of(self.relative)

    @property
    def span(self) -> str:
        """The interval of the share, or of the difference where there is no share, as people read it; empty where there is neither."""
        if self.relative is not None:
            low, high = self.relative.interval
            return percent_span(low, high, self.points)
        if self.lift is None or not any(map(math.isfinite, self.lift.interval)):
            return ""
        lower, upper = (Number(end, self.lift.stderr, is_signed=True) for end in self.lift.interval)
        return f"{lower} to {upper}"

    @property
    def where(self) -> str:
        """The segment as people read it."""
        return segment_text(self.segment)


@dataclass(frozen=True)
class Story:
    """A result of one reward, as people ask about it; see `story_of`."""

    reading: Reading

    # -- what was asked ------------------------------------------------------------------------------------------------

    @property
    def result(self) -> Result:
        """What it is about."""
        return self.reading.result

    @property
    def reward(self) -> str:
        """The reward's name; stored moments have forgotten it."""
        return "reward" if self.result.reward is None else self.result.reward

    @property
    def log(self) -> str:
        """Where the rows are, in a word or two; empty for arrays and frames, which have no name."""
        name = "" if self.result.question is None else self.result.question.log.short_name
        return f"{name} and earlier logs" if name and self.result.earlier_rows else name

    @property
    def unit(self) -> str:
        """What is counted: a row, a list, or what its readers call it."""
        return self.reading.unit

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.result.n

    @cached_property
    def per(self) -> int:
        """How many units a value is said to be of: a hundred where rewards are shares, one elsewhere."""
        moments = self.result.moments
        low, high = float(np.fmin.reduce(moments.reward_min)), float(np.fmax.reduce(moments.reward_max))
        is_share = low >= 0.0 and high <= 1.0 and moments.weight.unit == "row" and not moments.per
        return 100 if is_share else 1

    @property
    def divisor(self) -> str:
        """What a value is of one of: a unit, or what the reward is divided by; stored moments have forgotten its name."""
        question = self.result.question
        if not self.result.moments.per:
            return self.unit
        return shortened(question.log.per) if question is not None and question.log.per else "what it is divided by"

    @property
    def rival(self) -> str:
        """What targets are compared with, in words."""
        return "what ran" if self.reading.against in ("", LOGGING) else shortened(self.reading.against)

    def asked(self) -> Phrase:
        """What was asked, of which log."""
        targets = self.result.targets
        who: list[Part] = [Name(targets[0])] if len(targets) == 1 else [f"each of {len(targets):,} policies"]
        parts: list[Part] = [Name(self.reward), f" per {self.divisor}, had ", *who, f" run instead of {self.rival}"]
        parts += [" · less is better"] if self.result.minimize else []
        more = [Name(self.log)] if self.log else []
        labels = self.result.moments.labels
        rows = sample_of(self.rows, self.unit, self.result.rows_before)
        rows += "" if labels is None else f", {labels:,} of them labeled"
        return Phrase([*parts, *(part for name in more for part in (" · ", name)), f" · {rows}"])

    # -- what is answered ----------------------------------------------------------------------------------------------

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The change by every target over the whole log, best first; those that the log cannot judge come last.

        Where nobody said whether less is better, the highest comes first.
        """
        level = 1 - (1 - self.result.level) / len(self.result.targets)
        changes = [self._changes(target, level, is_whole=True)[0] for target in self.result.targets]
        return tuple(sorted(changes, key=self._order))

    def _order(self, change: Change) -> tuple[bool, float]:
        """The best change first, and those that say nothing last."""
        good = self.reading.good(change.relative or change.lift or change.value)
        return (False, -good) if is_known(change) and math.isfinite(good) else (True, 0.0)

    @cached_property
    def best(self) -> Change:
        """The change that the answer is about: the best target that the log can judge."""
        named = self.reading.best()
        return next(change for change in self.changes if change.target == named)

    def segments(self, target: str | None = None) -> tuple[Change, ...]:
        """The change in every segment, against what ran there: dates in order, others from the least change to the most.

        The intervals hold for all segments of the target at once.
        """
        if not self.result.segment_rows:
            return ()
        level = 1 - (1 - self.result.level) / len(self.result.segment_rows)
        changes = self._changes(self.best.target if target is None else target, level, is_whole=False)
        if all(DATE.fullmatch(change.where) for change in changes):
            return tuple(sorted(changes, key=lambda change: change.where))
        return tuple(
            sorted(changes, key=lambda change: (is_known(change), size_of(change) if is_known(change) else 0.0))
        )

    def _changes(self, target: str, level: float, *, is_whole: bool) -> list[Change]:
        """The changes by one target: over the whole log, or in each of its segments."""
        result, estimator = self.result, self.reading.lift_estimator
        contrast = (target, result.against)
        log = replace(result.moments, segment_columns=()) if is_whole else result.moments
        view = View(log, contrast)
        places = view.places if is_whole else view.places[1:]
        is_model_only = result.is_model_only(self.reading.primary)  # of which no difference is a part
        lifts = None if is_model_only else self._lifts(view, estimator, level)
        shares = None if lifts is None else _shares(view, estimator, result.reward_bounds)
        ran = view.whole.center + view.whole.average("s")
        changes = []
        for place in places:
            k, verdict = view.place(place), result.verdict(target, place)
            value = result.stated(target, self.reading.primary, place)
            lift = None if lifts is None else self._lift(target, place, lifts(place), estimator)
            rows, mean = int(view.whole.n[k]), float(ran[k])
            relative = None if lift is None or shares is None or self.rival != "what ran" else shares(lift, k)
            decision = self._decision(target, lift, verdict, place)
            elsewhere = self._elsewhere(target, verdict, level) if is_whole and self.rival == "what ran" else None
            changes.append(Change(target, place, rows, value, lift, relative, mean, decision, verdict, elsewhere))
        return changes

    def _elsewhere(self, target: str, verdict: Verdict, level: float) -> KnownPart | None:
        """What is known of a target some of whose choices are missing; None if nothing is missing, or too few rows can tell."""
        result, lacks = self.result, [caveat for caveat in verdict.caveats if caveat.code == MISSING]
        known = result.elsewhere.get(target)
        if not lacks or known is None or not result.interval_method.allows_differences:
            return None
        view = View(known, (target, ""))
        if view.carrying[0] < FEW_CARRYING:
            return None
        options = IntervalOptions(level, result.interval_method, result.reward_bounds)
        lift = estimates(view, {LIFT: ESTIMATORS[LIFT]}, options)[target, LIFT, None]
        looked_at = int(lacks[0].numbers["rows"])
        share = _shares(view, ESTIMATORS[LIFT], result.reward_bounds)(lift, 0)
        return KnownPart(lacks[0].rest, known.n, looked_at, lift, share)

    def _lifts(self, view: View, estimator: Estimator, level: float) -> Callable[[Segment], Estimate] | None:
        """The differences of a view by place; None where no interval of the result's kind exists."""
        result = self.result
        is_whole = not view.log.segment_columns
        if not result.against and is_whole and self.reading.lift(view.contrast[0]) is None:
            return None
        options = IntervalOptions(level, result.interval_method, result.reward_bounds)
        made = estimates(view, {LIFT: estimator}, options)
        return lambda place: made[view.contrast[0], LIFT, place]

    def _lift(self, target: str, place: Segment, lift: Estimate, estimator: Estimator) -> Estimate:
        """A difference, as bounds where the log lacks some of what the target does."""
        result = self.result
        known = result.estimates[target, self.reading.primary, place]
        if result.against:  # whose differences know what is missing of either policy
            return known if not known.identified else lift
        gap = gap_of(result.verdict(target, place).caveats)
        return bounded(lift, estimator, rewards_of(result.moments, result.reward_bounds), gap)

    def _decision(self, target: str, lift: Estimate | None, verdict: Verdict, place: Segment) -> Decision:
        if verdict.verdict == "not identified" and not self.result.is_model_only(self.reading.primary):
            return "cannot say"
        if place is None and self.reading.ranked:
            decided = self.reading.ranked[target].decision
            return "not decided" if decided == "undecided" else decided
        if lift is None or 0.0 in lift.interval:
            return "not decided"
        return direction(is_above=lift.interval.lower > 0, minimize=self.result.minimize)

    def sentence(self) -> Phrase:
        """The answer in one sentence and a half: the change, from what to what, whether it is decided and can be relied on."""
        said = self.answer
        return Phrase([*said.who, *said.change, *said.certainty, *said.rest])

    @cached_property
    def answer(self) -> AnswerParts:
        """The sentence, in its parts."""
        change, many = self.best, len(self.result.targets)
        judged = sum(each.decision != "cannot say" for each in self.changes)
        if change.is_silent:
            which: Part = Name(change.target) if many == 1 else f"any of the {many:,} policies"
            log = [f"This log of {counted(self.rows, self.unit)} cannot say how ", which]
            return AnswerParts([], [*log, f" compares with {self.rival}."])
        best = "highest" if self.result.minimize is None else "best"
        among = f", the {best} of {many:,}"
        if judged < many:
            among = f", the {'only one' if judged == 1 else f'{best} of the {judged:,}'} of {many:,} that this log can judge"
        who: list[Part] = [Name(change.target), "" if many == 1 else among, ": "]
        size, certainty = self._size(change)
        start, trust = self._from(change), self._trust(change)
        # the sign belongs to what comes before it, so that no line of a page begins with one
        sign, rest = (",", [*start, ". ", *trust]) if start else (".", [" ", *trust])
        return (
            AnswerParts(who, size, [*certainty, sign], rest) if certainty else AnswerParts(who, [*size, sign], [], rest)
        )

    def _size(self, change: Change) -> tuple[list[Part], list[Part]]:
        """How large a change is, and how certain: in percent where that is known, else as a difference, else as a value."""
        reward, level = Name(self.reward), level_of(self.result.level)
        if change.relative is not None:
            if change.is_bounds:
                lower, upper = (percent_change(end, change.points) for end in change.relative.interval)
                return [f"between {lower} and {upper} ", reward], []
            return [f"{percent_change(change.relative.value, change.points)} ", reward], [f" ({change.span})"]
        if change.lift is not None:
            lower_end, upper_end = (Number(end, change.lift.stderr, is_signed=True) for end in change.lift.interval)
            if not change.lift.identified:
                return ["between ", lower_end, " and ", upper_end, " ", reward, f" per {self.divisor}"], []
            size = Number(change.lift.value, change.lift.stderr, is_signed=True)
            return [size, " ", reward, f" per {self.divisor}"], [" (", lower_end, " to ", upper_end, ")"]
        ends: list[Part] = [Number(end, change.value.stderr) for end in change.value.interval]
        alone = ", if the reward model is right: this rests on the model alone"
        said = alone if self.result.is_model_only(self.reading.primary) else ""
        value = Number(change.value.value, change.value.stderr)
        return [value, " ", reward, f" per {self.divisor}"], [
            f" ({level} interval: ",
            ends[0],
            " to ",
            ends[1],
            f"){said}",
        ]

    def known_part(self) -> Phrase | None:
        """What the answer's target earns where the log has all that it does, in a sentence; None where that is the whole log."""
        known = self.best.elsewhere
        if known is None or not self.best.is_bounds:
            return None
        share = percent(known.rows / known.looked_at)
        where = (
            "What it earns elsewhere"
            if known.where
            else f"Where all of its choices are in the log ({share} of {self.unit}s)"
        )
        sample = f", by a sample of {counted(known.rows, self.unit)}" if known.looked_at < self.rows else ""
        if known.relative is not None:
            points, (low, high) = points_of(known.relative), known.relative.interval
            size = percent_change(known.relative.value, points)
            return Phrase([f"{where}: {size} ({percent_span(low, high, points)}{sample})."])
        size_cell, *ends = (
            Number(x, known.lift.stderr, is_signed=True) for x in (known.lift.value, *known.lift.interval)
        )
        return Phrase([f"{where}: ", size_cell, f" per {self.divisor} (", ends[0], " to ", ends[1], f"{sample})."])

    def _from(self, change: Change) -> list[Part]:
        """From what to what, where a value is known and does not contradict the change.

        The change is an estimate of its own. Where weights do not average 1, the two may be far apart: then neither is to be believed,
        and one of them is enough.
        """
        if not change.value.identified or self.reading.is_difference or not math.isfinite(change.ran):
            return []
        apart = 0.0 if change.lift is None else abs(change.value.value - change.ran - change.lift.value)
        if change.lift is not None and apart > max(change.lift.stderr, 1e-9 * abs(change.value.value)):
            return []
        ran, value = self.amount(change.ran, _error(change)), self.amount(change.value.value, change.value.stderr)
        return [" from ", ran, " to ", value, f" per {self.units}"]

    @property
    def units(self) -> str:
        """What values are of, in words: row, or 100 rows."""
        return self.divisor if self.per == 1 else f"{self.per} {self.unit}s"

    def amount(self, value: float, error: float) -> Number:
        """A value of so many units as `units` says, to the digits of its error."""
        written = number(value, error)  # rounded before it is multiplied, so that a tie falls the same way everywhere
        is_plain = math.isfinite(value) and "e" not in written
        rounded = float(written.replace(",", "").replace("−", "-")) if is_plain else value
        return Number(self.per * rounded, self.per * error)

    def _trust(self, change: Change) -> list[Part]:
        """Whether a change is decided, and whether to believe it: two things."""
        is_ok = change.verdict.verdict == "ok"
        if change.is_bounds:
            missing = _missing(change)
            is_decided = change.decision in DECIDED
            decided = f". Whatever they earn, it is {change.decision} than {self.rival}" if is_decided else ""
            return [f"{missing}{decided}."]
        if change.decision == "not decided":
            end = "." if is_ok else ", and there is a caution to read first."
            beats = "is higher or lower than" if self.result.minimize is None else "beats"
            return [f"The log does not show whether it {beats} {self.rival}{end}"]
        rely = (
            ", and you can rely on it (ok)."
            if is_ok
            else f" according to this log, but read the {change.verdict.verdict} first."
        )
        return [f"{change.decision.capitalize()} than {self.rival}{rely}"]

    # -- what to do ----------------------------------------------------------------------------------------------------

    def next_steps(self) -> list[str]:
        """What to do next: what cures the caveats, the worst first, then what the decision asks for."""
        change = self.best
        caveats = [caveat for caveat in change.verdict.caveats if caveat.severity != "note"]
        codes = {caveat.code for caveat in caveats}
        if MISREAD in codes:  # which explains weights that are off
            caveats = [
                caveat for caveat in caveats if caveat.code == MISREAD or not caveat.cure.startswith(CHECK_PROPENSITIES)
            ]
        if MISSING in codes:  # which knows what is missing
            caveats = [caveat for caveat in caveats if caveat.code == MISSING or caveat.cure != EXPLORE]
        caveats.sort(key=lambda caveat: -WORDS.index(caveat.severity))
        steps = [
            self._explore(change, caveat) if caveat.cure == EXPLORE else in_units(caveat.cure, self.unit)
            for caveat in caveats
            if caveat.cure != ROWS
        ]
        questions = [caveat.reason for caveat in change.verdict.caveats if caveat.code == WHICH_WAY]
        if steps and change.decision != "worse":
            return list(dict.fromkeys([*steps, *questions]))
        if change.decision == "worse":
            steps.append(f"Keep {self.rival}.")
        elif change.decision == "not decided" and change.lift is not None:
            steps.append(self._collect(change, change.lift))
        elif caveats:
            needed = self.ok_rows(change)
            known = f"about {_rounded(needed):,} {self.unit}s" if math.isfinite(needed) else f"more {self.unit}s"
            steps.append(f"Collect {known}, and ask again.")
        elif change.decision == "better":
            steps += self._test(change)
        steps += questions
        return list(dict.fromkeys(steps)) or [f"Collect more {self.unit}s before you rely on it."]

    def ok_rows(self, change: Change) -> float:
        """How many rows like these it takes for the verdict to be `ok`, as in `plan`; infinite if that is not known."""
        if self.reading.is_comparison:
            return math.inf
        return rows_until_ok(self.result.diagnostics(change.target), change.verdict)

    def _explore(self, change: Change, missing: Caveat) -> str:
        """What to let the running policy try, where, and for how many rows; or how to ask about the rest."""
        others = int(missing.numbers.get("actions", 1)) - 1
        more = f" and {counted(others, 'more missing action')}" if others else ""
        what = f"{verbatim(repr(missing.action))}{more}" if missing.action else "the actions that are missing"
        where = f" where {verbatim(missing.where)}" if missing.where else " now and then"
        needed = self.exploration_rows(change)
        enough = f" (about {needed:,} {self.unit}s are enough)" if needed else ""
        rest = f", or ask about the rest with `where={missing.rest!r}`" if missing.rest else ""
        return Sentence(f"Let what runs try {what}{where}{enough}{rest}.")

    def exploration_rows(self, change: Change) -> int:
        r"""The rows with missing actions that would make the missing part as certain as what is known, to two digits; 0 if nobody can tell.

        Of what a target does, a share m is missing. N rows that take those actions as the target would, with rewards that vary as those
        of the log (a standard deviation of σ), add :math:`m^2 \sigma^2 / N` to the variance of its value. That is as much as what is known
        has, SE², from

        .. math:: N = (m \sigma / \mathrm{SE})^2

        on. The interval is then √2 times as wide as that of what is known, and no longer bounds.
        """
        lacks = [caveat for caveat in change.verdict.caveats if caveat.code == MISSING]
        error = change.value.stderr
        if not lacks or not (math.isfinite(error) and error > 0):
            return 0
        variance = float(self.result.moments[change.target].covariance("s", "s"))
        return _rounded(variance * (lacks[0].numbers["share"] / error) ** 2)

    def _test(self, change: Change) -> list[str]:
        """How to confirm a gain: an A/B test of this size, and a log that can judge the next policy."""
        needed = self._tested_rows(change)
        size = (
            f": about {needed:,} {self.unit}s, half of them with it, would confirm a change of this size"
            if needed
            else ""
        )
        return [
            f"Test it live, and log its propensities{size}.",
            "Keep a little exploration, or the next log cannot judge its successor.",
        ]

    def _tested_rows(self, change: Change) -> int:
        """The rows of an A/B test that shows the change four times of five, to two digits; 0 where that is not known."""
        if change.lift is None or not change.lift.identified or change.lift.value == 0 or self.reading.is_comparison:
            return 0
        if self.result.rows_before is not None:  # the sums of sampled rows tell errors, and not how much rewards vary
            return 0
        moments = self.result.moments[change.target]
        variance = float(moments.covariance("s", "s"))
        reach = normal_quantile(self.result.level) + normal_quantile(2 * POWER - 1)
        return _rounded(4 * variance * (reach / change.lift.value) ** 2)

    def _collect(self, change: Change, lift: Estimate) -> str:
        """How many rows would show a difference of this size, with the verdict `ok`."""
        reach = normal_quantile(self.result.level) + normal_quantile(2 * POWER - 1)
        growth = (reach * lift.stderr / lift.value) ** 2 if lift.value else math.inf
        if not math.isfinite(growth) or growth > FAR:
            earn = "earn" if self.result.minimize is False else "come to"
            return f"Look for a policy that differs more: this one and {self.rival} {earn} about the same."
        rows = max(growth * self.rows, 0.0 if change.verdict.verdict == "ok" else self.ok_rows(change))
        if rows <= self.rows or not math.isfinite(rows):
            return f"Collect more {self.unit}s before you decide."
        return f"Collect about {_rounded(rows):,} {self.unit}s: that many would show a difference of this size."


def story_of(result: Result) -> Story:
    """The story of a result, about its own reward.

    >>> from counterpoise import evaluate
    >>> log = {"click": [1, 0, 0, 1, 0, 0] * 200, "p": [0.5] * 1200, "new": [0.7, 0.3, 0.5, 0.5, 0.4, 0.6] * 200}
    >>> story = story_of(evaluate(log, reward="click", propensity="p", target="new").per("visit"))
    >>> print(story.asked())
    click per visit, had new run instead of what ran · 1,200 visits
    >>> print(str(story.sentence()).replace("\N{NO-BREAK SPACE}", " "))
    new: +20 % click (+18 to +22 %), from 33.33 to 40.0 per 100 visits. Better than what ran, and you can rely on it (ok).
    """
    return Story(read(result))


def _missing(change: Change) -> str:
    """How much of what a target does the log lacks, and where."""
    lacks = [caveat for caveat in change.verdict.caveats if caveat.code == MISSING]
    if not lacks:
        return "Some of it is not in this log"
    share, there = lacks[0].numbers["share"], lacks[0].numbers.get("share_there", 0.0)
    most = "all" if there > ALL else "nearly all" if there >= NEARLY_ALL else "most"
    where = f", {most} of them where {lacks[0].where}" if lacks[0].where else ""
    return f"{percent(share)} of its choices are not in this log{where}"


def points_of(share: Estimate) -> float:
    """The error to whose digits a share of what ran is written; bounds have their own."""
    lower, upper = share.interval
    return share.stderr if share.identified and math.isfinite(share.stderr) else (upper - lower) / 10


def size_of(change: Change) -> float:
    """How large a change is, or at least is."""
    known = change.relative or change.lift or change.value
    return known.value if known.identified else known.interval.lower


def is_known(change: Change) -> bool:
    """Whether the log says how large a change is."""
    return change.decision != "cannot say" and math.isfinite(size_of(change))


def _error(change: Change) -> float:
    """The error to whose digits what ran is written: that of the difference."""
    lift = change.lift
    return lift.stderr if lift is not None and math.isfinite(lift.stderr) and lift.stderr > 0 else change.value.stderr


def _rounded(rows: float) -> int:
    """A number of rows to two digits, rounded up."""
    scale = 10 ** max(math.floor(math.log10(max(rows, 1.0))) - 1, 0)
    return int(math.ceil(rows / scale) * scale)


def _shares(
    view: View, estimator: Estimator, reward_bounds: tuple[float, float] | None
) -> Callable[[Estimate, int], Estimate | None]:
    r"""What makes a difference in one place a share of what ran there, with the error of both.

    .. math:: \operatorname{Var}(\hat\Delta / \bar r) \approx \operatorname{Var}(\hat\Delta - \rho \bar r) / \bar r^2, \qquad
        \rho = \hat\Delta / \bar r

    The interval of the difference is stretched by what that adds to its error, so that it keeps its kind and its level. Where rewards have
    bounds, it ends where they do: nobody earns less than nothing.
    """
    rewards = reward_limits(view, reward_bounds)
    ran = view.whole.center + view.whole.average("s")
    with np.errstate(invalid="ignore", over="ignore"):  # a place all of whose rows are in one group has no others
        alone, ratio = (_spread(view, estimator, is_share=is_share) for is_share in (False, True))
        factor = np.where(alone > 0, ratio * np.abs(ran) / np.where(alone > 0, alone, 1.0), 1.0)
        error = _spread(view, None, is_share=False)

    def share(lift: Estimate, k: int) -> Estimate | None:
        mean, stretch = float(ran[k]), float(factor[k])
        if not mean > SURE * float(error[k]) or not math.isfinite(stretch):
            return None
        middle = lift.value if lift.identified else math.nan
        ends = lift.interval
        if middle in ends:
            lower, upper = middle - stretch * (middle - ends.lower), middle + stretch * (ends.upper - middle)
        else:  # bounds, or an estimate outside of what is possible
            lower, upper = ends
        limits = UNKNOWN
        if rewards is not None:
            least, most = (end if end > 0 else mean for end in logged_range(view, k, rewards))
            limits = min(rewards[0] / least, rewards[0] / most) - 1, max(rewards[1] / least, rewards[1] / most) - 1
        interval = replace(ends, lower=lower / mean, upper=upper / mean, limits=limits)
        return replace(
            lift, name="relative", value=middle / mean, stderr=stretch * lift.stderr / mean, interval=interval
        )

    return share


def _spread(view: View, estimator: Estimator | None, *, is_share: bool) -> Floats:
    """The error of a difference, of it as a share of what ran, or (without an estimator) of what ran, in every place."""

    def value(moments: Moments) -> Estimate:
        ran = np.asarray(moments.center + moments.average("s"))
        if estimator is None:
            return estimate_of("ran", ran, 0.0, moments.n, baseline=0.0)
        made = estimator(moments)
        share = np.asarray(made.value) / np.where(ran == 0, np.nan, ran)
        return estimate_of("share", share, 0.0, moments.n, baseline=0.0) if is_share else made

    if view.is_clustered:
        without = np.nan_to_num(np.asarray(value(view.others).value))
        return jackknife_error(without, view.groups.n)[0]
    slopes = gradient(value, view.whole)
    square = np.einsum("...i,...ij,...j->...", slopes, view.whole.scatter, slopes)
    return np.asarray(np.sqrt(np.maximum(square, 0.0)) / np.maximum(np.asarray(view.whole.n), 1))
