"""Threads: how many a piece of work gets, as many as it keeps busy and never more than there are; and why the child of a fork has none.

Threads that share a small step spend it waiting for each other, and on a busy machine for other programs, too: a fit of a few
thousand rows then takes ten times as long as with one thread.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from counterpoise.errors import OptionError

ENOUGH = 2**20  # multiplications and additions of one step that are worth another thread


def processors() -> int:
    """How many threads can run at once: the processors of this process, as far as its container and OMP_NUM_THREADS let it have them."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    setting = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    limits = [count, int(setting) if setting.isdecimal() and int(setting) else count, _quota() or count]
    return max(1, min(limits))


def threads_for(work: float) -> int:
    """The threads for steps of so many multiplications and additions each.

    >>> threads_for(1000), threads_for(1e12) == processors()
    (1, True)
    """
    return int(max(1, min(processors(), work // ENOUGH)))


@contextmanager
def threads(work: float) -> Iterator[int]:
    """Give the arithmetic inside (BLAS, scikit-learn's OpenMP, PyTorch) the threads for steps of such a size; afterward, all is as before.

    Nobody gets more threads than before, so the user's own `torch.set_num_threads` or `threadpool_limits` still holds.
    """
    count = threads_for(work)
    if count == processors():
        yield count
        return
    with ExitStack() as stack:
        torch: Any = sys.modules.get("torch")  # if it was not imported, it has no threads
        before = torch.get_num_threads() if torch is not None else 1
        if before > count:
            torch.set_num_threads(count)
            stack.callback(torch.set_num_threads, before)
        try:
            from threadpoolctl import ThreadpoolController
        except ImportError:  # comes with scikit-learn
            pass
        else:
            controller = ThreadpoolController()
            limits = {pool["prefix"]: count for pool in controller.info() if pool["num_threads"] > count}
            if limits:
                stack.enter_context(controller.limit(limits=limits))
        yield count


@cache
def _quota() -> int | None:
    """The processors that a container may use, where its cgroup limits their time."""
    for quota, period in (("cpu.max", None), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            numbers = [Path("/sys/fs/cgroup", name).read_text().split() for name in (quota, period) if name is not None]
            most, every = (text for part in numbers for text in part)
            if most.lstrip("-").isdecimal() and int(most) > 0:
                return max(1, -(-int(most) // int(every)))
        except (OSError, ValueError):
            continue
    return None


# -- Children of a fork: polars' threads are gone in them while its locks are still taken, so that a query would wait forever ---

_TASKS = Path("/proc/self/task")
_has_run = _is_lost = False  # a query of ours has run here; threads that it needs were lost in a fork


def check_threads() -> None:
    """Refuse a query that could never end, in a process forked from one in which polars has already run."""
    global _has_run
    if _is_lost:
        raise OptionError(
            "this process was forked from one in which polars has already run, and queries would wait forever for threads that a fork "
            "does not copy.",
            do="Start processes with multiprocessing.get_context('spawn'), or 'forkserver'.",
        )
    _has_run = True


def _remember() -> None:
    """Before a fork: note whether polars has started the threads of its pool, as Linux tells; elsewhere our own queries tell."""
    global _has_run
    with suppress(OSError):
        _has_run = _has_run or any(re.match(r"polars-\d", (task / "comm").read_text()) for task in _TASKS.iterdir())


def _lose() -> None:
    """In the child: what has run before the fork cannot run any more."""
    global _is_lost
    _is_lost = _has_run


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_remember, after_in_child=_lose)
