r"""The effect of a fitted propensity model on the errors of estimates: a stacked influence function.

A softmax model of the logging policy has, for every row, the score :math:`s_i = (1[a_i = k] - p_k(x_i))_k \otimes (1, x_i)`. Its fit moves
the parameters by :math:`H^{-1} \bar s` with :math:`H = E[s s^T]`, and a weight by :math:`-w s` for every parameter. So a mean of rows
:math:`z` that depend on the weight, with :math:`g = -\partial z / \partial \log p`, is to first order the mean of
:math:`z_i - E[g s^T] H^{-1} s_i`. The expectations are taken over other rows than those they are applied to: in-sample, many scores would
seem to explain more than they do.

For other models there are no scores. A jackknife then says what the fit takes from z: the mean of z without a group of rows, less the same
mean with propensities from models that were fitted without the group as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.engines.polars_frames import prepare
from counterpoise.engines.registry import engine_of
from counterpoise.log.expressions import column as exactly
from counterpoise.log.groups import integer_ids
from counterpoise.log.question import MODEL_REWARD, Question
from counterpoise.log.question import PROPENSITY as P
from counterpoise.log.rules import only_good
from counterpoise.models.encoding import Category, Number, Vector
from counterpoise.models.propensity_jackknife import groups_of, refitted
from counterpoise.models.propensity_step import FOLD, FittedPropensity
from counterpoise.moments import Floats, LogMoments
from counterpoise.moments.estimated import Estimated, Place
from counterpoise.moments.log_moments import Contrast, as_label
from counterpoise.threads import threads

CELLS = 20_000_000  # of the table of rows × scores
ROWS = 50_000
MOST = 600  # scores whose products are worth their time
ROWS_PER_SCORE = 10  # below which the scores cannot be told from noise
SEGMENTS, FEW = 200, 30  # segments that get an effect of their own, and the rows that one takes
FOLDS = 5
STEP = 1e-4  # of log p, for the derivative of a weight


def with_errors(question: Question, found: tuple[LogMoments, ...]) -> tuple[LogMoments, ...]:
    """The moments of a log with the effect of its propensity model on their errors."""
    step: FittedPropensity = question.propensity_model
    scores = (len(step.actions.levels) - 1) * (1 + step.x(_no_rows(step)).shape[1])
    told = step.quality
    sampled = told.rows + told.logged
    is_linear = not step.is_native and all(hasattr(one.estimator, "coef_") for one in step.classifiers)
    refits = step.unfitted.asked.error == "refit"
    if not refits and (not is_linear or scores > min(MOST, told.rows / ROWS_PER_SCORE)):
        return tuple(replace(one, estimated=Estimated(told.model, sampled, one.n, 0.0)) for one in found)
    lean = replace(question, log=question.log.but(key=()), smoothings=())
    rows = engine_of(lean.log).sampled(lean, ROWS if refits else min(ROWS, CELLS // scores))
    made = []
    for reward, moments in zip(question.log.reward, found, strict=True):
        about = lean.about(reward)
        seen = _Seen.of(rows, about)
        center = float(seen.numbers[about.names.rewards[0]].mean())
        how = seen.by_refitting if refits else seen.by_scores
        covariances = {key: how(key, moments.moments[key].columns, center) for key in moments.moments}
        made.append(replace(moments, estimated=Estimated(told.model, sampled, moments.n, center, covariances)))
    return tuple(made)


def _no_rows(step: FittedPropensity) -> pl.DataFrame:
    kinds: dict[type, Any] = {Category: pl.String, Number: pl.Float64, Vector: pl.List(pl.Float64)}
    return pl.DataFrame(schema={one.name: kinds[type(one)] for one in step.context.columns})


@dataclass(frozen=True)
class _Seen:
    """Good rows of a sample: the question's numbers, the rows themselves, and which segment and cluster each is of."""

    question: Question
    numbers: dict[str, Floats]
    rows: pl.DataFrame
    is_logged: NDArray[np.bool_]
    is_free: NDArray[np.bool_]  # rows whose propensity is not at the floor, where no parameter moves it
    segments: dict[Place, NDArray[np.bool_]]
    cluster: NDArray[np.int64]  # numbered from 0

    @classmethod
    def of(cls, rows: pl.DataFrame, question: Question) -> _Seen:
        """What is in some completed rows."""
        step: FittedPropensity = question.propensity_model
        frame = prepare(rows, question, 0).with_row_index("place in the sample")
        good = only_good(nw.from_native(frame, eager_only=True), question).to_native()
        rows = rows[good.get_column("place in the sample").to_numpy()]
        numbers = {name: good.get_column(name).cast(pl.Float64).to_numpy() for name in question.numbers}
        is_logged = np.zeros(rows.height, dtype=bool)
        if step.column is not None:
            is_logged = (
                rows.select(exactly(step.column)).to_series().cast(pl.Float64).fill_nan(None).is_not_null().to_numpy()
            )
        segments: dict[Place, NDArray[np.bool_]] = {None: np.ones(rows.height, dtype=bool)}
        if question.segment:
            labels = good.select(question.names.segments)
            for label, part in labels.with_row_index("row").group_by(question.names.segments, maintain_order=True):
                if part.height >= FEW and len(segments) <= SEGMENTS:
                    inside = np.zeros(rows.height, dtype=bool)
                    inside[part.get_column("row").to_numpy()] = True
                    segments[as_label(tuple(label))] = inside
        cluster = np.arange(rows.height)
        if question.log.cluster is not None:
            ids = integer_ids(rows.select(exactly(question.log.cluster)).to_series()).to_numpy()
            cluster = np.unique(ids, return_inverse=True)[1]
        return cls(question, numbers, rows, is_logged, numbers[P] > step.floor, segments, cluster)

    @cached_property
    def scores(self) -> Floats:
        """The scores of the model; rows whose propensity was logged have none."""
        found = _scores(self.rows, self.question.propensity_model, str(self.question.log.action))
        found[self.is_logged] = 0.0
        return found

    @cached_property
    def refits(self) -> tuple[NDArray[np.int64], Floats]:
        """The group of every row, and for every group all propensities by models that were fitted without it."""
        step: FittedPropensity = self.question.propensity_model
        x, codes = step.x(self.rows), step.codes(self.rows, str(self.question.log.action))
        folds, groups = self.rows.get_column(FOLD).to_numpy(), groups_of(self.cluster)
        categories, calibrate = step.context.is_category, step.unfitted.asked.calibrate
        with threads(x.size):
            found = refitted(step.classifiers, x, codes, folds, self.is_logged, groups, categories, calibrate)
        return groups, np.where(self.is_logged, self.numbers[P], np.clip(found, step.floor, 1.0))

    def by_refitting(self, contrast: Contrast, columns: tuple[str, ...], center: float) -> dict[Place, Floats]:
        """The same as `by_scores`, from the means without each group of rows."""
        groups, propensities = self.refits
        z, _ = self._columns(contrast, columns, center)
        means: dict[Place, list[Floats]] = {place: [] for place in self.segments}
        for group, p in enumerate(propensities):
            again, _ = replace(self, numbers={**self.numbers, P: p})._columns(contrast, columns, center)
            for place, inside in self.segments.items():
                kept = inside & (groups != group)
                if kept.any() and kept.sum() < inside.sum():
                    known, fitted = z[kept].mean(axis=0), again[kept].mean(axis=0)
                    means[place].append(np.concatenate([known, known - fitted]))
        return {place: _spread(np.array(found)) * len(z) for place, found in means.items() if len(found) > 1}

    def by_scores(self, contrast: Contrast, columns: tuple[str, ...], center: float) -> dict[Place, Floats]:
        """The covariances of the moments' columns and of what the fit takes from them, over the whole log and by segment."""
        z, g = self._columns(contrast, columns, center)
        found = {}
        for place, inside in self.segments.items():
            share = inside.mean()
            own = np.where(inside[:, None], z - z[inside].mean(axis=0), 0.0) / share
            taken = self._explained(np.where(inside[:, None], g, 0.0) / share)
            both = self._by_cluster(np.concatenate([own, taken - taken.mean(axis=0)], axis=1))
            found[place] = both.T @ both / len(z)
        return found

    def _columns(self, contrast: Contrast, columns: tuple[str, ...], center: float) -> tuple[Floats, Floats]:
        """The columns of the moments, and minus their derivatives by log p."""
        numbers, names, targets = self.numbers, self.question.names, self.question.target_names
        place = targets.index(contrast[0])
        t, p = numbers[names.targets[place]], numbers[P]
        other = numbers[names.targets[targets.index(contrast[1])]] if contrast[1] in targets else None
        u = self._excess(t, other, p)
        slope = (self._excess(t, other, p * np.exp(-STEP)) - self._excess(t, other, p * np.exp(STEP))) / (2 * STEP)
        slope[~self.is_free] = 0.0
        s = numbers[names.rewards[0]] - center
        z, g = {"u": u, "s": s, "us": u * s}, {"u": slope, "us": slope * s}
        if "e" in columns:
            e = numbers[names.rewards[0]] - numbers[MODEL_REWARD]
            other_value = numbers[self._value_of(contrast[1])] if contrast[1] else 0.0
            z |= {"e": e, "ue": u * e, "v": numbers[names.values[place]] - other_value - center}
            g["ue"] = slope * e
        z |= {name: numbers[own] for name, own in zip(self.question.control, names.controls, strict=True)}
        nothing = np.zeros(len(u))
        return np.column_stack([z[name] for name in columns]), np.column_stack(
            [g.get(name, nothing) for name in columns]
        )

    def _value_of(self, target: str) -> str:
        """The model's value of another target; that of the logging policy is the logged action's."""
        names, targets = self.question.names, self.question.target_names
        return names.values[targets.index(target)] if target in targets else MODEL_REWARD

    def _excess(self, t: Floats, other: Floats | None, p: Floats) -> Floats:
        weight = self.question.weight
        return np.asarray(weight.excess(t, p) if other is None else weight.difference(t, other, p))

    def _explained(self, g: Floats) -> Floats:
        """E[g sᵀ] H⁻¹ s of every row, with expectations over the clusters of other folds."""
        fold = np.random.default_rng(0).permutation(int(self.cluster.max()) + 1)[self.cluster] % FOLDS
        found = np.zeros(g.shape)
        for k in range(FOLDS):
            others, own = self.scores[fold != k], fold == k
            square = others.T @ others
            ridge = 1e-6 * max(float(np.trace(square)) / len(square), 1e-12)
            solved = np.linalg.solve(square + ridge * np.eye(len(square)), others.T @ g[fold != k])
            found[own] = self.scores[own] @ solved
        return found

    def _by_cluster(self, rows: Floats) -> Floats:
        if self.question.log.cluster is None:
            return rows
        count = int(self.cluster.max()) + 1
        return np.column_stack([np.bincount(self.cluster, column, count) for column in rows.T])


def _spread(means: Floats) -> Floats:
    """The jackknife's covariances of a mean, from the means without each group."""
    off = means - means.mean(axis=0)
    return np.asarray(off.T @ off * (len(means) - 1) / len(means))


def _scores(rows: pl.DataFrame, step: FittedPropensity, action: str) -> Floats:
    """The scores of the softmax model: what its parameters would change in the log-probability of each row's action."""
    x, codes, folds = step.x(rows), step.codes(rows, action), rows.get_column(FOLD).to_numpy()
    residual = np.zeros((len(x), len(step.actions.levels)))
    for fold, classifier in enumerate(step.classifiers):
        mine = folds == fold
        if mine.any():
            residual[mine] = -classifier.table(x[mine])
    known = np.flatnonzero(codes >= 0)
    residual[known, codes[known]] += 1.0
    features = np.column_stack([np.ones(len(x)), x])
    return (residual[:, 1:, None] * features[:, None, :]).reshape(len(x), -1)
