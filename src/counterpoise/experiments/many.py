"""Trains many runs as one: linear softmax policies that differ in method, learning rate and seed.

Runs are a batch dimension of every tensor, gradients are written out (no autograd), and on CUDA an epoch is one graph,
because at these sizes launching kernels would cost more than running them. Up to rounding, a run's numbers do not depend
on which other runs share its program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from counterpoise.errors import LogError, OptionError
from counterpoise.learn.norms import logit_norms, squared_sum
from counterpoise.learn.options import check_device

# named as the objectives of `counterpoise.learn` are; the last is the full-batch β-IPS of the paper, which is none of them
Objective = Literal["ips", "lambda_ips", "beta_ips", "running_beta_ips", "snips", "published_value_beta_ips"]
MINI_BATCH = ("ips", "lambda_ips", "beta_ips", "running_beta_ips")
FULL_BATCH = ("ips", "lambda_ips", "snips", "published_value_beta_ips")


@dataclass(frozen=True)
class Run:
    """One policy to train; λ is for `lambda_ips`."""

    objective: Objective
    learning_rate: float
    seed: int
    banditnet_lambda: float = 0.0


@dataclass(frozen=True)
class Curves:
    """What came of the runs: one row per run and one column per epoch, and the last weights, (runs, context, actions)."""

    runs: tuple[Run, ...]
    value: NDArray[np.float64]
    gradient_variance: NDArray[np.float64]
    weights: Tensor
    seconds: float


class LoggedRows:
    """A log as tensors on one device."""

    def __init__(
        self, context: ArrayLike, action: ArrayLike, reward: ArrayLike, propensity: ArrayLike, *, device: str = "cpu"
    ) -> None:
        check_device(device)
        self.context = torch.as_tensor(np.asarray(context), dtype=torch.float32, device=device)
        self.action = torch.as_tensor(np.asarray(action), dtype=torch.int64, device=device)
        self.reward = torch.as_tensor(np.asarray(reward), dtype=torch.float32, device=device)
        self.inverse = 1 / torch.as_tensor(np.asarray(propensity), dtype=torch.float32, device=device)
        # ‖x‖²/π₀², what a row's squared gradient norm is multiplied with for a linear policy
        self.factor = self.context.square().sum(1) * self.inverse.square()
        if not bool(torch.isfinite(self.factor).all() & torch.isfinite(self.reward).all()):
            raise LogError("contexts, rewards and propensities must be finite, and propensities above 0.")

    def __len__(self) -> int:
        return len(self.action)


def train_many(
    rows: LoggedRows,
    n_actions: int,
    runs: Sequence[Run],
    *,
    epochs: int,
    batch_size: int | None = 1024,
    value: Callable[[Tensor], Tensor] | None = None,
    decay: float = 0.9,
    graph: bool | None = None,
) -> Curves:
    """Train every run for some epochs; `batch_size=None` means full batch.

    `value(weights)`, such as a `GreedyValue`, returns a number per run after every epoch. Gradient variance is measured as in
    the paper's experiments: for each batch, (mean(‖∇π‖²c²) − ‖mean(c∇π)‖²)/B with c = (r − β)/π₀, summed over the epoch's
    batches and divided by the number of rows. `decay` is that of `running_beta_ips`. `graph` asks for CUDA graphs or
    forbids them; by default they are used if there is CUDA.

    Examples
    --------
    >>> from counterpoise.environments import SyntheticBandit
    >>> log = SyntheticBandit(n_actions=5, seed=0).draw(500)
    >>> rows = LoggedRows(log.context, log.action, log.reward, log.propensity)
    >>> curves = train_many(rows, 5, [Run("ips", 0.1, 0), Run("beta_ips", 0.1, 0)], epochs=3, batch_size=100)
    >>> ips, beta_ips = curves.gradient_variance.mean(1)
    >>> bool(beta_ips < ips)
    True
    """
    from counterpoise.experiments import full_batch, mini_batch

    allowed = FULL_BATCH if batch_size is None else MINI_BATCH
    for run in runs:
        if run.objective not in allowed:
            how = "full batches" if batch_size is None else "mini-batches"
            raise OptionError(f"there is no objective {run.objective!r} for {how}; choose from {', '.join(allowed)}.")
    if batch_size is not None and not 1 <= batch_size <= len(rows):
        raise OptionError(f"batch_size must lie in 1 … {len(rows):,} (the number of rows); found {batch_size:,}.")
    if bool((rows.action < 0).any() | (rows.action >= n_actions).any()):
        raise LogError(f"actions must lie in 0 … {n_actions - 1}.")
    started = perf_counter()
    parameters = Parameters(runs, rows.context.shape[1], n_actions, rows.context.device)
    on_cuda = rows.context.is_cuda
    epoch: Iterator[Tensor] = (
        full_batch.epochs(rows, runs, parameters)
        if batch_size is None
        else mini_batch.epochs(rows, runs, parameters, batch_size, decay, on_cuda if graph is None else graph)
    )
    values, variances = [], []
    for _ in range(epochs):
        variances.append(next(epoch))
        if value is not None:
            values.append(value(parameters.weights))
    empty = torch.zeros(len(runs), 0)
    value_table = torch.stack(values, 1) if values else empty
    variance_table = torch.stack(variances, 1) if variances else empty
    return Curves(
        tuple(runs),
        value_table.double().cpu().numpy(),
        variance_table.double().cpu().numpy(),
        parameters.weights.detach().clone(),
        perf_counter() - started,
    )


class Parameters:
    """The weights of all runs, (runs, context, actions), and Adam with each run's own learning rate.

    The learning rate and Adam's corrections for its first steps come as a table with one entry per step, because a CUDA
    graph cannot count.
    """

    def __init__(self, runs: Sequence[Run], context_dimension: int, n_actions: int, device: torch.device) -> None:
        drawn = []
        for run in runs:
            # what nn.Linear draws after torch.manual_seed(seed), so that a run can be repeated with a plain module
            random = torch.Generator().manual_seed(run.seed)
            bound = context_dimension**-0.5
            drawn.append(torch.empty(n_actions, context_dimension).uniform_(-bound, bound, generator=random).T)
        self.weights = torch.stack(drawn).contiguous().to(device)
        self.mean = torch.zeros_like(self.weights)
        self.square = torch.zeros_like(self.weights)
        self.rate = torch.tensor([run.learning_rate for run in runs], device=device)[:, None, None]

    def table(self, first: int, steps: int) -> Tensor:
        """For each step, the factor of the learning rate and the root of the second moment's correction."""
        k = np.arange(first + 1, first + steps + 1, dtype=np.float64)
        corrections = np.stack([1 / (1 - 0.9**k), 1 / np.sqrt(1 - 0.999**k)], 1)
        return torch.as_tensor(corrections, dtype=torch.float32, device=self.weights.device)

    def ascend(self, gradient: Tensor, entry: Tensor) -> None:
        """One step of Adam, uphill, with the usual β₁ = 0.9, β₂ = 0.999, ε = 1e-8."""
        self.mean.lerp_(gradient, 0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        self.weights.addcdiv_(self.mean * (self.rate * entry[0]), (self.square.sqrt() * entry[1]).add_(1e-8))


class GreedyValue:
    """The mean expected reward of the greedy actions on some contexts; `expected` has one row per context."""

    def __init__(self, context: ArrayLike, expected: ArrayLike, *, device: str = "cpu") -> None:
        check_device(device)
        self.context = torch.as_tensor(np.asarray(context), dtype=torch.float32, device=device)
        self.expected = torch.as_tensor(np.asarray(expected), dtype=torch.float32, device=device)

    def __call__(self, weights: Tensor) -> Tensor:
        """A value per run."""
        total = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
        for part in chunks(len(self.context), weights[:, 0].numel(), weights.device):
            best = torch.matmul(self.context[part], weights).argmax(-1)
            expected = self.expected[part].expand(len(weights), -1, -1)
            total += expected.gather(2, best[..., None])[..., 0].sum(1, dtype=torch.float64)
        return total / len(self.context)


class SnipsValue:
    """The SNIPS value of the softmax policies on a log, by which BanditNet's λ is tuned, as published."""

    def __init__(self, rows: LoggedRows) -> None:
        self.rows = rows

    def __call__(self, weights: Tensor) -> Tensor:
        """A value per run."""
        sums = torch.zeros(2, len(weights), dtype=torch.float64, device=weights.device)
        for part in chunks(len(self.rows), weights[:, 0].numel(), weights.device):
            probabilities = torch.softmax(torch.matmul(self.rows.context[part], weights), -1)
            action = self.rows.action[part, None].expand(len(weights), -1, 1)
            w = probabilities.gather(-1, action)[..., 0] * self.rows.inverse[part]
            sums += torch.stack([(w * self.rows.reward[part]).sum(1), w.sum(1)])
        return sums[0] / sums[1]


def chunks(rows: int, width: int, device: torch.device) -> Iterator[slice]:
    """Slices of rows whose matrices of that width fit in the cache of a CPU, or fill a GPU."""
    size = max(1, (2**18 if device.type == "cpu" else 2**28) // width)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def squared_gradients(target: Tensor, probabilities: Tensor, factor: Tensor) -> Tensor:
    """‖∇π(a|x)‖²/π₀² for every row."""
    return logit_norms(target, squared_sum(probabilities)) * factor
