"""`watch`: a log day by day, with bands that hold at all times, and an alarm where a day stops being like the days before it.

It looks for changes in every number that a day's summary has: the targets' values and lifts, the logging policy's mean reward, the mean of
the weights, and the spread of the weights, which moves with the propensities; and in the rows of a day, which may be too few, or none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import reduce
from itertools import pairwise
from operator import add
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from counterpoise.diagnostics.verdict import which_way
from counterpoise.display import (
    ROWS,
    Block,
    Cell,
    Display,
    Judged,
    Name,
    Number,
    Table,
    above,
    counted,
    finite,
    level_of,
    number,
    signed,
)
from counterpoise.errors import OptionError
from counterpoise.evaluation.changes import MONTH, SETTLED, WIDEST, Shift, Watched
from counterpoise.evaluation.evaluate import evaluate
from counterpoise.evaluation.ranking import direction
from counterpoise.evaluation.summaries import (
    CARRYING,
    ERROR,
    LIFT,
    PROPENSITIES,
    REWARD,
    VALUE,
    WEIGHT,
    number_in,
    summaries_at,
    summaries_of,
    summarized,
)
from counterpoise.intervals import Anytime, Evidence, check_level
from counterpoise.intervals.quantity import Quantity
from counterpoise.log.log import Log, check_minimized
from counterpoise.log.parts import Columns, Data, LogFields, Minimize, is_minimized
from counterpoise.log.targets import Targets
from counterpoise.log.verbs import takes_parts
from counterpoise.moments import Floats
from counterpoise.moments.log_moments import segment_text
from counterpoise.moments.state import MomentsOfRewards, State, Summaries, existing, is_state, partition_name, unseen
from counterpoise.readers import files
from counterpoise.readers.batches import new_files
from counterpoise.readers.connections import is_database
from counterpoise.weights import Weight

if TYPE_CHECKING:
    import polars as pl

    from counterpoise.evaluation.result import Result

REFERENCE = 14  # days: every weekday twice

KINDS = (VALUE, LIFT, REWARD, WEIGHT, PROPENSITIES)
COUNT, AGE = "rows", "age"  # of a day, and of the newest day: they are not numbers of a summary
LATE = timedelta(days=2)  # how old a day must be before its absence counts: yesterday's rows may still be on their way
NAMES = {
    VALUE: "value",
    LIFT: "lift",
    REWARD: "mean reward of the logging policy",
    WEIGHT: "mean weight",
    PROPENSITIES: "effective share of rows",
    COUNT: "rows",
}
CAUSES = {
    VALUE: "If the mean reward of the logging policy has an alarm, too, the world changed; if not, look at how the target chooses.",
    LIFT: "The target's lead over the logging policy is not what it was: look at the segments of the days since.",
    REWARD: "Other visitors, other items, another meaning of the reward, or rows that are missing: look at the log first.",
    WEIGHT: "Propensities or the target's probabilities no longer fit the actions that were taken: check the logger.",
    PROPENSITIES: "The logging policy or the target spreads its choices differently: a new version, or other candidates.",
    COUNT: "Rows that are missing, or that came twice: check the export before anything else.",
}


# -- Days and series ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WatchedDay:
    """A day: its name, its date if the name has one, and its summaries."""

    name: str
    date: date | None
    rows: int
    summaries: Summaries


@dataclass(frozen=True, eq=False)
class Series:
    """One number, day by day, and its mean so far with a band that holds on all days at once."""

    reward: str
    target: str  # "" for the logging policy
    kind: str
    days: tuple[str, ...]
    values: Floats
    errors: Floats
    running: Floats
    running_errors: Floats
    lower: Floats
    upper: Floats
    extra: float = 1.0  # by how much more its reference days differ than their rows explain
    is_watched: bool = False
    minimize: bool | None = (
        False  # whether less of the reward is better; None if nobody said, and its name sounds like a cost
    )

    def words(self, with_reward: bool) -> str:
        """What the number is, in words."""
        of = f" of {self.target}" if self.target else ""
        return (
            NAMES[self.kind] + of + (f" ({self.reward})" if with_reward and self.kind in (VALUE, LIFT, REWARD) else "")
        )

    @property
    def is_signed(self) -> bool:
        """Whether it is a difference."""
        return self.kind == LIFT

    @property
    def is_count(self) -> bool:
        """Whether it counts rows, and is no mean."""
        return self.kind == COUNT


@dataclass(frozen=True)
class Alarm:
    """A series that changed: on which day that began, when it was noticed, from what to what, and what that may mean."""

    what: str
    reward: str
    target: str
    series: str
    since: str
    noticed: str
    before: float
    after: float
    standard_errors: float
    limit: float
    text: str


@dataclass(frozen=True)
class Alert:
    """A condition to be alerted about, whether it holds, and why."""

    alert: str
    fired: bool
    text: str


@dataclass(frozen=True, eq=False, repr=False)
class WatchedLog(Display):
    """The answer of `watch`: `alarms`, `alerts`, and `series` with every day's number and the band of their mean so far."""

    days: tuple[WatchedDay, ...]
    series: tuple[Series, ...]
    alarms: tuple[Alarm, ...]
    alerts: tuple[Alert, ...]
    reference: tuple[str, ...]
    level: float
    source: str = ""
    notes: tuple[str, ...] = field(default=())
    age: int | None = None  # of the newest day with rows, in days, if days have dates

    @property
    def fired(self) -> bool:
        """Whether any alert fired."""
        return any(alert.fired for alert in self.alerts)

    @property
    def watched_days(self) -> int:
        """How many days came after the reference."""
        if not self.reference:
            return 0
        names = [day.name for day in self.days]
        return len(names) - 1 - names.index(self.reference[-1])

    def headline(self) -> str:
        """What happened, in a sentence."""
        if not self.watched_days:
            return (
                f"{counted(len(self.days), 'day')} so far: alarms begin once a reference of {REFERENCE} days is complete."
                if not self.reference
                else f"The reference is complete ({_span(self.reference)}); alarms begin with the next day."
            )
        watched = f"{counted(self.watched_days, 'day')} after the reference ({_span(self.reference)})"
        if not self.alarms:
            return f"No alarm in the {watched}."
        which = ", ".join(dict.fromkeys(alarm.what for alarm in self.alarms))
        return f"{counted(len(self.alarms), 'alarm')} in the {watched}: {which}."

    def table(self) -> pl.DataFrame:
        """Every series day by day, with its mean so far and the band of that."""
        return Table([row for series in self.series for row in _rows(series)]).frame()

    def overview(self) -> Table:
        """The series: their last day, their mean so far with its band, and whether they changed."""
        several = len({series.reward for series in self.series}) > 1
        rows: list[dict[str, Cell]] = []
        for series in self.series:
            last, error, is_signed = len(series.days) - 1, float(series.running_errors[-1]), series.is_signed
            key = series.reward, series.target, series.kind
            since = [alarm.since for alarm in self.alarms if (alarm.reward, alarm.target, alarm.series) == key]
            quiet = "quiet" if series.is_watched and self.watched_days else "not watched yet"
            rows.append(
                {
                    "series": NAMES[series.kind],
                    "target": Name(series.target) if series.target else "",
                    **({"reward": Name(series.reward)} if several else {}),
                    "last day": Number(float(series.values[last]), float(series.errors[last]), is_signed),
                    "all days": Number(float(series.running[last]), error, is_signed),
                    "lower": Number(float(series.lower[last]), error, is_signed),
                    "upper": Number(float(series.upper[last]), error, is_signed),
                    "alarms": f"changed on {since[-1]}" if since else quiet,
                }
            )
        return Table(rows)

    def by_day(self) -> Table:
        """The days in order: rows, and every series."""
        several = len({series.reward for series in self.series}) > 1
        rows: list[dict[str, Cell]] = []
        for day in self.days:
            row: dict[str, Cell] = {"day": Name(day.name), "rows": day.rows}
            for series in (each for each in self.series if not each.is_count):
                known = series.days.index(day.name) if day.name in series.days else None
                row[series.words(several)] = (
                    None
                    if known is None
                    else Number(float(series.values[known]), float(series.errors[known]), series.is_signed)
                )
            rows.append(row)
        return Table(rows)

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """The alarms first, then the alerts, then where every series stands."""
        yield self.headline()
        for alarm in self.alarms:
            yield Judged("", "look", [f"{alarm.what} {alarm.text}"], is_listed=True)
        for alert in self.alerts:
            said = f"alert {alert.alert!r}{' fired' if alert.fired else ''}: {alert.text}"
            yield Judged("", "fix" if alert.fired else "ok", [said], is_listed=True)
        yield ""
        yield self.overview()
        yield f"The bands of “all days” hold on all days at once ({level_of(self.level)} each), however often you look."
        if self.age is not None and self.age > LATE.days:
            yield f"The newest day with rows was {counted(self.age, 'day')} ago."
        yield from self.notes

    def document(self) -> dict[str, object]:
        """Everything in plain values, as `--json` prints it."""
        return finite(
            {
                "days": [{"day": day.name, "rows": day.rows} for day in self.days],
                "reference": list(self.reference),
                "watched_days": self.watched_days,
                "age": self.age,
                "level": self.level,
                "alarms": list(self.alarms),
                "alerts": list(self.alerts),
                "series": [
                    {
                        "reward": series.reward,
                        "target": series.target or None,
                        "series": series.kind,
                        "minimize": series.minimize,
                        "extra_spread": series.extra,
                        "days": Table(list(_rows(series, named=False))).records(),
                    }
                    for series in self.series
                ],
                "notes": list(self.notes),
            }
        )

    def report(self, path: str | PathLike[str], *, title: str | None = None, command: str | None = None) -> Path:
        """Write one HTML file for people to read, and return its path: alarms first, then the days in order with their bands."""
        written: Path = above().write_watch(self, path, title=title, command=command)
        return written


