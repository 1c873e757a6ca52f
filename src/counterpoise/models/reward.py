"""`Reward`: which reward model to fit, and how; for readers and engines, it is a step that adds its columns to every batch.

Before the fit, the step says which fold each row belongs to; after it, what the models fitted on the other folds predict for the row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.engines.registry import engine_of
from counterpoise.errors import CounterpoiseError, LogError, OptionError
from counterpoise.features import Encoder, Scaling
from counterpoise.log.expressions import columns
from counterpoise.log.good import is_number
from counterpoise.log.groups import STEP, folds_of, row_ids, uniform
from counterpoise.log.kinds import check_rows
from counterpoise.log.log import Log
from counterpoise.log.parts import Fittable, is_minimized
from counterpoise.log.question import Question
from counterpoise.log.targets import CrossFitted, Probabilities, Target
from counterpoise.models.cross_fitting import FOLD, CrossFit, Quality, quality_of
from counterpoise.models.design import Codes, Design, actions_of, blocks
from counterpoise.models.estimators import (
    Predictor,
    check_rewards,
    estimator_of,
    fit_error,
    fit_estimator,
    fresh,
    is_classifier,
    is_native,
    names_classes,
    predict_rewards,
)
from counterpoise.models.fits import Constant, Fit, Joint, PerAction, cross_fitted_ridge, linear, stack, trees
from counterpoise.moments import Floats
from counterpoise.moments.moments import Reals
from counterpoise.readers.policies import (
    ActionTable,
    add_policies,
    check_probabilities,
    has_table,
    logged_probabilities,
    read_by,
    table_of,
)
from counterpoise.readers.progress import Report, progress_bar, progress_line
from counterpoise.threads import threads

SAMPLE = 200_000  # rows to fit a model on, spread over the log, unless the user says otherwise
NAMES = ("auto", "logistic", "ridge", "boosted")


@dataclass(frozen=True)
class Reward(Fittable):
    """A reward model, cross-fitted: every row is predicted by a model that was fitted on other rows.

    Parameters
    ----------
    estimator
        A regressor or classifier of scikit-learn (or anything with its `fit` and `predict` or `predict_proba`), not fitted yet; or
        ``"auto"``, ``"logistic"``, ``"ridge"`` or ``"boosted"``. ``"auto"`` is linear up to 5,000 rows and boosted trees above, for a
        reward of two values as for numbers. The model gets numbers: text is encoded before, and numbers are standardized, except for
        scikit-learn's histogram gradient boosting, which takes categories and missing values as they are.
    folds
        How many parts the log is cut into: by cluster, by key, or by row. Each part is predicted by a model fitted on the others.
    per_action
        Fit one model of the context for every action with at least 50 rows in the sample, instead of one model of context and action.
        Other actions get the mean reward of their rows, shrunk toward the overall mean.
    sample
        The most rows to fit the models on, spread over the whole log.
    mrdr
        Weigh the rows in the fit by w²(1 − p), each row's share in the variance of the doubly robust estimate. Such a model is
        for one target.
    stream
        Fit on all rows and not on a sample, batch by batch in the log's order, by the estimator's `partial_fit` (such as that of
        `SGDClassifier`). The sample then only decides how columns are encoded, and measures how good the model is.

    Examples
    --------
    >>> Reward("ridge", folds=2)
    Reward(estimator='ridge', folds=2, per_action=False, sample=200000, mrdr=False, stream=False)

    References
    ----------
    Chernozhukov et al., "Double/debiased machine learning", 2018; Farajtabar, Chow & Ghavamzadeh, "More robust doubly robust
    off-policy evaluation", ICML 2018.
    """

    estimator: str | Predictor = "auto"
    folds: int = 5
    per_action: bool = False
    sample: int = SAMPLE
    mrdr: bool = False
    stream: bool = False

    def __post_init__(self) -> None:
        check_count("folds", self.folds, 2, 100)
        check_count("sample", self.sample, 10, 10**9)
        if isinstance(self.estimator, str):
            if self.estimator not in NAMES:
                advice = f"Choose one of {', '.join(NAMES)}, or pass an estimator of scikit-learn."
                raise OptionError(f"`model={self.estimator!r}` is not known.", do=advice)
        elif (
            isinstance(self.estimator, type)
            or not hasattr(self.estimator, "fit")
            or not (hasattr(self.estimator, "predict") or hasattr(self.estimator, "predict_proba"))
        ):
            what = getattr(self.estimator, "__name__", type(self.estimator).__name__)
            wrong = f"`model=` must have the methods fit and predict, as scikit-learn's estimators do; found {what}."
            raise OptionError(wrong, do="Pass an instance, such as LogisticRegression().")
        elif names_classes(self.estimator):
            what = type(self.estimator).__name__
            raise OptionError(
                f"{what} predicts which reward is likeliest but not how likely, so it has no mean reward.",
                do="Pass SGDClassifier(loss='log_loss')."
                if what == "SGDClassifier"
                else "Pass a classifier with predict_proba, such as LogisticRegression(), or a regressor.",
            )
        if self.stream and (self.per_action or not hasattr(self.estimator, "partial_fit")):
            raise OptionError(
                "stream fits one model of context and action batch by batch, which takes an estimator with the method partial_fit.",
                do="Pass an estimator with `partial_fit`, such as SGDClassifier(loss='log_loss') or SGDRegressor(), without per_action.",
            )


def as_reward(model: Any) -> Reward:
    """The reward model of a log, given as a `Reward` or as its estimator.

    >>> as_reward("auto").folds
    5
    """
    return model if isinstance(model, Reward) else Reward(model)


def check_count(name: str, value: object, least: int, most: int) -> None:
    """Check a whole number of a model."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise OptionError(f"{name} of a model must be a whole number from {least:,} to {most:,}, found {value!r}.")


