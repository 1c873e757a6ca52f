"""Contenders: the ways to learn a policy that a search tries, and what each of them is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from counterpoise.learn.logs.rows import Rows
from counterpoise.learn.logs.scaling import Columns

FOREST_ACTIONS = 200  # a leaf has a number for every action, and a forest has many leaves
IMITATION = "imitation"
SMALL, LARGE = (128,), (256, 128)  # hidden layers


@dataclass(frozen=True)
class Rest:
    """The rows that a policy is learned from: all of a log, or those outside a fold.

    A contender with `keeps_time` stays within `seconds`, if there is a limit, and writes to `cuts` what it left out for that. Any other
    one is given as few rows as it can be expected to take in that time.
    """

    rows: Rows
    n_actions: int
    seconds: float | None = None
    cuts: list[str] = field(default_factory=list)

    @cached_property
    def columns(self) -> Columns:
        """Mean and scale of the contexts."""
        found = Columns(self.rows.context.shape[1])
        found.add(self.rows.context)
        return found

    @cached_property
    def lowest(self) -> float:
        """The lowest reward."""
        return float(self.rows.reward.min())

    @cached_property
    def is_binary(self) -> bool:
        """Whether there are two different rewards."""
        return len(np.unique(self.rows.reward.numpy())) == 2


class Contender(Protocol):
    """A way to learn a policy: anything with a name, serving temperatures to choose from, and `fit`."""

    @property
    def name(self) -> str:
        """What the leaderboard calls it."""

    @property
    def temperatures(self) -> Sequence[float]:
        """How it may serve: 1 as it was learned, less with fewer chances taken, 0 always with the best action."""

    def fit(self, rest: Rest, seed: int) -> Any:
        """A `Policy`, or anything with `predict_proba`: a column for each of the actions 0, 1, …, or for those in its `classes_`."""


def portfolio(n_actions: int) -> list[Contender]:
    """The contenders that a search tries by default, cheap and useful ones first, as time may run out.

    >>> [one.name for one in portfolio(1000)]
    ['direct linear', 'softmax', 'direct network', 'log smoothing', 'large direct network']
    """
    from counterpoise.learn.search import forests, networks, reduction

    found: list[Contender] = [
        networks.Network("direct linear", networks.Direct(), hidden=(), epochs=10, rate=0.02),
        networks.Network("softmax", networks.Softmax(imitation=0.03), hidden=SMALL, epochs=20),
        networks.Network("direct network", networks.Direct(), hidden=SMALL, epochs=10),
        networks.Network("log smoothing", networks.LogSmoothing(), hidden=SMALL, epochs=20),
        networks.Network("large direct network", networks.Direct(), hidden=LARGE, epochs=30, rate=0.005, decay=0.01),
    ]
    if n_actions <= FOREST_ACTIONS and find_spec("sklearn") is not None:
        found.insert(3, forests.ForestLearner())
        found.append(reduction.of_trees())
    return found


def imitation() -> Contender:
    """The likelihood fit of the policy that wrote the log."""
    from counterpoise.learn.search import networks

    return networks.Network(IMITATION, networks.Imitation(), hidden=LARGE, epochs=20, rate=0.005)
