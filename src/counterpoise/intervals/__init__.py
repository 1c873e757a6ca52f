"""Confidence intervals: what each promises, and when."""

from counterpoise.intervals.anytime import Anytime
from counterpoise.intervals.bernstein import Bernstein
from counterpoise.intervals.jackknife import Jackknife
from counterpoise.intervals.log_smoothing import LogSmoothing
from counterpoise.intervals.method import Evidence, Interval, Method, Normal, check_level, symmetric
from counterpoise.intervals.registry import INTERVALS, strategy
from counterpoise.intervals.student import Student

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
