r"""Trains many runs as one: linear softmax policies that differ in method, learning rate and seed.

Runs are a batch dimension of every tensor, gradients are written out (no autograd), and on CUDA an epoch is one graph,
because at these sizes launching kernels would cost more than running them. Up to rounding, a run's numbers do not depend
on which other runs share its program.

An objective O of the weights w has the gradient :math:`\sum_i (\partial O/\partial w_i) \nabla\pi_i / \pi_{0,i}`, so objectives of
full batches differ only in the derivatives ∂O/∂w. Those of SNIPS, and of β-IPS differentiated through the β of least value variance,
are written out below.

On-policy runs draw their own actions and learn by REINFORCE with a baseline: section 2.1 of Gupta, Jeunen, Oosterhuis & de Rijke,
RecSys 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from counterpoise.errors import LogError, OptionError
from counterpoise.learn.norms import logit_norms, squared_sum

# named as the objectives of `counterpoise.learn` are; then the full-batch β-IPS of the paper, which is none of them, and `ON_POLICY`
Objective = Literal[
    "ips", "lambda_ips", "beta_ips", "running_beta_ips", "snips", "published_value_beta_ips", "none", "mean", "optimal"
]
MINI_BATCH = ("ips", "lambda_ips", "beta_ips", "running_beta_ips")
FULL_BATCH = ("ips", "lambda_ips", "snips", "published_value_beta_ips")
ON_POLICY = ("none", "mean", "optimal")  # the baselines of REINFORCE, each taken from the current batch
FLOOR = 1e-11  # of the published baseline's denominator
DECAY = 0.9  # of the sums behind the baseline of `running_beta_ips`, from batch to batch


def check_device(device: str) -> None:
    """Check that there is a GPU if one is asked for, before hours of running."""
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise OptionError(f"device must be 'cpu', or 'cuda' where PyTorch finds a GPU; found {device!r}.")


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
    graph: bool | None = None,
) -> Curves:
    """Train every run for some epochs; `batch_size=None` means full batch.

    `value(weights)`, such as a `GreedyValue`, returns a number per run after every epoch. Gradient variance is measured as in
    the paper's experiments: for each batch, (mean(‖∇π‖²c²) − ‖mean(c∇π)‖²)/B with c = (r − β)/π₀, summed over the epoch's
    batches and divided by the number of rows. `graph` asks for CUDA graphs or forbids them; by default they are used if there is CUDA.

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
    allowed, how = (FULL_BATCH, "full batches") if batch_size is None else (MINI_BATCH, "mini-batches")
    _check_objectives(runs, allowed, how)
    if batch_size is not None and not 1 <= batch_size <= len(rows):
        raise OptionError(f"batch_size must lie in 1 … {len(rows):,} (the number of rows); found {batch_size:,}.")
    if bool((rows.action < 0).any() | (rows.action >= n_actions).any()):
        raise LogError(f"actions must lie in 0 … {n_actions - 1}.")
    parameters = Parameters(runs, rows.context.shape[1], n_actions, rows.context.device)
    if batch_size is None:
        return _curves(runs, parameters, full_batch_epochs(rows, runs, parameters), epochs, value)
    on_cuda = rows.context.is_cuda if graph is None else graph
    batches = mini_batch_epochs(rows, runs, parameters, batch_size, on_cuda)
    return _curves(runs, parameters, batches, epochs, value)


def train_on_policy(
    world: GreedyValue,
    runs: Sequence[Run],
    *,
    epochs: int,
    batch_size: int = 1024,
    value: Callable[[Tensor], Tensor] | None = None,
) -> Curves:
    """Train `ON_POLICY` runs against a world whose expected rewards in [0, 1] are known; the rewards drawn are 0 or 1.

    An epoch passes over the world's contexts once, and `value` is measured after each epoch. Runs with the same seed share
    their first weights and the order of the contexts. The gradient variance of a batch is (mean(‖∇log π‖²(r − β)²) − ‖mean‖²)/B,
    summed over the epoch's batches and divided by the number of rows, just as off-policy.
    """
    _check_objectives(runs, ON_POLICY, "on-policy runs")
    parameters = Parameters(runs, world.context.shape[1], world.expected.shape[1], world.context.device)
    return _curves(runs, parameters, on_policy_epochs(world, runs, parameters, batch_size), epochs, value or world)


