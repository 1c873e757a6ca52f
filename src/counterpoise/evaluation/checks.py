"""Checks of a log that sums cannot make: what single rows, their ids and their policies say against an answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from counterpoise.diagnostics.together import FEWEST, Together, moving_together
from counterpoise.evaluation.asking import Asked, Concern
from counterpoise.log.guess import USUAL, ids_among
from counterpoise.log.names import MODEL_REWARD, PROPENSITY
from counterpoise.log.question import LOGGING, Question
from counterpoise.moments import Floats

if TYPE_CHECKING:
    import polars as pl

Check = Callable[[Question, Asked], Iterator[Concern]]

SAMPLED = 4_000  # rows of whole ids
ENOUGH, AT_MOST = 200, 40_000  # ids that tell, for which more rows are taken
REPEATED = 1.05  # rows per id, at least


def checked(asked: Asked) -> Asked:
    """The moments with what every check has to say; those that were handed over have no rows to check."""
    question = asked.question
    if question is None:
        return asked
    return replace(asked, concerns=tuple(concern for check in CHECKS for concern in check(question, asked)))


def rows_together(question: Question, asked: Asked) -> Iterator[Concern]:
    """Whether rows of one id are alike, where a column looks like ids and nobody said anything of clusters."""
    if question.lists is not None or question.is_binned:
        return
    contrast = next((one for one in question.contrasts if one[1]), question.contrasts[0])
    rewards = question.log.reward

    def terms(frame: pl.DataFrame) -> dict[str, tuple[Floats, Floats]]:
        return {name: _terms(question, frame, place, *contrast) for place, name in enumerate(rewards)}

    for reward, found in together_by(question, asked.moments[0].n - asked.earlier_rows, terms, len(rewards)).items():
        yield Concern(found.caveat(), reward=reward)


def together_by(
    question: Question, rows: int, terms: Callable[[pl.DataFrame], Mapping[str, tuple[Floats, Floats]]], looks: int
) -> dict[str, Together]:
    """For every estimate, the column of ids whose rows move together the most, if there is one, on a sample of whole ids.

    `terms` makes of rows each estimate's terms, nan where a reward is bad, and weights; there are so many `looks` at each column.
    """
    log = question.log
    if log.cluster is not None or log.rows_are_independent or log.is_arrays or rows < 2 * FEWEST:
        return {}
    # imported here, so that importing counterpoise does not import narwhals and polars
    from counterpoise.engines.rows import ID, columns_of, good_rows_of_ids

    columns = ids_among(columns_of(log), _taken(question))
    found: dict[str, Together] = {}
    for column, is_sure in columns.items():
        parts = max(1, rows // SAMPLED)
        sample = good_rows_of_ids(question, column, parts, _repeat)
        if parts > 1 and (sample is None or sample.get_column(ID).n_unique() < ENOUGH):  # each may have many rows
            sample = good_rows_of_ids(question, column, max(1, rows // AT_MOST), _repeat)
        if sample is None or sample.height < 2 * FEWEST:
            continue
        ids = sample.get_column(ID).to_numpy()
        for name, (psi, weights) in terms(sample).items():
            known = ~np.isnan(psi)
            one = moving_together(column, ids[known], psi[known], looks=looks * len(columns))
            # what is chosen may have a number, too, and its weights move together
            is_unit = is_sure or one is None or moving_together(column, ids, weights) is None
            if one is not None and is_unit and (name not in found or one.factor > found[name].factor):
                found[name] = one
    return found


def _taken(question: Question) -> set[str | None]:
    """The columns that play a part in which they are no ids of whoever came."""
    log = question.log
    alone = log.key if len(log.key) == 1 else ()
    parts = [log.action, log.slate, log.position, log.candidates, log.logger, *log.reward, *alone, *question.segment]
    return {*parts, *USUAL["action"], log.propensity, *(one.column for one in question.targets)}


def _repeat(ids: pl.Series) -> bool:
    """Whether a column's values can be ids of several rows each: not a number per row, not a few segments, not measurements."""
    if ids.dtype.is_nested() or ids.dtype.is_temporal() or ids.len() < 2 * FEWEST:
        return False
    if ids.dtype.is_float() and not bool((ids % 1 == 0).all()):
        return False
    return FEWEST <= ids.n_unique() <= ids.len() / REPEATED


def _terms(question: Question, frame: pl.DataFrame, reward: int, target: str, other: str) -> tuple[Floats, Floats]:
    """The terms whose mean is a target's value or its difference from another policy, and the weights that they are made with."""
    names = question.names
    of = dict(zip(question.target_names, zip(names.targets, names.values or names.targets, strict=True), strict=True))
    r = _numbers(frame, names.rewards[reward])
    q = _numbers(frame, MODEL_REWARD) if names.values else None

    def weights(name: str) -> Floats:
        return np.ones(len(r)) if name == LOGGING else _weights(question, frame, of[name][0])

    w = weights(target) - weights(other) if other else weights(target)
    if q is not None:
        value = _numbers(frame, of[target][1])
        if other:
            value = value - (q if other == LOGGING else _numbers(frame, of[other][1]))
        return value + w * (r - q), w
    spread = np.nanvar(w)
    known = ~np.isnan(r)
    beta = float(np.cov((w * r)[known], w[known])[0, 1] / spread) if spread > 0 else float(np.nanmean(r))
    return w * (r - beta) + beta, w


def _weights(question: Question, frame: pl.DataFrame, target: str) -> Floats:
    p = _numbers(frame, PROPENSITY) if question.weight.needs_propensity else None
    found: Floats = question.weight.weight(_numbers(frame, target), p)
    return found


def _numbers(frame: pl.DataFrame, name: str) -> Floats:
    values = frame.get_column(name)
    return np.asarray((values.fill_null(math.nan) if values.null_count() else values).to_numpy(), dtype=np.float64)


# Each yields what it finds, and costs nothing where a log has not got what it looks at.
CHECKS: tuple[Check, ...] = (rows_together,)
