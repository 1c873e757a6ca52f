"""Reads logs in memory: arrays, and every frame that narwhals supports, eager or lazy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import narwhals as nw
import numpy as np
import polars as pl

from counterpoise.errors import ColumnError, LogError, OptionError, first_line, verbatim
from counterpoise.log.expressions import check_digits, columns, plan
from counterpoise.log.question import Question
from counterpoise.log.targets import is_ranker
from counterpoise.readers.policies import complete
from counterpoise.readers.progress import Report

if TYPE_CHECKING:
    from narwhals.typing import Frame, IntoSeriesT

BATCH = 1_000_000


@contextmanager
def errors_told(data: object) -> Iterator[None]:
    """Turn whatever goes wrong while a polars lazy frame runs into an error about the log: its expressions are the user's."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, nw.exceptions.NarwhalsError, OSError) as error:
        if not isinstance(data, pl.LazyFrame):
            raise
        raise LogError(
            f"this LazyFrame fails when it runs: {first_line(error)}.",
            do="Run its collect() to see where, and fix that expression or the rows it stumbles over.",
        ) from error


def completed(
    log: object, question: Question, report: Report | None = None, number: str | None = None
) -> Iterator[pl.DataFrame]:
    """The batches with a column for everything the question names: expressions, chosen actions, policies."""
    return with_policies(batches(log, question, number), question, report)


def with_policies(
    rows: Iterable[pl.DataFrame], question: Question, report: Report | None = None
) -> Iterator[pl.DataFrame]:
    """The batches with a column for every policy and for a reward model, in pieces small enough for them."""
    first_row = 0
    is_whole = any(is_ranker(target.source) for target in question.policies)
    for batch in [pl.concat(rows)] if is_whole else rows:  # a ranking policy needs all rows of a list
        for piece in batch.iter_slices(BATCH) if question.needs_python and not is_whole else (batch,):
            frame = piece
            if question.needs_python and frame.height:
                last = first_row + frame.height - 1
                frame = complete(frame, question, f"the batch of rows {first_row:,} to {last:,}", first_row)
            first_row += frame.height
            if report is not None:
                report(frame.height)
            yield frame


def batches_or_error(log: object, question: Question, number: str | None = None) -> Iterator[pl.DataFrame]:
    """The batches of a frame that may be lazy, with an error in words if it cannot run."""
    with errors_told(log):
        yield from batches(log, question, number)


def batches(log: object, question: Question, number: str | None = None) -> Iterator[pl.DataFrame]:
    """The columns and expressions we need, as polars frames: in one piece if they are in memory, in batches if they are lazy.

    Rows come in the log's order; `number` names a column for their number in it.
    """
    if isinstance(log, Mapping):
        wanted = plan(question, list(log), number)
        lists = {target.source_column for target in question.tables}
        if question.learning is not None:
            lists |= {name for name in (*question.log.context, question.log.candidates) if name is not None}
        yield wanted.complete(side_by_side(log, wanted.read, question.number_columns, lists), question)
        return
    if isinstance(log, pl.DataFrame):  # its columns are at hand without a query
        wanted = plan(question, log.columns, number)
        yield wanted.complete(pl.DataFrame({name: log.get_column(name) for name in wanted.read}), question)
        return
    frame = as_narwhals(log)
    if isinstance(log, pl.LazyFrame):
        # expressions first: one that looks at several rows must see all of them, not just a batch
        rows = selected(log, question, number)
        yield from rows.collect_batches(chunk_size=BATCH, engine="streaming", maintain_order=True)
        return
    wanted = plan(question, frame.collect_schema().names(), number)
    if isinstance(frame, nw.LazyFrame):
        yield wanted.complete(frame.select(list(wanted.read)).collect("polars").to_native(), question)
    else:
        numbers = question.number_columns
        labels = {column for _, column in question.others} - numbers
        read = {
            name: series_of(frame[name], is_number=name in numbers, is_label=name in labels) for name in wanted.read
        }
        yield wanted.complete(pl.DataFrame(read), question)


def as_narwhals(log: Any) -> Frame:
    """A frame as narwhals knows it, or an error that says what a log is."""
    try:
        return nw.from_native(log)  # type: ignore[no-any-return]
    except TypeError as error:
        raise OptionError(
            "a log is a mapping of arrays, a frame (pandas, polars, pyarrow, …), the path of a file, or a table in a database; "
            f"found {type(log).__name__}."
        ) from error
    except nw.exceptions.DuplicateError as error:
        raise ColumnError(f"every column needs a name of its own: {verbatim(error)}") from error


def selected(scan: pl.LazyFrame, question: Question, number: str | None = None) -> pl.LazyFrame:
    """The columns and expressions we need from a lazy frame."""
    schema = scan.collect_schema()
    wanted = plan(question, schema.names(), number)
    check_digits(schema, wanted.read)
    return wanted.complete(scan.select(columns(wanted.read)), question)


