"""Caveats: what is wrong with an answer, how badly, in numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Caveat:
    """Something that makes an answer less sure than its interval says.

    `code` is its name, which stays the same when the wording changes; a `note` leaves the verdict as it is, the other severities are the
    best that a verdict with this caveat can be.
    """

    code: str
    severity: Literal["note", "caution", "not identified"]
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)
