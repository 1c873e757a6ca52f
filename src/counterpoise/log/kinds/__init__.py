"""What the rows of a log stand for: one file for each kind, and the list of them, in the order of their arithmetic.

A log may be of several kinds, such as sampled ratios. Its moments are reduced to those of plain rows in the opposite order.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from counterpoise.log.kinds.episodes import Episodes
from counterpoise.log.kinds.kind import RowKind
from counterpoise.log.kinds.labeled import Labeled
from counterpoise.log.kinds.lists import ListRows
from counterpoise.log.kinds.loggers import OfLoggers
from counterpoise.log.kinds.ratio import RatioOfSums
from counterpoise.log.kinds.sampled import Sampled
from counterpoise.log.parts import PARTS, Part
from counterpoise.moments.moments import Floats, Moments

LISTS, EPISODES = ListRows(), Episodes()
IN_ORDER: tuple[ListRows, ...] = (LISTS, EPISODES)  # whose rows count together, each at its place
KINDS: list[RowKind] = [OfLoggers(), *IN_ORDER, RatioOfSums(), Labeled(), Sampled()]


def that_sounds_like(place: str, of: str | None) -> ListRows:
    """The kind of rows whose columns for the place and the id are often named so; lists, unless the names say something else."""
    return next((kind for kind in reversed(IN_ORDER) if kind.sounds_like(place, of)), LISTS)


def kinds_of(log: Any) -> tuple[RowKind, ...]:
    """The kinds of the rows of a log: none, if they are plain."""
    return tuple([kind for kind in KINDS if kind.is_of(log)])


def kinds_in(columns: Container[str]) -> tuple[RowKind, ...]:
    """The kinds of rows whose moments have these columns."""
    return tuple([kind for kind in KINDS if kind.mark in columns])


def chance_kept(log: Any) -> str | None:
    """The column, or the expression, of the probability that a row is there, if some are missing: a row counts as often as one over it."""
    named = {number.name: vars(log)[number.part] for kind in kinds_of(log) for number in kind.numbers}
    return next((named[kind.kept_with] for kind in kinds_of(log) if kind.kept_with), None)


def reduced(moments: Moments, like: Moments | None = None, *, rows: int | None = None) -> Moments:
    """The moments as those of a plain log, which is what estimators, intervals and diagnostics see; of a plain log, what they were.

    Rows that say more than a weight and a reward are longer, and add up like all others. Only then does a linear map, whose coefficients
    come from the means (and the scatter) themselves, turn them into the rows z = (u, s, u·s) of `Moments`: to first order, what remains
    is the influence of each row on the means, so that every estimator of the family, its baseline and its error hold as they are.

    Parts of a log whose rows are mapped `like` those of the whole add up to it. If it is known how many `rows` there were before
    sampling, the first member of a stack is of all of them.

    >>> plain = Moments.of(weight=[0.5, 1.5], reward=[1, 3])
    >>> reduced(plain) is plain
    True
    """
    for kind in reversed(kinds_in(moments.columns)):
        if like is not None:
            moments = moments.recenter(np.broadcast_to(like.center, moments.shape))
        shorter = kind.shorter(moments if like is None else like)
        if shorter is None:
            continue
        longer, moments, like = moments, shorter(moments), None if like is None else shorter(like)
        if rows is not None:
            moments = kind.with_known_rows(moments, longer, rows)
    return moments


def stands_for(moments: Moments) -> Floats:
    """How many rows there were, on average, for each that is there; 1 where none were left out."""
    count = next((kind.count for kind in kinds_in(moments.columns) if kind.count), None)
    return np.ones(moments.shape) if count is None else moments.average(count)


def count_form(moments: Moments) -> Floats | None:
    """How many rows each stands for, as a row over its columns; None where each stands for itself."""
    count = next((kind.count for kind in kinds_in(moments.columns) if kind.count), None)
    return None if count is None else moments.form(count)


def share_known(moments: Moments) -> Floats:
    """The share of the rows that would do, were their rewards known, as much as those whose reward is; 1 where all are."""
    kinds = kinds_in(moments.columns)
    return np.asarray(prod(kind.share_known(moments) for kind in kinds)) if kinds else np.ones(moments.shape)


def with_rewards(moments: Moments) -> Moments:
    """The moments of the rows whose reward is known, each with its weight, as those of a plain log."""
    for kind in kinds_in(moments.columns):
        moments = kind.with_rewards(moments)
    return reduced(moments)


def per_row(moments: Moments) -> Floats:
    """What rewards are divided by, on average; 1 where they are not."""
    divisor = next((kind.divisor for kind in kinds_in(moments.columns) if kind.divisor), None)
    return np.ones(moments.shape) if divisor is None else np.asarray(moments.average(divisor) / stands_for(moments))


# -- What goes with what -------------------------------------------------------------------------------------------------


def check_parts(log: Any) -> None:
    """Check that the parts of a log that are about its rows go together, and with all its other parts."""
    for kind in reversed(KINDS):  # episodes before lists
        is_of_kind = kind.is_of(log)
        if is_of_kind or any(vars(log).get(part) is not None for part in kind.parts):
            kind.check(log)
        for part in kind.conflicts if is_of_kind else ():
            if hasattr(log, part) and log.has(part):
                kind.refuse(part, part=part)


def check_kinds(kinds: Sequence[RowKind], what: str, **words: object) -> None:
    """Raise an error if rows of one of these kinds do not go with something, which `words` describe."""
    for kind in reversed(kinds):
        kind.refuse(what, **words)


def check_rows(log: Any, what: str, **words: object) -> None:
    """Raise an error if the rows of a log do not go with something, which `words` describe beside what the log says of itself."""
    check_kinds(kinds_of(log), what, loggers=len(log.loggers), **words)


def go_with(kinds: Sequence[RowKind], what: str) -> bool:
    """Whether rows of all of these kinds go with something."""
    return not any(what in kind.conflicts for kind in kinds)


def refused_parts(verb: str) -> list[str]:
    """The parts that say that rows are of a kind with which a verb does not go."""
    return [part for kind in KINDS if verb in kind.conflicts for part in kind.parts]


def known_parts() -> dict[str, Part]:
    """The parts of a log, and those of kinds of rows of one's own, each of which is a column."""
    return _with_those_of(tuple(KINDS))


@lru_cache
def _with_those_of(kinds: tuple[RowKind, ...]) -> dict[str, Part]:
    own = {
        part: Part(f"a column of {type(kind).__name__}") for kind in kinds for part in kind.parts if part not in PARTS
    }
    return PARTS | own if own else PARTS
