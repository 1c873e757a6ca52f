"""The options of learning: in groups as users give them, and flat and checked as training reads them."""

# ruff: noqa: RUF009 (`option` makes fields, and no shared defaults)

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Integral, Real
from os import PathLike
from typing import Any, Literal, TypedDict, get_args

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from counterpoise.errors import Argument, Blank, LogError, OptionError
from counterpoise.intervals import check_level
from counterpoise.learn.callbacks import Callback, callbacks_of
from counterpoise.learn.kernels import Precision
from counterpoise.learn.norms import is_split
from counterpoise.learn.objectives import Objective, objective_of
from counterpoise.learn.policy import Policy
from counterpoise.learn.rows import Split
from counterpoise.learn.softmax import check_precision
from counterpoise.learn.source import Inspection, Source
from counterpoise.learn.steps import Norms

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


# -- Learning rates that change from epoch to epoch, by PyTorch's schedulers, and that a resumed run comes back to -----


Scheduler = Callable[[torch.optim.Optimizer], Any]
A_SCHEDULER = "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)"  # in errors


def scheduler_of(make: Scheduler | None, optimizer: torch.optim.Optimizer, holdout: float) -> Any:
    """The scheduler of an optimizer, if there is one."""
    made = None if make is None else make(optimizer)
    if made is not None and not (hasattr(made, "step") and hasattr(made, "state_dict")):
        raise OptionError(
            f"scheduler must be a function of the optimizer that gives a scheduler; it gave {type(made).__name__}.",
            do=f"Pass one such as {A_SCHEDULER}.",
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


# -- Devices: which ones training can use, and which one each process gets ---------------------------------------------


def check_device(device: str) -> None:
    """Check that the device is a CPU or a GPU, and that there is a GPU if you ask for one."""
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError):
        kind = None
    if kind not in ("cpu", "cuda"):  # others lack the double precision that sums are kept in
        raise OptionError(f"device must be 'cpu' or 'cuda' (or 'cuda:1', …); found {device!r}.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise OptionError(
            f"you asked for device {device!r}, but PyTorch finds no CUDA here.",
            do=["Use ", Argument("device", "cpu"), "."],
        )


def join(device: str) -> tuple[int, int, torch.device]:
    """Join the group that torchrun announces; returns this process's rank, how many processes there are, and its device."""
    announced = int(os.environ.get("WORLD_SIZE", "1"))
    if announced > 1 and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 0, 1, torch.device(device)
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if device == "cuda":
        local, gpus = int(os.environ.get("LOCAL_RANK", rank)), torch.cuda.device_count()
        if local >= gpus:
            raise OptionError(f"process {local} has no GPU to itself.", do=f"Start {gpus} processes.")
        torch.cuda.set_device(local)
        return rank, processes, torch.device("cuda", local)
    return rank, processes, torch.device(device)


def shared(module: nn.Module, processes: int, device: torch.device) -> nn.Module:
    """A module whose gradients are averaged over the processes."""
    if processes == 1:
        return module
    ids = [device.index] if device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(module, device_ids=ids)


def wait(processes: int) -> None:
    """Wait until all processes get here, so that a file written by one of them is there for all."""
    if processes > 1:
        torch.distributed.barrier()


# -- `torch.compile` for the layers below the last one, for as long as a policy trains ---------------------------------


@contextmanager
def compiled(policy: Policy, options: Mapping[str, Any] | None, norms: Norms) -> Iterator[None]:
    """Run a policy's body compiled, with these options of `torch.compile`; afterwards it is as it was.

    The last layer's gradient is written out by hand (see `steps`), so that the body is all there is to compile. Where we must watch
    single layers as they run, there is nothing that could be compiled around them.
    """
    if options is None:
        yield
        return
    if norms != "last_layer" or not is_split(policy):
        raise OptionError(
            [
                Argument("compile"),
                f" needs a policy with a body and a linear last layer, and {Argument('norms', 'last_layer')}; this is a "
                f"{type(policy).__name__} with {Argument('norms', norms)}.",
            ],
            do="Make yours a subclass of Policy that has body and scores, or compile parts of your module yourself.",
        )
    try:
        faster: Any = torch.compile(policy.body.forward, **options)
    except TypeError as error:
        raise OptionError(f"torch.compile does not take these options: {error}.") from error
    policy.body.forward = faster  # not body.compile(), which leaves an nn.Sequential as it is
    try:
        yield
    finally:
        del policy.body.forward


