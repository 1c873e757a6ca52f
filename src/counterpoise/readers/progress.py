"""The progress bar for streamed work: rows and their rate, and silence if nobody is watching."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int], None]


@contextmanager
def progress_bar(wanted: bool | None, doing: str = "reading the log", what: str = "rows") -> Iterator[Report | None]:
    """A function to report rows (or `what` else) to, or None; by default, there is one only if standard error is a terminal."""
    if wanted is False or (wanted is None and not (sys.stderr and sys.stderr.isatty())):
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(doing)
        done = 0

        def report(rows: int) -> None:
            nonlocal done
            done += rows
            elapsed = bar.tasks[0].elapsed or 0.0
            rate = f", {done / elapsed:,.0f} {what}/s" if elapsed > 0 else ""
            bar.update(task, description=f"{done:,} {what}{rate}")

        yield report
