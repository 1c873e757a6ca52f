"""What a result shows of itself: the answer in at most 40 lines, everything where that is asked for, and a JSON document."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING

from counterpoise.diagnostics import WRONG_PROPENSITIES
from counterpoise.diagnostics.verdict import MISSING, WHICH_WAY
from counterpoise.display import (
    ESTIMATE,
    NARROW,
    ROWS,
    Block,
    Cell,
    Judged,
    Name,
    Number,
    Percent,
    Pointer,
    Share,
    Table,
    Worded,
    breakable,
    finite,
    level_of,
    shortened,
)
from counterpoise.errors import Sentence, verbatim
from counterpoise.evaluation.ranking import Driver, drivers, ranking_of
from counterpoise.evaluation.reading import Change, KnownPart, Reading, read
from counterpoise.evaluation.wording import (
    Scale,
    asked,
    basis,
    counts,
    known_part,
    log_name,
    next_steps,
    rival,
    sentence,
    size_of,
    span_of,
    verdict_word,
)
from counterpoise.moments.log_moments import Segment, segment_text

if TYPE_CHECKING:
    from counterpoise.evaluation.result import Result

TARGETS_WITH_SEGMENTS = 12  # rows of targets where segments need some room, too
PLACES = 6  # segments that are all shown; of more, the least and the most changed
DOUBTS = 3  # targets whose caveats are read out
STEPS = 3
COMPARED = 1000  # segments, the largest, whose changes are compared in a few lines
DRIVERS = 10  # segments of each target; documents have all


def blocks(result: Result, *, rows: int | None = ROWS) -> Iterator[Block]:
    """What `print(result)`, a notebook's card and a command show: what was asked, the answer, a row for each target, and what to do.

    That is at most 40 lines, the same everywhere; with `rows=None` every segment and estimator follows.

    >>> from counterpoise import evaluate
    >>> log = {"r": [1, 0, 0, 1, 0, 0] * 200, "p": [0.5] * 1200, "new": [0.7, 0.3, 0.5, 0.5, 0.4, 0.6] * 200}
    >>> print(evaluate(log, reward="r", propensity="p", target="new", estimator=["ips", "beta_ips"]))
    Estimated r per row: new against the logging policy · 1,200 rows
    <BLANKLINE>
    new: +20 % r (+18 to +22 %), from 33.33 to 40.0 per 100 rows. Better than the logging policy. Verdict: ok.
    <BLANKLINE>
    target           value  ± error   lift  95 % interval  decision  verdict
    new              0.400  ± 0.013  +20 %  +18 to +22 %   better    ok
    logging policy  0.3333
    95 % intervals (student) by beta_ips.
    <BLANKLINE>
    Next: Test it live, and log its propensities: an A/B test of about 1,600 rows, split evenly, would confirm a lift of this size.
    Then: Keep a little exploration, so that the next log can evaluate its successor.
    Every segment and estimator: .table(). A page for others: .report('report.html').
    """
    reading, is_whole = read(result), rows is None
    yield replace(asked(reading), is_quiet=True)
    yield ""
    yield sentence(reading)
    if (known := known_part(reading)) is not None:
        yield known
    yield ""
    limit = None if is_whole else TARGETS_WITH_SEGMENTS if result.segment_rows else ROWS
    yield changes_table(reading, reading.changes[:limit])
    if left := [change.decision for change in reading.changes[limit:]] if limit else []:
        yield f"… and {_more('policy', 'policies', left)}"
    yield basis(reading)
    yield from _caveats(reading, is_whole=is_whole)
    yield from _segments(reading, is_whole=is_whole)
    if is_whole:
        yield from _everything(reading)
    yield ""
    for k, step in enumerate(next_steps(reading)[:STEPS]):
        yield Sentence(f"{'Then' if k else 'Next'}: {verbatim(step)}", reading.unit)
    others, names = "", list(result.others)
    if names:
        more = f" and {len(names) - 4:,} more" if len(names) > 4 else ""
        listed = ", ".join(f".of({shortened(name)!r})" for name in names[:4])
        others = f"This is about {shortened(result.reward)}. For the other rewards, see {listed}{more}. "
    yield Pointer(f"{others}Every segment and estimator: .table(). A page for others: .report('report.html').")


# -- A row for each target, and for each segment -----------------------------------------------------------------------


def changes_table(reading: Reading, changes: Sequence[Change], marks: Sequence[str] = ()) -> Table:
    """A row for each of these changes; `marks` say why each is shown.

    Over the whole log, the logging policy comes last; a segment has its own beside it. A column has something to show, and a difference is
    shown once, even where it is no share of anything.
    """
    result, is_difference = reading.result, reading.is_difference
    rows: list[dict[str, Cell]] = [
        {
            "mark": mark,
            "target": Name(change.target),
            "segment": Name(change.where) if change.segment is not None else "",
            "rows": change.rows if change.segment is not None else "",
            "ran": Number(change.ran, (change.lift or change.value).stderr) if change.segment is not None else "",
            **change_cells(reading, change),
        }
        for change, mark in zip(changes, marks or [""] * len(changes), strict=True)
    ]
    is_whole = bool(changes) and all(change.segment is None for change in changes)
    hidden = {"ran"} if is_difference else set()
    if is_whole and not is_difference:
        empty: dict[str, Cell] = dict.fromkeys(rows[0], "")
        mean = Number(*reading.logged_digits)
        rows.append(empty | {"target": "logging policy", "value": mean, "lower": None, "upper": None})
    elif not is_whole and len({change.target for change in changes}) == 1:
        hidden.add("target")
    if is_difference and not any(isinstance(row["change"], Percent) for row in rows):
        hidden.add("change")
    shown = ("mark", "target", "segment", "value", "error", "ran", "change", "interval", "decision", "verdict", "rows")
    titles = {
        "mark": "",
        "value": "difference" if is_difference else "value",
        "error": "± error",
        "change": "relative" if is_difference else "lift",
        "segment": shortened(", ".join(result.moments.segment_columns), NARROW),
        "ran": "logging policy",
        "interval": breakable(f"{level_of(result.level)} interval"),
        "rows": f"{reading.unit}s",
    }
    filled = [name for name in shown if name not in hidden and any(row[name] != "" for row in rows)]
    return Table(rows, shown=filled, titles=titles)


def change_cells(reading: Reading, change: Change) -> dict[str, Cell]:
    """The cells that every change has, all to the digits of its errors; `lower` and `upper` are the ends of its interval."""
    value, lift, relative = change.value, change.lift, change.relative
    is_signed, error = reading.is_difference, value.stderr
    known = None if change.decision == "cannot say" else relative or lift
    scale: Scale = "share" if known is relative else "difference"
    # no error where too few rows carry the value, and the interval alone says how far off it may be
    is_guess = change.verdict.rests_on_few and not reading.result.is_model_only(reading.primary)
    has_error = value.identified and math.isfinite(error) and not is_guess
    cells: dict[str, Cell] = {
        "value": Number(value.value if value.identified else None, error, is_signed),
        "error": Worded(error, f"± {Number(error, error)}") if has_error else "",
    }
    if change.is_bounds:
        low, high = (Number(end, error, is_signed) for end in value.interval)
        cells = {"value": Worded(None, str(low)), "error": Worded(None, f"to {high}")}
    # the verdict in a word, and the codes of its caveats
    word = verdict_word(reading, change)
    codes = [caveat.code for caveat in change.verdict.caveats if caveat.severity != "note"]
    codes.sort(key=lambda code: code != MISSING)
    more = f" (+{len(codes) - 1})" if len(codes) > 1 else ""
    has_span = known is not None and (known is relative or any(map(math.isfinite, known.interval)))
    return cells | {
        "change": "" if known is None else size_of(known, scale),
        "interval": span_of(known, scale) if known is not None and has_span else "",
        "decision": change.decision,
        "verdict": f"{word}: {codes[0]}{more}" if codes and word != "model only" else word,
        "lower": None if known is None else Number(known.interval.lower),
        "upper": None if known is None else Number(known.interval.upper),
    }


def _segments(reading: Reading, *, is_whole: bool) -> Iterator[Block]:
    """How a target changes each segment against the logging policy there: all segments if there are few, else the least and the most."""
    result = reading.result
    if not result.segment_rows:
        return
    columns, count = shortened(", ".join(result.moments.segment_columns)), len(result.segment_rows)
    yield ""
    if count > COMPARED and not is_whole:
        yield f"By {columns}: {count:,} segments are too many to compare in a few lines; see .table()."
        return
    target = "each policy" if is_whole and len(result.targets) > 1 else shortened(reading.best.target)
    together = f"; these intervals hold for all {count:,} at once" if count > 1 else ""
    yield f"By {columns} ({count:,}), {target} against {rival(reading)} there{together}:"
    if is_whole:
        yield changes_table(reading, [each for change in reading.changes for each in reading.segments(change.target)])
        yield from _wrong_segments(result)
        return
    changes = reading.segments()
    if count <= PLACES:
        yield changes_table(reading, changes)
    else:
        known = sorted((each for each in changes if each.decision != "cannot say"), key=lambda change: change.size)
        least, most = known[:2], known[2:][-2:]
        marks = ["least", ""][: len(least)] + ["", "most"][-len(most) or 2 :]
        yield changes_table(reading, [*least, *most], marks)
        shown = {each.segment for each in (*least, *most)}
        rest = [each.verdict.verdict for each in changes if each.segment not in shown]
        yield f"… and {_more('segment', 'segments', rest)}"
    yield from _wrong_segments(result)


def _more(one: str, many: str, words: Sequence[str]) -> str:
    """How many more there are, and how many of each kind."""
    return f"{len(words):,} more {one if len(words) == 1 else many}: {counts(words)}"


# -- Whether to believe it ---------------------------------------------------------------------------------------------


def _caveats(reading: Reading, *, is_whole: bool) -> Iterator[Block]:
    """What to know about the targets that are not simply to be believed: the one that the answer is about first."""
    best = reading.best
    ordered = [best, *(change for change in reading.changes if change is not best)]
    # less the question that is a next step anyway
    doubts = [(each, [caveat for caveat in each.verdict.caveats if caveat.code != WHICH_WAY]) for each in ordered]
    doubts = [(change, caveats) for change, caveats in doubts if caveats]
    if not doubts:
        return
    yield ""
    shown = len(doubts) if is_whole else DOUBTS
    for change, caveats in doubts[:shown]:
        # what to do about the answer's own caveats follows as its next steps
        steps = next_steps(reading) if change is best and not is_whole else []
        reasons = [caveat.text if caveat.do in steps else caveat.reason for caveat in caveats]
        yield Judged(f"{shortened(change.target)}: ", change.verdict.verdict, reasons, is_listed=not is_whole)
    if left := [change.verdict.verdict for change, _ in doubts[shown:]]:
        yield f"… and {_more('policy', 'policies', left)}"


# -- Everything --------------------------------------------------------------------------------------------------------


def _everything(reading: Reading) -> Iterator[Block]:
    """Every estimate, what drives a comparison, every segment in doubt, and the bias ladder."""
    result = reading.result
    yield ""
    yield "Every estimate:"
    yield estimates(reading)
    if any(map(result.is_model_only, result.estimators)):
        yield "model only: this rests on the reward model alone, whatever the log shows."
    ranked = ranking_of(result) if result.against else None
    if ranked is not None:
        yield ""
        if len(ranked) > 1:
            yield "These intervals hold for all targets at once:"
        yield ranked.cells()
    for policy in ranked or ():
        if parts := drivers(result, policy.target):
            yield ""
            yield f"What drives the difference of {policy.target}; the parts add up to it:"
            yield _drivers(parts, f"{reading.unit}s")
    doubts = [key for key in result.verdicts if key[1] is not None and result.verdicts[key].verdict != "ok"]
    if doubts:
        yield ""
    for target, place in doubts:
        verdict = result.verdicts[target, place]
        yield Judged(f"{target} in {segment_text(place)}: ", verdict.verdict, verdict.reasons)
    if result.ladders:
        yield ""
        yield "The bias ladder, from the unbiased weight to the most biased:"
        yield Table([row for ladder in result.ladders.values() for row in ladder.rows()])


def estimates(reading: Reading) -> Table:
    """Every estimate; those of the estimator behind the answer stand out among others."""
    keys = list(reading.result.estimates)
    is_mixed = len({key[1:] for key in keys}) > 1
    answers = (k for k, (_, name, place) in enumerate(keys) if name == reading.primary and place is None)
    return replace(reading.result.cells(keys), strong=frozenset(answers) if is_mixed else frozenset())


def _drivers(parts: Sequence[Driver], units: str) -> Table:
    rest = parts[DRIVERS:]
    rows: list[dict[str, Cell]] = [
        {
            "segment": Name(segment_text(part.segment)),
            units: part.rows,
            f"of {units}": Share(part.share_of_rows),
            "part": Number(part.contribution, part.stderr, is_signed=True),
            "stderr": Number(part.stderr, part.stderr),
        }
        for part in parts[:DRIVERS]
    ]
    if rest:
        total = Number(sum(part.contribution for part in rest), parts[0].stderr, is_signed=True)
        share = Share(sum(part.share_of_rows for part in rest))
        counts: dict[str, Cell] = {units: sum(part.rows for part in rest), f"of {units}": share}
        rows.append({"segment": Name(f"{len(rest):,} others"), **counts, "part": total, "stderr": ""})
    return Table(rows)


def _wrong_segments(result: Result) -> Iterator[str]:
    """What is wrong with segments whose weights do not average 1 although all weights do."""
    tested = {
        key: diagnostics.mean_weight_p for key, diagnostics in result.all_diagnostics.items() if diagnostics.mean_is_one
    }
    whole = [p for (_, segment), p in tested.items() if segment is None]
    parts = [p for (_, segment), p in tested.items() if segment is not None]
    # of many segments some have a small p-value by chance
    if parts and min(whole) >= WRONG_PROPENSITIES > min(parts) * len(parts):
        yield (
            "Weights have mean 1 in the whole log but not in every segment: a segment must be known before the choice, such as a country. "
            "Segments by the action itself, or by its outcome, make correct propensities look wrong."
        )


# -- Documents: the same in plain values, and null where there is no finite number ---------------------------------------

DIAGNOSTICS = (
    "effective_sample_size",
    "mean_weight",
    "mean_weight_p",
    "max_weight",
    "pareto_k",
    "zero_weight_share",
    "carrying_rows",
    "effective_clusters",
)


def document(result: Result, more: Callable[[Result], dict[str, object]] | None = None) -> dict[str, object]:
    """A result as the command line prints it in JSON; with several rewards, the first one's, and the others' by name.

    `more` is what a command adds to the document of each.
    """
    each = {}
    for name, answer in result.by_reward.items():
        written = _compared(answer) if answer.against else evaluation(answer)
        each[name] = written | (more(answer) if more is not None else {})
    first = each.pop(result.reward)
    return first | ({"others": each} if each else {})


def evaluation(result: Result) -> dict[str, object]:
    """What `counterpoise evaluate --json` prints about one reward; `schema` describes it.

    >>> from counterpoise import evaluate
    >>> printed = evaluation(evaluate(reward=[1.0, 0.0], propensity=[0.5, 0.5], target=[0.0, 0.0]))
    >>> printed["estimates"][0]["value"], printed["verdicts"][0]["verdict"]
    (None, 'not identified')
    """
    rows = zip(result.cells(result.estimates).records(), result.estimates.items(), strict=True)
    estimates = [
        {
            "target": target,
            "segment": _segment(segment),
            "estimator": estimator,
            **{name: row[name] for name in ESTIMATE},
            "level": estimate.interval.level,
            "baseline": estimate.baseline,
        }
        for row, ((target, estimator, segment), estimate) in rows
    ]
    diagnostics = [
        {"target": target, "segment": _segment(segment)} | {name: getattr(measured, name) for name in DIAGNOSTICS}
        for (target, segment), measured in result.all_diagnostics.items()
    ]
    models = {"model": result.model, "propensity_model": result.propensity_model}
    said = _said(result) | {"estimates": estimates, "diagnostics": diagnostics} | _rest(result)
    return finite(said | {name: model for name, model in models.items() if model is not None})


def _compared(result: Result) -> dict[str, object]:
    """What `counterpoise compare --json` prints about one reward: the ranking, and what drives each difference."""
    differences = [
        {
            "target": policy.target,
            "difference": policy.value,
            "stderr": policy.stderr,
            "lower": result.stated(policy.target, result.best).interval.lower,
            "upper": result.stated(policy.target, result.best).interval.upper,
            "corrected_lower": policy.interval.lower,
            "corrected_upper": policy.interval.upper,
            "corrected_p": policy.p,
            "decision": policy.decision,
            "segments": [
                vars(driver) | {"segment": _segment(driver.segment)} for driver in drivers(result, policy.target)
            ],
        }
        for policy in ranking_of(result)
    ]
    said = {"against": result.against, "level": result.level, "differences": differences}
    return finite(_said(result) | said | _rest(result))


def _said(result: Result) -> dict[str, object]:
    """What both documents begin with: what was asked, the answer in words, the change by every target in every segment, and sizes."""
    reading = read(result)
    mean, error = reading.logged
    places = [change for target in reading.changes for change in reading.segments(target.target)]
    return {
        "reward": result.reward,
        "minimize": result.minimize,
        "log": log_name(reading) or None,
        "unit": reading.unit,
        **({} if result.moments.labels is None else {"labels": result.moments.labels}),
        "answer": breakable(str(sentence(reading))),
        "known_part": None if (known := known_part(reading)) is None else breakable(str(known)),
        "logged": {"mean": mean, "stderr": error},
        "changes": [_changed(change) for change in (*reading.changes, *places)],
        "next_steps": [breakable(step) for step in next_steps(reading)],
        **result.moments.sizes,
    }


def _changed(change: Change) -> dict[str, object]:
    part = change.elsewhere
    return {
        "target": change.target,
        "segment": _segment(change.segment),
        "n": change.rows,
        "logged": change.ran,
        **_ends(None if change.is_silent else change),
        "elsewhere": None if part is None else {"where": part.where or None, "n": part.rows, **_ends(part)},
        "decision": change.decision,
        "verdict": change.verdict.verdict,
    }


def _ends(change: Change | KnownPart | None) -> dict[str, object]:
    """A difference, and the same as a share, with intervals that hold for all targets, or for all segments of one, at once."""
    ends: dict[str, object] = {"difference": None, "relative": None}
    for name, known in {} if change is None else {"difference": change.lift, "relative": change.relative}.items():
        if known is not None:
            numbers = (known.value, known.stderr, *known.interval, known.interval.level)
            ends[name] = dict(zip((*ESTIMATE, "level"), numbers, strict=True))
    return ends


def _rest(result: Result) -> dict[str, object]:
    """What both documents end with; the bias ladder only where the log chose a weight's constant."""
    rungs = [row for ladder in result.ladders.values() for row in ladder.rows()]
    verdicts = [
        {"target": target, "segment": _segment(segment)} | verdict.document()
        for (target, segment), verdict in result.verdicts.items()
    ]
    return {"verdicts": verdicts, "dropped_rows": result.dropped_rows} | ({"ladder": rungs} if rungs else {})


def schema() -> dict[str, object]:
    """The JSON schema of `evaluation`."""
    text = files("counterpoise").joinpath("schema", "evaluate.schema.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def _segment(segment: Segment) -> str | None:
    return None if segment is None else segment_text(segment)
