"""A fitted model: its predictions for pairs of context and action, and for all actions of a block of contexts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from counterpoise.models.design import Design, blocks
from counterpoise.models.estimators import predicted
from counterpoise.moments import Floats

Codes = NDArray[np.int64]
CROSSED = 200_000  # pairs of context and action that are predicted at once
CELLS = 40_000_000  # of the table that these are, unless it is sparse


class Fit(Protocol):
    """A model that was fitted on the rows of all folds but one."""

    def pairs(self, x: Floats, codes: Codes) -> Floats:
        """The predicted reward of one action for every context."""

    def table(self, x: Floats, codes: Codes) -> NDArray[Any]:
        """The predicted rewards of these actions for every context: contexts × actions."""


@dataclass(frozen=True)
class Joint:
    """One model of context and action, about which nothing more is known: every pair is predicted."""

    estimator: Any
    design: Design

    def pairs(self, x: Floats, codes: Codes) -> Floats:
        """One prediction per row."""
        return predicted(self.estimator, self.design.pairs(x, codes))

    def table(self, x: Floats, codes: Codes) -> NDArray[Any]:
        """Every context with every action, a few contexts at a time."""
        found = np.empty((len(x), len(codes)))
        wide = 1 if self.design.is_sparse else x.shape[1] + self.design.features.shape[1]
        most = min(CROSSED, CELLS // max(wide, 1))
        for part in blocks(len(x), max(most // max(len(codes), 1), 1)):
            rows = np.repeat(x[part], len(codes), axis=0)
            found[part] = self.pairs(rows, np.tile(codes, part.stop - part.start)).reshape(-1, len(codes))
        return found


@dataclass(frozen=True)
class Constant:
    """The same reward for every context."""

    value: float

    def of(self, x: Floats) -> Floats:
        """That reward."""
        return np.full(len(x), self.value)


@dataclass(frozen=True)
class Alone:
    """A model of one action."""

    estimator: Any

    def of(self, x: Floats) -> Floats:
        """The predicted reward of the action for every context."""
        return predicted(self.estimator, x)


@dataclass(frozen=True)
class PerAction:
    """A model of the context for every action; the last is for actions that are not known."""

    models: tuple[Constant | Alone, ...]

    def pairs(self, x: Floats, codes: Codes) -> Floats:
        """Each row by the model of its action."""
        found = np.empty(len(x))
        order = np.argsort(codes, kind="stable")
        present, starts = np.unique(codes[order], return_index=True)
        for code, rows in zip(present, np.split(order, starts)[1:], strict=True):
            found[rows] = self.models[code].of(x[rows])
        return found

    def table(self, x: Floats, codes: Codes) -> NDArray[Any]:
        """All contexts by every model."""
        return np.column_stack([self.models[code].of(x) for code in codes])
