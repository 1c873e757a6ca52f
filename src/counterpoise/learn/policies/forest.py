"""A forest as a policy: trees as tensors, so that it is saved, loaded and exported like every other policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.errors import OptionError
from counterpoise.learn.policies.policy import Policy

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
        """A ValueError if a node points to what is not there, for contexts of `width` numbers."""
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
        """The same in less time: who has reached a leaf rests."""
        rows, trees = context.shape[0], len(self.roots)
        found = self.roots.repeat(rows)
        moving = torch.arange(rows * trees, device=found.device)
        numbers, width = context.reshape(-1), context.shape[1]
        for _ in range(self.depth):
            node = found[moving]
            row = torch.div(moving, trees, rounding_mode="floor")
            goes_left = numbers[row * width + self.feature[node]] <= self.threshold[node]
            after = torch.where(goes_left, self.left[node], self.right[node])
            moves = after != node
            moving = moving[moves]
            found[moving] = after[moves]
        return found.view(rows, trees)


class Forest(Policy):
    """A softmax of the scores of a forest; it is saved, loaded and exported like every other policy, but not trained by gradients.

    With `logarithm`, leaves have probabilities, and those of the forest are their mean, as in scikit-learn's `predict_proba`.
    """

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
        self.context_dimension, self.n_actions = context_dimension, n_actions
        self.body = nn.Identity()
        self.scores = Trees(n_actions, trees, nodes, leaves, depth, logarithm)
        self._config = {
            "context_dimension": context_dimension,
            "n_actions": n_actions,
            "trees": trees,
            "nodes": nodes,
            "leaves": leaves,
            "depth": depth,
            "logarithm": logarithm,
        }

    def config(self) -> dict[str, Any]:
        return dict(self._config)
