"""A forest as a policy: its trees as tensors, and how it is grown on the rows that were rewarded."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoise.errors import LogError, OptionError
from counterpoise.learn.actions import ClassPlaces
from counterpoise.learn.policy import Policy
from counterpoise.moments import Floats

if TYPE_CHECKING:
    from counterpoise.learn.contenders import Rest

# -- A forest as a policy ----------------------------------------------------------------------------------------------

ROWS = 8192  # that walk through all trees at a time
NEVER = 1e-6  # the probability that stands for 0 where logarithms are taken


class Trees(nn.Module):
    """The mean over trees of the leaf that a context falls into, or its logarithm; a leaf has a number per action."""

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    leaf: Tensor
    roots: Tensor
    values: Tensor

    def __init__(self, n_actions: int, trees: int, nodes: int, leaves: int, depth: int, logarithm: bool) -> None:
        super().__init__()
        self.depth, self.logarithm = depth, logarithm
        for name in ("feature", "left", "right", "leaf"):
            self.register_buffer(name, torch.zeros(nodes, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(nodes))
        self.register_buffer("roots", torch.zeros(trees, dtype=torch.int64))
        self.register_buffer("values", torch.zeros(leaves, n_actions))

    def forward(self, context: Tensor) -> Tensor:
        """The scores."""
        if torch.onnx.is_in_onnx_export():
            return self._scored(self._walked(context))
        return torch.cat([self._scored(self._reached(part)) for part in context.split(ROWS)])  # type: ignore[no-untyped-call]

    def check(self, width: int) -> None:
        """Raise a ValueError if a node points nowhere, for contexts of `width` numbers."""
        nodes, leaves = len(self.feature), len(self.values)
        sizes = {"feature": width, "left": nodes, "right": nodes, "leaf": leaves, "roots": nodes}
        for name, size in sizes.items():
            places = getattr(self, name)
            odd = places[(places < 0) | (places >= size)]
            if len(odd):
                raise ValueError(f"{name!r} of its trees points to {int(odd[0]):,}, and there are {size:,}")

    def _scored(self, node: Tensor) -> Tensor:
        leaf = self.leaf[node]
        total = self.values[leaf[:, 0]]
        for tree in range(1, leaf.shape[1]):
            total = total + self.values[leaf[:, tree]]
        mean = total / leaf.shape[1]
        return mean.clamp(min=NEVER).log() if self.logarithm else mean

    def _walked(self, context: Tensor) -> Tensor:
        """The last node of every row in every tree, in steps that can be exported: a leaf's children are itself."""
        node = self.roots.expand(context.shape[0], -1)
        for _ in range(self.depth):
            goes_left = context.gather(1, self.feature[node]) <= self.threshold[node]
            node = torch.where(goes_left, self.left[node], self.right[node])
        return node

    def _reached(self, context: Tensor) -> Tensor:
        """The same, faster: rows that have reached a leaf stop."""
        rows, trees = context.shape[0], len(self.roots)
        nodes = self.roots.repeat(rows)
        moving = torch.arange(rows * trees, device=nodes.device)
        numbers, width = context.reshape(-1), context.shape[1]
        for _ in range(self.depth):
            node = nodes[moving]
            row = torch.div(moving, trees, rounding_mode="floor")
            goes_left = numbers[row * width + self.feature[node]] <= self.threshold[node]
            after = torch.where(goes_left, self.left[node], self.right[node])
            moves = after != node
            moving = moving[moves]
            nodes[moving] = after[moves]
        return nodes.view(rows, trees)


class Forest(Policy):
    """A softmax of the scores of a forest; it is saved, loaded and exported like every other policy, but not trained by gradients.

    With `logarithm`, leaves have probabilities, and those of the forest are their mean, as in scikit-learn's `predict_proba`.
    """

    scores: Trees

    def __init__(
        self,
        context_dimension: int,
        n_actions: int,
        *,
        trees: int,
        nodes: int,
        leaves: int,
        depth: int,
        logarithm: bool = False,
    ) -> None:
        super().__init__()
        if depth > nodes:
            raise OptionError(f"a forest of {nodes:,} nodes cannot be {depth:,} deep.")
        self._made_for(
            context_dimension, n_actions, trees=trees, nodes=nodes, leaves=leaves, depth=depth, logarithm=logarithm
        )
        self.body = nn.Identity()
        self.scores = Trees(n_actions, trees, nodes, leaves, depth, logarithm)