def _rows(series: Series, *, named: bool = True) -> Iterator[dict[str, Cell]]:
    which: dict[str, Cell] = {"reward": Name(series.reward), "target": Name(series.target), "series": series.kind}
    for k, day in enumerate(series.days):
        error, so_far, is_signed = float(series.errors[k]), float(series.running_errors[k]), series.is_signed
        yield {
            **(which if named else {}),
            "day": Name(day),
            "value": Number(float(series.values[k]), error, is_signed),
            "stderr": Number(error, error),
            "so_far": Number(float(series.running[k]), so_far, is_signed),
            "lower": Number(float(series.lower[k]), so_far, is_signed),
            "upper": Number(float(series.upper[k]), so_far, is_signed),
        }


def _span(days: Sequence[str]) -> str:
    return f"{days[0]} to {days[-1]}"


# -- The verb ----------------------------------------------------------------------------------------------------------


@takes_parts("evaluate")
def watch(
    log: Log | Data = None,
    *,
    target: Targets = None,
    weight: Weight | Columns = None,
    day: Columns = None,
    state: str | PathLike[str] | None = None,
    reference: int | str = REFERENCE,
    alert: str | Sequence[str] | None = None,
    as_of: str | date | None = None,
    level: float = 0.95,
    progress: bool | None = None,
    **parts: Unpack[LogFields],
) -> WatchedLog:
    """A log day by day: values and lifts with bands that hold at all times, and alarms where something changed.

    Alarms compare the last days with the days before them, weekday by weekday. In a quiet month, any false alarm at all, of any
    series, has a chance of at most 1 − level (5 %); a lasting shift of three daily standard errors is found within four days
    in nine cases of ten, and later where a few large or rare rewards decide. After an alarm, the days since the change are the new
    reference. The rows of a day are watched, too: too few, too many, or none where the reference has some on that weekday.

    Parameters
    ----------
    log
        A state that `evaluate` or `compare` wrote; or a folder, a glob or a list of files, one for each day; or any log with `day`.
    target, weight
        As for `evaluate`, if the log is not a state.
    day
        The column with the day of every row; or, without a log, the days themselves.
    state
        A file that keeps the sums: files of the log that it does not have are added to it first, each as a batch of its own.
    reference
        How many of the first days are taken as quiet (14, every weekday twice); or the first and the last of them, "2026-11-01:2026-11-14".
    alert
        ``"changed"`` fires if there is an alarm, ``"changed since 2026-11-21"`` if there is one from that day or later. ``"lift < 0"``
        fires once the whole band of the lift so far, of any target, is below 0; where less is better, ``"lift > 0"`` means it is worse.
        `value`, `lift`, `reward`, `weight` and `propensities` can be compared with a number. ``"rows < 1000"`` is about the newest day that
        is over, and ``"age > 2 days"`` about how long ago the newest day with rows was.
    as_of
        The day of this check, today by default: it is not over yet, and days that should have come by then are missing.
    level
        The level of the bands; 1 − level is the chance of a false alarm in a month.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> shown = rng.random(30_000) < 0.5
    >>> day = np.repeat([f"2026-11-{k:02}" for k in range(1, 31)], 1000)
    >>> rate = np.where(shown, 0.3, 0.2) + 0.1 * (day >= "2026-11-20")
    >>> log = {"day": day, "r": (rng.random(30_000) < rate) * 1.0, "p": np.full(30_000, 0.5), "new": np.where(shown, 0.8, 0.2)}
    >>> watched = watch(log, reward="r", propensity="p", target="new", day="day", as_of="2026-12-01")
    >>> sorted({(alarm.series, alarm.since) for alarm in watched.alarms})
    [('reward', '2026-11-20'), ('value', '2026-11-20')]
    """
    check_level(level)
    question: dict[str, Any] = {"target": target, "weight": weight, "progress": progress, **parts}
    # which way is better is no part of what a state added up
    chosen = [name for name, value in question.items() if value is not None and name not in ("progress", "minimize")]
    place = state if log is None else log
    if place is None and day is None:
        raise OptionError("`watch` needs a log.", do="Pass a state, a folder of files, or a log and `day=`.")
    if isinstance(place, str | PathLike) and (is_state(place) or log is None):
        if chosen or day is not None or (log is not None and state is not None):
            named = chosen[0] if chosen else "day" if day is not None else "state"
            raise OptionError(
                f"a state has its question already, and `{named}=` is part of one.",
                do="Leave it out, or pass the log itself.",
            )
        days, total, notes, ways = _of_state(existing(place), Log(minimize=parts.get("minimize")).minimize)
    elif day is not None:
        if state is not None:
            raise OptionError(
                "`day=` and `state=` do not go together: a state keeps files or batches, one for each day."
            )
        days, total, notes, ways = _of_column(log, day, question)
    else:
        days, total, notes, ways = _of_files(log, state, question)
    return watch_days(
        days,
        total=total,
        notes=notes,
        reference=reference,
        alert=alert,
        as_of=as_of,
        level=level,
        source=Path(place).name if isinstance(place, str | PathLike) else "",
        ways=ways,
    )


