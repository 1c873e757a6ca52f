"""The first screen of a page: what was asked, the change, the decision, whether to trust it, what to do next, and one picture."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from counterpoise.diagnostics.verdict import MISSING
from counterpoise.display import Phrase, cell_text, level_of, number, percent_change, signed
from counterpoise.estimators import Estimate
from counterpoise.evaluation.story import Change, Decision, Story, points_of
from counterpoise.report.markup import Safe, el, join, left_out, name_of, phrase
from counterpoise.report.plots import Axis, forest_axis, percent_tick, strip_axis, strip_of, tick_text
from counterpoise.report.tables import badge

DRAWN = 20  # targets in the picture
STEPS = 3
Scale = Literal["share", "difference", "value"]  # what is drawn: a share of what ran, a difference from it, or values
# CSS classes; whether higher and lower are good is not known
KINDS = {
    "better": "better",
    "worse": "worse",
    "higher": "open",
    "lower": "open",
    "not decided": "open",
    "cannot say": "open",
}
SIGNS = {"better": "▲", "worse": "▼", "higher": "▲", "lower": "▼", "not decided": "◆", "cannot say": "✕"}
FLIPPED = {
    "better": "▼",
    "worse": "▲",
}  # where less is better: an arrow shows where the number goes, and its color whether that is good


@dataclass(frozen=True)
class PictureRow:
    """A row of the picture: a name, its change as drawn and as written, and what it earns."""

    name: str
    estimate: Estimate | None
    change: str
    span: str
    earns: object
    decision: Decision
    verdict: str


@dataclass(frozen=True)
class Opening:
    """What the first screen says."""

    question: Safe
    change: Safe
    certainty: object
    decision: Decision
    decided: Sequence[str]  # the decision in a few words, and what else to know about it
    trust: Safe
    steps: Sequence[str]
    caption: Safe
    rows: Sequence[PictureRow]
    axis: Axis
    reference: float = 0.0
    scale: Scale = "share"
    note: object = ""
    who: object = ""  # what comes before the change in the same sentence
    rest: object = ""  # and after it
    words: object = ""  # a further sentence
    minimize: bool | None = False  # whether less is better


def first_screen(opening: Opening, *, is_first: bool = True) -> Safe:
    """The first screen as HTML; its heading is the sentence that answers, with the change set large."""
    heading, under = ("h1", "h2") if is_first else ("h2", "h3")
    kind = KINDS[opening.decision]
    first, *more = opening.decided
    signs = SIGNS | FLIPPED if opening.minimize else SIGNS
    decision = [el("p", el("b", signs[opening.decision], " ", first, class_=kind), *(f" {said}" for said in more))]
    steps = el("ol", *(el("li", el("bdi", step)) for step in opening.steps[:STEPS]))
    bodies = {"Decision": decision, "Can we trust it?": [opening.trust], "What to do next": [steps]}
    cards = [el("div", el(under, title), *body, class_="card") for title, body in bodies.items()]
    size = "answer" if opening.certainty or opening.rest else "answer long"  # a sentence without a number
    sentence = [
        el("small", opening.who, class_="who") if opening.who else "",
        el("span", opening.change, class_=f"change {kind}"),
        el("small", opening.certainty, class_="certainty") if opening.certainty else "",
        el("small", opening.rest, class_="rest") if opening.rest else "",
    ]
    return join(
        [
            el("p", opening.question, class_="asked"),
            el(heading, *sentence, class_=size),
            el("p", opening.words, class_="words") if opening.words else "",
            el("div", *cards, class_="cards"),
            _picture(opening) if opening.rows else "",
            opening.note,
        ]
    )


def _picture(opening: Opening) -> Safe:
    """Every row, best first: rows of text with a strip each, whose letters do not shrink on a narrow screen."""
    write = percent_tick if opening.scale == "share" else tick_text
    axis = el("li", el("span", strip_axis(opening.axis, write), class_="plot"), class_="axis", aria_hidden="true")
    rows = [_row(row, opening) for row in opening.rows]
    return el("figure", el("figcaption", opening.caption), el("ol", *rows, axis, class_="picture", role="list"))


def _row(row: PictureRow, opening: Opening) -> Safe:
    kind = KINDS[row.decision]
    drawn = strip_of(row.estimate, opening.axis, opening.reference, kind)
    doubt = "" if row.verdict == "ok" else badge(row.verdict)
    return el(
        "li",
        el("span", name_of(row.name, 60), class_="who"),
        el("span", drawn, class_="plot"),
        el("span", el("b", row.change), " ", el("span", row.span, class_="range"), class_="size"),
        el("span", row.earns, class_="earns"),
        el("span", row.decision, " ", doubt, class_="said"),
        class_=kind,
    )


# -- A change as it is drawn and written, here and in the table of segments ---------------------------------------------


def scale_of(changes: Sequence[Change]) -> Scale:
    """What changes are drawn as: shares of what ran, where that is known of any."""
    if any(change.relative is not None for change in changes):
        return "share"
    return "difference" if any(change.lift is not None for change in changes) else "value"


def on_scale(change: Change, scale: Scale) -> Estimate | None:
    """The estimate that is drawn of a change; None where the log has no number for it."""
    if change.is_silent:
        return None
    return {"share": change.relative, "difference": change.lift, "value": change.value}[scale]


def written(estimate: Estimate | None, scale: Scale) -> tuple[str, str]:
    """A change, and its interval; where there are only bounds, they are the change.

    >>> from counterpoise.intervals import Interval
    >>> texts = written(Estimate("lift", 0.78, 0.05, 100, 0.0, Interval(0.68, 0.87, 0.95, "normal")), "share")
    >>> [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts]
    ['+78 %', '+68 to +87 %']
    """
    if estimate is None:
        return "–", ""
    low, high = ends_of(estimate, scale)
    if estimate.identified:
        return _write(estimate.value, estimate, scale), f"{low.removesuffix(PERCENT)} to {high}"
    if not all(map(math.isfinite, estimate.interval)):
        return "cannot say", ""
    return f"{low.removesuffix(PERCENT)} to {high}", "bounds"


def ends_of(estimate: Estimate, scale: Scale) -> tuple[str, str]:
    """The ends of an interval, as written."""
    low, high = (_write(end, estimate, scale) for end in estimate.interval)
    return low, high


PERCENT = "\N{NO-BREAK SPACE}%"


def _write(value: float, estimate: Estimate, scale: Scale) -> str:
    if scale == "share":
        return percent_change(value, points_of(estimate))
    return (signed if scale == "difference" else number)(value, estimate.stderr)


# -- The opening of an evaluation or a comparison -----------------------------------------------------------------------


def opening_of(story: Story, dates: str = "") -> Opening:
    """What the first screen says of one reward."""
    best, shown = story.best, story.changes[:DRAWN]
    scale = scale_of(shown)
    reference = story.reading.logged[0] if scale == "value" else 0.0
    pairs = [(on_scale(change, scale), change) for change in shown]
    known = [(estimate, change) for estimate, change in pairs if estimate is not None]
    matters = [change is best or change.verdict.verdict == "ok" for _, change in known]
    said = story.answer
    return Opening(
        question=join([phrase(story.asked()), f" · {dates}" if dates else ""]),
        change=phrase(Phrase(said.change)),
        certainty=phrase(Phrase(said.certainty)) if said.certainty else "",
        decision=best.decision,
        decided=decided(
            best.decision,
            story.rival,
            [each.decision for each in story.changes],
            minimize=story.result.minimize,
            why_not=_why_not(story),
        ),
        trust=_trust(story),
        steps=story.next_steps() or ["Read the checks below, then decide."],
        caption=_caption(story, scale),
        rows=[_picture_row(story, change, scale) for change in shown] if known else [],
        axis=forest_axis([estimate for estimate, _ in known], matters, reference),
        reference=reference,
        scale=scale,
        note=left_out(len(story.changes), DRAWN, "policies", story.reading.first),
        who=phrase(Phrase(said.who)) if said.who else "",
        rest=phrase(Phrase(said.rest)) if said.rest else "",
        words=_words(story),
        minimize=story.result.minimize,
    )


def title_of(story: Story) -> str:
    """The title of the page's tab: "Clicks +78 %: pi_best on clicks.csv"."""
    change, scale = story.best, scale_of([story.best])
    said = "cannot say" if change.is_silent else written(on_scale(change, scale), scale)[0]
    rival = "" if story.rival == "what ran" else f" against {story.rival}"
    reward, of = story.reward[:1].upper() + story.reward[1:], f" on {story.log}" if story.log else ""
    return f"{reward} {said}: {change.target}{rival}{of}"


