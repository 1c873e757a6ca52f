"""Training: one loop for every learner, driven by a schedule of epochs or of steps."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from counterpoise.errors import OptionError, TrainingError, verbatim
from counterpoise.estimators.weighted import snips
from counterpoise.learn.checkpoints import Epoch, EpochEnd, RunState, restore_checkpoint, save_checkpoint, settings_of
from counterpoise.learn.criterion import held_out_actions, moments_of
from counterpoise.learn.norms import Norms, default_norms, is_split
from counterpoise.learn.objectives import Objective, Rewards, RunningBaseline
from counterpoise.learn.optimizers import advance, scheduler_of
from counterpoise.learn.options import Options
from counterpoise.learn.policy import Policy
from counterpoise.learn.rows import Batch, batches
from counterpoise.learn.softmax import USUAL, Arithmetic
from counterpoise.learn.source import Inspection, Source, without_fold
from counterpoise.learn.steps import ALONE, LoggedActions, Machine, Step
from counterpoise.readers.progress import progress_line
from counterpoise.threads import threads

IMITATION = "imitation"  # the objective whose epochs are compared by the likelihood of the logged actions
# A step is dozens of operations, each of which waits for all of its threads. Of steps of 2^24 to 2^28 multiplications, one thread made
# 3 to 60 times as many as two did on a busy machine, and from 2^32 on no fewer (512 and 1,024 units, batches of 256 to 4,096).
WAITS = 2**8
LOOK = 50  # batches between looks for NaN: each look waits for the GPU
CheckpointPath = str | PathLike[str] | None

# -- The loop, and what it is given ------------------------------------------------------------------------------------


class Course:
    """How long a run goes on, and what happens between its steps."""

    optimizer: torch.optim.Optimizer
    batch_rows: int
    measures = False  # whether steps measure the variance of their gradients

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        raise NotImplementedError

    @property
    def is_over(self) -> bool:
        """Whether the last step was the last."""
        raise NotImplementedError

    def begin_step(self) -> None:
        """Before a step."""

    def end_step(self, step: Step) -> None:
        """After it."""

    def end_epoch(self) -> None:
        """After all batches of an epoch."""


@dataclass
class Training:
    """One run: a policy, what it is trained to maximize, and the rows as it sees them, for as long as its course goes on.

    `banditnet_lambda` is the λ of the objectives that have one, and `decay` says how fast past batches fade from the running baseline.
    """

    policy: Policy
    objective: Objective
    logged: LoggedActions
    device: torch.device = ALONE.device
    arithmetic: Arithmetic = USUAL
    banditnet_lambda: float = 0.0
    decay: float = 0.9

    def __post_init__(self) -> None:
        self.past = self.logged.baselines(self.decay)

    def run(self, batches_of: Callable[[int], Iterable[Batch]], course: Course) -> None:
        """Train on the batches of one epoch after another until the course is over."""
        self.policy.train()
        with self.threads(course.batch_rows):
            while not course.is_over:
                for batch in batches_of(course.epoch):
                    course.begin_step()
                    course.end_step(self.step(batch, course.optimizer, measure=course.measures))
                    if course.is_over:
                        break
                course.end_epoch()
        self.policy.eval()

    def step(self, batch: Batch, optimizer: torch.optim.Optimizer, *, measure: bool = True) -> Step:
        """One step along the gradient of a batch."""
        optimizer.zero_grad(set_to_none=True)
        baseline = self.objective.baseline(self.past, self.banditnet_lambda)
        with self.arithmetic.products(self.device):
            step = self.logged.backward(batch, baseline, self.objective, measure)
        self.past.update(step.sums)
        optimizer.step()
        return step

    def threads(self, rows: int) -> AbstractContextManager[int]:
        """The threads for steps of so many rows, each of which meets every number of the largest layer. A GPU has threads of its own."""
        if self.device.type != "cpu":
            return threads(math.inf)
        return threads(rows * max((parameter.numel() for parameter in self.policy.parameters()), default=1) / WAITS)


# -- Steps at a rate that rises and falls, as contenders of a search are trained ---------------------------------------


class OneCycle(Course):
    """So many steps, whose rate rises to `rate` over a tenth of them and falls to 0 (Smith & Topin 2018).

    So there is no epoch to choose and no row to hold out. If steps take longer than there is time, the rate falls with the time
    left until `end`, by `time.perf_counter`.
    """

    RISE = 0.1  # of the steps, in which the rate rises

    def __init__(
        self,
        policy: Policy,
        *,
        rate: float,
        decay: float = 0.0,
        steps: int,
        batch_rows: int,
        end: float = math.inf,
        machine: Machine = ALONE,
    ) -> None:
        self.optimizer = adam(policy, rate, decay)
        self.rate, self.steps, self.batch_rows, self.end, self.machine = rate, steps, batch_rows, end, machine
        self.made = self._epoch = 0
        self._place, self._start = 0.0, time.perf_counter()

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def is_over(self) -> bool:
        return self._place >= self.steps

    def begin_step(self) -> None:
        """Set the rate and the momentum to what torch's OneCycleLR has at this place between the first step and the last."""
        top = max(self.RISE * self.steps - 1, 1e-9)
        if self._place <= top:
            share, rates, momenta = self._place / top, (self.rate / 25, self.rate), (0.95, 0.85)
        else:
            share = min((self._place - top) / (self.steps - 1 - top), 1.0)
            rates, momenta = (self.rate, self.rate / 25e4), (0.85, 0.95)
        for group in self.optimizer.param_groups:
            group["lr"], group["betas"] = _cosine(*rates, share), (_cosine(*momenta, share), group["betas"][1])

    def end_step(self, step: Step) -> None:
        self.made += 1
        self._place += 1
        if self.end < math.inf:
            left, gone = self.end - self._start, time.perf_counter() - self._start
            late = (
                self.steps * gone / left if left > 0 else math.inf
            )  # there may have been no time even for the first step
            self._place = self.machine.agree(max(self._place, late))

    def end_epoch(self) -> None:
        self._epoch += 1