Ways = Mapping[str, bool | None]  # whether less of each reward is better, as `Result.minimize` says it
Days = tuple[list[WatchedDay], Summaries | None, list[str], Ways]


def _of_state(state: State, minimize: Minimize = None) -> Days:
    """The days of a state, those of 0.2 as far as it still has their moments; all of them together, where rows are clustered."""
    known = summarized(state)
    days = [
        WatchedDay(*_named(batch.key, batch.files, k), batch.rows, batch.summaries)
        for k, batch in enumerate(known.batches)
        if batch.summaries
    ]
    lost = len(known.batches) - len(days)
    notes = []
    if lost:
        notes.append(
            f"{counted(lost, 'batch') if lost == 1 else f'{lost:,} batches'} of an earlier version had been added up "
            "before days were kept: they count in the answer of the state, and are not watched."
        )
    mixed = [
        batch for batch in known.batches if batch.key is None and len({_named(None, [f], 0) for f in batch.files}) > 1
    ]
    if mixed:
        notes.append(
            f"{mixed[0]} were added as one batch, which counts as one day. Add them one by one with `only_new=True`."
        )
    total = summaries_of(state.moments, state.rewards) if state.question["cluster"] is not None and not lost else None
    check_minimized(minimize, state.rewards)
    said = state.question.get("minimize") if minimize is None else minimize
    return days, total, notes, {reward: is_minimized(said, reward) for reward in state.rewards}


