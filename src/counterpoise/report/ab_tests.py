"""The pages of A/B tests: of one that was run, and of what we would have said before earlier ones."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from counterpoise import __version__
from counterpoise.diagnostics.verdict import which_way
from counterpoise.display import Cell, Name, Number, Table, counted, level_of, number, shortened
from counterpoise.evaluation.ab_test import MEANS, ABTest, Arm, worth_text
from counterpoise.evaluation.backtest import Backtest
from counterpoise.evaluation.reading import FAR
from counterpoise.evaluation.wording import Scale, all_of, capital, decided, written
from counterpoise.intervals.quantity import times_to_show
from counterpoise.report.first_screen import Opening, PictureRow, first_screen
from counterpoise.report.markup import Safe, Section, assemble, el, join, name_of, write
from counterpoise.report.plots import Axis, Band, Bars, Line, Mark, chart, forest_axis
from counterpoise.report.tables import ForestRow, Group, badge, estimate_text, forest, page_table

OUTCOMES = "What we would have predicted, and what was measured"


def write_ab_test(
    test: ABTest,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    unit: str | None = None,
    command: str | None = None,
) -> Path:
    """Write a test as one HTML file that opens anywhere, and return the file's path."""
    test = test if unit is None else test.with_unit(unit)
    opening, what, caveats = _opening(test), test.unit, _caveats(test)
    best, of = opening.rows[0], f" on {test.log}" if test.log else ""
    shares = ", ".join(f"{arm.name} {arm.rows:,}" for arm in test.arms)
    shares = "a mismatch" if test.sample_ratio.is_mismatch else shares[:100]
    arms: list[dict[str, Cell]] = [
        {
            "Arm": Name(arm.name),
            f"{what.capitalize()}s": arm.rows,
            "Mean reward": Number(arm.mean, arm.stderr),
            "Standard error": Number(arm.stderr, arm.stderr),
        }
        for arm in test.arms
    ]
    facts = {
        "Version": f"counterpoise {__version__}",
        "Log": name_of(test.log) if test.log else "in memory",
        "Reward": name_of(test.reward),
        f"{what.capitalize()}s": f"{test.n:,}",
        f"Dropped {what}s": f"{test.dropped_rows:,}",
        "Intervals": f"{test.method}, level {level_of(test.level)}",
    }
    again = el("dl", *(join([el("dt", name), el("dd", value)]) for name, value in facts.items()), class_="facts")
    if command:
        typed = el("code", el("bdi", command))
        again = join([el("pre", typed, tabindex=0, aria_label="Command"), again])
    read = el("ul", *(el("li", el("bdi", said)) for said in caveats)) if caveats else Safe("")
    counted_arms = join([el("p", test.sample_ratio.text(what)), page_table(Table(arms), "The arms")])
    parts = [
        Section("effects", "Methods", _effects(test), test[best.name].method),
        Section("arms", "Arms", counted_arms, shares),
        Section("checks", "Checks", read, f"{len(caveats)} to read"),
        Section("assumptions", "What this rests on", el("p", test.assumption), "decisions do not carry over"),
        Section("reproduce", "How to reproduce this", again, f"counterpoise {__version__}"),
    ]
    tab = title or f"{capital(test.reward)} {best.change}: {best.name} against {test.against}{of}"
    summary = " ".join(test.headline())
    return write(Path(path), assemble(first_screen(opening), parts, tab, summary, is_shown=bool(title)))


def _opening(test: ABTest) -> Opening:
    """What the first screen says of a test."""
    unit = test.unit
    relative = {arm: test.relative(arm) for arm in test.treatments}
    scale: Scale = "difference" if None in relative.values() else "share"
    drawn = {arm: (scale == "share" and relative[arm]) or test.together(arm) for arm in test.treatments}
    order = sorted(drawn, key=lambda arm: drawn[arm].value if test.minimize else -drawn[arm].value)
    best, against, reward = order[0], test.arm(test.against), name_of(test.reward, 60)
    low, high = float(np.nanmin(test.moments.reward_min)), float(np.nanmax(test.moments.reward_max))
    per = 100 if low >= 0.0 and high <= 1.0 else 1
    units = unit if per == 1 else f"{per} {unit}s"

    def amount(arm: Arm) -> str:
        return number(per * arm.mean, per * arm.stderr)

    rows = []
    for arm in order:
        said, span = written(drawn[arm], scale)
        verdict = "caution" if test.sample_ratio.is_mismatch else test[arm].verdict.verdict
        earns = amount(test.arm(arm))
        rows.append(PictureRow(arm, drawn[arm], said, span, earns, test.decision(arm), verdict))
    first, many = rows[0], len(order)
    who = name_of(best, 60) if many == 1 else f"each of {many:,} arms"
    together = f", for {all_of(many)} arms at once" if many > 1 else ""
    question = [reward, f" per {unit}, ", who, " against ", name_of(test.against, 60)]
    question += [" · less is better"] if test.minimize else []
    question += [*([" · ", name_of(test.log)] if test.log else []), f" · {counted(test.n, unit)}"]
    words = ["From ", amount(against), " with ", el("b", name_of(test.against, 60)), " to ", amount(test.arm(best))]
    adjusted = "" if test[best].method == MEANS else f" The difference is {test[best].method}."
    words += [f" per {units} with ", el("b", name_of(best, 60)), f", by the arms’ means.{adjusted}"]
    caveats, decisions = _caveats(test), [row.decision for row in rows]
    fine = "No problems found in the shares of the arms or in the rewards."
    why = "The arms are not the groups that were randomized." if test.sample_ratio.is_mismatch else ""
    line = f": {amount(against)} per {units} (the dashed line)"
    return Opening(
        question=join(question),
        change=join([first.change, " ", reward, "" if scale == "share" else f" per {unit}"]),
        certainty=f" ({first.span}, {level_of(test.level)} interval{together})",
        words=join(words),
        decision=first.decision,
        decided=decided(first.decision, shortened(test.against), decisions, minimize=test.minimize, why_not=why),
        verdict=first.verdict,
        why=el("bdi", caveats[0] if caveats else fine),
        steps=_steps(test, best, unit),
        caption=join(["Difference in ", reward, " against ", name_of(test.against, 60), line]),
        rows=rows,
        axis=forest_axis([drawn[arm] for arm in order], [True] * many, 0.0),
        scale=scale,
        minimize=test.minimize,
    )


