"""The page of a daily job: its alarms first, then every series day by day with its band."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

from counterpoise.display import Name, level_of, number
from counterpoise.evaluation.changes import WIDEST
from counterpoise.evaluation.watch import Alarm, Series, WatchedDay, WatchedLog
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
    parts = [
        Section(
            "series",
            "Where every series stands",
            page_table(watched.overview(), "The series"),
            f"{len(watched.series):,} series",
        ),
        Section(
            "days", "All days", page_table(watched.by_day(), "Every series on every day"), f"{len(watched.days):,} days"
        ),
        Section(
            "method",
            "How alarms are raised",
            _method(watched),
            f"{level_of(1 - watched.level)} false alarms a month",
        ),
        Section("reproduce", "How to reproduce this", el("pre", el("code", command)) if command else Safe("")),
    ]
    named = f"{len(watched.days):,} days of {watched.source}" if watched.source else f"{len(watched.days):,} days"
    first = join([_head(watched), _figures(watched)])
    return write(Path(path), assemble(first, parts, title or named, watched.headline(), is_shown=bool(title)))


def _head(watched: WatchedLog) -> Safe:
    """What happened: the alarms, and what you asked to be told about."""
    alarms = [
        el(
            "li",
            SIGNS["look"],
            " ",
            el("b", name_of(_capital(alarm.what))),
            " ",
            el("bdi", alarm.text),
            class_="is-caution",
        )
        for alarm in watched.alarms
    ]
    alerts = [
        el(
            "li",
            SIGNS["fix" if alert.fired else "ok"],
            el("b", " Alert ", el("code", alert.alert), " fired" if alert.fired else ""),
            ": ",
            el("bdi", alert.text),
            class_="is-not-identified" if alert.fired else "is-ok",
        )
        for alert in watched.alerts
    ]
    listed = el("ul", *alarms, *alerts, class_="verdicts") if alarms or alerts else ""
    notes = [el("p", el("bdi", note), class_="note") for note in watched.notes]
    return join([el("h1", el("bdi", watched.headline()), class_="answer long"), listed, *notes])


def _figures(watched: WatchedLog) -> Safe:
    lead = (
        f"The line is the mean of all rows so far, in a band that holds on all days at once ({level_of(watched.level)}); every stroke is a "
        "day with two standard errors to either side. A dashed upright line marks the first day of a change."
    )
    several = len({series.reward for series in watched.series}) > 1
    drawn = [_figure(watched, series, several) for series in watched.series[:DRAWN] if series.days]
    more = len(watched.series) - DRAWN
    note = el("p", f"{more:,} more series are in the table below.", class_="note") if more > 0 else ""
    return join([el("p", lead, class_="lead"), el("div", *drawn, class_="figures"), note])


def _figure(watched: WatchedLog, series: Series, several: bool) -> Safe:
    names = tuple(day.name for day in watched.days)
    place = {name: float(k) for k, name in enumerate(names)}
    at = [place[day] for day in series.days]
    strokes = [
        Line([(x, value - DAILY * error), (x, value + DAILY * error)], "held")
        for x, value, error in zip(at, series.values, series.errors, strict=True)
        if math.isfinite(error)
    ]
    band = [row for row in zip(at, series.lower, series.upper, strict=True) if all(map(math.isfinite, row))]
    changes = [alarm for alarm in watched.alarms if _is_of(alarm, series)]
    ends = np.concatenate([series.values - DAILY * series.errors, series.values + DAILY * series.errors])
    x = Axis(-0.5, max(len(names) - 0.5, 0.5), names=tuple(map(_short, watched.days)))
    y = Axis.around([*ends.tolist(), *(end for _, *both in band[len(band) // 4 :] for end in both)])
    parts: list[Line | Band | Mark | Bars] = [
        *([Band([(a, float(b), float(c)) for a, b, c in band])] if band else []),
        *strokes,
        Line([(a, float(b)) for a, b in zip(at, series.running, strict=True)]),
        *(Mark(place[alarm.since], upright=True) for alarm in changes),
    ]
    what, last = series.words(several), float(series.running[-1])
    says = f"{what} on {len(at):,} days: {number(last, float(series.running_errors[-1]))} so far, " + (
        "changed on " + " and ".join(alarm.since for alarm in changes) if changes else "without an alarm"
    )
    return el(
        "figure",
        el("figcaption", el("b", name_of(_capital(what)))),
        chart(x, y, parts, says=says, x_label="day", y_label=""),
    )


def _short(day: WatchedDay) -> str:
    """A day below a plot, where there is little room."""
    return str(Name(day.name)) if day.date is None else f"{day.date.day} {day.date:%b}"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _is_of(alarm: Alarm, series: Series) -> bool:
    return (alarm.reward, alarm.target, alarm.series) == (series.reward, series.target, series.kind)


def _method(watched: WatchedLog) -> Safe:
    chance = level_of(1 - watched.level)
    said = (
        f"Each day, the latest days (up to {WIDEST} of them) are compared with the days before, back to the reference period, weekday by "
        f"weekday. An alarm takes so many standard errors that in a quiet month, the chance of any false alarm in any of the series is "
        f"{chance} at most. After an alarm, the days since the change are the new reference, and alarms pause until it is complete.",
        "The rows of a day are compared by their logarithm, and the days of the reference tell how much they differ anyway. A day without "
        "rows is an alarm if the reference has rows on every such weekday.",
        "The effective share of rows is (Σw)²/(n·Σw²): it moves if propensities, or a target's probabilities, are spread differently.",
    )
    return join(el("p", sentence) for sentence in said)
