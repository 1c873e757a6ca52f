"""What a result says, in words: a reading's numbers become sentences here, and nowhere else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from counterpoise.display import (
    Name,
    Number,
    Percent,
    Phrase,
    as_written,
    cell_text,
    counted,
    level_of,
    percent,
    percent_change,
    percent_span,
    sample_of,
    shortened,
)
from counterpoise.errors import Sentence, verbatim
from counterpoise.estimators import Estimate
from counterpoise.evaluation.reading import Change, Decision, NextStep, Reading

PhrasePart = str | Name | Number
Scale = Literal[
    "share", "difference", "value"
]  # how a change is written: a share of the logged reward, a difference, or a value

DECISIONS = ("better", "worse", "higher", "lower", "not decided", "cannot say")
NEARLY_ALL, ALL = 0.9, 0.999  # of what is missing


# -- What was asked ----------------------------------------------------------------------------------------------------


def log_name(reading: Reading) -> str:
    """Where the rows are, in a word or two; empty for arrays and frames, which have no name."""
    name = "" if reading.result.question is None else reading.result.question.log.short_name
    return f"{name} and earlier logs" if name and reading.result.earlier_rows else name


def rival(reading: Reading) -> str:
    """What targets are compared with."""
    return "the logging policy" if reading.is_against_log else shortened(reading.result.against)


def divisor(reading: Reading) -> str:
    """What a value is of one of: a unit, or what the reward is divided by; stored moments have forgotten its name."""
    if reading.divided_by is None:
        return reading.unit
    return shortened(reading.divided_by) if reading.divided_by else "denominator"


def units(reading: Reading) -> str:
    """What values are of: row, or 100 rows."""
    return divisor(reading) if reading.per_units == 1 else f"{reading.per_units} {reading.unit}s"


def asked(reading: Reading) -> Phrase:
    """What was asked, of which log."""
    result, log = reading.result, log_name(reading)
    targets, labels = result.targets, result.moments.labels
    who: PhrasePart = Name(targets[0]) if len(targets) == 1 else f"each of {len(targets):,} policies"
    parts: list[PhrasePart] = ["Estimated ", Name(reading.reward), f" per {divisor(reading)}: ", who]
    parts += [f" against {rival(reading)}", " · less is better" if result.minimize else ""]
    parts += [" · ", Name(log)] if log else []
    rows = sample_of(result.n, reading.unit, reading.sampled_from)
    return Phrase([*parts, f" · {rows}" + ("" if labels is None else f", {labels:,} of them labeled")])


# -- How a change is written -------------------------------------------------------------------------------------------


def points_of(share: Estimate) -> float:
    """The error to whose digits a share of the logged reward is written; bounds have their own."""
    lower, upper = share.interval
    return share.stderr if share.identified and math.isfinite(share.stderr) else (upper - lower) / 10


def scale_of(changes: Sequence[Change]) -> Scale:
    """What changes are written as: shares of the logged reward, where that is known of any."""
    if any(change.relative is not None for change in changes):
        return "share"
    return "difference" if any(change.lift is not None for change in changes) else "value"


def on_scale(change: Change, scale: Scale) -> Estimate | None:
    """The estimate that is written of a change; None where the log has no number for it."""
    if change.is_silent:
        return None
    return {"share": change.relative, "difference": change.lift, "value": change.value}[scale]


def size_of(estimate: Estimate, scale: Scale) -> Number | Percent:
    """A change, to the digits of its error."""
    value = estimate.value if estimate.identified else None
    return (
        Percent(value, points_of(estimate))
        if scale == "share"
        else Number(value, estimate.stderr, scale == "difference")
    )


def span_of(estimate: Estimate, scale: Scale) -> str:
    """The interval of a change."""
    lower, upper = estimate.interval
    if scale == "share":
        return percent_span(lower, upper, points_of(estimate))
    return " to ".join(str(Number(end, estimate.stderr, scale == "difference")) for end in (lower, upper))


def written(estimate: Estimate | None, scale: Scale) -> tuple[str, str]:
    """A change, and its interval; where there are only bounds, they are the change.

    >>> from counterpoise.intervals import Interval
    >>> texts = written(Estimate("lift", 0.78, 0.05, 100, 0.0, Interval(0.68, 0.87, 0.95, "normal")), "share")
    >>> [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts]
    ['+78 %', '+68 to +87 %']
    """
    if estimate is None:
        return "–", ""
    if estimate.identified:
        return str(size_of(estimate, scale)), span_of(estimate, scale)
    return (span_of(estimate, scale), "bounds") if all(map(math.isfinite, estimate.interval)) else ("cannot say", "")


def amount(reading: Reading, value: float, error: float) -> Number:
    """A value of so many units as `units` says, to the digits of its error."""
    # rounded before it is multiplied, so that a tie falls the same way everywhere
    return Number(reading.per_units * as_written(value, error), reading.per_units * error)


# -- The answer --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerParts:
    """The sentence that answers, in the parts that a page sets apart: about whom, the change, how certain it is, and the rest."""

    who: Sequence[PhrasePart]
    change: Sequence[PhrasePart]
    certainty: Sequence[PhrasePart] = ()
    rest: Sequence[PhrasePart] = ()


def sentence(reading: Reading) -> Phrase:
    """The answer in one sentence and a half: the change, from what to what, whether it is decided and can be relied on.

    >>> from counterpoise import evaluate
    >>> from counterpoise.evaluation.reading import read
    >>> log = {"click": [1, 0, 0, 1, 0, 0] * 200, "p": [0.5] * 1200, "new": [0.7, 0.3, 0.5, 0.5, 0.4, 0.6] * 200}
    >>> reading = read(evaluate(log, reward="click", propensity="p", target="new").with_unit("visit"))
    >>> print(asked(reading))
    Estimated click per visit: new against the logging policy · 1,200 visits
    >>> print(str(sentence(reading)).replace("\N{NO-BREAK SPACE}", " "))
    new: +20 % click (+18 to +22 %), from 33.33 to 40.0 per 100 visits. Better than the logging policy. Verdict: ok.
    """
    said = answer(reading)
    return Phrase([*said.who, *said.change, *said.certainty, *said.rest])


def answer(reading: Reading) -> AnswerParts:
    """The sentence, in its parts."""
    result, change, many = reading.result, reading.best, len(reading.result.targets)
    if change.is_silent:
        which: PhrasePart = Name(change.target) if many == 1 else f"any of the {many:,} policies"
        log = f"This log of {counted(result.n, reading.unit)} cannot tell how "
        return AnswerParts([], [log, which, f" compares with {rival(reading)}."])
    best = "highest" if result.minimize is None else "best"
    known = sum(each.decision != "cannot say" for each in reading.changes)
    among = f", the {best} of {many:,}"
    if known < many:
        among = (
            f", the {'only one' if known == 1 else f'{best} of the {known:,}'} of {many:,} that this log can evaluate"
        )
    who: list[PhrasePart] = [Name(change.target), "" if many == 1 else among, ": "]
    size, certainty = _size(reading, change)
    start, verdict = _from_to(reading, change), _verdict(reading, change)
    # the sign belongs to what comes before it, so that no line of a page begins with one
    sign, rest = (",", [*start, ". ", verdict]) if start else (".", [" ", verdict])
    if certainty:
        return AnswerParts(who, size, [*certainty, sign], rest)
    return AnswerParts(who, [*size, sign], [], rest)


def _size(reading: Reading, change: Change) -> tuple[list[PhrasePart], list[PhrasePart]]:
    """How large a change is, and how certain: in percent where that is known, else as a difference, else as a value."""
    reward, per = Name(reading.reward), f" per {divisor(reading)}"
    if change.relative is not None:
        if change.is_bounds:
            lower, upper = (percent_change(end, points_of(change.relative)) for end in change.relative.interval)
            return [f"between {lower} and {upper} ", reward], []
        size, span = size_of(change.relative, "share"), span_of(change.relative, "share")
        return [f"{size} ", reward], [f" ({span})"]
    estimate, is_lift = change.lift or change.value, change.lift is not None
    value, low, high = (
        Number(number, estimate.stderr, is_signed=is_lift) for number in (estimate.value, *estimate.interval)
    )
    if is_lift and not estimate.identified:
        return ["between ", low, " and ", high, " ", reward, per], []
    if is_lift:
        return [value, " ", reward, per], [" (", low, " to ", high, ")"]
    is_model_only = reading.result.is_model_only(reading.primary)
    alone = ", if the reward model is right: this rests on the model alone" if is_model_only else ""
    level = level_of(reading.result.level)
    return [value, " ", reward, per], [f" ({level} interval: ", low, " to ", high, f"){alone}"]


def _from_to(reading: Reading, change: Change) -> list[PhrasePart]:
    """From what to what, where both are known."""
    if reading.is_difference or not change.is_from_to:
        return []
    lift, value = change.lift, change.value
    error = lift.stderr if lift is not None and math.isfinite(lift.stderr) and lift.stderr > 0 else value.stderr
    ends = amount(reading, change.ran, error), amount(reading, value.value, value.stderr)
    return [" from ", ends[0], " to ", ends[1], f" per {units(reading)}"]


def _verdict(reading: Reading, change: Change) -> str:
    """Whether a change is decided, and the verdict on it: two things."""
    verdict, against, lacks = change.verdict.verdict, rival(reading), change.missing
    if change.is_bounds:
        missing = "Some of its choices are not in this log"
        if lacks is not None:
            share, there = lacks.numbers["share"], lacks.numbers.get("share_there", 0.0)
            most = "all" if there > ALL else "nearly all" if there >= NEARLY_ALL else "most"
            where = f", {most} of them where {lacks.where}" if lacks.where else ""
            missing = f"{percent(share)} of its choices are not in this log{where}"
        is_decided = change.decision not in ("not decided", "cannot say")
        return f"{missing}{f'. Whatever they earn, it is {change.decision} than {against}' if is_decided else ''}."
    if change.decision == "not decided":
        end = "." if verdict == "ok" else f". Verdict: {verdict}; read the caveats first."
        beats = "is higher or lower than" if reading.result.minimize is None else "beats"
        return f"The log does not show whether it {beats} {against}{end}"
    end = "." if verdict == "ok" else "; read the caveats first."
    return f"{change.decision.capitalize()} than {against}. Verdict: {verdict}{end}"


def known_part(reading: Reading) -> Phrase | None:
    """What the answer's target earns where the log has all that it does, in a sentence; None where that is the whole log."""
    known = reading.best.elsewhere
    if known is None or not reading.best.is_bounds:
        return None
    share = percent(known.rows / known.looked_at)
    where = f"Where all of its choices are in the log ({share} of {reading.unit}s)"
    where = "What it earns elsewhere" if known.where else where
    sample = f", by a sample of {counted(known.rows, reading.unit)}" if known.looked_at < reading.result.n else ""
    if known.relative is not None:
        size, span = written(known.relative, "share")
        return Phrase([f"{where}: {size} ({span}{sample})."])
    lift = known.lift
    value, low, high = (Number(number, lift.stderr, is_signed=True) for number in (lift.value, *lift.interval))
    return Phrase([f"{where}: ", value, f" per {divisor(reading)} (", low, " to ", high, f"{sample})."])


