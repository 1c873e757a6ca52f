"""A simulated log ready to be written to a file: its rows, two target policies, and their true values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from counterpoise.environments.feedback import Floats, chunks
from counterpoise.environments.synthetic import SyntheticBandit

if TYPE_CHECKING:
    import polars

SHARPER = 3.0  # how much more the new policy prefers good actions than the logging policy does


def simulated_log(
    n: int, *, n_actions: int = 10, inverse_temperature: float = 1.0, seed: int = 0
) -> tuple[polars.DataFrame, dict[str, float]]:
    """A log of `SyntheticBandit` with two targets, and the true values of both and of the logging policy on its contexts.

    ``pi_new`` is a softmax of the expected rewards, sharper than the logging policy's; ``pi_uniform`` gives every action the same chance.

    Examples
    --------
    >>> log, truth = simulated_log(1000)
    >>> log.columns[-5:]
    ['action', 'reward', 'propensity', 'pi_new', 'pi_uniform']
    >>> truth["pi_new"] > truth["logging"] > truth["pi_uniform"]
    True
    """
    import polars as pl

    drawn = SyntheticBandit(n_actions, inverse_temperature=inverse_temperature, seed=seed).draw(n)
    probability = np.empty(n)
    earned = {name: np.empty(n) for name in ("pi_new", "pi_uniform", "logging")}
    for rows in chunks(n, n_actions):
        expected = drawn.expected(rows)
        new, old = _softmax((inverse_temperature + SHARPER) * expected), _softmax(inverse_temperature * expected)
        probability[rows] = new[np.arange(len(new)), drawn.action[rows]]
        earned["pi_new"][rows] = (new * expected).sum(axis=1)
        earned["logging"][rows] = (old * expected).sum(axis=1)
        earned["pi_uniform"][rows] = expected.mean(axis=1)
    frame = drawn.frame().with_columns(pi_new=pl.Series(probability), pi_uniform=pl.lit(1.0 / n_actions))
    return frame, {name: float(values.mean()) for name, values in earned.items()}


def _softmax(score: Floats) -> Floats:
    raised = np.exp(score - score.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))
