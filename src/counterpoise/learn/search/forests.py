"""Forests: grown on the rows that were rewarded, and every leaf knows what each action earned there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.learn.forest import Forest
from counterpoise.learn.search.candidates import Rest

CELLS = 40_000_000  # numbers in the leaves of a forest, at most
PRIOR = 1.0  # rows of an action's mean over all leaves that its mean in a leaf is mixed with


@dataclass(frozen=True)
class ForestLearner:
    """Extremely randomized trees, grown to tell rewarded actions apart, with rows weighed by (r − lowest)/p.

    That is the reduction of IPS to classification. It takes no notice of rows without a reward, so the leaves are filled afterwards from
    all rows: with Σ(r/p)/Σ(1/p) of each action in the leaf, mixed with its mean over all leaves.
    """

    trees: int = 100
    rows_per_leaf: int = 5
    name: str = "forest"
    temperatures: tuple[float, ...] = (0.0, 0.05)

    def fit(self, rest: Rest, seed: int) -> Forest:
        """The forest, with scores in units of the rewards' standard deviation."""
        from sklearn.ensemble import ExtraTreesClassifier

        rows, n_actions = rest.rows, rest.n_actions
        x, action = rows.context.numpy(), rows.action.numpy()
        gain = rows.reward.double().numpy() - rest.lowest
        inverse = 1.0 / rows.propensity.double().numpy()
        rewarded = gain > 0
        cost = (gain * inverse)[rewarded]
        found = ExtraTreesClassifier(self.trees, min_samples_leaf=self.rows_per_leaf, random_state=seed)
        found.fit(x[rewarded], action[rewarded], sample_weight=cost / cost.mean())
        grown = _few_enough([one.tree_ for one in found.estimators_], n_actions)
        sizes = np.array([tree.node_count for tree in grown])
        first = np.concatenate([[0], sizes.cumsum()[:-1]])
        feature, threshold, left, right, leaf = _flat(grown, first)
        forest = Forest(
            x.shape[1], n_actions, trees=len(grown), nodes=int(sizes.sum()), leaves=int(leaf.max()) + 1,
            depth=max(tree.max_depth for tree in grown),
        )  # fmt: skip
        values = _values(grown, first, leaf, x, action, gain, inverse, n_actions)
        parts = {"feature": feature, "threshold": threshold, "left": left, "right": right, "leaf": leaf, "roots": first}
        parts["values"] = values / (gain.std() or 1.0)
        state = {f"scores.{name}": torch.as_tensor(part) for name, part in parts.items()}
        forest.load_state_dict(state)
        return forest.eval()


def _few_enough(trees: list[Any], n_actions: int) -> list[Any]:
    """As many of the trees as memory is meant for."""
    leaves = np.array([tree.n_leaves for tree in trees]).cumsum()
    return trees[: max(1, int(np.searchsorted(leaves * n_actions, CELLS, side="right")))]


def _flat(trees: list[Any], first: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
    """The nodes of all trees in one list each: feature, threshold, children, and the number of a leaf."""
    feature = np.concatenate([tree.feature for tree in trees])
    own = np.arange(len(feature))
    is_leaf = feature < 0
    shift = np.repeat(first, [tree.node_count for tree in trees])
    left, right = (
        np.where(is_leaf, own, np.concatenate([getattr(tree, side) for tree in trees]) + shift)
        for side in ("children_left", "children_right")
    )
    leaf = np.where(is_leaf, is_leaf.cumsum() - 1, 0)
    threshold = np.where(is_leaf, 0.0, np.concatenate([tree.threshold for tree in trees]))
    return np.where(is_leaf, 0, feature), threshold, left, right, leaf


def _values(
    trees: list[Any],
    first: NDArray[np.int64],
    leaf: NDArray[np.int64],
    x: NDArray[Any],
    action: NDArray[np.int64],
    gain: NDArray[np.float64],
    inverse: NDArray[np.float64],
    n_actions: int,
) -> NDArray[np.float32]:
    """What every action earned in every leaf, above the lowest reward."""
    known = np.bincount(action, inverse, n_actions)
    mean = np.bincount(action, inverse * gain, n_actions) / np.where(known > 0, known, 1.0)
    prior = PRIOR * float(np.median(inverse))
    found = np.empty((int(leaf.max()) + 1, n_actions), dtype=np.float32)
    for tree, start in zip(trees, first, strict=True):
        place = leaf[start + tree.apply(x)]
        low = leaf[start + np.flatnonzero(tree.feature < 0)[0]]
        high = low + tree.n_leaves
        cell = (place - low) * n_actions + action
        size = (high - low) * n_actions
        earned = np.bincount(cell, inverse * gain, size).reshape(-1, n_actions)
        mass = np.bincount(cell, inverse, size).reshape(-1, n_actions)
        found[low:high] = (earned + prior * mean) / (mass + prior)
    return found
