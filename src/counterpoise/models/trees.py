"""Boosted trees of context and action, taken apart: the scores of all actions are one product of matrices.

A leaf is reached if all conditions on its path hold, and each of them is about the context or about the action. So a tree is
Σ value · [context conditions] · [action conditions] over its leaves: a table of contexts × paths, times one of paths × actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.models.design import Design, blocks
from counterpoise.models.estimators import predicted
from counterpoise.models.fits import Codes
from counterpoise.models.linear import Scale, scales_of
from counterpoise.moments import Floats

ROWS = 4_000  # contexts at once: their paths stay in the processor's cache


@dataclass(frozen=True)
class Split:
    """A condition on a column: at most a threshold, or one of some categories; a missing value goes left or right."""

    column: int
    threshold: float
    categories: NDArray[np.bool_] | None
    missing_left: bool

    def __call__(self, x: Floats) -> NDArray[np.bool_]:
        """Whether each value goes left."""
        if self.categories is None:
            left: NDArray[np.bool_] = x <= self.threshold
        else:
            inside = (x >= 0) & (x < len(self.categories))
            left = inside & self.categories[np.where(inside, x, 0).astype(np.int64)]
        return left | np.isnan(x) if self.missing_left else left


@dataclass(frozen=True)
class Path:
    """The conditions on the context that lead to some leaves: those of another path, and one more."""

    before: int  # the place of the other path; -1 for none
    split: Split
    goes_left: bool


@dataclass(frozen=True)
class Trees:
    """The paths of all trees through the context, and what every action gets on each of them."""

    estimator: Any
    design: Design
    paths: tuple[Path, ...]
    used: NDArray[np.int64]  # the paths that end in leaves
    scores: NDArray[np.float32]  # of these × actions
    always: NDArray[np.float32]  # what every action gets on no condition
    scale: Scale

    def pairs(self, x: Floats, codes: Codes) -> Floats:
        """By the estimator itself."""
        return predicted(self.estimator, self.design.pairs(x, codes))

    def table(self, x: Floats, codes: Codes) -> NDArray[Any]:
        """Contexts × paths times paths × actions."""
        scores = np.ascontiguousarray(self.scores[:, codes])
        found = np.empty((len(x), len(codes)), dtype=np.float32)
        for part in blocks(len(x), ROWS):
            found[part] = self.scale(self._taken(x[part]).T @ scores + self.always[codes])
        return found

    def _taken(self, x: Floats) -> NDArray[np.float32]:
        """Which paths every context takes: paths × contexts."""
        taken = np.empty((len(self.paths), len(x)), dtype=np.bool_)
        columns = np.ascontiguousarray(x.T)
        known: dict[int, NDArray[np.bool_]] = {}
        for k, path in enumerate(self.paths):
            left = known.get(id(path.split))
            if left is None:
                left = known[id(path.split)] = path.split(columns[path.split.column])
            side = left if path.goes_left else ~left
            np.logical_and(taken[path.before], side, out=taken[k]) if path.before >= 0 else np.copyto(taken[k], side)
        return taken[self.used].astype(np.float32)


def trees(estimator: Any, design: Design) -> list[Trees]:
    """Histogram gradient boosting taken apart, in as many ways as it may have a link; nothing, if it cannot be."""
    try:
        places = _places(estimator, design)
        steps = [one for (one,) in estimator._predictors]
        base = float(np.asarray(estimator._baseline_prediction).reshape(-1)[0])
    except (AttributeError, TypeError, ValueError):  # the inner parts of another version, or more than two classes
        return []
    features = np.asarray(design.features)
    made = _Paths(features, design.context_width)
    for tree in steps:
        made.add(tree, places)
    used = sorted(made.scores)
    scores = np.array([made.scores[k] for k in used], dtype=np.float32).reshape(len(used), len(features))
    always = (made.always + base).astype(np.float32)
    parts = tuple(made.paths), np.array(used, dtype=np.int64), scores, always
    return [Trees(estimator, design, *parts, scale) for scale in scales_of(estimator)]


def _places(estimator: Any, design: Design) -> list[int]:
    """Which of the design's columns each of the estimator's inner columns is: it puts categories first."""
    categories = getattr(estimator, "is_categorical_", None)
    width = design.context_width + design.features.shape[1]
    if categories is None:
        return list(range(width))
    given = np.asarray(estimator.categorical_features, dtype=bool)
    return [*np.flatnonzero(given).tolist(), *np.flatnonzero(~given).tolist()]


class _Paths:
    """Collects the paths of trees, and what each is worth to every action."""

    def __init__(self, features: Floats, width: int) -> None:
        self.features, self.width = features, width
        self.paths: list[Path] = []
        self.scores: dict[int, Floats] = {}
        self.always = np.zeros(len(features))

    def add(self, tree: Any, places: list[int]) -> None:
        """Walk down one tree."""
        nodes = tree.nodes

        def walk(k: int, before: int, actions: NDArray[np.bool_]) -> None:
            node = nodes[k]
            if not actions.any():
                return
            if node["is_leaf"]:
                worth = self.always if before < 0 else self.scores.setdefault(before, np.zeros(len(actions)))
                worth += node["value"] * actions
                return
            column = places[int(node["feature_idx"])]
            split = _split(tree, node, column if column < self.width else column - self.width)
            if column < self.width:
                for child, goes_left in (("left", True), ("right", False)):
                    self.paths.append(Path(before, split, goes_left))
                    walk(int(node[child]), len(self.paths) - 1, actions)
            else:
                left = split(self.features[:, split.column])
                walk(int(node["left"]), before, actions & left)
                walk(int(node["right"]), before, actions & ~left)

        walk(0, -1, np.ones(len(self.features), dtype=np.bool_))


def _split(tree: Any, node: Any, column: int) -> Split:
    categories = None
    if node["is_categorical"]:
        words = np.asarray(tree.raw_left_cat_bitsets[int(node["bitset_idx"])], dtype=np.uint32)
        categories = ((words[:, None] >> np.arange(32, dtype=np.uint32)) & 1).astype(bool).reshape(-1)
    return Split(column, float(node["num_threshold"]), categories, bool(node["missing_go_to_left"]))
