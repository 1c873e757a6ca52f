"""Every exception, with one class per kind of fix, and the markup by which each front end writes arguments its own way."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar, Self

Writer = Callable[
    [str, str], str
]  # of an argument's name and the text of its value, which is empty where none is given

_QUOTED = r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\""""
# an argument in backticks; what is quoted is passed over, since names and texts of the user's may have anything in them
# and what is counted in angle brackets: <rows>, <Rows>, <row>, <a row>
_MARKUP = rf"(?<![\w`)\]])(?:{_QUOTED})|`([A-Za-z_][\w ]*)=((?:{_QUOTED}|[^`'\"])*|[^`]*)`|<(?:([Aa]) )?([Rr])ow(s?)>"
_HIDDEN = str.maketrans("`'\"<", "\ue000\ue001\ue002\ue003")
_SHOWN = str.maketrans("\ue000\ue001\ue002\ue003", "`'\"<")


def as_python(name: str, value: str) -> str:
    """An argument as it is passed in Python."""
    return f"{name}={value}"


def render(text: str, argument: Writer = as_python, unit: str = "row") -> str:
    """A message with every argument written by `argument`; in the text it is in backticks, as `name=` or with the repr of a value.

    What is counted is in angle brackets, and a `unit` is its word for it: a row, a list, a visit.

    >>> text = "no column '`where=`' in <a row>. Pass `where=` or `groups=100` to `evaluate`."
    >>> render(text)
    "no column '`where=`' in a row. Pass where= or groups=100 to `evaluate`."
    >>> render(text, lambda name, value: f"--{name} {value}".strip(), unit="episode")
    "no column '`where=`' in an episode. Pass --where or --groups 100 to `evaluate`."
    """

    def write(found: re.Match[str]) -> str:
        name, value, article, row, s = found.groups()
        if row is not None:
            a = "" if article is None else f"{article}{'n' if unit[0] in 'aeiou' else ''} "
            return f"{a}{unit if row == 'r' else unit.capitalize()}{s}"
        return found[0] if name is None else argument(name, value)

    has_markup = any(sign in text for sign in "`<\ue000\ue001\ue002\ue003")
    return re.sub(_MARKUP, write, text).translate(_SHOWN) if has_markup else text


def verbatim(said: object) -> str:
    """What to put into a message for it to come out as it is: a sentence keeps its arguments, other texts have none.

    >>> render(f"cannot read {verbatim('`where=`')}: pass `where=`.")
    'cannot read `where=`: pass where=.'
    """
    return said.markup if isinstance(said, Sentence) else str(said).translate(_HIDDEN)


