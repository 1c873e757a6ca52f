"""Fitted models: what they predict for pairs of context and action, and for all actions at once, which many can do much faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from counterpoise.models.design import Codes, Design, blocks
from counterpoise.models.estimators import Predictor, is_native, predict_rewards
from counterpoise.moments import Floats
from counterpoise.moments.moments import Reals

# -- any model: every pair is predicted --------------------------------------------------------------------------------

CROSSED = 200_000  # pairs of context and action that are predicted at once
CELLS = 40_000_000  # of the table that these are, unless it is sparse


class Fit(Protocol):
    """A model that was fitted on the rows of all folds but one."""

    def pairs(self, x: Floats, codes: Codes) -> Floats:
        """The predicted reward of one action for every context."""

    def table(self, x: Floats, codes: Codes) -> Reals:
        """The predicted rewards of these actions for every context: contexts × actions."""


@dataclass(frozen=True)
class Joint:
    """One model of context and action that cannot be taken apart: every pair is predicted."""

    estimator: Predictor
    design: Design

    def pairs(self, x: Floats, codes: Codes) -> Floats:
        """One prediction per row."""
        return predict_rewards(self.estimator, self.design.pairs(x, codes))

    def table(self, x: Floats, codes: Codes) -> Reals:
        """Every context with every action, a few contexts at a time."""
        rewards = np.empty((len(x), len(codes)))
        wide = 1 if self.design.is_sparse else x.shape[1] + self.design.features.shape[1]
        most = min(CROSSED, CELLS // max(wide, 1))
        for part in blocks(len(x), max(most // max(len(codes), 1), 1)):
            rows = np.repeat(x[part], len(codes), axis=0)
            rewards[part] = self.pairs(rows, np.tile(codes, part.stop - part.start)).reshape(-1, len(codes))
        return rewards


@dataclass(frozen=True)
class Constant:
    """The same reward for every context."""

    value: float

    def predict(self, x: Floats) -> Floats:
        """That reward."""
        return np.full(len(x), self.value)


@dataclass(frozen=True)
class PerAction:
    """A model of the context for every action; the last is for actions that are not known."""

    models: tuple[Predictor | Constant, ...]

    def pairs(self, x: Floats, codes: Codes) -> Floats:
        """Each row by the model of its action."""
        rewards = np.empty(len(x))
        order = np.argsort(codes, kind="stable")
        present, starts = np.unique(codes[order], return_index=True)
        for code, rows in zip(present, np.split(order, starts)[1:], strict=True):
            rewards[rows] = predict_rewards(self.models[code], x[rows])
        return rewards

    def table(self, x: Floats, codes: Codes) -> Reals:
        """All contexts by every model."""
        return np.column_stack([predict_rewards(self.models[code], x) for code in codes])


# -- linear models: the score is f(x) + g(a), and no pair of the two is ever made --------------------------------------


Link = Callable[[Reals], Reals]


def identity(scores: Reals) -> Reals:
    """The score itself."""
    return scores


def sigmoid(scores: Reals) -> Reals:
    """1/(1 + exp(−score)), in the array's own memory.

    >>> sigmoid(np.array([0.0, -1000.0])).tolist()
    [0.5, 0.0]
    """
    np.negative(scores, out=scores)
    with np.errstate(over="ignore"):  # 1/∞ is 0
        np.exp(scores, out=scores)
    scores += 1.0
    shares: Reals = np.reciprocal(scores, out=scores)
    return shares


def exponential(scores: Reals) -> Reals:
    """exp(score), in the array's own memory."""
    rewards: Reals = np.exp(scores, out=scores)
    return rewards


LINKS: tuple[Link, ...] = (identity, sigmoid, exponential)


@dataclass(frozen=True)
class RewardScale:
    """Rewards from scores: a link, and for a classifier the two rewards that it tells apart."""

    link: Link
    low: float = 0.0
    high: float = 1.0

    def __call__(self, scores: Reals) -> Reals:
        rewards = self.link(scores)
        return rewards if (self.low, self.high) == (0.0, 1.0) else self.low + (self.high - self.low) * rewards

    def score(self, reward: float) -> float:
        """The score behind a reward."""
        share = (reward - self.low) / (self.high - self.low)
        if self.link is identity:
            return share
        with np.errstate(all="ignore"):
            return float(special.logit(share) if self.link is sigmoid else np.log(share))


def scales_of(estimator: object) -> list[RewardScale]:
    """The ways an estimator may turn scores into rewards; a comparison shows which one it uses."""
    classes = getattr(estimator, "classes_", None)
    if classes is None:
        return [RewardScale(link) for link in LINKS]
    return [RewardScale(sigmoid, float(classes[0]), float(classes[1]))] if len(classes) == 2 else []


