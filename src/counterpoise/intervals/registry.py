"""The one list of interval methods, and how what a user writes becomes one of them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from counterpoise.errors import OptionError
from counterpoise.intervals.anytime import Anytime
from counterpoise.intervals.bernstein import Bernstein
from counterpoise.intervals.jackknife import Jackknife
from counterpoise.intervals.method import Method
from counterpoise.intervals.normal import Normal

# A method of one's own: INTERVALS["mine"] = Mine
INTERVALS: dict[str, type[Method]] = {
    "normal": Normal,
    "jackknife": Jackknife,
    "anytime": Anytime,
    "bernstein": Bernstein,
}


def strategy(interval: str | Method | None, *, is_clustered: bool, options: Mapping[str, Any] | None = None) -> Method:
    """The method that `interval` asks for, by name or as an object; by default, the one that allows for clusters if there are any.

    `options` are the method's own options, from a front end that cannot take objects, such as the command line.

    >>> strategy(None, is_clustered=True)
    Jackknife()
    >>> strategy("anytime", is_clustered=False)
    Anytime(tuned_for=10000)
    """
    if interval is None:
        return Jackknife() if is_clustered else Normal()
    if isinstance(interval, str):
        return _named(interval).from_options(options)
    if isinstance(interval, type):
        raise OptionError(
            f"interval is the class {interval.__name__}: pass an object, interval={interval.__name__}(…)."
        )
    if not isinstance(interval, Method):
        raise OptionError(f"interval must be {_listed()}; found {interval!r}.")
    return interval


def _named(name: str) -> type[Method]:
    if name not in INTERVALS:
        near = difflib.get_close_matches(name, INTERVALS, n=1)
        suggestion = f"Did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"interval must be {_listed()}; found {name!r}.", suggestion=suggestion)
    return INTERVALS[name]


def _listed() -> str:
    return f"one of {', '.join(INTERVALS)}, or an object such as cp.intervals.Anytime(tuned_for=1e6)"