def adam(policy: Policy, rate: float, decay: float) -> torch.optim.Optimizer:
    """Adam with weight decay, in one pass over the numbers: steps are small, and a third of each would be Python's."""
    return torch.optim.AdamW(policy.parameters(), lr=rate, weight_decay=decay, fused=True)


def _cosine(first: float, last: float, share: float) -> float:
    """A value on the way from the first to the last, along half a cosine."""
    return last + (first - last) / 2 * (1 + math.cos(math.pi * share))


# -- Epochs, of which held-out rows choose the best, as learners train -------------------------------------------------


class Epochs(Course):
    """Epoch after epoch, from the start or from a checkpoint; held-out rows choose the one that is kept.

    Afterward, the policy is that of the best epoch; the `history` and `best_epoch` of its `state` say how it got there.
    """

    measures = True

    def __init__(
        self,
        options: Options,
        source: Source,
        log: Inspection,
        training: Training,
        machine: Machine,
        checkpoint: CheckpointPath,
    ) -> None:
        self.options, self.source, self.log, self.machine = options, source, log, machine
        self.training, self.checkpoint = training, checkpoint
        rows = log.rows - log.held_out
        self.batch_rows = min(options.batch_size or log.rows, log.rows)
        self.steps = math.ceil(rows / (options.batch_size or log.rows))
        self.limit, self.patience = options.limits(self.steps)
        self.state = start_of(options, training.policy, training.past.sums)
        if checkpoint is not None:
            self.settings = training.logged.settings | _settings(options, self.state, training.banditnet_lambda, log)
            restore_checkpoint(checkpoint, self.state, self.settings, self.limit)
        training.past.sums = self.state.sums.to(machine.device)
        self.optimizer = self.state.optimizer
        self._begin_epoch()

    @property
    def epoch(self) -> int:
        return len(self.state.history)

    @property
    def is_over(self) -> bool:
        return self.epoch >= self.limit or self.state.is_stopped

    def run(self) -> None:
        """Train for all epochs, or for those that the checkpoint does not have yet."""
        options, training, machine = self.options, self.training, self.machine
        watched = options.progress if machine.rank == 0 else False
        with (
            _progress(watched, f"{self._name}epoch 1", self.limit * self.steps) as self._tell,
            _compiled(training.policy, options.compile, options.norms or default_norms(training.policy)),
        ):
            training.run(lambda epoch: batches(self.source, epoch, options.batch_size, options.split, machine), self)
        training.policy.load_state_dict(self.state.best)

    @property
    def _name(self) -> str:
        """What the progress bar calls the run."""
        fold = self.options.fold
        if fold is not None:
            return f"fold {fold + 1} of {self.options.folds}, "
        return "all rows, " if self.options.folds else ""

    def _begin_epoch(self) -> None:
        # the parameters before the epoch; if the last one was the best, we have a copy of them already
        self._good = self.state.best if self.state.best_epoch == self.epoch else copy_of(self.state.policy)
        self._variance = self._last = torch.zeros((), device=self.machine.device)
        self._bad, self._count = torch.full((), -1, device=self.machine.device), 0

    def end_step(self, step: Step) -> None:
        self._count += 1
        self._variance, self._last = self._variance + step.variance, step.baseline
        broken = ~(torch.isfinite(step.variance) & torch.isfinite(step.baseline))
        self._bad = torch.where(broken & (self._bad < 0), self._count, self._bad)
        if self._count % LOOK == 0:
            self._check_finite()
            self._tell(advance=LOOK)

    def end_epoch(self) -> None:
        self._check_finite()
        options = self.options
        parts = options.split.held_out_rows(self.source)
        estimate = self.training.logged.held_out(parts, self.log, options.level)
        sign = self.source.sign
        lower, upper = sorted(sign * end for end in estimate.interval)
        report = Epoch(
            epoch=self.epoch + 1,
            value=sign * estimate.value,
            stderr=estimate.stderr,
            lower=lower,
            upper=upper,
            gradient_variance=float(self._variance) / max(self._count, 1),
            baseline=sign * float(self._last),
            effective_sample_size=estimate.effective_sample_size,
            verdict=estimate.verdict,
            score=estimate.likelihood if options.objective == IMITATION else estimate.criterion,
        )
        said = f"value {report.value:.4g}  gradient variance {report.gradient_variance:.3g}"
        next_epoch = f"{self._name}epoch {min(report.epoch + 1, self.limit)}  {said}"
        self._tell(completed=report.epoch * self.steps, description=next_epoch)
        self.state.history.append(report)
        self._select()
        self._call_back()
        if self.machine.rank == 0 and self.checkpoint is not None:
            self.state.sums = self.training.past.sums
            save_checkpoint(self.checkpoint, self.state, self.settings)
        self.machine.wait()
        if not self.is_over:
            self._begin_epoch()

    def _call_back(self) -> None:
        """Whatever the user wants after an epoch, then the next learning rate."""
        options, training = self.options, self.training
        tuned = options.trained.needs_lambda and not isinstance(options.banditnet_lambda, float)
        runs = [] if options.fold is None else [f"fold-{options.fold + 1}"]
        runs += [f"lambda-{training.banditnet_lambda}"] if tuned else []
        end = EpochEnd(
            tuple(self.state.history), self.state.best_epoch, training.policy, self.optimizer, "/".join(runs)
        )
        # in the first process only; all get to know whether a callback wants to stop
        answers = [bool(callback(end)) for callback in options.callbacks] if self.machine.rank == 0 else []
        self.state.is_stopped |= self.machine.agree(any(answers))
        if self.state.scheduler is not None:
            advance(self.state.scheduler, self.source.sign * end.epoch.value)

    def _select(self) -> None:
        """Keep the epoch with the largest score on the held-out rows; stop if that was long ago."""
        history, best, by_value = self.state.history, self.state.best_epoch, self.training.logged.ties_go_by_value
        first = not self.options.holdout or not best or math.isnan(history[best - 1].score)
        new, old = ((epoch.score, epoch.value if by_value else 0.0) for epoch in (history[-1], history[best - 1]))
        if first or new > old:
            self.state.best, self.state.best_epoch = copy_of(self.state.policy), len(history)
        elif self.patience is not None and len(history) - best >= self.patience:
            self.state.is_stopped = True

    def _check_finite(self) -> None:
        """Stop at a gradient that is not finite, with the policy as it was before the epoch."""
        bad, epoch, policy = int(self._bad), self.epoch, self.training.policy
        if bad < 0:
            return
        policy.load_state_dict(self._good)
        policy.eval()
        where = f", as {str(self.checkpoint)!r} has it" if self.checkpoint is not None and epoch else ""
        raise TrainingError(
            f"the gradient of batch {bad:,} of epoch {epoch + 1} is not finite. policy_ is as it was after epoch {epoch}{where}.",
            do=f"Lower the learning rate ({self.options.learning_rate:g}), or look for extreme contexts and tiny propensities.",
        )