# -- The options of training, in groups --------------------------------------------------------------------------------


MANY = 2**20  # numbers of a parameter
LAMBDAS = tuple(round(0.6 + 0.05 * k, 2) for k in range(8))  # those tried for BanditNet, as published
# How long training takes if nobody says for how many epochs: STEPS at most, and no longer than LOOKS epochs, and those that make up WAIT
# steps, without a better one.
STEPS, LOOKS, WAIT = 8000, 10, 200
Fallback = Literal["warn", "imitate", "raise"]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Check = Callable[[str, Any], Any]  # an option's name and value → its value as training reads it


def whole(name: str, value: Any, least: int) -> int:
    """A whole number, from any library; 1.5 is not rounded, because it must be a mistake."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) < 2**63:
        raise OptionError(f"{name} must be a whole number of at least {least}; found {value!r}.")
    return int(value)


def number(name: str, value: Any, says: str, allowed: Callable[[float], bool]) -> float:
    """A number, from any library, that is allowed; `says` tells which ones are."""
    if isinstance(value, bool) or not isinstance(value, Real) or not allowed(float(value)):
        raise OptionError(f"{name} must {says}; found {value!r}.")
    return float(value)


def choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        *most, last = map(repr, choices)
        raise OptionError(f"{name} must be {', '.join(most)} or {last}; found {value!r}.")
    return value


def maybe(check: Check) -> Check:
    """The same check, which lets None pass."""
    return lambda name, value: None if value is None else check(name, value)


def function(says: str, example: str) -> Check:
    """A function of the user's own, or None; `says` tells of what it is one, and what it gives."""

    def check(name: str, value: Any) -> Any:
        if not callable(value):
            kind, do = type(value).__name__, f"Pass one such as {example}."
            raise OptionError(f"{name} must be a function of {says}; found {kind}.", do=do)
        return value

    return maybe(check)


def passes(check: Callable[[Any], object]) -> Check:
    """A check that needs no name and leaves the value as it is."""

    def run(_: str, value: Any) -> Any:
        check(value)
        return value

    return run


def option(default: Any, check: Check | None = None, *, fixed: bool = False) -> Any:
    """A field with its check; a run whose option is `fixed` resumes from a checkpoint only with the same value."""
    return field(default=default, metadata={"check": check, "fixed": fixed})


def _lambdas(name: str, value: Any) -> float | tuple[float, ...]:
    """BanditNet's λ: one, or several to choose from."""
    says = "be a number, several to choose from, or None for 0.6, 0.65, …, 0.95"
    check = partial(number, says=says, allowed=math.isfinite)
    if isinstance(value, str) or not isinstance(value, Iterable):
        return check(name, value)
    several = tuple(check(name, each) for each in value)
    return several or check(name, Blank("an empty list"))


