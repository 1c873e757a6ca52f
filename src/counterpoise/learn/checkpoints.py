"""What a run leaves behind after every epoch: a report, for callbacks that may stop it, and a checkpoint from which it resumes."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from counterpoise.errors import OptionError, PolicyFileError, verbatim
from counterpoise.learn.norms import ACROSS_ROWS
from counterpoise.learn.optimizers import replay
from counterpoise.learn.policy import Policy
from counterpoise.learn.tensor_files import TensorFile, check_finite, check_tensors, opened, write_tensors

if TYPE_CHECKING:
    from counterpoise.learn.source import Inspection

# -- Reports and callbacks ---------------------------------------------------------------------------------------------


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


class ScalarWriter(Protocol):
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

    def __init__(self, where: ScalarWriter | Tracker, *, prefix: str = "") -> None:
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
        numbers = {
            f"{prefix}{name}": float(value)
            for name, value in report.items()
            if _is_number(value) and math.isfinite(value)
        }
        if hasattr(self.where, "log_metrics"):
            self.where.log_metrics(numbers, step=step)
            return
        for name, value in numbers.items():
            self.where.add_scalar(name, value, step)

    def __deepcopy__(self, memo: dict[int, object]) -> LogTo:
        # clones of a learner log to the same place, which often cannot be copied
        return LogTo(self.where, prefix=self.prefix)


# -- What a run depends on: the part of a checkpoint that must be the same for the run to resume -----------------------

HOW = {"params", "foreach", "fused", "capturable", "differentiable"}  # how an optimizer computes, not what it computes
SHOWN = 4  # differences listed in an error


def settings_of(state: RunState, log: Inspection) -> dict[str, object]:
    """What must be the same for a run to be continued, beyond its options: policy, log, optimizer and scheduler."""
    policy, groups = state.policy, state.optimizer.param_groups
    settings: dict[str, object] = {
        "policy": type(policy).__name__,
        "n_actions": log.n_actions,
        "rows": log.rows,
        "digest of the log": log.digest,
        "optimizer": type(state.optimizer).__name__,
        "optimizer's division into groups of parameters": [len(group["params"]) for group in groups],
    }
    for k, group in enumerate(groups):
        where = f" of group {k + 1}" if k else ""
        settings |= {f"optimizer's {name}{where}": plain(group[name]) for name in sorted(group.keys() - HOW)}
    if state.scheduler is not None:  # as it is before its first epoch
        settings["scheduler"] = type(state.scheduler).__name__
        parts = sorted(state.scheduler.state_dict().items())
        settings |= {f"scheduler's {name}": plain(value) for name, value in parts}
    for name, layer in policy.named_modules():
        own = [f"{part} {tuple(tensor.shape)}" for part, tensor in layer.named_parameters(recurse=False)]
        if name and next(layer.children(), None) is None:
            settings[f"layer {name!r}"] = re.sub(r" at 0x[0-9a-f]+", "", " ".join(repr(layer).split()))
        elif own:
            settings[f"layer {name or 'itself'!r}"] = f"{type(layer).__name__} with {', '.join(own)}"
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in policy.state_dict().values()}
    settings["precision"] = ", ".join(sorted(kinds))
    # frozen parameters and buffers, such as the features of items, but not the averages that some layers keep
    fixed = [(name, parameter) for name, parameter in policy.named_parameters() if not parameter.requires_grad]
    for place, layer in policy.named_modules():
        if not isinstance(layer, ACROSS_ROWS):
            fixed += [(f"{place}.{name}", buffer) for name, buffer in layer.named_buffers(recurse=False)]
    digest = hashlib.sha256()
    for name, tensor in fixed:
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    settings["digest of what the policy does not learn"] = digest.hexdigest()[:16]
    return settings


def differences(saved: Mapping[str, object], now: Mapping[str, object]) -> str:
    """How two runs differ, in words; empty if they don't."""
    names = [name for name in dict.fromkeys([*now, *saved]) if saved.get(name) != now.get(name)]
    said = [f"its {name} is {saved.get(name)!r}, now it is {now.get(name)!r}" for name in names[:SHOWN]]
    more = [f"and {len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
    return "; ".join(said + more)


def plain(value: object) -> object:
    """An option as JSON would return it."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__name__


# -- Checkpoints: everything a run needs to resume after it was killed, as if nothing had happened ---------------------


FORMAT = "counterpoise checkpoint 4"
T = TypeVar("T")


@dataclass
class RunState:
    """A run between two epochs."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    sums: Tensor  # of the running baseline
    best: dict[str, Tensor]
    scheduler: LRScheduler | None = None  # of the learning rate
    history: list[Epoch] = field(default_factory=list)
    best_epoch: int = 0  # the one that is kept, counted from 1
    is_stopped: bool = False  # before its last epoch


def save_checkpoint(path: str | PathLike[str], state: RunState, settings: dict[str, object]) -> None:
    """Write a run to disk; `settings` say which run it is."""
    moments = state.optimizer.state_dict()
    tensors = {f"policy.{name}": tensor for name, tensor in state.policy.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in state.best.items()}
    tensors |= {"sums": state.sums, "random": torch.get_rng_state()}
    plain: dict[str, dict[str, object]] = {}
    for index, values in moments["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                plain.setdefault(str(index), {})[name] = value
    progress = {
        "done": len(state.history),
        "history": [asdict(epoch) for epoch in state.history],
        "best": state.best_epoch,
        "stopped": state.is_stopped,
    }
    described = {"format": FORMAT, "settings": settings, "progress": progress}
    write_tensors(path, tensors, described | {"groups": moments["param_groups"], "plain": plain})


def restore_checkpoint(path: str | PathLike[str], state: RunState, settings: dict[str, object], epochs: int) -> bool:
    """Put a run back where it was, and return whether there was a checkpoint; one that is refused changes nothing."""
    if not Path(path).exists():
        return False
    with opened(path) as file:
        history, best_epoch, is_stopped = _check_run(file, settings, epochs)
        moments = _moments_of(file, state)
        _check_stored(file, state)
        tensors = file.read()
        check_finite(file, {name: tensor for name, tensor in tensors.items() if not name.startswith("optimizer.")})
        for name, tensor in _under("optimizer.", tensors).items():
            index, _, part = name.partition(".")
            moments["state"].setdefault(int(index), {})[part] = tensor
        try:
            torch.Generator().set_state(tensors["random"])  # to see whether it can be
            if state.scheduler is not None:  # back where it was, which must give the same learning rates
                replay(state.scheduler, [epoch.value for epoch in history])
                saved, now = (
                    [plain(group["lr"]) for group in groups]
                    for groups in (moments["param_groups"], state.optimizer.param_groups)
                )
                if saved != now:
                    raise PolicyFileError(
                        f"{str(path)!r} has the learning rates {saved} after {len(history):,} epochs, and the scheduler comes to {now}.",
                        do="Use a scheduler that goes by epochs and held-out values alone, or start again with another checkpoint.",
                    )
            state.optimizer.load_state_dict(moments)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise file.damaged(
                f"its state of the optimizer or of the random numbers cannot be used ({verbatim(error)})"
            ) from error
    state.policy.load_state_dict(_under("policy.", tensors))
    state.best = _under("best.", tensors)
    state.sums = tensors["sums"]
    torch.set_rng_state(tensors["random"])
    state.history, state.best_epoch, state.is_stopped = history, best_epoch, is_stopped
    return True


def _check_run(file: TensorFile, settings: Mapping[str, object], epochs: int) -> tuple[list[Epoch], int, bool]:
    """Check that this is a checkpoint of this very run, and not from after its end; its epochs, the best one, and whether it stopped."""
    path, kind, saved = str(file.path), file.description.get("format"), file.description.get("settings")
    if kind != FORMAT:
        raise PolicyFileError(
            f"{path!r} is {str(kind)[:50]!r}, not a checkpoint of this version ({FORMAT!r}).",
            do="Name another file, or move this one away.",
        )
    if not isinstance(saved, dict):
        raise file.damaged("the run it belongs to is missing")
    apart = differences(saved, settings)
    if apart:
        raise PolicyFileError(
            f"{path!r} is the checkpoint of another run: {apart}.",
            do="Go on with the old settings, move the file away, or name another checkpoint.",
        )
    names = {part.name for part in fields(Epoch)}
    match file.description.get("progress"):
        case {"done": done, "history": list(reports), "best": int(best), "stopped": bool(stopped), **more} if (
            not more
            and all(isinstance(epoch, dict) and epoch.keys() == names for epoch in reports)
            and all(
                isinstance(value, str) if name == "verdict" else _is_number(value)
                for epoch in reports
                for name, value in epoch.items()
            )
            and [epoch["epoch"] for epoch in reports] == list(range(1, len(reports) + 1))
            and _is_count(done, len(reports), len(reports))
            and _is_count(best, min(1, len(reports)), len(reports))
        ):
            history = [Epoch(**epoch) for epoch in reports]
        case _:
            raise file.damaged("its account of the epochs done does not add up")
    if done > epochs:
        raise PolicyFileError(
            f"{path!r} is a checkpoint with {done:,} epochs done, more than the {epochs:,} you asked for.",
            do=f"Pass `epochs={done}` or more, or name another checkpoint.",
        )
    return history, best, stopped


def _moments_of(file: TensorFile, state: RunState) -> dict[str, Any]:
    """The optimizer's state without its tensors; its groups and options must be those of this optimizer."""
    groups, rest = file.description.get("groups"), file.description.get("plain")
    now = state.optimizer.state_dict()["param_groups"]
    if (
        not isinstance(groups, list)
        or len(groups) != len(now)
        or not all(
            isinstance(saved, dict)
            and saved.get("params") == fresh["params"]
            and all(name in saved and _alike(fresh[name], saved[name]) for name in fresh)
            for saved, fresh in zip(groups, now, strict=True)
        )
    ):
        raise file.damaged("its optimizer has other groups of parameters than this one")
    known = {str(index) for group in now for index in group["params"]}
    if not isinstance(rest, dict) or not rest.keys() <= known or not all(isinstance(v, dict) for v in rest.values()):
        raise file.damaged("part of its optimizer's state belongs to no parameter")
    return {"param_groups": groups, "state": {int(index): dict(values) for index, values in rest.items()}}


def _check_stored(file: TensorFile, state: RunState) -> None:
    """Make sure, before any tensor is read, that each has the shape that this run needs."""
    own = state.policy.state_dict()
    for prefix in ("policy.", "best."):
        check_tensors(file, own, _under(prefix, file.tensors), exactly=True)
    others = {
        name: stored for name, stored in file.tensors.items() if not name.startswith(("policy.", "best.", "optimizer."))
    }
    check_tensors(file, {"sums": state.sums, "random": torch.get_rng_state()}, others, exactly=True)
    parameters = [parameter for group in state.optimizer.param_groups for parameter in group["params"]]
    parts: dict[int, set[str]] = {}
    for name, stored in _under("optimizer.", file.tensors).items():
        index, _, part = name.partition(".")
        if not index.isdecimal() or int(index) >= len(parameters):
            raise file.damaged(f"'optimizer.{name}' belongs to no parameter")
        shape = parameters[int(index)].shape
        # a number per weight, or per row or column of weights; what has other dimensions is the optimizer's own business
        if len(stored.shape) == len(shape) and any(a not in (1, b) for a, b in zip(stored.shape, shape, strict=True)):
            raise file.damaged(f"'optimizer.{name}' has shape {tuple(stored.shape)}, its parameter {tuple(shape)}")
        parts.setdefault(int(index), set()).add(part)
    for group in state.optimizer.state_dict()["param_groups"]:
        if len({frozenset(parts[index]) for index in group["params"] if index in parts}) > 1:
            raise file.damaged("its optimizer knows more about some parameters than about others")


def _alike(fresh: object, saved: object) -> bool:
    """Whether one option matches another, allowing for changes by a schedule."""
    if isinstance(fresh, list | tuple):
        return isinstance(saved, list) and len(saved) == len(fresh) and all(map(_alike, fresh, saved))
    if isinstance(fresh, int | float) and not isinstance(fresh, bool):
        return _is_number(saved) and math.isfinite(saved)
    return fresh is None or type(saved) is type(fresh)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _under(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
