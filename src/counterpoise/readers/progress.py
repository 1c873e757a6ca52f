"""Progress of long work: what is being done and how far it is, as a line that moves on a terminal, or as a line every ten seconds."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from importlib import import_module
from threading import Event, Lock, Thread, Timer
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY = 10.0  # seconds from line to line where no line can move, as in a pipe

Report = Callable[[int], None]


@contextmanager
def progress_bar(
    wanted: bool | None,
    doing: str = "reading the log",
    what: str = "rows",
    total: int | Callable[[], int | None] | None = None,
) -> Iterator[Report | None]:
    """A function to report rows (or `what` else) to, or None; by default, there is one only on a terminal or in a notebook.

    With a `total` (which may be a function, called only if somebody is told) it says how many of them are done, else how many a second.
    """
    with progress_line(wanted, doing) as line:
        if line is None:
            yield None
            return
        count = total() if callable(total) else total
        done, began = 0, time.perf_counter()

        def report(rows: int) -> None:
            nonlocal done
            done += rows
            if count is not None:
                line(f"{doing}: {done:,} of {count:,} {what}")
                return
            elapsed = time.perf_counter() - began
            rate = f", {done / elapsed:,.0f} {what}/s" if elapsed > 0 else ""
            line(f"{doing}: {done:,} {what}{rate}")

        if count is not None:
            report(0)
        yield report


@contextmanager
def progress_line(wanted: bool | None, doing: str) -> Iterator[Callable[[str], None] | None]:
    """A function that says what is being done and for how long, or None; like `progress_bar`."""
    if wanted is not False and is_notebook():
        with _in_notebook(doing) as tell:
            yield tell
        return
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    lines = _lines.get()
    if wanted is False or (wanted is None and not is_terminal and lines is None):
        yield None
        return
    if lines is not None:
        with lines.during(doing) as tell:
            yield tell
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    outer = _bar.get()
    new = Progress(*columns, console=Console(stderr=True), transient=is_terminal)
    with new if outer is None else nullcontext(outer) as bar:
        token, task = _bar.set(bar), bar.add_task(doing)
        try:
            yield lambda text: bar.update(task, description=text)
        finally:
            _bar.reset(token)
            if outer is not None:
                bar.remove_task(task)


_bar: ContextVar[Progress | None] = ContextVar(
    "_bar", default=None
)  # two that move at once would be in each other's way


# -- Where no line can move: a pipe, a file, a scheduler's log ---------------------------------------------------------


class _Lines:
    """What a command is at, the innermost work last; a thread says so every ten seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._works, self._began = stream, ["working"], time.monotonic()
        self._ended = Event()

    @contextmanager
    def during(self, doing: str) -> Iterator[Callable[[str], None]]:
        """A function that says how far some work is, while it is done."""
        self._works.append(doing)
        at = len(self._works) - 1

        def tell(text: str) -> None:
            self._works[at] = text

        try:
            yield tell
        finally:
            del self._works[at:]

    def beat(self) -> None:
        """Say what is being done until it has ended."""
        while not self._ended.wait(EVERY):
            with suppress(OSError, ValueError):  # whoever reads the pipe has gone: no reason to stop the work
                print(f"{self._works[-1]} ({time.monotonic() - self._began:.0f} s)", file=self._stream, flush=True)

    def end(self) -> None:
        """Be silent from now on."""
        self._ended.set()


_lines: ContextVar[_Lines | None] = ContextVar("_lines", default=None)


@contextmanager
def lines_of_progress() -> Iterator[None]:
    """While a command runs, say on standard error every ten seconds what it does, if that is not a terminal."""
    if sys.stderr is None or sys.stderr.isatty() or _lines.get() is not None:
        yield
        return
    lines = _Lines(sys.stderr)
    thread = Thread(target=lines.beat, daemon=True)
    token = _lines.set(lines)
    thread.start()
    try:
        yield
    finally:
        _lines.reset(token)
        lines.end()
        thread.join()


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
    from html import escape  # in notebooks alone

    part = re.search(r"([\d,]+) of ([\d,]+)", said)
    far = f' value="{part[1].replace(",", "")}" max="{part[2].replace(",", "")}"' if part else ""
    return f"<progress{far}></progress> {escape(said)} ({seconds:.0f} s)"
