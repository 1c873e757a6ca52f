"""Standardizes contexts: the mean and scale of every column of a log, and the layer that applies them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Standardize(nn.Module):
    """(x − mean) / scale for every column; both are stored with the policy and never learned.

    >>> layer = Standardize(2)
    >>> _ = layer.load_state_dict({"mean": torch.tensor([40.0, 50_000.0]), "scale": torch.tensor([10.0, 20_000.0])})
    >>> layer(torch.tensor([[50.0, 30_000.0]])).tolist()
    [[1.0, -1.0]]
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, context_dimension: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(context_dimension))
        self.register_buffer("scale", torch.ones(context_dimension))

    def forward(self, context: Tensor) -> Tensor:
        """The context in units of its columns' spread."""
        return (context - self.mean) / self.scale

    @property
    def is_unset(self) -> bool:
        """Whether mean and scale are still 0 and 1, so that it does nothing."""
        return not bool(self.mean.any()) and bool((self.scale == 1).all())

    def set_to(self, columns: Columns) -> None:
        """Take mean and scale from the columns of a log."""
        self.load_state_dict({"mean": columns.mean, "scale": columns.scale})


def standardize(policy: nn.Module, columns: Columns) -> None:
    """Give a policy that standardizes its contexts the mean and scale of a log's columns, unless it has others already."""
    for layer in policy.modules():
        if isinstance(layer, Standardize) and layer.is_unset and len(layer.mean) == len(columns.mean):
            layer.set_to(columns)


class Columns:
    """The mean and standard deviation of every column, part by part, in one pass.

    Examples
    --------
    A column that never varies has scale 1, so that nothing is divided by 0:

    >>> columns = Columns(2)
    >>> for part in ([[1.0, 7.0]], [[2.0, 7.0], [3.0, 7.0]]):
    ...     columns.add(torch.tensor(part))
    >>> columns.mean.tolist(), [round(s, 3) for s in columns.scale.tolist()]
    ([2.0, 7.0], [0.816, 1.0])
    """

    def __init__(self, dimension: int) -> None:
        self.rows = 0
        self.mean = torch.zeros(dimension, dtype=torch.float64)
        self._scatter = torch.zeros_like(self.mean)
        self._lowest = torch.full_like(self.mean, torch.inf)
        self._highest = -self._lowest
        self._left = torch.zeros(dimension, dtype=torch.bool)

    def leave(self, which: Tensor) -> None:
        """Let some columns stay as they are, with mean 0 and scale 1: standardized, a rare level would be a very large number."""
        self._left = which
        self.mean = torch.where(which, 0.0, self.mean)

    def add(self, context: Tensor) -> None:
        """Take in some rows."""
        if not len(context):
            return
        x = context.double()
        rows, mean = len(x), x.mean(0)
        apart, share = mean - self.mean, rows / (self.rows + rows)
        # Chan's update: sums of squares would lose all digits of columns such as timestamps
        self._scatter += (x - mean).square().sum(0) + apart.square() * (self.rows * share)
        self.mean = self.mean + apart * share
        self.rows += rows
        self._lowest = torch.minimum(self._lowest, x.amin(0))
        self._highest = torch.maximum(self._highest, x.amax(0))

    @property
    def scale(self) -> Tensor:
        """The standard deviations; 1 for a column that never varies."""
        varies = (self._highest > self._lowest) & ~self._left
        return torch.where(varies, (self._scatter / max(self.rows, 1)).sqrt(), 1.0)
