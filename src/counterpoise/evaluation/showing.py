"""What a result shows of itself: in at most 40 lines of text, with everything on the command line, and as a JSON document."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from counterpoise.diagnostics import WRONG_PROPENSITIES
from counterpoise.display import (
    ESTIMATE,
    ROWS,
    Block,
    Cell,
    Judged,
    Name,
    Number,
    Phrase,
    Share,
    Table,
    counted,
    finite,
    shortened,
)
from counterpoise.evaluation.ranking import Driver, drivers, ranking_of
from counterpoise.evaluation.reading import Reading, basis, headline, read
from counterpoise.moments.log_moments import Segment, segment_text

if TYPE_CHECKING:
    from counterpoise.evaluation.result import Result

VERDICTS = 6  # of targets over the whole log
DOUBTS = 3  # of segments
JUDGED = 1000  # segments, the largest, among which doubts are looked for
DRIVERS = 10  # segments of each target; documents have all

Key = tuple[str, str, Segment]


def blocks(result: Result, *, rows: int | None = ROWS) -> Iterator[Block]:
    """What `print(result)` shows, or the command line, which has room for everything.

    >>> from counterpoise import evaluate
    >>> log = {"r": [1, 0, 0, 1, 0, 0] * 200, "p": [0.5] * 1200, "new": [0.7, 0.3, 0.5, 0.5, 0.4, 0.6] * 200}
    >>> print(evaluate(log, reward="r", propensity="p", target="new", estimator=["ips", "beta_ips"]))
    new would have earned 0.400 per row (95 % interval: 0.374 to 0.425), a lift of +0.0667 (+20 %) over the 0.3333 that was logged
    (+0.0605 to +0.0727).
    1,200 rows; 95 % intervals (student) by beta_ips.
    <BLANKLINE>
    target  estimator  value  stderr  lower  upper  verdict
    new     beta_ips   0.400   0.013  0.374  0.425  ok
    new     ips        0.400   0.017  0.367  0.433  ok
    <BLANKLINE>
    new: ok
    """
    reading = read(result)
    yield Phrase(headline(reading))
    yield basis(reading)
    if rows is not None:
        yield from other_rewards(result)
    yield ""
    if rows is None and result.against:
        yield from _comparison(result)
    else:
        yield estimates(reading, rows)
    yield ""
    yield from verdicts(reading, is_whole=rows is None)
    if rows is None and result.ladders:
        yield ""
        yield "The bias ladder, from the unbiased weight to the most biased:"
        yield Table([row for ladder in result.ladders.values() for row in ladder.rows()])


def other_rewards(result: Result) -> list[str]:
    """Where to find the results for the other rewards; nothing if there is only one reward."""
    if not result.others:
        return []
    own = f"This is about {shortened(result.reward)}. "
    names = list(result.others)
    listed = ", ".join(f".of({shortened(name)!r})" for name in names[:4])
    return [f"{own}For the other rewards, see {listed}{f' and {len(names) - 4:,} more' if len(names) > 4 else ''}."]


def estimates(reading: Reading, limit: int | None) -> Table:
    """The estimates to show if there is room for so many; those of the estimator behind the headline stand out among others."""
    keys = list(reading.result.estimates) if limit is None else important(reading, limit)
    is_mixed = len({key[1:] for key in keys}) > 1
    answers = (k for k, (_, name, place) in enumerate(keys) if name == reading.primary and place is None)
    strong = frozenset(answers) if is_mixed else frozenset()
    return replace(reading.result.cells(keys), strong=strong, left_out=len(reading.result.estimates) - len(keys))


def important(reading: Reading, limit: int) -> list[Key]:
    """The estimates to show if there is room for so many: all of them, or those that matter most.

    The estimator behind the headline comes first, target by target, with the whole log before its segments and large segments before
    small ones. The other estimators are shown if there is room for all of them.
    """
    result, order = reading.result, reading.foremost(limit)
    names = sorted(result.estimators, key=lambda name: name != reading.primary)
    places = sorted({place for _, place in result.verdicts if place is not None}, key=segment_text)
    first = names[:1]
    whole, parts = names, names
    if len(order) * (len(whole) + len(places) * len(parts)) > limit:
        parts = first
    if len(order) * (len(whole) + len(places)) > limit >= len(order) * (1 + len(places)):
        whole = first  # someone who asks for segments would rather see all of them than other estimators
    if len(order) * len(whole) > (limit / 2 if places else limit):
        whole = first
    kept: list[Key] = [(target, name, None) for target in order for name in whole]
    rest = [(target, name, place) for target in order for place in places for name in parts]
    rest.sort(key=lambda key: -result.segment_rows[key[2]])
    rank = {target: k for k, target in enumerate(order)}
    return sorted([*kept, *rest[: limit - len(kept)]], key=lambda key: (rank[key[0]], key[2] is not None))


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


def verdicts(reading: Reading, *, is_whole: bool) -> Iterator[Block]:
    """The verdict on each target, then on the segments in doubt; if there are many, the first of them and how many more there are."""
    result = reading.result
    targets = reading.foremost(len(result.targets))
    whole: list[tuple[str, Segment]] = [(target, None) for target in targets]
    places = sorted(result.segment_rows, key=result.segment_rows.__getitem__, reverse=True)
    judged = ((target, place) for place in places[: None if is_whole else JUDGED] for target in targets)
    doubts = [key for key in judged if result.verdicts[key].verdict != "ok"]
    for keys, limit, what in ((whole, VERDICTS, "target"), (doubts, DOUBTS, "segment")):
        shown = keys if is_whole else keys[:limit]
        for target, place in shown:
            names = [target, *([] if place is None else [segment_text(place)])]
            verdict = result.verdicts[target, place]
            where = " in ".join(names if is_whole else map(shortened, names))
            yield Judged(f"{where}: ", verdict.verdict, verdict.reasons)
        if keys[len(shown) :]:
            yield _count(result, keys[len(shown) :], what)
    if not is_whole and places[JUDGED:]:
        yield f"Only the {JUDGED:,} largest of {len(places):,} segments were judged here; see .table() for all."
    if is_whole:
        yield from _wrong_segments(result)


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


def _count(result: Result, keys: Sequence[tuple[str, Segment]], what: str) -> str:
    counts = Counter(result.verdicts[key].verdict for key in keys)
    said = ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())
    return f"… and {counted(len(keys), f'more {what}')}: {said}"


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


def document(result: Result, more: Callable[[Any], dict[str, Any]] | None = None) -> dict[str, Any]:
    """A result as the command line prints it in JSON; with several rewards, the first one's, and the others' by name.

    `more` is what a command adds to the document of each.
    """
    each = {}
    for name, answer in result.by_reward.items():
        named = {"reward": name} if result.others else {}
        written = _compared(answer) if answer.against else evaluation(answer)
        each[name] = named | written | (more(answer) if more is not None else {})
    first = each.pop(result.reward)
    return first | ({"others": each} if each else {})


def evaluation(result: Result) -> dict[str, Any]:
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
    said = {"n": result.n, "estimates": estimates, "diagnostics": diagnostics} | _rest(result)
    return finite(said | {name: model for name, model in models.items() if model is not None})


def _compared(result: Result) -> dict[str, Any]:
    """What `counterpoise compare --json` prints about one reward: the ranking, and what drives each difference."""
    differences = [
        {
            "target": policy.target,
            "difference": policy.value,
            "stderr": policy.stderr,
            "lower": result.estimates[policy.target, result.best, None].interval.lower,
            "upper": result.estimates[policy.target, result.best, None].interval.upper,
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
    said = {"n": result.n, "against": result.against, "level": result.level, "differences": differences}
    return finite(said | _rest(result))


def _rest(result: Result) -> dict[str, Any]:
    """What both documents end with; the bias ladder only where the log chose a weight's constant."""
    rungs = [row for ladder in result.ladders.values() for row in ladder.rows()]
    verdicts = [
        {"target": target, "segment": _segment(segment)} | verdict.document()
        for (target, segment), verdict in result.verdicts.items()
    ]
    return {"verdicts": verdicts, "dropped_rows": result.dropped_rows} | ({"ladder": rungs} if rungs else {})


def schema() -> dict[str, Any]:
    """The JSON schema of `evaluation`."""
    text = files("counterpoise").joinpath("schema", "evaluate.schema.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def _segment(segment: Segment) -> str | None:
    return None if segment is None else segment_text(segment)
