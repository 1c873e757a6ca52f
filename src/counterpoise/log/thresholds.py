"""Thresholds for a distribution function: chosen from a look at the rewards, and the bins between them as SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from counterpoise.errors import Argument, OptionError
from counterpoise.moments import Floats

DISTINCT = 200  # rewards with no more distinct values than this have one threshold each
LIMIT = 1000  # thresholds that may be given

# evenly spaced, and ever closer toward either end, so that the far quantiles have thresholds, too
_TAILS = 2.0 ** -np.arange(7.5, 17.5, 0.5)
LEVELS = np.concatenate([_TAILS[::-1], np.arange(1, 128) / 128, 1.0 - _TAILS])


def thresholds_of(rewards: Floats) -> tuple[float, ...]:
    """Thresholds that suit a sample of the rewards: every value if there are few, or else about 170 quantiles.

    A value that many rows share also gets a threshold just below it, halfway to the next smaller one in the sample, so that its bin holds
    next to nothing else.

    >>> thresholds_of(np.array([5.0, 1.0, 1.0, 4.0]))
    (1.0, 2.5, 4.0, 4.5, 5.0)
    """
    if not len(rewards):
        return (0.0,)
    values, counts = np.unique(rewards, return_counts=True)
    few = len(values) <= DISTINCT
    chosen = values if few else np.quantile(rewards, LEVELS, method="inverted_cdf")
    shared = np.flatnonzero(counts >= (1 if few else len(rewards) / DISTINCT))
    inner = shared[shared > 0]
    below = values[inner - 1] + (values[inner] - values[inner - 1]) / 2
    return tuple(np.unique(np.concatenate([chosen, values[shared], below])).tolist())


def given_thresholds(thresholds: Any) -> tuple[float, ...]:
    """The thresholds that a user gave, in ascending order.

    >>> given_thresholds([3, 1.5])
    (1.5, 3.0)
    """
    try:
        numbers = np.unique(np.asarray(thresholds, dtype=np.float64).ravel())
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    if not 1 <= len(numbers) <= LIMIT or not np.isfinite(numbers).all():
        raise OptionError([Argument("thresholds"), f" must be 1 to {LIMIT:,} finite numbers, in units of the reward."])
    return cast("tuple[float, ...]", tuple(numbers.tolist()))


def bin_sql(reward: str, thresholds: Sequence[float]) -> str:
    """SQL for the number of thresholds below a reward, as a tree of comparisons: a database needs about eight of them for a row.

    Literals have an exponent, which makes them floats, not decimals, wherever that is a difference.

    >>> bin_sql('"r"', [0.0, 0.5])
    'CASE WHEN "r" <= 0.5e0 THEN CASE WHEN "r" <= 0.0e0 THEN 0 ELSE 1 END ELSE 2 END'
    """

    def tree(first: int, last: int) -> str:
        if first == last:
            return str(first)
        middle = (first + last) // 2
        return f"CASE WHEN {reward} <= {_literal(thresholds[middle])} THEN {tree(first, middle)} ELSE {tree(middle + 1, last)} END"

    return tree(0, len(thresholds))


def _literal(value: float) -> str:
    digits, _, exponent = repr(float(value)).partition("e")
    return f"{digits if '.' in digits else digits + '.0'}e{exponent or 0}"  # older polars cannot read 1e-09
