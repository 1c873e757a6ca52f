"""The bias ladder: what an estimate is with each constant of a weight, and which of them SLOPE chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from counterpoise.diagnostics import Caveat, Verdict, judge
from counterpoise.display import Cell, Name, estimate_cells, number
from counterpoise.estimators import ESTIMATORS, Estimate, Estimator
from counterpoise.evaluation.choose import differences_of, foremost
from counterpoise.evaluation.estimates import IntervalOptions, OnDemand, Quantities, diagnosis
from counterpoise.evaluation.view import View
from counterpoise.moments.log_moments import Contrast, Label, LogMoments

WIDTH = 0.5  # of SLOPE's intervals to either side, in standard errors
VALUES = {"beta_ips": ESTIMATORS["beta_ips"]}


@dataclass(frozen=True)
class Rung:
    """One weight of a ladder, its constant (None for the plain importance weight), and the estimate that it gives."""

    weight: str
    constant: float | None
    estimate: Estimate


@dataclass(frozen=True)
class Ladder:
    """The estimates of one target with every weight of a ladder, the unbiased one first, and the place of the one that was chosen."""

    target: str
    rungs: tuple[Rung, ...]
    chosen: int

    @property
    def unbiased(self) -> Rung:
        """The plain importance weight."""
        return self.rungs[0]

    def rows(self) -> list[dict[str, Cell]]:
        """A row for each rung, for tables and documents; None where there is no number."""
        return [
            {
                "target": Name(self.target),
                "weight": rung.weight,
                "constant": rung.constant,
                "estimator": rung.estimate.name,
                **estimate_cells(rung.estimate.value, rung.estimate.stderr, rung.estimate.interval),
                "chosen": place == self.chosen,
            }
            for place, rung in enumerate(self.rungs)
        ]

    @property
    def choice(self) -> Rung:
        """The weight behind the answer."""
        return self.rungs[self.chosen]


def slope(rungs: Sequence[Estimate]) -> int:
    """The place of the estimate with the least error whose interval meets the intervals of all estimates before it.

    `rungs` run from the least biased to the most biased. The intervals are value ± error/2: as long as they have a point in common, no
    estimate is further from a less biased one than their errors on average, which is about what the smaller error is worth. The paper
    leaves the width open, as a bound that holds with high probability. All rungs see the same rows, so that most of their noise is the
    same, and 95 % intervals would let in biases of twice the error that they save; `tests/weights/test_slope.py` simulates it.

    >>> numbers = [(1.0, 0.5), (0.9, 0.2), (0.8, 0.1), (0.3, 0.01)]
    >>> slope([Estimate("ips", value, error, 100, 0.0) for value, error in numbers])
    2

    References
    ----------
    Su, Srinath & Krishnamurthy, ICML 2020, their algorithm 1; after Lepski & Spokoiny (1997).
    """
    low, high, best = -inf, inf, 0
    for place, rung in enumerate(rungs):
        if not rung.identified:
            break
        low, high = max(low, rung.value - WIDTH * rung.stderr), min(high, rung.value + WIDTH * rung.stderr)
        if low > high:
            break
        best = place if rung.stderr < rungs[best].stderr else best
    return best


@dataclass(frozen=True)
class Climbed:
    """The moments of a log with the weight that every contrast chose, and the ladders it chose from."""

    moments: LogMoments
    ladders: Mapping[Contrast, Ladder]
    plain: Mapping[tuple[str, Label | None], Verdict]  # the verdict on the plain weights

    def view(self, contrast: Contrast) -> View:
        """One contrast, with the weight that it chose."""
        weight = self.moments.ladder[self.ladders[contrast].chosen].weight
        return View(replace(self.moments, weight=weight), contrast)

    def not_identified(self, contrast: Contrast, place: Label | None) -> Verdict | None:
        """The verdict if plain weights cannot identify a policy: biased ones cannot either."""
        verdicts = (self.plain[name, place] for name in contrast if (name, place) in self.plain)
        return next((verdict for verdict in verdicts if verdict.verdict == "not identified"), None)

    def caveat(self, contrast: Contrast) -> Caveat:
        """What choosing the weight leaves uncertain."""
        ladder = self.ladders[contrast]
        plain, ours = ladder.unbiased.estimate, ladder.choice.estimate
        low, high = (number(end, plain.stderr) for end in plain.interval)
        beside = f"the unbiased weight gives {number(plain.value, plain.stderr)} ({low} to {high})"
        text = (
            f"SLOPE chose {ladder.choice.weight}, which is biased: it gives {number(ours.value, ours.stderr)} where {beside}. The interval "
            "covers neither the bias nor the choice."
        )
        if not ladder.chosen:
            text = f"SLOPE chose the unbiased weight from a ladder of biased ones: {beside}. The interval ignores the choice."
        return Caveat("chosen-weight", text, {"value": ours.value, "unbiased_value": plain.value})


def climb(log: LogMoments, options: IntervalOptions, estimators: Mapping[str, Estimator] | None) -> Climbed:
    """The moments with the weights that SLOPE chooses, contrast by contrast and over the whole log.

    It chooses by the estimator behind the headline, the foremost one of values (if those are not asked for, `beta_ips`) and of differences.
    """
    ladders = {}
    for contrast, stack in log.moments.items():
        registry = differences_of(stack.columns) if contrast[1] else VALUES if estimators is None else estimators
        name, rungs = foremost(registry, registry), []
        for moments in log.rungs:
            estimate = Quantities(View(moments, contrast), registry, options).estimate(name)
            rungs.append(Rung(moments.weight.how, moments.weight.constant, estimate))
        ladders[contrast] = Ladder(contrast[0], tuple(rungs), slope([rung.estimate for rung in rungs]))
    chosen = {contrast: log.ladder[ladder.chosen] for contrast, ladder in ladders.items()}
    picked = replace(
        log,
        moments={contrast: rung.moments[contrast] for contrast, rung in chosen.items()},
        tails={contrast: chosen[contrast].tails[contrast] for contrast in log.tails},
        excess={contrast: rung.excess[contrast] for contrast, rung in chosen.items()},
    )
    plain = log.ladder[0]
    views = {contrast[0]: View(plain, contrast) for contrast in plain.moments if not contrast[1]}
    places = [(target, place) for target, view in views.items() for place in view.places]
    return Climbed(picked, ladders, OnDemand(places, lambda key: judge(diagnosis(views[key[0]], key[1]))))