def _compile_options(name: str, value: Any) -> Mapping[str, Any] | None:
    """The options of `torch.compile`: none for True, None if nothing is to be compiled."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, bool):
        raise OptionError(
            f"{name} must be True, False or a mapping of torch.compile's options; found {type(value).__name__}.",
            do=["Pass one such as ", Argument("compile", {"mode": "max-autotune"}), "."],
        )
    return {} if value else None


def _temperature(name: str, value: Any) -> float | Literal["auto"]:
    if isinstance(value, str) and value == "auto":
        return "auto"
    return number(name, value, "be 0 or more, or 'auto'", lambda x: 0 <= x < math.inf)


def _file(name: str, value: Any) -> str | PathLike[str]:
    if not isinstance(value, str | PathLike):
        raise OptionError(f"{name} must be the name of a file; found {type(value).__name__}.")
    return value


_from_0 = partial(number, says="be 0 or more", allowed=lambda x: 0 <= x < math.inf)
_above_0 = partial(number, says="be above 0", allowed=lambda x: 0 < x < math.inf)
_above_0_or_none = maybe(partial(number, says="be above 0, or None", allowed=lambda x: 0 < x < math.inf))
_count = maybe(partial(whole, least=1))
_decay = partial(number, says="lie in [0, 1]", allowed=lambda x: 0 <= x <= 1)
_share = partial(number, says="lie in [0, 1), as it is a share of the rows", allowed=lambda x: 0 <= x < 1)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Options that belong together; they are stored as given, and checked in `fit`.

    >>> Schedule(epochs=5, holdout=0.1)
    Schedule(epochs=5)
    """

    def changed(self) -> dict[str, Any]:
        """The options that do not read as the usual ones do."""
        values = {part: getattr(self, part.name) for part in fields(self)}
        return {part.name: value for part, value in values.items() if repr(value) != repr(part.default)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.changed().items())})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Terms(Group):
    """What the objective is made of, beyond its name.

    Parameters
    ----------
    banditnet_lambda
        BanditNet's λ, or several to choose from; the one with the best SNIPS value on the training rows is kept. None tries
        0.6, 0.65, …, 0.95, as published for rewards from 0 to 1, brought to the range that the rewards have.
    norms
        ``"last_layer"`` or ``"all"``: whose gradient variance the baseline minimizes. By default, that of the last layer if it has a
        closed form (exact for linear policies, nearly free for others).
    decay
        How much of what it knows the baseline of ``"running_beta_ips"`` keeps from batch to batch.
    imitation
        κ: this much of the mean of log π(a|x) on the logged rows is added to the objective, which keeps the policy near what was logged.
    smoothing
        λ of the objective ``"log_smoothing"``; by default, 1/√n over the usual size of a reward.
    clip
        The largest weight that a row with a reward above the baseline counts with.
    """

    banditnet_lambda: float | Sequence[float] | None = option(None, maybe(_lambdas))
    norms: Norms | None = option(None, maybe(partial(choice, choices=get_args(Norms))))
    decay: float = option(0.9, _decay, fixed=True)
    imitation: float = option(0.0, _from_0, fixed=True)
    smoothing: float | None = option(None, _above_0_or_none, fixed=True)
    clip: float | None = option(None, _above_0_or_none, fixed=True)


@dataclass(frozen=True, kw_only=True, repr=False)
class Optimization(Group):
    """How a step follows the gradient.

    Parameters
    ----------
    learning_rate
        That of Adam.
    optimizer
        A function that takes the parameters and returns an optimizer; by default, Adam with `learning_rate`.
    scheduler
        A function that takes the optimizer and returns one of PyTorch's learning rate schedulers, which steps after every epoch.
        `ReduceLROnPlateau` is told the held-out value, and needs ``mode="max"``.
    """

    learning_rate: float = option(0.01, _above_0, fixed=True)
    optimizer: Optimizer | None = option(
        None, function("parameters that gives an optimizer", "lambda parameters: torch.optim.SGD(parameters, lr=0.1)")
    )
    scheduler: Scheduler | None = option(None, function("the optimizer that gives a scheduler", A_SCHEDULER))


