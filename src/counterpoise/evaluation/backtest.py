"""`backtest`: what we would have said before earlier A/B tests, next to what those tests then measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

import narwhals as nw
from narwhals.typing import IntoDataFrame

from counterpoise.display import (
    ROWS,
    Block,
    Cell,
    Display,
    Name,
    Number,
    Table,
    Worded,
    above,
    estimate_cells,
    finite,
    level_of,
)
from counterpoise.errors import OptionError
from counterpoise.estimators import Estimate
from counterpoise.evaluation.evaluate import compare
from counterpoise.evaluation.result import Comparison
from counterpoise.intervals import Interval, Method, check_level
from counterpoise.intervals.method import normal
from counterpoise.log.log import Log, as_log
from counterpoise.log.parts import Data, LogFields
from counterpoise.log.question import LOGGING
from counterpoise.log.targets import Targets
from counterpoise.log.verbs import need_only, takes_parts

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.axes import Axes

# -- What `backtest` returns: every earlier test with what we would have said, and how far we were off -----------------


NORMAL = 1.959964  # the normal's quantile at 97.5 %


@dataclass(frozen=True)
class Replayed:
    """One test: what we would have said before it, and what it measured."""

    name: str
    predicted: Estimate
    verdict: str
    measured: float
    stderr: float  # of what was measured
    interval: Interval  # of what was measured

    @property
    def is_known(self) -> bool:
        """Whether the log said anything."""
        return self.predicted.identified and math.isfinite(self.predicted.stderr)

    @property
    def off(self) -> float:
        """How far the prediction is above what was measured, in standard errors of their difference."""
        error = math.hypot(self.predicted.stderr, self.stderr)
        return (self.predicted.value - self.measured) / error if error > 0 else math.nan

    @property
    def covered(self) -> bool:
        """Whether our interval, widened by the outcome's own error, covers the outcome."""
        low, high = self.predicted.interval
        away = self.measured - self.predicted.value
        reach = high - self.predicted.value if away > 0 else self.predicted.value - low
        return abs(away) <= math.hypot(reach, self.interval.upper - self.measured)

    @property
    def inside(self) -> bool:
        """Whether our estimate lies in the interval of what was measured."""
        return self.predicted.value in self.interval

    @property
    def same_sign(self) -> bool:
        """Whether both say which policy is better."""
        return self.predicted.value * self.measured > 0

    @property
    def is_decided(self) -> bool:
        """Whether the interval of what was measured excludes 0."""
        return 0.0 not in self.interval


