"""Reads stored JSON with suspicion: it has the right keys, the right types and finite numbers, or a `ValueError` says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MOST = 2**53  # rows; a float counts them one by one up to here
BROKEN = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, MemoryError)


def parse(text: str | bytes) -> object:
    """JSON without NaN, infinities or repeated keys, none of which we ever write."""
    return json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)


def record(value: object, what: str, keys: Sequence[str], optional: Sequence[str] = ()) -> dict[str, object]:
    """A mapping with exactly these keys, and perhaps the optional ones."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} should be an object, found {type(value).__name__}")
    for wrong, names in (("lacks", set(keys) - set(value)), ("has an unknown entry", set(value) - {*keys, *optional})):
        if names:
            raise ValueError(f"{what} {wrong} {sorted(names)[0]!r:.80}")
    return value


def items(value: object, what: str) -> list[object]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError(f"{what} should be a list, found {type(value).__name__}")
    return value


def text(value: object, what: str) -> str:
    """Text."""
    if not isinstance(value, str):
        raise ValueError(f"{what} should be text, found {value!r:.80}")
    return value


def count(value: object, what: str) -> int:
    """A count of rows."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise ValueError(f"{what} should be a count of rows, found {value!r:.80}")
    return value


def counts(value: object, what: str) -> NDArray[np.int64]:
    """Counts of rows, in an array of any shape."""
    array = _array(value, what)
    rows = array.astype(np.int64) if array.dtype.kind in "iu" else np.array(-1)
    if (rows < 0).any() or (rows > MOST).any():
        raise ValueError(f"{what} should be counts of rows")
    return rows


def numbers(value: object, what: str) -> NDArray[np.float64]:
    """Finite numbers, in an array of any shape."""
    array = _array(value, what)
    finite = array.astype(np.float64) if array.dtype.kind in "iuf" else np.array(np.nan)
    if not np.isfinite(finite).all():
        raise ValueError(f"{what} should be finite numbers")
    return finite


def _array(value: object, what: str) -> NDArray[np.generic]:
    try:
        return np.asarray(value)  # of whatever type it is: if asked for floats, NumPy turns text into numbers
    except ValueError as error:
        raise ValueError(f"{what} is a list of lists of different lengths") from error


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a key appears twice in one object")
    return entries
