"""The progress bar for streamed work: rows and their rate, and silence if nobody is watching."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int], None]


@contextmanager
def progress_bar(wanted: bool | None, doing: str = "reading the log", what: str = "rows") -> Iterator[Report | None]:
    """A function to report rows (or `what` else) to, or None; by default, there is one only if standard error is a terminal."""
    with progress_line(wanted, doing) as line:
        done, began = 0, time.perf_counter()

        def report(rows: int) -> None:
            nonlocal done
            done += rows
            elapsed = time.perf_counter() - began
            rate = f", {done / elapsed:,.0f} {what}/s" if elapsed > 0 else ""
            if line is not None:
                line(f"{done:,} {what}{rate}")

        yield None if line is None else report


@contextmanager
def progress_line(wanted: bool | None, doing: str) -> Iterator[Callable[[str], None] | None]:
    """A function that says what is being done and for how long, or None; like `progress_bar`."""
    if wanted is False or (wanted is None and not (sys.stderr and sys.stderr.isatty())):
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(doing)
        yield lambda text: bar.update(task, description=text)
