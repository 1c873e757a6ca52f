"""Normal intervals, by the central limit theorem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from counterpoise.intervals.interval import Interval, normal_quantile, symmetric
from counterpoise.intervals.method import Evidence, Method


@dataclass(frozen=True)
class Normal(Method):
    """Right for large logs of independent rows."""

    name: ClassVar[str] = "normal"
    about: ClassVar[str] = "Normal intervals: right for large logs with independent rows."

    def interval(self, evidence: Evidence, level: float) -> Interval:
        """See `normal`."""
        return normal(evidence.value, evidence.stderr, level)


def normal(value: float, stderr: float, level: float = 0.95) -> Interval:
    """Value ± z·stderr, by the central limit theorem.

    >>> lower, upper = normal(1.0, 0.1)
    >>> round(lower, 3), round(upper, 3)
    (0.804, 1.196)
    """
    return symmetric(value, normal_quantile(level) * stderr, level, Normal.name)
