"""This file holds every exception: one class per kind of fix."""


class CounterpoiseError(Exception):
    """Anything counterpoise refuses to do; catch this to catch them all."""


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


def first_line(error: BaseException) -> str:
    """What an error of another library says, without its query plans and stack traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