@dataclass(frozen=True, kw_only=True, repr=False)
class Schedule(Group):
    """How long training takes, by which rows an epoch is chosen, and what happens along the way.

    Parameters
    ----------
    batch_size
        Rows of a step; a log with fewer rows is one batch. With None, every step is over all rows.
    epochs
        How often to go through the log; by default, until `patience` epochs in a row were no better on the held-out rows (as many as make
        up 200 steps, and at least 10), and for 8,000 steps at most.
    holdout
        The share of the rows that is kept from training. The epoch that is best on those rows is kept (`Epoch.score`), never the one
        with the largest training objective. With 0, the last epoch is kept.
    patience
        Stop after this many epochs without a better held-out value.
    checkpoint
        A file written after every epoch. If it already exists, `fit` resumes from it and ends with the same result, or trains for more
        epochs if you ask for more. A checkpoint made with other options (including the optimizer and the policy's layers) or from
        another log is refused. If λ is tuned, this file has the start, and each λ has its own file next to it
        (``run.lambda-0.6.safetensors``); so has each fold (``run.fold-1.safetensors``).
    callbacks
        Functions that are called after every epoch with an `EpochEnd`; training stops where one returns True. `LogTo` is one, for
        TensorBoard and MLflow.
    progress
        Whether to show a bar with value and gradient variance; by default, only on a terminal.
    """

    batch_size: int | None = option(1024, _count, fixed=True)
    epochs: int | None = option(None, _count)
    holdout: float = option(0.1, _share, fixed=True)
    patience: int | None = option(None, maybe(partial(whole, least=0)))
    checkpoint: str | PathLike[str] | None = option(None, maybe(_file))
    callbacks: Sequence[Callback] | None = option(None, lambda _, value: callbacks_of(value))
    progress: bool | None = option(None)


@dataclass(frozen=True, kw_only=True, repr=False)
class Hardware(Group):
    """Where training runs, and how exactly it calculates.

    Parameters
    ----------
    device
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``, ….
    precision
        That of training: ``"float32"``; ``"tf32"``, float32 with products of 10 bits after the point (on GPUs only); ``"bfloat16"``, in
        which all layers before the last run in bfloat16 (PyTorch's autocast). Sums, parameters and values on held-out rows are float32 in
        any case. By default, float32 on a CPU and TF32 on a GPU.
    negatives
        How many items to draw at each step, which then stand for all of them: a sampled softmax, with a bias that falls as 1/negatives;
        for catalogs of 10⁷ items, and of 10⁶ on a CPU. By default, the softmax is over all items, and exact.
    compile
        Whether to train with `torch.compile`; a mapping has its options. It compiles the layers below a linear last layer.
    """

    device: str = option("cpu", passes(check_device))
    precision: Precision | None = option(None)
    negatives: int | None = option(None, _count, fixed=True)
    compile: bool | Mapping[str, Any] | None = option(False, _compile_options)


class ShortOptions(TypedDict, total=False):
    """The options of all groups, each by its own name: ``PolicyLearner(epochs=5)`` is short for ``schedule=Schedule(epochs=5)``."""

    banditnet_lambda: float | Sequence[float] | None
    norms: Norms | None
    decay: float
    imitation: float
    smoothing: float | None
    clip: float | None
    learning_rate: float
    optimizer: Optimizer | None
    scheduler: Scheduler | None
    batch_size: int | None
    epochs: int | None
    holdout: float
    patience: int | None
    checkpoint: str | PathLike[str] | None
    callbacks: Sequence[Callback] | None
    progress: bool | None
    device: str
    precision: Precision | None
    negatives: int | None
    compile: bool | Mapping[str, Any]


GROUPS: dict[str, type[Group]] = {
    "terms": Terms,
    "optimization": Optimization,
    "schedule": Schedule,
    "hardware": Hardware,
}
GROUP_OF = {part.name: group for group, record in GROUPS.items() for part in fields(record)}


