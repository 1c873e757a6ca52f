"""The progress bar of training, which stays quiet if nobody is watching."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """A bar of batches with the last epoch's value and gradient variance; nothing if there is no terminal or no rich."""

    def __init__(self, wanted: bool | None, epochs: int, steps: int, run: str = "") -> None:
        self._bar: Any = None
        self._epochs, self._steps, self._run = epochs, steps, run
        if wanted or (wanted is None and sys.stderr.isatty()):
            try:
                from rich.console import Console
                from rich.progress import Progress as Bar
            except ImportError:  # a bare machine
                return
            self._bar = Bar(console=Console(stderr=True))
            self._task = self._bar.add_task(f"{run}epoch 1", total=epochs * steps)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, batches: int) -> None:
        """Report that some batches of the epoch are done."""
        if self._bar is not None:
            self._bar.advance(self._task, batches)

    def epoch_done(self, epoch: int, value: float, variance: float) -> None:
        """Report that an epoch is done, and what came of it."""
        if self._bar is not None:
            text = (
                f"{self._run}epoch {min(epoch + 1, self._epochs)}  value {value:.4g}  gradient variance {variance:.3g}"
            )
            self._bar.update(self._task, completed=epoch * self._steps, description=text)
