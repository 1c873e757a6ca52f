"""The direct method: the policy that takes what a reward model of scikit-learn promises most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from counterpoise.learn.reward_models import reward_model
from counterpoise.learn.search.contenders import Rest
from counterpoise.learn.search.models import ModelPolicy
from counterpoise.models.reward import as_reward


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
        predict = reward_model(self.model, rest.rows, rest.n_actions, seed)
        scale = float(rest.rows.reward.double().numpy().std()) or 1.0
        return ModelPolicy(lambda context: predict(context) / scale, rest.n_actions)
