"""How answers are written for people: numbers, names, tables and verdicts, the same in a terminal, a notebook, on a page and in JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, cast, overload

from counterpoise.errors import OptionError

if TYPE_CHECKING:
    import polars as pl

# -- Numbers, and names from a log -------------------------------------------------------------------------------------

_PERCENT = "\N{NO-BREAK SPACE}%"


def number(value: float, error: float | None = None) -> str:
    """A value to two digits of its error, or to four of its own.

    >>> number(0.281734, 0.0031), number(-12345.6), number(float("nan")), number(1.9e9, 2.3e7)
    ('0.2817', '−12,346', '–', '1,900,000,000')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    value, digits = _digits(value, error)
    if digits > 9 or abs(value) >= 1e12:
        return f"{value:.4g}".replace("-", "−")
    written = f"{value:,.{max(digits, 0)}f}"
    return (written.lstrip("-") if float(written.replace(",", "")) == 0 else written).replace("-", "−")


def as_written(value: float, error: float | None = None) -> float:
    """A value, rounded as `number` writes it.

    >>> as_written(0.281734, 0.0031), as_written(12345.6)
    (0.2817, 12346.0)
    """
    if not math.isfinite(value):
        return value
    value, digits = _digits(value, error)
    if digits > 9 or abs(value) >= 1e12:
        return float(f"{value:.4g}") if 1e-4 <= abs(value) < 1e4 else value  # others are written with an exponent
    return round(value, max(digits, 0))


def _digits(value: float, error: float | None) -> tuple[float, int]:
    """A value, and how many of its decimals are written."""
    value = float(f"{value:.12g}")  # sums differ in their last bits from engine to engine, and a tie must not
    scale = error if error is not None and math.isfinite(error) and error > 0 else abs(value) / 50
    return value, 1 - math.floor(math.log10(scale)) if scale > 0 else 0


def signed(value: float, error: float | None = None) -> str:
    """A difference, with its sign.

    >>> signed(0.05, 0.01), signed(-0.05, 0.01)
    ('+0.050', '−0.050')
    """
    written = number(value, error)
    return f"+{written}" if value > 0 and math.isfinite(value) else written


def percent(share: float) -> str:
    """A share, to about two digits, with a space that does not break.

    >>> [percent(share).replace("\N{NO-BREAK SPACE}", " ") for share in (0.123456, 0.00012, 1.0)]
    ['12 %', '0.012 %', '100 %']
    """
    if not math.isfinite(share):
        return "–"
    digits = 0 if share == 0 or abs(share) >= 0.0995 else 1 - math.floor(math.log10(abs(100 * share)))
    return f"{100 * share:.{min(digits, 8)}f}\u00a0%".replace("-", "−")


def percent_change(share: float, error: float | None = None) -> str:
    """A change in percent with its sign, to one digit of its error.

    >>> [percent_change(x, e).replace("\N{NO-BREAK SPACE}", " ") for x, e in ((0.778, 0.05), (-0.1234, 0.004), (0.0, 0.1))]
    ['+78 %', '−12.3 %', '0 %']
    """
    if math.isnan(share):
        return "–"
    if math.isinf(share):
        return "∞" if share > 0 else "−∞"
    scale = 100 * (error if error is not None and math.isfinite(error) and error > 0 else abs(share) / 20)
    digits = min(max(-math.floor(math.log10(scale)), 0), 4) if scale > 0 else 0
    written = f"{100 * share:+,.{digits}f}"
    plain = written.lstrip("+-") if float(written.replace(",", "")) == 0 else written
    return f"{plain}\u00a0%".replace("-", "−")


def percent_span(lower: float, upper: float, error: float | None = None) -> str:
    """Both ends of a change in percent.

    >>> percent_span(0.68, 0.87, 0.05).replace("\N{NO-BREAK SPACE}", " ")
    '+68 to +87 %'
    """
    return f"{percent_change(lower, error).removesuffix(_PERCENT)} to {percent_change(upper, error)}"


def p_value(p: float) -> str:
    """A p-value to two digits, or a bound if it is too small to mean anything.

    >>> p_value(0.0123), p_value(0.0)
    ('= 0.012', '< 1e-12')
    """
    return f"= {p:.2g}" if p > 1e-12 else "< 1e-12"


def level_of(level: float) -> str:
    """A confidence level: 0.95 is 95 %."""
    return f"{100 * level:.6g}\u00a0%"


