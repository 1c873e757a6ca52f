"""`SyntheticBandit`: the simulator behind the paper's evaluation and learning experiments."""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.environments.coefficients import Polynomial, polynomial
from counterpoise.environments.feedback import (
    Feedback,
    Floats,
    Integers,
    check_at_least,
    check_probabilities,
    check_seed,
    chunks,
    sample_actions,
)
from counterpoise.errors import Argument, OptionError


class SyntheticBandit:
    r"""A contextual bandit with sparse polynomial rewards and a softmax logging policy.

    .. math:: q(x, a) = \sigma(d\,(v - \bar v / s_v)), \qquad \pi_0(a \mid x) \propto \exp(T q(x, a))

    v is a polynomial of degree d in the context and the one-hot action. A share `ratio` of its monomials have coefficients,
    uniform on (−1, 1); v̄ and s_v are its mean and standard deviation over the batch. (This is how it was published: the
    standardization lacks its parentheses, so rewards depend a little on the batch they are drawn with.)

    The defaults are the paper's world, exact to the draw: the same seed gives the rows behind its published numbers.
    Each `draw` continues the environment's own stream of contexts and rewards, so a second batch has new rows.

    With `inverse_temperature` T > 0 good actions are logged more often, with T < 0 bad ones. `degree=1, ratio=1` makes v
    linear in the context, per action. `reward="continuous"` takes v itself as the expected reward and adds normal noise
    with standard deviation `noise`. `logging` is "softmax", "uniform", or a function that turns each context into a row
    of action probabilities.

    Examples
    --------
    A worse logging policy earns less:

    >>> bad = SyntheticBandit(n_actions=25, inverse_temperature=-5, seed=0).draw(2000)
    >>> good = SyntheticBandit(n_actions=25, inverse_temperature=5, seed=0).draw(2000)
    >>> bool(bad.reward.mean() < good.reward.mean())
    True

    References
    ----------
    Gupta, Jeunen, Oosterhuis & de Rijke, RecSys 2024, section 4; Saito, Aihara, Matsutani & Narita, "Open Bandit
    Dataset and Pipeline", NeurIPS 2021, for the environment it parameterizes.
    """

    def __init__(
        self,
        n_actions: int,
        *,
        inverse_temperature: float = 1.0,
        seed: int = 0,
        context_dimension: int = 5,
        degree: int = 4,
        ratio: float = 0.1,
        reward: Literal["binary", "continuous"] = "binary",
        noise: float = 1.0,
        logging: Literal["softmax", "uniform"] | Callable[[Floats], ArrayLike] = "softmax",
    ) -> None:
        check_at_least("n_actions", n_actions, 2)
        check_at_least("context_dimension", context_dimension, 1)
        check_at_least("degree", degree, 1)
        check_seed(seed)
        if not 0 < ratio <= 1:
            raise OptionError(
                [Argument("ratio", ratio), " must lie in (0, 1]: it is the share of monomials that have a coefficient."]
            )
        if not np.isfinite(inverse_temperature):
            raise OptionError([Argument("inverse_temperature", inverse_temperature), " is not a finite number."])
        if reward not in ("binary", "continuous"):
            raise OptionError([Argument("reward", reward), " is unknown; choose 'binary' or 'continuous'."])
        if not (np.isfinite(noise) and noise >= 0):
            raise OptionError(
                [Argument("noise", noise), " is not a standard deviation; pass a finite number of at least 0."]
            )
        if not callable(logging) and logging not in ("softmax", "uniform"):
            raise OptionError(
                [
                    Argument("logging", logging),
                    " is unknown; choose 'softmax', 'uniform' or a function of the contexts.",
                ]
            )
        if comb(context_dimension + degree, degree) > 10**6:
            raise OptionError(
                f"a polynomial of degree {degree} in {context_dimension} context dimensions has "
                f"{comb(context_dimension + degree, degree):,} monomials, more than 1,000,000.",
                do=["Lower ", Argument("degree"), " or ", Argument("context_dimension"), "."],
            )
        self.n_actions = n_actions
        self.inverse_temperature = inverse_temperature
        self.seed = seed
        self.context_dimension = context_dimension
        self.degree = degree
        self.ratio = ratio
        self.reward = reward
        self.noise = noise
        self.logging = logging
        self._random = np.random.RandomState(seed)

    def draw(self, n: int) -> Feedback:
        """Log the next n rows."""
        check_at_least("n", n, 1)
        v = self._polynomial()
        context = self._random.normal(size=(n, self.context_dimension))
        shift = self._shift(v, context)

        def expected_by_kind(rows: slice) -> Floats:
            value = v(context[rows]) - shift
            return value if self.reward == "continuous" else _sigmoid(self.degree * value)

        # Actions come from a fresh generator for every batch, so the first rows of two batches share these uniforms.
        uniform = np.random.RandomState(self.seed).uniform(size=n)
        action, chosen, propensity = np.empty(n, dtype=np.int64), np.empty(n), np.empty(n)
        for rows in chunks(n, self.n_actions):
            expected = expected_by_kind(rows)
            action[rows], propensity[rows] = self._log(context[rows], expected, v, uniform[rows])
            chosen[rows] = expected[v.kind[action[rows]], np.arange(expected.shape[1])]
        if self.reward == "continuous":
            reward = chosen + self.noise * self._random.normal(size=n)
        else:
            reward = self._random.binomial(1, chosen).astype(np.float64)
        return Feedback(
            context=context,
            action=action,
            reward=reward,
            propensity=propensity,
            n_actions=self.n_actions,
            expected=lambda rows: expected_by_kind(rows)[v.kind].T,
        )

    def _polynomial(self) -> Polynomial:
        return polynomial(self.seed, self.n_actions, self.context_dimension, self.degree, self.ratio)

    def _shift(self, v: Polynomial, context: Floats) -> float:
        """mean(v) / std(v) over all rows and actions, chunk by chunk (Chan, Golub & LeVeque 1983)."""
        share = np.bincount(v.kind) / self.n_actions  # of the actions, by kind
        count, mean, scatter = 0, 0.0, 0.0
        for rows in chunks(len(context), self.n_actions):
            values = v(context[rows])
            size = values.shape[1]
            m = float((share @ values).mean())
            delta = m - mean
            scatter += float((share @ np.square(values - m)).sum()) + delta * delta * count * size / (count + size)
            mean += delta * size / (count + size)
            count += size
        deviation = np.sqrt(scatter / count)
        return mean / float(deviation) if deviation > 0 else 0.0

    def _log(self, context: Floats, expected: Floats, v: Polynomial, uniform: Floats) -> tuple[Integers, Floats]:
        """The logged actions of some rows, and their propensities."""
        if callable(self.logging):
            mass = np.array(self.logging(context), dtype=np.float64)
            check_probabilities("the logging policy", mass, (len(context), self.n_actions))
            mass, kind = mass.T.copy(), np.arange(self.n_actions)
        elif self.logging == "uniform":
            mass, kind = np.ones((1, len(context))), np.zeros(self.n_actions, dtype=np.int64)
        else:
            score = self.inverse_temperature * expected
            mass, kind = np.exp(score - score.max(axis=0)), v.kind
        action, total = sample_actions(mass[kind], uniform)
        return action, mass[kind[action], np.arange(len(action))] / total


def _sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(−x)) without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)