class Sentence(str):
    """What is said to people outside of errors: the text for Python, and `render` for a front end that writes arguments its own way.

    >>> said = Sentence("Pass `groups=100` for so few <rows>.", "visit")
    >>> said, said.render(lambda name, value: f"--{name} {value}")
    ('Pass groups=100 for so few visits.', 'Pass --groups 100 for so few visits.')
    """

    markup: str
    unit: str

    def __new__(cls, markup: str, unit: str = "row") -> Self:
        """A text with markup, or a sentence about another `unit`."""
        markup = markup.markup if isinstance(markup, cls) else markup
        made = super().__new__(cls, render(markup, unit=unit))
        made.markup, made.unit = markup, unit
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.markup, self.unit)

    def render(self, argument: Writer = as_python) -> str:
        """The sentence with every argument written by `argument`."""
        return render(self.markup, argument, self.unit)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The known name that was probably meant, as a question; empty if none is close.

    >>> did_you_mean("clik", ["click", "price"]), did_you_mean("clik", ["price"])
    ("Did you mean 'click'?", '')
    """
    import difflib  # which takes a while, and few are mistaken

    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


class CounterpoiseError(Exception):
    """Anything counterpoise refuses to do; catch this to catch them all.

    The message has parts: `what` is wrong, `where`, what was `found`, what to `do` about it, and a `suggestion`; arguments are in
    backticks. `str(error)` is the message for Python; a front end with another way to write arguments passes its own to `render`.

    Examples
    --------
    >>> error = LogError("3 rows have no reward.", do="Drop them with `drop_bad_rows=True`.")
    >>> print(error)
    3 rows have no reward. Drop them with drop_bad_rows=True.
    >>> error.render(lambda name, value: f"--{name.replace('_', '-')}")
    '3 rows have no reward. Drop them with --drop-bad-rows.'
    """

    exit_code: ClassVar[int] = 2  # of the command line

    def __init__(self, what: str, *, where: str = "", found: str = "", do: str = "", suggestion: str = "") -> None:
        self.what, self.where, self.found, self.do, self.suggestion = what, where, found, do, suggestion
        super().__init__(self.render())

    __str__ = Exception.__str__  # a KeyError's is the repr of its text

    @property
    def parts(self) -> tuple[str, ...]:
        """What, where, found, suggestion and do, in the order in which they are read."""
        return self.what, self.where, self.found, self.suggestion, self.do

    def render(self, argument: Writer = as_python) -> str:
        """The whole message, with every argument written by `argument`, and no password in it."""
        return masked(" ".join(said for part in self.parts if (said := render(part, argument))))

    def __reduce__(self) -> tuple[object, ...]:
        named = {"where": self.where, "found": self.found, "do": self.do, "suggestion": self.suggestion}
        return partial(type(self), self.what, **named), ()


class ColumnError(CounterpoiseError, KeyError):
    """A column is missing, misspelled or of the wrong type: name another column, or cast it."""


class LogError(CounterpoiseError, ValueError):
    """The rows themselves are wrong: fix the logger, or drop those rows."""


class OptionError(CounterpoiseError, ValueError):
    """An argument makes no sense: change the call."""


class MomentsError(CounterpoiseError):
    """Moments that do not belong together, or are damaged: recompute them from their logs."""


class AlreadyAddedError(MomentsError):
    """These rows are in the state already: nothing was added, and nothing needs to be done."""

    exit_code = 4  # so that a job that runs twice can tell this from bad input


class StateWarning(UserWarning):
    """Rows that seem to count twice in a state: two of its batches look the same."""


class RecordWarning(UserWarning):
    """Records of another tool's log that make no row, or not all of one: which, and why."""


class OldNameWarning(FutureWarning):
    """A name that works for one more version: change it to the new one, which the warning says."""


def warn_of_old_name(old: str, new: str, *, depth: int = 3) -> None:
    """Warn, `depth` calls up, that something has a new name."""
    warnings.warn(renaming(old, new), OldNameWarning, stacklevel=depth)


def renaming(old: str, new: str) -> str:
    """What is said about an old name, on the command line too."""
    return f"{old} is now called {new}; the old name works until version 0.5."


class TrainingError(CounterpoiseError):
    """Training went wrong along the way: lower the learning rate, or look at the batch it names."""


class PolicyFileError(CounterpoiseError):
    """A saved policy or checkpoint that is damaged, or of another model: name another file, or move it away."""


def masked(text: str) -> str:
    """A text without the passwords of addresses in it, however they were mistyped.

    >>> masked("no file 'postgresql:/me:hunter2@db/shop' nor 'host=db password=hunter2'")
    "no file 'postgresql:/me:…@db/shop' nor 'host=db password=…'"
    """
    text = re.sub(r"[^\s'\"]+", lambda match: _without_userinfo(match[0]), text)
    return re.sub(r"(?i)((?:password|passwd|pwd)=)(?:'[^']*'|[^\s&'\"]+)", r"\1…", text)


def _without_userinfo(word: str) -> str:
    """A word without what stands between a user's name and the host."""
    user, at, host = word.rpartition("@")
    start = user.find(":")
    if user[start + 1 : start + 2] == "/":  # the scheme's
        start = user.find(":", start + 1)
    if start < 0 or user[start + 1 : start + 2] in ("", "\\"):  # no password, or a folder of Windows
        return word
    return f"{user[: start + 1]}…{at}{host}"


def first_line(error: BaseException) -> str:
    """What an error of another library says, for a message of ours: without its query plans and stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return verbatim(lines[0].rstrip(".")) if lines else type(error).__name__
