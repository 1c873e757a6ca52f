"""Every exception, with one class per kind of fix, and the parts that each front end puts into its own words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self


@dataclass(frozen=True)
class Argument:
    """An argument that an error speaks of, alone or with a value: Python writes ``where='x > 1'``, a shell ``--where 'x > 1'``.

    >>> str(Argument("drop_bad_rows", True)), str(Argument("where"))
    ('drop_bad_rows=True', 'where=')
    """

    name: str
    value: Any = ...

    @property
    def has_value(self) -> bool:
        """Whether a value is part of what is said."""
        return self.value is not ...

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}" if self.has_value else f"{self.name}="


Pieces = Sequence[str | Argument]
Text = str | Pieces  # what is said, with the arguments it speaks of kept apart from the words
Writer = Callable[[Argument], str]


class Blank(str):
    """A value that the reader fills in, written without quotes.

    >>> str(Argument("target", Blank("COLUMN")))
    'target=COLUMN'
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Sentence(str):
    """What is said to people outside of errors: the text for Python, and `render` for a front end that writes arguments its own way.

    >>> said = Sentence(["Pass ", Argument("groups", 100), "."])
    >>> said, said.render(lambda argument: f"--{argument.name} {argument.value}")
    ('Pass groups=100.', 'Pass --groups 100.')
    """

    parts: tuple[str | Argument, ...]

    def __new__(cls, text: Text) -> Self:
        """A text, or its parts; sentences among them keep theirs."""
        made = super().__new__(cls, _write(text, str))
        made.parts = _pieces(text)
        return made

    def render(self, argument: Writer = str) -> str:
        """The sentence with every argument written by `argument`."""
        return _write(self.parts, argument)


def in_units(said: str, unit: str) -> str:
    """What is said of rows, said of lists if those are the unit that is counted; whatever is in quotes stays as it is.

    >>> in_units("Rows of 'my row' are 3 rows.", "list"), in_units("1 row", "row")
    ("Lists of 'my row' are 3 lists.", '1 row')
    """
    if unit == "row":
        return said
    made = [part if isinstance(part, Argument) else _in_units(part, unit) for part in _pieces(said)]
    return Sentence(made) if isinstance(said, Sentence) else str(made[0])


def _in_units(text: str, unit: str) -> str:
    return re.sub(
        r"'[^']*'|`[^`]*`|\b([Rr])ow(s?)\b",
        lambda match: match[0] if match[1] is None else (unit if match[1] == "r" else unit.capitalize()) + match[2],
        text,
    )


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The known name that was probably meant, as a question; nothing if none is near.

    >>> did_you_mean("clik", ["click", "price"]), did_you_mean("clik", ["price"])
    ("Did you mean 'click'?", '')
    """
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


class CounterpoiseError(Exception):
    """Anything counterpoise refuses to do; catch this to catch them all.

    The message is made of parts: `what` is wrong, `where`, what was `found`, what to `do` about it, and a `suggestion`. `str(error)` is the
    message for Python; a front end with another way to write arguments passes its own to `render`.

    Examples
    --------
    >>> error = LogError("3 rows have no reward.", do=["Drop them with ", Argument("drop_bad_rows", True), "."])
    >>> print(error)
    3 rows have no reward. Drop them with drop_bad_rows=True.
    >>> error.render(lambda argument: f"--{argument.name.replace('_', '-')}")
    '3 rows have no reward. Drop them with --drop-bad-rows.'
    """

    def __init__(self, what: Text, *, where: Text = "", found: Text = "", do: Text = "", suggestion: Text = "") -> None:
        self.what, self.where, self.found, self.do, self.suggestion = what, where, found, do, suggestion
        super().__init__(self.render())

    @property
    def parts(self) -> tuple[Text, ...]:
        """What, where, found, suggestion and do, in the order in which they are read."""
        return self.what, self.where, self.found, self.suggestion, self.do

    def render(self, argument: Writer = str) -> str:
        """The whole message, with every argument written by `argument`, and no password in it."""
        return masked(" ".join(said for part in self.parts if (said := _write(part, argument))))

    def __reduce__(self) -> tuple[object, ...]:
        named = {"where": self.where, "found": self.found, "do": self.do, "suggestion": self.suggestion}
        return partial(type(self), self.what, **named), ()


class ColumnError(CounterpoiseError):
    """A column is missing, misspelt or of the wrong type: name another column, or cast it."""


class LogError(CounterpoiseError):
    """The rows themselves are wrong: mend the logger, or drop those rows."""


class OptionError(CounterpoiseError):
    """An argument makes no sense: change the call."""


class MomentsError(CounterpoiseError):
    """Moments that do not belong together, or are damaged: recompute them from their logs."""


class ResultFileError(CounterpoiseError):
    """A result file that cannot be continued or written: move it away, or name another one."""


class TrainingError(CounterpoiseError):
    """Training went wrong on its way: lower the learning rate, or look at the batch it names."""


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
    """What an error of another library says, without its query plans and stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def _write(text: Text, argument: Writer) -> str:
    return "".join(argument(part) if isinstance(part, Argument) else part for part in _pieces(text))


def _pieces(text: Text) -> tuple[str | Argument, ...]:
    """The words and arguments of a text, also of the sentences in it."""
    if isinstance(text, Sentence):
        return text.parts
    if isinstance(text, str):
        return (text,)
    return tuple(piece for part in text for piece in (part.parts if isinstance(part, Sentence) else (part,)))
