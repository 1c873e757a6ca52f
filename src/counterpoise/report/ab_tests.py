"""The pages of A/B tests: of one that was run, and of what we would have said before earlier ones."""

from __future__ import annotations

import os
from pathlib import Path

from counterpoise.display import Cell, Name, Number, Table, level_of
from counterpoise.evaluation.ab_test import MEANS, ABTest, Effect, worth_text
from counterpoise.evaluation.backtest import Backtest, Replayed
from counterpoise.report.markup import Safe, Section, assemble, el, join, name_of, write
from counterpoise.report.plots import Axis, Band, Bars, Line, Mark, chart, forest_axis
from counterpoise.report.tables import ForestRow, Group, badge, estimate_text, forest, page_table

OUTCOMES = "What we would have said, and what was measured"


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
        Section("effects", "Effects", _effects(test)),
        Section("arms", "Arms", _arms(test)),
        Section("assumptions", "What this rests on", el("p", test.assumption)),
        *([Section("reproduce", "How to reproduce this", el("pre", el("code", command)))] if command else []),
    ]
    return write(Path(path), assemble(head, parts, title or "A/B test"))


def _effects(test: ABTest) -> Safe:
    """A forest plot of every arm and method, which doubles as a table."""
    axis = forest_axis([effect.estimate for effect in test.effects], [True] * len(test.effects), 0.0)
    groups: list[Group] = [
        (name_of(arm), [_effect(effect, test) for effect in test.effects if effect.arm == arm])
        for arm in test.treatments
    ]
    lead = (
        "The dashed line marks no difference. “Worth” says how much more traffic the difference in means would need for the same error. "
        "Bold marks the method behind the headline."
    )
    caption = f"How much more every arm earned per row than {test.against}"
    heads = ["Method", f"Difference and {level_of(test.level)} interval"]
    return join([el("p", lead, class_="lead"), forest(groups, axis, 0.0, caption, heads)])


def _effect(effect: Effect, test: ABTest) -> ForestRow:
    worth = [el("br"), el("span", "worth ", worth_text(effect.worth), class_="range")]
    doubt = "" if effect.verdict.verdict == "ok" else badge(effect.verdict.verdict)
    return ForestRow(
        join([effect.method, " ", doubt]),
        effect.value,
        effect.interval,
        estimate_text(effect.value, effect.stderr, effect.interval, is_signed=True)
        + ([] if effect.method == MEANS else worth),
        "primary" if effect is test[effect.arm] else "other",
        " ".join(effect.verdict.reasons) or None,
    )


def _arms(test: ABTest) -> Safe:
    rows: list[dict[str, Cell]] = [
        {
            "Arm": Name(arm.name),
            "Rows": arm.rows,
            "Mean reward": Number(arm.mean, arm.stderr),
            "Standard error": Number(arm.stderr, arm.stderr),
        }
        for arm in test.arms
    ]
    return join([el("p", str(test.sample_ratio)), page_table(Table(rows), "The arms")])


# -- A backtest --------------------------------------------------------------------------------------------------------

RESTS_ON = (
    "This assumes that the world of a test was like that of the log before it: the same users, items and season. Where predictions miss in "
    "one direction, look there first."
)


def write_backtest(
    backtest: Backtest, path: str | os.PathLike[str], *, title: str | None = None, command: str | None = None
) -> Path:
    """Write a backtest as one HTML file that opens anywhere, and return the file's path."""
    parts = [
        *([Section("calibration", "Predicted and measured", _figure(backtest))] if backtest.known else []),
        Section("tests", "Test by test", page_table(backtest.cells(), OUTCOMES)),
        Section("assumptions", "What this rests on", el("p", RESTS_ON)),
        *([Section("reproduce", "How to reproduce this", el("pre", el("code", command)))] if command else []),
    ]
    head = join(el("p", said, class_="answer") for said in backtest.headline())
    return write(Path(path), assemble(head, parts, title or "Backtest of earlier A/B tests"))


def _figure(backtest: Backtest) -> Safe:
    known = backtest.known
    across = Axis.around([end for test in known for end in test.predicted.interval])
    up = Axis.around([end for test in known for end in test.interval])
    low, high = max(across.low, up.low), min(across.high, up.high)
    parts: list[Line | Band | Mark | Bars] = [Mark(0.0), Mark(0.0, upright=True)]
    if high > low:
        parts.append(Line([(low, low), (high, high)], "mark"))
    parts += [line for test in known for line in _cross(test)]
    says = " ".join(backtest.headline())
    drawn = chart(across, up, parts, says=says, x_label="predicted difference", y_label="measured difference")
    caption = (
        f"A cross for every test: our {level_of(backtest.level)} interval lies along it, that of what was measured upright. The slanted "
        "line is where both agree."
    )
    return el("figure", drawn, el("figcaption", caption))


def _cross(test: Replayed) -> list[Line]:
    low, high = test.predicted.interval
    bottom, top = test.interval
    return [
        Line([(low, test.measured), (high, test.measured)]),
        Line([(test.predicted.value, bottom), (test.predicted.value, top)]),
    ]
