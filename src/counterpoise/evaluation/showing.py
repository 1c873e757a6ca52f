"""What a result shows of itself: the answer in at most 40 lines, everything where that is asked for, and a JSON document."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING

from counterpoise.diagnostics import WRONG_PROPENSITIES, Caveat
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
from counterpoise.estimators import Estimate
from counterpoise.evaluation.ranking import Driver, drivers, ranking_of
from counterpoise.evaluation.reading import Reading, basis
from counterpoise.evaluation.story import Change, KnownPart, Story, size_of, story_of
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
    r per row, had new run instead of what ran · 1,200 rows
    <BLANKLINE>
    new: +20 % r (+18 to +22 %), from 33.33 to 40.0 per 100 rows. Better than what ran, and you can rely on it (ok).
    <BLANKLINE>
    target     value  ± error  change  95 % interval  decision  trust
    new        0.400  ± 0.013   +20 %  +18 to +22 %   better    ok
    what ran  0.3333
    95 % intervals (student) by beta_ips.
    <BLANKLINE>
    Next: Test it live, and log its propensities: about 1,600 rows, half of them with it, would confirm a change of this size.
    Then: Keep a little exploration, or the next log cannot judge its successor.
    Every segment and estimator: .table(). A page for others: .report('report.html').
    """
    story = story_of(result)
    yield replace(story.asked(), is_quiet=True)
    yield ""
    yield story.sentence()
    if (known := story.known_part()) is not None:
        yield known
    yield ""
    is_whole = rows is None
    yield from _targets(story, is_whole=is_whole)
    yield from _caveats(story, is_whole=is_whole)
    yield from _segments(story, is_whole=is_whole)
    if rows is None:
        yield from _everything(story.reading)
    yield ""
    for k, step in enumerate(story.next_steps()[:STEPS]):
        yield Sentence(f"{'Then' if k else 'Next'}: {verbatim(step)}", story.unit)
    yield Pointer(
        f"{_other_rewards(result)}Every segment and estimator: .table(). A page for others: .report('report.html')."
    )


def _other_rewards(result: Result) -> str:
    """Where to find the results for the other rewards; nothing if there is only one reward."""
    if not result.others:
        return ""
    own = f"This is about {shortened(result.reward)}. "
    names = list(result.others)
    listed = ", ".join(f".of({shortened(name)!r})" for name in names[:4])
    return f"{own}For the other rewards, see {listed}{f' and {len(names) - 4:,} more' if len(names) > 4 else ''}. "


# -- A row for each target, and for each segment -----------------------------------------------------------------------


def _targets(story: Story, *, is_whole: bool) -> Iterator[Block]:
    """The change by every target, best first, and what they rest on."""
    limit = None if is_whole else TARGETS_WITH_SEGMENTS if story.result.segment_rows else ROWS
    yield changes_table(story, story.changes[:limit])
    if left := story.changes[len(story.changes[:limit]) :]:
        yield f"… and {_counts('more policy', 'more policies', [change.decision for change in left])}"
    yield basis(story.reading)


def changes_table(story: Story, changes: Sequence[Change]) -> Table:
    """A row for each of these changes over the whole log: value, change, decision and trust; what ran comes last."""
    rows: list[dict[str, Cell]] = [{"target": Name(change.target), **change_cells(story, change)} for change in changes]
    if not story.reading.is_difference:
        mean, error = story.reading.logged_digits
        empty: dict[str, Cell] = dict.fromkeys(rows[0], "")
        rows.append(empty | {"target": "what ran", "value": Number(mean, error), "lower": None, "upper": None})
    return _as_table(story, rows, ["target", "value", "error", "change", "interval", "decision", "trust"])


def segments_table(story: Story, changes: Sequence[Change], marks: Sequence[str] = ()) -> Table:
    """A row for each of these segments, against what ran in it; `marks` say why each is shown."""
    rows: list[dict[str, Cell]] = [
        {
            "mark": mark,
            "target": Name(change.target),
            "segment": Name(change.where),
            "rows": change.rows,
            "ran": Number(change.ran, change.value.stderr if change.lift is None else change.lift.stderr),
            **change_cells(story, change),
        }
        for change, mark in zip(changes, marks or [""] * len(changes), strict=True)
    ]
    target = ["target"] if len({change.target for change in changes}) > 1 else []
    ran = [] if story.reading.is_difference else ["ran"]
    shown = ["mark", *target, "segment", "value", "error", *ran, "change", "interval", "decision", "trust", "rows"]
    return _as_table(story, rows, shown)


