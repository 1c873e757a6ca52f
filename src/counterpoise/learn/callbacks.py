"""What a run tells while it trains: a progress bar, and your callbacks after every epoch."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from counterpoise.errors import Argument, OptionError
from counterpoise.learn.policy import Policy

if TYPE_CHECKING:
    from counterpoise.learn.checkpoints import Epoch

# -- The progress bar of training, which stays quiet if nobody is watching ---------------------------------------------


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


# -- Callbacks: what you want to happen after every epoch of training, and whether training goes on --------------------


@dataclass(frozen=True)
class EpochEnd:
    """What a callback is told after an epoch.

    `history` ends with the epoch itself, and `best_epoch` (counted from 1) is the one that would be kept now. `policy` and `optimizer` are
    those in training, not copies. `run` names the run where one `fit` has several, such as ``"fold-1"``, ``"lambda-0.6"`` or
    ``"fold-1/lambda-0.6"``; it is empty for the run that the policy comes from, unless λ is tuned.
    """

    history: tuple[Epoch, ...]
    best_epoch: int
    policy: Policy
    optimizer: torch.optim.Optimizer
    run: str = ""

    @property
    def epoch(self) -> Epoch:
        """The epoch that has just ended."""
        return self.history[-1]

    @property
    def learning_rate(self) -> float:
        """The rate that it was trained with: that of the optimizer's first group."""
        return float(self.optimizer.param_groups[0]["lr"])


Callback = Callable[[EpochEnd], Any]  # what it returns says whether to stop


class LogTo:
    """A callback that sends every epoch's numbers to an experiment tracker.

    `where` is anything with ``add_scalar(name, number, step)``, such as TensorBoard's ``SummaryWriter``, or with
    ``log_metrics(numbers, step=…)``, such as the module ``mlflow`` itself. The numbers are those of `Epoch` and the learning rate; those
    that are not finite are left out.

    Examples
    --------
    >>> class Printed:
    ...     def log_metrics(self, numbers, step):
    ...         print(step, sorted(numbers))
    >>> from counterpoise.environments import SyntheticBandit
    >>> from counterpoise.learn import PolicyLearner
    >>> log = SyntheticBandit(n_actions=4, seed=1).draw(400)
    >>> _ = PolicyLearner(epochs=1, batch_size=100, folds=None, callbacks=[LogTo(Printed(), prefix="policy/")]).fit(
    ...     context=log.context, action=log.action, reward=log.reward, propensity=log.propensity
    ... )  # doctest: +ELLIPSIS
    1 ['policy/baseline', 'policy/effective_sample_size', 'policy/gradient_variance', ...
    """

    def __init__(self, where: Any, *, prefix: str = "") -> None:
        if not hasattr(where, "add_scalar") and not hasattr(where, "log_metrics"):
            raise OptionError(
                f"epochs can be logged to what has add_scalar or log_metrics; {type(where).__name__} has neither.",
                do="Pass a SummaryWriter of torch.utils.tensorboard, or the module mlflow.",
            )
        self.where, self.prefix = where, prefix

    def __call__(self, end: EpochEnd) -> None:
        """Send the numbers of an epoch."""
        report = asdict(end.epoch) | {"learning_rate": end.learning_rate}
        step = report.pop("epoch")
        prefix = self.prefix + (f"{end.run}/" if end.run else "")
        numbers = {f"{prefix}{name}": float(value) for name, value in report.items() if _is_finite(value)}
        if hasattr(self.where, "log_metrics"):
            self.where.log_metrics(numbers, step=step)
            return
        for name, value in numbers.items():
            self.where.add_scalar(name, value, step)

    def __deepcopy__(self, memo: dict[int, Any]) -> LogTo:
        # clones of a learner log to the same place, which often cannot be copied
        return LogTo(self.where, prefix=self.prefix)


def wants_to_stop(
    callbacks: Iterable[Callback], end: EpochEnd, rank: int, processes: int, device: torch.device
) -> bool:
    """Call every callback, in the first process only; all processes get to know whether one of them wants to stop."""
    answers = [bool(callback(end)) for callback in callbacks] if rank == 0 else []
    if processes == 1:
        return any(answers)
    stop = torch.tensor(any(answers), dtype=torch.int64, device=device)
    torch.distributed.broadcast(stop, src=0)
    return bool(stop)


def callbacks_of(value: Any) -> tuple[Callback, ...]:
    """The callbacks a user gave."""
    several = () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)
    for callback in several:
        if not callable(callback):
            raise OptionError(
                [Argument("callbacks"), f" must be functions of an EpochEnd; found {type(callback).__name__}."],
                do="Pass a list such as [lambda end: end.epoch.value > 0.9], which stops at the first epoch above 0.9.",
            )
    return several


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
