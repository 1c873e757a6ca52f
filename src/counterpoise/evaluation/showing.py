"""What a result shows of itself: the headline, the rows that matter most, and the verdicts, in at most 40 lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from counterpoise.diagnostics import WRONG_PROPENSITIES
from counterpoise.display import ROWS, Block, Cell, Judged, Name, Number, Phrase, Share, Table, counted, shortened
from counterpoise.evaluation.ranking import Driver, drivers, rank
from counterpoise.evaluation.reading import Reading, basis, headline, read
from counterpoise.evaluation.result import Comparison, Result, Segment, segment_text

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
    if rows is None and isinstance(result, Comparison):
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
    names = sorted(_estimators(result), key=lambda name: name != reading.primary)
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


def _estimators(result: Result) -> list[str]:
    return list(dict.fromkeys(name for _, name, _ in result.estimates))


def _comparison(result: Comparison) -> Iterator[Block]:
    """The ranking, and what drives the difference of each target."""
    ranked = rank(result)
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
