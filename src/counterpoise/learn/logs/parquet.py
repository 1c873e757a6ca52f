"""Parquet files as training reads them: part by part, and always the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import polars as pl

from counterpoise.errors import LogError, first_line
from counterpoise.readers.files import files_of

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
Stamp = tuple[int, ...] | None


class ParquetFiles:
    """A file, a folder, a glob, or a list of them; which files these are is settled when they are opened."""

    def __init__(self, path: Paths) -> None:
        self.path = path
        files = files_of(path)
        self._stamps = {file: _stamp(file) for file in files}
        try:
            self._scan = self._opened()
            self.columns = self._scan.collect_schema().names()
            self.rows = int(self._scan.select(pl.len()).collect().item())
        except (OSError, pl.exceptions.PolarsError) as error:
            raise LogError(
                f"cannot read {str(path)!r} as Parquet: {first_line(error)}.",
                do="If it is another format, its name must say so: .csv, .jsonl, .arrow, …",
            ) from error

    def read(self, names: Sequence[str], start: int, rows: int) -> pl.DataFrame:
        """Some columns of some rows."""
        try:
            # a scan remembers the footers that it has read, and would look for the rows of new files where the old had them
            scan = self._scan if self.untouched() else self._opened()
            frame: pl.DataFrame = scan.select(names).slice(start, rows).collect()
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            if not self.untouched():
                raise self.changed() from error
            raise LogError(f"cannot read {str(self.path)!r} any longer: {first_line(error)}.") from error
        if frame.height != min(rows, self.rows - start):
            raise self.changed()
        return frame

    def _opened(self) -> pl.LazyFrame:
        # folders called column=value are columns, as they are where polars looks for the files itself
        folder = isinstance(self.path, str | PathLike) and Path(self.path).is_dir()
        return pl.scan_parquet(list(self._stamps), hive_partitioning=folder, glob=False)

    def untouched(self) -> bool:
        """Whether no file was written to, replaced or removed since it was opened."""
        return all(_stamp(file) == stamp for file, stamp in self._stamps.items())

    def changed(self) -> LogError:
        """The error for rows that are not the same as before."""
        touched = [file for file, stamp in self._stamps.items() if _stamp(file) != stamp]
        more = f" (and {len(touched) - 1:,} more)" if len(touched) > 1 else ""
        return LogError(
            f"{str(touched[0] if touched else self.path)!r}{more} changed while it was being trained on, and every epoch must see the "
            "rows that were checked at the start.",
            do="Start again, on files that nobody writes to in the meantime.",
        )


def _stamp(file: Path) -> Stamp:
    """What changes when a file is written or replaced; the last part changes even if somebody sets the times back."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