# -- The same options, flat and checked, as training reads them --------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False)
class Options(Terms, Optimization, Schedule, Hardware):
    """All options of a learner side by side, those of its groups included, each with the right type and in its range."""

    objective: str = option("beta_ips", passes(objective_of), fixed=True)
    policy: Policy | Callable[..., Policy] | None = option(None)
    n_actions: int | None = option(None, _count)
    temperature: float | Literal["auto"] = option(1.0, _temperature)
    folds: int = option(3, lambda name, value: 0 if value in (None, 0) else whole(name, value, least=2))
    fallback: Fallback = option("warn", partial(choice, choices=get_args(Fallback)))
    level: float = option(0.95, passes(check_level), fixed=True)
    seed: int = option(0, partial(whole, least=0), fixed=True)
    fold: int | None = option(None, fixed=True)  # whose rows are left alone
    # as they are once they are checked
    banditnet_lambda: float | tuple[float, ...] | None
    callbacks: tuple[Callback, ...]
    compile: Mapping[str, Any] | None

    @property
    def trained(self) -> Objective:
        """The objective itself."""
        return objective_of(self.objective)

    @property
    def split(self) -> Split:
        """Which rows are held out."""
        return Split(self.holdout, self.seed, self.fold, self.folds)

    @property
    def settings(self) -> dict[str, Any]:
        """The options that a run depends on: it resumes from a checkpoint only if they are the same."""
        by_steps = self.epochs is None and self.patience is None
        return {part.name: getattr(self, part.name) for part in fields(self) if part.metadata.get("fixed")} | {
            "patience": "by steps" if by_steps else self.patience,
            "folds": 0 if self.fold is None else self.folds,
            "precision of training": self.precision,
        }

    def objective_at(self, banditnet_lambda: float, log: Inspection) -> Objective:
        """The objective with everything filled in, on this log."""
        smoothing = self.smoothing or 1 / ((log.reward_size or 1.0) * math.sqrt(log.rows))
        return replace(self.trained.at(banditnet_lambda, smoothing), imitation=self.imitation, clip=self.clip)

    def lambdas(self, log: Inspection) -> float | tuple[float, ...]:
        """BanditNet's λ, or those to choose from: by default, the published ones, brought from [0, 1] to the range of the rewards."""
        if self.banditnet_lambda is not None:
            return self.banditnet_lambda
        low, high = log.rewards
        return tuple(low + published * (high - low) for published in LAMBDAS)

    def limits(self, steps: int) -> tuple[int, int | None]:
        """For how many epochs of so many steps to train at most, and after how many without a better one to stop."""
        if self.epochs is not None:
            return self.epochs, self.patience
        patience = max(LOOKS, math.ceil(WAIT / steps)) if self.patience is None else self.patience
        return math.ceil(STEPS / steps), patience if self.holdout else None

    def optimizer_of(self, policy: Policy) -> torch.optim.Optimizer:
        """The optimizer, which steps along the gradients: the user's own, or Adam."""
        if self.optimizer is not None:
            made = self.optimizer(policy.parameters())
            _check_parameters(made, policy)
            return made
        if self.negatives is not None:
            return LazyAdam(policy.parameters(), lr=self.learning_rate)
        # in one pass over the numbers: the usual one makes copies of every parameter on its way
        large = any(parameter.numel() >= MANY for parameter in policy.parameters())
        return torch.optim.Adam(policy.parameters(), lr=self.learning_rate, fused=True if large else None)


CHECKS: dict[str, Check] = {
    part.name: check
    for record in (*GROUPS.values(), Options)
    for part in fields(record)
    if (check := part.metadata.get("check")) is not None
}


def options_of(params: Mapping[str, Any]) -> Options:
    """The options of a learner with these parameters, if they make sense whatever the log."""
    values = dict(params)
    for group, record in GROUPS.items():
        held = record() if params.get(group) is None else params[group]
        if not isinstance(held, record):
            raise OptionError(
                f"{group} must be a {record.__name__}; found {type(held).__name__}.",
                do=f"Pass {group}={record.__name__}(…), or its options by their own names.",
            )
        values |= vars(held)
    names = [part.name for part in fields(Options) if part.name in values]
    options = Options(**{name: CHECKS[name](name, values[name]) if name in CHECKS else values[name] for name in names})
    _check_together(options)
    return options