def basis(reading: Reading) -> str:
    """What the estimates rest on: the estimator behind the answer, and its intervals."""
    result, many = reading.result, len(reading.result.targets)
    dropped = f"; {counted(result.dropped_rows, f'invalid {reading.unit}')} dropped" if result.dropped_rows else ""
    together = f", which hold for {all_of(many)} policies at once" if many > 1 else ""
    looks = f" {result.moments.looks:,} looks so far" if result.moments.looks > 1 else ""
    often = ": these intervals hold at all of them at once, however often you look"
    looks += f"{often if result.interval_method.is_anytime else ''}." if looks else ""
    return f"{level_of(result.level)} intervals ({result.method}) by {reading.primary}{together}{dropped}.{looks}"


# -- What to do next ---------------------------------------------------------------------------------------------------


def next_steps(reading: Reading) -> list[str]:
    """What to do next, the most urgent first."""
    return list(dict.fromkeys(_step(reading, step) for step in reading.next_steps))


def _step(reading: Reading, step: NextStep) -> str:
    unit, against, caveat = f"{reading.unit}s", rival(reading), step.caveat
    about = f"about {step.rows:,} {unit}"
    if caveat is not None and step.kind == "explore":
        others = int(caveat.numbers.get("actions", 1)) - 1
        more = f" and {counted(others, 'more missing action')}" if others else ""
        what = f"{verbatim(repr(caveat.action))}{more}" if caveat.action else "the missing actions"
        where = f" where {verbatim(caveat.where)}" if caveat.where else " now and then"
        enough = f" ({about} are enough)" if step.rows else ""
        rest = f", or evaluate the rest with `where={caveat.rest!r}`" if caveat.rest else ""
        return Sentence(f"Have the logging policy explore {what}{where}{enough}{rest}.")
    if caveat is not None:
        return caveat.cure if step.kind == "cure" else caveat.reason
    earn = "earn" if reading.result.minimize is False else "come to"
    test = f": an A/B test of {about}, split evenly, would confirm a lift of this size" if step.rows else ""
    decide = f"Collect {about}: that many would show a difference of this size."
    return {
        "stay": f"Keep {against}.",
        "differ": f"Look for a policy that differs more: this one and {against} {earn} about the same.",
        "collect": decide if step.rows else f"Collect more {unit} before you decide.",
        "ask again": f"Collect {about if step.rows else f'more {unit}'}, and evaluate again.",
        "test": f"Test it live, and log its propensities{test}.",
        "go on exploring": "Keep a little exploration, so that the next log can evaluate its successor.",
    }.get(step.kind, f"Collect more {unit} before you rely on it.")


