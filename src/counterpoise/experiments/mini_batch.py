"""A mini-batch epoch of many runs: shuffle, then step through the batches with written-out gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from counterpoise.experiments.many import LoggedRows, Parameters, Run, squared_gradients


def epochs(
    rows: LoggedRows, runs: Sequence[Run], parameters: Parameters, batch_size: int, decay: float, graph: bool
) -> Iterator[Tensor]:
    """Train one epoch each time, and yield the gradient variance of every run."""
    epoch = _Epoch(rows, runs, parameters, batch_size, decay)
    device = rows.context.device
    replay: Callable[[], None] | None = None
    done = 0
    while True:
        epoch.shuffle()
        epoch.table.copy_(parameters.table(done, epoch.steps))
        if not graph:
            epoch.train()
        else:
            replay = replay or _captured(epoch, device)
            replay()
        done += epoch.steps
        yield epoch.variance / len(rows)


class _Epoch:
    """The buffers of an epoch: the rows of all runs, each in its own order, so that a batch is a slice."""

    def __init__(
        self, rows: LoggedRows, runs: Sequence[Run], parameters: Parameters, batch_size: int, decay: float
    ) -> None:
        device, shape = rows.context.device, (len(runs), len(rows))
        self.rows, self.parameters, self.batch_size, self.decay = rows, parameters, batch_size, decay
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
            self.sums.mul_(self.decay).add_(torch.stack([numerator, denominator]))
        return baseline


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The ratio, or 0 before there is anything to divide."""
    return numerator / denominator.clamp(min=torch.finfo(denominator.dtype).tiny)


def _captured(epoch: _Epoch, device: torch.device) -> Callable[[], None]:
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