def change_cells(story: Story, change: Change) -> dict[str, Cell]:
    """The cells that every change has, all to the digits of its errors; `lower` and `upper` are the ends of its interval."""
    value, lift, relative = change.value, change.lift, change.relative
    is_signed = story.reading.is_difference
    low, high = (str(Number(end, value.stderr, is_signed)) for end in value.interval)
    size: Cell = "" if lift is None else Number(_known(lift), lift.stderr, is_signed=True)
    known = relative or lift
    if change.decision == "cannot say":
        size, relative, known = "", None, None
    return {
        "value": Worded(None, low) if change.is_bounds else Number(_known(value), value.stderr, is_signed),
        "error": Worded(None, f"to {high}") if change.is_bounds else _plus_minus(story, change),
        "change": size if relative is None else Percent(_known(relative), change.points),
        "interval": "" if known is None else change.span,
        "decision": change.decision,
        "trust": _trust(story, change),
        "lower": None if known is None else Number(known.interval.lower),
        "upper": None if known is None else Number(known.interval.upper),
    }


def _known(estimate: Estimate) -> float | None:
    return estimate.value if estimate.identified else None


def _plus_minus(story: Story, change: Change) -> Cell:
    """The error of a value; none where too few rows carry it, and the interval alone says how far off it may be."""
    error, is_of_rows = change.value.stderr, not story.result.is_model_only(story.reading.primary)
    if not change.value.identified or not math.isfinite(error) or (is_of_rows and change.verdict.rests_on_few):
        return ""
    return Worded(error, f"± {Number(error, error)}")


def _trust(story: Story, change: Change) -> str:
    """The verdict in a word, and the codes of what speaks against it."""
    word = story.result.verdict_on(change.target, story.reading.primary, change.segment)
    codes = [caveat.code for caveat in change.verdict.caveats if caveat.severity != "note"]
    codes.sort(key=lambda code: code != MISSING)
    more = f" (+{len(codes) - 1})" if len(codes) > 1 else ""
    return f"{word}: {codes[0]}{more}" if codes and word != "model only" else word


def _as_table(story: Story, rows: Sequence[Mapping[str, Cell]], shown: Sequence[str]) -> Table:
    """The columns that have something to show; a difference is shown once, even where it is no share of anything."""
    is_share = any(isinstance(row["change"], Percent) for row in rows)
    twice = ["change"] if story.reading.is_difference and not is_share else []
    filled = [name for name in shown if name not in twice and any(row[name] != "" for row in rows)]
    titles = {
        "mark": "",
        "value": "difference" if story.reading.is_difference else "value",
        "error": "± error",
        "segment": shortened(", ".join(story.result.moments.segment_columns), NARROW),
        "ran": "what ran",
        "interval": breakable(f"{level_of(story.result.level)} interval"),
        "rows": f"{story.unit}s",
    }
    return Table(rows, shown=filled, titles=titles)


def _segments(story: Story, *, is_whole: bool) -> Iterator[Block]:
    """How a target changes each segment against what ran there: all segments if there are few, else the least and the most."""
    result = story.result
    if not result.segment_rows:
        return
    columns, count = shortened(", ".join(result.moments.segment_columns)), len(result.segment_rows)
    yield ""
    if count > COMPARED and not is_whole:
        yield f"By {columns}: {count:,} segments are too many to compare in a few lines; see .table()."
        return
    target = "each policy" if is_whole and len(result.targets) > 1 else shortened(story.best.target)
    together = f"; these intervals hold for all {count:,} at once" if count > 1 else ""
    yield f"By {columns} ({count:,}), {target} against {story.rival} there{together}:"
    if is_whole:
        yield segments_table(story, [each for change in story.changes for each in story.segments(change.target)])
        yield from _wrong_segments(result)
        return
    changes = story.segments()
    if count <= PLACES:
        yield segments_table(story, changes)
    else:
        known = sorted((each for each in changes if each.decision != "cannot say"), key=size_of)
        least, most = known[:2], known[2:][-2:]
        marks = ["least", ""][: len(least)] + ["", "most"][-len(most) or 2 :]
        yield segments_table(story, [*least, *most], marks)
        shown = {each.segment for each in (*least, *most)}
        rest = [each.verdict.verdict for each in changes if each.segment not in shown]
        yield f"… and {_counts('more segment', 'more segments', rest)}"
    yield from _wrong_segments(result)


def _counts(one: str, many: str, words: Sequence[str]) -> str:
    """How many there are, and how many of each kind."""
    kinds = ", ".join(f"{count:,} {word}" for word, count in Counter(words).items())
    return f"{len(words):,} {one if len(words) == 1 else many}: {kinds}"


# -- Whether to believe it ---------------------------------------------------------------------------------------------


