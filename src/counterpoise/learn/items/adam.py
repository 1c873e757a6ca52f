"""Adam for a catalog of which every step sees a few items only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


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
