"""The answer in one sentence, made of parts that a terminal, a notebook and a report each write in their own way."""

from __future__ import annotations

import math

from counterpoise.diagnostics.verdict import MISSING
from counterpoise.display import Name, Number, breakable, counted, level_of, percent
from counterpoise.evaluation.reading import Reading
from counterpoise.intervals import Interval
from counterpoise.log.question import LOGGING

Part = str | Name | Number


def headline(reading: Reading) -> list[Part]:
    """The answer in one sentence, about the best target that the log can judge.

    >>> from counterpoise import evaluate
    >>> from counterpoise.evaluation.reading import read
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
    """What the estimates rest on: rows, the estimator behind the headline, and intervals."""
    result = reading.result
    dropped = f"; {counted(result.dropped_rows, f'bad {reading.unit}')} dropped" if result.dropped_rows else ""
    intervals = f"{level_of(result.level)} intervals ({result.method}) by {reading.primary}"
    return f"{counted(result.n, reading.unit)}; {intervals}{dropped}."


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
    """The bounds of a target of which the log lacks some actions."""
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
