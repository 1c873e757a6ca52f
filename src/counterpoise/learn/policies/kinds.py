"""Policies that are ready to use: linear, with hidden layers, of two towers, and around a module of yours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from counterpoise.errors import OptionError
from counterpoise.learn.items.scores import ItemScores
from counterpoise.learn.logs.scaling import Standardize
from counterpoise.learn.policies.policy import Policy


class LinearSoftmax(Policy):
    """The softmax of a linear map of the context: the policy of the paper's experiments (no bias, contexts as they are).

    With `standardize`, the contexts are first centered and scaled by the buffers `body.mean` and `body.scale` (0 and 1 to begin with),
    which `PolicyLearner` takes from the training rows unless you have set them.
    """

    def __init__(
        self, context_dimension: int, n_actions: int, *, bias: bool = False, standardize: bool = False
    ) -> None:
        super().__init__()
        _check_sizes(context_dimension=context_dimension, n_actions=n_actions)
        self.context_dimension, self.n_actions = context_dimension, n_actions
        self.body = Standardize(context_dimension) if standardize else nn.Identity()
        self.scores = nn.Linear(context_dimension, n_actions, bias=bias)
        self._config = {
            "context_dimension": context_dimension,
            "n_actions": n_actions,
            "bias": bias,
            "standardize": standardize,
        }

    def config(self) -> dict[str, Any]:
        return dict(self._config)


class MLP(Policy):
    """Hidden layers with ReLU, each with a LayerNorm if you `normalize`, and a linear last layer; `standardize` as in `LinearSoftmax`."""

    def __init__(
        self,
        context_dimension: int,
        n_actions: int,
        *,
        hidden: Sequence[int] = (64,),
        normalize: bool = False,
        standardize: bool = False,
    ) -> None:
        super().__init__()
        _check_sizes(context_dimension=context_dimension, n_actions=n_actions)
        self.context_dimension, self.n_actions = context_dimension, n_actions
        self.body, width = _tower(context_dimension, hidden, normalize, standardize)
        self.scores = nn.Linear(width, n_actions)
        self._config = {
            "context_dimension": context_dimension,
            "n_actions": n_actions,
            "hidden": list(hidden),
            "normalize": normalize,
            "standardize": standardize,
        }

    def config(self) -> dict[str, Any]:
        return dict(self._config)


class TwoTower(Policy):
    """Inner products of a context vector and an item vector, for catalogs of 10⁵ actions and more.

    With `item_features` (one row per action), an item's vector is a linear map of its features, so you can also score an item that
    was never logged; without them, every item has its own vector. `standardize` as in `LinearSoftmax`.
    """

    def __init__(
        self,
        context_dimension: int,
        n_actions: int,
        *,
        dimension: int = 32,
        hidden: Sequence[int] = (64,),
        normalize: bool = False,
        item_features: Tensor | None = None,
        standardize: bool = False,
    ) -> None:
        super().__init__()
        _check_sizes(context_dimension=context_dimension, n_actions=n_actions, dimension=dimension)
        if item_features is not None and (item_features.ndim != 2 or len(item_features) != n_actions):
            raise OptionError(
                f"item_features must have a row for each of the {n_actions:,} actions; found shape "
                f"{tuple(item_features.shape)}."
            )
        self.context_dimension, self.n_actions = context_dimension, n_actions
        tower, width = _tower(context_dimension, hidden, normalize, standardize)
        self.body = nn.Sequential(tower, nn.Linear(width, dimension))
        self.scores = (
            nn.Linear(dimension, n_actions, bias=False)
            if item_features is None
            else ItemScores(dimension, item_features)
        )
        self._config = {
            "context_dimension": context_dimension,
            "n_actions": n_actions,
            "dimension": dimension,
            "hidden": list(hidden),
            "normalize": normalize,
            "item_dimension": None if item_features is None else item_features.shape[1],
            "standardize": standardize,
        }

    def config(self) -> dict[str, Any]:
        return dict(self._config)


class ModulePolicy(Policy):
    """Any module of yours that returns a logit per action; `load_policy(path, module=…)` puts saved weights back into one.

    >>> policy = ModulePolicy(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)), n_actions=3)
    >>> policy.predict_proba([[0.0, 1.0]]).shape
    (1, 3)
    """

    def __init__(self, module: nn.Module, n_actions: int) -> None:
        super().__init__()
        _check_sizes(n_actions=n_actions)
        self.n_actions = n_actions
        if isinstance(module, nn.Linear) and module.out_features != n_actions:
            raise self.not_fitting(module.out_features)  # of other modules we know it once they have run
        self.body = nn.Identity()
        self.scores = module

    def config(self) -> dict[str, Any]:
        return {"n_actions": self.n_actions}


def _tower(width: int, hidden: Sequence[int], normalize: bool, standardize: bool) -> tuple[nn.Sequential, int]:
    """Hidden layers, and how many features they return."""
    layers: list[nn.Module] = [Standardize(width)] if standardize else []
    for size in hidden:
        _check_sizes(hidden=size)
        layers.append(nn.Linear(width, size))
        if normalize:
            layers.append(nn.LayerNorm(size))
        layers.append(nn.ReLU())
        width = size
    return nn.Sequential(*layers), width


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise OptionError(f"{name} must be a whole number of at least 1; found {size!r}.")
