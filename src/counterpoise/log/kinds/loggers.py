"""Rows that several policies wrote: before anything is added up, the mixture of their propensities takes the place of each one's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from counterpoise.errors import OptionError
from counterpoise.log.kinds.kind import Conflict, RowKind

if TYPE_CHECKING:
    from counterpoise.log.log import Log

_ONE_POLICY = Conflict(
    "{who} looks at the propensities of one policy, and {loggers} wrote this log.",
    "Choose one of them: its column as `propensity=`, and its rows with `where=`.",
)


class OfLoggers(RowKind):
    """Rows with `logger=`, and a mapping of loggers to columns as `propensity=`; a statement cannot tell who wrote them."""

    parts = ("logger", "shares")
    conflicts: ClassVar[Mapping[str, Conflict]] = {"doctor": _ONE_POLICY, "learning": _ONE_POLICY}

    def is_of(self, log: Any) -> bool:
        """Whether a log has the propensities of several loggers."""
        return isinstance(log.propensity, Mapping)

    def check(self, log: Log) -> None:
        """Check that several loggers come with a propensity each."""
        if self.is_of(log) and len(log.loggers) < 2:
            raise OptionError(
                f"`propensity=` maps {len(log.loggers)} logger to its column: name two or more, or one column."
            )
        if log.propensity is not None:
            check_named_loggers(log)


def check_named_loggers(log: Log) -> None:
    """Check that nobody says who wrote a row where the log has no propensities of several loggers."""
    named = next((part for part in OfLoggers.parts if getattr(log, part) is not None), None)
    if named and not isinstance(log.propensity, Mapping):
        raise OptionError(
            f"`{named}=` is about several loggers.",
            do=f"Pass `propensity=` as a mapping of each of them to its probability of the logged action, or leave out `{named}=`.",
        )
