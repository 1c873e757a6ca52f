"""`RowKind`: what one row of a log stands for, with its columns, their arithmetic, and how its sums become those of plain rows.

A kind is one object without state. Every method says here what it is for plain rows, so that a kind has only those in which it differs.
Readers, rules, engines and moments go through the kinds of a log one after the other and know none of them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np

from counterpoise.errors import OptionError
from counterpoise.log.good import LARGEST, Values, is_amount, is_number, is_probability, is_propensity, is_truth

if TYPE_CHECKING:
    import narwhals as nw
    from narwhals.typing import FrameT

    from counterpoise.log.log import Log
    from counterpoise.log.question import Lane, Names, Question
    from counterpoise.moments.log_moments import LogMoments
    from counterpoise.moments.moments import Floats, Moments, ShorterRows
    from counterpoise.moments.spread import Powers


# -- What rows of a kind do not go with ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conflict:
    """Why rows of a kind do not go with something, and what to do instead.

    `{who}` is what they do not go with, in the words of whoever asks, and `{part}` that part of the log.
    """

    why: str
    do: str = ""


# -- What may be wrong with rows of a kind -------------------------------------------------------------------------------

# of an answer, how good a verdict may still be; of a log, how soon somebody should see to it
Severity = Literal["note", "caution", "not identified", "look", "fix"]


@dataclass(frozen=True)
class Code:
    """What caveats with one code say: how severe they usually are, why, whether they come from looking at rows, and what cures them.

    Those that only the doctor has are about a log that no question was asked of: `fix` it, `look` into it, or take `note`.

    `cure` is the next step: `ROWS` says that more rows cure it, `EXPLORE` that the logging policy must try what is missing, and an empty
    one that every caveat of this code brings its own in `do`.
    """

    severity: Severity
    why: str
    takes_rows: bool = False
    cure: str = ""


@dataclass(frozen=True)
class Finding:
    """What is wrong with the rows of a log by their sums: the code, text and numbers of a caveat, and what to do."""

    code: str
    text: str
    numbers: Mapping[str, float]
    do: str = ""


# -- Numbers that rows of a kind have besides rewards and probabilities --------------------------------------------------


@dataclass(frozen=True)
class Range:
    """What a number may be: a rule, in words, and the ends between which no value breaks it."""

    holds: Callable[[Values], Values]
    expected: str
    low: float = -LARGEST
    high: float = LARGEST


NUMBER = Range(is_number, "be a finite number")
AMOUNT = Range(is_amount, "be a finite number from 0 on", 0.0)
TRUTH = Range(is_truth, "be 1 or 0", 0.0, 1.0)
SHARE = Range(is_probability, "lie in [0, 1]", 0.0, 1.0)
# 1/LARGEST: a weight above LARGEST needs a smaller propensity than that, and the rules then decide
CHANCE = Range(is_propensity, "lie in (0, 1]", 1.0 / LARGEST, 1.0)

OR_DROP = ", or drop such rows with `drop_bad_rows=True`."


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: the part of a log that names it, what it is called inside a query, and what it may be."""

    part: str
    name: str
    range: Range
    advice: str = f"Fix the logger{OR_DROP}"


@dataclass(frozen=True)
class Rule:
    """A rule for rows, which is false for null and NaN on every engine, so it does not matter how an engine treats either."""

    part: str
    column: str
    expected: str
    holds: nw.Expr
    shows: str
    advice: str
    target: str | None = None  # the internal name of the one target it is about
    unit: str = "row"  # or what rows are made into, which is then judged, and shows its id
    if_whole: str = ""  # what else may be wrong where the first value is a whole number above 1


# -- The arithmetic of a row ---------------------------------------------------------------------------------------------

Term = TypeVar("Term", "nw.Expr", "Floats")


@dataclass(frozen=True)
class Row(Generic[Term]):
    """The columns of a query while they are made, as expressions of narwhals or as arrays of NumPy."""

    names: Names
    lanes: Sequence[Lane]
    centers: Sequence[Term | float]  # of each reward
    get: Callable[[str], Term]
    """A column that is there."""
    made: dict[str, Term]
    """Those that are being made: rewards less their centers, and the excess of every lane."""
    propensity: Term | None


class Places(Protocol):
    """The sums of a contrast in the whole log and its segments, as `evaluation/view.py` reads them."""

    @property
    def log(self) -> LogMoments:
        """The whole of it."""

    @property
    def together(self) -> Moments:
        """A stack of places, with the columns of their kinds."""

    @property
    def groups(self) -> Moments:
        """The same apart, by the groups that rows were added up in."""

    @property
    def is_clustered(self) -> bool:
        """Whether the groups hold clusters rather than single rows."""

    @property
    def whole(self) -> Moments:
        """The same as a plain log has them."""

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """Where rewards begin and end."""

    @property
    def per_row(self) -> Floats:
        """What rewards are divided by, on average."""

    def of_places(self, parts: Sequence[Powers]) -> Powers:
        """The powers of every place, from those of every segment."""


