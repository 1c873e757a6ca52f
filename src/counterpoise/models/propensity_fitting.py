"""Fits propensity models: from a question whose propensities were not logged to one that has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.engines.registry import engine_of
from counterpoise.errors import Argument, LogError, OptionError
from counterpoise.features import Encoder
from counterpoise.log.expressions import column as exactly
from counterpoise.log.good import is_propensity
from counterpoise.log.lists import refuse_lists
from counterpoise.log.question import Question
from counterpoise.models.design import Actions, Codes, actions_of
from counterpoise.models.estimators import fit, is_native, libraries
from counterpoise.models.propensity import (
    FOLD,
    PROPENSITY,
    Classifier,
    FittedPropensity,
    Propensity,
    UnfittedPropensity,
    needs_context,
    sharpen,
)
from counterpoise.models.quality import QUANTILES, PropensityQuality, calibration_of, effective_rows
from counterpoise.models.reward_fitting import identity_of, lean_question
from counterpoise.moments import Floats
from counterpoise.readers.progress import progress_bar
from counterpoise.threads import threads

FLOOR = 0.01  # of one action's even share
SHARPEST = 4.0
SHOWN = 50_000  # rows from which the quality is measured


def with_propensities(question: Question, model: Propensity) -> Question:
    """The question with a propensity model in it, not fitted yet; raises an error, before anything is read, if it cannot be."""
    needs_context(question.log)
    refuse_lists(question.log.slate, "a propensity model")
    if question.log.candidates is not None:
        raise OptionError(
            [
                "a propensity model takes every action for one to choose from, and ",
                Argument("candidates"),
                " says otherwise.",
            ],
            do=["Log the propensities, or leave out ", Argument("candidates"), "."],
        )
    if not question.weight.needs_propensity:
        raise OptionError("a weight of your own needs no propensities: leave out the propensity model.")
    if len(question.rungs) > 1:
        raise OptionError(
            "a ladder of weights is chosen from by errors that take propensities as logged, and a model is to estimate them.",
            do=["Choose the constant yourself, such as ", Argument("weight", "clip:10"), "."],
        )
    step = UnfittedPropensity(model, identity_of(question.log))
    return replace(question, log=question.log.but(propensity=PROPENSITY), propensity_model=step)


def fit_propensity_model(question: Question, progress: bool | None = None) -> Question:
    """The question with its propensity model fitted, on a sample of the log's rows; one that is fitted stays as it is."""
    unfitted = question.propensity_model
    if unfitted is None or isinstance(unfitted, FittedPropensity):
        return question
    propensity, action = unfitted.model, str(question.log.action)
    rows, logged = _rows(question, unfitted)
    actions = actions_of(rows.select(exactly(action)).to_series(), None)
    unlogged = "" if unfitted.column is None else f" without a propensity in {unfitted.column!r}"
    _check_actions(actions, action, unlogged)
    estimator = _estimator(propensity.estimator)
    context = Encoder.of(rows, question.log.context)
    native = is_native(estimator)
    x = context.numbers(rows, is_native=native)
    codes, folds = actions.codes(rows.select(exactly(action)).to_series()), rows.get_column(FOLD).to_numpy()
    count = len(actions.levels)
    shares = np.bincount(codes, minlength=count) / len(codes)
    classifiers = []
    with threads(x.size), progress_bar(progress, "fitting the propensity model", "models") as report:
        for fold in range(propensity.folds):
            others = folds != fold
            _check_seen(actions, codes, others, fold, unlogged)
            made = fit(estimator, x[others], codes[others], None, context.is_category)
            classifiers.append(Classifier(made, count, shares))
            if report is not None:
                report(1)
    some = np.arange(len(codes))[:: max(len(codes) // SHOWN, 1)]
    table = out_of_fold([classifier.raw for classifier in classifiers], x[some], folds[some], count)
    sharpness = sharpness_of(table, codes[some], shares) if propensity.calibrate else 1.0
    classifiers = [replace(classifier, sharpness=sharpness) for classifier in classifiers]
    floor = FLOOR / count if propensity.floor is None else float(propensity.floor)
    quality = _quality(
        sharpen(table, shares, sharpness), codes[some], shares, floor,
        model=type(estimator).__name__, rows=len(codes), folds=propensity.folds, actions=count, context=question.log.context,
        logged=logged, sharpness=sharpness, floor=floor,
    )  # fmt: skip
    step = FittedPropensity(propensity, unfitted.identity, context, actions, native, tuple(classifiers), floor, quality)
    return replace(question, propensity_model=step)


def _rows(question: Question, unfitted: UnfittedPropensity) -> tuple[pl.DataFrame, int]:
    """The rows to fit on, and how many were left out because their propensity was logged."""
    lean = replace(lean_question(question, ()), model=None)
    whole = engine_of(lean.log).sampled(lean, unfitted.model.sample)
    action = whole.select(exactly(str(question.log.action))).to_series()
    rows = whole.filter(action.is_not_null() & (whole.get_column(FOLD) >= 0))
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
            do=["Pass ", Argument("propensity", unfitted.column), "."],
        )
    return rows.filter(missing), int((~missing).sum())


def _estimator(name: Any) -> Any:
    if not isinstance(name, str):
        return name
    linear, trees = libraries()
    return linear.LogisticRegression(max_iter=1000) if name == "logistic" else trees.HistGradientBoostingClassifier()


def _check_actions(actions: Actions, column: str, unlogged: str) -> None:
    if len(actions.levels) < 2:
        raise LogError(
            f"every row{unlogged or ' of the log'} has the action {actions.levels[0]!r} in {column!r}: there is no choice to model, and "
            f"{'these rows say' if unlogged else 'the log says'} nothing about other actions."
        )


def _check_seen(actions: Actions, codes: Codes, others: NDArray[np.bool_], fold: int, unlogged: str) -> None:
    """Check that the rows to fit on have every action that rows of the fold may ask for."""
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
            do=["Leave such rows out with ", Argument("where"), ", or put rare actions together as one."],
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


def _quality(table: Floats, codes: Codes, shares: Floats, least: float, **others: Any) -> PropensityQuality:
    p = table[np.arange(len(codes)), codes]
    kept = np.clip(p, least, 1.0)
    return PropensityQuality(
        raised=int((p < least).sum()),
        log_loss=float(-np.log(kept).mean()),
        log_loss_of_shares=float(-np.log(shares[codes]).mean()),
        effective_rows=effective_rows(kept),
        quantiles=tuple((q, float(np.quantile(kept, q))) for q in QUANTILES),
        calibration=calibration_of(table, codes),
        **others,
    )