def _caveats(test: ABTest) -> list[str]:
    """The caveats of the test."""
    shares = [test.sample_ratio.text(test.unit)] if test.sample_ratio.is_mismatch else []
    verdicts = [reason for arm in test.treatments for reason in test[arm].verdict.of_units(test.unit).reasons]
    return list(dict.fromkeys([*shares, *test.disagreements, *verdicts]))


def _steps(test: ABTest, best: str, unit: str) -> list[str]:
    """What to do next."""
    effect, decision = test.together(best), test.decision(best)
    if decision == "cannot say" and not test.sample_ratio.is_mismatch:
        return [f"Collect more {unit}s of every arm."]
    if decision == "cannot say":
        return ["Find out why the shares of the arms are off, and run the test again."]
    if decision == "worse":
        return [f"Keep {shortened(test.against)}."]
    if decision == "better":
        return [
            f"Roll out {shortened(best)}, to a few first.",
            f"Keep a few {unit}s on {shortened(test.against)} for a while, to see that it lasts.",
        ]
    if decision in ("higher", "lower"):
        return [which_way(test.reward).reason]
    growth = times_to_show(effect.value, effect.stderr, test.level)
    if not growth < FAR:
        earn = "earn" if test.minimize is False else "come to"
        return [f"Stop the test: {shortened(best)} and {shortened(test.against)} {earn} about the same."]
    return [
        f"Let the test run on: about {float(f'{growth * test.n:.2g}'):,.0f} {unit}s show a difference of this size."
    ]


def _effects(test: ABTest) -> Safe:
    """A forest plot of every arm and method, which doubles as a table."""
    axis = forest_axis([effect.estimate for effect in test.effects], [True] * len(test.effects), 0.0)
    groups: dict[str, list[ForestRow]] = {arm: [] for arm in test.treatments}
    for effect in test.effects:
        verdict, reasons = effect.verdict.verdict, " ".join(effect.verdict.of_units(test.unit).reasons)
        size = estimate_text(effect.value, effect.stderr, effect.interval, is_signed=True)
        if effect.method != MEANS:
            size += [el("br"), el("span", "worth ", worth_text(effect.worth), class_="range")]
        kind = "primary" if effect is test[effect.arm] else "other"
        name = join([effect.method, " ", "" if verdict == "ok" else badge(verdict)])
        groups[effect.arm].append(ForestRow(name, effect.value, effect.interval, size, kind, reasons or None))
    lead = (
        "The dashed line marks no difference. “Worth” is how much more traffic the difference in means would need for the same error. "
        "Bold marks the method behind the headline."
    )
    caption = f"How much more every arm earned per {test.unit} than {test.against}"
    heads = ["Method", f"Difference and {level_of(test.level)} interval"]
    named: list[Group] = [(name_of(arm), rows) for arm, rows in groups.items()]
    return join([el("p", lead, class_="lead"), forest(named, axis, 0.0, caption, heads)])


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
        Section("tests", "Test by test", page_table(backtest.cells(), OUTCOMES)),
        Section("assumptions", "What this rests on", el("p", RESTS_ON)),
        Section("reproduce", "How to reproduce this", el("pre", el("code", command)) if command else Safe("")),
    ]
    first, *more = backtest.headline()
    head = [el("h1", el("bdi", first), class_="answer"), *(el("p", el("bdi", said), class_="words") for said in more)]
    if known := backtest.known:
        across = Axis.around([end for test in known for end in test.predicted.interval])
        up = Axis.around([end for test in known for end in test.interval])
        low, high = max(across.low, up.low), min(across.high, up.high)
        drawn: list[Line | Band | Mark | Bars] = [Mark(0.0), Mark(0.0, upright=True)]
        drawn += [Line([(low, low), (high, high)], "mark")] if high > low else []
        for test in known:
            drawn.append(Line([(end, test.measured) for end in test.predicted.interval]))
            drawn.append(Line([(test.predicted.value, end) for end in test.interval]))
        says = " ".join(backtest.headline())
        plot = chart(across, up, drawn, says=says, x_label="predicted difference", y_label="measured difference")
        caption = (
            f"A cross for every test: our {level_of(backtest.level)} interval lies along it, that of what was measured upright. The "
            "slanted line is where both agree."
        )
        head.append(el("figure", plot, el("figcaption", caption)))
    tab = title or "Backtest of earlier A/B tests"
    return write(Path(path), assemble(join(head), parts, tab, first, is_shown=bool(title)))