def copy_of(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module as they are now."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


@contextmanager
def _progress(wanted: bool | None, doing: str, batches: int) -> Iterator[Callable[..., object]]:
    """A function that moves the progress bar and says what is being done; it does nothing unless somebody is watching."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        with progress_line(wanted, doing) as tell:  # where standard error is a command's pipe
            yield lambda description=None, **_: tell(description) if tell and description else None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        yield partial(bar.update, bar.add_task(doing, total=batches))


@contextmanager
def _compiled(policy: Policy, options: Mapping[str, object] | None, norms: Norms) -> Iterator[None]:
    """Run a policy's body compiled, with these options of `torch.compile`; afterwards it is as it was.

    The last layer's gradient is written out by hand (see `steps`), so that the body is all there is to compile. If we must watch
    single layers as they run, nothing around them can be compiled.
    """
    if options is None:
        yield
        return
    if norms != "last_layer" or not is_split(policy):
        raise OptionError(
            "`compile=` needs a policy with a body and a linear last layer, and `norms='last_layer'`; "
            f"this is a {type(policy).__name__} with `norms={norms!r}`.",
            do="Make yours a subclass of Policy that has body and scores, or compile parts of your module yourself.",
        )
    compiler: Callable[..., Callable[..., Tensor]] = torch.compile
    try:
        faster = compiler(policy.body.forward, **options)
    except TypeError as error:
        raise OptionError(f"torch.compile does not take these options: {verbatim(error)}.") from error
    policy.body.forward = faster  # not body.compile(), which leaves an nn.Sequential as it is
    try:
        yield
    finally:
        del policy.body.forward


def start_of(options: Options, policy: Policy, sums: Tensor) -> RunState:
    """A run before its first epoch."""
    optimizer = options.optimizer_of(policy)
    make = options.scheduler
    scheduler = None if make is None else scheduler_of(make, optimizer, options.holdout)
    return RunState(policy, optimizer, sums, copy_of(policy), scheduler)


# -- A learner's training: its runs, the temperature to serve with, and BanditNet's λ, tuned by SNIPS as published -----


TEMPERATURES = (1.0, 0.5, 0.25, 0.0)  # those to choose from


@dataclass(frozen=True)
class Trained:
    """The outcome: the run's epochs, and with BanditNet the λ and, if it was tuned, the SNIPS value of each."""

    history: list[Epoch]
    best_epoch: int
    banditnet_lambda: float | None = None
    values: dict[float, float] | None = None


def train(
    options: Options, source: Source, log: Inspection, policy: Policy, logged: LoggedActions | None = None
) -> Trained:
    """Train the policy; it ends as that of the best epoch, with the best λ, at the temperature to serve with.

    `logged` is what the rows are, unless they are actions one by one.
    """
    lambdas = options.lambdas(log) if options.trained.needs_lambda else None
    if isinstance(lambdas, tuple):
        trained = tune(options, source, log, policy, lambdas)
    else:
        epochs = epochs_of(options, source, log, policy, lambdas or 0.0, options.checkpoint, logged)
        epochs.run()
        trained = Trained(epochs.state.history, epochs.state.best_epoch, lambdas)
    policy.temperature = temperature_of(options, source, log, policy)
    return trained


def fold_policies(
    options: Options, source: Source, inspection: Inspection, make: Callable[[Inspection], Policy]
) -> list[Policy]:
    """A policy for every fold, trained and chosen on the other rows alone; `make` builds one for the rows that it trains on.

    With a checkpoint, each fold has its own next to it (``run.fold-1.safetensors``).
    """
    policies = []
    for fold in range(options.folds):
        source.without = fold
        own = replace(options, fold=fold, checkpoint=beside(options.checkpoint, f"fold-{fold + 1}"))
        others = without_fold(inspection, source, own.split)
        torch.manual_seed(options.seed)
        policy = make(others)
        train(own, source, others, policy)
        policies.append(policy)
    source.without = None
    return policies


def epochs_of(
    options: Options,
    source: Source,
    log: Inspection,
    policy: Policy,
    banditnet_lambda: float,
    checkpoint: CheckpointPath,
    logged: LoggedActions | None = None,
) -> Epochs:
    """A run with some options on a log, ready to start or resume, with one λ (which only some objectives use)."""
    machine = Machine.join(options.device)
    lazy = options.optimizer is None and machine.processes == 1  # only our own optimizer takes sparse gradients
    arithmetic = Arithmetic(options.precision, options.negatives, sparse=lazy)
    policy.to(machine.device)
    source.to(machine.device)
    objective = options.objective_at(banditnet_lambda, log)
    if objective.needs_rewards:
        trained = options.split.held_out_rows(source, others=True)
        objective = objective.at(banditnet_lambda, rewards=Rewards.of(rows.reward for rows in trained))
    splits = objective.splits and (logged is None or logged.splits)
    if machine.processes > 1 and not splits:
        what = options.objective if logged is None else "a ranking policy"
        raise OptionError(f"{what} trains in one process only.", do="Start it without torchrun.")
    logged = LoggedActions(policy, machine, options.norms, arithmetic) if logged is None else logged
    training = Training(policy, objective, logged, machine.device, arithmetic, banditnet_lambda, options.decay)
    return Epochs(options, source, log, training, machine, checkpoint)


def _settings(
    options: Options, state: RunState, banditnet_lambda: float | list[float], log: Inspection
) -> dict[str, object]:
    """What must be the same for a checkpoint to be continued."""
    own = {"banditnet_lambda": banditnet_lambda, "norms": options.norms or default_norms(state.policy)}
    return options.settings | own | settings_of(state, log)


def temperature_of(options: Options, source: Source, log: Inspection, policy: Policy) -> float:
    """The temperature to serve with: as given, or the one with the largest score on the held-out rows, the highest if several tie."""
    if options.temperature != "auto":
        return options.temperature
    if options.objective == IMITATION:
        return 1.0

    def score(temperature: float) -> float:
        parts = options.split.held_out_rows(source)
        return held_out_actions(policy, parts, log, options.level, temperature).criterion

    return max(TEMPERATURES, key=score)


def tune(options: Options, source: Source, log: Inspection, policy: Policy, lambdas: tuple[float, ...]) -> Trained:
    """Train the policy with each λ from the same start; it ends as the best of them."""
    if options.checkpoint is not None:
        # it has the start, so that every λ starts from the same weights, even those that come after a kill
        state = start_of(options, policy, RunningBaseline(decay=options.decay).sums)
        settings = _settings(options, state, list(lambdas), log)
        restored = restore_checkpoint(options.checkpoint, state, settings, options.epochs or 0)
        if not restored and Machine.join(options.device).rank == 0:
            save_checkpoint(options.checkpoint, state, settings)
    start, values, tried = copy_of(policy), {}, []
    for banditnet_lambda in lambdas:
        policy.load_state_dict(start)
        torch.manual_seed(options.seed)
        checkpoint = beside(options.checkpoint, f"lambda-{banditnet_lambda}")
        epochs = epochs_of(options, source, log, policy, banditnet_lambda, checkpoint)
        epochs.run()
        values[banditnet_lambda] = snips(moments_of(policy, options.split.held_out_rows(source, others=True))).value
        tried.append((values[banditnet_lambda], banditnet_lambda, copy_of(policy), epochs))
    _, chosen, best, epochs = max(tried, key=lambda run: run[0])
    policy.load_state_dict(best)
    return Trained(epochs.state.history, epochs.state.best_epoch, chosen, values)


def beside(checkpoint: str | PathLike[str] | None, run: str) -> Path | None:
    """The checkpoint of one run of several, next to the one that the user named."""
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    return path.with_name(f"{path.stem}.{run}{path.suffix}")
