"""Fits reward models: from a log's question to the same question with a model in it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.engines.registry import engine_of
from counterpoise.errors import Argument, LogError, OptionError
from counterpoise.features import Encoder, Scaling
from counterpoise.log.good import is_number
from counterpoise.log.lists import refuse_lists
from counterpoise.log.log import Log
from counterpoise.log.question import Question
from counterpoise.log.targets import Chosen, Target
from counterpoise.models.design import Codes, Design, actions_of
from counterpoise.models.estimators import (
    check_rewards,
    estimator_of,
    fit,
    fit_error,
    fresh,
    is_classifier,
    is_native,
    predict_rewards,
)
from counterpoise.models.fits import Constant, Fit, Joint, PerAction, linear, stack, trees
from counterpoise.models.folds import FOLD
from counterpoise.models.quality import quality_of
from counterpoise.models.reward import REWARD, Fitted, Reward, Unfitted, as_reward, value_column
from counterpoise.moments import Floats
from counterpoise.readers.policies import has_table
from counterpoise.readers.progress import Report, progress_bar
from counterpoise.threads import threads

ROWS_AT_ONCE = 100_000  # that a model is given at once, if it learns batch by batch
ROWS_PER_ACTION = 50  # from which an action gets a model of its own
SHRINKAGE = 10.0  # rows of the mean of all that the mean of a rarer action is mixed with
Predict = Callable[[NDArray[Any]], Floats]

# -- the rows to learn from ------------------------------------------------------------------------------------------


def good_rows(rows: pl.DataFrame, question: Question) -> pl.DataFrame:
    """The rows that a model can learn from."""
    reward = rows.get_column(question.log.reward[0]).cast(pl.Float64)
    known = rows.get_column(str(question.log.action)).is_not_null() & (rows.get_column(FOLD) >= 0)
    return rows.filter(is_number(reward).fill_null(False) & known)


def row_weights(rows: pl.DataFrame, question: Question) -> Floats:
    """w²(1 − p): the part of a row in the variance of the doubly robust estimate, given what the model gets wrong there."""
    p = rows.get_column(str(question.log.propensity)).cast(pl.Float64).to_numpy()
    t = rows.get_column(question.targets[0].column).cast(pl.Float64).to_numpy()
    with np.errstate(all="ignore"):
        weights = np.square(t / p) * (1.0 - p)
    return np.where(np.isfinite(weights), weights, 0.0) + 1e-9  # no fold may be left without weight


# -- models that learn batch by batch, by `partial_fit`, from all rows of a log however many there are -------------------


def fit_batches(
    estimator: Any,
    context: Encoder,
    design: Design,
    question: Question,
    folds: int,
    rewards: Floats,
    report: Report | None,
) -> tuple[list[Any], int]:
    """A model for every fold, fitted on all rows of the other folds once, in the log's order; and how many rows there are."""
    models, count = [fresh(estimator) for _ in range(folds)], 0
    extra = {"classes": np.unique(rewards)} if is_classifier(estimator) else {}

    def learn(batches: Iterable[pl.DataFrame]) -> None:
        nonlocal count
        for batch in batches:
            for part in batch.iter_slices(ROWS_AT_ONCE):
                rows = good_rows(part, question)
                x = context.numbers(rows, is_native=design.is_native)
                _fit_batch(models, design, x, rows, question, extra)
                count += rows.height

    engine_of(question.log).over_rows(question, learn, None)
    if report is not None:
        report(folds)
    return models, count


def _fit_batch(
    models: list[Any], design: Design, x: Floats, rows: pl.DataFrame, question: Question, extra: dict[str, Any]
) -> None:
    codes = design.actions.codes(rows.get_column(str(question.log.action)))
    folds = rows.get_column(FOLD).to_numpy()
    rewards = rows.get_column(question.log.reward[0]).cast(pl.Float64).to_numpy()
    weights = row_weights(rows, question) if question.targets else None
    for fold, model in enumerate(models):
        others = folds != fold
        if not others.any():
            continue
        own = {} if weights is None else {"sample_weight": weights[others]}
        try:
            model.partial_fit(design.pairs(x[others], codes[others]), rewards[others], **extra, **own)
        except (TypeError, ValueError) as error:
            raise fit_error(model, error) from error


# -- a question with a model in it ------------------------------------------------------------------------------------


