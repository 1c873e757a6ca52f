"""Training: epoch after epoch, from the start or from a checkpoint, to the epoch that is kept."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterpoise.errors import OptionError, TrainingError
from counterpoise.estimators.constant import snips
from counterpoise.learn.baselines import RunningBaseline
from counterpoise.learn.callbacks import EpochEnd, Progress, asked_to_stop
from counterpoise.learn.checkpoints import (
    Epoch,
    State,
    copy_of,
    restore_checkpoint,
    save_checkpoint,
    settings_of_optimizer,
    settings_of_policy,
    settings_of_scheduler,
)
from counterpoise.learn.criterion import held_out_estimate, moments_of
from counterpoise.learn.items.arithmetic import Arithmetic
from counterpoise.learn.options import Options, advance, compiled, join, scheduler_of, shared, wait
from counterpoise.learn.policy import Policy
from counterpoise.learn.rows import Batch, Share, batches
from counterpoise.learn.source import Inspection, Source
from counterpoise.learn.steps import Logged, Norms, Step, backward, default_norms
from counterpoise.threads import threads

# -- A training run: epoch after epoch, from the start or from a checkpoint, to the epoch that is kept -----------------

IMITATION = "imitation"  # the objective whose epochs are compared by the likelihood of the logged actions
LOOK = 50  # batches between looks for NaN: each look waits for the GPU
CheckpointPath = str | PathLike[str] | None


class Training:
    """One run with some options on a log, and with one λ (which only some objectives use).

    After `run`, the policy is that of the best epoch; `history` and `best_epoch` tell how it came about.
    """

    history: list[Epoch]
    best_epoch: int

    def __init__(
        self, options: Options, source: Source, found: Inspection, policy: Policy, banditnet_lambda: float
    ) -> None:
        self.rank, self.processes, self.device = join(options.device)
        if self.processes > 1 and not options.trained.splits:
            raise OptionError(f"{options.objective} trains in one process only.", do="Start it without torchrun.")
        self.options, self.source, self.found = options, source, found
        self.banditnet_lambda = banditnet_lambda
        self.policy = policy.to(self.device).train()
        source.to(self.device)
        self._objective = options.objective_at(banditnet_lambda, found)
        self._steps = math.ceil((found.rows - found.held_out) / (options.batch_size or found.rows))
        self._epochs, self._patience = options.limits(self._steps)
        self._norms: Norms = options.norms or default_norms(policy)
        self._running = RunningBaseline(decay=options.decay)
        lazy = options.optimizer is None and self.processes == 1  # only our own optimizer takes sparse gradients
        self._arithmetic = Arithmetic(options.precision, options.negatives, sparse=lazy)
        self._logged = shared(Logged(policy, self._arithmetic), self.processes, self.device)

    def run(self, checkpoint: CheckpointPath = None) -> None:
        """Train for all epochs, or for those that the checkpoint does not have yet."""
        self._checkpoint = checkpoint
        state, settings = self._restored()
        self._running.sums = state.sums.to(self.device)
        watched = self.options.progress if self.rank == 0 else False
        faster = compiled(self.policy, self.options.compile, self._norms)
        with threads(self._work), Progress(watched, self._epochs, self._steps, self._name) as bar, faster:
            while state.progress["done"] < self._epochs and not state.progress["stopped"]:
                self._epoch(state, bar)
                self._end_epoch(state)
                if self.rank == 0 and checkpoint is not None:
                    state.sums = self._running.sums
                    save_checkpoint(checkpoint, state, settings)
                wait(self.processes)
        self.history = [Epoch(**one) for one in state.progress["history"]]
        self.best_epoch = state.progress["best"]
        self.policy.load_state_dict(state.best)
        self.policy.eval()

    @property
    def _work(self) -> float:
        """The size of a step: every row of a batch meets every number of the largest layer. A GPU has threads of its own."""
        if self.device.type != "cpu":
            return math.inf
        largest = max((one.numel() for one in self.policy.parameters()), default=1)
        return float(largest * min(self.options.batch_size or self.found.rows, self.found.rows))

    @property
    def _name(self) -> str:
        """What the progress bar calls the run."""
        fold = self.options.fold
        if fold is not None:
            return f"fold {fold + 1} of {self.options.folds}, "
        return "all rows, " if self.options.folds else ""

    def _restored(self) -> tuple[State, dict[str, Any]]:
        state = start_of(self.options, self.policy)
        settings = settings_of(self.options, self.policy, state, self.banditnet_lambda, self.found)
        if self._checkpoint is not None:
            restore_checkpoint(self._checkpoint, state, settings, self._epochs)
        return state, settings

    def _epoch(self, state: State, bar: Progress) -> None:
        epoch = state.progress["done"]
        # the parameters before the epoch; if the last one was the best, we have a copy of them already
        good = state.best if state.progress["best"] == epoch else copy_of(state.policy)
        variance, last = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        bad = torch.full((), -1, device=self.device)
        count = 0
        share = Share(self.rank, self.processes, self.device)
        order = batches(self.source, epoch, self.options.batch_size, self.options.split, share)
        for count, batch in enumerate(order, start=1):
            step = self._step(batch, state.optimizer)
            variance, last = variance + step.variance, step.baseline
            broken = ~(torch.isfinite(step.variance) & torch.isfinite(step.baseline))
            bad = torch.where(broken & (bad < 0), count, bad)
            if count % LOOK == 0:
                self._check_finite(int(bad), epoch, good)
                bar.advance(LOOK)
        self._check_finite(int(bad), epoch, good)
        estimate = held_out_estimate(state.policy, self.source, self.found, self.options.split, self.options.level)
        report = Epoch(
            epoch=epoch + 1,
            value=estimate.value,
            stderr=estimate.stderr,
            lower=estimate.interval.lower,
            upper=estimate.interval.upper,
            gradient_variance=float(variance) / max(count, 1),
            baseline=float(last),
            effective_sample_size=estimate.effective_sample_size,
            verdict=estimate.verdict,
            score=estimate.likelihood if self.options.objective == IMITATION else estimate.criterion,
        )
        bar.epoch_done(report.epoch, report.value, report.gradient_variance)
        state.progress["history"].append(asdict(report))
        state.progress["done"] = epoch + 1
        self._select(state)

    def _end_epoch(self, state: State) -> None:
        """Whatever the user wants after an epoch, then the next learning rate."""
        history = tuple(Epoch(**one) for one in state.progress["history"])
        tuned = self.options.trained.needs_lambda and not isinstance(self.options.banditnet_lambda, float)
        runs = [] if self.options.fold is None else [f"fold-{self.options.fold + 1}"]
        runs += [f"lambda-{self.banditnet_lambda}"] if tuned else []
        end = EpochEnd(history, state.progress["best"], self.policy, state.optimizer, "/".join(runs))
        if asked_to_stop(self.options.callbacks, end, self.rank, self.processes, self.device):
            state.progress["stopped"] = True
        advance(state.scheduler, end.epoch.value)

    def _step(self, batch: Batch, optimizer: torch.optim.Optimizer) -> Step:
        optimizer.zero_grad(set_to_none=True)
        with self._arithmetic.products(self.device):
            step = backward(
                self.policy,
                batch,
                self._objective.baseline(self._running, self.banditnet_lambda),
                objective=self._objective,
                norms=self._norms,
                logged=self._logged,
                processes=self.processes,
                arithmetic=self._arithmetic,
            )
        self._running.update(step.sums)
        optimizer.step()
        return step

    def _select(self, state: State) -> None:
        """Keep the epoch with the largest score on the held-out rows; stop if that was long ago."""
        history, best = state.progress["history"], state.progress["best"]
        first = not self.options.holdout or not best or math.isnan(history[best - 1]["score"])
        if first or history[-1]["score"] > history[best - 1]["score"]:
            state.best, state.progress["best"] = copy_of(state.policy), len(history)
        elif self._patience is not None and len(history) - best >= self._patience:
            state.progress["stopped"] = True

    def _check_finite(self, bad: int, epoch: int, good: dict[str, Tensor]) -> None:
        """Stop at a gradient that is not finite, with the policy as it was before the epoch."""
        if bad < 0:
            return
        self.policy.load_state_dict(good)
        self.policy.eval()
        where = f", as {str(self._checkpoint)!r} has it" if self._checkpoint is not None and epoch else ""
        raise TrainingError(
            f"the gradient of batch {bad:,} of epoch {epoch + 1} is not finite. policy_ is as it was after epoch {epoch}{where}.",
            do=f"Lower the learning rate ({self.options.learning_rate:g}), or look for extreme contexts and tiny propensities.",
        )


def start_of(options: Options, policy: Policy) -> State:
    """A run before its first epoch."""
    progress = {"done": 0, "history": [], "best": 0, "stopped": False}
    sums = RunningBaseline(decay=options.decay).sums
    optimizer = options.optimizer_of(policy)
    scheduler = scheduler_of(options.scheduler, optimizer, options.holdout)
    return State(policy, optimizer, sums, copy_of(policy), progress, scheduler)


def settings_of(
    options: Options, policy: Policy, state: State, banditnet_lambda: float | list[float], found: Inspection
) -> dict[str, Any]:
    """What must be the same for a checkpoint to be continued."""
    return (
        options.settings
        | {
            "policy": type(policy).__name__,
            "n_actions": found.n_actions,
            "rows": found.rows,
            "digest of the log": found.digest,
            "banditnet_lambda": banditnet_lambda,
            "norms": options.norms or default_norms(policy),
        }
        | settings_of_optimizer(state.optimizer)
        | settings_of_scheduler(state.scheduler)
        | settings_of_policy(policy)
    )


# -- Trains a policy, chooses its temperature, and tunes BanditNet's λ: one run for each value, and the best by SNIPS, as published ---


TEMPERATURES = (1.0, 0.5, 0.25, 0.0)  # those to choose from


@dataclass(frozen=True)
class Trained:
    """What came of it: the run's epochs, and with BanditNet the λ and, if it was tuned, the SNIPS value of each."""

    history: list[Epoch]
    best_epoch: int
    banditnet_lambda: float | None = None
    values: dict[float, float] | None = None


