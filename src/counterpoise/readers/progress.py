"""The progress bar for streamed work: rows and their rate, and silence if nobody is watching."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from html import escape
from importlib import import_module
from threading import Lock, Timer

Report = Callable[[int], None]


@contextmanager
def progress_bar(wanted: bool | None, doing: str = "reading the log", what: str = "rows") -> Iterator[Report | None]:
    """A function to report rows (or `what` else) to, or None; by default, there is one only on a terminal or in a notebook."""
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
    if wanted is not False and is_notebook():
        with _in_notebook(doing) as tell:
            yield tell
        return
    if wanted is False or (wanted is None and not (sys.stderr and sys.stderr.isatty())):
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(doing)
        yield lambda text: bar.update(task, description=text)


# -- In a notebook: a bar below the cell, which goes away when the work is done ----------------------------------------

PATIENCE = 0.5  # seconds before there is a bar
REFRESH = 0.2  # seconds from one look to the next


def is_notebook() -> bool:
    """Whether this is the kernel of a notebook, which has imported IPython itself."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def _in_notebook(doing: str) -> Iterator[Callable[[str], None]]:
    """A function that says what is being done below the cell, from half a second on."""
    shown = import_module("IPython.display")
    lock, began, last = Lock(), time.perf_counter(), 0.0
    said, handle, is_done = doing, None, False

    def show() -> None:
        nonlocal handle, last
        with lock:
            if is_done:
                return
            last = time.perf_counter()
            bar = shown.HTML(_as_html(said, last - began))
            if handle is None:
                handle = shown.display(bar, display_id=True)
            else:
                handle.update(bar)

    def tell(text: str) -> None:
        nonlocal said
        said = text
        if handle is not None and time.perf_counter() - last >= REFRESH:
            show()

    timer = Timer(PATIENCE, copy_context().run, [show])  # in this cell's context, for the bar to be below it
    timer.daemon = True
    timer.start()
    try:
        yield tell
    finally:
        timer.cancel()
        with lock:
            is_done = True
        if handle is not None:
            handle.update(shown.HTML(""))


def _as_html(said: str, seconds: float) -> str:
    """The bar as HTML: as far as "3 of 5" says, or else one that only moves.

    >>> _as_html("fitting the reward model: 3 of 5 models", 12)
    '<progress value="3" max="5"></progress> fitting the reward model: 3 of 5 models (12 s)'
    """
    part = re.search(r"([\d,]+) of ([\d,]+)", said)
    far = f' value="{part[1].replace(",", "")}" max="{part[2].replace(",", "")}"' if part else ""
    return f"<progress{far}></progress> {escape(said)} ({seconds:.0f} s)"
