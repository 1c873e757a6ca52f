"""What a search found: the policy, what it would have earned, and how the contenders compare."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterpoise.evaluation.result import Result
from counterpoise.learn.judging import doubts
from counterpoise.learn.policies.policy import Policy
from counterpoise.learn.search.models import ModelPolicy
from counterpoise.log.sketches import Lesson


@dataclass(frozen=True)
class Standing:
    """A contender at the temperature at which it serves best: its value by rows that it was not learned from, and what it cost."""

    name: str
    temperature: float
    value: float
    lower: float
    upper: float
    effective_sample_size: float
    is_measured: bool
    score: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Found:
    """A policy that was found on a log.

    Attributes
    ----------
    policy
        What to serve, learned from all rows: it has `predict_proba`, `sample` and `classes_`.
    result
        What the fold policies would have earned, with interval and verdict: for every row, a policy that was neither learned from it nor
        chosen by it. `policy` has seen more rows and is usually a little better.
    kind
        ``"learned"``, or ``"imitation"`` where nothing was surely better than what ran, so that `policy` imitates that.
    rejected
        Where `policy` is an imitation, the result of what would have been chosen.
    name
        The contender that `policy` comes from.
    leaderboard
        The contenders, the best first.
    policies
        The fold policies that `result` is about.
    seconds, fit_seconds
        How long the search took, and the last fit alone.
    skipped
        Contenders for which there was no time, or that could not be fitted, and why.
    dropped_rows
        How many bad rows were left out.
    cut
        What the last fit left out for lack of time, in words; empty if nothing.
    reward_range
        The lowest and the highest reward, between which every true value lies.
    """

    policy: Policy | ModelPolicy
    result: Result
    kind: str
    rejected: Result | None
    name: str
    leaderboard: tuple[Standing, ...]
    policies: tuple[Policy | ModelPolicy, ...]
    mean_reward: float
    seconds: float
    fit_seconds: float
    skipped: dict[str, str]
    dropped_rows: int = 0
    cut: str = ""
    reward_range: tuple[float, float] = (-math.inf, math.inf)

    def predict_proba(self, context: ArrayLike) -> NDArray[np.float64]:
        """The policy's probabilities, so that what was found is itself a target of `evaluate`."""
        return self.policy.predict_proba(context)

    @property
    def classes_(self) -> NDArray[Any]:
        """The actions, in the order of `predict_proba`'s columns."""
        return self.policy.classes_

    @property
    def lesson_(self) -> Lesson | None:
        """What the policy remembers of how it was learned, by which `evaluate` knows its rows again."""
        return self.policy.lesson_

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy to a file, which `load_policy` and `evaluate(target=…)` read; networks and forests can be saved."""
        self.policy.save(path)

    def summary(self) -> str:
        """What was found, in a sentence or two."""
        value = self.result[self.result.targets[0], "beta_ips"]
        earned = (
            f"{value.value:.4g} per row, between {value.interval.lower:.4g} and {value.interval.upper:.4g}; the policy that ran earned "
            f"{self.mean_reward:.4g}"
        )
        if self.rejected is not None:
            said = [
                "Nothing was surely better than the policy that ran, so this policy imitates it.",
                doubts(self.rejected),
                f"The imitation would have earned {earned}.",
            ]
        else:
            said = [f"{self.name[0].upper()}{self.name[1:]} is best. It would have earned {earned}.", self._caution()]
        return " ".join(one for one in (*said, self.outside(), self.cut) if one)

    def outside(self) -> str:
        """What to say where an estimate is no possible value, because no reward is as low or as high; empty elsewhere."""
        low, high = self.reward_range
        results = [self.result] if self.rejected is None else [self.rejected, self.result]
        values = [float(one[one.targets[0], "beta_ips"].value) for one in results]
        odd = [value for value in values if not low <= value <= high]
        if not odd:
            return ""
        return (
            f"{odd[0]:.4g} per row is impossible, as all rewards are between {low:.4g} and {high:.4g}: the propensities are wrong, or far "
            "too few rows carry the estimate. `counterpoise doctor` tells more."
        )

    def _caution(self) -> str:
        """What the verdict has to say, if it is not ok."""
        verdict = self.result.verdict()
        return "" if verdict.verdict == "ok" else f"But take the interval with care. {' '.join(verdict.reasons)}"

    def to_dict(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        value = self.result[self.result.targets[0], "beta_ips"]
        return {
            "name": self.name,
            "kind": self.kind,
            "value": value.value,
            "lower": value.interval.lower,
            "upper": value.interval.upper,
            "mean_reward": self.mean_reward,
            "verdict": self.result.verdict().verdict,
            "effective_sample_size": self.result.diagnostics(self.result.targets[0]).effective_sample_size,
            "seconds": self.seconds,
            "fit_seconds": self.fit_seconds,
            "leaderboard": [asdict(one) for one in self.leaderboard],
            "skipped": self.skipped,
            "dropped_rows": self.dropped_rows,
            "cut": self.cut,
            "n_actions": self.policy.n_actions,
        }

    def __repr__(self) -> str:
        wide = max(len(one.name) for one in self.leaderboard)
        lines = [self.summary(), "", f"{'contender':<{wide}}  temperature     value  interval            rows  seconds"]
        for one in self.leaderboard:
            bounds = f"{one.lower:.4g} … {one.upper:.4g}"
            note = "" if one.is_measured else "  not measured by these rows"
            lines.append(
                f"{one.name:<{wide}}  {one.temperature:>11g}  {one.value:>8.4g}  {bounds:<18}"
                f"{one.effective_sample_size:>6,.0f}  {one.seconds:>7.1f}{note}"
            )
        lines += [f"{name}: {why}" for name, why in self.skipped.items()]
        lines.append(
            "Contenders are judged by rows that they were not learned from; the best of several still looks a little too good."
        )
        return "\n".join(lines)
