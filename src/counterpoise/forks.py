"""Children of a fork: polars' threads are gone in them while its locks are still taken, so that a query would wait forever."""

from __future__ import annotations

import os
import re
from pathlib import Path

from counterpoise.errors import OptionError

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
    """Before a fork: note whether polars has threads."""
    global _has_run
    _has_run = _has_run or _has_threads()


def _has_threads() -> bool:
    """Whether polars has started the threads of its pool, as Linux tells; elsewhere it is our own queries that tell."""
    try:
        return any(re.match(r"polars-\d", (task / "comm").read_text()) for task in _TASKS.iterdir())
    except OSError:
        return False


def _lose() -> None:
    """In the child: what has run before the fork cannot run any more."""
    global _is_lost
    _is_lost = _has_run


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_remember, after_in_child=_lose)
