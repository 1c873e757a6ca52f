"""What users call a column, as an array of numbers or of ids, and what cannot be one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import ColumnError

Numbers = NDArray[Any]
Good = NDArray[np.bool_]


def is_given(column: Any) -> Good:
    """Where ids are neither null nor NaN; text and dates may be ids, too."""
    array = _array(column)
    data, there = plain(array), ~np.ma.getmaskarray(array)
    if data.dtype.kind == "O":
        return np.logical_and(there, [_is_there(one) for one in data])
    if data.dtype.kind in "mMf":
        return np.logical_and(there, ~(np.isnan(data) if data.dtype.kind == "f" else np.isnat(data)))
    return there


def _is_there(one: Any) -> bool:
    same = one == one  # of what pandas calls NA neither true nor false
    return one is not None and isinstance(same, bool | np.bool_) and bool(same)


def lacks_some(column: Any) -> bool:
    """Whether numbers, one per row, are missing somewhere but not everywhere: null or NaN."""
    found = _array(column)
    gaps = np.ma.getmaskarray(found) | (np.isnan(np.ma.getdata(found)) if found.dtype.kind == "f" else False)
    return bool(found.ndim == 1 and found.dtype.kind in "biuf" and gaps.any())


def plain(column: Any) -> Numbers:
    """What a column holds, whatever of it is masked."""
    data: Numbers = np.ma.getdata(_array(column))
    return data


def numeric(part: str, name: str, column: Any) -> Numbers:
    """One number per row, of any type; ids must not become floats, because one float can stand for several ids."""
    array = _array(column)
    if np.ma.isMaskedArray(array):
        array = np.ma.filled(array.astype(np.float64), np.nan) if np.ma.is_masked(array) else np.ma.getdata(array)
    if array.dtype.kind not in "biuf":
        _check_type(part, name, array)
    if array.ndim != 1:
        raise ColumnError(f"{part} {name!r} must have one number per row; found shape {array.shape}.")
    return array


def _array(column: Any) -> Numbers:
    if isinstance(column, Tensor):
        column = column.detach().cpu().numpy()
    array: Numbers = column if np.ma.isMaskedArray(column) else np.asarray(column)
    return array


def is_plain(column: Any) -> bool:
    """Whether a column is an array of numbers or truth values, one per row."""
    kind, shape = getattr(column, "dtype", None), getattr(column, "shape", ())
    if isinstance(column, Tensor):
        return column.ndim == 1
    if isinstance(column, list | tuple):
        column = np.asarray(column) if all(isinstance(one, int | float) for one in column) else None
        return column is not None
    return isinstance(kind, np.dtype) and kind.kind in "biuf" and len(shape) == 1


def _check_type(part: str, name: str, array: Numbers) -> None:
    """Check types: what counts as a number for `evaluate` counts here, and contexts and actions may be anything NumPy reads as numbers."""
    amount = part in ("reward", "propensity")
    texts = array.dtype.kind in "USmM" or any(isinstance(one, str) for one in array.flat[:1000])
    try:
        array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        texts = amount = True
    if amount and texts:
        kind = "text or times" if texts and array.dtype.kind == "O" else str(array.dtype)
        advice = "Cast actions to whole numbers first." if part == "action" else "Cast the column to numbers first."
        raise ColumnError(f"{part} {name!r} must contain numbers, and has {kind}.", do=advice)
