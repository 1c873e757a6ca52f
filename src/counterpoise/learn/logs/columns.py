"""The columns that training reads from a log in memory: named ones and SQL expressions, for the rows that meet a condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import ColumnError, OptionError
from counterpoise.learn.logs.rows import Names

if TYPE_CHECKING:
    import polars as pl

ROW = "counterpoise row"
Found = tuple[Mapping[str, Any], NDArray[np.int64] | None]


def columns_of(data: Any, names: Names, where: str | None) -> Found:
    """The columns of arrays or of a frame, and which of its rows they are (None: all of them)."""
    if isinstance(data, Mapping):
        if where is None and set(names.all) <= set(data):
            return data, None  # as it is, which also serves a machine that has NumPy only
        return _computed(_frame_of(data, needed(names, where, list(data))), names, where)
    import narwhals as nw

    from counterpoise.readers.frames import errors_told

    try:
        frame = nw.from_native(data)
    except TypeError as error:
        raise unreadable(type(data).__name__) from error
    with errors_told(data):
        available = frame.collect_schema().names()
        read = needed(names, where, available)
        if isinstance(frame, nw.LazyFrame):
            frame = frame.select(read).collect()
    if where is None and set(names.all) <= set(available):
        return {name: _values(frame.get_column(name)) for name in names.all}, None
    return _computed(frame.select(read).to_polars(), names, where)


def _computed(frame: pl.DataFrame, names: Names, where: str | None) -> Found:
    """The same from a polars frame: the rows that meet the condition, with every expression computed."""
    import narwhals as nw

    from counterpoise.log.expressions import column, computed, only

    kept = only(frame.with_row_index(ROW), where)
    found = computed(kept, [name for name in names.all if name not in frame.columns])
    series = {name: found.select(column(name)).to_series() for name in names.all}
    return {name: _values(nw.from_native(one, series_only=True)) for name, one in series.items()}, found.get_column(
        ROW
    ).to_numpy()


def _values(column: Any) -> Any:
    """A column as an array; text, categories and lists stay a series of polars, which has them without a Python object each."""
    import narwhals as nw

    from counterpoise.readers.frames import series_of

    if column.dtype in (nw.Int128, nw.UInt128):  # NumPy has no such numbers
        column = _of_64_bits(column)
    if column.dtype in (nw.String, nw.Categorical, nw.Enum, nw.List, nw.Array):
        return series_of(column, is_number=False)
    return column.to_numpy()


def _of_64_bits(column: Any) -> Any:
    import narwhals as nw

    try:
        return column.cast(nw.Int64)
    except Exception as error:  # of whichever library the frame is
        raise ColumnError(
            f"column {column.name!r} has whole numbers of more than 64 bits, which policies cannot take.",
            do="Make them text, or number them from 0.",
        ) from error


def needed(names: Names, where: str | None, available: Sequence[str]) -> list[str]:
    """The columns to read: those that are named, and those that expressions and the condition use."""
    parts = [*names.parts, *([("where", where)] if where is not None else [])]
    read = dict.fromkeys(text for _, text in parts if text in available)
    for part, text in parts:
        if text not in available:
            from counterpoise.log.expressions import roots_of

            read |= dict.fromkeys(roots_of(part, text, available))
    return list(read)


def _frame_of(arrays: Mapping[str, Any], read: Sequence[str]) -> pl.DataFrame:
    import polars as pl

    plain = {name: arrays[name].detach().cpu() if isinstance(arrays[name], Tensor) else arrays[name] for name in read}
    return pl.DataFrame({name: one if isinstance(one, pl.Series) else np.asarray(one) for name, one in plain.items()})


def unreadable(found: str) -> OptionError:
    """The error for a log that no policy can be trained on."""
    return OptionError(
        f"a policy can be trained on arrays, frames, files, and tables of databases; this log is {found}.",
        do="Name a file, or pass a frame.",
    )
