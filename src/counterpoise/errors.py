"""Every exception: one class per kind of fix."""

import re


class CounterpoiseError(Exception):
    """Anything counterpoise refuses to do; catch this to catch them all."""

    def __init__(self, message: object = "") -> None:
        super().__init__(masked(str(message)))


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
    text = re.sub(r"[^\s'\"]+", lambda found: _without_userinfo(found[0]), text)
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
