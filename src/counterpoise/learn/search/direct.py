"""The direct method: the policy that takes what a reward model of scikit-learn promises most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.learn.search.contenders import Rest
from counterpoise.learn.search.models import ModelPolicy, seeded
from counterpoise.models.actions import actions_of
from counterpoise.models.design import Design
from counterpoise.models.encoding import Encoder
from counterpoise.models.estimators import check_rewards, estimator_of, is_native
from counterpoise.models.fitting import fit_one
from counterpoise.models.reward import Reward, as_reward


@dataclass(frozen=True)
class Direct:
    """Greedy, or a softmax, on a reward model: an estimator of scikit-learn, ``"auto"``, or a `counterpoise.models.Reward`.

    Every row is predicted by a model of other rows when policies are compared, because the search learns each policy without the fold
    that judges it.
    """

    model: Any = "auto"
    name: str = "direct"
    temperatures: tuple[float, ...] = (0.0, 0.1)

    def __post_init__(self) -> None:
        as_reward(self.model)  # says what is wrong with it

    def fit(self, rest: Rest, seed: int) -> ModelPolicy:
        """The model's predictions of all actions, in units of the rewards' standard deviation."""
        asked: Reward = as_reward(self.model)
        rewards = rest.rows.reward.double().numpy()
        names = [f"x{k}" for k in range(rest.rows.context.shape[1])]
        frame = _frame(rest.rows.context.numpy(), names)
        estimator = seeded(estimator_of(asked.estimator, rewards), seed)
        check_rewards(estimator, rewards)
        actions = actions_of(pl.Series(np.arange(rest.n_actions)), None)
        design = Design(Encoder.of(frame, names), actions, is_native(estimator))
        codes = actions.codes(pl.Series(rest.rows.action.numpy()))
        fitted = fit_one(estimator, design, design.contexts(frame), codes, rewards, None, asked.per_action)
        every = actions.codes(pl.Series(np.arange(rest.n_actions)))
        scale = float(rewards.std()) or 1.0

        def scores(context: NDArray[np.float32]) -> NDArray[Any]:
            return np.asarray(fitted.table(design.contexts(_frame(context, names)), every) / scale)

        return ModelPolicy(scores, rest.n_actions)


def _frame(context: NDArray[np.float32], names: list[str]) -> pl.DataFrame:
    return pl.DataFrame({name: context[:, k] for k, name in enumerate(names)})