# -- A decision and a verdict, in a few words ---------------------------------------------------------------------------


def decided(
    decision: Decision, against: str, decisions: Sequence[str], *, minimize: bool | None, why_not: str = ""
) -> list[str]:
    """A decision in a few words, what shows it (or why there is none), and the others' decisions, if there are any."""
    less, more = ("above", "below") if minimize else ("below", "above")
    either = "higher or lower" if minimize is None else "better or worse"
    so = ", and less is better" if minimize else ""
    unsaid = "it is not known whether less is better"
    said = {
        "better": [f"Better than {against}.", f"All of the interval is {more} 0{so}."],
        "worse": [f"Worse than {against}.", f"All of the interval is {less} 0{so}."],
        "higher": [f"Higher than {against}.", f"All of the interval is above 0; {unsaid}."],
        "lower": [f"Lower than {against}.", f"All of the interval is below 0; {unsaid}."],
        "not decided": ["Not decided.", why_not or f"It may be {either} than {against}: the interval includes 0."],
        "cannot say": ["Cannot say.", why_not],
    }[decision]
    if len(decisions) > 1:
        every = all_of(len(decisions))
        said.append(f"Of {every}: {counts(decisions, DECISIONS)}, corrected for looking at {every}.")
    return said


def why_not(reading: Reading) -> str:
    """Why there is no decision, where the interval of the change does not show it."""
    if reading.best.decision == "cannot say":
        return "The log does not cover what it does."
    is_value = scale_of([reading.best]) == "value"
    return f"There is no interval of its difference from {rival(reading)}." if is_value else ""


