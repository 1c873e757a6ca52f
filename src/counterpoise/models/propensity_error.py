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

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.engines.registry import engine_of
from counterpoise.engines.streaming import good_rows, prepare
from counterpoise.log.columns import MODEL_REWARD
from counterpoise.log.columns import PROPENSITY as P
from counterpoise.log.expressions import column as exactly
from counterpoise.log.groups import integer_ids
from counterpoise.log.question import Question
from counterpoise.models.design import Codes
from counterpoise.models.estimators import fit_estimator
from counterpoise.models.propensity import FOLD, ActionClassifier, FittedPropensity, out_of_fold, sharpen, sharpness_of
from counterpoise.moments import Floats, LogMoments
from counterpoise.moments.log_moments import Contrast, Segment, as_label
from counterpoise.moments.weighed import Estimated
from counterpoise.threads import threads

CELLS = 20_000_000  # of the table of rows × scores
ROWS = 50_000
MOST = 600  # the most scores whose products are worth computing
ROWS_PER_SCORE = 10  # below which the scores cannot be told from noise
SEGMENTS, FEW = 200, 30  # segments that get an effect of their own, and the rows that one takes
FOLDS = 5
STEP = 1e-4  # of log p, for the derivative of a weight


def with_errors(question: Question, by_reward: tuple[LogMoments, ...]) -> tuple[LogMoments, ...]:
    """The moments of a log with the effect of its propensity model on their errors."""
    step = _fitted_model(question)
    scores = (len(step.actions.levels) - 1) * (1 + step.context.width)
    quality = step.quality
    sampled = quality.rows + quality.logged
    is_linear = not step.is_native and all(hasattr(classifier.estimator, "coef_") for classifier in step.classifiers)
    refits = step.model.error == "refit"
    if not refits and (not is_linear or scores > min(MOST, quality.rows / ROWS_PER_SCORE)):
        return tuple(
            replace(moments, estimated=Estimated(quality.model, sampled, moments.n, 0.0)) for moments in by_reward
        )
    lean = replace(question, log=question.log.but(key=()), smoothings=())
    rows = engine_of(lean.log).sampled(lean, ROWS if refits else min(ROWS, CELLS // scores))
    corrected = []
    for reward, moments in zip(question.log.reward, by_reward, strict=True):
        about = lean.about(reward)
        sample = _GoodSample.of(rows, about)
        center = float(sample.numbers[about.names.rewards[0]].mean())
        how = sample.by_refitting if refits else sample.by_scores
        covariances = {key: how(key, moments.moments[key].columns, center) for key in moments.moments}
        corrected.append(replace(moments, estimated=Estimated(quality.model, sampled, moments.n, center, covariances)))
    return tuple(corrected)


def _fitted_model(question: Question) -> FittedPropensity:
    """The propensity model of a question that was fitted before its moments were made."""
    step = question.propensity_model
    assert isinstance(step, FittedPropensity)
    return step


@dataclass(frozen=True)
class _GoodSample:
    """Good rows of a sample: the question's numbers, the rows themselves, and which segment and cluster each belongs to."""

    question: Question
    numbers: dict[str, Floats]
    rows: pl.DataFrame
    is_logged: NDArray[np.bool_]
    is_free: NDArray[np.bool_]  # rows whose propensity is not at the floor, where no parameter moves it
    segments: dict[Segment, NDArray[np.bool_]]
    cluster: NDArray[np.int64]  # numbered from 0

    @classmethod
    def of(cls, rows: pl.DataFrame, question: Question) -> _GoodSample:
        """What is in some completed rows."""
        step = _fitted_model(question)
        frame = prepare(rows, question, 0).with_row_index("place in the sample")
        good = good_rows(frame, question)
        rows = rows[good.get_column("place in the sample").to_numpy()]
        numbers = {name: good.get_column(name).cast(pl.Float64).to_numpy() for name in question.numbers}
        is_logged = np.zeros(rows.height, dtype=bool)
        if step.column is not None:
            logged = rows.select(exactly(step.column)).to_series().cast(pl.Float64).fill_nan(None)
            is_logged = logged.is_not_null().to_numpy()
        segments: dict[Segment, NDArray[np.bool_]] = {None: np.ones(rows.height, dtype=bool)}
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
        """What the softmax model's parameters would change in the log-probability of each row's action; nothing, if it was logged."""
        step, rows = _fitted_model(self.question), self.rows
        x, codes = step.x(rows), step.codes(rows, str(self.question.log.action))
        tables = [classifier.table for classifier in step.classifiers]
        residual = -out_of_fold(tables, x, rows.get_column(FOLD).to_numpy(), len(step.actions.levels))
        has_code = np.flatnonzero(codes >= 0)
        residual[has_code, codes[has_code]] += 1.0
        features = np.column_stack([np.ones(len(x)), x])
        scores = (residual[:, 1:, None] * features[:, None, :]).reshape(len(x), -1)
        scores[self.is_logged] = 0.0
        return scores

    @cached_property
    def refits(self) -> tuple[NDArray[np.int64], Floats]:
        """The group of every row, and for every group all propensities by models that were fitted without it."""
        step = _fitted_model(self.question)
        x, codes = step.x(self.rows), step.codes(self.rows, str(self.question.log.action))
        folds, groups = self.rows.get_column(FOLD).to_numpy(), groups_of(self.cluster)
        categories, calibrate = step.context.is_category, step.model.calibrate
        with threads(x.size):
            again = refit_propensities(step.classifiers, x, codes, folds, self.is_logged, groups, categories, calibrate)
        return groups, np.where(self.is_logged, self.numbers[P], np.clip(again, step.floor, 1.0))

    def by_refitting(self, contrast: Contrast, columns: tuple[str, ...], center: float) -> dict[Segment, Floats]:
        """Like `by_scores`, from the means without each group of rows."""
        groups, propensities = self.refits
        z, _ = self._columns(contrast, columns, center)
        means: dict[Segment, list[Floats]] = {place: [] for place in self.segments}
        for group, p in enumerate(propensities):
            again, _ = replace(self, numbers={**self.numbers, P: p})._columns(contrast, columns, center)
            for place, inside in self.segments.items():
                kept = inside & (groups != group)
                if kept.any() and kept.sum() < inside.sum():
                    own, fitted = z[kept].mean(axis=0), again[kept].mean(axis=0)
                    means[place].append(np.concatenate([own, own - fitted]))
        covariances = {}
        for place, of_place in means.items():
            if len(of_place) > 1:  # the jackknife's, of a mean
                off = np.array(of_place) - np.mean(of_place, axis=0)
                covariances[place] = off.T @ off * (len(off) - 1) / len(off) * len(z)
        return covariances

    def by_scores(self, contrast: Contrast, columns: tuple[str, ...], center: float) -> dict[Segment, Floats]:
        """The covariances of the moments' columns and of what the fit takes from them, over the whole log and by segment."""
        z, g = self._columns(contrast, columns, center)
        covariances = {}
        for place, inside in self.segments.items():
            share = inside.mean()
            own = np.where(inside[:, None], z - z[inside].mean(axis=0), 0.0) / share
            taken = self._projection(np.where(inside[:, None], g, 0.0) / share)
            both = self._by_cluster(np.concatenate([own, taken - taken.mean(axis=0)], axis=1))
            covariances[place] = both.T @ both / len(z)
        return covariances

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
            # the model's value of the logging policy is that of the logged action
            rival = names.values[targets.index(contrast[1])] if contrast[1] in targets else MODEL_REWARD
            other_value = numbers[rival] if contrast[1] else 0.0
            z |= {"e": e, "ue": u * e, "v": numbers[names.values[place]] - other_value - center}
            g["ue"] = slope * e
        z |= {name: numbers[own] for name, own in zip(self.question.control, names.controls, strict=True)}
        slopes = [g.get(name, np.zeros(len(u))) for name in columns]
        return np.column_stack([z[name] for name in columns]), np.column_stack(slopes)

    def _excess(self, t: Floats, other: Floats | None, p: Floats) -> Floats:
        weight = self.question.weight
        return np.asarray(weight.excess(t, p) if other is None else weight.difference(t, other, p))

    def _projection(self, g: Floats) -> Floats:
        """E[g sᵀ] H⁻¹ s of every row, with expectations over the clusters of other folds."""
        fold = np.random.default_rng(0).permutation(int(self.cluster.max()) + 1)[self.cluster] % FOLDS
        explained = np.zeros(g.shape)
        for k in range(FOLDS):
            others, own = self.scores[fold != k], fold == k
            square = others.T @ others
            ridge = 1e-6 * max(float(np.trace(square)) / len(square), 1e-12)
            solved = np.linalg.solve(square + ridge * np.eye(len(square)), others.T @ g[fold != k])
            explained[own] = self.scores[own] @ solved
        return explained

    def _by_cluster(self, rows: Floats) -> Floats:
        if self.question.log.cluster is None:
            return rows
        count = int(self.cluster.max()) + 1
        return np.column_stack([np.bincount(self.cluster, column, count) for column in rows.T])


# -- the jackknife -----------------------------------------------------------------------------------------------------


GROUPS = 20  # as many refits of all folds


def groups_of(cluster: NDArray[np.int64]) -> NDArray[np.int64]:
    """The group of every row, the same for all rows of a cluster; clusters are dealt out at random, as evenly as possible.

    >>> groups = groups_of(np.arange(100) // 2)
    >>> bool((groups[::2] == groups[1::2]).all()), len(set(groups.tolist()))
    (True, 20)
    """
    return np.asarray(np.random.default_rng(0).permutation(int(cluster.max()) + 1)[cluster] % GROUPS)


def refit_propensities(
    classifiers: tuple[ActionClassifier, ...], x: Floats, codes: Codes, folds: Codes, is_logged: NDArray[np.bool_],
    groups: NDArray[np.int64], categories: tuple[bool, ...], calibrate: bool,
) -> Floats:  # fmt: skip
    """For every group, the propensities of the logged actions by models that have seen neither it nor the row's own fold; 0 if unknown."""
    propensities = np.zeros((GROUPS, len(x)))
    usable = (codes >= 0) & ~is_logged
    for group in range(GROUPS):
        kept = usable & (groups != group)
        shares = np.bincount(codes[kept], minlength=classifiers[0].actions) / max(int(kept.sum()), 1)
        refits: list[ActionClassifier] = []
        for fold, classifier in enumerate(classifiers):
            others = kept & (folds != fold)
            estimator = fit_estimator(classifier.estimator, x[others], codes[others], None, categories)
            refits.append(ActionClassifier(estimator, classifier.actions, shares))
        table = out_of_fold([classifier.raw for classifier in refits], x, folds, len(shares))
        positive = np.maximum(shares, 1e-12)
        sharpness = sharpness_of(table[kept], codes[kept], positive) if calibrate else 1.0
        table = sharpen(table, positive, sharpness)
        propensities[group] = np.where(codes >= 0, table[np.arange(len(x)), codes], 0.0)
    return propensities
