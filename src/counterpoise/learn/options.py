"""The options of learning: in groups as users give them, and flat and checked as training reads them."""

# ruff: noqa: RUF009 (`option` makes fields, and no shared defaults)

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, get_args

import torch
from torch import nn

from counterpoise.errors import LogError, OptionError
from counterpoise.intervals import check_level
from counterpoise.learn.checkpoints import Callback
from counterpoise.learn.kernels import Precision
from counterpoise.learn.norms import Norms, is_split
from counterpoise.learn.objectives import Objective, objective_of
from counterpoise.learn.optimizers import A_SCHEDULER, LazyAdam, Scheduler
from counterpoise.learn.policy import Policy
from counterpoise.learn.rows import Split
from counterpoise.learn.softmax import check_precision

if TYPE_CHECKING:
    from counterpoise.learn.source import Inspection, Source

# -- Devices -----------------------------------------------------------------------------------------------------------


def check_device(device: str) -> None:
    """Check that the device is a CPU or a GPU, and that there is a GPU if you ask for one."""
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError):
        kind = None
    if kind not in ("cpu", "cuda"):  # others lack the double precision that sums are kept in
        raise OptionError(f"device must be 'cpu' or 'cuda' (or 'cuda:1', …); found {device!r}.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"you asked for device {device!r}, but PyTorch finds no CUDA here.", do="Use `device='cpu'`.")


# -- The options of training, in groups --------------------------------------------------------------------------------


MANY = 2**20  # numbers of a parameter
LAMBDAS = tuple(round(0.6 + 0.05 * k, 2) for k in range(8))  # those tried for BanditNet, as published
# How long to train if nobody says how many epochs: STEPS at most, and no longer than LOOKS epochs, and those that make up WAIT
# steps, without a better one.
STEPS, LOOKS, WAIT = 8000, 10, 200
T = TypeVar("T")
Fallback = Literal["warn", "imitate", "raise"]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
OptionCheck = Callable[[str, object], Any]  # an option's name and value → its value as training reads it


def whole_number(name: str, value: object, least: int) -> int:
    """A whole number, from any library; 1.5 must be a mistake, so it is not rounded."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) < 2**63:
        raise OptionError(f"{name} must be a whole number of at least {least}; found {value!r}.")
    return int(value)


def number(name: str, value: object, says: str, allowed: Callable[[float], bool]) -> float:
    """A number, from any library, that is allowed; `says` tells which ones are."""
    if isinstance(value, bool) or not isinstance(value, Real) or not allowed(float(value)):
        raise OptionError(f"{name} must {says}; found {value!r}.")
    return float(value)


def choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        *most, last = map(repr, choices)
        raise OptionError(f"{name} must be {', '.join(most)} or {last}; found {value!r}.")
    return value


def maybe(check: OptionCheck) -> OptionCheck:
    """The same check, but None passes."""
    return lambda name, value: None if value is None else check(name, value)


def function(says: str, example: str) -> OptionCheck:
    """The user's own function, or None; `says` describes what it takes and returns."""

    def check(name: str, value: object) -> object:
        if not callable(value):
            kind, do = type(value).__name__, f"Pass one such as {example}."
            raise OptionError(f"{name} must be a function of {says}; found {kind}.", do=do)
        return value

    return maybe(check)


def passes(check: Callable[[Any], object]) -> OptionCheck:
    """A check that needs no name and leaves the value as it is."""

    def run(_: str, value: object) -> object:
        check(value)
        return value

    return run


def option(default: T, check: OptionCheck | None = None, *, fixed: bool = False) -> T:
    """A field with its check; a run whose option is `fixed` resumes from a checkpoint only with the same value."""
    return field(default=default, metadata={"check": check, "fixed": fixed})


def _lambdas(name: str, value: object) -> float | tuple[float, ...]:
    """BanditNet's λ: one, or several to choose from."""
    says = "be a number, several to choose from, or None for 0.6, 0.65, …, 0.95"
    check = partial(number, says=says, allowed=math.isfinite)
    if isinstance(value, str) or not isinstance(value, Iterable):
        return check(name, value)
    several = tuple(check(name, each) for each in value)
    if not several:
        raise OptionError(f"{name} must {says}; found an empty list.")
    return several


def _compile_options(name: str, value: object) -> Mapping[str, object] | None:
    """The options of `torch.compile`: none for True, None if nothing is to be compiled."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, bool):
        raise OptionError(
            f"{name} must be True, False or a mapping of torch.compile's options; found {type(value).__name__}.",
            do="Pass one such as `compile={'mode': 'max-autotune'}`.",
        )
    return {} if value else None


def _temperature(name: str, value: object) -> float | Literal["auto"]:
    if isinstance(value, str) and value == "auto":
        return "auto"
    return number(name, value, "be 0 or more, or 'auto'", lambda x: 0 <= x < math.inf)


def _file(name: str, value: object) -> str | PathLike[str]:
    if not isinstance(value, str | PathLike):
        raise OptionError(f"{name} must be the name of a file; found {type(value).__name__}.")
    return value


def _callbacks(name: str, value: object) -> tuple[Callback, ...]:
    several = () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)
    for callback in several:
        if not callable(callback):
            raise OptionError(
                f"`{name}=` must be functions of an EpochEnd; found {type(callback).__name__}.",
                do="Pass a list such as [lambda end: end.epoch.value > 0.9], which stops at the first epoch above 0.9.",
            )
    return several


_from_0 = partial(number, says="be 0 or more", allowed=lambda x: 0 <= x < math.inf)
_above_0 = partial(number, says="be above 0", allowed=lambda x: 0 < x < math.inf)
_above_0_or_none = maybe(partial(number, says="be above 0, or None", allowed=lambda x: 0 < x < math.inf))
_count = maybe(partial(whole_number, least=1))
_decay = partial(number, says="lie in [0, 1]", allowed=lambda x: 0 <= x <= 1)
_share = partial(number, says="lie in [0, 1), as it is a share of the rows", allowed=lambda x: 0 <= x < 1)


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Options that belong together; they are stored as given, and checked in `fit`.

    >>> Schedule(epochs=5, holdout=0.1)
    Schedule(epochs=5)
    """

    def changed(self) -> dict[str, object]:
        """The options that differ from their defaults."""
        values = {part: getattr(self, part.name) for part in fields(self)}
        return {part.name: value for part, value in values.items() if repr(value) != repr(part.default)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.changed().items())})"