def _of_column(log: Log | Data, day: Columns, question: dict[str, Any]) -> Days:
    """The days of a column, from one pass over the log."""
    result = evaluate(log, segment=day, **question)
    days, notes = list[WatchedDay](), list[str]()
    for k, (label, rows) in enumerate(result.segment_rows.items()):
        if rows and None in (label or ()):
            notes.append(f"{counted(rows, 'row')} without a day {'is' if rows == 1 else 'are'} dropped.")
        elif rows:
            days.append(WatchedDay(*_named(segment_text(label), (), k), rows, summaries_at(result, place=label)))
    is_clustered = result.moments.cluster is not None and not notes
    return days, summaries_at(result) if is_clustered else None, notes, _ways(result)


def _ways(result: Result) -> Ways:
    return {str(name): answer.minimize for name, answer in result.by_reward.items()}


def _of_files(log: Log | Data, state: str | PathLike[str] | None, question: dict[str, Any]) -> Days:
    """The days of files, one for each."""
    if isinstance(log, Log) or not files.is_paths(log) or is_database(log):
        raise OptionError(
            "this log does not come in files, one for each day.", do="Pass `day=`, the column with the day of a row."
        )
    if state is not None:
        paths = new_files(state, log)
        for k, path in enumerate(paths, start=1):
            with unseen(k < len(paths)):
                evaluate(path, state=state, **question)
        return _of_state(existing(state), Log(minimize=question.get("minimize")).minimize)
    paths = sorted(files.files_of(log))
    if len(paths) < 2:
        raise OptionError(
            f"there is one file, {str(paths[0])!r}, and a day needs one of its own."
            if paths
            else "there are no files.",
            do="Name a folder with a file for each day, or pass `day=`, the column with the day of a row.",
        )
    days, sums = [], list[MomentsOfRewards]()
    for k, path in enumerate(paths):
        result = evaluate(path, **question)
        days.append(WatchedDay(*_named(None, [str(path)], k), result.n, summaries_at(result)))
        sums.append(tuple(answer.moments for answer in result.by_reward.values()))
    if result.moments.cluster is None:
        return days, None, [], _ways(result)
    total = reduce(lambda first, second: tuple(map(add, first, second)), sums)
    return days, summaries_of(total, list(result.by_reward)), [], _ways(result)


_DATE = re.compile(r"(?<!\d)(\d{4})(?:-|_|/|/month=|)(\d{2})(?:-|_|/|/day=|)(\d{2})(?!\d)")


def _named(key: str | None, paths: Iterable[str], k: int) -> tuple[str, date | None]:
    """What a day is called, and its date: from its key, or else from the names of its files, the last of them.

    >>> _named("2026-11-14", [], 0), _named(None, ["logs/dt=20261114/part-0.parquet"], 0)[0], _named("monday", [], 0)
    (('2026-11-14', datetime.date(2026, 11, 14)), '2026-11-14', ('monday', None))
    """
    last = max(paths, default="")
    for text in (key or "", Path(last).name, last):
        for match in reversed(list(_DATE.finditer(text))):
            try:
                when = date(*map(int, match.groups()))
            except ValueError:
                continue
            return when.isoformat(), when
    return (key or (partition_name(last) if last else f"day {k + 1}")), None


