r"""Baselines of least gradient variance, each a ratio of two sums over rows, and the rules by which objectives choose one.

.. math:: \beta^* = \frac{\sum_i \lVert\nabla\pi_i\rVert^2 r_i / \pi_{0,i}^2}{\sum_i \lVert\nabla\pi_i\rVert^2 / \pi_{0,i}^2}

The two sums are what processes exchange (one all-reduce of two numbers), so β is the same for any number of processes.
References: Gupta, Jeunen, Oosterhuis & de Rijke, RecSys 2024, Theorem 1; on-policy: section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from counterpoise.errors import OptionError


def gradient_sums(squared_norms: Tensor, reward: Tensor, propensity: Tensor) -> Tensor:
    r"""The numerator and the denominator of β*, from :math:`\lVert\nabla\pi(a_i|x_i)\rVert^2` for each row."""
    weight = squared_norms.detach() / propensity / propensity
    return torch.stack([torch.dot(weight, reward), weight.sum()])


def baseline_of(sums: Tensor) -> Tensor:
    """β* from its two sums; 0 if no row has a gradient, because then any baseline will do.

    >>> baseline_of(torch.tensor([3.0, 4.0])).item(), baseline_of(torch.tensor([0.0, 0.0])).item()
    (0.75, 0.0)
    """
    numerator, denominator = sums.unbind(-1)
    return numerator / denominator.clamp(min=torch.finfo(sums.dtype).tiny)


class RunningBaseline:
    """β* from earlier batches only, so that the gradient of the current batch is unbiased.

    The sums fade by `decay` with every batch, because the policy moves on. The first batch has no past and uses `initial`.

    Examples
    --------
    >>> running = RunningBaseline(decay=0.5)
    >>> used = []
    >>> for r in (1.0, 0.0):
    ...     used.append(running.value.item())
    ...     running.update(torch.tensor([r, 1.0]))
    >>> used, round(running.value.item(), 3)
    ([0.0, 1.0], 0.333)
    """

    def __init__(self, *, decay: float = 0.9, initial: float = 0.0) -> None:
        if not 0 <= decay <= 1:
            raise OptionError(f"decay must lie in [0, 1] (0 remembers one batch, 1 all of them); found {decay}.")
        self.decay = decay
        self.initial = initial
        self.sums = torch.zeros(2, dtype=torch.float64)

    @property
    def value(self) -> Tensor:
        """The β to use now."""
        initial = torch.full_like(self.sums[1], self.initial)
        return torch.where(self.sums[1] > 0, baseline_of(self.sums), initial)

    def update(self, sums: Tensor) -> None:
        """Add the sums of a batch, after its step."""
        self.sums = self.decay * self.sums + sums.detach()


Rule = Callable[[RunningBaseline, float], Tensor | float | None]
"""What an objective subtracts from the rewards of a batch, from the batches before it and BanditNet's λ; None is the batch's own β*."""


def of_batch(past: RunningBaseline, banditnet_lambda: float) -> None:
    """β* of the batch itself, which costs a bias of order 1/batch."""


def of_past(past: RunningBaseline, banditnet_lambda: float) -> Tensor:
    """β* of the batches before this one, so that the gradient is unbiased."""
    return past.value


def of_lambda(past: RunningBaseline, banditnet_lambda: float) -> float:
    """BanditNet's λ."""
    return banditnet_lambda


def zero(past: RunningBaseline, banditnet_lambda: float) -> float:
    """No baseline at all."""
    return 0.0
