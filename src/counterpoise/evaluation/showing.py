"""A result as a page of text: the headline, the rows that matter most, and the verdicts, in at most 40 lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from counterpoise.evaluation.headline import basis, headline, plain
from counterpoise.evaluation.reading import Reading, read
from counterpoise.evaluation.result import WHOLE, Result, Segment, segment_text
from counterpoise.evaluation.wording import number, shortened, signed

ROWS = 20  # of the table
VERDICTS = 6  # of targets over the whole log
DOUBTS = 3  # of segments
JUDGED = 1000  # segments, the largest, among which doubts are looked for

Key = tuple[str, str, Segment]


def as_text(result: Result) -> str:
    """What `print(result)` shows.

    >>> from counterpoise import evaluate
    >>> log = {"r": [1, 0, 0, 1, 0, 0] * 200, "p": [0.5] * 1200, "new": [0.7, 0.3, 0.5, 0.5, 0.4, 0.6] * 200}
    >>> print(as_text(evaluate(log, reward="r", propensity="p", target="new", estimator=["ips", "beta_ips"])))
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
    shown = important(reading, ROWS)
    more = len(result.estimates) - len(shown)
    return "\n".join(
        [
            plain(headline(reading)),
            plain([basis(reading)]),
            *other_rewards(result),
            "",
            *aligned([columns(reading), *(cells(reading, key) for key in shown)]),
            *([f"… and {more:,} more row{'s' if more > 1 else ''}; see .table()"] if more else []),
            "",
            *verdict_lines(reading),
        ]
    )


def other_rewards(result: Result) -> list[str]:
    """Where to find the results for the other rewards; nothing if there is only one reward."""
    if not result.others:
        return []
    own = f"This is about {shortened(result.reward)}. "
    names = list(result.others)
    listed = ", ".join(f".of({shortened(name)!r})" for name in names[:4])
    return [f"{own}For the other rewards, see {listed}{f' and {len(names) - 4:,} more' if len(names) > 4 else ''}."]


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
        whole = first  # whoever asks for segments would rather see all of them than other estimators
    if len(order) * len(whole) > (limit / 2 if places else limit):
        whole = first
    kept: list[Key] = [(target, name, None) for target in order for name in whole]
    rest = [(target, name, place) for target in order for place in places for name in parts]
    rest.sort(key=lambda key: -result.segment_rows[key[2]])
    rank = {target: k for k, target in enumerate(order)}
    return sorted([*kept, *rest[: limit - len(kept)]], key=lambda key: (rank[key[0]], key[2] is not None))


def _estimators(result: Result) -> list[str]:
    return list(dict.fromkeys(name for _, name, _ in result.estimates))


def columns(reading: Reading) -> list[str]:
    """The headings of a short table."""
    has_segments = bool(reading.result.moments.segment_columns)
    return [
        "target",
        *(["segment"] if has_segments else []),
        "estimator",
        "value",
        "stderr",
        "lower",
        "upper",
        "verdict",
    ]


def cells(reading: Reading, key: Key) -> list[str]:
    """One row of a short table, as text."""
    result, (target, name, place) = reading.result, key
    estimate = result.estimates[key]
    where = [WHOLE if place is None else shortened(segment_text(place), 24)] if result.moments.segment_columns else []
    write = signed if result.is_difference(name) else number
    value = write(estimate.value, estimate.stderr) if estimate.identified else "–"
    ends = [write(end, estimate.stderr) for end in estimate.interval]
    verdict = result.verdict_on(target, name, place)
    return [shortened(target, 24), *where, name, value, number(estimate.stderr, estimate.stderr), *ends, verdict]


def verdict_lines(reading: Reading) -> Iterator[str]:
    """The verdict on each target, then on the segments in doubt; if there are many, the first of them and how many more there are."""
    result = reading.result
    targets = reading.foremost(len(result.targets))
    whole: list[tuple[str, Segment]] = [(target, None) for target in targets]
    places = sorted(result.segment_rows, key=result.segment_rows.__getitem__, reverse=True)
    judged = ((target, place) for place in places[:JUDGED] for target in targets)
    doubts = [key for key in judged if result.verdicts[key].verdict != "ok"]
    for keys, limit, what in ((whole, VERDICTS, "target"), (doubts, DOUBTS, "segment")):
        for target, place in keys[:limit]:
            where = "" if place is None else f" in {shortened(segment_text(place))}"
            yield f"{shortened(target)}{where}: {result.verdicts[target, place]}"
        if keys[limit:]:
            yield _count(result, keys[limit:], what)
    if places[JUDGED:]:
        yield f"Only the {JUDGED:,} largest of {len(places):,} segments were judged here; see .table() for all."


def _count(result: Result, keys: Sequence[tuple[str, Segment]], what: str) -> str:
    counts = Counter(result.verdicts[key].verdict for key in keys)
    said = ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())
    return f"… and {len(keys):,} more {what}{'s' if len(keys) > 1 else ''}: {said}"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows in aligned columns: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = {k for k, title in enumerate(rows[0]) if title in ("value", "stderr", "lower", "upper")}
    for row in rows:
        padded = [
            f"{cell:>{w}}" if k in numbers else f"{cell:<{w}}"
            for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(padded).rstrip()