def counted(count: int, what: str) -> str:
    """A count of something.

    >>> counted(1, "row"), counted(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def sample_of(count: int, what: str, before: int | None) -> str:
    """A count of something, and how many there were before sampling, if they were sampled.

    >>> sample_of(60_000, "visit", 599_812), sample_of(7, "row", 7)
    ('60,000 visits, sampled from about 600,000', '7 rows')
    """
    if before is None or before == count:
        return counted(count, what)
    return f"{counted(count, what)}, sampled from about {int(float(f'{before:.3g}')):,}"


def visible(text: str) -> str:
    r"""Text from a log, without the characters that control a terminal.

    >>> visible("a\x1b[31mb\n")
    'a\\x1b[31mb\\n'
    """
    return text if text.isprintable() else "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def shortened(name: object, limit: int = 60) -> str:
    """A name from a log on one line, cut if it is very long.

    >>> shortened("pi_new"), shortened("a\\nb" * 9, limit=8)
    ('pi_new', 'a\\\\nba\\\\n…')
    """
    shown = visible(str(name)[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def breakable(text: str) -> str:
    """A sentence in which a line may break at every space."""
    return text.replace("\N{NO-BREAK SPACE}", " ")


def checked_unit(unit: str) -> str:
    """What a row is to its readers, if that is a word.

    >>> checked_unit("visit")
    'visit'
    """
    if not (isinstance(unit, str) and unit.strip()):
        raise OptionError(f"`unit=` is what a row is to its readers, such as 'visit'; found {unit!r}.")
    return unit


# -- Tables: cells that know their digits, and whatever else an answer shows -------------------------------------------


@dataclass(frozen=True)
class Name:
    """A name from the log, which may contain any character."""

    value: str

    def __str__(self) -> str:
        return shortened(self.value)


@dataclass(frozen=True)
class Number:
    """A number, with the error that says how many of its digits to believe; a difference always shows its sign."""

    value: float | None
    error: float | None = None
    is_signed: bool = False

    def __str__(self) -> str:
        return "–" if self.value is None else (signed if self.is_signed else number)(self.value, self.error)


@dataclass(frozen=True)
class Share:
    """A share of a whole, in percent."""

    value: float

    def __str__(self) -> str:
        return percent(self.value)


@dataclass(frozen=True)
class Percent:
    """A change in percent, with the error that says how many of its digits to believe."""

    value: float | None
    error: float | None = None

    def __str__(self) -> str:
        return "–" if self.value is None else percent_change(self.value, self.error)


@dataclass(frozen=True)
class PValue:
    """A p-value."""

    value: float

    def __str__(self) -> str:
        return "–" if math.isnan(self.value) else p_value(self.value).removeprefix("= ")


@dataclass(frozen=True)
class Worded:
    """A value in words of its own."""

    value: object
    words: str

    def __str__(self) -> str:
        return self.words


Cell = str | int | float | Name | Number | Share | Percent | PValue | Worded | None
NARROW = 24  # characters of a name in a table that has to fit
ROWS = 20  # of a table that is printed


ESTIMATE = ("value", "stderr", "lower", "upper")  # the columns of an estimate, in the order in which they are read


def estimate_cells(
    value: float, error: float, interval: Iterable[float], *, name: str = "value", is_signed: bool = False
) -> dict[str, Cell]:
    """The cells of an estimate, all to the digits of its error; without a value where there is none.

    >>> {name: str(cell) for name, cell in estimate_cells(0.281734, 0.0031, (0.27559, 0.2878)).items()}
    {'value': '0.2817', 'stderr': '0.0031', 'lower': '0.2756', 'upper': '0.2878'}
    """
    lower, upper = (Number(end, error, is_signed) for end in interval)
    known = Number(None if math.isnan(value) else value, error, is_signed)
    return {name: known, "stderr": Number(error, error), "lower": lower, "upper": upper}


def cell_value(cell: Cell) -> object:
    """What a cell holds, for frames and documents."""
    return cell.value if isinstance(cell, Name | Number | Share | Percent | PValue | Worded) else cell


def cell_text(cell: Cell, limit: int | None = NARROW) -> str:
    """A cell as text, with names cut to so many characters.

    >>> [cell_text(cell) for cell in (1200, True, None, Number(0.123456, 0.01), "a")]
    ['1,200', 'yes', '–', '0.123', 'a']
    """
    if isinstance(cell, Name):
        return visible(cell.value) if limit is None else shortened(cell.value, limit)
    if cell is None or isinstance(cell, bool):
        return {None: "–", True: "yes", False: "no"}[cell]
    if isinstance(cell, int):
        return f"{cell:,}"
    return number(cell) if isinstance(cell, float) else str(cell)


@overload
def finite(value: Mapping[str, object]) -> dict[str, object]: ...


@overload
def finite(value: object) -> object: ...


def finite(value: object) -> object:
    """Plain values all the way down; nan and infinities become null, since JSON has nothing else for them.

    >>> finite({"a": (1.0, float("inf"))})
    {'a': [1.0, None]}
    """
    if isinstance(value, Name | Number | Share | Percent | PValue | Worded):
        return finite(value.value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    return value


def as_text(document: object) -> str:
    """A document as JSON text."""
    return json.dumps(finite(document), indent=2, allow_nan=False)


def _plain(value: object) -> object:
    """An object's own document if it has one, or else its plain values."""
    return finite(value.document()) if hasattr(value, "document") else finite(value)