@dataclass(frozen=True, kw_only=True, repr=False)
class Terms(OptionGroup):
    """What the objective is made of, beyond its name.

    Parameters
    ----------
    banditnet_lambda
        BanditNet's λ, or several to choose from; the one with the best SNIPS value on the training rows is kept. None tries 0.6,
        0.65, …, 0.95, as published for rewards from 0 to 1, scaled to the range of the rewards.
    norms
        ``"last_layer"`` or ``"all"``: whose gradient variance the baseline minimizes. By default, that of the last layer if it has a
        closed form (exact for linear policies, nearly free for others).
    decay
        How much of its past the baseline of ``"running_beta_ips"`` keeps from batch to batch.
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
class Optimization(OptionGroup):
    """How a step follows the gradient.

    Parameters
    ----------
    learning_rate
        That of Adam.
    optimizer
        A function that takes the parameters and returns an optimizer; by default, Adam with `learning_rate`.
    scheduler
        A function that takes the optimizer and returns one of PyTorch's learning rate schedulers, which steps after every epoch.
        `ReduceLROnPlateau` gets the held-out value, and needs ``mode="max"``.
    """

    learning_rate: float = option(0.01, _above_0, fixed=True)
    optimizer: Optimizer | None = option(
        None, function("parameters that gives an optimizer", "lambda parameters: torch.optim.SGD(parameters, lr=0.1)")
    )
    scheduler: Scheduler | None = option(None, function("the optimizer that gives a scheduler", A_SCHEDULER))


@dataclass(frozen=True, kw_only=True, repr=False)
class Schedule(OptionGroup):
    """How long training takes, by which rows an epoch is chosen, and what happens along the way.

    Parameters
    ----------
    batch_size
        Rows per step; a log with fewer rows is one batch. With None, every step uses all rows.
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
        Functions that are called after every epoch with an `EpochEnd`; training stops if one returns True. `LogTo` is one, for
        TensorBoard and MLflow.
    progress
        Whether to show a bar with value and gradient variance; by default, only on a terminal.
    """

    batch_size: int | None = option(1024, _count, fixed=True)
    epochs: int | None = option(None, _count)
    holdout: float = option(0.1, _share, fixed=True)
    patience: int | None = option(None, maybe(partial(whole_number, least=0)))
    checkpoint: str | PathLike[str] | None = option(None, maybe(_file))
    callbacks: Sequence[Callback] | None = option(None, _callbacks)
    progress: bool | None = option(None)


@dataclass(frozen=True, kw_only=True, repr=False)
class Hardware(OptionGroup):
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
    compile: bool | Mapping[str, object] | None = option(False, _compile_options)


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
    compile: bool | Mapping[str, object]


GROUPS: dict[str, type[OptionGroup]] = {
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
    folds: int = option(3, lambda name, value: 0 if value in (None, 0) else whole_number(name, value, least=2))
    fallback: Fallback = option("warn", partial(choice, choices=get_args(Fallback)))
    level: float = option(0.95, passes(check_level), fixed=True)
    seed: int = option(0, partial(whole_number, least=0), fixed=True)
    fold: int | None = option(None, fixed=True)  # whose rows are left alone
    # as they are once they are checked
    banditnet_lambda: float | tuple[float, ...] | None
    callbacks: tuple[Callback, ...]
    compile: Mapping[str, object] | None

    @property
    def trained(self) -> Objective:
        """The objective itself."""
        return objective_of(self.objective)

    @property
    def split(self) -> Split:
        """Which rows are held out."""
        return Split(self.holdout, self.seed, self.fold, self.folds)

    @property
    def settings(self) -> dict[str, object]:
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
        """BanditNet's λ, or those to choose from: by default, the published ones, scaled from [0, 1] to the range of the rewards."""
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
            made, own = self.optimizer(policy.parameters()), set(map(id, policy.parameters()))
            if any(id(parameter) not in own for group in made.param_groups for parameter in group["params"]):
                raise OptionError(
                    "the optimizer has parameters that are not the policy's: fit trains a copy of the policy that you pass.",
                    do="Make the optimizer from the parameters that the function is given.",
                )
            return made
        if self.negatives is not None:
            return LazyAdam(policy.parameters(), lr=self.learning_rate)
        # in one pass over the numbers: the usual one makes copies of every parameter on its way
        large = any(parameter.numel() >= MANY for parameter in policy.parameters())
        return torch.optim.Adam(policy.parameters(), lr=self.learning_rate, fused=True if large else None)


