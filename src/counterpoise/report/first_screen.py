"""The first screen of a page: what was asked, the lift, the decision, the verdict, what to do next, and one picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise.display import Name, Phrase
from counterpoise.estimators import Estimate
from counterpoise.evaluation.reading import Decision, Reading
from counterpoise.evaluation.wording import (
    Scale,
    amount,
    answer,
    asked,
    caption,
    decided,
    foremost_are,
    known_part,
    next_steps,
    on_scale,
    reliance,
    rival,
    scale_of,
    units,
    verdict_word,
    why_not,
    written,
)
from counterpoise.report.markup import Safe, el, join, left_out, phrase
from counterpoise.report.plots import Axis, forest_axis, percent_tick, strip_axis, strip_of, tick_text
from counterpoise.report.tables import badge

DRAWN = 20  # targets in the picture
STEPS = 3
# CSS classes and signs; whether higher and lower are good is not known
KINDS = dict.fromkeys(["higher", "lower", "not decided", "cannot say"], "open") | {"better": "better", "worse": "worse"}
SIGNS = {"better": "▲", "worse": "▼", "higher": "▲", "lower": "▼", "not decided": "◆", "cannot say": "✕"}
# where less is better: an arrow shows where the number goes, and its color whether that is good
FLIPPED = SIGNS | {"better": "▼", "worse": "▲"}


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
    verdict: str
    why: Safe  # that verdict
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
    sign = (FLIPPED if opening.minimize else SIGNS)[opening.decision]
    bodies = {
        "Decision": el("p", el("b", sign, " ", first, class_=kind), *(f" {said}" for said in more)),
        "Verdict": el("p", badge(opening.verdict), " ", opening.why),
        "What to do next": el("ol", *(el("li", el("bdi", step)) for step in opening.steps[:STEPS])),
    }
    size = "answer" if opening.certainty or opening.rest else "answer long"  # a sentence without a number
    sentence = [
        el("small", opening.who, class_="who") if opening.who else "",
        el("span", opening.change, class_=f"change {kind}"),
        el("small", opening.certainty, class_="certainty") if opening.certainty else "",
        el("small", opening.rest, class_="rest") if opening.rest else "",
    ]
    picture = Safe("")
    if opening.rows:  # best first: rows of text with a strip each, whose letters do not shrink on a narrow screen
        write = percent_tick if opening.scale == "share" else tick_text
        axis = el("li", el("span", strip_axis(opening.axis, write), class_="plot"), class_="axis", aria_hidden="true")
        rows = [
            el(
                "li",
                el("span", phrase(Name(row.name)), class_="who"),
                el(
                    "span",
                    strip_of(row.estimate, opening.axis, opening.reference, KINDS[row.decision]),
                    class_="plot",
                ),
                el("span", el("b", row.change), " ", el("span", row.span, class_="range"), class_="size"),
                el("span", row.earns, class_="earns"),
                el("span", row.decision, " ", "" if row.verdict == "ok" else badge(row.verdict), class_="said"),
                class_=KINDS[row.decision],
            )
            for row in opening.rows
        ]
        picture = el("figure", el("figcaption", opening.caption), el("ol", *rows, axis, class_="picture", role="list"))
    return join(
        [
            el("p", opening.question, class_="asked"),
            el(heading, *sentence, class_=size),
            el("p", opening.words, class_="words") if opening.words else "",
            el(
                "div",
                *(el("div", el(under, title), body, class_="card") for title, body in bodies.items()),
                class_="cards",
            ),
            picture,
            opening.note,
        ]
    )


def opening_of(reading: Reading, dates: str = "") -> Opening:
    """What the first screen says of one reward of an evaluation or a comparison."""
    best, shown, minimize = reading.best, reading.changes[:DRAWN], reading.result.minimize
    scale = scale_of(shown)
    reference = reading.logged[0] if scale == "value" else 0.0
    known = [(estimate, change) for change in shown if (estimate := on_scale(change, scale)) is not None]
    matters = [change is best or change.verdict.verdict == "ok" for _, change in known]
    rows = []
    for change in shown if known else ():
        estimate = on_scale(change, scale)
        has_value = change.value.identified and not reading.is_difference and not change.is_silent
        earns = amount(reading, change.value.value, change.value.stderr) if has_value else ""
        verdict = verdict_word(reading, change)
        rows.append(PictureRow(change.target, estimate, *written(estimate, scale), earns, change.decision, verdict))
    words: object = known_part(reading) or Phrase([])
    if best.is_silent:
        words = f"The logging policy earned {amount(reading, *reading.logged_digits)} per {units(reading)}."
    said, (why, more) = answer(reading), reliance(reading)
    decisions = [change.decision for change in reading.changes]
    return Opening(
        question=join([phrase(asked(reading)), f" · {dates}" if dates else ""]),
        change=phrase(*said.change),
        certainty=phrase(*said.certainty),
        decision=best.decision,
        decided=decided(best.decision, rival(reading), decisions, minimize=minimize, why_not=why_not(reading)),
        verdict=verdict_word(reading, best),
        why=join([el("bdi", why), more]),
        steps=next_steps(reading) or ["Read the checks below, then decide."],
        caption=phrase(caption(reading, scale)),
        rows=rows,
        axis=forest_axis([estimate for estimate, _ in known], matters, reference),
        reference=reference,
        scale=scale,
        note=left_out(len(reading.changes), DRAWN, "policies", foremost_are(reading)),
        who=phrase(*said.who),
        rest=phrase(*said.rest),
        words=phrase(words),
        minimize=minimize,
    )
