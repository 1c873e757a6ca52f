"""Runs tasks in several processes, one thread each, and saves them as they finish."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from counterpoise.errors import OptionError, ResultFileError
from counterpoise.experiments.result_file import Key, ResultFile, Row

SAVE_EVERY = 10.0  # seconds
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1")

Worker = Callable[[Sequence[Key]], Mapping[Key, Sequence[Row]]]


def run_tasks(
    worker: Worker, tasks: Sequence[Sequence[Key]], file: ResultFile, *, jobs: int | None, title: str
) -> None:
    """Run every task (a list of keys) and add its rows to the file; whatever is finished survives an interruption."""
    count = jobs if jobs is not None else os.cpu_count() or 1
    if count < 1:
        raise OptionError(f"jobs must be at least 1; found {count}.")
    total = sum(map(len, tasks))
    if not total:
        return
    console = Console(stderr=True)
    console.quiet = not console.is_terminal  # a disabled bar still ended in an empty line before rich 14.3
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    saved = -SAVE_EVERY  # the first result is saved at once: a file that cannot be written shows early
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress, _one_thread_each():
        bar = progress.add_task(title, total=total)
        pool = ProcessPoolExecutor(min(count, len(tasks)), multiprocessing.get_context("spawn"), initializer=_quiet)
        try:
            for done in as_completed([pool.submit(worker, task) for task in tasks]):
                results = done.result()
                file.add(results)
                progress.advance(bar, len(results))
                if time.monotonic() - saved > SAVE_EVERY:
                    file.save()
                    saved = time.monotonic()
        except BrokenProcessPool as error:
            raise ResultFileError(
                "a process died, most often for want of memory. What was finished is saved: run the same command "
                "again to continue, with fewer --jobs."
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            file.save()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Make processes started in the meantime use one thread, because two that share two cores must not run four."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _quiet() -> None:
    """Only the parent answers Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