CHECKS: dict[str, OptionCheck] = {
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
    if options.trained.full_batch and options.batch_size is not None:
        raise OptionError(
            f"{options.objective} is not a sum over rows, so mini-batches would bias it.", do="Pass `batch_size=None`."
        )
    if options.fallback != "warn" and not options.folds:
        raise OptionError(
            f"`fallback={options.fallback!r}` needs folds, which evaluate the learned policy.",
            do="Pass `folds=3`, or leave it out.",
        )
    if options.temperature == "auto" and not options.holdout:
        raise OptionError(
            "a temperature is chosen on held-out rows, and with `holdout=0` there are none.",
            do="Pass a `holdout=`, or a number as `temperature=`.",
        )
    policy, n_actions = options.policy, options.n_actions
    if policy is not None and (isinstance(policy, nn.Module) or not callable(policy)):
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
                do="Leave out `n_actions=`.",
            )
    check_precision(options.precision, options.device)
    if options.negatives is None:
        return options
    if options.trained.needs_model_rewards:
        raise OptionError(
            f"objective {options.objective!r} needs the probabilities of all actions, so none can be sampled."
        )
    if options.norms == "all" or (isinstance(policy, Policy) and not is_split(policy)):
        raise OptionError(
            f"`negatives={options.negatives!r}` needs a policy with a linear last layer, whose gradient norms are those that β* takes.",
            do="Use TwoTower, MLP or LinearSoftmax, and leave out `norms=`.",
        )
    return options


def check_sizes(source: Source, log: Inspection, options: Options) -> None:
    """Check that the options make sense for this log."""
    modeled = None if source.memory is None else source.memory.model_rewards
    if modeled is not None and modeled.shape[1] != log.n_actions:
        raise OptionError(
            f"model_rewards must have a column for each of the {log.n_actions:,} actions; found {modeled.shape[1]:,}.",
            do="If some actions are never logged, pass `n_actions=`.",
        )
    if options.batch_size is None and len(source.starts) > 1:
        raise OptionError(
            f"the {log.rows:,} rows of these files do not fit into one batch.",
            do="Pass a `batch_size=`, or load the log into memory first.",
        )
    if source.minimize and (options.trained.needs_smoothing or options.banditnet_lambda is not None):
        what = "`banditnet_lambda=`" if options.banditnet_lambda is not None else f"objective {options.objective!r}"
        raise OptionError(
            f"{what} is about rewards of which more is better, and less of this one is.",
            do="Choose another objective; or leave out `minimize=`, and pass what is left of the most it can be, as `reward='10 - cost'`.",
        )
    if options.trained.needs_smoothing and log.rewards[0] < 0:
        raise LogError(
            f"{options.objective} is for rewards of 0 and more, and the log has one of {log.rewards[0]:g}.",
            do="If rewards have a known lowest value, add its size to all of them; or choose another objective.",
        )
    if options.holdout and not log.held_out:
        raise OptionError(
            f"with `holdout={options.holdout!r}`, none of the {log.rows:,} rows is held out.",
            do="Raise it, or pass `holdout=0`.",
        )
