"""Cross-fitting: the fold of every row, by its identity and never its content, and how well models predict rows they have not seen."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.errors import OptionError
from counterpoise.log.groups import folds_of, row_ids
from counterpoise.moments import Floats
from counterpoise.readers.batches import identity

FOLD = "counterpoise fold"


class HasFolds(Protocol):
    """Which model to fit, and on how many folds."""

    @property
    def folds(self) -> int:
        """How many."""


M = TypeVar("M", bound=HasFolds)


@dataclass(frozen=True)
class CrossFit(Generic[M]):
    """A model whose fits have each seen all folds but one, and predict that one, as readers and engines see it."""

    model: M  # a `Reward` or a `Propensity`
    identity: tuple[str, ...]  # the columns that tell rows apart; none if row numbers do

    @property
    def described(self) -> str:
        """What it is, as text that stays the same from day to day."""
        text = identity(self.model)
        if text is None:
            raise OptionError(
                "the model has something in it that cannot be looked at (a connection or a lock, say), so a state could not tell it from "
                "another model.",
                do="Pass one of scikit-learn's own.",
            )
        return text

    def folds(self, frame: pl.DataFrame, first_row: int) -> NDArray[np.int64]:
        """The fold of every row of a batch."""
        return folds_of(row_ids(frame, self.identity, first_row), self.model.folds)


# -- how good models are, out of fold -----------------------------------------------------------------------------------


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
        text = f"{self.model}, fitted on {self.rows:,} rows in {self.folds} folds; out of fold R² {self.r2:.3g}"
        losses = f", log loss {self.log_loss:.3g} (of the mean {self.log_loss_of_mean:.3g})"
        return text if np.isnan(self.log_loss) else text + losses


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
    parts = np.array_split(np.argsort(predictions, kind="stable"), BINS)
    bins = (Bin(len(k), float(predictions[k].mean()), float(rewards[k].mean())) for k in parts if len(k))
    return Quality(model, len(rewards), folds, r2, *losses, tuple(bins))


def log_loss(rewards: Floats, predictions: Floats) -> float:
    """The mean of −log of the probability that was given to what happened."""
    p = np.clip(predictions, 1e-15, 1 - 1e-15)
    return float(-(rewards * np.log(p) + (1 - rewards) * np.log1p(-p)).mean())


# -- propensity models -------------------------------------------------------------------------------------------------


QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class PropensityQuality:
    """A propensity model out of fold: on rows of the sample that the predicting model was not fitted on.

    The `log_loss` of the logged actions stands beside that of their shares alone (`log_loss_of_shares`): they are equal if the
    context says nothing about the choice. `calibration` has the probabilities of all actions in tenths, predicted against
    observed. `quantiles` are those of the propensities of the logged actions, from the least (0.0) to the largest (1.0), `raised`
    how many of them were below the `floor`, and `effective_rows` what the rows are worth to a policy that chooses every action
    equally often.
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
    error_by: str = "scores"  # the fit's effect is in the errors; or "known": they take the propensities as known

    def __str__(self) -> str:
        return (
            f"{self.model} of {', '.join(self.context)}, fitted on {self.rows:,} rows in {self.folds} folds; {self.actions:,} actions; out "
            f"of fold log loss {self.log_loss:.3g} (of the shares {self.log_loss_of_shares:.3g})"
        )


def calibration_of(table: Floats, codes: NDArray[np.int64]) -> tuple[Bin, ...]:
    """The probabilities of all actions, predicted against observed, in bins of as many observations.

    >>> bins = calibration_of(np.array([[0.5, 0.5]] * 20), np.array([0, 1] * 10))
    >>> [(bin.rows, bin.predicted, bin.observed) for bin in bins]
    [(40, 0.5, 0.5)]
    """
    predicted, observed = table.reshape(-1), np.zeros(table.size)
    observed[np.arange(len(codes)) * table.shape[1] + codes] = 1.0
    edges = np.unique(np.quantile(predicted, np.linspace(0, 1, BINS + 1)[1:-1]))
    place = np.searchsorted(edges, predicted, side="left")
    count = np.bincount(place, minlength=len(edges) + 1)
    p, o = (np.bincount(place, values, len(count)) for values in (predicted, observed))
    return tuple(Bin(int(n), float(p[k] / n), float(o[k] / n)) for k, n in enumerate(count) if n)


def propensity_quality_of(
    table: Floats, codes: NDArray[np.int64], shares: Floats, least: float, **others: Any
) -> PropensityQuality:
    """The quality of calibrated probabilities of all actions, for rows that the model has not seen."""
    p = table[np.arange(len(codes)), codes]
    kept = np.clip(p, least, 1.0)
    w = 1.0 / kept
    return PropensityQuality(
        raised=int((p < least).sum()),
        log_loss=float(-np.log(kept).mean()),
        log_loss_of_shares=float(-np.log(shares[codes]).mean()),
        effective_rows=float(np.square(w.sum()) / np.square(w).sum()),
        quantiles=tuple((q, float(np.quantile(kept, q))) for q in QUANTILES),
        calibration=calibration_of(table, codes),
        **others,
    )
