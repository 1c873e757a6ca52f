"""`PolicyLearner`: fit a policy on a log, choose its epoch on held-out rows, keep it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from counterpoise.errors import OptionError, TrainingError
from counterpoise.estimators.constant import snips
from counterpoise.estimators.estimate import check_level
from counterpoise.learn import objectives
from counterpoise.learn.baselines import RunningBaseline
from counterpoise.learn.checkpoints import Epoch, State, copy_of, restore_checkpoint, save_checkpoint
from counterpoise.learn.data import Log, batches, held_out_rows, open_log
from counterpoise.learn.inspection import Inspection, inspect
from counterpoise.learn.many import check_device
from counterpoise.learn.measure import held_out_estimate, moments_of
from counterpoise.learn.options import (
    FULL_BATCH_ONLY,
    TUNED,
    Objective,
    check_options,
    check_policy,
    check_sizes,
    number,
    shifts,
    whole,
)
from counterpoise.learn.policies import LinearSoftmax, Policy
from counterpoise.learn.processes import join, shared, wait
from counterpoise.learn.progress import Progress
from counterpoise.learn.settings import settings_of_optimiser, settings_of_policy
from counterpoise.learn.steps import Batch, Logged, Norms, Step, backward, backward_dr, default_norms
from counterpoise.learn.storage import save_policy

LOOK = 50  # batches between looks for NaN: each look waits for the GPU


class PolicyLearner:
    """Learn a policy from a log of another one.

    Parameters
    ----------
    objective
        ``"beta_ips"``, with the baseline of least gradient variance of each batch; ``"running_beta_ips"``, with that of the
        batches before it, hence unbiased; ``"ips"``; ``"lambda_ips"`` (BanditNet), with `shift` or, without, the best by
        SNIPS on the training rows of 0.6, 0.65, …, 0.95 (or those given as `shift`); ``"dr"``, with `model_rewards`;
        with ``batch_size=None`` only, ``"snips"`` and ``"value_beta_ips"`` (differentiated through its baseline).
    policy
        A `Policy`, trained in place; by default a linear softmax with an intercept, of contexts standardised by mean and
        standard deviation of the training rows. A policy of yours sees the contexts as they are.
    norms
        ``"last_layer"`` or ``"all"``: whose gradient variance the baseline minimises. By default the last layer's where it
        has a closed form (exact for linear policies, nearly free for others).
    holdout
        Share of rows kept from training; the epoch with the largest β-IPS value on them is the one kept, never the one
        with the largest training objective. 0 keeps the last epoch.
    patience
        Stop after so many epochs without a better held-out value.
    checkpoint
        A file written after every epoch; if it is there already, `fit` goes on from it to the same result, for more epochs
        if asked. A checkpoint of other options (optimiser and layers of the policy included) or of another log is refused.
        Where λ is tuned, the file has the start, and each λ a file of its own beside it (``run.shift-0.6.safetensors``).
    progress
        A bar with value and gradient variance; by default where a terminal is watching.

    Without `policy` and `n_actions` the actions are the distinct ids that the log has, in their order: they need not be
    0, 1, 2, …, and stay with the policy (`classes_`), saved and loaded. Parquet files must not change during training.

    Afterwards `policy_` is the policy of the best epoch, `history_` has an `Epoch` each, `best_epoch_` says which it is,
    `mean_reward_` is what the logging policy earned, and `context_` has the names of the context's columns (empty for
    arrays). The value of the best epoch flatters the policy, as the rows that it is measured on also chose the epoch.

    Examples
    --------
    >>> from counterpoise.environments import SyntheticBandit
    >>> log = SyntheticBandit(n_actions=4, inverse_temperature=-2, seed=1).draw(4000)
    >>> learner = PolicyLearner(epochs=5, batch_size=200, learning_rate=0.1)
    >>> _ = learner.fit(context=log.context, action=log.action, reward=log.reward, propensity=log.propensity)
    >>> learner.history_[-1].lower < learner.history_[-1].value < learner.history_[-1].upper
    True
    >>> bool(log.value(learner.predict_proba) > log.reward.mean())
    True
    """

    policy_: Policy
    context_: tuple[str, ...]
    mean_reward_: float
    shift_: float
    history_: list[Epoch]
    best_epoch_: int
    tuning_: dict[float, float]

    def __init__(
        self,
        objective: Objective = "beta_ips",
        *,
        policy: Policy | None = None,
        n_actions: int | None = None,
        learning_rate: float = 0.01,
        batch_size: int | None = 1024,
        epochs: int = 20,
        shift: float | Sequence[float] | None = None,
        norms: Norms | None = None,
        decay: float = 0.9,
        holdout: float = 0.1,
        patience: int | None = None,
        level: float = 0.95,
        seed: int = 0,
        device: str = "cpu",
        optimiser: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
        checkpoint: str | PathLike[str] | None = None,
        progress: bool | None = None,
    ) -> None:
        check_options(objective, batch_size, norms)
        check_policy(policy, n_actions)
        check_level(level)
        check_device(device)
        self.objective, self.policy, self.norms, self.level, self.device = objective, policy, norms, level, device
        self.n_actions = None if n_actions is None else whole("n_actions", n_actions, least=1)
        self.batch_size = None if batch_size is None else whole("batch_size", batch_size, least=1)
        self.patience = None if patience is None else whole("patience", patience, least=0)
        self.epochs, self.seed = whole("epochs", epochs, least=1), whole("seed", seed, least=0)
        self.learning_rate = number("learning_rate", learning_rate, "be above 0", lambda x: 0 < x < math.inf)
        self.decay = number("decay", decay, "lie in [0, 1]", lambda x: 0 <= x <= 1)
        self.holdout = number("holdout", holdout, "lie in [0, 1), a share of the rows", lambda x: 0 <= x < 1)
        self.shift = shifts(shift)
        self.optimiser = optimiser or (lambda parameters: torch.optim.Adam(parameters, lr=self.learning_rate))
        self.checkpoint, self.progress = checkpoint, progress

    # -- fitting -------------------------------------------------------------------------------------------------------

    def fit(
        self,
        log: Any = None,
        *,
        context: Any = None,
        action: Any = None,
        reward: Any = None,
        propensity: Any = None,
        model_rewards: ArrayLike | None = None,
    ) -> PolicyLearner:
        """Learn from a log: a mapping of arrays, any frame, or the name of Parquet files; the others name its columns.

        Without a log they are the arrays themselves. Files are read chunk by chunk, so that they may be larger than memory.
        `model_rewards` is an array of a reward model's predictions, a column per action, for DR.
        """
        if (self.objective == "dr") != (model_rewards is not None):
            raise OptionError("objective 'dr' needs model_rewards, a column per action, and no other does.")
        read = open_log(
            log, context=context, action=action, reward=reward, propensity=propensity, model_rewards=model_rewards
        )
        if self.policy is not None:
            self.policy.check_width(len(read.names.context))
        known = self.policy.n_actions if self.policy is not None else self.n_actions
        found = inspect(read, known, self.holdout, self.seed, self.policy.actions_ if self.policy is not None else None)
        check_sizes(read, found, self.batch_size, self.holdout)
        read.number(found.ids)
        self.mean_reward_ = found.mean_reward
        self.context_ = read.names.context if log is not None else ()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self._fit(read, self.policy if self.policy is not None else _default_policy(found), found)

    def _fit(self, log: Log, policy: Policy, found: Inspection) -> PolicyLearner:
        policy.context_, policy.actions_ = self.context_, found.ids
        if self.objective == "lambda_ips" and not isinstance(self.shift, float):
            return self._tune(log, policy, found, TUNED if self.shift is None else self.shift)
        shift = self.shift if isinstance(self.shift, float) else 0.0
        return self._train(log, policy, shift, found, self.checkpoint)

    def _tune(self, log: Log, policy: Policy, found: Inspection, shifts: Sequence[float]) -> PolicyLearner:
        """BanditNet's λ: train with each, and keep the best by SNIPS on the training rows, as published."""
        if self.checkpoint is not None:
            # every λ starts from the same weights, also those that come after a kill
            state = self._start(policy)
            settings = self._settings(policy, state.optimiser, list(shifts), found)
            if not restore_checkpoint(self.checkpoint, state, settings, self.epochs) and join(self.device)[0] == 0:
                save_checkpoint(self.checkpoint, state, settings)
        start, tried = copy_of(policy), []
        self.tuning_ = {}
        for shift in shifts:
            policy.load_state_dict(start)
            torch.manual_seed(self.seed)
            self._train(log, policy, shift, found, self._checkpoint_of(shift))
            self.tuning_[shift] = snips(
                moments_of(policy, held_out_rows(log, self.holdout, self.seed, others=True))
            ).value
            tried.append((self.tuning_[shift], shift, copy_of(self.policy_), self.history_, self.best_epoch_))
        _, self.shift_, best, self.history_, self.best_epoch_ = max(tried, key=lambda one: one[0])
        self.policy_.load_state_dict(best)
        return self

    def _checkpoint_of(self, shift: float) -> Path | None:
        if self.checkpoint is None:
            return None
        path = Path(self.checkpoint)
        return path.with_name(f"{path.stem}.shift-{shift}{path.suffix}")

    def _start(self, policy: Policy) -> State:
        """A run before its first epoch."""
        progress = {"done": 0, "history": [], "best": 0, "stopped": False}
        sums = RunningBaseline(decay=self.decay).sums
        return State(policy, self.optimiser(policy.parameters()), sums, copy_of(policy), progress)

    def _train(
        self, log: Log, policy: Policy, shift: float, found: Inspection, checkpoint: str | PathLike[str] | None
    ) -> PolicyLearner:
        rank, processes, device = join(self.device)
        if processes > 1 and (self.objective in FULL_BATCH_ONLY or self.objective == "dr"):
            raise OptionError(f"{self.objective} trains in one process: start it without torchrun.")
        self.policy_, self.shift_, self._written = policy.to(device).train(), shift, checkpoint
        if log.memory is not None:
            log.memory = log.memory.to(device)
        self._norms: Norms = self.norms or default_norms(policy)
        self._running = RunningBaseline(decay=self.decay)
        self._logged, self._processes = shared(Logged(policy), processes, device), processes
        state = self._start(policy)
        settings = self._settings(policy, state.optimiser, shift, found)
        if checkpoint is not None:
            restore_checkpoint(checkpoint, state, settings, self.epochs)
        self._running.sums = state.sums.to(device)
        steps = math.ceil((found.rows - found.held_out) / (self.batch_size or found.rows))
        with Progress(self.progress if rank == 0 else False, self.epochs, steps) as bar:
            while state.progress["done"] < self.epochs and not state.progress["stopped"]:
                self._epoch(log, state, device, rank, bar)
                if rank == 0 and checkpoint is not None:
                    state.sums = self._running.sums
                    save_checkpoint(checkpoint, state, settings)
                wait(processes)
        self.history_ = [Epoch(**one) for one in state.progress["history"]]
        self.best_epoch_ = state.progress["best"]
        policy.load_state_dict(state.best)
        policy.eval()
        return self

    def _epoch(self, log: Log, state: State, device: torch.device, rank: int, bar: Progress) -> None:
        epoch = state.progress["done"]
        good = copy_of(state.policy)
        variance, last = torch.zeros((), device=device), torch.zeros((), device=device)
        bad = torch.full((), -1, device=device)
        count = 0
        order = batches(
            log,
            epoch,
            batch_size=self.batch_size,
            holdout=self.holdout,
            seed=self.seed,
            device=device,
            rank=rank,
            processes=self._processes,
        )
        for count, batch in enumerate(order, start=1):
            step = self._step(batch, state.optimiser)
            variance, last = variance + step.variance, step.baseline
            broken = ~(torch.isfinite(step.variance) & torch.isfinite(step.baseline))
            bad = torch.where(broken & (bad < 0), count, bad)
            if count % LOOK == 0:
                self._check_finite(int(bad), epoch, good)
                bar.advance(LOOK)
        self._check_finite(int(bad), epoch, good)
        estimate = held_out_estimate(state.policy, log, self.holdout, self.seed, self.level)
        report = Epoch(
            epoch=epoch + 1,
            value=estimate.value,
            stderr=estimate.stderr,
            lower=estimate.interval.lower,
            upper=estimate.interval.upper,
            gradient_variance=float(variance) / max(count, 1),
            baseline=float(last),
        )
        bar.epoch_done(report.epoch, report.value, report.gradient_variance)
        state.progress["history"].append(asdict(report))
        state.progress["done"] = epoch + 1
        self._select(state)

    def _step(self, batch: Batch, optimiser: torch.optim.Optimizer) -> Step:
        optimiser.zero_grad(set_to_none=True)
        if self.objective == "dr":
            step = backward_dr(self.policy_, batch)
        else:
            baseline: Tensor | float | None = {"lambda_ips": self.shift_, "ips": 0.0}.get(self.objective)
            if self.objective == "running_beta_ips":
                baseline = self._running.value
            chosen = {"snips": objectives.snips, "value_beta_ips": _value_beta_ips}.get(self.objective)
            step = backward(
                self.policy_,
                batch,
                baseline,
                objective=chosen,
                norms=self._norms,
                logged=self._logged,
                processes=self._processes,
            )
            self._running.update(step.sums)
        optimiser.step()
        return step

    def _select(self, state: State) -> None:
        """Keep the epoch with the largest held-out value; stop if it is long ago."""
        history, best = state.progress["history"], state.progress["best"]
        value = history[-1]["value"]
        if not self.holdout or not best or math.isnan(history[best - 1]["value"]) or value > history[best - 1]["value"]:
            state.best, state.progress["best"] = copy_of(state.policy), len(history)
        elif self.patience is not None and len(history) - best >= self.patience:
            state.progress["stopped"] = True

    # -- checks --------------------------------------------------------------------------------------------------------

    def _check_finite(self, bad: int, epoch: int, good: dict[str, Tensor]) -> None:
        """Stop at a loss that is no number, with the policy as it was before the epoch."""
        if bad < 0:
            return
        self.policy_.load_state_dict(good)
        self.policy_.eval()
        where = f", as {str(self._written)!r} has it" if self._written is not None and epoch else ""
        raise TrainingError(
            f"the gradient of batch {bad:,} of epoch {epoch + 1} is not finite. policy_ is as it was after epoch {epoch}{where}. "
            f"Lower the learning rate ({self.learning_rate:g}), or look for extreme contexts and tiny propensities."
        )

    def _settings(
        self, policy: Policy, optimiser: torch.optim.Optimizer, shift: float | list[float], found: Inspection
    ) -> dict[str, Any]:
        """What must be the same for a checkpoint to be continued."""
        settings = {
            "objective": self.objective,
            "policy": type(policy).__name__,
            "n_actions": found.n_actions,
            "rows": found.rows,
            "digest of the log": found.digest,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "shift": shift,
            "norms": self.norms or default_norms(policy),
            "decay": self.decay,
            "holdout": self.holdout,
            "patience": self.patience,
            "level": self.level,
            "seed": self.seed,
        }
        return settings | settings_of_optimiser(optimiser) | settings_of_policy(policy)

    # -- using ---------------------------------------------------------------------------------------------------------

    @property
    def classes_(self) -> NDArray[np.int64]:
        """The actions, in the order of `predict_proba`'s columns."""
        return self._fitted().classes_

    def predict_proba(self, context: ArrayLike) -> NDArray[np.float64]:
        """Probabilities of all actions, a row per context: a learner is a `target` for `evaluate`."""
        return self._fitted().predict_proba(context)

    def predict(self, context: ArrayLike) -> NDArray[np.int64]:
        """The greedy action of every context."""
        return np.asarray(self.classes_[self.predict_proba(context).argmax(axis=1)], dtype=np.int64)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the policy; `load_policy` reads it."""
        save_policy(self._fitted(), path)

    def _fitted(self) -> Policy:
        if not hasattr(self, "policy_"):
            raise OptionError("this learner has learned nothing yet: call fit first.")
        return self.policy_


def _default_policy(found: Inspection) -> Policy:
    policy = LinearSoftmax(len(found.columns.mean), found.n_actions, bias=True, standardise=True)
    policy.body.load_state_dict({"mean": found.columns.mean, "scale": found.columns.scale})
    return policy


def _value_beta_ips(target: Tensor, reward: Tensor, propensity: Tensor) -> Tensor:
    baseline = objectives.value_baseline(target, reward, propensity)
    return objectives.beta_ips(target, reward, propensity, baseline=baseline)
