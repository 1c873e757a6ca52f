"""What a run reports after every epoch, and your callbacks, which may stop it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

import torch

from counterpoise.errors import OptionError
from counterpoise.learn.policy import Policy


@dataclass(frozen=True)
class Epoch:
    """What an epoch did: β-IPS on the held-out rows with its interval, and the mean gradient variance of its batches.

    `effective_sample_size` is how many held-out rows the weights leave, and `verdict` whether to believe the value: ``"ok"``,
    ``"caution"`` or ``"not identified"``. The epoch with the largest `score` is kept: its value if the held-out rows measure it
    (an effective sample of 30 rows or more, and a mean weight within three standard errors of 1), else a lower bound by
    logarithmic smoothing; for an imitation, the mean of log π(a|x).
    """

    epoch: int
    value: float
    stderr: float
    lower: float
    upper: float
    gradient_variance: float
    baseline: float
    effective_sample_size: float
    verdict: str
    score: float


@dataclass(frozen=True)
class EpochEnd:
    """What a callback gets after an epoch.

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


Callback = Callable[[EpochEnd], object]  # what it returns says whether to stop


class Writer(Protocol):
    """What takes one number at a time, as TensorBoard's `SummaryWriter` does."""

    def add_scalar(self, name: str, number: float, step: int, /) -> object:
        """Take a number."""


class Tracker(Protocol):
    """What takes all numbers of an epoch at once, as MLflow does."""

    def log_metrics(self, numbers: dict[str, float], /, *, step: int) -> object:
        """Take numbers."""


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

    def __init__(self, where: Writer | Tracker, *, prefix: str = "") -> None:
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

    def __deepcopy__(self, memo: dict[int, object]) -> LogTo:
        # clones of a learner log to the same place, which often cannot be copied
        return LogTo(self.where, prefix=self.prefix)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
