"""Propensity columns that hold something else: percentages, logarithms, odds; and the expression that makes propensities of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from counterpoise.diagnostics.findings import SURE, Finding
from counterpoise.engines.rows import collect
from counterpoise.errors import Argument, Sentence
from counterpoise.log.expressions import column
from counterpoise.log.good import is_propensity

VALID = 0.999  # of the values that a reading must make propensities of
PRECISE = 0.05  # the standard error of a mean weight that proves something
FEW = 0.5  # of the values are propensities, where their range alone tells that they are none
TRIED = 3  # targets whose mean weights tell what a column of propensities holds
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
        return self.valid < VALID or self.is_off

    @property
    def is_off(self) -> bool:
        """Whether a mean that should be 1 is far from it."""
        return any(abs(mean - 1.0) > max(OFF, SURE * error) for mean, error in self.means.values())


def try_readings(
    frame: pl.LazyFrame, name: str | None, targets: Sequence[str], actions: int | None = None
) -> list[Tried]:
    """The propensities as they are, and by every other reading if something is wrong with them; the first targets tell."""
    plain = _read(frame, name, targets[:TRIED], actions, [AS_IT_IS])
    return plain + _read(frame, name, targets[:TRIED], actions, READINGS) if plain[0].fails else plain


def _read(
    frame: pl.LazyFrame, name: str | None, targets: Sequence[str], actions: int | None, readings: Sequence[Reading]
) -> list[Tried]:
    """What each reading makes of the propensities: how many are possible, and whether mean weights are 1."""
    p, t = pl.col("p"), [pl.col(f"t{k}") for k in range(len(targets))]
    probabilities = {f"t{k}": column(target).cast(pl.Float64) for k, target in enumerate(targets)}
    rows = frame.select(p=column(str(name)).cast(pl.Float64), **probabilities).filter(p.is_finite())
    wanted: list[pl.Expr] = []
    for k, reading in enumerate(readings):
        made = reading.made(p)
        good = is_propensity(made)
        wanted.append(good.mean().alias(f"{k} valid"))
        weights = {f"{k} {j}": target / made for j, target in enumerate(t)}
        if actions and not targets:
            weights[f"{k} 0"] = 1.0 / (made * actions)
        for key, w in weights.items():
            known = w.filter(good & w.is_finite())
            wanted += [known.mean().alias(key), (known.std() / known.len().sqrt()).alias(f"{key} error")]
    measured = collect(rows.select(wanted)).row(0, named=True)
    said = [f"the mean weight of {target}" for target in targets]
    said = said or (["the mean of 1/propensity over the number of actions"] if actions else [])
    return [
        Tried(
            float(measured[f"{k} valid"] or 0.0),
            {what: (_or_nan(measured[f"{k} {j}"]), _or_nan(measured[f"{k} {j} error"])) for j, what in enumerate(said)},
        )
        for k in range(len(readings))
    ]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def about_misread(named: str | None, tried: Sequence[Tried]) -> list[Finding]:
    """What the column seems to hold, if it is not propensities; `tried` has it as it is, and then by every reading.

    Where there is nothing to test it by (no target, no actions), the range of the values may still tell.
    """
    if named is None or not tried or not tried[0].fails:
        return []
    plain, *others = tried
    if not plain.means:
        possible = [
            reading for reading, test in zip(READINGS, others, strict=True) if plain.valid < FEW and test.valid >= VALID
        ]
        return [Finding("fix", named, _by_range(named, possible))] if possible else []
    passed = [(reading, test) for reading, test in zip(READINGS, others, strict=True) if test.passes]
    if not passed:
        return []
    best, test = min(passed, key=lambda pair: max(abs(mean - 1.0) for mean, _ in pair[1].means.values()))
    what, (mean, error) = next(iter(test.means.items()))
    before = plain.means[what][0]
    was = f", and not {before:.4g}" if plain.valid >= VALID else ""
    expression = _expression_of(best, named)
    said = f"{named!r} seems to hold {best.holds}: with {expression}, {what} is {mean:.3f} ± {error:.3f}, as it should be{was}. "
    return [Finding("fix", named, Sentence([said, "Pass ", Argument("propensity", expression), "."]))]


def _by_range(named: str, possible: Sequence[Reading]) -> Sentence:
    holds = " or ".join(reading.holds for reading in possible)
    options: list[str | Argument] = []
    for k, reading in enumerate(possible):
        options += [" or " if k else "Pass ", Argument("propensity", _expression_of(reading, named))]
    return Sentence([f"going by their range, values of {named!r} could be {holds}. ", *options, "."])


def _expression_of(reading: Reading, named: str) -> str:
    """The expression, with a name that needs quotes in quotes."""
    is_plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", named) is not None
    return reading.expression.format(p=named if is_plain else '"' + named.replace('"', '""') + '"')