# -- Growing one -------------------------------------------------------------------------------------------------------


CELLS = 40_000_000  # numbers in the leaves of a forest, at most
FEW = 20  # trees; if there is no time to grow them on all rows, they are grown on fewer
PILOT_ROWS, PILOT_TREES = 2_000, 2  # of the forest that tells how long one takes
TOGETHER = 10  # trees that are grown before a look at the clock
PRIOR = 1.0  # rows of an action's mean over all leaves that its mean in a leaf is mixed with


class GrownTree(Protocol):
    """A tree of scikit-learn's that was grown, as far as we look at it."""

    n_leaves: int
    node_count: int
    max_depth: int
    feature: ClassPlaces
    threshold: Floats
    children_left: ClassPlaces
    children_right: ClassPlaces
    value: Floats

    def apply(self, contexts: NDArray[np.float32], /) -> ClassPlaces:
        """The leaf that every context falls into."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of all trees in one array each, and where each tree starts."""

    feature: ClassPlaces
    threshold: NDArray[np.float32]
    left: ClassPlaces
    right: ClassPlaces
    leaf: ClassPlaces
    roots: ClassPlaces


@dataclass(frozen=True)
class ForestLearner:
    """Extremely randomized trees, grown to tell rewarded actions apart, with rows weighed by (r − lowest)/p.

    That is the reduction of IPS to classification. It ignores rows without a reward, so the leaves are filled afterward from all
    rows: with Σ(r/p)/Σ(1/p) of each action in the leaf, mixed with its mean over all leaves.
    """

    trees: int = 100
    rows_per_leaf: int = 5
    name: str = "forest"
    temperatures: tuple[float, ...] = (0.0, 0.05)
    keeps_time: ClassVar[bool] = True
    takes_candidates: ClassVar[bool] = False

    def fit(self, rest: Rest, seed: int) -> Forest:
        """The forest, with scores in units of the rewards' standard deviation."""
        if rest.seconds is None:
            return self._grown(rest, self.trees, seed, math.inf)
        end, n = time.perf_counter() + rest.seconds, len(rest.rows)
        pilot, size = _sample(rest, PILOT_ROWS, seed), PILOT_ROWS
        while size < n and not bool((pilot.rows.reward > pilot.lowest).any()):  # rewards may be rare
            size *= 10
            pilot = _sample(rest, size, seed)
        began = time.perf_counter()
        self._grown(pilot, PILOT_TREES, seed, math.inf)
        pace = (time.perf_counter() - began) / (PILOT_TREES * _work(len(pilot.rows)))
        work = 0.7 * max(end - time.perf_counter(), 0.0) / pace
        trees = min(self.trees, max(FEW, int(work / _work(n))))
        some = n if trees * _work(n) <= work else max(min(n, PILOT_ROWS), int(work / trees / math.log2(n + 2)))
        forest = self._grown(_sample(rest, some, seed), trees, seed, end)
        grown = len(forest.scores.roots)
        if some < n or grown < self.trees:
            rest.cuts.append(f"{grown:,} of {self.trees:,} trees, grown from {some:,} of {n:,} rows")
        return forest

    def _grown(self, rest: Rest, trees: int, seed: int, end: float) -> Forest:
        """A forest of so many trees, or of fewer if half of the time runs out first."""
        from sklearn.ensemble import ExtraTreesClassifier

        rows, n_actions = rest.rows, rest.n_actions
        x, action = rows.context.numpy(), rows.action.numpy()
        gain = rows.reward.double().numpy() - rest.lowest
        inverse = 1.0 / rows.propensity.double().numpy()
        rewarded = gain > 0
        if not rewarded.any():
            raise LogError("all rewards are the same.")
        cost = (gain * inverse)[rewarded]
        began = time.perf_counter()
        model = ExtraTreesClassifier(0, min_samples_leaf=self.rows_per_leaf, random_state=seed, warm_start=True)
        while not model.n_estimators or (
            model.n_estimators < trees and time.perf_counter() - began <= (end - began) / 2
        ):
            model.n_estimators = min(trees, model.n_estimators + TOGETHER)
            model.fit(x[rewarded], action[rewarded], sample_weight=cost / cost.mean())
        grown = _few_enough([tree.tree_ for tree in model.estimators_], n_actions)
        nodes = _flat(grown)
        values = _values(grown, nodes, x, action, gain, inverse, n_actions)
        return _forest(grown, nodes, values / float(gain.std() or 1.0), x.shape[1])