class RowKind:
    """A row is one decision with its weight and its reward, as `Moments` has it; kinds say what is different about theirs."""

    parts: tuple[str, ...] = ()
    """The parts of a log that are about rows of this kind. The first one makes a log one of them."""

    mark = ""
    """The column that tells moments of this kind, if they need to be told from plain ones."""

    columns: tuple[str, ...] = ()
    """The columns that its moments have besides u, s and us, the mark among them."""

    conflicts: ClassVar[Mapping[str, Conflict]] = {}
    """What its rows do not go with: parts and properties of a log, which are looked at when a log is made, and verbs, models, estimators,
    intervals and checks, which ask."""

    codes: ClassVar[Mapping[str, Code]] = {}
    """The codes of its findings."""

    # -- what a query reads ------------------------------------------------------------------------------------------------

    numbers: tuple[NumberColumn, ...] = ()
    """The columns that it reads, where the log names them."""

    known: str | None = None
    """The column of a query that is 1 where the reward is known, if it is known for some rows only."""

    kept_with: str | None = None
    """The column of a query with the probability that a row is there, if some are missing: a row counts as often as one over it."""

    count: str | None = None
    """The column of moments that says how many rows each stands for; all others are multiplied by it."""

    divisor: str | None = None
    """The column of moments that rewards are divided by."""

    is_compiled = False
    """Whether the compiled loop knows its arithmetic."""

    is_made = False
    """Whether engines make such a row of several of the log's."""

    width = 1
    """How many times more sums there are, about: a statement is then about fewer targets."""

    def is_of(self, log: Any) -> bool:
        """Whether the rows of a log are of this kind."""
        return bool(self.parts) and vars(log).get(self.parts[0]) is not None

    def check(self, log: Log) -> None:
        """Check that its parts of a log go together."""

    def check_verb(self, log: Log, verb: str) -> None:
        """Check that a verb has a use for its parts of a log."""

    def refuse(self, what: str, **words: object) -> None:
        """Raise an error, in these words, if its rows do not go with something."""
        if conflict := self.conflicts.get(what):
            raise OptionError(conflict.why.format(**{"who": what} | words), do=conflict.do)

    def of_one_policy(
        self, log: Log, quote: Callable[[str], str], rows_by: Callable[[Log, str], Mapping[str, int]]
    ) -> Log:
        """The log as if a single policy had written it, with SQL as its propensity; `rows_by` counts the rows by a column."""
        return log

    def kept(self, log: Log) -> dict[str, object]:
        """What a state remembers of a question: all days must have the same."""
        return {part: value for part in self.parts if (value := getattr(log, part)) is not None}

    def only_known(self, frame: FrameT, question: Question) -> FrameT:
        """The rows under internal names, without rewards that are not known, whatever stands there."""
        return frame

    def of_reward(self, holds: nw.Expr, advice: str) -> tuple[nw.Expr, str]:
        """When a reward is good, and what to do about those that are not."""
        return holds, advice

    # -- what is added up --------------------------------------------------------------------------------------------------

    def lane(self, lane: Lane, names: Names) -> Lane:
        """A lane with the columns of this kind."""
        return lane

    def products(self, lane: Lane) -> Mapping[tuple[str, str], str]:
        """Products of two columns of a lane that are also those of two others, under whose name they are added up once."""
        return {}

    def terms(self, row: Row[Term]) -> dict[str, Term]:
        """Its columns of a row, besides rewards and excesses."""
        return {}

    def counted(self, lanes: Sequence[Lane], get: Callable[[str], Term]) -> dict[str, Term]:
        """What takes the place of columns that are there by now."""
        return {}

    def finished(self, moments: LogMoments, question: Question) -> LogMoments:
        """The moments of a log with what it says beside its rows."""
        return moments

    # -- what the sums are worth ---------------------------------------------------------------------------------------------

    def moved(self, columns: Sequence[str]) -> Mapping[str, str]:
        """If the center of the rewards moves: the columns of moments that move with another column, and not by a constant."""
        return {}

    def shorter(self, moments: Moments) -> ShorterRows | None:
        """How these rows become plain ones; None if they are."""
        return None

    def with_known_rows(self, moments: Moments, longer: Moments, rows: int) -> Moments:
        """The moments of plain rows, made of longer ones, where it is known how many rows there were."""
        return moments

    def findings(self, places: Places) -> Iterator[Finding]:
        """What is wrong with the rows of the whole log, by their sums."""
        yield from ()

    def share_known(self, moments: Moments) -> Floats:
        """The share of the rows that would do, were their rewards known, as much as those whose reward is."""
        return np.ones(moments.shape)

    def worth(self, moments: Moments) -> Floats:
        """How many rows that count alike these are worth; infinite where they do."""
        return np.full(moments.shape, np.inf)

    def effective(self, moments: Moments) -> Floats | None:
        """How many rows of equal weight these are worth; None where their weights alone tell."""
        return None

    def counted_twice(self, places: Places, end: Floats) -> Floats:
        """By how much rows and the weights of those apart from an end of the rewards are uneven for the same reason."""
        return np.ones(places.together.shape)

    def uneven(self, places: Places) -> Floats:
        """By how much fewer rows carry the variance than that of weights and rewards."""
        return np.ones(places.together.shape)

    def lighter(self, places: Places, end: Floats) -> Floats:
        """How little rows count with a reward apart from this end, at most 1."""
        return np.ones(places.together.shape)

    def with_rewards(self, moments: Moments) -> Moments:
        """The moments of the rows whose reward is known, each with its weight."""
        return moments
