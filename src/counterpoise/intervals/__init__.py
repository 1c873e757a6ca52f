"""Confidence intervals: what each promises, and when, and the one registry that lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterpoise.errors import OptionError, did_you_mean
from counterpoise.intervals.anytime import Anytime
from counterpoise.intervals.bernstein import Bernstein
from counterpoise.intervals.jackknife import Jackknife
from counterpoise.intervals.log_smoothing import LogSmoothing
from counterpoise.intervals.method import Evidence, Interval, Method, Normal, check_level, symmetric
from counterpoise.intervals.student import Student

# A method of one's own: INTERVALS["mine"] = Mine
INTERVALS: dict[str, type[Method]] = {
    "student": Student,
    "normal": Normal,
    "jackknife": Jackknife,
    "anytime": Anytime,
    "bernstein": Bernstein,
    "log_smoothing": LogSmoothing,
}


def strategy(interval: str | Method | None, *, is_clustered: bool, options: Mapping[str, Any] | None = None) -> Method:
    """The method that `interval` asks for, by name or as an object; by default, Student's, which allows for clusters if there are any.

    `options` are the method's own options, from a front end that cannot take objects, such as the command line.

    >>> strategy(None, is_clustered=True)
    Student()
    >>> strategy("anytime", is_clustered=False)
    Anytime(tuned_for=10000)
    """
    if interval is None:
        return Student()
    if isinstance(interval, str):
        if interval not in INTERVALS:
            raise _unknown(interval)
        return INTERVALS[interval].from_options(options)
    if isinstance(interval, type):
        raise OptionError(f"{interval.__name__} is a class.", do=f"Pass an object, `interval={interval.__name__}(…)`.")
    if not isinstance(interval, Method):
        raise _unknown(interval)
    return interval


def _unknown(interval: object) -> OptionError:
    return OptionError(
        f"`interval={interval!r}` is not an interval; choose from {', '.join(INTERVALS)}.",
        suggestion=did_you_mean(interval, INTERVALS) if isinstance(interval, str) else "",
        do="" if isinstance(interval, str) else "Or pass an object such as cp.intervals.Anytime(tuned_for=1e6).",
    )


__all__ = [
    "INTERVALS",
    "Anytime",
    "Bernstein",
    "Evidence",
    "Interval",
    "Jackknife",
    "LogSmoothing",
    "Method",
    "Normal",
    "Student",
    "check_level",
    "strategy",
    "symmetric",
]