def _work(rows: int) -> float:
    """What a tree costs, up to a factor."""
    return rows * math.log2(rows + 2)


def _sample(rest: Rest, rows: int, seed: int) -> Rest:
    """Some of the rows, drawn at random."""
    return rest if rows >= len(rest.rows) else replace(rest, rows=rest.rows.sample(rows, seed), seconds=None, cuts=[])


def of_classifier(model: Any, n_actions: int) -> Forest:
    """A forest of scikit-learn, fitted on places of actions, as a policy with the probabilities that it predicts."""
    grown = [tree.tree_ for tree in model.estimators_]
    nodes = _flat(grown)
    known, at = np.asarray(model.classes_, dtype=np.int64), 0
    values = np.zeros((sum(tree.n_leaves for tree in grown), n_actions), dtype=np.float32)
    for tree in grown:
        shares = tree.value[tree.feature < 0, 0]
        values[at : at + len(shares), known] = shares / shares.sum(axis=1, keepdims=True)
        at += len(shares)
    return _forest(grown, nodes, values, model.n_features_in_, logarithm=True)


def _forest(
    trees: list[GrownTree], nodes: Nodes, values: NDArray[np.float32], context_dimension: int, logarithm: bool = False
) -> Forest:
    """The trees as a policy, with these numbers in their leaves."""
    forest = Forest(
        context_dimension, values.shape[1], trees=len(trees), nodes=len(nodes.leaf), leaves=len(values),
        depth=max(tree.max_depth for tree in trees), logarithm=logarithm,
    )  # fmt: skip
    parts = {f"scores.{name}": torch.as_tensor(part) for name, part in (vars(nodes) | {"values": values}).items()}
    forest.load_state_dict(parts, assign=True)
    return forest.eval()


def _few_enough(trees: list[GrownTree], n_actions: int) -> list[GrownTree]:
    """As many of the trees as may go into memory."""
    leaves = np.array([tree.n_leaves for tree in trees]).cumsum()
    return trees[: max(1, int(np.searchsorted(leaves * n_actions, CELLS, side="right")))]


def _flat(trees: list[GrownTree]) -> Nodes:
    sizes = np.array([tree.node_count for tree in trees])
    first = np.concatenate([[0], sizes.cumsum()[:-1]])
    feature = np.concatenate([tree.feature for tree in trees])
    own = np.arange(len(feature))
    is_leaf = feature < 0
    shift = np.repeat(first, sizes)
    return Nodes(
        feature=np.where(is_leaf, 0, feature),
        threshold=_rounded_down(np.where(is_leaf, 0.0, np.concatenate([tree.threshold for tree in trees]))),
        left=np.where(is_leaf, own, np.concatenate([tree.children_left for tree in trees]) + shift),
        right=np.where(is_leaf, own, np.concatenate([tree.children_right for tree in trees]) + shift),
        leaf=np.where(is_leaf, is_leaf.cumsum() - 1, 0),
        roots=first,
    )


def _rounded_down(threshold: Floats) -> NDArray[np.float32]:
    """The largest float32 that is not above: a context in float32 is at most the one exactly if it is at most the other."""
    near = threshold.astype(np.float32)
    return np.where(near > threshold, np.nextafter(near, np.float32(-np.inf)), near)


def _values(
    trees: list[GrownTree],
    nodes: Nodes,
    x: NDArray[np.float32],
    action: ClassPlaces,
    gain: Floats,
    inverse: Floats,
    n_actions: int,
) -> NDArray[np.float32]:
    """What every action earned in every leaf, above the lowest reward."""
    known = np.bincount(action, inverse, n_actions)
    mean = np.bincount(action, inverse * gain, n_actions) / np.where(known > 0, known, 1.0)
    prior = PRIOR * float(np.median(inverse))
    leaf = nodes.leaf
    values = np.empty((int(leaf.max()) + 1, n_actions), dtype=np.float32)
    for tree, start in zip(trees, nodes.roots, strict=True):
        place = leaf[start + tree.apply(x)]
        low = leaf[start + np.flatnonzero(tree.feature < 0)[0]]
        high = low + tree.n_leaves
        cell = (place - low) * n_actions + action
        size = (high - low) * n_actions
        earned = np.bincount(cell, inverse * gain, size).reshape(-1, n_actions)
        mass = np.bincount(cell, inverse, size).reshape(-1, n_actions)
        values[low:high] = (earned + prior * mean) / (mass + prior)
    return values