# -- the step: before the fit, the fold of every row; after it, what the models of the other folds say of the row ------


REWARD = "counterpoise model reward"
ROWS = 100_000  # that are encoded at once, and given to a model that learns batch by batch
CELLS = 2_000_000  # of a table of contexts × actions
ALIKE = 100  # rows on which a policy is asked twice, before one answer stands for all rows that look the same to it


def value_column(target: str) -> str:
    """The column of the model's value of a target."""
    return f"counterpoise model value of {target}"


@dataclass(frozen=True)
class UnfittedReward(CrossFit[Reward]):
    """A reward model before its fit: a batch gets the fold of every row."""

    value_samples: int | None

    @property
    def described(self) -> str:
        """What it is, as text that stays the same from day to day."""
        samples = "" if self.value_samples is None else f", {self.value_samples} samples"
        return super().described + samples

    def complete(self, frame: pl.DataFrame, question: Question, batch: str, first_row: int) -> pl.DataFrame:
        """The batch with the folds of its rows, and the policies, if any."""
        rows = add_policies(frame, question, batch) if question.policies else frame
        return rows.with_columns(pl.Series(FOLD, self.folds(frame, first_row)))


@dataclass(frozen=True)
class FittedReward(UnfittedReward):
    """A cross-fitted reward model: a batch gets its prediction for the logged action, and its value of every target."""

    context: Encoder
    design: Design
    fits: tuple[Fit, ...]  # by fold: each was fitted on the rows of all others
    quality: Quality

    def complete(self, frame: pl.DataFrame, question: Question, batch: str, first_row: int) -> pl.DataFrame:
        """The batch with the columns of the model and of the policies; rows without an action or an id get none, and are bad anyway."""
        names = [REWARD, *question.model_value.values(), *(target.column for target in question.policies)]
        pieces = []
        with threads(min(frame.height, ROWS) * len(self.design.actions.levels)):
            for part in frame.iter_slices(ROWS):
                ids = row_ids(part, self.identity, first_row)
                if question.log.cluster is not None:
                    ids = ids.fill_null(0)  # such rows are reported as having no cluster, and for nothing else
                has_both = (part.get_column(str(question.log.action)).is_not_null() & ids.is_not_null()).to_numpy()
                rows = part if has_both.all() else part.filter(has_both)
                columns = (
                    PredictedRows(rows, question, batch, ids.filter(has_both), self).columns() if has_both.any() else {}
                )
                for name in names:
                    values = np.full(part.height, np.nan)
                    values[has_both] = columns.get(name, values[has_both])
                    part = part.with_columns(pl.Series(name, values).fill_nan(None))
                pieces.append(part)
                first_row += part.height
        return pl.concat(pieces)

    def greedy(self, frame: pl.DataFrame, question: Question, batch: str, first_row: int) -> Floats:
        """Whether the logged action is the one with the best prediction, each by the model of its fold; nan without an action or id."""
        ids = row_ids(frame, self.identity, first_row)
        has_both = frame.get_column(str(question.log.action)).is_not_null() & ids.is_not_null()
        is_best = np.full(frame.height, np.nan)
        with threads(min(frame.height, ROWS) * len(self.design.actions.levels)):
            if has_both.any():
                rows = PredictedRows(frame.filter(has_both), question, batch, ids.filter(has_both), self)
                is_best[has_both.to_numpy()] = rows.greedy()
        return is_best