@dataclass(frozen=True, eq=False, repr=False)
class Backtest(Display):
    """The answer of `backtest`: ``tests["spring"]`` is one test, `table()` has all, `report` writes a page about them."""

    tests: tuple[Replayed, ...]
    level: float

    def __getitem__(self, name: str) -> Replayed:
        test = next((test for test in self.tests if test.name == name), None)
        if test is None:
            raise OptionError(
                f"there is no test {name!r} here; there are {', '.join(repr(test.name) for test in self.tests)}."
            )
        return test

    @property
    def known(self) -> tuple[Replayed, ...]:
        """The tests whose logs said anything."""
        return tuple(test for test in self.tests if test.is_known)

    @property
    def coverage(self) -> float:
        """The share of tests whose outcome our interval covers, allowing for the outcome's own error."""
        return _share(test.covered for test in self.known)

    @property
    def coverage_interval(self) -> Interval:
        """What the coverage could be in the long run (Wilson's interval at 95 %)."""
        n, share, z = len(self.known), self.coverage, NORMAL
        if not n:
            return Interval(0.0, 1.0, 0.95, "wilson")
        middle, reach = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
        return Interval((middle - reach) / (1 + z * z / n), (middle + reach) / (1 + z * z / n), 0.95, "wilson")

    @property
    def sign_agreement(self) -> float:
        """The share of decided tests (whose own interval excludes 0) whose sign we would have called right."""
        return _share(test.same_sign for test in self.known if test.is_decided)

    @property
    def mean_off(self) -> float:
        """Whether predictions tend to be too high (above 0) or too low, in standard errors."""
        return sum(test.off for test in self.known) / len(self.known) if self.known else math.nan

    @property
    def error_ratio(self) -> float:
        """How large errors were, in units of the reported ones: 1 if those are right, 2 if predictions were off by twice as much."""
        return math.sqrt(sum(test.off**2 for test in self.known) / len(self.known)) if self.known else math.nan

    @property
    def is_calibrated(self) -> bool:
        """Whether errors this large are within chance (p above 0.01) if the reported ones are right."""
        from scipy.special import chdtrc  # which takes long to import

        return bool(chdtrc(len(self.known), len(self.known) * self.error_ratio**2) > 0.01) if self.known else False

    def table(self) -> pl.DataFrame:
        """One row per test."""
        return self.cells().frame()

    def cells(self) -> Table:
        """A row for every test."""
        rows: list[dict[str, Cell]] = []
        for test in self.tests:
            value, error = test.predicted.value if test.is_known else math.nan, test.predicted.stderr
            sign = Worded(test.same_sign, "same" if test.same_sign else "other")
            row: dict[str, Cell] = {
                "test": Name(test.name),
                **estimate_cells(value, error, test.predicted.interval, name="predicted", is_signed=True),
                "measured": Number(test.measured, test.stderr, is_signed=True),
                "measured_stderr": Number(test.stderr, test.stderr),
                "covered": test.covered if test.is_known else None,
                "inside": test.inside if test.is_known else None,
                "same_sign": sign if test.is_known else None,
                "off": test.off,
                "verdict": test.verdict,
            }
            rows.append(row)
        shown = [name for name in rows[0] if name not in ("stderr", "inside", "off")]
        return Table(rows, shown, {"measured_stderr": "stderr", "same_sign": "sign"})

    def document(self) -> dict[str, object]:
        """What `counterpoise backtest --json` prints."""
        numbers = ("coverage", "sign_agreement", "mean_off", "error_ratio", "is_calibrated", "level")
        said: dict[str, object] = {name: getattr(self, name) for name in numbers}
        return finite(said | {"tests": self.cells().records()})

    def plot(self, ax: Axes | None = None) -> Axes:
        """What was measured against what was predicted, with both intervals; the diagonal is where they agree."""
        return cast("Axes", above().pictures.backtest(self, ax=ax))

    def report(self, path: str | PathLike[str], *, title: str | None = None, command: str | None = None) -> Path:
        """Write one HTML file for people to read, and return its path."""
        return cast("Path", above().write_backtest(self, path, title=title, command=command))

    def headline(self) -> Iterator[str]:
        """What the tests say about us, in a few sentences."""
        known = self.known
        if not known:
            yield "The logs identify the outcome of none of these tests."
            return
        low, high = self.coverage_interval
        hit = sum(test.covered for test in known)
        yield (
            f"Our {level_of(self.level)} intervals covered {hit} of {len(known)} outcomes, allowing for the outcomes' own errors (in the "
            f"long run {100 * low:.0f} to {100 * high:.0f} %)."
        )
        decided = [test for test in known if test.is_decided]
        if decided:
            right = sum(test.same_sign for test in decided)
            yield f"Of {len(decided)} tests with a clear winner, we would have named it in {right}."
        chance = ", which chance can explain." if self.is_calibrated else ", which chance does not explain."
        yield f"Errors were {self.error_ratio:.2f} times what we reported{chance}"
        if len(known) < len(self.tests):
            yield f"{len(self.tests) - len(known)} more tests are not identified by their logs."

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """What the tests say about us, and the tests themselves."""
        yield from self.headline()
        yield ""
        yield self.cells().first(rows)


def _share(flags: Iterable[bool]) -> float:
    hits = list(flags)
    return sum(hits) / len(hits) if hits else math.nan


# -- `backtest` itself, and the outcomes that it takes -----------------------------------------------------------------


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
        numbers = [self.measured, *(number for number in (self.stderr, self.lower, self.upper) if number is not None)]
        if not all(isinstance(number, Real) and math.isfinite(float(number)) for number in numbers):
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
        return (float(self.upper or 0.0) - float(self.lower or 0.0)) / (2 * NORMAL)


# one of each test, by its name; or rows, as mappings, columns or a frame
Outcomes = (
    Mapping[str, Outcome | Mapping[str, object] | tuple[float, float]]
    | Sequence[Mapping[str, object]]
    | Mapping[str, Sequence[object]]
    | IntoDataFrame
)


