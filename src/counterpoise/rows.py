"""This file holds the rows of a log as a lazy polars frame, for questions that sums do not answer."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from counterpoise.errors import ColumnError, LogError, OptionError


def rows_of(log: object, where: str | None = None) -> pl.LazyFrame:
    """The rows of a log in files, or of a frame, that meet an SQL condition."""
    if isinstance(log, pl.LazyFrame | pl.DataFrame):
        frame = log.lazy()
    else:
        path = Path(str(log))
        if not path.exists():
            raise LogError(f"no file {str(log)!r}. Check the path.")
        readers = {".parquet": pl.scan_parquet, ".csv": pl.scan_csv, ".arrow": pl.scan_ipc, ".jsonl": pl.scan_ndjson}
        if path.suffix not in readers:
            raise OptionError(f"cannot tell the format of {str(path)!r}; known endings are {', '.join(readers)}.")
        frame = readers[path.suffix](path)  # type: ignore[operator]
    try:
        frame.collect_schema()
        return frame if where is None else frame.filter(pl.sql_expr(where))
    except pl.exceptions.SQLSyntaxError as error:
        raise ColumnError(f"where={where!r} is no SQL condition: {error}.") from error
    except (pl.exceptions.PolarsError, OSError) as error:
        raise LogError(f"cannot read {str(log)!r}: {str(error).splitlines()[0]}.") from error


def columns_of(log: object) -> list[str]:
    """The names of the log's columns."""
    return rows_of(log).collect_schema().names()
