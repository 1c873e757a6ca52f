"""From moments to an answer: the estimates, diagnostics and verdicts of every target, reward by reward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from counterpoise.diagnostics import Caveat, Diagnostics, Verdict, judge, judge_difference, resting_on_model
from counterpoise.diagnostics.verdict import BY_ACTION, MISSING, below_one, looked_at, which_way
from counterpoise.errors import OptionError
from counterpoise.estimators import Estimate, Estimator
from counterpoise.evaluation.checks import RewardMoments
from counterpoise.evaluation.choose import check_differences, choose, differences_of
from counterpoise.evaluation.estimates import (
    EstimateKey,
    IntervalOptions,
    OnDemand,
    Quantities,
    diagnosis,
    doubtful_baselines,
    doubtful_labels,
)
from counterpoise.evaluation.ladder import Climbed, climb
from counterpoise.evaluation.result import Comparison, Result
from counterpoise.evaluation.support import rewards_of, with_bounds
from counterpoise.evaluation.view import Abreast, View
from counterpoise.log.kinds import kinds_in
from counterpoise.log.parts import is_minimized
from counterpoise.log.question import Question
from counterpoise.moments.log_moments import Contrast, LogMoments, Segment

SomeResult = TypeVar("SomeResult", bound=Result)
TargetPlace = tuple[str, Segment]  # a target, and the whole log or a segment

NOTHING = "not identified"  # a verdict to which only checks of rows add anything
SIEVE = 2.0  # a mean weight must be this many standard errors below 1 to be clearly below it


def evaluation_of(whole: RewardMoments, options: Sequence[IntervalOptions], names: tuple[str, ...]) -> Result:
    """The answer of `evaluate` from the moments of one reward, or of several, the first of which gets the headline."""
    answers = []
    for log, how, reward in zip(whole.moments, options, whole.rewards, strict=True):
        contrasts = [contrast for contrast in log.moments if not contrast[1]]
        columns, groups = log.moments[contrasts[0]].columns, log.moments[contrasts[0]].shape[1]
        estimators = choose(names, columns, groups, how.method, mean_is_one=log.weight.mean_is_one)
        answers.append(Result(**Judgment(log, how, whole, reward, contrasts, estimators).parts()))
    return _together(answers)


def comparison_of(whole: RewardMoments, options: Sequence[IntervalOptions], against: object = None) -> Comparison:
    """The answer of `compare` from the moments of one reward or several; `against` is checked where it is named."""
    check_differences(options[0].method)
    answers = []
    for log, how, reward in zip(whole.moments, options, whole.rewards, strict=True):
        contrasts = [contrast for contrast in log.moments if contrast[1]]
        if not contrasts:
            raise OptionError("these moments are of single policies; compare needs those of an earlier compare.")
        other = contrasts[0][1]
        if against not in (None, other):
            raise OptionError(f"these moments are of a comparison against {other!r}, not {against!r}.")
        estimators = differences_of(log.moments[contrasts[0]].columns)
        judgment = Judgment(log, how, whole, reward, contrasts, estimators)
        answers.append(Comparison(**judgment.parts(), against=other))
    return _together(answers)


def _together(answers: Sequence[SomeResult]) -> SomeResult:
    """The first answer, with those of the other rewards in it."""
    first, *others = answers
    return replace(first, others={str(answer.reward): answer for answer in others}) if others else first


@dataclass(frozen=True, eq=False)
class Judgment:
    """What the moments of one reward say about every target: of values, or of differences from the same policy.

    What all targets and places share is computed once; an estimate and a verdict, when someone asks for them.
    """

    log: LogMoments
    options: IntervalOptions
    whole: RewardMoments
    reward: str | None
    contrasts: Sequence[Contrast]
    estimators: Mapping[str, Estimator]

    def __post_init__(self) -> None:
        """Check that the method can make intervals from these moments; one that needs sums of its own may refuse a first estimate, too."""
        log, name, method = self.log, self.options.method.name, self.options.method
        stack = next(iter(log.moments.values()))
        if log.estimated is not None and method.needs_known_propensities:
            raise OptionError(
                f"the {name} interval holds at any size because the weights are known, and these rest on a propensity model.",
                do="Pass `interval='student'`.",
            )
        if method.needs_groups and stack.shape[1] < 2:
            raise OptionError(
                f"these moments have no groups, and the {name} interval needs them.",
                do="Evaluate the log with `groups=100` or `cluster=`.",
            )
        if self.abreast is None:
            for target in self.quantities:
                _ = self.quantities[target]
        for target, _ in self.contrasts if method.smoothings else ():
            self._made(target, next(iter(self.estimators)), None)

    def parts(self) -> dict[str, Any]:
        """What a result is made of."""
        question, climbed, whole = self.whole.question, self.climbed, self.whole
        k = whole.rewards.index(self.reward)
        return {
            "moments": self.log if climbed is None else climbed.moments,
            "abreast": None if self.abreast is None else self.abreast.view,
            "estimates": OnDemand(lambda: self._keys, self.estimate),
            "all_diagnostics": self.diagnoses,
            "verdicts": OnDemand(self._bounded, self.verdict),
            "level": self.options.level,
            "interval_method": self.options.method,
            "reward_bounds": self.options.reward_bounds,
            "reward": self.reward,
            "minimize": self.minimize,
            "question": question,
            "earlier_rows": whole.earlier_rows,
            # the moments of the rows in which the log has all that a target does, where it lacks some in others
            "elsewhere": {str(caveat.target): caveat.known[k] for caveat in whole.of_rows if caveat.known},
            "ladders": {} if climbed is None else {pair[0]: climbed.ladders[pair] for pair in self.contrasts},
            "model": getattr(question and question.model, "quality", None),
            "propensity_model": getattr(question and question.propensity_model, "quality", None),
        }

    # -- what all targets and places share -----------------------------------------------------------------------------

    @property
    def other(self) -> str:
        """The policy that differences are from; empty for values."""
        return self.contrasts[0][1]

    @property
    def minimize(self) -> bool | None:
        """Whether less of the reward is better, if anybody knows."""
        return is_minimized(self.whole.minimize, self.reward)

    @cached_property
    def climbed(self) -> Climbed | None:
        """The weights that every contrast chose from a ladder."""
        if not self.log.ladder:
            return None
        return climb(self.log, self.options, None if self.other else self.estimators)

    @cached_property
    def views(self) -> dict[Contrast, View]:
        """Every contrast, with the weight that it chose."""
        climbed = self.climbed
        return {pair: View(self.log, pair) if climbed is None else climbed.view(pair) for pair in self.log.moments}

    @cached_property
    def abreast(self) -> Quantities | None:
        """What is estimated about all targets over the whole log, side by side; None where each needs a view of its own."""
        view = None if self.other or self.climbed is not None else Abreast.of(self.log)
        return None if view is None else Quantities(view, self.estimators, self.options)

    @cached_property
    def quantities(self) -> Mapping[str, Quantities]:
        """What is estimated about every target."""
        views = {pair[0]: self.views[pair] for pair in self.contrasts}
        return OnDemand(views, lambda target: Quantities(views[target], self.estimators, self.options))

    @property
    def _keys(self) -> list[EstimateKey]:
        """Target by target, place by place, estimator by estimator: how a reader scans the table."""
        pairs = ((pair[0], place) for pair in self.contrasts for place in self.views[pair].places)
        return [(target, name, place) for target, place in pairs for name in self.estimators]

    @cached_property
    def policies(self) -> dict[str, View]:
        """Every policy with weights of its own."""
        return {name: view for (name, rival), view in self.views.items() if not rival}

    @cached_property
    def diagnoses(self) -> Mapping[TargetPlace, Diagnostics]:
        """The diagnostics of every policy and place."""

        def made(key: TargetPlace) -> Diagnostics:
            name, place = key
            if place is None and self.abreast is not None:
                return diagnosis(self.abreast.view, (name, ""))
            return diagnosis(self.policies[name], place)

        return OnDemand(lambda: ((name, place) for name, view in self.policies.items() for place in view.places), made)

    @cached_property
    def premises(self) -> list[Caveat]:
        """What every estimate of the whole log rests on, whatever its weights are."""
        log, method = self.log, self.options.method
        caveats = [] if log.estimated is None else [resting_on_model(log.estimated.model)]
        return caveats + ([looked_at(log.looks, method.name)] if log.looks > 1 and not method.is_anytime else [])

    @cached_property
    def findings(self) -> list[Caveat]:
        """What is wrong with the rows of the whole log, as their kinds find."""
        first = self.contrasts[0]
        kinds = kinds_in(self.log.moments[first].columns)
        return [Caveat(**vars(finding)) for kind in kinds for finding in kind.findings(self.views[first])]

    @cached_property
    def doubts(self) -> dict[str, tuple[Mapping[Segment, list[Caveat]], ...]]:
        """What is wrong with a target's baselines and labels, by place."""
        views = {pair[0]: self.views[pair] for pair in self.contrasts}
        return {name: (doubtful_baselines(view), doubtful_labels(view)) for name, view in views.items()}

    # -- verdicts ------------------------------------------------------------------------------------------------------

    def verdict(self, key: TargetPlace) -> Verdict:
        """The verdict on a target in a place, which knows what actions the log lacks."""
        return self._bounded[key][0]

    def _verdict(self, target: str, place: Segment) -> Verdict:
        """The same as if the log had all actions."""
        contrast, climbed = (target, self.other), self.climbed
        judged = self._weighed(target, place)
        if self.options.reward_bounds is not None:  # there is no need to ask for them
            kept = (replace(caveat, do="") if caveat.code == "equal-rewards" else caveat for caveat in judged.caveats)
            judged = Verdict(tuple(kept))
        premises = [*self.premises, *(self.findings if place is None else [])]
        if climbed is not None:
            judged = judged if judged.verdict == NOTHING else climbed.not_identified(contrast, place) or judged
            premises.append(climbed.caveat(contrast))
        checks = self.whole.caveats(contrast, self.reward, place) if self.whole.of_rows else ()
        if judged.verdict != NOTHING:
            doubts = [caveat for doubt in self.doubts[target] for caveat in doubt[place]]
            if any(caveat.code == BY_ACTION for caveat in checks):  # which says by which action
                doubts = [caveat for caveat in doubts if caveat.code != BY_ACTION]
            mine = (*judged.caveats, *doubts, *_of_groups(self.whole.question, contrast))
            # a segment repeats a general caveat only if there is nothing else to say
            judged = Verdict((*premises, *mine) if place is None else mine or tuple(premises[-1:]))
        is_unsaid = self.minimize is None and place is None and judged.verdict != NOTHING
        unsaid = [which_way(str(self.reward))] if is_unsaid else []
        return judged.with_caveats([*(caveat for caveat in checks if caveat.code != MISSING), *unsaid])

    def _weighed(self, target: str, place: Segment) -> Verdict:
        """What the weights and rewards of a value or of a difference say."""
        if not self.other:
            return judge(self.diagnoses[target, place])
        # the logging policy has no weights to judge
        known = {name: self.diagnoses[name, place] for name in (target, self.other) if name in self.policies}
        view = self.views[target, self.other]
        k = view.place(place)
        return judge_difference(known, float(view.carrying[k]), float(view.squares[k]))

    # -- estimates, with bounds where the log lacks some of what a target does -----------------------------------------

    def estimate(self, key: EstimateKey) -> Estimate:
        """An estimate, as bounds where actions of the target or of the other policy are missing."""
        target, name, place = key
        bounds = self._bounded[target, place][1] if any(self._missing(target, place)) else {}
        return bounds[name] if name in bounds else self._estimate(target, name, place)

    def _estimate(self, target: str, name: str, place: Segment) -> Estimate:
        """The same as if the log had all actions; a difference is not identified if either policy has no overlap with the log."""
        made = self._made(target, name, place)
        pair = [policy for policy in (target, self.other) if policy in self.policies] if self.other else []
        if all(self.diagnoses[policy, place].has_overlap for policy in pair):
            return made
        nowhere = replace(made.interval, lower=-math.inf, upper=math.inf)
        return replace(made, value=math.nan, stderr=math.inf, interval=nowhere)

    def _made(self, target: str, name: str, place: Segment) -> Estimate:
        """The same as if policies that were compared overlapped with the log."""
        if place is None and self.abreast is not None:
            return self.abreast.estimate(name, (target, ""))
        return self.quantities[target].estimate(name, place)

    @cached_property
    def _bounded(self) -> Mapping[TargetPlace, tuple[Verdict, Mapping[str, Estimate]]]:
        return OnDemand(lambda: ((target, place) for target, _, place in self._keys), self._bounds)

    def _bounds(self, key: TargetPlace) -> tuple[Verdict, Mapping[str, Estimate]]:
        """The verdict on a place, and the bounds that are left of its estimates where actions are missing."""
        (target, place), sides = key, self._missing(*key)
        weighted = {name: estimator for name, estimator in self.estimators.items() if estimator.uses_rewards}
        verdict = self._verdict(target, place)
        if not weighted or not any(sides):
            return verdict, {}
        here = {name: self._estimate(target, name, place) for name in weighted}
        return with_bounds(verdict, here, weighted, rewards_of(self.log, self.options.reward_bounds), *sides)

    def _missing(self, target: str, place: Segment) -> tuple[list[Caveat], ...]:
        """The caveats saying that the log lacks some actions of a target and of the other policy; of the logging policy, none."""
        is_known = any(caveat.code == MISSING for caveat in self.whole.of_rows)
        if not is_known and not self._suspects:
            return ()
        sides = []
        for name in filter(None, (target, self.other)):
            checks = self.whole.caveats((name,), self.reward, place) if name in self.policies else ()
            below = below_one(self.diagnoses[name, place]) if place in self._suspects.get(name, ()) else ()
            sides.append([*(caveat for caveat in checks if caveat.code == MISSING), *below])
        return tuple(sides)

    @cached_property
    def _suspects(self) -> dict[str, set[Segment]]:
        """The places in which a policy's mean weight may be clearly below 1: a sieve, so that not every segment's weights need a test."""
        if self.abreast is not None and not self.log.segment_columns:
            return {str(contrast and contrast[0]): {None} for contrast in _may_be_low(self.abreast.view)}
        suspects = {name: _may_be_low(view) for name, view in self.policies.items() if view.log.weight.mean_is_one}
        return {name: set(places) for name, places in suspects.items() if places}


def _may_be_low(view: View) -> list[Segment]:
    """The places whose mean weight is below 1 by more than luck, or, where rows are clustered, at all."""
    mean, whole = np.asarray(view.whole.average("u")), view.whole
    error = np.sqrt(whole.covariance("u", "u") / np.maximum(whole.n, 1))
    may_be = mean < (0.0 if view.is_clustered else -SIEVE * error)
    return [view.places[k] for k in np.flatnonzero(may_be)]


def _of_groups(question: Question | None, names: Contrast) -> Iterator[Caveat]:
    """The caveat for a target that chooses among groups of actions: nothing in the log shows what that hides."""
    targets = question.targets if question is not None else ()
    grouped = [target.name for target in targets if target.by_group and target.name in names]
    if grouped:
        text = (
            f"{grouped[0]} takes groups of actions as the target does, and within a group what the logging policy took: it is the target's "
            "own value only if the actions of a group earn the same."
        )
        yield Caveat("action-groups", text)
