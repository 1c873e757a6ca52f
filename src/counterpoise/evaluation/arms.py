"""What `ab_test` returns: the effect of every arm by each method, the arms' shares, and what all of it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from counterpoise.diagnostics import Verdict
from counterpoise.diagnostics.sample_ratio import SampleRatio
from counterpoise.errors import OptionError
from counterpoise.estimators import Estimate
from counterpoise.evaluation.result import above
from counterpoise.evaluation.showing import aligned
from counterpoise.evaluation.wording import level_of, number, percent, shortened, signed
from counterpoise.intervals import Interval
from counterpoise.moments import LogMoments

if TYPE_CHECKING:
    import polars as pl

MEANS, ADJUSTED, POOLED = "difference in means", "regression-adjusted", "pooled off-policy"
APART = 3.3  # standard errors between two methods: p = 0.001
NO_CARRY_OVER = (
    "This assumes that decisions do not carry over between arms: what one arm does must not change what the rows of another earn, "
    "by a shared budget or stock, say."
)
NO_CARRY_OVER_POOLED = (
    " The pooled difference also assumes it from one decision to the next, whoever made them: it is about single decisions, and would "
    "miss what a policy does to a user in the long run."
)


@dataclass(frozen=True)
class Effect:
    """How much more an arm earns per row than the arm it is compared with, by one method.

    `worth` is how much more traffic the difference in means would need to be as sure: 0.5 says that the method is worth 50 % more rows.
    """

    arm: str
    against: str
    method: str
    estimate: Estimate
    verdict: Verdict
    worth: float

    @property
    def value(self) -> float:
        """The difference of the mean rewards."""
        return self.estimate.value

    @property
    def stderr(self) -> float:
        """Its standard error."""
        return self.estimate.stderr

    @property
    def interval(self) -> Interval:
        """Its confidence interval."""
        found: Interval = self.estimate.interval
        return found


@dataclass(frozen=True)
class Arm:
    """An arm: its rows, its mean reward and that mean's standard error."""

    name: str
    rows: int
    mean: float
    stderr: float