def _check_objectives(runs: Sequence[Run], allowed: Sequence[str], how: str) -> None:
    for run in runs:
        if run.objective not in allowed:
            raise OptionError(f"there is no objective {run.objective!r} for {how}; choose from {', '.join(allowed)}.")


def _curves(
    runs: Sequence[Run],
    parameters: Parameters,
    epoch: Iterator[Tensor],
    epochs: int,
    value: Callable[[Tensor], Tensor] | None,
) -> Curves:
    """Train for some epochs, each of which yields the gradient variance of every run, and measure `value` after each."""
    started, values, variances = perf_counter(), [], []
    for _ in range(epochs):
        variances.append(next(epoch))
        if value is not None:
            values.append(value(parameters.weights))
    value_table, variance_table = (
        (torch.stack(numbers, 1) if numbers else torch.zeros(len(runs), 0)).double().cpu().numpy()
        for numbers in (values, variances)
    )
    weights = parameters.weights.detach().clone()
    return Curves(tuple(runs), value_table, variance_table, weights, perf_counter() - started)


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


# -- Mini-batches: shuffle, then step through the batches with written-out gradients -----------------------------------


def mini_batch_epochs(
    rows: LoggedRows, runs: Sequence[Run], parameters: Parameters, batch_size: int, graph: bool
) -> Iterator[Tensor]:
    """Train one epoch each time, and yield the gradient variance of every run."""
    epoch = _MiniBatches(rows, runs, parameters, batch_size)
    device = rows.context.device
    replay: Callable[[], None] | None = None
    done = 0
    while True:
        epoch.shuffle()
        epoch.table.copy_(parameters.table(done, epoch.steps))
        if not graph:
            epoch.train()
        else:
            replay = replay or _capture(epoch, device)
            replay()
        done += epoch.steps
        yield epoch.variance / len(rows)