@takes_parts("backtest")
def backtest(
    logs: Mapping[str, Log | Data | Comparison],
    outcomes: Outcomes,
    *,
    target: Targets = None,
    against: Targets = None,
    interval: str | Method | None = None,
    level: float = 0.95,
    progress: bool | None = None,
    **parts: Unpack[LogFields],
) -> Backtest:
    """What we would have said about earlier tests from the logs before them, and how that fits what they measured.

    Every log is one that was written before (or apart from) its test, by the policy that the new one was then tested against. `compare`
    predicts the difference; the outcome is what the test measured, whose own error coverage allows for.

    Parameters
    ----------
    logs
        The name of every test, and its log: a `Log`, data with the same parts for all, or the `Comparison` that was made at the time.
    outcomes
        What the tests measured: a frame or a list of rows with the columns ``test``, ``measured`` and ``stderr`` (or ``lower`` and
        ``upper``, the ends of a 95 % interval), and maybe ``target`` and ``against``; or a mapping of names to such rows, or to pairs of
        what was measured and its standard error.
    target, against
        The policies to compare, unless their outcome names others. By default, against the logging policy.
    interval, level, progress
        As for `compare`.

    Examples
    --------
    >>> log = {"r": [1, 0, 1, 1] * 50, "p": [0.5, 0.5, 0.25, 0.5] * 50, "new": [0.5, 0.25, 0.5, 0.25] * 50}
    >>> tests = backtest({"spring": log}, {"spring": (0.2, 0.1)}, target="new", reward="r", propensity="p")
    >>> tests["spring"].covered, tests["spring"].same_sign
    (True, True)
    """
    check_level(level)
    if not isinstance(logs, Mapping) or not logs:
        raise OptionError("logs map the name of every test to the log before it.")
    logs = {str(name): data for name, data in logs.items()}
    by_test = _outcomes(outcomes)
    if set(by_test) != set(logs):
        odd = sorted(map(str, set(by_test) ^ set(logs)))
        raise OptionError(f"every test needs a log and an outcome; {odd[0]!r} has only one of them.")
    extra = [*parts, *(name for name, policy in (("target", target), ("against", against)) if policy is not None)]
    if extra and all(isinstance(data, Comparison) for data in logs.values()):
        raise OptionError(f"the logs are comparisons, which were made before: leave out `{extra[0]}=`.")
    replayed = []
    for name, data in logs.items():
        outcome = by_test[name]
        if isinstance(data, Comparison):
            comparison = data
        else:
            against_whom = outcome.against or (LOGGING if against is None else against)
            own_log = as_log(data, parts)
            need_only(own_log, "backtest")
            chosen = outcome.target or target
            comparison = compare(
                own_log, target=chosen, against=against_whom, interval=interval, level=level, progress=progress
            )
        if comparison.level != level:
            raise OptionError(f"the comparison of {name!r} is at another level: pass `level={comparison.level!r}`.")
        if len(comparison.targets) > 1:
            raise OptionError(f"the comparison of {name!r} has {len(comparison.targets)} targets: a test is about one.")
        measured = float(outcome.measured)
        own = normal(measured, outcome.error, level)
        verdict = comparison.verdict().verdict
        replayed.append(Replayed(name, comparison.difference, verdict, measured, outcome.error, own))
    return Backtest(tuple(replayed), level)


def _outcomes(measured: Outcomes) -> dict[str, Outcome]:
    if isinstance(measured, Mapping) and not {"test", "measured"} <= set(measured):
        return {str(name): _outcome(outcome) for name, outcome in measured.items()}
    rows: list[Mapping[str, object]]
    if isinstance(measured, Sequence):
        rows = [dict(row) for row in measured]
    elif isinstance(measured, Mapping):
        rows = [dict(zip(measured, values, strict=True)) for values in zip(*measured.values(), strict=True)]
    else:
        rows = list(nw.from_native(measured, eager_only=True).rows(named=True))
    for row in rows:
        if "test" not in row or "measured" not in row:
            raise OptionError(
                f"outcomes have the columns test, measured and stderr (or lower and upper); found {', '.join(row)}."
            )
    outcomes = {str(row["test"]): _outcome(row) for row in rows}
    if len(outcomes) < len(rows):
        raise OptionError("two outcomes are of the same test: give every test a name of its own.")
    return outcomes


def _outcome(outcome: object) -> Outcome:
    if isinstance(outcome, Outcome):
        return outcome
    if isinstance(outcome, Mapping):
        wanted = {name: outcome[name] for name in Outcome.__dataclass_fields__ if outcome.get(name) not in (None, "")}
        return Outcome(**{"measured": math.nan} | wanted)
    if isinstance(outcome, Iterable) and not isinstance(outcome, str):
        pair = tuple(outcome)
        if len(pair) == 2:
            return Outcome(*pair)
    raise OptionError(
        f"an outcome is a pair of what was measured and its standard error, or a row with their names; found {outcome!r}."
    )
