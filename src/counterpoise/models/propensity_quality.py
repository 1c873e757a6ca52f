"""How good a propensity model is on rows that it has not seen, and how far its propensities overlap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterpoise.models.quality import BINS, Bin
from counterpoise.moments import Floats

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class PropensityQuality:
    """A propensity model out of fold: on rows of the sample that the predicting model was not fitted on.

    The `log_loss` of the logged actions stands beside that of their shares alone (`log_loss_of_shares`): context that tells nothing of
    the choice leaves them equal. `calibration` has the probabilities of all actions in tenths, predicted against observed. `quantiles`
    are those of the propensities of the logged actions, from the least (0.0) to the largest (1.0), `raised` how many of them were below
    the `floor`, and `effective_rows` what the rows are worth to a policy that chooses every action equally often.
    """

    model: str
    rows: int
    folds: int
    actions: int
    context: tuple[str, ...]
    logged: int  # rows of the sample whose propensity was logged, and not estimated
    sharpness: float
    floor: float
    raised: int
    log_loss: float
    log_loss_of_shares: float
    effective_rows: float
    quantiles: tuple[tuple[float, float], ...]
    calibration: tuple[Bin, ...]
    error_by: str = (
        "scores"  # "scores": the fit's effect is in the errors; "known": they take the propensities as known
    )

    def __str__(self) -> str:
        return (
            f"{self.model} of {', '.join(self.context)}, fitted on {self.rows:,} rows in {self.folds} folds; {self.actions:,} actions; out "
            f"of fold log loss {self.log_loss:.3g} (of the shares {self.log_loss_of_shares:.3g})"
        )


def calibration_of(table: Floats, codes: NDArray[np.int64]) -> tuple[Bin, ...]:
    """The probabilities of all actions, predicted against observed, in bins of as many observations.

    >>> found = calibration_of(np.array([[0.5, 0.5]] * 20), np.array([0, 1] * 10))
    >>> [(one.rows, one.predicted, one.observed) for one in found]
    [(40, 0.5, 0.5)]
    """
    predicted, observed = table.reshape(-1), np.zeros(table.size)
    observed[np.arange(len(codes)) * table.shape[1] + codes] = 1.0
    edges = np.unique(np.quantile(predicted, np.linspace(0, 1, BINS + 1)[1:-1]))
    place = np.searchsorted(edges, predicted, side="left")
    count = np.bincount(place, minlength=len(edges) + 1)
    p, o = (np.bincount(place, values, len(count)) for values in (predicted, observed))
    return tuple(Bin(int(n), float(p[k] / n), float(o[k] / n)) for k, n in enumerate(count) if n)


def effective_rows(propensities: Floats) -> float:
    """(Σ 1/p)² / Σ 1/p²: what rows are worth to a policy that chooses every action equally often."""
    w = 1.0 / propensities
    return float(np.square(w.sum()) / np.square(w).sum())
