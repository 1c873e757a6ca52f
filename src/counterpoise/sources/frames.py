"""This file holds the readers of logs in memory: arrays, and every frame that narwhals knows, eager or lazy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.errors import ColumnError, LogError, OptionError
from counterpoise.sources.columns import plan
from counterpoise.sources.policies import add_policies
from counterpoise.sources.progress import Report
from counterpoise.sources.request import Request

BATCH = 1_000_000


def completed(log: object, request: Request, report: Report | None = None) -> Iterator[pl.DataFrame]:
    """The batches with a column for everything the request names: expressions, chosen actions, policies."""
    return with_policies(batches(log, request), request, report)


def with_policies(
    whole: Iterable[pl.DataFrame], request: Request, report: Report | None = None
) -> Iterator[pl.DataFrame]:
    """The batches with a column for every policy, in pieces small enough for one."""
    first_row = 0
    for batch in whole:
        for piece in batch.iter_slices(BATCH) if request.policies else (batch,):
            frame = piece
            if request.policies and frame.height:
                last = first_row + frame.height - 1
                frame = add_policies(frame, request, f"the batch of rows {first_row:,} to {last:,}")
            first_row += frame.height
            if report is not None:
                report(frame.height)
            yield frame


def batches(log: object, request: Request) -> Iterator[pl.DataFrame]:
    """The needed columns and expressions as polars frames: in one piece what is in memory, in batches what is lazy."""
    if isinstance(log, Mapping):
        wanted = plan(request, list(log))
        yield wanted.complete(from_arrays(log, request, wanted.read), request)
        return
    try:
        frame = nw.from_native(log)  # type: ignore[call-overload]
    except TypeError as error:
        raise OptionError(
            "a log is a mapping of arrays, a frame (pandas, polars, pyarrow, …), the path of a file, or a table in a database; "
            f"found {type(log).__name__}."
        ) from error
    except nw.exceptions.DuplicateError as error:
        raise ColumnError(f"every column needs a name of its own: {error}") from error
    wanted = plan(request, frame.collect_schema().names())
    chosen = frame.select(list(wanted.read))
    native = chosen.to_native()
    if isinstance(native, pl.LazyFrame):
        # expressions first: one that looks at several rows must see all of them, not those of a batch
        yield from wanted.complete(native, request).collect_batches(chunk_size=BATCH, engine="streaming")
    elif isinstance(chosen, nw.LazyFrame):
        yield wanted.complete(chosen.collect("polars").to_native(), request)
    elif isinstance(native, pl.DataFrame):
        yield wanted.complete(native, request)
    else:
        numbers = {column for _, column in request.numbers.values()}
        labels = {column for _, column in request.others} - numbers
        read = [_series_of(chosen[name], name in numbers, name in labels) for name in wanted.read]
        yield wanted.complete(pl.DataFrame(read), request)


def _series_of(values: nw.Series[Any], is_number: bool, is_label: bool) -> pl.Series:
    """A column of any eager frame as a polars series."""
    if values.dtype == nw.Object:
        return from_array(values.name, values.to_numpy(), is_number=is_number)
    try:
        native = values.to_native()
        if str(getattr(native, "type", getattr(native, "dtype", ""))).startswith("decimal256"):
            # polars panics at so many digits; an id or a label needs them all, a number does not
            digits = values.to_arrow().cast("string" if is_label else "float64")
            return pl.Series(values.name, pl.from_arrow(digits))
        return values.to_polars().alias(values.name)
    except (TypeError, ValueError, NotImplementedError, pl.exceptions.PolarsError) as error:
        raise ColumnError(f"column {values.name!r} of type {values.dtype} cannot be read: {error}") from error


def from_arrays(arrays: Mapping[str, Any], request: Request, names: Sequence[str]) -> pl.DataFrame:
    """A mapping of arrays as a frame, without copying float64 or float32 arrays."""
    numbers = {column for _, column in request.numbers.values()}
    series = [from_array(name, arrays[name], is_number=name in numbers) for name in names]
    lengths = {name: one.len() for name, one in zip(names, series, strict=True)}
    if len(set(lengths.values())) > 1:
        raise LogError(
            "all columns must have the same length; found " + ", ".join(f"{k}: {v:,}" for k, v in lengths.items()) + "."
        )
    return pl.DataFrame(series)


def from_array(name: str, values: Any, *, is_number: bool) -> pl.Series:
    """One array, list or series as a polars series."""
    if isinstance(values, pl.Series):
        return values.alias(name)
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise ColumnError(f"column {name!r} is not an array of one dimension: {error}.") from error
    if array.ndim != 1:
        raise ColumnError(f"column {name!r} must have one dimension, found shape {array.shape}.")
    if isinstance(values, np.ma.MaskedArray):
        array = values.data.copy() if array.dtype.kind in "mM" else values.data.astype(object)
        array[np.ma.getmaskarray(values)] = None
    if array.dtype.kind == "T" or (array.dtype.kind == "U" and isinstance(values, list | tuple) and not is_number):
        array = np.array(values, dtype=object)  # text made of a list would turn its NaN and None into 'nan' and 'None'
    if is_number and array.dtype.kind in "cmM":
        what = "complex numbers" if array.dtype.kind == "c" else "points or spans of time"
        raise ColumnError(f"column {name!r} must hold numbers, but holds {what}. Pass a column of real numbers.")
    if array.dtype.kind == "O" and is_number:
        return pl.Series(
            name, [_as_number(name, row, value) for row, value in enumerate(array.tolist())], dtype=pl.Float64
        )
    if array.dtype.kind == "O":
        return _series_of_objects(name, [None if _is_null(value) else value for value in array.tolist()])
    if array.dtype.kind in "mM" and (unit := _TIMES.get(array.dtype.kind + np.datetime_data(array.dtype)[0])):
        return pl.Series(name, array.astype(unit))
    if array.dtype.kind in "USVcmM":
        return pl.Series(name, [str(value) for value in array.tolist()], dtype=pl.String)
    if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
        array = array.astype(np.float64)
    return pl.Series(name, np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))


# NumPy's kind and unit of time → what polars takes; spans of months and of nothing in particular are left as text
_TIMES = {f"{kind}{unit}": f"{kind}8[{unit}]" for kind in "mM" for unit in ("ns", "us", "ms")}
_TIMES |= {f"{kind}{unit}": f"{kind}8[ms]" for kind in "mM" for unit in "smh"} | {"mD": "m8[ms]", "mW": "m8[ms]"}
_TIMES |= {f"M{unit}": "M8[D]" for unit in "DWMY"}


def _as_number(name: str, row: int, value: object) -> float | None:
    """A Python object as a number: Decimal, int of any size, bool, float; None is null."""
    if value is None or type(value).__name__ in _NULLS:
        return None
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise ColumnError(f"column {name!r} must hold numbers; row {row:,} holds {value!r}. Cast it to a number first.")
    try:
        return float(value)
    except OverflowError:
        return float("inf")
    except (TypeError, ValueError) as error:
        raise ColumnError(f"column {name!r} must hold numbers; row {row:,} holds {value!r}.") from error


_NULLS = ("NAType", "NaTType")  # pandas' nulls, without importing pandas


def _is_null(value: object) -> bool:
    if value is None or type(value).__name__ in _NULLS:
        return True
    return not isinstance(value, np.ndarray) and bool(value != value)


def _series_of_objects(name: str, values: list[Any]) -> pl.Series:
    """Python objects as their own type where they share one, else as text; arrays are lists."""
    values = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    try:
        return pl.Series(name, values)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)
