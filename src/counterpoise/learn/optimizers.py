"""How steps follow the gradient: an Adam for large catalogs, and learning rates that change from epoch to epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from counterpoise.errors import OptionError

# -- Adam for a catalog of which every step sees a few items only ------------------------------------------------------


class LazyAdam(torch.optim.Adam):
    """Adam that leaves alone the rows of a parameter whose gradient is sparse and has no entry for them.

    Such a row's moments do not fade in the meantime, as in `torch.optim.SparseAdam`, which takes no other parameters. Parameters with dense
    gradients are treated as usual.

    >>> vectors = torch.nn.Parameter(torch.ones(4, 2))
    >>> optimizer = LazyAdam([vectors], lr=0.5)
    >>> torch.nn.functional.embedding(torch.tensor([2]), vectors, sparse=True).sum().backward()
    >>> _ = optimizer.step()
    >>> vectors[:, 0].tolist()
    [1.0, 1.0, 0.5, 1.0]
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One step along the gradients."""
        apart: list[tuple[torch.nn.Parameter, Tensor]] = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    self._lazily(parameter, parameter.grad.coalesce(), group)
                    apart.append((parameter, parameter.grad))
                    parameter.grad = None
        loss = super().step(closure)
        for parameter, gradient in apart:
            parameter.grad = gradient
        return loss

    def _lazily(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        rows, g = gradient.indices()[0], gradient.values()
        first, second = group["betas"]
        mean = state["exp_avg"][rows].lerp_(g, 1 - first)
        square = state["exp_avg_sq"][rows].lerp_(g.square(), 1 - second)
        state["exp_avg"][rows], state["exp_avg_sq"][rows] = mean, square
        count = float(state["step"])
        spread = square.div_(1 - second**count).sqrt_().add_(group["eps"])
        parameter.index_add_(0, rows, mean / spread, alpha=-float(group["lr"]) / (1 - first**count))


# -- PyTorch's schedulers, which a resumed run comes back to ------------------------------------------------------------


Scheduler = Callable[[torch.optim.Optimizer], LRScheduler]
A_SCHEDULER = "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)"  # in errors


def scheduler_of(make: Scheduler, optimizer: torch.optim.Optimizer, holdout: float) -> LRScheduler:
    """The scheduler of an optimizer."""
    made = make(optimizer)
    if not (hasattr(made, "step") and hasattr(made, "state_dict")):
        raise OptionError(
            f"scheduler must be a function of the optimizer that gives a scheduler; it gave {type(made).__name__}.",
            do=f"Pass one such as {A_SCHEDULER}.",
        )
    if isinstance(made, ReduceLROnPlateau) and made.mode != "max":
        raise OptionError(
            "ReduceLROnPlateau watches the held-out value, and larger ones are better.", do="Pass it `mode='max'`."
        )
    if isinstance(made, ReduceLROnPlateau) and not holdout:
        raise OptionError(
            "ReduceLROnPlateau watches the held-out value, and no rows are held out.",
            do="Raise `holdout=`, or choose another scheduler.",
        )
    return made


def advance(scheduler: LRScheduler, value: float) -> None:
    """Go on to the next epoch; a scheduler that waits for a plateau gets the held-out value."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(value)
    else:
        scheduler.step()


def replay(scheduler: LRScheduler, values: Iterable[float]) -> None:
    """Take a fresh scheduler through epochs that were trained before, which leaves it, and the rates, as they were after them.

    This needs nothing but the history that a checkpoint has anyway, and no state of a scheduler's own from a file.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the optimizer has not moved: it did, before
        for value in values:
            advance(scheduler, value)