def verdict_word(reading: Reading, change: Change) -> str:
    """The verdict on a change, in a word or two."""
    return reading.result.verdict_on(change.target, reading.primary, change.segment)


def reliance(reading: Reading) -> tuple[str, str]:
    """What the verdict on the best target rests on, and how much more there is to read."""
    change, fine = reading.best, "No problems found in the weights or rewards."
    diagnostics = reading.result.all_diagnostics.get((change.target, None))
    if verdict_word(reading, change) == "model only":
        return "The number comes from a reward model alone; the log does not check it.", ""
    if caveats := change.verdict.caveats:
        # the first half of a text about what is missing is in the answer
        is_half = change.is_bounds and caveats[0] == change.missing and caveats[0].left
        more = f" {len(caveats) - 1} more to read in the checks below." if len(caveats) > 1 else ""
        return caveats[0].left if is_half else caveats[0].text, more
    if diagnostics is None or not diagnostics.mean_is_one:
        return fine, ""
    cells = diagnostics.cells()
    worth, mean = (cell_text(cells[name]) for name in ("effective_sample_size", "mean_weight"))
    return (
        f"{fine} Weights average {mean}, and should average 1; the effective sample size is {worth} {reading.unit}s.",
        "",
    )


def title(reading: Reading) -> str:
    """The title of a page: "Clicks +78 %: pi_best on clicks.csv"."""
    change, scale, log = reading.best, scale_of([reading.best]), log_name(reading)
    said = "cannot say" if change.is_silent else written(on_scale(change, scale), scale)[0]
    against = "" if reading.is_against_log else f" against {rival(reading)}"
    return f"{capital(reading.reward)} {said}: {change.target}{against}{f' on {log}' if log else ''}"


def caption(reading: Reading, scale: Scale) -> Phrase:
    """What the picture of all changes shows."""
    reward, against, many = Name(reading.reward), rival(reading), len(reading.changes)
    mean = f": {amount(reading, *reading.logged_digits)} per {units(reading)}" if reading.is_against_log else ""
    order = f", {'highest' if reading.result.minimize is None else 'best'} first" if many > 1 else ""
    bars = f"{level_of(reading.result.level)} intervals{f', for {all_of(many)} at once' if many > 1 else ''}"
    if scale == "value":
        return Phrase([reward, f" per {reading.unit}{order}, with {bars}; the dashed line is the logging policy{mean}"])
    lift = "Lift in " if reading.is_against_log else "Difference in "
    return Phrase([lift, reward, f" against {against}{mean} (the dashed line){order}, with {bars}"])


def foremost_are(reading: Reading) -> str:
    """What the targets have in common that come first."""
    return "lowest estimates" if reading.result.minimize else "highest estimates"


def all_of(count: int) -> str:
    """How many, as people say it.

    >>> all_of(2), all_of(12)
    ('both', 'all 12')
    """
    return "both" if count == 2 else f"all {count:,}"


def counts(words: Sequence[str], order: Sequence[str] = ()) -> str:
    """How many there are of each kind, in this order, or as they come.

    >>> counts(["ok", "caution", "ok"]), counts(["ok", "caution", "ok"], ["caution", "ok"])
    ('2 ok, 1 caution', '1 caution, 2 ok')
    """
    kinds = Counter(words)
    return ", ".join(f"{kinds[word]:,} {word}" for word in order or kinds if kinds[word])


def capital(words: str) -> str:
    """Words at the beginning of a sentence."""
    return words[:1].upper() + words[1:]
