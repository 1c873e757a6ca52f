"""`Propensity`: which propensity model to fit where none were logged, how, and the step that adds its propensities to every batch.

Before the fit, the step says which fold each row belongs to; after it, what the model fitted on the other folds gives the row's action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.engines.registry import engine_of
from counterpoise.errors import LogError, OptionError
from counterpoise.features import Encoder
from counterpoise.log.expressions import column as exactly
from counterpoise.log.good import is_propensity
from counterpoise.log.kinds import check_rows
from counterpoise.log.log import ESTIMATED as PROPENSITY
from counterpoise.log.log import MODEL, Log
from counterpoise.log.parts import Column, Unlogged
from counterpoise.log.question import Question
from counterpoise.models.cross_fitting import CrossFit, PropensityQuality, propensity_quality_of
from counterpoise.models.design import Actions, Codes, actions_of, blocks
from counterpoise.models.estimators import ClassPredictor, fit_estimator, is_native, libraries
from counterpoise.models.reward import SAMPLE, check_count, identity_of, lean_question
from counterpoise.moments import Floats
from counterpoise.readers.progress import progress_bar, progress_line
from counterpoise.threads import threads

CLASSIFIERS = ("logistic", "boosted")
ERRORS = ("scores", "refit")


@dataclass(frozen=True)
class Propensity(Unlogged):
    """A model of the logging policy, for logs that did not keep its probabilities: pass it as the log's `propensity`.

    It is cross-fitted: the propensity of a row comes from a model of action given context that was fitted on other rows.
    Estimates rest on it. They are right if the context has everything that both the choice and the reward depend on, and if the
    model has the right form. No log can show the first, so no verdict is better than ``caution``.

    Parameters
    ----------
    estimator
        A classifier of scikit-learn (or anything with its `fit`, `predict_proba` and `classes_`), not fitted yet; or ``"logistic"``, a
        multinomial logistic regression, or ``"boosted"``, gradient-boosted trees. Text is encoded before, and numbers are standardized.
    folds
        How many parts the log is cut into: by cluster, by key, or by row. Each part is predicted by a model fitted on the others.
    calibrate
        Draw the predicted probabilities towards the shares of the actions in the log, or away from them, as suits the actions of
        the rows that each model has not seen: p ∝ share^(1 − c) · p̂^c, with one number c for all.
    column
        The column with the propensities that were logged, if some were: the model then fills in rows without a number there, and
        is fitted on those rows.
    sample
        The most rows to fit the models on, spread over the whole log.
    floor
        The smallest propensity; smaller ones are raised to it. By default, a hundredth of one share: 0.01 / (number of actions).
    error
        How the errors of estimates allow for the fit: by the ``"scores"`` of a logistic model (with other models, errors treat
        propensities as known), or by ``"refit"``, for any classifier: a jackknife that fits all models again without each of 20
        groups of rows or clusters.

    Examples
    --------
    >>> Propensity(folds=2)
    Propensity(estimator='logistic', folds=2, calibrate=True, column=None, sample=200000, floor=None, error='scores')

    References
    ----------
    Hirano, Imbens & Ridder, "Efficient estimation of average treatment effects using the estimated propensity score", Econometrica 2003;
    Chernozhukov et al., "Double/debiased machine learning", 2018.
    """

    estimator: str | ClassPredictor = "logistic"
    folds: int = 5
    calibrate: bool = True
    column: Column = None
    sample: int = SAMPLE
    floor: float | None = None
    error: Literal["scores", "refit"] = "scores"

    def __post_init__(self) -> None:
        check_count("folds", self.folds, 2, 100)
        check_count("sample", self.sample, 10, 10**9)
        if self.floor is not None and not (
            isinstance(self.floor, Real) and not isinstance(self.floor, bool) and 0 < self.floor < 1
        ):
            raise OptionError(f"floor of a propensity model must lie in (0, 1), found {self.floor!r}.")
        if self.error not in ERRORS:
            raise OptionError(f"error of a propensity model must be {' or '.join(ERRORS)}, found {self.error!r}.")
        if isinstance(self.estimator, str):
            if self.estimator not in CLASSIFIERS:
                raise OptionError(
                    f"the propensity model {self.estimator!r} is not known: choose one of {', '.join(CLASSIFIERS)}, or pass a "
                    "classifier of scikit-learn."
                )
        elif isinstance(self.estimator, type) or not all(
            hasattr(self.estimator, name) for name in ("fit", "predict_proba")
        ):
            what = getattr(self.estimator, "__name__", type(self.estimator).__name__)
            raise OptionError(
                f"a propensity model must have the methods fit and predict_proba, as scikit-learn's classifiers do; found {what}.",
                do="Pass an instance, such as LogisticRegression().",
            )


def propensity_of(log: Log) -> Propensity | None:
    """The propensity model of a log; None if its propensities are a column.

    >>> propensity_of(Log({"r": [1]}, reward="r", propensity="model")).folds, propensity_of(Log({"p": [1]}, propensity="p"))
    (5, None)
    """
    if isinstance(log.propensity, Propensity):
        return log.propensity
    return Propensity() if isinstance(log.propensity, str) and log.propensity == MODEL else None


# -- the step: before the fit, the fold of every row; after it, what the model of the other folds gives the row's action ---

FOLD = "counterpoise propensity fold"
PROBABILITIES_AT_ONCE = 2_000_000  # of a table of rows × actions


@dataclass(frozen=True)
class UnfittedPropensity(CrossFit[Propensity]):
    """A propensity model before its fit: a batch gets the fold of every row."""

    @property
    def column(self) -> str | None:
        """The column with the propensities that were logged, if some were."""
        return None if self.model.column is None else str(self.model.column)

    def complete(self, frame: pl.DataFrame, question: Question, batch: str, first_row: int) -> pl.DataFrame:
        """The batch with the folds of its rows."""
        return frame.with_columns(pl.Series(FOLD, self.folds(frame, first_row)))


@dataclass(frozen=True)
class ActionClassifier:
    """A fitted classifier of actions, and how its probabilities are calibrated."""

    estimator: ClassPredictor
    actions: int
    shares: Floats  # of the actions in the log, toward which calibration shrinks
    sharpness: float = 1.0  # 1 leaves the probabilities as they are, 0 makes shares of them

    def raw(self, x: Floats) -> Floats:
        """The probabilities of all actions as predicted; 0 for one that the classifier has not seen."""
        probabilities = np.asarray(self.estimator.predict_proba(x), dtype=np.float64)
        if not np.isfinite(probabilities).all():
            bad = int((~np.isfinite(probabilities).all(axis=1)).sum())
            raise LogError(
                f"the propensity model must predict probabilities: for {bad:,} of {len(probabilities):,} rows it does not.",
                do="Fix the model, or fill the gaps in the context.",
            )
        table = np.zeros((len(x), self.actions))
        table[:, np.asarray(self.estimator.classes_, dtype=np.int64)] = probabilities
        return table

    def table(self, x: Floats) -> Floats:
        """The probabilities of all actions, calibrated."""
        return sharpen(self.raw(x), self.shares, self.sharpness)


def sharpen(table: Floats, shares: Floats, sharpness: float) -> Floats:
    """p ∝ share^(1 − c) · p̂^c: the shares for c = 0, the predictions for c = 1.

    >>> sharpen(np.array([[0.9, 0.1]]), np.array([0.5, 0.5]), 0.0).tolist()
    [[0.5, 0.5]]
    """
    if sharpness == 1.0:
        return table
    logits = (1.0 - sharpness) * np.log(shares) + sharpness * np.log(np.maximum(table, 1e-12))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class FittedPropensity(UnfittedPropensity):
    """A cross-fitted propensity model: a batch gets the propensities of its logged actions."""

    context: Encoder
    actions: Actions
    is_native: bool
    classifiers: tuple[ActionClassifier, ...]  # by fold: each was fitted on the rows of all others
    floor: float
    quality: PropensityQuality

    def x(self, rows: pl.DataFrame) -> Floats:
        """The contexts of some rows, as the classifier sees them."""
        return self.context.numbers(rows, is_native=self.is_native)

    def codes(self, rows: pl.DataFrame, action: str) -> Codes:
        """The numbers of the logged actions, -1 for one that was not in the sample."""
        return self.actions.codes(rows.select(exactly(action)).to_series())

    def complete(self, frame: pl.DataFrame, question: Question, batch: str, first_row: int) -> pl.DataFrame:
        """The batch with propensities; rows without an action or an id get none, as they are bad anyway."""
        folds = self.folds(frame, first_row)
        action = str(question.log.action)
        has_both = frame.select(exactly(action)).to_series().is_not_null().to_numpy() & (folds >= 0)
        propensities = np.full(frame.height, np.nan)
        rows = frame.filter(has_both)
        propensities[has_both] = self._propensities(self.x(rows), self.codes(rows, action), folds[has_both])
        values = pl.Series(PROPENSITY, propensities).fill_nan(None)
        if self.column is not None:
            logged = frame.select(exactly(self.column)).to_series().cast(pl.Float64).fill_nan(None)
            values = logged.zip_with(logged.is_not_null(), values).alias(PROPENSITY)
        return frame.with_columns(values, pl.Series(FOLD, folds))

    def _propensities(self, x: Floats, codes: Codes, folds: Codes) -> Floats:
        propensities = np.empty(len(x))
        for fold, classifier in enumerate(self.classifiers):
            mine = np.flatnonzero(folds == fold)
            for part in blocks(len(mine), max(PROBABILITIES_AT_ONCE // len(self.actions.levels), 1)):
                rows = mine[part]
                table = classifier.table(x[rows])
                propensities[rows] = np.where(codes[rows] >= 0, table[np.arange(len(rows)), codes[rows]], 0.0)
        return np.clip(propensities, self.floor, 1.0)


# -- the fit: from a question whose propensities were not logged to one that has them ----------------------------------

FLOOR = 0.01  # of one action's even share
SHARPEST = 4.0
SHOWN = 50_000  # rows from which the quality is measured


def with_propensities(question: Question, model: Propensity) -> Question:
    """The question with an unfitted propensity model in it; raises an error before anything is read if that is not possible."""
    if question.log.action is None:
        raise OptionError("a propensity model needs `action=`, the column with the logged action.")
    if not question.log.context:
        raise OptionError("a propensity model needs `context=`, the columns that the logging policy looked at.")
    check_rows(question.log, "a propensity model")
    if question.log.candidates is not None:
        raise OptionError(
            "a propensity model assumes that every action could be chosen, and `candidates=` rules some out.",
            do="Log the propensities, or leave out `candidates=`.",
        )
    if not question.weight.needs_propensity:
        raise OptionError("a weight of your own needs no propensities: leave out the propensity model.")
    if len(question.rungs) > 1:
        raise OptionError(
            "a ladder of weights is chosen from by errors that take propensities as logged, and a model is to estimate them.",
            do="Choose the constant yourself, such as `weight=Clip(10)`.",
        )
    step = UnfittedPropensity(model, identity_of(question.log))
    return replace(question, log=question.log.but(propensity=PROPENSITY), propensity_model=step)


def fit_propensity_model(question: Question, progress: bool | None = None) -> Question:
    """The question with its propensity model fitted on a sample of the log's rows; a fitted one stays as it is."""
    unfitted = question.propensity_model
    if not isinstance(unfitted, UnfittedPropensity) or isinstance(unfitted, FittedPropensity):
        return question
    propensity, action = unfitted.model, str(question.log.action)
    with progress_line(progress, "reading the rows that the propensity model learns from"):
        rows, logged = _rows(question, unfitted)
    actions = actions_of(rows.select(exactly(action)).to_series(), None)
    unlogged = "" if unfitted.column is None else f" without a propensity in {unfitted.column!r}"
    if len(actions.levels) < 2:
        raise LogError(
            f"every row{unlogged or ' of the log'} has the action {actions.levels[0]!r} in {action!r}: there is no choice to model, and "
            f"{'these rows show' if unlogged else 'the log shows'} nothing about other actions."
        )
    estimator = propensity.estimator
    if isinstance(estimator, str):
        linear, trees = libraries()
        is_logistic = estimator == "logistic"
        estimator = linear.LogisticRegression(max_iter=1000) if is_logistic else trees.HistGradientBoostingClassifier()
    context = Encoder.of(rows, question.log.context)
    native = is_native(estimator)
    x = context.numbers(rows, is_native=native)
    codes, folds = actions.codes(rows.select(exactly(action)).to_series()), rows.get_column(FOLD).to_numpy()
    count = len(actions.levels)
    shares = np.bincount(codes, minlength=count) / len(codes)
    classifiers = []
    fitting = progress_bar(progress, "fitting the propensity model", "models", propensity.folds)
    with threads(x.size), fitting as report:
        for fold in range(propensity.folds):
            others = folds != fold
            _check_seen(actions, codes, others, fold, unlogged)
            fitted = fit_estimator(estimator, x[others], codes[others], None, context.is_category)
            classifiers.append(ActionClassifier(fitted, count, shares))
            if report is not None:
                report(1)
    some = np.arange(len(codes))[:: max(len(codes) // SHOWN, 1)]
    table = out_of_fold([classifier.raw for classifier in classifiers], x[some], folds[some], count)
    sharpness = sharpness_of(table, codes[some], shares) if propensity.calibrate else 1.0
    classifiers = [replace(classifier, sharpness=sharpness) for classifier in classifiers]
    floor = FLOOR / count if propensity.floor is None else float(propensity.floor)
    quality = propensity_quality_of(
        sharpen(table, shares, sharpness), codes[some], shares, floor,
        model=type(estimator).__name__, rows=len(codes), folds=propensity.folds, actions=count, context=question.log.context,
        logged=logged, sharpness=sharpness, floor=floor,
    )  # fmt: skip
    step = FittedPropensity(propensity, unfitted.identity, context, actions, native, tuple(classifiers), floor, quality)
    return replace(question, propensity_model=step)


def _rows(question: Question, unfitted: UnfittedPropensity) -> tuple[pl.DataFrame, int]:
    """The rows to fit on, and how many were left out because their propensity was logged."""
    lean = replace(lean_question(question, ()), model=None)
    sample = engine_of(lean.log).sampled(lean, unfitted.model.sample)
    action = sample.select(exactly(str(question.log.action))).to_series()
    rows = sample.filter(action.is_not_null() & (sample.get_column(FOLD) >= 0))
    if not rows.height:
        raise LogError("no row has an action and a cluster to fit a propensity model from.")
    if unfitted.column is None:
        return rows, 0
    column = rows.select(exactly(unfitted.column)).to_series()
    if not (column.dtype.is_numeric() or column.dtype == pl.Null):
        raise LogError(f"column {unfitted.column!r} must hold propensities, but holds {column.dtype}.")
    values = column.cast(pl.Float64).fill_nan(None)
    missing = values.is_null()
    if not missing.any():
        bad = values.filter(~is_propensity(values))
        if len(bad):
            raise LogError(
                f"no row of {unfitted.column!r} is null, which stands for an unknown propensity, but {len(bad):,} of {len(values):,} "
                f"rows have a value that is no probability of a logged action; the first is {bad[0]:g}.",
                do=f'Make it null if it stands for unknown: cp.models.Propensity(…, column="nullif({unfitted.column}, {bad[0]:g})").',
            )
        raise LogError(
            f"every row has a propensity in {unfitted.column!r}: no model is needed.",
            do=f"Pass `propensity={unfitted.column!r}`.",
        )
    return rows.filter(missing), int((~missing).sum())


def _check_seen(actions: Actions, codes: Codes, others: NDArray[np.bool_], fold: int, unlogged: str) -> None:
    """Check that the rows to fit on have every action that the fold's rows need."""
    if not others.any() or others.all():
        raise LogError(
            "all rows that the propensity model could learn from are in one fold: there are too few clusters, or rows."
            if not others.any()
            else f"no row{unlogged} is in fold {fold + 1}: there are too few clusters, or rows.",
            do="Pass fewer folds with cp.models.Propensity(…, folds=2).",
        )
    lost = np.setdiff1d(codes, codes[others])
    if len(lost):
        name, rows = actions.levels[lost[0]], int((codes == lost[0]).sum())
        among = f"among the rows{unlogged}, " if unlogged else ""
        raise LogError(
            f"{among}the action {name!r} occurs only in fold {fold + 1} ({rows:,} row{'s' if rows > 1 else ''}), so that the model of "
            "that fold could not learn it: it is too rare.",
            do="Drop such rows with `where=`, or put rare actions together as one.",
        )


def out_of_fold(models: Sequence[Callable[[Floats], Floats]], x: Floats, folds: Codes, actions: int) -> Floats:
    """The probabilities of all actions, each row's by the model that has not seen its fold."""
    table = np.zeros((len(x), actions))
    for fold, probabilities in enumerate(models):
        mine = folds == fold
        if mine.any():
            table[mine] = probabilities(x[mine])
    return table


def sharpness_of(table: Floats, codes: Codes, shares: Floats) -> float:
    """The c of p ∝ share^(1 − c) · p̂^c under which the actions were most likely; the likelihood is concave in it."""
    tilt = np.log(np.maximum(table, 1e-12)) - np.log(shares)
    own = tilt[np.arange(len(codes)), codes].mean()
    low, high = 0.0, SHARPEST
    for _ in range(40):
        middle = (low + high) / 2
        expected = (sharpen(table, shares, middle) * tilt).sum(axis=1).mean()
        low, high = (middle, high) if own > expected else (low, middle)
    return (low + high) / 2
