"""The page of a daily job: its alarms first, then every series day by day with its band."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from counterpoise.display import Name, level_of, number
from counterpoise.evaluation.changes import WIDEST
from counterpoise.evaluation.watch import Series, WatchedLog
from counterpoise.evaluation.wording import capital
from counterpoise.report.card import SIGNS
from counterpoise.report.markup import Safe, Section, assemble, el, join, name_of, write
from counterpoise.report.plots import Axis, Band, Bars, Line, Mark, chart
from counterpoise.report.tables import page_table

DRAWN = 24  # series; the table has all
DAILY = 2.0  # standard errors of a day's stroke


def write_watch(
    watched: WatchedLog, path: str | os.PathLike[str], *, title: str | None = None, command: str | None = None
) -> Path:
    """Write a watched log as one HTML file that opens anywhere, and return the file's path."""
    days, every = f"{len(watched.days):,} days", level_of(1 - watched.level)
    method = (
        f"Each day, the latest days (up to {WIDEST} of them) are compared with the days before, back to the reference period, weekday by "
        f"weekday. An alarm takes so many standard errors that in a quiet month, the chance of any false alarm in any of the series is "
        f"{every} at most. After an alarm, the days since the change are the new reference, and alarms pause until it is complete.",
        "The rows of a day are compared by their logarithm, and the days of the reference tell how much they differ anyway. A day without "
        "rows is an alarm if the reference has rows on every such weekday.",
        "The effective share of rows is (Σw)²/(n·Σw²): it moves if propensities, or a target's probabilities, are spread differently.",
    )
    series, by_day = (
        page_table(watched.overview(), "The series"),
        page_table(watched.by_day(), "Every series on every day"),
    )
    parts = [
        Section("series", "Where every series stands", series, f"{len(watched.series):,} series"),
        Section("days", "All days", by_day, days),
        Section(
            "method", "How alarms are raised", join(el("p", said) for said in method), f"{every} false alarms a month"
        ),
        Section("reproduce", "How to reproduce this", el("pre", el("code", command)) if command else Safe("")),
    ]
    alarms = [
        el(
            "li",
            SIGNS["look"],
            " ",
            el("b", name_of(capital(each.what))),
            " ",
            el("bdi", each.text),
            class_="is-caution",
        )
        for each in watched.alarms
    ]
    for alert in watched.alerts:
        said = el("b", " Alert ", el("code", alert.alert), " fired" if alert.fired else "")
        sign, kind = (SIGNS["fix"], "is-not-identified") if alert.fired else (SIGNS["ok"], "is-ok")
        alarms.append(el("li", sign, said, ": ", el("bdi", alert.text), class_=kind))
    lead = (
        f"The line is the mean of all rows so far, in a band that holds on all days at once ({level_of(watched.level)}); every stroke is a "
        "day with two standard errors to either side. A dashed upright line marks the first day of a change."
    )
    drawn = [_figure(watched, series) for series in watched.series[:DRAWN] if series.days]
    more = len(watched.series) - DRAWN
    first = [
        el("h1", el("bdi", watched.headline()), class_="answer long"),
        el("ul", *alarms, class_="verdicts") if alarms else "",
        *(el("p", el("bdi", note), class_="note") for note in watched.notes),
        el("p", lead, class_="lead"),
        el("div", *drawn, class_="figures"),
        el("p", f"{more:,} more series are in the table below.", class_="note") if more > 0 else "",
    ]
    named = title or (f"{days} of {watched.source}" if watched.source else days)
    return write(Path(path), assemble(join(first), parts, named, watched.headline(), is_shown=bool(title)))


def _figure(watched: WatchedLog, series: Series) -> Safe:
    place = {day.name: float(k) for k, day in enumerate(watched.days)}
    at = [place[day] for day in series.days]
    strokes = [
        Line([(x, value - DAILY * error), (x, value + DAILY * error)], "held")
        for x, value, error in zip(at, series.values, series.errors, strict=True)
        if math.isfinite(error)
    ]
    band = [row for row in zip(at, series.lower, series.upper, strict=True) if all(map(math.isfinite, row))]
    own = (series.reward, series.target, series.kind)
    changes = [alarm for alarm in watched.alarms if (alarm.reward, alarm.target, alarm.series) == own]
    ends = np.concatenate([series.values - DAILY * series.errors, series.values + DAILY * series.errors])
    # a day below a plot, where there is little room
    names = (str(Name(day.name)) if day.date is None else f"{day.date.day} {day.date:%b}" for day in watched.days)
    x = Axis(-0.5, max(len(watched.days) - 0.5, 0.5), names=tuple(names))
    y = Axis.around([*ends.tolist(), *(end for _, *both in band[len(band) // 4 :] for end in both)])
    parts: list[Line | Band | Mark | Bars] = [
        *([Band([(a, float(b), float(c)) for a, b, c in band])] if band else []),
        *strokes,
        Line([(a, float(b)) for a, b in zip(at, series.running, strict=True)]),
        *(Mark(place[alarm.since], upright=True) for alarm in changes),
    ]
    several = len({each.reward for each in watched.series}) > 1
    what, last = series.words(several), float(series.running[-1])
    says = f"{what} on {len(at):,} days: {number(last, float(series.running_errors[-1]))} so far, " + (
        "changed on " + " and ".join(alarm.since for alarm in changes) if changes else "without an alarm"
    )
    return el(
        "figure",
        el("figcaption", el("b", name_of(capital(what)))),
        chart(x, y, parts, says=says, x_label="day", y_label=""),
    )
