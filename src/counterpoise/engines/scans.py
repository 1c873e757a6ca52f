"""Scans of files: read once more where a text file's rows are not what its first ones promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import polars as pl

from counterpoise.errors import ColumnError, LogError
from counterpoise.log.question import Question
from counterpoise.readers import files

T = TypeVar("T")


def scanned(question: Question, work: Callable[[pl.LazyFrame], T]) -> T:
    """What `work` makes of a scan of the files; it is called again if later rows of a text file break what the first ones promise."""
    numbers = sorted(question.number_columns)
    found = files.files_of(question.log.data)
    files.check_keys(found)
    try:
        return work(files.scan(question.log.data, numbers))
    except files.UNREADABLE as error:
        first: BaseException = error
    try:
        # A row of a text file may be unlike the first ones: now guess from all rows, which takes longer but makes no promise.
        return work(files.scan(question.log.data, numbers, inferred=None))
    except ColumnError as wrong:
        reason = next(iter(str(first).splitlines()), type(first).__name__)
        raise ColumnError(f"{wrong} The first rows read well, but then: {reason}.") from first
    except files.UNREADABLE as error:
        raise (files.find_damaged(found) or LogError(f"cannot read the files: {error}.")) from error