def _words(story: Story) -> Safe:
    """What else is known where the log has no single number for the answer's target."""
    known = story.known_part()
    ran = f"What ran earned {story.amount(*story.reading.logged_digits)} per {story.units}."
    if story.best.is_silent:
        return Safe(ran)
    return Safe("") if known is None else phrase(known)


def decided(
    decision: Decision, rival: str, decisions: Sequence[str], *, minimize: bool | None, why_not: str = ""
) -> list[str]:
    """A decision in a few words, what shows it (or why there is none), and the others' decisions, if there are any."""
    less, more = ("above", "below") if minimize else ("below", "above")
    either = "higher or lower" if minimize is None else "better or worse"
    so = ", and less is better" if minimize else ""
    said = {
        "better": [f"Better than {rival}.", f"All of the interval is {more} 0{so}."],
        "worse": [f"Worse than {rival}.", f"All of the interval is {less} 0{so}."],
        "higher": [f"Higher than {rival}.", "All of the interval is above 0; nobody said whether less is better."],
        "lower": [f"Lower than {rival}.", "All of the interval is below 0; nobody said whether less is better."],
        "not decided": ["Not decided.", why_not or f"It may be {either} than {rival}: the interval includes 0."],
        "cannot say": ["Cannot say.", why_not],
    }[decision]
    if len(decisions) > 1:
        counts = Counter(decisions)
        tally = ", ".join(f"{counts[word]:,} {word}" for word in SIGNS if counts[word])
        said.append(f"Of {all_of(len(decisions))}: {tally}, corrected for looking at {all_of(len(decisions))}.")
    return said