@dataclass(frozen=True)
class Linear:
    """One linear model of context and action, taken apart: the weights of the context, and the score of every action."""

    weights: Floats
    scores: Floats
    scale: RewardScale

    def pairs(self, x: Floats, codes: Codes) -> Floats:
        """The scale of f(x) + g(a)."""
        return np.asarray(self.scale(x @ self.weights + self.scores[codes]), dtype=np.float64)

    def table(self, x: Floats, codes: Codes) -> Reals:
        """The same for all actions."""
        f, g = (x @ self.weights).astype(np.float32), self.scores[codes].astype(np.float32)
        return self.scale(f[:, None] + g)


@dataclass(frozen=True)
class StackedLinear:
    """A linear model for every action: all scores at once are a product of matrices."""

    weights: Floats  # of the context, a column for each action
    scores: Floats
    scale: RewardScale

    def pairs(self, x: Floats, codes: Codes) -> Floats:
        """Each row with the weights of its action."""
        scores = np.einsum("ij,ij->i", x, self.weights.T[codes]) + self.scores[codes]
        return np.asarray(self.scale(scores), dtype=np.float64)

    def table(self, x: Floats, codes: Codes) -> Reals:
        """All rows with all weights."""
        return self.scale(x @ self.weights[:, codes] + self.scores[codes])


def linear(estimator: object, design: Design) -> list[Linear]:
    """A linear model taken apart, once for each link it may have; empty if it is not linear."""
    coefficients = _coefficients(estimator)
    if coefficients is None:
        return []
    w, b = coefficients
    d = len(w) - design.features.shape[1]
    return [Linear(w[:d], np.asarray(design.features @ w[d:]) + b, scale) for scale in scales_of(estimator)]


def cross_fitted_ridge(
    design: Design,
    x: Floats,
    codes: Codes,
    rewards: Floats,
    weights: Floats | None,
    folds: NDArray[np.int64],
    alpha: float,
) -> Callable[[int], Linear]:
    """Ridge regressions of context and action, each on the rows of all folds but one, whose number one passes.

    A fit needs nothing but sums of squares and products, which add up over folds: that of all rows, less that of one fold.
    """
    table = design.pairs(x, codes)
    columns = np.column_stack([np.asarray(table), rewards])
    middle = columns.mean(axis=0)  # next to which no digits are lost
    columns = np.column_stack([columns - middle, np.ones(len(rewards))])

    def scatter(fold: int) -> Floats:
        own = columns[folds == fold]
        products: Floats = own.T @ (own if weights is None else own * weights[folds == fold, None])
        return products

    scatters = {int(fold): scatter(fold) for fold in np.unique(folds)}
    total = np.sum(list(scatters.values()), axis=0)
    d = x.shape[1]

    def fit(fold: int) -> Linear:
        others = total - scatters.get(fold, 0.0)
        means = others[:-1, -1] / others[-1, -1]
        centered = others[:-1, :-1] - np.outer(means, others[-1, :-1])
        w = linalg.solve(centered[:-1, :-1] + alpha * np.eye(len(means) - 1), centered[:-1, -1], assume_a="pos")
        intercept = means[-1] + middle[-1] - (means[:-1] + middle[:-1]) @ w
        return Linear(w[:d], np.asarray(design.features @ w[d:]) + intercept, RewardScale(identity))

    return fit


def stack(fit: PerAction) -> list[StackedLinear]:
    """The linear models of all actions in one, if all are linear and alike."""
    estimators = [model for model in fit.models if not isinstance(model, Constant)]
    coefficients = {id(model): pair for model in estimators if (pair := _coefficients(model)) is not None}
    if not estimators or len(coefficients) < len(estimators):
        return []
    width = len(coefficients[id(estimators[0])][0])
    forms = []
    for scale in scales_of(estimators[0]):
        pairs = [
            (np.zeros(width), scale.score(model.value)) if isinstance(model, Constant) else coefficients[id(model)]
            for model in fit.models
        ]
        forms.append(StackedLinear(np.column_stack([w for w, _ in pairs]), np.array([b for _, b in pairs]), scale))
    return forms


def _coefficients(estimator: object) -> tuple[Floats, float] | None:
    w, b = getattr(estimator, "coef_", None), getattr(estimator, "intercept_", None)
    if w is None or b is None or np.size(b) != 1 or np.ndim(w) > 2 or (np.ndim(w) == 2 and np.shape(w)[0] != 1):
        return None
    return np.asarray(w, dtype=np.float64).reshape(-1), float(np.asarray(b).reshape(-1)[0])


# -- boosted trees: contexts × paths times paths × actions -------------------------------------------------------------


CONTEXTS_AT_ONCE = 4_000  # contexts at once: their paths stay in the processor's cache


@dataclass(frozen=True)
class TreeSplit:
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
class TreePath:
    """The conditions on the context that lead to some leaves: those of another path, and one more."""

    before: int  # the place of the other path; -1 for none
    split: TreeSplit
    goes_left: bool


