"""What a policy does when it serves: its probabilities at a temperature, among the actions that are allowed, and draws from them."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from counterpoise.errors import Argument, OptionError
from counterpoise.learn.logs.candidates import masked


class Choices:
    """How to choose among actions: at a temperature, and among those that a mask allows (`mask_of`), a row of it for every context.

    At temperature T, an action has a probability proportional to π(a|x)^(1/T): above 1 the policy explores more, below 1 less, and at 0
    it takes the most probable action always.

    Examples
    --------
    >>> logits = torch.tensor([[1.0, 2.0]], dtype=torch.float64).log()
    >>> Choices(temperature=0.5).probabilities(logits, slice(None)).numpy().round(3).tolist()
    [[0.2, 0.8]]
    >>> Choices(temperature=0).probabilities(torch.zeros(1, 2), slice(None)).tolist()
    [[1.0, 0.0]]
    """

    def __init__(self, temperature: Any = 1.0, mask: Tensor | None = None) -> None:
        self.temperature = _checked_temperature(temperature)
        self.mask = mask

    @property
    def is_plain(self) -> bool:
        """Whether it is the policy's softmax over all actions, and no more."""
        return self.temperature == 1 and self.mask is None

    def probabilities(self, logits: Tensor, rows: slice) -> Tensor:
        """The probabilities of all actions, in double precision; `rows` says which rows of the mask these are."""
        return torch.softmax(self._scaled(logits, rows), -1)

    def draw(self, logits: Tensor, rows: slice, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """One action per row, by its place, and its probability."""
        scaled = self._scaled(logits, rows)
        # the largest of logits plus Gumbel noise is a draw from their softmax, for any number of actions
        noise = torch.empty_like(scaled).exponential_(generator=generator)
        place = (scaled - noise.clamp_(min=torch.finfo(noise.dtype).tiny).log_()).argmax(-1)
        return place, torch.softmax(scaled, -1).gather(-1, place[:, None])[:, 0]

    def _scaled(self, logits: Tensor, rows: slice) -> Tensor:
        allowed = None if self.mask is None else self.mask[rows].to(logits.device)
        found = masked(logits.double(), allowed)
        if self.temperature == 0:
            greedy = torch.full_like(found, -torch.inf)
            return greedy.scatter_(-1, found.argmax(-1, keepdim=True), 0.0)
        if self.temperature == 1:
            return found
        # minus the largest, because what is divided by a tiny temperature must not overflow
        return (found - found.max(-1, keepdim=True).values) / self.temperature


def generator_of(seed: int | None, generator: torch.Generator | None, device: torch.device) -> torch.Generator | None:
    """Where random numbers come from: torch's own, a generator of yours, or one that starts from a seed."""
    if seed is None:
        return generator
    if generator is not None:
        raise OptionError(["you passed both ", Argument("seed"), " and ", Argument("generator"), "."], do="Pass one.")
    return torch.Generator(device).manual_seed(checked_seed(seed))


def checked_seed(seed: Any) -> int:
    """A seed that torch takes."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not -(2**63) <= int(seed) < 2**64:
        raise OptionError([Argument("seed"), f" must be a whole number of at most 64 bits; found {seed!r}."])
    return int(seed)


def _checked_temperature(temperature: Any) -> float:
    if isinstance(temperature, bool) or not isinstance(temperature, Real) or not 0 <= float(temperature) < math.inf:
        raise OptionError(
            f"temperature must be a number above 0, or 0 for the most probable action; found {temperature!r}."
        )
    return float(temperature)