def watch_days(
    days: Sequence[WatchedDay],
    *,
    total: Summaries | None = None,
    notes: Sequence[str] = (),
    reference: int | str = REFERENCE,
    alert: str | Sequence[str] | None = None,
    as_of: str | date | None = None,
    level: float = 0.95,
    source: str = "",
    ways: Ways | None = None,
) -> WatchedLog:
    """The answer of `watch` about days whose summaries are known; `total` is that of all of them, where days share clusters.

    `ways` says of which rewards less is better.
    """
    if not days:
        raise OptionError("there are no days to watch.", do="Add a first batch with `evaluate` and `state=`.")
    ways, today = ways or {}, _day(as_of)
    said = [
        f"Less {reward} is better." if way else which_way(reward).reason
        for reward, way in ways.items()
        if way is not False
    ]
    said += notes
    ordered = _in_order(days, said)
    start, length = _reference(reference, [day.name for day in ordered])
    ordered, absent = _with_absent(ordered, start, length, today, said)
    names = [day.name for day in ordered]
    weekdays = [k if day.date is None else day.date.weekday() for k, day in enumerate(ordered)]
    weekdays = [each % 7 for each in weekdays]
    rows = np.array([float(day.rows) for day in ordered])
    alerts = _parsed(alert, names)
    raw = {key: _numbers(ordered, key) for key in _keys(ordered)}
    enough = {
        key: (known := np.isfinite(values))[start:].sum() >= length and bool((errors[known] > 0).any())
        for key, (values, errors, _) in raw.items()
    }
    over = [k for k, day in enumerate(ordered) if day.date is None or day.date < today]
    counts = [k for k in over if k >= start and ordered[k].rows]
    watched = Watched(length, max(sum(enough.values()) + (len(counts) > length), 1), 1 - level)
    series, alarms = [], list[Alarm]()
    several = len({reward for reward, _, _ in raw}) > 1
    for key, (values, errors, carrying) in raw.items():
        known = np.flatnonzero(np.isfinite(values))
        changes, extra = list[Shift](), 1.0
        inside = known[known >= start]
        if enough[key]:
            changes, extra = watched.changes(
                values[inside], errors[inside], carrying[inside], rows[inside], [weekdays[k] for k in inside]
            )
        band = _band(values[known], errors[known], carrying[known], rows[known], level)
        together = None if total is None else number_in(_summary(total, *key[:2]), key[2] + ERROR)
        running, stderr, lower, upper = band
        if together is not None and len(stderr) and stderr[-1] > 0:  # days share clusters
            wider = max(together / float(stderr[-1]), 1.0)
            lower, upper = running - (running - lower) * wider, running + (upper - running) * wider
            band = running, stderr * wider, lower, upper
        made = Series(
            *key,
            tuple(names[k] for k in known),
            values[known],
            errors[known],
            *band,
            extra=extra,
            is_watched=enough[key],
            minimize=ways.get(key[0], False),
        )
        series.append(made)
        alarms += [_alarm(made, each, [names[k] for k in inside], several) for each in changes]
    shifts, spread = list[Shift](), 0.0
    if len(counts) > length:
        shifts, spread = watched.count_changes(rows[counts], [weekdays[k] for k in counts])
    if over:
        series.append(_counted(next(iter(raw), ("",))[0], names, rows, over, spread))
        for each in shifts:  # of the logarithm
            change = replace(each, before=math.exp(each.before), after=math.exp(each.after))
            alarms.append(_alarm(series[-1], change, [names[k] for k in counts], several))
        alarms += _missing(series[-1], names, absent)
    if any(made.extra > 1 for made in series):
        most = max(series, key=lambda made: made.extra)
        said.append(
            f"Reference days differ by more than their rows explain ({most.words(several)}: {most.extra:.1f} times), so alarms wait for "
            "larger changes. A longer reference period helps."
        )
    alarms.sort(key=lambda each: (names.index(each.noticed), -abs(each.standard_errors)))
    quiet = tuple(names[start : start + length]) if len(names) >= start + length else ()
    newest = max((day.date for day in ordered if day.rows and day.date is not None), default=None)
    age = None if newest is None or any(day.date is None for day in ordered) else max((today - newest).days, 0)
    judged = tuple(_judge(each, series, alarms, names, several, age) for each in alerts)
    return WatchedLog(tuple(ordered), tuple(series), tuple(alarms), judged, quiet, level, source, tuple(said), age)


# -- Rows that are missing -----------------------------------------------------------------------------------------------


