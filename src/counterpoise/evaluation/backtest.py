"""`backtest`: what we would have said before earlier A/B tests, next to what those tests then measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Unpack

from counterpoise.errors import Argument, OptionError
from counterpoise.evaluation.backtested import Backtest, Replayed
from counterpoise.evaluation.evaluate import compare
from counterpoise.evaluation.result import Comparison
from counterpoise.intervals import Interval, Method, check_level
from counterpoise.log.log import LogFields, as_log
from counterpoise.log.question import LOGGING


@dataclass(frozen=True)
class Outcome:
    """What a test measured: the difference per row between the new policy and the one it was tested against, and its standard error.

    Without a standard error, give the ends of its 95 % interval.
    """

    measured: float
    stderr: float | None = None
    lower: float | None = None
    upper: float | None = None
    target: str | None = None
    against: str | None = None

    def __post_init__(self) -> None:
        numbers = [self.measured, *(one for one in (self.stderr, self.lower, self.upper) if one is not None)]
        if not all(isinstance(one, Real) and math.isfinite(float(one)) for one in numbers):
            raise OptionError(f"an outcome holds something that isn't a finite number: {self!r}.")
        if self.stderr is None and (self.lower is None or self.upper is None):
            raise OptionError(
                "an outcome needs the error of what was measured: its stderr, or the ends lower and upper of its interval."
            )
        if self.error < 0:
            raise OptionError(f"the error of an outcome is negative: {self!r}.")

    @property
    def error(self) -> float:
        """The standard error of what was measured."""
        if self.stderr is not None:
            return float(self.stderr)
        return (float(self.upper or 0.0) - float(self.lower or 0.0)) / (2 * 1.959964)


def backtest(
    logs: Mapping[str, Any],
    outcomes: Any,
    *,
    target: Any = None,
    against: Any = None,
    interval: str | Method | None = None,
    level: float = 0.95,
    progress: bool | None = None,
    **parts: Unpack[LogFields],
) -> Backtest:
    """What we would have said about earlier tests from the logs before them, and how that fits what they measured.

    Every log is one that was written before (or apart from) its test, by the policy that the new one was then tested against. `compare`
    predicts the difference; the outcome is what the test measured, with an error of its own, for which coverage allows.

    Parameters
    ----------
    logs
        The name of every test, and its log: a `Log`, data with the same parts for all, or the `Comparison` that was made at the time.
    outcomes
        What the tests measured: a frame or a list of rows with the columns ``test``, ``measured`` and ``stderr`` (or ``lower`` and
        ``upper``, the ends of a 95 % interval), and maybe ``target`` and ``against``; or a mapping of names to such rows, or to pairs of
        what was measured and its standard error.
    target, against
        The policies to compare, unless their outcome names others. By default, against the policy that wrote the log.
    interval, level, progress
        As for `compare`.

    Examples
    --------
    >>> log = {"r": [1, 0, 1, 1] * 50, "p": [0.5, 0.5, 0.25, 0.5] * 50, "new": [0.5, 0.25, 0.5, 0.25] * 50}
    >>> found = backtest({"spring": log}, {"spring": (0.2, 0.1)}, target="new", reward="r", propensity="p")
    >>> found["spring"].covered, found["spring"].same_sign
    (True, True)
    """
    check_level(level)
    if not isinstance(logs, Mapping) or not logs:
        raise OptionError("logs map the name of every test to the log before it.")
    logs = {str(name): data for name, data in logs.items()}
    known = _outcomes(outcomes)
    if set(known) != set(logs):
        odd = sorted(map(str, set(known) ^ set(logs)))
        raise OptionError(f"every test needs a log and an outcome; {odd[0]!r} has only one of them.")
    made = [name for name, data in logs.items() if isinstance(data, Comparison)]
    extra = [*parts, *(name for name, one in (("target", target), ("against", against)) if one is not None)]
    if extra and len(made) == len(logs):
        raise OptionError(
            ["the logs are comparisons, which were made before: leave out ", Argument(extra[0]), "."],
        )
    options: dict[str, Any] = {"interval": interval, "level": level, "progress": progress}
    replayed = []
    for name, data in logs.items():
        outcome = known[name]
        if isinstance(data, Comparison):
            found = data
        else:
            against_whom = outcome.against or (LOGGING if against is None else against)
            whole = as_log(data, parts)
            whole.need_only("backtest")
            found = compare(whole, target=outcome.target or target, against=against_whom, **options)
        replayed.append(_replayed(name, found, outcome, level))
    return Backtest(tuple(replayed), level)


def _replayed(name: str, found: Comparison, outcome: Outcome, level: float) -> Replayed:
    if found.level != level:
        raise OptionError(
            [f"the comparison of {name!r} is at another level: pass ", Argument("level", found.level), "."]
        )
    if len(found.targets) > 1:
        raise OptionError(f"the comparison of {name!r} has {len(found.targets)} targets: a test is about one.")
    predicted = found.difference
    from scipy.special import ndtri

    reach = float(ndtri(0.5 + level / 2)) * outcome.error
    measured = float(outcome.measured)
    own = Interval(measured - reach, measured + reach, level, "normal")
    return Replayed(name, predicted, found.verdict().verdict, measured, outcome.error, own)


def _outcomes(given: Any) -> dict[str, Outcome]:
    if isinstance(given, Mapping) and not _is_columns(given):
        return {str(name): _outcome(one) for name, one in given.items()}
    rows = _rows(given)
    for row in rows:
        if "test" not in row or "measured" not in row:
            raise OptionError(
                f"outcomes have the columns test, measured and stderr (or lower and upper); found {', '.join(row)}."
            )
    found = {str(row["test"]): _outcome({name: one for name, one in row.items() if name != "test"}) for row in rows}
    if len(found) < len(rows):
        raise OptionError("two outcomes are of the same test: give every test a name of its own.")
    return found


def _is_columns(given: Mapping[Any, Any]) -> bool:
    return {"test", "measured"} <= set(given)


def _rows(given: Any) -> list[dict[str, Any]]:
    if isinstance(given, list | tuple):
        return [dict(one) for one in given]
    if isinstance(given, Mapping):
        return [dict(zip(given, values, strict=True)) for values in zip(*given.values(), strict=True)]
    import narwhals as nw

    return list(nw.from_native(given, eager_only=True).rows(named=True))


def _outcome(one: Any) -> Outcome:
    if isinstance(one, Outcome):
        return one
    if isinstance(one, Mapping):
        wanted = {name: one[name] for name in Outcome.__dataclass_fields__ if one.get(name) not in (None, "")}
        return Outcome(**{"measured": math.nan} | wanted)
    if isinstance(one, Iterable) and not isinstance(one, str):
        pair = tuple(one)
        if len(pair) == 2:
            return Outcome(*pair)
    raise OptionError(
        f"an outcome is a pair of what was measured and its standard error, or a row with their names; found {one!r}."
    )