@dataclass(frozen=True)
class Table:
    """Rows of cells by the names of their columns, in the order in which they are read.

    `shown` says which columns people see, all by default, and `titles` what they are called there. `strong` rows stand out;
    `left_out` counts the rows that did not fit.
    """

    rows: Sequence[Mapping[str, Cell]]
    shown: Sequence[str] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    strong: frozenset[int] = frozenset()
    left_out: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are shown."""
        return tuple(self.shown or (self.rows[0] if self.rows else ()))

    @property
    def headings(self) -> list[str]:
        """What the columns that are shown are called."""
        return [self.titles.get(name, name) for name in self.columns]

    def is_number(self, column: str) -> bool:
        """Whether a column has numbers in it, which line up on the right."""
        values = [cell_value(row[column]) for row in self.rows if row[column] not in (None, "")]
        return bool(values) and not any(isinstance(value, str | bool) for value in values)

    def cells(self, limit: int | None = NARROW) -> list[list[str]]:
        """The rows as text, with names cut to so many characters."""
        return [[cell_text(row[name], limit) for name in self.columns] for row in self.rows]

    def records(self) -> list[dict[str, object]]:
        """All columns of all rows as plain values, for frames and documents."""
        return [{name: cell_value(cell) for name, cell in row.items()} for row in self.rows]

    def frame(self) -> pl.DataFrame:
        """All columns of all rows as a polars frame."""
        import polars as pl

        return pl.DataFrame(self.records(), infer_schema_length=None)

    def first(self, limit: int | None) -> Table:
        """The first rows, if there are more than there is room for."""
        if limit is None:
            return self
        return replace(self, rows=self.rows[:limit], left_out=max(len(self.rows) - limit, 0))

    def __str__(self) -> str:
        written = [self.headings, *self.cells()]
        widths = [max(map(len, column)) for column in zip(*written, strict=True)]
        signs = [">" if self.is_number(name) else "<" for name in self.columns]
        lines = [
            "  ".join(f"{cell:{sign}{width}}" for cell, sign, width in zip(row, signs, widths, strict=True)).rstrip()
            for row in written
        ]
        more = [f"… and {counted(self.left_out, 'more row')}; see .table()"] if self.left_out else []
        return breakable("\n".join([*lines, *more]))


@dataclass(frozen=True)
class Phrase:
    """A sentence in which names and numbers are kept apart from the words."""

    parts: Sequence[str | Name | Number]
    is_quiet: bool = False  # beside the answer, not the answer itself

    def __str__(self) -> str:
        return "".join(map(str, self.parts))


@dataclass(frozen=True)
class Judged:
    """A verdict on something, or how urgent a finding is, and why."""

    what: str
    word: str
    reasons: Sequence[str] = ()
    is_listed: bool = False  # one of a numbered list, its reason on the same line

    def __str__(self) -> str:
        return f"{self.what}{self.word}" + (": " + " ".join(self.reasons) if self.reasons else "")


@dataclass(frozen=True)
class Pointer:
    """Where there is more to see, in Python's words; the command line has words of its own."""

    words: str

    def __str__(self) -> str:
        return self.words


Block = str | Phrase | Table | Judged | Pointer


class Display:
    """What every verb returns: printed, in a notebook and on the command line, it shows the same blocks."""

    def blocks(self, *, rows: int | None = ROWS) -> Iterator[Block]:
        """Sentences, tables and verdicts in the order in which they are read; a long table has so many rows, or None for all."""
        raise NotImplementedError

    def document(self) -> dict[str, object]:
        """Everything in plain values, as `--json` prints it."""
        return cast("dict[str, object]", finite(self))

    def to_dict(self) -> dict[str, object]:
        """The same as `document`."""
        return self.document()

    def __repr__(self) -> str:
        return "\n".join(breakable(str(block)) for block in self.blocks())

    def _repr_html_(self) -> str:
        return cast(str, above().card(self))


@dataclass(frozen=True, eq=False, repr=False)
class FullAnswer(Display):
    """An answer with nothing left out, as `--all` prints it."""

    answer: Display

    def blocks(self, *, rows: int | None = None) -> Iterator[Block]:
        """The blocks of the answer, with every row of its tables."""
        return self.answer.blocks(rows=None)

    def document(self) -> dict[str, object]:
        """That of the answer."""
        return self.answer.document()


def above() -> ModuleType:
    """`counterpoise.report`, which lies above most rooms: the one import that reaches upward, only to show an answer."""
    return import_module("counterpoise.report")