@dataclass(frozen=True)
class PredictedRows:
    """Some rows of a batch, all of which have an action and an id, as the models see them."""

    frame: pl.DataFrame
    question: Question
    batch: str
    ids: pl.Series
    step: FittedReward

    @cached_property
    def folds(self) -> NDArray[np.int64]:
        """The fold of every row."""
        return folds_of(self.ids, self.step.model.folds)

    @cached_property
    def x(self) -> Floats:
        """The contexts, as numbers."""
        return self.step.context.numbers(self.frame, is_native=self.step.design.is_native)

    def columns(self) -> dict[str, Floats]:
        """The model's prediction of the logged action, its value of every target, and the policies' own columns."""
        columns = {REWARD: self.pairs(self._codes(str(self.question.log.action)))}
        for target in self.question.targets:
            value = value_column(target.name)
            if target.is_choice:
                columns[value] = self.pairs(self._codes(target.source_column))
            else:
                columns[target.column], columns[value] = self._of_policy(target)
        for name in (REWARD, *self.question.model_value.values()):
            self._check(columns[name])
        return columns

    def pairs(self, codes: Codes) -> Floats:
        """The prediction of one action for every row, each by the model of its fold."""
        rewards = np.empty(len(codes))
        for fold, fit in enumerate(self.step.fits):
            rows = np.flatnonzero(self.folds == fold)
            if len(rows):
                rewards[rows] = fit.pairs(self.x[rows], codes[rows])
        return rewards

    def greedy(self) -> Floats:
        """Whether the logged action has the best prediction of all, as 0 and 1."""
        log = self.question.log
        best = np.argmin if is_minimized(log.minimize, log.reward[0]) else np.argmax
        logged, every = self._codes(str(self.question.log.action)), np.arange(len(self.step.design.actions.levels))
        is_best = np.zeros(len(logged))
        for fold, fit in enumerate(self.step.fits):
            mine = np.flatnonzero(self.folds == fold)
            for part in blocks(len(mine), max(CELLS // max(len(every), 1), 1)):
                table = fit.table(self.x[mine[part]], every)
                self._check(np.asarray(table, dtype=np.float64))
                is_best[mine[part]] = best(table, axis=1) == logged[mine[part]]
        return is_best

    def _codes(self, column: str) -> Codes:
        return self.step.design.actions.codes(self.frame.get_column(column))

    def _of_policy(self, target: Target) -> tuple[Floats, Floats]:
        """The policy's probability of the logged action, and the model's value of the policy, by blocks of contexts."""
        probability, value = np.empty(len(self.x)), np.empty(len(self.x))
        logged = self.frame.get_column(str(self.question.log.action)).to_numpy()
        first, member = self._distinct(target)
        order = np.argsort(member, kind="stable")
        bounds = np.append(np.searchsorted(member[order], np.arange(len(first))), len(order))
        width = max(len(self.step.design.actions.levels), 1)
        fold_of_first = self.folds[first]
        for fold, fit in enumerate(self.step.fits):
            mine = np.flatnonzero(fold_of_first == fold)
            for part in blocks(len(mine), max(CELLS // width, 1)):
                start, stop = mine[part][0], mine[part][-1] + 1  # folds are in order, so that these are neighbors
                table = self._table(target, first[start:stop])
                rows = order[bounds[start] : bounds[stop]]
                probability[rows] = logged_probabilities(table, logged[rows], member[rows] - start)
                value[rows] = self._value(table, fit, first[start:stop])[member[rows] - start]
        return check_probabilities(probability, self.frame, target.name, self.batch), value

    def _distinct(self, target: Target) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The distinct questions to the policy in every fold, in the order of folds, and which of them each row asks."""
        count, number = len(self.x), np.arange(len(self.x))
        names = read_by(target.source, self.question)
        if names and not isinstance(target.source, Probabilities) and self.step.value_samples is None:
            read = self.frame.select(pl.struct(columns(names)).alias("read"))
            distinct = read.unique(maintain_order=True).with_row_index("k")
            if distinct.height <= count // 2:
                joined = read.join(distinct, on="read", how="left", nulls_equal=True)
                numbers = joined.get_column("k").to_numpy().astype(np.int64)
                number = numbers if self._answers_alike(target, numbers) else number
        _, first, member = np.unique(self.folds * np.int64(count + 1) + number, return_index=True, return_inverse=True)
        return first, member

    def _answers_alike(self, target: Target, numbers: NDArray[np.int64]) -> bool:
        """Whether a policy gives the same answer for rows that look the same to it: not if it draws at random or counts calls."""
        _, first, member = np.unique(numbers, return_index=True, return_inverse=True)
        again = np.flatnonzero(first[member] != np.arange(len(numbers)))
        again = again[:: max(len(again) // ALIKE, 1)][:ALIKE]
        rows = (first[member[again]], again)
        earlier, later = (table_of(target.source, self.frame[some], self.question).probabilities for some in rows)
        return bool(np.allclose(earlier, later, rtol=0, atol=1e-6, equal_nan=True))

    def _table(self, target: Target, rows: NDArray[np.int64]) -> ActionTable:
        table = table_of(target.source, self.frame[rows], self.question)
        sums = table.probabilities @ np.ones(table.probabilities.shape[1], dtype=table.probabilities.dtype)
        off = np.abs(sums - 1.0)
        if not (off <= 1e-3).all():
            raise LogError(
                f"policy {target.name!r} must give probabilities of all actions that add up to 1: for {self.batch} the worst row adds up "
                f"to {sums[np.argmax(off)]:.6g}. Fix the policy."
            )
        return table

    def _value(self, table: ActionTable, fit: Fit, rows: NDArray[np.int64]) -> Floats:
        """Σ π(a|x) r̂(a, x) over all actions, or over some that are drawn from the policy."""
        codes, samples = self.step.design.actions.codes(pl.Series(table.actions)), self.step.value_samples
        x = self.x[rows]
        if samples is None or samples >= len(codes):
            return np.asarray(np.einsum("ij,ij->i", table.probabilities, fit.table(x, codes)), dtype=np.float64)
        taken = draw_actions(table.probabilities, self.ids.to_numpy()[rows], samples)
        rewards = fit.pairs(np.repeat(x, samples, axis=0), codes[taken].reshape(-1))
        return np.asarray(rewards.reshape(-1, samples).mean(axis=1))

    def _check(self, predictions: Floats) -> None:
        bad = int((~np.isfinite(predictions)).sum())
        if bad:
            raise LogError(
                f"the reward model must predict finite numbers: for {bad:,} of {len(predictions):,} rows in {self.batch} it does not. "
                "Fix the model, or fill the gaps in the context."
            )


def draw_actions(probabilities: Reals, ids: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
    """So many actions for every row, at equal distances along the row's probabilities from one uniform start.

    Each action is drawn in proportion to its probability, so the average over the draws is unbiased for any number of them; equal
    distances leave it with less variance than independent draws.

    >>> draw_actions(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([1, 2]), 2).tolist()
    [[0, 1], [1, 1]]
    """
    # Two steps, since adding up all of a long row in order is slow: which stretch of actions a point falls into, then which action.
    n, actions = probabilities.shape
    short = max(int((actions / samples) ** 0.5), 1)
    width = next((w for w in range(short, 2 * short) if actions % w == 0), short)
    if actions % width:  # the last stretch ends with actions that have no probability
        probabilities = np.pad(probabilities, ((0, 0), (0, -actions % width)))
    table = np.ascontiguousarray(probabilities).reshape(n, -1, width)
    count = table.shape[1]
    ones = np.ones(width, dtype=table.dtype)
    ends = np.cumsum(table @ ones, axis=1, dtype=np.float64)
    rows, scale = np.arange(n)[:, None], ends[:, -1:]
    starts = uniform((ids.astype(np.uint64) + np.uint64(1)) * STEP)[:, None]
    points = (starts + np.arange(samples)) / samples * scale
    # a single search in all rows, one behind the other
    places = np.searchsorted((ends / scale + rows).reshape(-1), (points / scale + rows).reshape(-1), side="right")
    stretch = np.clip(places.reshape(points.shape) - rows * count, 0, count - 1)
    place = (stretch + rows * count).reshape(-1)
    before = np.where(stretch > 0, ends.reshape(-1)[place.reshape(n, -1) - 1], 0.0)
    each = table.reshape(-1, width)[place]
    # the sums up to every action, by the fastest way there is
    within = each @ np.triu(np.ones((width, width), dtype=table.dtype))
    rest = (points - before).reshape(-1, 1).astype(table.dtype)
    passed = ((within <= rest).astype(table.dtype) @ ones).astype(np.int64)
    over = np.flatnonzero(passed == width)  # by rounding: the last action of the stretch that has a probability
    passed[over] = width - 1 - np.argmax(each[over][:, ::-1] > 0, axis=1)
    return np.asarray(stretch * width + passed.reshape(n, -1))


# -- the fit: from a log's question to the same question with a model in it --------------------------------------------


ROWS_PER_ACTION = 50  # rows it takes for an action to get its own model
SHRINKAGE = 10.0  # rows of the mean of all that the mean of a rarer action is mixed with
Predict = Callable[[NDArray[np.generic]], Floats]


def good_rows(rows: pl.DataFrame, question: Question) -> pl.DataFrame:
    """The rows that a model can learn from."""
    reward = rows.get_column(question.log.reward[0]).cast(pl.Float64)
    has_both = rows.get_column(str(question.log.action)).is_not_null() & (rows.get_column(FOLD) >= 0)
    return rows.filter(is_number(reward).fill_null(False) & has_both)


def row_weights(rows: pl.DataFrame, question: Question) -> Floats:
    """w²(1 − p): the part of a row in the variance of the doubly robust estimate, given what the model gets wrong there."""
    p = rows.get_column(str(question.log.propensity)).cast(pl.Float64).to_numpy()
    t = rows.get_column(question.targets[0].column).cast(pl.Float64).to_numpy()
    with np.errstate(all="ignore"):
        weights = np.square(t / p) * (1.0 - p)
    return np.where(np.isfinite(weights), weights, 0.0) + 1e-9  # no fold may be left without weight


# -- models that learn batch by batch, by `partial_fit`, from all rows of a log however many there are -------------------


def fit_batches(
    estimator: Predictor,
    context: Encoder,
    design: Design,
    question: Question,
    folds: int,
    rewards: Floats,
    report: Report | None,
) -> tuple[list[Predictor], int]:
    """A model for every fold, fitted on all rows of the other folds once, in the log's order; and how many rows there are."""
    count = 0
    models: list[Any] = [fresh(estimator) for _ in range(folds)]
    extra = {"classes": np.unique(rewards)} if is_classifier(estimator) else {}

    def learn(batches: Iterable[pl.DataFrame]) -> None:
        nonlocal count
        for batch in batches:
            for part in batch.iter_slices(ROWS):
                rows = good_rows(part, question)
                x = context.numbers(rows, is_native=design.is_native)
                codes = design.actions.codes(rows.get_column(str(question.log.action)))
                part_folds = rows.get_column(FOLD).to_numpy()
                own_rewards = rows.get_column(question.log.reward[0]).cast(pl.Float64).to_numpy()
                weights = row_weights(rows, question) if question.targets else None
                for fold, model in enumerate(models):
                    others = part_folds != fold
                    if not others.any():
                        continue
                    own = {} if weights is None else {"sample_weight": weights[others]}
                    try:
                        model.partial_fit(design.pairs(x[others], codes[others]), own_rewards[others], **extra, **own)
                    except CounterpoiseError:
                        raise
                    except (TypeError, ValueError) as error:
                        raise fit_error(model, error) from error
                count += rows.height
                if report is not None:
                    report(rows.height)

    engine_of(question.log).over_rows(question, learn, None)
    return models, count


def with_model(question: Question) -> Question:
    """The question with the log's unfitted model in it; raises an error before anything is read if that is not possible."""
    log, reward = question.log, as_reward(question.log.model)
    check_rows(log, "a reward model that is fitted here")
    if log.model_reward is not None:
        raise OptionError("`model=` fits a model, and `model_reward=` brings one: leave out either.")
    if log.action is None:
        raise OptionError("a reward model needs `action=`, the column with the logged action.")
    if len(log.reward) > 1:
        raise OptionError("a reward model predicts one reward: evaluate one reward at a time with it.")
    if not question.weight.needs_propensity:
        raise OptionError(
            "a reward model needs a target's probabilities, and a weight of your own has none: leave out either."
        )
    samples: object = log.value_samples
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        raise OptionError(f"`value_samples={samples!r}` must be a whole number of at least 1.")
    for target in question.targets:
        if not (target.is_choice or has_table(target.source)):
            raise OptionError(
                f"a reward model needs to know how {target.name!r} would choose among all actions, and this target only has the "
                "probability of the logged one.",
                do="Pass a policy with predict_proba, Chosen(…), Always(…) or Probabilities(…); "
                "or, for what needs no model of actions, `baseline=`; or the model's own columns with `model_reward=` and `model_value=`.",
            )
    if reward.mrdr and len(question.targets) > 1:
        raise OptionError("mrdr fits a model for one target: evaluate one at a time.")
    values = {name: value_column(name) for name in question.target_names}
    step = UnfittedReward(reward, identity_of(log), log.value_samples)
    return replace(question, log=log.but(model_reward=REWARD), model_value=values, model=step)


def identity_of(log: Log) -> tuple[str, ...]:
    """The columns that tell rows apart, to assign each to a fold; none if rows have an order."""
    has_order = engine_of(log).has_order
    identity = (log.cluster,) if log.cluster is not None else () if has_order else log.key
    if not (has_order or identity):
        raise OptionError(
            "a model is fitted on some rows and predicts others, and rows of this log come in no order by which to tell them apart.",
            do="Name what identifies a row with `key=`, or its user with `cluster=`.",
        )
    return identity


def fit_reward_model(question: Question, progress: bool | None = None) -> Question:
    """The question with its model fitted on a sample of the log's rows; a fitted one stays as it is."""
    unfitted = question.model
    if not isinstance(unfitted, UnfittedReward) or isinstance(unfitted, FittedReward):
        return question
    reward = unfitted.model
    learned = lean_question(question, question.targets if reward.mrdr else ())
    with progress_line(progress, "reading the rows that the reward model learns from"):
        rows = good_rows(engine_of(learned.log).sampled(learned, reward.sample), question)
    rewards = rows.get_column(question.log.reward[0]).cast(pl.Float64).to_numpy()
    estimator = estimator_of(reward.estimator, rewards)
    check_rewards(estimator, rewards)
    context, native = Encoder.of(rows, question.log.context), is_native(estimator)
    actions = actions_of(rows.get_column(str(question.log.action)), question.log.items)
    x = context.numbers(rows, is_native=native)
    codes = actions.codes(rows.get_column(str(question.log.action)))
    categories = context.is_category if native else (False,) * context.width
    design = _design_for(Design(categories, actions, native), reward, estimator, x, codes, rewards)
    folds, weights = rows.get_column(FOLD).to_numpy(), row_weights(rows, question) if reward.mrdr else None
    fits: list[Fit] = []
    predictions = np.full(len(rewards), np.nan)
    of = ("rows", None) if reward.stream else ("models", reward.folds)
    with threads(_work(design, x)), progress_bar(progress, "fitting the reward model", *of) as report:
        models: list[Predictor] = []
        count = len(rewards)
        if reward.stream:
            models, count = fit_batches(estimator, context, design, learned, reward.folds, rewards, report)
        ridge = None
        if reward.estimator in ("auto", "ridge") and type(estimator).__name__ == "Ridge":  # with its default options
            is_one = not (reward.per_action or design.is_sparse)
            ridge = cross_fitted_ridge(design, x, codes, rewards, weights, folds, 1.0) if is_one else None
        for fold in range(reward.folds):
            others, own = folds != fold, folds == fold
            _check_classes(estimator, rewards, others, fold)
            some = None if weights is None else weights[others]
            if ridge is not None:
                fits.append(ridge(fold))
            elif models:
                fits.append(_take_apart(models[fold], design, x[others]))
            else:
                fits.append(
                    fit_one(estimator, design, x[others], codes[others], rewards[others], some, reward.per_action)
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
        question,
        model=FittedReward(reward, unfitted.identity, unfitted.value_samples, context, design, tuple(fits), quality),
    )


def fit_policies(question: Question, progress: bool | None = None) -> Question:
    """The question with its `CrossFitted` targets fitted: each takes the action with the largest reward by the models of other folds."""

    def fit_target(target: Target) -> Target:
        if not isinstance(target.source, CrossFitted) or target.source.step is not None:
            return target
        unfitted = UnfittedReward(as_reward(target.source.estimator), identity_of(question.log), None)
        step = fit_reward_model(replace(lean_question(question, ()), model=unfitted), progress).model
        return replace(target, source=replace(target.source, step=step))

    return replace(question, targets=tuple(map(fit_target, question.targets)))


def lean_question(question: Question, targets: tuple[Target, ...]) -> Question:
    """The question reduced to what a model learns from."""
    return replace(
        question,
        log=question.log.but(model_reward=None, control=None, key=()),
        targets=targets, contrasts=(), segment=(), groups=1, model_value={}, smoothings=(),
    )  # fmt: skip


def _work(design: Design, x: Floats) -> int:
    """The size of a step of a fit: it looks at every number of every row; of many actions, only at those that are not 0."""
    return int(len(x) * (x.shape[1] + (1 if design.is_sparse else design.features.shape[1])))


def _design_for(
    design: Design, reward: Reward, estimator: Predictor, x: Floats, codes: Codes, rewards: Floats
) -> Design:
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
    # one that takes neither says why when it is fitted
    return dense if not learns(design) and learns(dense) else design


def fit_numbers(
    model: object, context: NDArray[np.generic], action: NDArray[np.int64], rewards: Floats, n_actions: int, seed: int
) -> Predict:
    """A reward model of numeric contexts and actions numbered from 0, as a function that predicts every action in other contexts.

    >>> x, a = np.array([[0.0], [1.0], [2.0], [3.0]] * 5), np.arange(20) % 2
    >>> predict = fit_numbers("ridge", x, a, x[:, 0] + a, 2, seed=0)
    >>> predict(np.array([[1.5]])).round(1).tolist()
    [[1.5, 2.5]]
    """
    reward = as_reward(model)
    estimator = fresh(estimator_of(reward.estimator, rewards), seed)
    check_rewards(estimator, rewards)
    native, scaling = is_native(estimator), Scaling.of(context)

    def numbers(table: NDArray[np.generic]) -> Floats:
        return table.astype(np.float64) if native else scaling.standardize(table)

    every = pl.Series(np.arange(n_actions))
    actions = actions_of(every, None)
    x, codes = numbers(context), actions.codes(pl.Series(action))
    design = _design_for(Design((False,) * x.shape[1], actions, native), reward, estimator, x, codes, rewards)
    with threads(_work(design, x)):
        fit = fit_one(estimator, design, x, codes, rewards, None, reward.per_action)
    places = actions.codes(every)
    return lambda table: np.asarray(fit.table(numbers(table), places))


def fit_one(
    estimator: Predictor,
    design: Design,
    x: Floats,
    codes: Codes,
    rewards: Floats,
    weights: Floats | None,
    per_action: bool,
) -> Fit:
    """One model, in the form that predicts fastest."""
    if not per_action:
        model = fit_estimator(estimator, design.pairs(x, codes), rewards, weights, design.is_category)
        return _take_apart(model, design, x)
    models: list[Predictor | Constant] = []
    mean = float(rewards.mean())
    for code in range(len(design.actions.levels)):
        mine = np.flatnonzero(codes == code)
        own = rewards[mine]
        if len(own) < ROWS_PER_ACTION or (is_classifier(estimator) and len(np.unique(own)) < len(np.unique(rewards))):
            models.append(Constant(float((own.sum() + SHRINKAGE * mean) / (len(own) + SHRINKAGE))))
        else:
            some = None if weights is None else weights[mine]
            models.append(fit_estimator(estimator, x[mine], own, some, design.context))
    plain = PerAction((*models, Constant(mean)))
    return _fastest_form(plain, stack(plain), x, len(design.actions.levels))


def _take_apart(estimator: Predictor, design: Design, x: Floats) -> Fit:
    forms: list[Fit] = [*linear(estimator, design), *(trees(estimator, design) if design.is_native else [])]
    return _fastest_form(Joint(estimator, design), forms, x, len(design.actions.levels))


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


def _check_classes(estimator: object, rewards: Floats, others: NDArray[np.bool_], fold: int) -> None:
    """Check that the rows to fit on have every reward that a classifier must predict."""
    if not others.any():
        raise LogError(
            "all rows that the model could learn from are in one fold: there are too few clusters.",
            do="Leave out `model=`.",
        )
    if not is_classifier(estimator):
        return
    lost = np.setdiff1d(rewards, rewards[others])
    if len(lost):
        raise LogError(
            f"the reward {lost[0]:g} occurs only in fold {fold + 1}, so that the model of that fold could not learn it: it is too rare.",
            do="Pass a regressor, such as Ridge(), or fewer folds with cp.models.Reward(…, folds=2).",
        )