class _MiniBatches:
    """The buffers of an epoch: the rows of all runs, each in its own order, so that a batch is a slice."""

    def __init__(self, rows: LoggedRows, runs: Sequence[Run], parameters: Parameters, batch_size: int) -> None:
        device, shape = rows.context.device, (len(runs), len(rows))
        self.rows, self.parameters, self.batch_size = rows, parameters, batch_size
        self.steps = -(-len(rows) // batch_size)
        self.random = [torch.Generator(device).manual_seed(run.seed) for run in runs]
        self.order = torch.empty(shape, dtype=torch.int64, device=device)
        self.context = torch.empty(*shape, rows.context.shape[1], device=device)
        self.action = torch.empty(shape, dtype=torch.int64, device=device)
        self.reward, self.inverse, self.factor = (torch.empty(shape, device=device) for _ in range(3))
        self.table = torch.empty(self.steps, 2, device=device)
        self.variance = torch.zeros(len(runs), device=device)
        self.fixed = torch.tensor([[run.banditnet_lambda] for run in runs], device=device)
        self.from_batch = torch.tensor([[run.objective == "beta_ips"] for run in runs], device=device)
        self.from_past = torch.tensor([[run.objective == "running_beta_ips"] for run in runs], device=device)
        self.any_batch, self.all_batch = bool(self.from_batch.any()), bool(self.from_batch.all())
        self.any_past = bool(self.from_past.any())
        self.sums = torch.zeros(2, len(runs), 1, device=device)

    def shuffle(self) -> None:
        """A new order of the rows for every run."""
        for k, random in enumerate(self.random):
            torch.randperm(len(self.rows), generator=random, out=self.order[k], device=self.order.device)
        for k, order in enumerate(self.order):
            torch.index_select(self.rows.context, 0, order, out=self.context[k])
            for name in ("action", "reward", "inverse", "factor"):
                torch.index_select(getattr(self.rows, name), 0, order, out=getattr(self, name)[k])

    def train(self) -> None:
        """All batches of the epoch; the last may be smaller."""
        self.variance.zero_()
        for step in range(self.steps):
            self._step(slice(step * self.batch_size, (step + 1) * self.batch_size), self.table[step])

    def _step(self, batch: slice, entry: Tensor) -> None:
        context, action = self.context[:, batch], self.action[:, batch, None]
        reward, inverse, factor = self.reward[:, batch], self.inverse[:, batch], self.factor[:, batch]
        probabilities = torch.softmax(torch.bmm(context, self.parameters.weights), -1)
        target = probabilities.gather(-1, action)[..., 0]
        squares = squared_gradients(target, probabilities, factor)
        centered = reward - self._baseline(squares, reward)
        size = reward.shape[1]
        coefficient = target * centered * inverse / size
        # Σᵢ cᵢ πₐ (eₐ − π) xᵢᵀ
        outer = probabilities.mul_(-coefficient[..., None]).scatter_add_(-1, action, coefficient[..., None])
        gradient = torch.bmm(context.mT, outer)
        second_moment = (squares * centered.square()).mean(1)
        self.variance += (second_moment - gradient.square().sum((1, 2))) / size
        self.parameters.ascend(gradient, entry)

    def _baseline(self, squares: Tensor, reward: Tensor) -> Tensor:
        baseline = self.fixed
        if not (self.any_batch or self.any_past):
            return baseline
        numerator, denominator = (squares * reward).sum(1, keepdim=True), squares.sum(1, keepdim=True)
        if self.all_batch:
            return _ratio(numerator, denominator)
        if self.any_batch:
            baseline = torch.where(self.from_batch, _ratio(numerator, denominator), baseline)
        if self.any_past:
            baseline = torch.where(self.from_past, _ratio(*self.sums), baseline)
            self.sums.mul_(DECAY).add_(torch.stack([numerator, denominator]))
        return baseline


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The ratio, or 0 before there is anything to divide."""
    return numerator / denominator.clamp(min=torch.finfo(denominator.dtype).tiny)


def _capture(epoch: _MiniBatches, device: torch.device) -> Callable[[], None]:
    """The epoch as a CUDA graph. A trial step outside it lets the libraries set themselves up; it is then undone."""
    state = [epoch.parameters.weights, epoch.parameters.mean, epoch.parameters.square, epoch.sums, epoch.variance]
    saved = [tensor.clone() for tensor in state]
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for step in {0, epoch.steps - 1}:
            epoch._step(slice(step * epoch.batch_size, (step + 1) * epoch.batch_size), epoch.table[step])
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        epoch.train()
    for tensor, before in zip(state, saved, strict=True):
        tensor.copy_(before)
    return graph.replay


# -- Full batches: one step along the gradient of an objective of the whole log ----------------------------------------


def full_batch_epochs(rows: LoggedRows, runs: Sequence[Run], parameters: Parameters) -> Iterator[Tensor]:
    """Take one step each time, and yield the gradient variance of every run before it."""
    chosen = nn.functional.one_hot(rows.action, parameters.weights.shape[2]).to(rows.context)
    step = 0
    while True:
        weights, shape = parameters.weights, (len(parameters.weights), len(rows))
        target, squares = weights.new_empty(shape), weights.new_empty(shape)  # π(a|x) and ‖∇π(a|x)‖²/π₀²
        for part in chunks(len(rows), weights[:, 0].numel(), weights.device):
            probabilities = torch.softmax(torch.matmul(rows.context[part], weights), -1)
            logged = probabilities.gather(-1, rows.action[part, None].expand(len(weights), -1, 1))[..., 0]
            target[:, part] = logged
            squares[:, part] = squared_gradients(logged, probabilities, rows.factor[part])
        derivative, centered = _derivatives(rows, runs, target)
        # the objective's own gradient, and the one whose variance is measured
        gradient, measured = _gradients(rows, weights, chosen, target, torch.stack([derivative, centered]))
        second_moment = (squares * centered.square()).mean(1)
        parameters.ascend(gradient, parameters.table(step, 1)[0])
        step += 1
        yield (second_moment - measured.square().sum((1, 2))) / len(rows) ** 2


def _gradients(rows: LoggedRows, weights: Tensor, chosen: Tensor, target: Tensor, derivative: Tensor) -> Tensor:
    """The mean over rows of (n ∂O/∂w) ∇π/π₀ = Σᵢ cᵢ xᵢ (eₐ − π)ᵀ, for each of the stacked derivatives."""
    kinds, dimension = len(derivative), weights.shape[1]
    total = weights.new_zeros(len(weights), kinds * dimension, weights.shape[2])
    for part in chunks(len(rows), weights[:, 0].numel(), weights.device):
        probabilities = torch.softmax(torch.matmul(rows.context[part], weights), -1)
        coefficient = derivative[:, :, part] * (target[:, part] * rows.inverse[part])
        scaled = coefficient.transpose(0, 1)[:, :, None] * rows.context[part].T  # runs, kinds, context, rows
        scaled = scaled.flatten(1, 2)
        total += torch.matmul(scaled, chosen[part]) - torch.bmm(scaled, probabilities)
    return total.reshape(len(weights), kinds, dimension, -1).transpose(0, 1) / len(rows)


def _derivatives(rows: LoggedRows, runs: Sequence[Run], target: Tensor) -> tuple[Tensor, Tensor]:
    """n ∂O/∂w for every run and row, and r − β, from which the gradient variance is measured."""
    r = rows.reward
    derivative, centered = torch.empty_like(target), torch.empty_like(target)
    for objective in {run.objective for run in runs}:
        of = [k for k, run in enumerate(runs) if run.objective == objective]
        w = target[of] * rows.inverse
        mean = w.mean(1, keepdim=True)
        if objective == "snips":
            # published so: the variance of SNIPS' gradient was measured without a baseline
            derivative[of] = (r - (w * r).mean(1, keepdim=True) / mean) / mean
            centered[of] = r.expand_as(w)
        elif objective == "published_value_beta_ips":
            extra = w * w - w
            spread = extra.mean(1, keepdim=True).clamp(min=FLOOR)
            from_baseline = r - (r * extra).mean(1, keepdim=True) / spread
            centered[of] = from_baseline
            # O = β + mean(w(r − β)), and n ∂β/∂w = (r − β)(2w − 1)/mean(w² − w)
            derivative[of] = from_baseline * (1 + (1 - mean) * (2 * w - 1) / spread)
        else:
            centered[of] = r - r.new_tensor([[runs[k].banditnet_lambda] for k in of])
            derivative[of] = centered[of]
    return derivative, centered


# -- On-policy: every batch draws its own actions ----------------------------------------------------------------------


def on_policy_epochs(
    world: GreedyValue, runs: Sequence[Run], parameters: Parameters, batch_size: int
) -> Iterator[Tensor]:
    """Train one epoch each time, and yield the gradient variance of every run."""
    n, device = len(world.context), world.context.device
    orders = [torch.Generator(device).manual_seed(run.seed) for run in runs]
    chance = torch.Generator(device).manual_seed(min(run.seed for run in runs))
    mean = torch.tensor([[run.objective == "mean"] for run in runs], device=device)
    optimal = torch.tensor([[run.objective == "optimal"] for run in runs], device=device)
    step = 0
    while True:
        order = torch.stack([torch.randperm(n, generator=random, device=device) for random in orders])
        table = parameters.table(step, -(-n // batch_size))
        total = torch.zeros(len(runs), device=device)
        for k, entry in enumerate(table):
            rows = order[:, k * batch_size : (k + 1) * batch_size]
            context = world.context[rows]
            probabilities = torch.softmax(torch.bmm(context, parameters.weights), -1)
            # the largest of probabilities over exponential noise is a draw from them
            action = (probabilities / torch.empty_like(probabilities).exponential_(generator=chance)).argmax(-1)
            expected = world.expected[rows].gather(-1, action[..., None])[..., 0]
            reward = torch.bernoulli(expected, generator=chance)
            gradient, variance = reinforce_gradient(context, probabilities, action, reward, mean, optimal)
            total += variance
            parameters.ascend(gradient, entry)
        step += len(table)
        yield total / n


def reinforce_gradient(
    context: Tensor, probabilities: Tensor, action: Tensor, reward: Tensor, mean: Tensor, optimal: Tensor
) -> tuple[Tensor, Tensor]:
    """mean((r − β)∇log π) for every run, (runs, context, actions), and its variance, written out for linear policies."""
    size, action = action.shape[1], action[..., None]
    target = probabilities.gather(-1, action)[..., 0]
    rest = probabilities.square().sum(-1) - target.square()
    norms = ((1 - target).square() + rest.clamp(min=0)) * context.square().sum(-1)
    total = norms.sum(1, keepdim=True)
    best = (norms * reward).sum(1, keepdim=True) / torch.where(total > 0, total, 1.0)
    baseline = torch.where(mean, reward.mean(1, keepdim=True), 0.0)
    centered = reward - torch.where(optimal, best, baseline)
    coefficient = centered[..., None] / size
    outer = (probabilities * -coefficient).scatter_add_(-1, action, coefficient)
    gradient = torch.bmm(context.mT, outer)
    second_moment = (norms * centered.square()).mean(1)
    return gradient, (second_moment - gradient.square().sum((1, 2))) / size