def _day(as_of: str | date | None) -> date:
    """The day on which this is asked."""
    if as_of is None:
        return date.today()
    if isinstance(as_of, datetime):
        return as_of.date()
    if isinstance(as_of, date):
        return as_of
    try:
        return date.fromisoformat(as_of)
    except (TypeError, ValueError):
        raise OptionError(f"`as_of={as_of!r}` is not a day.", do="Pass `as_of='2026-11-14'`.") from None


def _with_absent(
    days: list[WatchedDay], start: int, length: int, today: date, notes: list[str]
) -> tuple[list[WatchedDay], list[str]]:
    """The days with those that should have come after the reference and did not, and the names of these.

    A weekday is expected if the reference has rows on all of them. Days at the end count until two days ago, unless the log ended
    more than four weeks ago, when nobody is waiting for more.
    """
    dates = [day.date for day in days if day.date is not None]
    if len(dates) < len(days) or len(days) < start + length:
        return days, []
    present = {day.date for day in days if day.date is not None and day.rows}
    quiet = _dates(dates[start], dates[start + length - 1])
    some = {day.weekday() for day in quiet if day in present}
    holes = [day for day in quiet if day.weekday() in some and day not in present]
    if 0 < len(holes) < length / 2:
        more = f" and {counted(len(holes) - 1, 'other day')}" if len(holes) > 1 else ""
        notes.append(f"The reference has no rows on {holes[0]}{more}.")
    usual = some - {day.weekday() for day in holes}
    newest = max(dates)
    last = max(newest, today - LATE) if (today - newest).days <= WIDEST else newest
    later = _dates(quiet[-1] + timedelta(days=1), last)
    absent = [day for day in later if day.weekday() in usual and day not in present and day < today]
    by_date = {day: WatchedDay(day.isoformat(), day, 0, {}) for day in absent}
    by_date |= {day.date: day for day in days if day.date is not None}
    return [by_date[day] for day in sorted(by_date)], [by_date[day].name for day in absent]


def _dates(first: date, last: date) -> list[date]:
    return [first + timedelta(days=k) for k in range((last - first).days + 1)]


def _counted(reward: str, names: Sequence[str], rows: Floats, over: Sequence[int], spread: float) -> Series:
    """The rows of every day that is over, and their mean so far, which has no band: nobody promises anything about it."""
    values = rows[over]
    running = np.cumsum(values) / np.arange(1, len(over) + 1)
    no_band = np.full(len(over), np.nan)
    errors = np.maximum(values * spread, np.sqrt(values))
    days = tuple(names[k] for k in over)
    return Series(reward, "", COUNT, days, values, errors, running, errors, no_band, no_band, is_watched=spread > 0)


def _missing(series: Series, names: Sequence[str], absent: Sequence[str]) -> Iterator[Alarm]:
    """An alarm for every run of days without rows."""
    places = [names.index(name) for name in absent]
    begins = [k for k, place in enumerate(places) if k == 0 or place > places[k - 1] + 1]
    usual = float(np.median(series.values[series.values > 0]))
    for first, end in pairwise([*begins, len(places)]):
        run = absent[first:end]
        when = f"on {run[0]}" if len(run) == 1 else f"on {counted(len(run), 'day')}, {_span(run)}"
        text = f"are missing: there are none {when}, where other such days have about {usual:,.0f}. {CAUSES[COUNT]}"
        yield Alarm(NAMES[COUNT], series.reward, "", COUNT, run[0], run[0], usual, 0.0, -math.inf, 0.0, text)


def _in_order(days: Sequence[WatchedDay], notes: list[str]) -> list[WatchedDay]:
    """The days by date, those of the same date as one; in the order in which they were added, if some have no date."""
    if any(day.date is None for day in days):
        if any(day.date is not None for day in days):
            notes.append(
                "Some batches have no date in their key or file name, so days count in the order they were added."
            )
        names: dict[str, int] = {}
        ordered = []
        for day in days:
            names[day.name] = names.get(day.name, 0) + 1
            name = day.name if names[day.name] == 1 else f"{day.name} ({names[day.name]})"
            ordered.append(WatchedDay(name, None, day.rows, day.summaries))
        return ordered
    by_date: dict[date, list[WatchedDay]] = {}
    for day in days:
        if day.date is not None:
            by_date.setdefault(day.date, []).append(day)
    return [parts[0] if len(parts) == 1 else _as_one(parts) for _, parts in sorted(by_date.items())]


def _as_one(parts: Sequence[WatchedDay]) -> WatchedDay:
    """Several batches of one day: means by rows, and errors of independent rows."""
    keys = _keys(parts)
    rows = np.array([float(part.rows) for part in parts])
    summaries: dict[str, dict[str, dict[str, float]]] = {}
    for key in keys:
        values, errors, carrying = _numbers(parts, key)
        known = np.isfinite(values)
        share = rows[known] / max(rows[known].sum(), 1.0)
        reward, target, kind = key
        error = math.sqrt(float(np.square(share * errors[known]).sum()))
        summaries.setdefault(reward, {}).setdefault(target, {}).update(
            {kind: float(share @ values[known]), kind + ERROR: error, kind + CARRYING: float(carrying[known].sum())}
        )
    return WatchedDay(parts[0].name, parts[0].date, int(rows.sum()), summaries)


