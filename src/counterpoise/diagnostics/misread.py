"""Propensity columns that hold something else: percentages, logarithms, odds; and the expression that makes propensities of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.diagnostics.findings import SURE, Finding
from counterpoise.errors import Argument, Sentence

VALID = 0.999  # of the values that a reading must make propensities of
PRECISE = 0.05  # the standard error of a mean weight that proves something
FEW = 0.5  # of the values are propensities, where their range alone tells that they are none
OFF = 0.1  # how far from 1 the mean weight must be for another reading to be offered


@dataclass(frozen=True)
class Reading:
    """One way to read a column: what it then holds, the expression, and the same as arithmetic on a polars column."""

    holds: str
    expression: str
    made: Callable[[Any], Any]


AS_IT_IS = Reading("propensities", "{p}", lambda p: p)
READINGS = (
    Reading("percentages", "{p} / 100", lambda p: p / 100.0),
    Reading("logarithms of propensities", "exp({p})", lambda p: p.exp()),
    Reading("probabilities of not taking the logged action", "1 - {p}", lambda p: 1.0 - p),
    Reading("odds", "{p} / (1 + {p})", lambda p: p / (1.0 + p)),
    Reading("inverse propensities", "1 / {p}", lambda p: 1.0 / p),
)


@dataclass(frozen=True)
class Tried:
    """What a reading makes of the column: the share of valid propensities, and means that should be 1, each with its error."""

    valid: float
    means: Mapping[str, tuple[float, float]]  # of what → mean, standard error

    @property
    def passes(self) -> bool:
        """Whether nothing speaks against the reading, and something for it."""
        tests = self.means.values()
        return (
            self.valid >= VALID
            and len(self.means) > 0
            and all(error <= PRECISE and abs(mean - 1.0) <= max(SURE * error, 1e-9) for mean, error in tests)
        )

    @property
    def fails(self) -> bool:
        """Whether the reading is out of the question."""
        tests = self.means.values()
        return self.valid < VALID or any(abs(mean - 1.0) > max(OFF, SURE * error) for mean, error in tests)


def about_misread(column: str | None, tried: Sequence[Tried]) -> list[Finding]:
    """What the column seems to hold, if it is not propensities; `tried` has it as it is, and then by every reading.

    Where there is nothing to test it by (no target, no actions), the range of the values may still tell.
    """
    if column is None or not tried or not tried[0].fails:
        return []
    plain, *others = tried
    if not plain.means:
        possible = [
            one for one, test in zip(READINGS, others, strict=True) if plain.valid < FEW and test.valid >= VALID
        ]
        return [Finding("fix", column, _by_range(column, possible))] if possible else []
    passed = [(one, test) for one, test in zip(READINGS, others, strict=True) if test.passes]
    if not passed:
        return []
    best, test = min(passed, key=lambda pair: max(abs(mean - 1.0) for mean, _ in pair[1].means.values()))
    what, (mean, error) = next(iter(test.means.items()))
    before = plain.means[what][0]
    was = f", and not {before:.4g}" if plain.valid >= VALID else ""
    expression = _written(best, column)
    said = f"{column!r} seems to hold {best.holds}: with {expression}, {what} is {mean:.3f} ± {error:.3f}, as it should be{was}. "
    return [Finding("fix", column, Sentence([said, "Pass ", Argument("propensity", expression), "."]))]


def _by_range(column: str, possible: Sequence[Reading]) -> Sentence:
    holds = " or ".join(one.holds for one in possible)
    options: list[str | Argument] = []
    for k, one in enumerate(possible):
        options += [" or " if k else "Pass ", Argument("propensity", _written(one, column))]
    return Sentence([f"going by their range, values of {column!r} could be {holds}. ", *options, "."])


def _written(reading: Reading, column: str) -> str:
    """The expression, with a name that needs quotes in quotes."""
    is_plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", column) is not None
    return reading.expression.format(p=column if is_plain else '"' + column.replace('"', '""') + '"')