@dataclass(frozen=True, eq=False)
class ABTest:
    """The answer of `ab_test`.

    ``test["new"]`` is the effect of an arm by the most certain method that it has, ``test["new", "difference in means"]`` by another;
    `effects` has all of them and `arms` the arms. `sample_ratio` is the test of the arms' shares, and `moments` are the sums by arm.
    """

    effects: tuple[Effect, ...]
    arms: tuple[Arm, ...]
    sample_ratio: SampleRatio
    level: float
    method: str
    moments: LogMoments
    dropped_rows: int = 0

    def __getitem__(self, key: str | tuple[str, str]) -> Effect:
        arm, method = key if isinstance(key, tuple) else (key, None)
        own = [one for one in self.effects if one.arm == str(arm) and method in (None, one.method)]
        if not own:
            known = ", ".join(repr((one.arm, one.method)) for one in self.effects)
            raise OptionError(f"there is no effect {key!r} in this test; it has {known}.")
        return own[-1]  # later methods use more of what is known

    @property
    def n(self) -> int:
        """How many rows were used."""
        return sum(one.rows for one in self.arms)

    @property
    def against(self) -> str:
        """The arm that the others are compared with."""
        return self.effects[0].against

    @property
    def treatments(self) -> tuple[str, ...]:
        """The other arms."""
        return tuple(dict.fromkeys(one.arm for one in self.effects))

    @property
    def assumption(self) -> str:
        """What all of it rests on, besides randomization."""
        return NO_CARRY_OVER + (NO_CARRY_OVER_POOLED if any(one.method == POOLED for one in self.effects) else "")

    @property
    def disagreements(self) -> tuple[str, ...]:
        """The arms whose pooled difference is further from their difference in means than chance allows, in words."""
        return tuple(said for arm in self.treatments for said in self._apart(arm))

    def _apart(self, arm: str) -> Iterator[str]:
        of = {one.method: one for one in self.effects if one.arm == arm}
        if POOLED not in of:
            return
        off = abs(of[POOLED].value - of[MEANS].value)
        error = math.hypot(
            of[POOLED].stderr, of[MEANS].stderr
        )  # at least that of their difference: both see the same rows
        if off > APART * error:
            yield (
                f"{shortened(arm)}: the pooled difference is {number(off, error)} from the difference in means, which chance does not "
                "explain: either the policies' probabilities are wrong, or decisions carry over. Believe the difference in means."
            )

    def table(self) -> pl.DataFrame:
        """One row per arm and method."""
        from counterpoise.evaluation.table import Table

        return Table([_row(one) for one in self.effects], infer_schema_length=None)

    def document(self) -> dict[str, Any]:
        """What `counterpoise ab-test --json` prints."""
        from counterpoise.evaluation.documents import finite

        ratio = self.sample_ratio
        return cast(
            "dict[str, Any]",
            finite(
                {
                    "n": self.n,
                    "level": self.level,
                    "arms": [vars(one) for one in self.arms],
                    "effects": [_row(one) | _why(one.verdict) for one in self.effects],
                    "sample_ratio": {"planned": ratio.planned, "p": ratio.p, "is_mismatch": ratio.is_mismatch},
                    "disagreements": self.disagreements,
                    "assumption": self.assumption,
                    "dropped_rows": self.dropped_rows,
                }
            ),
        )

    def report(self, path: str | PathLike[str], *, title: str | None = None, command: str | None = None) -> Path:
        """Write one HTML file for people to read, and return its path."""
        return cast("Path", above().write_ab_test(self, path, title=title, command=command))

    def headline(self) -> Iterator[str]:
        """A sentence for every arm."""
        for arm in self.treatments:
            one = self[arm]
            more = "" if one.method == MEANS else f", worth {worth_text(one.worth)} than the difference in means"
            low, high = (signed(end, one.stderr) for end in one.interval)
            yield (
                f"{shortened(arm)} earned {signed(one.value, one.stderr)} per row against {shortened(one.against)} "
                f"({level_of(self.level)} interval: {low} to {high}; {one.method}{more})."
            )

    def __repr__(self) -> str:
        rows = [["arm", "method", "value", "stderr", "lower", "upper", "worth", "verdict"]]
        rows += [_cells(one) for one in self.effects]
        verdicts = {str(one.verdict) for one in self.effects if one.verdict.verdict != "ok"}
        lines = [
            *self.headline(),
            f"{self.n:,} rows; {level_of(self.level)} intervals ({self.method}).",
            "",
            *aligned(rows),
            "",
            str(self.sample_ratio),
            *self.disagreements,
            *sorted(verdicts),
            self.assumption,
        ]
        return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def worth_text(worth: float) -> str:
    """What a method is worth, in traffic.

    >>> worth_text(1.5).replace("\N{NO-BREAK SPACE}", " "), worth_text(-0.02).replace("\N{NO-BREAK SPACE}", " ")
    ('150 % more traffic', '2.0 % less traffic')
    """
    if not math.isfinite(worth):
        return "nobody knows how much more traffic"
    return f"{percent(abs(worth))} {'more' if worth >= 0 else 'less'} traffic"


def _row(one: Effect) -> dict[str, Any]:
    return {
        "arm": one.arm,
        "against": one.against,
        "method": one.method,
        "difference": one.value if one.estimate.identified else None,
        "stderr": one.stderr,
        "lower": one.interval.lower,
        "upper": one.interval.upper,
        "worth_more_traffic": one.worth,
        "verdict": one.verdict.verdict,
    }


def _why(verdict: Verdict) -> dict[str, Any]:
    return {"reasons": verdict.reasons, "caveats": [vars(caveat) for caveat in verdict.caveats]}


def _cells(one: Effect) -> list[str]:
    ends = [signed(end, one.stderr) for end in one.interval]
    value, error = signed(one.value, one.stderr), number(one.stderr, one.stderr)
    worth = "" if one.method == MEANS else worth_text(one.worth)
    return [shortened(one.arm, 24), one.method, value, error, *ends, worth, one.verdict.verdict]


def worth_of(estimate: Estimate, plain: Estimate) -> float:
    """How many more rows the difference in means would need for the same error, as a share of the rows there are."""
    return (plain.stderr / estimate.stderr) ** 2 - 1.0 if estimate.stderr > 0 else math.inf
