"""How good a reward model is on rows that it has not seen."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np

from counterpoise.moments import Floats

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Rows of similar predictions: how many, what was predicted, and what came of it."""

    rows: int
    predicted: float
    observed: float


@dataclass(frozen=True)
class Quality:
    """A model's quality out of fold: on rows of the sample that the predicting model was not fitted on.

    `r2` is the share of the rewards' variance that it explains: below 0 it is worse than their mean. For rewards of 0 and 1 there is
    the `log_loss`, beside that of the mean alone (`log_loss_of_mean`), and the `calibration` over tenths of the rows.
    """

    model: str
    rows: int
    folds: int
    r2: float
    log_loss: float = nan
    log_loss_of_mean: float = nan
    calibration: tuple[Bin, ...] = ()

    def __str__(self) -> str:
        loss = (
            ""
            if np.isnan(self.log_loss)
            else f", log loss {self.log_loss:.3g} (of the mean {self.log_loss_of_mean:.3g})"
        )
        return f"{self.model}, fitted on {self.rows:,} rows in {self.folds} folds; out of fold R² {self.r2:.3g}{loss}"


def quality_of(model: str, folds: int, rewards: Floats, predictions: Floats) -> Quality:
    """The quality of predictions for rows that the model has not seen.

    >>> quality_of("mean", 2, np.array([0.0, 1.0]), np.array([0.5, 0.5])).r2
    0.0
    """
    residual, total = np.square(rewards - predictions).sum(), np.square(rewards - rewards.mean()).sum()
    r2 = float(1.0 - residual / total) if total > 0 else nan
    if not np.isin(rewards, (0.0, 1.0)).all():
        return Quality(model, len(rewards), folds, r2)
    mean = np.full(len(rewards), rewards.mean())
    losses = (log_loss(rewards, predictions), log_loss(rewards, mean))
    return Quality(model, len(rewards), folds, r2, *losses, _calibration(rewards, predictions))


def log_loss(rewards: Floats, predictions: Floats) -> float:
    """The mean of −log of the probability that was given to what happened."""
    p = np.clip(predictions, 1e-15, 1 - 1e-15)
    return float(-(rewards * np.log(p) + (1 - rewards) * np.log1p(-p)).mean())


def _calibration(rewards: Floats, predictions: Floats) -> tuple[Bin, ...]:
    parts = np.array_split(np.argsort(predictions, kind="stable"), BINS)
    return tuple(Bin(len(k), float(predictions[k].mean()), float(rewards[k].mean())) for k in parts if len(k))
