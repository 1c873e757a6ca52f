"""The reduction of off-policy learning to classification: any classifier that takes sample weights becomes a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import LogError, OptionError, TrainingError
from counterpoise.learn.policies.forest import NEVER, Forest
from counterpoise.learn.reward_models import seeded
from counterpoise.learn.search.contenders import Rest
from counterpoise.learn.search.forests import of_classifier
from counterpoise.learn.search.models import ModelPolicy


@dataclass(frozen=True)
class Reduction:
    r"""A classifier of scikit-learn, fitted on actions weighed by what they earned.

    Σ c·1[π(x) = a] with c = (r − β)/p is the value of a deterministic policy, up to a constant, and to maximize it is to classify x as a
    with the cost c of a mistake. A negative c says that any other action is better: it becomes \|c\| on all others, or on one drawn from
    them and scaled up, so that no negative weight ever reaches the classifier. With β the lowest reward (the default) there are none.

    Parameters
    ----------
    classifier
        Anything with `fit(X, y, sample_weight=…)` and `predict_proba`, not fitted yet.
    baseline
        β: a number, or ``"lowest"`` or ``"mean"`` of the rewards.
    negatives
        ``"one"`` drawn other action for a row with a negative c, or ``"all"`` of them.
    """

    classifier: Any
    baseline: float | Literal["lowest", "mean"] = "lowest"
    negatives: Literal["one", "all"] = "one"
    name: str = "reduction"
    temperatures: tuple[float, ...] = (1.0, 0.0)

    def __post_init__(self) -> None:
        if not (hasattr(self.classifier, "fit") and hasattr(self.classifier, "predict_proba")):
            raise OptionError(
                f"a reduction needs a classifier with fit and predict_proba; found {type(self.classifier).__name__}.",
                do="Pass an instance, such as LogisticRegression().",
            )
        if self.negatives not in ("one", "all"):
            raise OptionError(f"negatives must be 'one' or 'all'; found {self.negatives!r}.")
        if isinstance(self.baseline, str) and self.baseline not in ("lowest", "mean"):
            raise OptionError(f"baseline must be a number, 'lowest' or 'mean'; found {self.baseline!r}.")

    def fit(self, rest: Rest, seed: int) -> ModelPolicy | Forest:
        """The classifier as a policy: its probabilities, or the most probable action. Forests of scikit-learn can be saved."""
        from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

        x, y, weight = self.examples(rest, seed)
        if len(np.unique(y)) < 2:
            raise LogError("all rows that speak for an action speak for the same one, so there is nothing to classify.")
        is_forest = type(self.classifier) in (ExtraTreesClassifier, RandomForestClassifier)
        # a forest takes contexts as they are, so that its policy does
        mean, scale = (0.0, 1.0) if is_forest else (rest.columns.mean.numpy(), rest.columns.scale.numpy())
        model = seeded(self.classifier, seed)
        try:
            model.fit((x - mean) / scale, y, sample_weight=weight)
        except (TypeError, ValueError) as error:
            if "sample_weight" in str(error):
                raise OptionError(
                    f"{type(model).__name__} does not take sample weights: {error}",
                    do="Pass a classifier that does; contexts are standardized before it sees them.",
                ) from error
            raise TrainingError(f"{type(model).__name__} could not be fitted: {error}") from error
        if is_forest:
            return of_classifier(model, rest.n_actions)
        known = np.asarray(model.classes_, dtype=np.int64)

        def scores(context: NDArray[np.float32]) -> NDArray[np.float64]:
            found = np.full((len(context), rest.n_actions), np.log(NEVER))
            found[:, known] = np.log(np.maximum(model.predict_proba((context - mean) / scale), NEVER))
            return found

        return ModelPolicy(scores, rest.n_actions)

    def examples(self, rest: Rest, seed: int) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.float64]]:
        """Contexts, classes and weights, none of which is negative; the weights' mean is 1."""
        rows, n_actions = rest.rows, rest.n_actions
        x, action, reward = rows.context.numpy(), rows.action.numpy(), rows.reward.double().numpy()
        named = {"lowest": rest.lowest, "mean": float(reward.mean())}
        beta = named[self.baseline] if isinstance(self.baseline, str) else float(self.baseline)
        cost = (reward - beta) / rows.propensity.double().numpy()
        good, bad = np.flatnonzero(cost > 0), np.flatnonzero(cost < 0)
        if len(bad) and n_actions > 1:
            if self.negatives == "one":
                steps = np.random.default_rng(seed).integers(1, n_actions, len(bad))[:, None]
            else:
                steps = np.broadcast_to(np.arange(1, n_actions), (len(bad), n_actions - 1))
            others = ((action[bad, None] + steps) % n_actions).ravel()
            each = np.repeat(-cost[bad] * (n_actions - 1) / steps.shape[1], steps.shape[1])
            index = np.concatenate([good, np.repeat(bad, steps.shape[1])])
            action, weight = np.concatenate([action[good], others]), np.concatenate([cost[good], each])
        else:
            index, action, weight = good, action[good], cost[good]
        if not len(index):
            raise LogError("no row speaks for any action: no reward is above the baseline.")
        return x[index], action, weight / weight.mean()


def of_trees() -> Reduction:
    """The reduction that a search tries by default."""
    from sklearn.ensemble import ExtraTreesClassifier

    return Reduction(ExtraTreesClassifier(100), temperatures=(0.0,), name="reduction to trees")