SeriesKey = tuple[str, str, str]


def _keys(days: Sequence[WatchedDay]) -> list[SeriesKey]:
    """The series that the days have: by reward and target, in the order in which they are read."""
    known: dict[SeriesKey, None] = {}
    for day in days:
        for k, (reward, targets) in enumerate(_mappings(day.summaries)):
            for target, summary in _mappings(targets):
                for kind in summary:
                    # weights are the same for every reward
                    if kind in KINDS and (k == 0 or kind not in (WEIGHT, PROPENSITIES)):
                        known[reward, target, kind] = None
    rewards = list(dict.fromkeys(reward for reward, _, _ in known))
    policies = list(dict.fromkeys(target for _, target, _ in known))
    return sorted(
        known, key=lambda key: (rewards.index(key[0]), not key[1], policies.index(key[1]), KINDS.index(key[2]))
    )


def _mappings(summaries: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    return ((name, part) for name, part in summaries.items() if isinstance(part, Mapping))


def _summary(summaries: Mapping[str, object], *names: str) -> Mapping[str, object]:
    for name in names:
        part = summaries.get(name)
        summaries = part if isinstance(part, Mapping) else {}
    return summaries


def _numbers(days: Sequence[WatchedDay], key: SeriesKey) -> tuple[Floats, Floats, Floats]:
    """The values, errors and carrying rows of a series on all days; nan where a day has none."""
    reward, target, kind = key
    known = []
    for day in days:
        summary = _summary(day.summaries, reward, target)
        numbers = [number_in(summary, name) for name in (kind, kind + ERROR, kind + CARRYING)]
        known.append([math.nan if x is None else x for x in numbers])
    values, errors, carrying = np.array(known, dtype=np.float64).reshape(-1, 3).T
    return np.where(np.isfinite(errors), values, math.nan), errors, np.nan_to_num(carrying, nan=1.0)


Bands = tuple[Floats, Floats, Floats, Floats]  # mean so far, its error, lower and upper ends


def _band(values: Floats, errors: Floats, carrying: Floats, rows: Floats, level: float) -> Bands:
    """The mean of all rows so far, day by day, with a band that holds on all days at once."""
    total = np.maximum(np.cumsum(rows), 1.0)
    running = np.cumsum(rows * values) / total
    stderr = np.sqrt(np.cumsum(np.square(rows * errors))) / total
    tuned_for = MONTH * float(rows[:SETTLED].mean()) if len(rows) else 1.0  # known from the traffic alone
    method, bands = Anytime(max(tuned_for, 1.0)), []
    for n, value, error, carried in zip(total, running, stderr, np.cumsum(carrying), strict=True):
        evidence = Evidence(float(value), float(error), int(n), carrying=float(carried), mean_is_one=False)
        bands.append(tuple(Quantity(evidence, method, level).interval()))
    lower, upper = np.array(bands).reshape(-1, 2).T
    return running, stderr, lower, upper


def _reference(reference: int | str, days: Sequence[str]) -> tuple[int, int]:
    """The place of the reference's first day, and its length."""
    if isinstance(reference, str) and reference.isdigit():
        reference = int(reference)
    if isinstance(reference, int) and not isinstance(reference, bool):
        if reference <= SETTLED:
            raise OptionError(
                f"`reference={reference!r}` is too short: it needs more than a week, so that weekdays can be told from changes."
            )
        return 0, reference
    first, sign, last = str(reference).partition(":")
    if not sign:
        raise OptionError(
            f"`reference={reference!r}` is neither a number of days nor two days.",
            do="Pass `reference=14`, or `reference='2026-11-01:2026-11-14'`.",
        )
    for name in (first, last):
        _check_day(name, days)
    begin, end = _place(first, days), max((k for k, day in enumerate(days) if day <= last or day == last), default=0)
    if end - begin + 1 <= SETTLED:
        raise OptionError(
            f"`reference={reference!r}` has {counted(max(end - begin + 1, 0), 'day')}, and needs more than a week."
        )
    return begin, end - begin + 1


def _check_day(name: str, days: Sequence[str]) -> None:
    if name not in days and not _DATE.fullmatch(name):
        raise OptionError(f"there is no day {name!r}; the days are {days[0]!r} to {days[-1]!r}.")


def _place(name: str, days: Sequence[str]) -> int:
    """The place of a day, or of the first one after it."""
    return days.index(name) if name in days else sum(day < name for day in days)


def _alarm(series: Series, change: Shift, days: Sequence[str], several: bool) -> Alarm:
    """A change in words."""
    what, error = series.words(several), abs(change.after - change.before) / max(abs(change.errors), 1e-12)
    since, noticed = days[change.first], days[change.noticed]
    before, after = (
        f"{value:,.0f}" if series.is_count else (signed if series.is_signed else number)(value, error)
        for value in (change.before, change.after)
    )
    verb = "rose" if change.after > change.before else "fell"
    text = (
        f"{verb} from {before} to {after} on {since}, allowing for weekdays, and was noticed on "
        f"{noticed}: {abs(change.errors):.1f} standard errors, where {change.limit:.1f} raise an alarm. {CAUSES[series.kind]}"
    )
    return Alarm(
        what, series.reward, series.target, series.kind, since, noticed, change.before, change.after,
        change.errors, change.limit, text,
    )  # fmt: skip


# -- Alerts ------------------------------------------------------------------------------------------------------------

_CHANGED = re.compile(r"\s*changed(?:\s+since\s+(.+?))?\s*")
_CONDITION = re.compile(
    rf"\s*({'|'.join((*KINDS, COUNT, AGE))})\s*(<=|>=|<|>)\s*([-−+]?[\d.]+(?:[eE][-+]?\d+)?)(?:\s*(rows?|days?))?\s*"
)
_UNITS = {COUNT: "row", AGE: "day"}  # what may stand behind a number


@dataclass(frozen=True)
class Condition:
    """A series below or above a number."""

    text: str
    kind: str
    sign: str
    number: float

    def holds(self, lower: float, upper: float) -> bool:
        """Whether all numbers between these two compare so."""
        return {
            "<": upper < self.number,
            "<=": upper <= self.number,
            ">": lower > self.number,
            ">=": lower >= self.number,
        }[self.sign]


@dataclass(frozen=True)
class ChangedSince:
    """An alarm that was noticed on a day or later."""

    text: str
    day: int


def _parsed(alert: str | Sequence[str] | None, days: Sequence[str]) -> list[Condition | ChangedSince]:
    texts = [] if alert is None else [alert] if isinstance(alert, str) else list(alert)
    parsed: list[Condition | ChangedSince] = []
    for text in texts:
        match, changed = _CONDITION.fullmatch(str(text)), _CHANGED.fullmatch(str(text))
        if changed is not None:
            if changed[1]:
                _check_day(changed[1], days)
            parsed.append(ChangedSince(str(text).strip(), _place(changed[1], days) if changed[1] else 0))
        elif match is None or not (match[4] or "").startswith(_UNITS.get(match[1], " ") if match[4] else ""):
            raise OptionError(
                f"`alert={text!r}` is neither 'changed' nor a comparison such as 'lift < 0'.",
                do=f"Compare one of {', '.join((*KINDS, COUNT, AGE))} with a number.",
            )
        else:
            parsed.append(Condition(str(text).strip(), match[1], match[2], float(match[3].replace("−", "-"))))
    return parsed


def _judge(
    alert: Condition | ChangedSince,
    series: Sequence[Series],
    alarms: Sequence[Alarm],
    days: Sequence[str],
    several: bool,
    age: int | None,
) -> Alert:
    """Whether an alert fires."""
    if isinstance(alert, ChangedSince):
        noticed = list(dict.fromkeys(each.what for each in alarms if days.index(each.noticed) >= alert.day))
        return Alert(alert.text, bool(noticed), f"{', '.join(noticed)}." if noticed else "nothing has changed.")
    if alert.kind == AGE:
        if age is None:
            return Alert(alert.text, False, "there is no age here: days have no dates.")
        return Alert(alert.text, alert.holds(age, age), f"the newest day with rows was {counted(age, 'day')} ago.")
    concerned = [made for made in series if made.kind == alert.kind and len(made.days)]
    if alert.kind == COUNT and concerned:
        last = float(concerned[0].values[-1])
        return Alert(alert.text, alert.holds(last, last), f"{concerned[0].days[-1]} has {last:,.0f} rows.")
    if not concerned:
        return Alert(alert.text, False, f"there is no {alert.kind} here.")
    hit = [made for made in concerned if alert.holds(float(made.lower[-1]), float(made.upper[-1]))]
    shown = hit or concerned
    said = "; ".join(
        f"{made.words(several)} is {_written(made)} so far ({_written(made, made.lower)} to {_written(made, made.upper)}{_news(made)})"
        for made in shown[:3]
    )
    return Alert(alert.text, bool(hit), f"{said}{', and more' if len(shown) > 3 else ''}.")


def _news(series: Series) -> str:
    """What a lift whose interval excludes 0 means, where less is better, or may be."""
    lower, upper = float(series.lower[-1]), float(series.upper[-1])
    if series.kind != LIFT or series.minimize is False or lower <= 0.0 <= upper:
        return ""
    return f"; {direction(is_above=lower > 0.0, minimize=series.minimize)}"


def _written(series: Series, ends: Floats | None = None) -> str:
    value = float((series.running if ends is None else ends)[-1])
    return (signed if series.is_signed else number)(value, float(series.running_errors[-1]))
