"""Learning rates that change from epoch to epoch, by PyTorch's schedulers, and that a resumed run comes back to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from counterpoise.errors import Argument, OptionError

Scheduler = Callable[[torch.optim.Optimizer], Any]


def scheduler_of(make: Scheduler | None, optimizer: torch.optim.Optimizer, holdout: float) -> Any:
    """The scheduler of an optimizer, if there is one."""
    made = None if make is None else make(optimizer)
    if made is not None and not (hasattr(made, "step") and hasattr(made, "state_dict")):
        raise OptionError(
            f"scheduler must be a function of the optimizer that gives a scheduler; it gave {type(made).__name__}.",
            do="Pass one such as lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10).",
        )
    if isinstance(made, ReduceLROnPlateau):
        _check_plateau(made, holdout)
    return made


def advance(scheduler: Any, value: float) -> None:
    """Go on to the next epoch; a scheduler that waits for a plateau is told the held-out value."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(value)
    elif scheduler is not None:
        scheduler.step()


def replay(scheduler: Any, values: Iterable[float]) -> None:
    """Take a fresh scheduler through epochs that were trained before, which leaves it, and the rates, as they were after them.

    This needs nothing but the history that a checkpoint has anyway, and no state of a scheduler's own from a file.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the optimizer has not moved: it did, before
        for value in values:
            advance(scheduler, value)


def checked_scheduler(given: Any) -> Scheduler | None:
    """The function a user gave."""
    if given is not None and not callable(given):
        raise OptionError(
            f"scheduler must be a function of the optimizer that gives a scheduler; found {type(given).__name__}.",
            do="Pass one such as lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10).",
        )
    found: Scheduler | None = given
    return found


def _check_plateau(scheduler: ReduceLROnPlateau, holdout: float) -> None:
    if scheduler.mode != "max":
        raise OptionError(
            "ReduceLROnPlateau watches the held-out value, and larger ones are better.",
            do=["Pass it ", Argument("mode", "max"), "."],
        )
    if not holdout:
        raise OptionError(
            "ReduceLROnPlateau watches the held-out value, and no rows are held out.",
            do=["Raise ", Argument("holdout"), ", or choose another scheduler."],
        )
