"""The report of an A/B test: the answer, the methods side by side, the arms and their shares, and what it rests on."""

from __future__ import annotations

import os
from pathlib import Path

from counterpoise.display import level_of, number, signed
from counterpoise.evaluation.ab_test import MEANS, ABTest, Effect, worth_text
from counterpoise.report.axes import forest_axis
from counterpoise.report.markup import Safe, el, join, name_of
from counterpoise.report.page import Part, assemble, write
from counterpoise.report.plots import strip, strip_axis
from counterpoise.report.sections import badge


def write_ab_test(
    test: ABTest, path: str | os.PathLike[str], *, title: str | None = None, command: str | None = None
) -> Path:
    """Write a test as one HTML file that opens anywhere, and return the file's path."""
    doubts = [*([str(test.sample_ratio)] if test.sample_ratio.is_mismatch else []), *test.disagreements]
    head = join(
        [
            *(el("p", el("bdi", said), class_="answer") for said in test.headline()),
            el("ul", *(el("li", el("bdi", said)) for said in doubts)) if doubts else "",
        ]
    )
    parts = [
        Part("effects", "Effects", _effects(test)),
        Part("arms", "Arms", _arms(test)),
        Part("assumptions", "What this rests on", el("p", test.assumption)),
        *([Part("reproduce", "How to reproduce this", el("pre", el("code", command)))] if command else []),
    ]
    return write(Path(path), assemble(head, parts, title or "A/B test"))


def _effects(test: ABTest) -> Safe:
    """A forest plot of every arm and method, which doubles as a table."""
    axis = forest_axis([effect.estimate for effect in test.effects], [True] * len(test.effects), 0.0)
    bodies = []
    for arm in test.treatments:
        lines = [el("tr", el("th", name_of(arm), scope="rowgroup", colspan=3))]
        for effect in (effect for effect in test.effects if effect.arm == arm):
            low, high = effect.interval
            kind = "primary" if effect is test[arm] else "other"
            span = el("span", f"{signed(low, effect.stderr)} to {signed(high, effect.stderr)}", class_="range")
            doubt = "" if effect.verdict.verdict == "ok" else badge(effect.verdict.verdict)
            lines.append(
                el(
                    "tr",
                    el("th", effect.method, " ", doubt, scope="row", title=" ".join(effect.verdict.reasons) or None),
                    el("td", strip(effect.value, low, high, axis, 0.0, kind), class_="plot"),
                    el("td", signed(effect.value, effect.stderr), " ", span, *_worth(effect), class_="number"),
                    class_=kind,
                )
            )
        bodies.append(el("tbody", *lines, class_="group"))
    caption = f"How much more every arm earned per row than {test.against}"
    columns = el(
        "tr",
        el("th", "Method", scope="col"),
        el("th", "Plot", scope="col", class_="plot"),
        el("th", f"Difference and {level_of(test.level)} interval", scope="col", class_="number"),
    )
    foot = el("tr", el("td"), el("td", strip_axis(axis), class_="plot"), el("td"))
    lead = (
        "The dashed line marks no difference. “Worth” says how much more traffic the difference in means would need for the same error. "
        "Bold marks the method behind the headline."
    )
    table = el(
        "table",
        el("caption", caption),
        el("thead", columns),
        *bodies,
        el("tfoot", foot, aria_hidden="true"),
        class_="forest",
    )
    return join([el("p", lead, class_="lead"), _scrolled(table, caption)])


def _worth(effect: Effect) -> list[Safe]:
    return [] if effect.method == MEANS else [el("br"), el("span", "worth ", worth_text(effect.worth), class_="range")]


def _arms(test: ABTest) -> Safe:
    names = ("Rows", "Mean reward", "Standard error")
    head = el("tr", el("th", "Arm", scope="col"), *(el("th", name, scope="col", class_="number") for name in names))
    lines = [
        el(
            "tr",
            el("th", name_of(arm.name), scope="row"),
            *(
                el("td", said, class_="number")
                for said in (f"{arm.rows:,}", number(arm.mean, arm.stderr), number(arm.stderr, arm.stderr))
            ),
        )
        for arm in test.arms
    ]
    table = el("table", el("caption", "The arms"), el("thead", head), el("tbody", *lines))
    return join([el("p", str(test.sample_ratio)), _scrolled(table, "The arms")])


def _scrolled(table: Safe, caption: str) -> Safe:
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)