def _caveats(story: Story, *, is_whole: bool) -> Iterator[Block]:
    """What to know about the targets that are not simply to be believed: the one that the answer is about first."""
    result, best = story.result, story.best
    others = [change for change in story.changes if change is not best]
    listed = {change.target: _doubts(change) for change in (best, *others)}
    doubted = [change for change in (best, *others) if listed[change.target]]
    if not doubted:
        return
    yield ""
    shown = doubted if is_whole else doubted[:DOUBTS]
    for change in shown:
        # what to do about the answer's own caveats follows as its next steps
        steps = story.next_steps() if change is best and not is_whole else []
        reasons = [caveat.text if caveat.do in steps else caveat.reason for caveat in listed[change.target]]
        yield Judged(f"{shortened(change.target)}: ", change.verdict.verdict, reasons, is_listed=not is_whole)
    if left := [result.verdict(change.target).verdict for change in doubted[len(shown) :]]:
        yield f"… and {_counts('more policy', 'more policies', left)}"


def _doubts(change: Change) -> list[Caveat]:
    """The caveats of a change, less the question that is a next step anyway."""
    return [caveat for caveat in change.verdict.caveats if caveat.code != WHICH_WAY]


# -- Everything --------------------------------------------------------------------------------------------------------


def _everything(reading: Reading) -> Iterator[Block]:
    """Every estimate, what drives a comparison, every segment in doubt, and the bias ladder."""
    result = reading.result
    yield ""
    yield "Every estimate:"
    yield estimates(reading)
    if any(map(result.is_model_only, result.estimators)):
        yield "model only: this rests on the reward model alone, whatever the log shows."
    if result.against:
        yield ""
        yield from _comparison(result)
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


def _comparison(result: Result) -> Iterator[Block]:
    """The ranking, and what drives the difference of each target."""
    ranked = ranking_of(result)
    if len(ranked) > 1:
        yield "These intervals hold for all targets at once:"
    yield ranked.cells()
    for policy in ranked:
        if parts := drivers(result, policy.target):
            yield ""
            yield f"What drives the difference of {policy.target}; the parts add up to it:"
            yield _drivers(parts, f"{result.moments.weight.unit}s")


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
            "The action itself, or what came of it, makes right propensities look wrong."
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
    said = _said(result) | _sizes(result) | {"estimates": estimates, "diagnostics": diagnostics} | _rest(result)
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
    said = _sizes(result) | {"against": result.against, "level": result.level, "differences": differences}
    return finite(_said(result) | said | _rest(result))


def _sizes(result: Result) -> dict[str, object]:
    """How many rows there are, how many there were before sampling, if they were sampled, and how many looks at them."""
    before, looks = result.rows_before, result.moments.looks
    sizes: dict[str, object] = {"n": result.n}
    sizes |= {} if before is None else {"rows_before": before}
    return sizes | ({"looks": looks} if looks > 1 else {})


def _said(result: Result) -> dict[str, object]:
    """What both documents begin with: what was asked, the answer in words, and the change by every target, in every segment."""
    story = story_of(result)
    mean, error = story.reading.logged
    places = [change for target in story.changes for change in story.segments(target.target)]
    return {
        "reward": result.reward,
        "minimize": result.minimize,
        "log": story.log or None,
        "unit": story.unit,
        **({} if result.moments.labels is None else {"labels": result.moments.labels}),
        "answer": breakable(str(story.sentence())),
        "known_part": None if (known := story.known_part()) is None else breakable(str(known)),
        "logged": {"mean": mean, "stderr": error},
        "changes": [_changed(change) for change in (*story.changes, *places)],
        "next_steps": [breakable(step) for step in story.next_steps()],
    }


def _changed(change: Change) -> dict[str, object]:
    return {
        "target": change.target,
        "segment": _segment(change.segment),
        "n": change.rows,
        "logged": change.ran,
        "difference": None if change.is_silent else _ends(change.lift),
        "relative": None if change.is_silent else _ends(change.relative),
        "elsewhere": None if change.elsewhere is None else _elsewhere(change.elsewhere),
        "decision": change.decision,
        "verdict": change.verdict.verdict,
    }


def _elsewhere(known: KnownPart) -> dict[str, object]:
    """What is known of a target where the log has all that it does."""
    difference, relative = _ends(known.lift), _ends(known.relative)
    return {"where": known.where or None, "n": known.rows, "difference": difference, "relative": relative}


def _ends(estimate: Estimate | None) -> dict[str, float] | None:
    """An estimate and its interval, which holds for all targets, or for all segments of one, at once."""
    if estimate is None:
        return None
    numbers = (
        estimate.value,
        estimate.stderr,
        estimate.interval.lower,
        estimate.interval.upper,
        estimate.interval.level,
    )
    return dict(zip((*ESTIMATE, "level"), numbers, strict=True))


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
