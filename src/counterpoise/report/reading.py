"""How a result is read: which estimator answers, what the log itself earned, and the answer in one sentence."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from counterpoise.errors import CounterpoiseError
from counterpoise.estimators import DIFFERENCES, ESTIMATORS, Estimate
from counterpoise.evaluation.evaluate import evaluate
from counterpoise.evaluation.ranking import Ranked, rank
from counterpoise.evaluation.result import Comparison, Result
from counterpoise.intervals import Interval
from counterpoise.moments import Moments
from counterpoise.report.markup import Safe, join, name_of
from counterpoise.report.numbers import level_of, number, percent, signed

# the estimator that answers, if it is there: the README's advice
PREFERRED = ("optimal_dr", "beta_ips", "cross_fit", "snips", "sndr", "dr", "constant_dr", "ips", "dm", "lift")

TARGETS_DRAWN = 8
TARGETS_LISTED = 200
TARGETS_WITH_ALL_ESTIMATORS = 20


@dataclass(frozen=True)
class Reading:
    """A result with what every section of the report needs to know of it."""

    result: Result
    primary: str
    estimators: tuple[str, ...]  # of values, or of differences for a comparison
    lifts: dict[str, Estimate]  # with intervals that hold for all targets at once
    ranked: dict[str, Ranked]  # of a comparison: decisions and intervals that allow for all targets
    logged: tuple[float, float]  # the mean reward and its standard error

    @property
    def is_comparison(self) -> bool:
        """Whether the estimates are of differences between two policies."""
        return isinstance(self.result, Comparison)

    @property
    def against(self) -> str:
        """The other policy of a comparison."""
        return self.result.against if isinstance(self.result, Comparison) else ""

    @property
    def is_difference(self) -> bool:
        """Whether the estimates shown are differences, for which 0 is the mark, and not values."""
        return self.is_comparison or self.primary == "lift"

    def best(self) -> str:
        """The target with the highest identified estimate."""
        values = {target: self.result[target, self.primary].value for target in self.result.targets}
        known = [target for target, value in values.items() if not math.isnan(value) and self.is_known(target)]
        return max(known, key=values.__getitem__) if known else self.result.targets[0]

    def foremost(self, limit: int, among: Sequence[str] | None = None) -> tuple[str, ...]:
        """The targets to show where there is room for so many: a few as they were given, of many the best first.

        The other policy of a comparison always has its place; what the log cannot judge comes last.
        """
        judged = self.result.targets
        given = judged if among is None else tuple(among)
        if len(given) <= min(limit, TARGETS_DRAWN):
            return given
        order = dict.fromkeys(given, -math.inf) | {target: self._order(target) for target in judged}
        return tuple(sorted(given, key=order.__getitem__)[:limit])

    def _order(self, target: str) -> float:
        value = self.result[target, self.primary].value
        return -value if self.is_known(target) and not math.isnan(value) else math.inf

    def is_known(self, target: str) -> bool:
        """Whether the log says anything about a target, or a model answers without it."""
        return self.primary == "dm" or self.result.verdict(target).verdict != "not identified"


def read(result: Result) -> Reading:
    """Read a result, once."""
    names = tuple(dict.fromkeys(estimator for _, estimator, _ in result.estimates))
    registry = DIFFERENCES if isinstance(result, Comparison) else ESTIMATORS
    primary = next((name for name in PREFERRED if name in names), names[0])
    values = tuple(name for name in names if name in registry and (name != "lift" or primary == "lift"))
    return Reading(result, primary, values, _lifts(result), _ranked(result), _logged(result))


def _lifts(result: Result) -> dict[str, Estimate]:
    """The lift of every target, from its moments; none where no interval of the result's kind exists.

    Each interval is made for 1 − (1 − level)/m, m being the number of targets, so that all hold at once: the report speaks of the best
    one, and the best of many equal targets looks better than it is.
    """
    asked = any(name == "lift" for _, name, _ in result.estimates)
    if isinstance(result, Comparison) or (not asked and not result.interval_method.allows_differences):
        return {}
    if asked and len(result.targets) == 1:
        return {target: result[target, "lift"] for target in result.targets}
    together = 1 - (1 - result.level) / len(result.targets)
    try:
        # of the whole log alone: there may be thousands of segments
        whole = replace(result.moments, segment_columns=())
        found = evaluate(
            whole, estimator="lift", level=together, interval=result.interval_method, reward_bounds=result.reward_bounds
        )
    except CounterpoiseError:
        return {}
    return {target: found[target, "lift"] for target in result.targets}


def _ranked(result: Result) -> dict[str, Ranked]:
    return {one.target: one for one in rank(result)} if isinstance(result, Comparison) else {}


def _logged(result: Result) -> tuple[float, float]:
    whole = result.moments[result.moments.targets[0]]
    if whole.n == 0:
        return math.nan, math.inf
    spread = float(whole.covariance("s", "s"))
    return float(whole.centre + whole.average("s")), math.sqrt(spread / whole.n)


def answer(reading: Reading) -> Safe:
    """The answer in one sentence."""
    result, targets = reading.result, reading.result.targets
    best = reading.best()
    estimate = result[best, reading.primary]
    sure = result.verdict(best).verdict
    if not estimate.identified or not reading.is_known(best):
        which = name_of(best) if len(targets) == 1 else "any of the targets"
        asked = (
            ["how ", which, " compares with ", name_of(reading.against)]
            if reading.is_comparison
            else ["what ", which, " would have earned"]
        )
        return join([f"This log of {result.n:,} row{'s' if result.n != 1 else ''} cannot say ", *asked, "."])
    parts: list[object] = []
    known = sum(map(reading.is_known, targets))
    if len(targets) > 1:
        if known == len(targets):
            parts += [f"Of {known:,} targets, ", name_of(best), " has the highest estimate: it"]
        elif known > 1:
            parts += [f"Of the {known:,} targets (out of {len(targets):,}) that this log can judge, "]
            parts += [name_of(best), " has the highest estimate: it"]
        else:
            parts += [f"This log can judge one of {len(targets):,} targets, ", name_of(best), ": it"]
    else:
        parts += ["The target ", name_of(best)]
    if reading.is_difference:
        other: object = name_of(reading.against) if reading.against else "the policy that wrote the log"
        other = "the policy that wrote the log" if reading.against == "logging" else other
        together = ", for all targets at once" if len(targets) > 1 else ""
        interval, is_shown = _decided(reading, best)
        parts += [f" would have earned {signed(estimate.value, estimate.stderr)} per row compared with ", other]
        parts += [f" ({level_of(result.level)} interval{together}: {_span(interval, estimate.stderr, plus=True)})"]
        parts.append(", a real difference" if is_shown else "; the log does not show which of the two is better")
    else:
        parts += [f" would have earned {number(estimate.value, estimate.stderr)} per row "]
        parts += [f"({level_of(result.level)} interval: {_span(estimate.interval, estimate.stderr)})"]
        parts += [_against_logging(reading, best)]
    parts.append("." if sure == "ok" else ", but read the caution below first.")
    return join(parts)


def _against_logging(reading: Reading, target: str) -> Safe:
    lift, (mean, _) = reading.lifts.get(target), reading.logged
    if lift is None or not lift.identified or math.isnan(mean):
        return Safe("")
    relative = f" or {'+' if lift.value > 0 else ''}{percent(lift.value / mean)}" if mean > 0 else ""
    if not math.isfinite(lift.stderr):
        return Safe("")
    if 0.0 in lift.interval:
        return join(
            [f"; whether that is more or less than the {number(mean, lift.stderr)} of the log, it does not show"]
        )
    return join(
        [
            f", {signed(lift.value, lift.stderr)}{relative} against the {number(mean, lift.stderr)} that was logged ",
            f"({_span(lift.interval, lift.stderr, plus=True)}{', for all targets at once' if len(reading.lifts) > 1 else ''})",
        ]
    )


def _decided(reading: Reading, target: str) -> tuple[Interval, bool]:
    """The interval of a difference that allows for looking at all targets, and whether the difference is shown."""
    if reading.is_comparison:
        return reading.ranked[target].interval, reading.ranked[target].decision != "undecided"
    interval = reading.lifts[target].interval
    return interval, 0.0 not in interval


def _span(interval: Interval, error: float, *, plus: bool = False) -> str:
    write = signed if plus else number
    return " to ".join(write(end, error) for end in interval)


def fingerprint(result: Result) -> str:
    """A code of the rows behind a result: the same for the same rows in any order, on any engine.

    Sums differ in their last digits from one machine to another, so it is made from six digits of them.
    """
    log = result.moments
    parts = [str(log.n), str(log.dropped), "|".join(log.segment_columns), str(log.cluster)]
    for target in log.targets:
        parts += [target, *_digits(Moments.stack([log[target]]))[0]]
    order = sorted(range(len(log.segments)), key=lambda k: repr(log.segments[k])) if log.segment_columns else []
    for target in log.targets:
        rows = log.moments[target, ""].merge(axis=1)
        digits = _digits(rows)
        for k in order:
            parts += [repr(log.segments[k]), str(rows.n[k]), *digits[k]]
    code = "\x1f".join(parts).encode("utf-8", "replace")
    return hashlib.sha256(code.replace(b"-0.000000", b"0.000000")).hexdigest()[:16]


def _digits(rows: Moments) -> list[list[str]]:
    """Six digits of the sums of every member of a stack; none where it has no rows."""
    with np.errstate(invalid="ignore"):
        spread, noise = (np.sqrt(rows.covariance(name, name)) for name in ("s", "us"))
    sums = (1.0 + rows.average("u"), rows.covariance("u", "u"), rows.centre + rows.average("s"), spread)
    numbers = np.stack([*sums, rows.average("us"), noise], axis=-1)
    size = np.maximum(np.abs(numbers).max(axis=-1), 1.0)
    return [
        [*(f"{x:.6f}" for x in row), f"{largest:.6g}"] if n else []
        for n, row, largest in zip(rows.n, numbers / size[:, None], size, strict=True)
    ]