@dataclass(frozen=True)
class BoostedTrees(Joint):
    """The paths of all trees through the context, and what every action gets on each of them.

    A leaf is reached if all conditions on its path hold, and each of them is about the context or about the action. So a tree is
    Σ value · [context conditions] · [action conditions] over its leaves: a table of contexts × paths, times one of paths × actions. Single
    pairs are predicted by the estimator itself.
    """

    paths: tuple[TreePath, ...]
    used: NDArray[np.int64]  # the paths that end in leaves
    scores: NDArray[np.float32]  # of these × actions
    always: NDArray[np.float32]  # what every action gets unconditionally
    scale: RewardScale

    def table(self, x: Floats, codes: Codes) -> Reals:
        """Contexts × paths times paths × actions."""
        scores = np.ascontiguousarray(self.scores[:, codes])
        rewards = np.empty((len(x), len(codes)), dtype=np.float32)
        for part in blocks(len(x), CONTEXTS_AT_ONCE):
            rewards[part] = self.scale(self._paths_taken(x[part]).T @ scores + self.always[codes])
        return rewards

    def _paths_taken(self, x: Floats) -> NDArray[np.float32]:
        """Which paths every context takes: paths × contexts."""
        taken = np.empty((len(self.paths), len(x)), dtype=np.bool_)
        columns = np.ascontiguousarray(x.T)
        by_split: dict[int, NDArray[np.bool_]] = {}
        for k, path in enumerate(self.paths):
            left = by_split.get(id(path.split))
            if left is None:
                left = by_split[id(path.split)] = path.split(columns[path.split.column])
            side = left if path.goes_left else ~left
            np.logical_and(taken[path.before], side, out=taken[k]) if path.before >= 0 else np.copyto(taken[k], side)
        return taken[self.used].astype(np.float32)


def trees(estimator: Any, design: Design) -> list[BoostedTrees]:
    """Histogram gradient boosting taken apart, once for each link it may have; empty if it cannot be."""
    # it puts categories first: which of the design's columns each of its inner columns is
    places = list(range(len(design.context) + design.features.shape[1]))
    if is_native(estimator) and getattr(estimator, "is_categorical_", None) is not None:
        is_category = np.asarray(estimator.categorical_features, dtype=np.bool_)
        places = [*np.flatnonzero(is_category).tolist(), *np.flatnonzero(~is_category).tolist()]
    try:
        steps = [tree for (tree,) in estimator._predictors]
        base = float(np.asarray(estimator._baseline_prediction).reshape(-1)[0])
    except (AttributeError, TypeError, ValueError):  # the inner parts of another version, or more than two classes
        return []
    features = np.asarray(design.features)
    collector = _TreePaths(features, len(design.context))
    for tree in steps:
        collector.add(tree, places)
    used = sorted(collector.scores)
    scores = np.array([collector.scores[k] for k in used], dtype=np.float32).reshape(len(used), len(features))
    always = (collector.always + base).astype(np.float32)
    parts = tuple(collector.paths), np.array(used, dtype=np.int64), scores, always
    return [BoostedTrees(estimator, design, *parts, scale) for scale in scales_of(estimator)]


class TreePredictor(Protocol):
    """A tree of histogram gradient boosting, as scikit-learn keeps it."""

    nodes: NDArray[np.void]
    raw_left_cat_bitsets: NDArray[np.uint32]  # which categories go left, where a node splits by them


class _TreePaths:
    """Collects the paths of trees, and what each is worth to every action."""

    def __init__(self, features: Floats, width: int) -> None:
        self.features, self.width = features, width
        self.paths: list[TreePath] = []
        self.scores: dict[int, Floats] = {}
        self.always = np.zeros(len(features))

    def add(self, tree: TreePredictor, places: list[int]) -> None:
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
            categories = None
            if node["is_categorical"]:
                words = np.asarray(tree.raw_left_cat_bitsets[int(node["bitset_idx"])], dtype=np.uint32)
                categories = ((words[:, None] >> np.arange(32, dtype=np.uint32)) & 1).astype(bool).reshape(-1)
            own = column if column < self.width else column - self.width  # among those of the context or the action
            split = TreeSplit(own, float(node["num_threshold"]), categories, bool(node["missing_go_to_left"]))
            if column < self.width:
                for child, goes_left in (("left", True), ("right", False)):
                    self.paths.append(TreePath(before, split, goes_left))
                    walk(int(node[child]), len(self.paths) - 1, actions)
            else:
                left = split(self.features[:, split.column])
                walk(int(node["left"]), before, actions & left)
                walk(int(node["right"]), before, actions & ~left)

        walk(0, -1, np.ones(len(self.features), dtype=np.bool_))