def with_model(question: Question) -> Question:
    """The question with the log's model in it, not fitted yet; raises an error, before anything is read, if it cannot be."""
    log, reward = question.log, as_reward(question.log.model)
    refuse_lists(log.slate, "a reward model that is fitted here")
    if log.model_reward is not None:
        raise OptionError(
            [Argument("model"), " fits a model, and ", Argument("model_reward"), " brings one: leave out either."]
        )
    if log.action is None:
        raise OptionError(["a reward model needs ", Argument("action"), ", the column with the logged action."])
    if len(log.reward) > 1:
        raise OptionError("a reward model predicts one reward: evaluate one reward at a time with it.")
    if not question.weight.needs_propensity:
        raise OptionError(
            "a reward model needs a target's probabilities, and a weight of your own has none: leave out either."
        )
    _check_samples(log.value_samples)
    for target in question.targets:
        if not (isinstance(target.source, Chosen) or has_table(target.source)):
            raise OptionError(
                [f"a reward model needs to know how {target.name!r} would choose among all actions, and this target only says how "
                 "likely it was to take the logged one."],
                do=["Pass a policy with predict_proba, Chosen(…) or Probabilities(…); or, for what needs no model of actions, ",
                    Argument("baseline"), "; or the model's own columns with ", Argument("model_reward"), " and ",
                    Argument("model_value"), "."],
            )  # fmt: skip
    if reward.mrdr and len(question.targets) > 1:
        raise OptionError("mrdr fits a model for one target: evaluate one at a time.")
    values = {name: value_column(name) for name in question.target_names}
    step = Unfitted(reward, identity_of(log), log.value_samples)
    return replace(question, log=log.but(model_reward=REWARD), model_value=values, model=step)


def identity_of(log: Log) -> tuple[str, ...]:
    """The columns that tell rows apart, so that each has a fold of its own: none, where rows come in an order."""
    has_order = engine_of(log).has_order
    identity = (log.cluster,) if log.cluster is not None else () if has_order else log.key
    if not (has_order or identity):
        raise OptionError(
            "a model is fitted on some rows and predicts others, and rows of this log come in no order by which to tell them apart.",
            do=["Name what identifies a row with ", Argument("key"), ", or its user with ", Argument("cluster"), "."],
        )
    return identity


def fit_reward_model(question: Question, progress: bool | None = None) -> Question:
    """The question with its model fitted, on a sample of the log's rows; one that is fitted stays as it is."""
    unfitted = question.model
    if unfitted is None or isinstance(unfitted, Fitted):
        return question
    reward = unfitted.model
    learned = lean_question(question, question.targets if reward.mrdr else ())
    rows = good_rows(engine_of(learned.log).sampled(learned, reward.sample), question)
    rewards = rows.get_column(question.log.reward[0]).cast(pl.Float64).to_numpy()
    estimator = estimator_of(reward.estimator, rewards)
    check_rewards(estimator, rewards)
    context, native = Encoder.of(rows, question.log.context), is_native(estimator)
    actions = actions_of(rows.get_column(str(question.log.action)), question.log.items)
    x = context.numbers(rows, is_native=native)
    codes = actions.codes(rows.get_column(str(question.log.action)))
    categories = context.is_category if native else (False,) * context.width
    design = _suited(Design(categories, actions, native), reward, estimator, x, codes, rewards)
    folds, weights = rows.get_column(FOLD).to_numpy(), row_weights(rows, question) if reward.mrdr else None
    fits: list[Fit] = []
    predictions = np.full(len(rewards), np.nan)
    with threads(_work(design, x)), progress_bar(progress, "fitting the reward model", "models") as report:
        models: list[Any] = []
        count = len(rewards)
        if reward.stream:
            models, count = fit_batches(estimator, context, design, learned, reward.folds, rewards, report)
        for fold in range(reward.folds):
            others, own = folds != fold, folds == fold
            _check_classes(estimator, rewards, others, fold)
            some = None if weights is None else weights[others]
            fits.append(
                _take_apart(models[fold], design, x[others])
                if models
                else fit_one(estimator, design, x[others], codes[others], rewards[others], some, reward.per_action)
            )
            predictions[own] = fits[-1].pairs(x[own], codes[own])
            if report is not None and not models:
                report(1)
    if not np.isfinite(predictions).all():
        bad = int((~np.isfinite(predictions)).sum())
        raise LogError(
            f"the reward model must predict finite numbers: for {bad:,} of {len(predictions):,} rows it does not."
        )
    quality = replace(quality_of(type(estimator).__name__, reward.folds, rewards, predictions), rows=count)
    return replace(
        question, model=Fitted(reward, unfitted.identity, unfitted.value_samples, context, design, tuple(fits), quality)
    )


def lean_question(question: Question, targets: tuple[Target, ...]) -> Question:
    """The question with no more in it than what a model learns from."""
    return replace(
        question,
        log=question.log.but(model_reward=None, control=None, key=()),
        targets=targets, contrasts=(), segment=(), groups=1, model_value={}, smoothings=(),
    )  # fmt: skip


def _work(design: Design, x: Floats) -> int:
    """The size of a step of a fit: it looks at every number of every row; of many actions, only at those that are not 0."""
    return int(len(x) * (x.shape[1] + (1 if design.is_sparse else design.features.shape[1])))