def _check_together(options: Options) -> None:
    """Check that the options do not contradict each other."""
    if options.trained.full_batch and options.batch_size is not None:
        raise OptionError(
            f"{options.objective} is not a sum over rows, so mini-batches would bias it.",
            do=["Pass ", Argument("batch_size", None), "."],
        )
    if options.fallback != "warn" and not options.folds:
        raise OptionError(
            [Argument("fallback", options.fallback), " needs folds, which judge what was learned."],
            do=["Pass ", Argument("folds", 3), ", or leave it out."],
        )
    if options.temperature == "auto" and not options.holdout:
        raise OptionError(
            ["a temperature is chosen on held-out rows, and with ", Argument("holdout", 0), " there are none."],
            do=["Pass a ", Argument("holdout"), ", or a number as ", Argument("temperature"), "."],
        )
    _check_policy(options.policy, options.n_actions)
    check_precision(options.precision, options.device)
    if options.negatives is not None:
        _check_negatives(options)


def _check_policy(policy: Any, n_actions: int | None) -> None:
    """Check that this is one of our policies, a module wrapped in one, or a function that makes one."""
    if policy is None or (callable(policy) and not isinstance(policy, nn.Module)):
        return
    if not isinstance(policy, Policy):
        raise OptionError(
            f"policy must be a Policy; found {type(policy).__name__}.",
            do="Wrap a module that gives a logit per action in ModulePolicy(module, n_actions=…).",
        )
    if not any(parameter.requires_grad for parameter in policy.parameters()):
        raise OptionError(
            f"{type(policy).__name__} has no parameters that gradients could train.",
            do="Pass LinearSoftmax, MLP, TwoTower, or a module in a ModulePolicy; learn_policy grows forests and fits other models.",
        )
    if n_actions not in (None, policy.n_actions):
        raise OptionError(
            f"the policy has {policy.n_actions} actions, but n_actions is {n_actions}.",
            do=["Leave out ", Argument("n_actions"), "."],
        )


def _check_parameters(optimizer: torch.optim.Optimizer, policy: Policy) -> None:
    own = set(map(id, policy.parameters()))
    if any(id(parameter) not in own for group in optimizer.param_groups for parameter in group["params"]):
        raise OptionError(
            "the optimizer has parameters that are not the policy's: fit trains a copy of the policy that you pass.",
            do="Make the optimizer from the parameters that the function is given.",
        )


def _check_negatives(options: Options) -> None:
    """Check that a sample can stand for all items."""
    if options.trained.needs_model_rewards:
        raise OptionError(
            f"objective {options.objective!r} needs the probabilities of all actions, so none can be sampled."
        )
    if options.norms == "all" or (isinstance(options.policy, Policy) and not is_split(options.policy)):
        raise OptionError(
            [
                Argument("negatives", options.negatives),
                " needs a policy with a linear last layer, whose gradient norms are those that β* takes.",
            ],
            do=["Use TwoTower, MLP or LinearSoftmax, and leave out ", Argument("norms"), "."],
        )


def check_sizes(source: Source, log: Inspection, options: Options) -> None:
    """Check that the options make sense for this log."""
    modeled = None if source.memory is None else source.memory.model_rewards
    if modeled is not None and modeled.shape[1] != log.n_actions:
        raise OptionError(
            f"model_rewards must have a column for each of the {log.n_actions:,} actions; found {modeled.shape[1]:,}.",
            do=["If some actions are never logged, pass ", Argument("n_actions"), "."],
        )
    if options.batch_size is None and len(source.starts) > 1:
        raise OptionError(
            f"the {log.rows:,} rows of these files do not fit into one batch.",
            do=["Pass a ", Argument("batch_size"), ", or load the log into memory first."],
        )
    if options.trained.needs_smoothing and log.rewards[0] < 0:
        raise LogError(
            f"{options.objective} is for rewards of 0 and more, and the log has one of {log.rewards[0]:g}.",
            do="If rewards have a known lowest value, add its size to all of them; or choose another objective.",
        )
    if options.holdout and not log.held_out:
        raise OptionError(
            ["with ", Argument("holdout", options.holdout), f", none of the {log.rows:,} rows is held out."],
            do=["Raise it, or pass ", Argument("holdout", 0), "."],
        )