def all_of(count: int) -> str:
    """How many, as people say it.

    >>> all_of(2), all_of(12)
    ('both', 'all 12')
    """
    return "both" if count == 2 else f"all {count:,}"


def _why_not(story: Story) -> str:
    """Why there is no decision, where the interval of the change does not show it."""
    if story.best.decision == "cannot say":
        return "The log does not cover what it does."
    return "" if scale_of([story.best]) != "value" else f"There is no interval of its difference from {story.rival}."


def trust_word(story: Story, change: Change) -> str:
    """The verdict on a change, in a word or two."""
    return story.result.verdict_on(change.target, story.reading.primary, change.segment)


def _trust(story: Story) -> Safe:
    """The verdict on the best target, and why."""
    change = story.best
    word, caveats = trust_word(story, change), change.verdict.caveats
    said: object = "No problems found in the weights or rewards."
    diagnostics = story.result.all_diagnostics.get((change.target, None))
    if word == "model only":
        said = "The number comes from a reward model alone; the log does not check it."
    elif caveats:
        first = caveats[0]  # the first half of a text about what is missing has been said above
        shown = str(first.left if change.is_bounds and first.code == MISSING and first.left else first.text)
        more = f" {len(caveats) - 1} more to read in the checks below." if len(caveats) > 1 else ""
        said = join([el("bdi", shown), more])
    elif diagnostics is not None and diagnostics.mean_is_one:
        cells = diagnostics.cells()
        worth, mean = (cell_text(cells[name]) for name in ("effective_sample_size", "mean_weight"))
        said = f"{said} Weights average {mean}, and should average 1; they leave {worth} {story.unit}s’ worth of information."
    return el("p", badge(word), " ", said)


def _caption(story: Story, scale: Scale) -> Safe:
    reward, rival, many = name_of(story.reward, 60), story.rival, len(story.changes)
    logged = f": {story.amount(*story.reading.logged_digits)} per {story.units}" if rival == "what ran" else ""
    first = "highest" if story.result.minimize is None else "best"
    order = f", {first} first" if many > 1 else ""
    bars = f"{level_of(story.result.level)} intervals{f', for {all_of(many)} at once' if many > 1 else ''}"
    if scale == "value":
        return join([reward, f" per {story.unit}{order}, with {bars}; the dashed line is what ran{logged}"])
    return join(["Change in ", reward, f" against {rival}{logged} (the dashed line){order}, with {bars}"])


def _picture_row(story: Story, change: Change, scale: Scale) -> PictureRow:
    has_value = change.value.identified and not story.reading.is_difference and not change.is_silent
    earns = story.amount(change.value.value, change.value.stderr) if has_value else ""
    estimate, trust = on_scale(change, scale), trust_word(story, change)
    return PictureRow(change.target, estimate, *written(estimate, scale), earns, change.decision, trust)