def train(options: Options, source: Source, found: Inspection, policy: Policy) -> Trained:
    """Train the policy; it ends as that of the best epoch, with the best λ, at the temperature to serve with."""
    given = options.lambdas(found) if options.trained.needs_lambda else None
    if isinstance(given, tuple):
        done = tune(options, source, found, policy, given)
    else:
        training = Training(options, source, found, policy, given or 0.0)
        training.run(options.checkpoint)
        done = Trained(training.history, training.best_epoch, given)
    policy.temperature = temperature_of(options, source, found, policy)
    return done


def temperature_of(options: Options, source: Source, found: Inspection, policy: Policy) -> float:
    """The temperature to serve with: as given, or the one with the largest score on the held-out rows, of equal ones the highest."""
    if options.temperature != "auto":
        return options.temperature
    if options.objective == IMITATION:
        return 1.0
    return max(
        TEMPERATURES,
        key=lambda one: held_out_estimate(policy, source, found, options.split, options.level, one).criterion,
    )


def tune(options: Options, source: Source, found: Inspection, policy: Policy, lambdas: tuple[float, ...]) -> Trained:
    """Train the policy with each λ from the same start; it ends as the best of them."""
    _share_start(options, found, policy, lambdas)
    start, values, tried = copy_of(policy), {}, []
    for one in lambdas:
        policy.load_state_dict(start)
        torch.manual_seed(options.seed)
        training = Training(options, source, found, policy, one)
        training.run(beside(options.checkpoint, f"lambda-{one}"))
        values[one] = snips(moments_of(policy, options.split.held_out_rows(source, others=True))).value
        tried.append((values[one], one, copy_of(policy), training))
    _, chosen, best, training = max(tried, key=lambda run: run[0])
    policy.load_state_dict(best)
    return Trained(training.history, training.best_epoch, chosen, values)


def _share_start(options: Options, found: Inspection, policy: Policy, lambdas: tuple[float, ...]) -> None:
    """Keep the start in the checkpoint, so that every λ starts from the same weights, even those that come after a kill."""
    if options.checkpoint is None:
        return
    state = start_of(options, policy)
    settings = settings_of(options, policy, state, list(lambdas), found)
    restored = restore_checkpoint(options.checkpoint, state, settings, options.epochs or 0)
    if not restored and join(options.device)[0] == 0:
        save_checkpoint(options.checkpoint, state, settings)


def beside(checkpoint: str | PathLike[str] | None, run: str) -> Path | None:
    """The checkpoint of one run of several, next to the one that the user named."""
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    return path.with_name(f"{path.stem}.{run}{path.suffix}")
