"""One cell of Figures 4 and 5: a world, a target policy learned in it, and every estimator's error.

They are our yardstick, floors, zeros and all, and we compare them with the published numbers digit by digit. The library's
own estimators agree with them wherever the value is identified, and say so where it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterpoise.environments import SyntheticBandit
from counterpoise.errors import OptionError
from counterpoise.estimators import beta_ips, cross_fit, optimal_dr
from counterpoise.experiments.regressions import fit_reward_model, fit_target
from counterpoise.moments import Moments

# -- The five estimators and their variances as the paper's released code computes them --------------------------------

Floats = NDArray[np.float64]

PUBLISHED = ("DM", "DR", "IPS", "SNIPS", "beta-IPS")


def published(
    weight: Floats, reward: Floats, model_reward: Floats, model_value: Floats
) -> dict[str, tuple[float, float]]:
    """The value and variance of every published estimator.

    If a log has no overlap (all weights are 0), IPS, SNIPS and beta-IPS have the value 0 and the variance 0, as published.

    >>> published(np.zeros(2), np.ones(2), np.ones(2), np.ones(2))["SNIPS"]
    (0.0, 0.0)
    """
    w, r = weight, reward
    extra = w * w - w
    beta = float(np.mean(r * extra)) / max(float(np.mean(extra)), 1e-11)
    return {
        "DM": _mean(model_value),
        "DR": _mean(model_value + w * (r - model_reward)),
        "IPS": _mean(w * r),
        "SNIPS": _self_normalized(w, r),
        "beta-IPS": _mean(beta + w * (r - beta)),
    }


def _mean(terms: Floats) -> tuple[float, float]:
    return float(terms.mean()), float(terms.var()) / terms.size


def _self_normalized(w: Floats, r: Floats) -> tuple[float, float]:
    value = float((w * r).mean()) / max(float(w.mean()), 1e-10)
    return value, float(np.square(w * (r - value)).sum()) / max(float(w.sum()), 1e-10) ** 2


# ----------------------------------------------------------------------------------------------------------------------


OURS = ("beta_ips", "cross_fit", "optimal_dr")
ESTIMATORS = (*PUBLISHED, *OURS)
FOLDS = 10


class Cell(NamedTuple):
    """Which world, how many rows, and which seed."""

    inverse_temperature: float
    n_actions: int
    n: int
    seed: int


@dataclass(frozen=True)
class Run:
    """What one estimator made of one cell; squared error and variance are NaN if the value is not identified."""

    estimator: str
    squared_error: float
    variance: float


def check_cell(cell: Cell) -> None:
    """Check that a cell can be run at all."""
    if not np.isfinite(cell.inverse_temperature):
        raise OptionError(f"the inverse temperature must be a finite number; found {cell.inverse_temperature}.")
    if cell.n_actions < 2:
        raise OptionError(f"a cell needs at least 2 actions; found {cell.n_actions}.")
    if cell.n < 1:
        raise OptionError(f"a cell needs n of at least 1 row; found {cell.n}.")
    if not 0 <= cell.seed < 2**32:
        raise OptionError(f"seeds must lie in 0 … 2³² − 1; found {cell.seed}.")


def run_cell(cell: Cell) -> list[Run]:
    """Draw a training batch and a test batch, learn a target policy on the first, and evaluate it on the second.

    >>> [run.estimator for run in run_cell(Cell(1.0, 25, 100, 0))][:5]
    ['DM', 'DR', 'IPS', 'SNIPS', 'beta-IPS']
    """
    check_cell(cell)
    world = SyntheticBandit(cell.n_actions, inverse_temperature=cell.inverse_temperature, seed=cell.seed)
    training, test = world.draw(cell.n), world.draw(cell.n)
    policy, model = fit_target(training), fit_reward_model(training)
    del training
    action = policy(test.context)
    weight = (action == test.action) / test.propensity
    model_reward, model_value = model(test.context, test.action), model(test.context, action)
    truth = test.value(action)
    estimates = published(weight, test.reward, model_reward, model_value)
    estimates |= ours(weight, test.reward, model_reward, model_value)
    return [Run(name, (value - truth) ** 2, variance) for name, (value, variance) in estimates.items()]


def ours(w: Floats, r: Floats, q: Floats, v: Floats) -> dict[str, tuple[float, float]]:
    """The library's β (Cov/Var), the cross-fitted one, and the optimal combination with the reward model."""
    folds = [
        Moments.of(w[k::FOLDS], r[k::FOLDS], model_reward=q[k::FOLDS], model_value=v[k::FOLDS]) for k in range(FOLDS)
    ]
    groups = Moments.stack(folds)
    log = groups.merge(axis=0)
    estimates = {"beta_ips": beta_ips(log), "cross_fit": cross_fit(groups), "optimal_dr": optimal_dr(log)}
    return {name: (float(e.value), float(e.stderr) ** 2) for name, e in estimates.items()}