def series_of(values: nw.Series[IntoSeriesT], *, is_number: bool, is_label: bool = False) -> pl.Series:
    """A column of any eager frame as a polars series; labels and ids keep every digit."""
    if values.dtype == nw.Object:
        return from_array(values.name, values.to_numpy(), is_number=is_number)
    native = values.to_native()
    # a pandas week is its own text, not the number that stores it
    if str(getattr(native, "dtype", "")).startswith("period"):
        return from_array(values.name, np.asarray(native, dtype=object), is_number=False)
    if "decimal256" in str(getattr(native, "type", None) or getattr(native, "dtype", "")):  # which polars does not know
        values = values.cast(nw.String() if is_label else nw.Float64())
    try:
        return values.to_polars().alias(values.name)
    except ImportError:  # pandas' own types go through pyarrow, where that is installed
        return from_array(values.name, np.asarray(native, dtype=object), is_number=is_number)
    except (TypeError, ValueError, NotImplementedError, pl.exceptions.PolarsError) as error:
        raise ColumnError(f"column {values.name!r} of type {values.dtype} cannot be read: {verbatim(error)}") from error


def side_by_side(
    arrays: Mapping[str, object], names: Sequence[str], numbers: Collection[str | None], lists: Collection[str] = ()
) -> pl.DataFrame:
    """Some of the arrays as the columns of a frame, without copying floats; `numbers` must be numbers, and `lists` have lists."""
    series = {
        name: from_table(name, arrays[name])
        if name in lists
        else from_array(name, arrays[name], is_number=name in numbers)
        for name in names
    }
    lengths = {name: column.len() for name, column in series.items()}
    if len(set(lengths.values())) > 1:
        texts = ", ".join(f"{name}: {length:,}" for name, length in lengths.items())
        raise LogError(f"all columns must have the same length; found {texts}.")
    return pl.DataFrame(series)


def from_table(name: str, values: object) -> pl.Series:
    """A table, or lists of any length, with a row for each of the log's, as a series of lists; anything else as `from_array` has it."""
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return pl.Series(name, np.ascontiguousarray(values, dtype=np.float64 if values.dtype.kind == "f" else None))
    if isinstance(values, list | tuple) and any(isinstance(row, _NESTED) for row in values[:1000]):
        return pl.Series(name, [list(row) if isinstance(row, _NESTED) else row for row in values], strict=False)
    return from_array(name, values, is_number=False)


def from_array(name: str, values: object, *, is_number: bool) -> pl.Series:
    """One array, list or series as a polars series."""
    if isinstance(values, pl.Series):
        return values.alias(name)
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise ColumnError(f"column {name!r} is not an array of one dimension: {verbatim(error)}.") from error
    if array.ndim != 1:
        raise ColumnError(f"column {name!r} must have one dimension, found shape {array.shape}.")
    if isinstance(values, np.ma.MaskedArray):
        array = values.data.copy() if array.dtype.kind in "mM" else values.data.astype(object)
        array[np.ma.getmaskarray(values)] = None
    entries = values if isinstance(values, list | tuple) and not is_number else None
    if array.dtype.kind == "T" or (array.dtype.kind == "U" and entries is not None):
        array = np.array(values, dtype=object)  # as text, a list's NaN and None would become 'nan' and 'None'
    if array.dtype.kind == "f" and entries is not None and all(isinstance(value, int) for value in entries):
        array = np.array(values, dtype=object)  # ids too large for any integer type: rounded, they would collide
    if is_number and array.dtype.kind in "cmM":
        what = "complex numbers" if array.dtype.kind == "c" else "points or spans of time"
        raise ColumnError(f"column {name!r} must hold numbers, but holds {what}. Pass a column of real numbers.")
    if array.dtype.kind == "O" and is_number:
        numbers = [_as_number(name, row, value) for row, value in enumerate(array.tolist())]
        return pl.Series(name, numbers, dtype=pl.Float64)
    if array.dtype.kind == "O":
        return _series_of_objects(name, array.tolist())
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
    """A Python object as a number: Decimal, int of any size, bool or float; None is null."""
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


_NESTED = (list, tuple, set, frozenset, np.ndarray)
_NULLS = ("NAType", "NaTType")  # pandas' nulls, without importing pandas


def _series_of_objects(name: str, values: list[object]) -> pl.Series:
    """Python objects as their own type if they share one, and otherwise as text; arrays become lists."""
    for k, value in enumerate(values):
        if isinstance(value, np.ndarray):
            values[k] = value.tolist()
        elif type(value).__name__ in _NULLS or value != value:
            values[k] = None
    is_whole = all(value is None or type(value) is int for value in values)
    try:
        if is_whole and any(isinstance(value, int) and abs(value) >= 2**63 for value in values):
            return pl.Series(name, values, dtype=pl.Int128)
        series = pl.Series(name, values)
        if series.dtype != pl.Object:  # polars' name for what it does not know
            return series
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        pass
    return pl.Series(name, [None if value is None else str(value) for value in values], dtype=pl.String)