def _suited(design: Design, reward: Reward, estimator: Any, x: Floats, codes: Codes, rewards: Floats) -> Design:
    """The design, dense if the estimator takes no sparse tables: fits on a few rows tell, as no tag does for every pipeline and version."""
    if not design.is_sparse or isinstance(reward.estimator, str) or reward.per_action:
        return design
    some = np.concatenate([np.flatnonzero(rewards == value)[:20] for value in np.unique(rewards)[:20]])

    def learns(form: Design) -> bool:
        table = form.pairs(x[some], codes[some])
        try:
            with warnings.catch_warnings(action="ignore"):  # so few rows need not converge
                predict_rewards(fresh(estimator).fit(table, rewards[some]), table)
        except (TypeError, ValueError):
            return False
        return True

    dense = replace(design, is_dense=True)
    # one that learns from neither says why when it is fitted
    return dense if not learns(design) and learns(dense) else design


def fit_numbers(
    model: Any, context: NDArray[Any], action: NDArray[np.int64], rewards: Floats, n_actions: int, seed: int
) -> Predict:
    """A reward model of contexts that are numbers and actions from 0 on: what it predicts for every action in other contexts.

    >>> x, a = np.array([[0.0], [1.0], [2.0], [3.0]] * 5), np.arange(20) % 2
    >>> predict = fit_numbers("ridge", x, a, x[:, 0] + a, 2, seed=0)
    >>> predict(np.array([[1.5]])).round(1).tolist()
    [[1.5, 2.5]]
    """
    reward = as_reward(model)
    estimator = fresh(estimator_of(reward.estimator, rewards), seed)
    check_rewards(estimator, rewards)
    native, scaling = is_native(estimator), Scaling.of(context)

    def numbers(table: NDArray[Any]) -> Floats:
        return table.astype(np.float64) if native else scaling.standardized(table)

    every = pl.Series(np.arange(n_actions))
    actions = actions_of(every, None)
    x, codes = numbers(context), actions.codes(pl.Series(action))
    design = _suited(Design((False,) * x.shape[1], actions, native), reward, estimator, x, codes, rewards)
    with threads(_work(design, x)):
        fit = fit_one(estimator, design, x, codes, rewards, None, reward.per_action)
    places = actions.codes(every)
    return lambda table: np.asarray(fit.table(numbers(table), places))


def fit_one(
    estimator: Any, design: Design, x: Floats, codes: Any, rewards: Floats, weights: Floats | None, per_action: bool
) -> Fit:
    """One model, in the form that predicts fastest."""
    if per_action:
        return _fit_per_action(estimator, design, x, codes, rewards, weights)
    return _take_apart(fit(estimator, design.pairs(x, codes), rewards, weights, design.is_category), design, x)


def _take_apart(made: Any, design: Design, x: Floats) -> Fit:
    forms: list[Fit] = [*linear(made, design), *(trees(made, design) if design.is_native else [])]
    return _fastest_form(Joint(made, design), forms, x, len(design.actions.levels))


def _fit_per_action(
    estimator: Any, design: Design, x: Floats, codes: Any, rewards: Floats, weights: Floats | None
) -> Fit:
    models: list[Any] = []
    mean = float(rewards.mean())
    for code in range(len(design.actions.levels)):
        mine = np.flatnonzero(codes == code)
        own = rewards[mine]
        if len(own) < ROWS_PER_ACTION or (is_classifier(estimator) and len(np.unique(own)) < len(np.unique(rewards))):
            models.append(Constant(float((own.sum() + SHRINKAGE * mean) / (len(own) + SHRINKAGE))))
        else:
            some = None if weights is None else weights[mine]
            models.append(fit(estimator, x[mine], own, some, design.context))
    plain = PerAction((*models, Constant(mean)))
    return _fastest_form(plain, stack(plain), x, len(design.actions.levels))


def _fastest_form(plain: Fit, candidates: Sequence[Fit], x: Floats, count: int) -> Fit:
    """The first candidate that predicts what the plain form does; taking models apart rests on parts that other versions may change."""
    some = x[:: max(len(x) // 20, 1)][:20]
    codes = np.append(np.arange(0, count, max(count // 10, 1)), -1)
    expected = plain.table(some, codes)
    scale = float(np.abs(expected).max(initial=1e-12))
    for candidate in candidates:
        with np.errstate(all="ignore"):
            if np.allclose(candidate.table(some, codes), expected, rtol=0, atol=1e-4 * scale):
                return candidate
    return plain


def _check_classes(estimator: Any, rewards: Floats, others: Any, fold: int) -> None:
    """Check that the rows to fit on have every reward that a classifier is to tell apart."""
    if not others.any():
        raise LogError(
            "all rows that the model could learn from are in one fold: there are too few clusters.",
            do=["Leave out ", Argument("model"), "."],
        )
    if not is_classifier(estimator):
        return
    lost = np.setdiff1d(rewards, rewards[others])
    if len(lost):
        raise LogError(
            f"the reward {lost[0]:g} occurs only in fold {fold + 1}, so that the model of that fold could not learn it: it is too rare.",
            do="Pass a regressor, such as Ridge(), or fewer folds with cp.models.Reward(…, folds=2).",
        )


def _check_samples(samples: Any) -> None:
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        raise OptionError([Argument("value_samples", samples), " must be a whole number of at least 1."])
