"""The options of training, which are checked once, before anything is trained."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral, Real
from os import PathLike
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from counterpoise.errors import Argument, LogError, OptionError
from counterpoise.intervals import check_level
from counterpoise.learn.batches import Inspection, Split
from counterpoise.learn.callbacks import Callback, checked_callbacks
from counterpoise.learn.items.arithmetic import check_precision
from counterpoise.learn.items.kernels import Precision
from counterpoise.learn.norms import is_split
from counterpoise.learn.objectives import Objective, objective_of
from counterpoise.learn.policy import Policy
from counterpoise.learn.source import Source
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
        found = super().step(closure)
        for parameter, gradient in apart:
            parameter.grad = gradient
        return found

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


def checked_compile(given: Any) -> Mapping[str, Any] | None:
    """The options of `torch.compile`: none for True, None if nothing is to be compiled."""
    if isinstance(given, Mapping):
        return given
    if not isinstance(given, bool):
        raise OptionError(
            f"compile must be True, False or a mapping of torch.compile's options; found {type(given).__name__}.",
            do=["Pass one such as ", Argument("compile", {"mode": "max-autotune"}), "."],
        )
    return {} if given else None


# -- The options of training, which are checked once, before anything is trained ---------------------------------------


MANY = 2**20  # numbers of a parameter
LAMBDAS = tuple(round(0.6 + 0.05 * k, 2) for k in range(8))  # those tried for BanditNet, as published
# How long training takes if nobody says for how many epochs: STEPS at most, and no longer than LOOKS epochs, and those that make up WAIT
# steps, without a better one.
STEPS, LOOKS, WAIT = 8000, 10, 200
Fallback = Literal["warn", "imitate", "raise"]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Options:
    """The parameters of a `PolicyLearner`, each with the right type and in its range."""

    objective: str
    policy: Policy | Callable[..., Policy] | None
    n_actions: int | None
    learning_rate: float
    batch_size: int | None
    epochs: int | None
    banditnet_lambda: float | tuple[float, ...] | None
    norms: Norms | None
    decay: float
    holdout: float
    patience: int | None
    folds: int
    fallback: Fallback
    imitation: float
    smoothing: float | None
    clip: float | None
    temperature: float | Literal["auto"]
    level: float
    seed: int
    device: str
    precision: Precision | None
    negatives: int | None
    optimizer: Optimizer | None
    callbacks: tuple[Callback, ...]
    scheduler: Scheduler | None
    compile: Mapping[str, Any] | None
    checkpoint: str | PathLike[str] | None
    progress: bool | None
    fold: int | None = None  # whose rows are left alone

    @property
    def trained(self) -> Objective:
        """The objective itself."""
        return objective_of(self.objective)

    @property
    def split(self) -> Split:
        """Which rows are held out."""
        return Split(self.holdout, self.seed, self.fold, self.folds)

    def objective_at(self, banditnet_lambda: float, found: Inspection) -> Objective:
        """The objective with everything filled in, on this log."""
        smoothing = self.smoothing or 1 / ((found.reward_size or 1.0) * math.sqrt(found.rows))
        return replace(self.trained.at(banditnet_lambda, smoothing), imitation=self.imitation, clip=self.clip)

    def lambdas(self, found: Inspection) -> float | tuple[float, ...]:
        """BanditNet's λ, or those to choose from: by default, the published ones, brought from [0, 1] to the range of the rewards."""
        if self.banditnet_lambda is not None:
            return self.banditnet_lambda
        low, high = found.rewards
        return tuple(low + one * (high - low) for one in LAMBDAS)

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


def checked(given: Mapping[str, Any]) -> Options:
    """The parameters a user gave, if they make sense whatever the log."""
    objective, batch_size, norms = objective_of(given["objective"]), given["batch_size"], given["norms"]
    if objective.full_batch and batch_size is not None:
        raise OptionError(
            f"{given['objective']} is not a sum over rows, so mini-batches would bias it.",
            do=["Pass ", Argument("batch_size", None), "."],
        )
    if norms not in (None, "last_layer", "all"):
        raise OptionError(f"norms must be 'last_layer' or 'all'; found {norms!r}.")
    if given["optimizer"] is not None and not callable(given["optimizer"]):
        raise OptionError(
            f"optimizer must be a function of parameters that gives an optimizer; found {type(given['optimizer']).__name__}.",
            do="Pass one such as lambda parameters: torch.optim.SGD(parameters, lr=0.1).",
        )
    if given["checkpoint"] is not None and not isinstance(given["checkpoint"], str | PathLike):
        raise OptionError(f"checkpoint must be the name of a file; found {type(given['checkpoint']).__name__}.")
    if not isinstance(given["fallback"], str) or given["fallback"] not in get_args(Fallback):
        raise OptionError(f"fallback must be 'warn', 'imitate' or 'raise'; found {given['fallback']!r}.")
    if given["fallback"] != "warn" and given["folds"] is None:
        raise OptionError(
            [Argument("fallback", given["fallback"]), " needs folds, which judge what was learned."],
            do=["Pass ", Argument("folds", 3), ", or leave it out."],
        )
    check_policy(given["policy"], given["n_actions"])
    check_level(given["level"])
    check_device(given["device"])
    check_precision(given["precision"], given["device"])
    check_negatives(given, objective)
    return Options(
        **dict(given)
        | {
            "n_actions": maybe_whole("n_actions", given["n_actions"], least=1),
            "batch_size": maybe_whole("batch_size", batch_size, least=1),
            "patience": maybe_whole("patience", given["patience"], least=0),
            "negatives": maybe_whole("negatives", given["negatives"], least=1),
            "epochs": maybe_whole("epochs", given["epochs"], least=1),
            "folds": 0 if given["folds"] in (None, 0) else whole("folds", given["folds"], least=2),
            "imitation": number("imitation", given["imitation"], "be 0 or more", lambda x: 0 <= x < math.inf),
            "smoothing": positive("smoothing", given["smoothing"]),
            "clip": positive("clip", given["clip"]),
            "temperature": _temperature(given["temperature"], given["holdout"]),
            "seed": whole("seed", given["seed"], least=0),
            "learning_rate": number("learning_rate", given["learning_rate"], "be above 0", lambda x: 0 < x < math.inf),
            "decay": number("decay", given["decay"], "lie in [0, 1]", lambda x: 0 <= x <= 1),
            "holdout": number(
                "holdout", given["holdout"], "lie in [0, 1), as it is a share of the rows", lambda x: 0 <= x < 1
            ),
            "banditnet_lambda": lambdas(given["banditnet_lambda"]),
            "callbacks": checked_callbacks(given["callbacks"]),
            "scheduler": checked_scheduler(given["scheduler"]),
            "compile": checked_compile(given["compile"]),
        }
    )


def whole(name: str, value: Any, least: int) -> int:
    """A whole number, from any library; 1.5 is not rounded, because it must be a mistake."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) < 2**63:
        raise OptionError(f"{name} must be a whole number of at least {least}; found {value!r}.")
    return int(value)


def maybe_whole(name: str, value: Any, least: int) -> int | None:
    """A whole number, or None."""
    return None if value is None else whole(name, value, least)


def number(name: str, value: Any, says: str, allowed: Callable[[float], bool]) -> float:
    """A number, from any library, that is allowed; `says` tells which ones are."""
    if isinstance(value, bool) or not isinstance(value, Real) or not allowed(float(value)):
        raise OptionError(f"{name} must {says}; found {value!r}.")
    return float(value)


def positive(name: str, value: Any) -> float | None:
    """A number above 0, or None."""
    return None if value is None else number(name, value, "be above 0, or None", lambda x: 0 < x < math.inf)


def _temperature(given: Any, holdout: Any) -> float | Literal["auto"]:
    """The temperature to serve with: a number, or to be chosen on the held-out rows."""
    if not isinstance(given, str) or given != "auto":
        return number("temperature", given, "be 0 or more, or 'auto'", lambda x: 0 <= x < math.inf)
    if holdout == 0:
        raise OptionError(
            ["a temperature is chosen on held-out rows, and with ", Argument("holdout", 0), " there are none."],
            do=["Pass a ", Argument("holdout"), ", or a number as ", Argument("temperature"), "."],
        )
    return "auto"


def lambdas(given: Any) -> float | tuple[float, ...] | None:
    """BanditNet's λ: one, or several to choose from; None means those of the paper."""
    if given is None:
        return None
    says = "be a number, several to choose from, or None for 0.6, 0.65, …, 0.95"
    if isinstance(given, Real):
        return number("banditnet_lambda", given, says, math.isfinite)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise OptionError(f"banditnet_lambda must {says}; found {given!r}.")
    several = tuple(number("banditnet_lambda", one, says, math.isfinite) for one in given)
    if not several:
        raise OptionError(f"banditnet_lambda must {says}; found an empty list.")
    return several


def check_policy(policy: Any, n_actions: Any) -> None:
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


def check_negatives(given: Mapping[str, Any], objective: Objective) -> None:
    """Check that a sample can stand for all items."""
    if given["negatives"] is None:
        return
    sampled = Argument("negatives", given["negatives"])
    if objective.needs_model_rewards:
        raise OptionError(
            f"objective {given['objective']!r} needs the probabilities of all actions, so none can be sampled."
        )
    if given["norms"] == "all" or (isinstance(given["policy"], Policy) and not is_split(given["policy"])):
        raise OptionError(
            [sampled, " needs a policy with a linear last layer, whose gradient norms are those that β* takes."],
            do=["Use TwoTower, MLP or LinearSoftmax, and leave out ", Argument("norms"), "."],
        )


def check_sizes(source: Source, found: Inspection, options: Options) -> None:
    """Check that the options make sense for this log."""
    modeled = None if source.memory is None else source.memory.model_rewards
    if modeled is not None and modeled.shape[1] != found.n_actions:
        raise OptionError(
            f"model_rewards must have a column for each of the {found.n_actions:,} actions; found {modeled.shape[1]:,}.",
            do=["If some actions are never logged, pass ", Argument("n_actions"), "."],
        )
    if options.batch_size is None and len(source.starts) > 1:
        raise OptionError(
            f"the {found.rows:,} rows of these files do not fit into one batch.",
            do=["Pass a ", Argument("batch_size"), ", or load the log into memory first."],
        )
    if options.trained.needs_smoothing and found.rewards[0] < 0:
        raise LogError(
            f"{options.objective} is for rewards of 0 and more, and the log has one of {found.rewards[0]:g}.",
            do="If rewards have a known lowest value, add its size to all of them; or choose another objective.",
        )
    if options.holdout and not found.held_out:
        raise OptionError(
            ["with ", Argument("holdout", options.holdout), f", none of the {found.rows:,} rows is held out."],
            do=["Raise it, or pass ", Argument("holdout", 0), "."],
        )
