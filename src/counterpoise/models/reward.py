"""`Reward`: which reward model to fit, and the step that it is to readers and engines: it adds its columns to every batch.

Before the fit, the step says which fold each row belongs to; after it, what the models of the other folds say of the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from counterpoise.errors import Argument, LogError, OptionError
from counterpoise.features import Encoder
from counterpoise.log.expressions import columns
from counterpoise.log.groups import folds_of, row_ids
from counterpoise.log.question import Question
from counterpoise.log.targets import Chosen, Probabilities, Target
from counterpoise.models.design import Codes, Design, blocks
from counterpoise.models.estimators import names_classes
from counterpoise.models.fits import Fit
from counterpoise.models.folds import FOLD, CrossFit, draw_actions
from counterpoise.models.quality import Quality
from counterpoise.moments import Floats
from counterpoise.readers.policies import Table, add_policies, checked, chosen, read_by, table_of
from counterpoise.threads import threads

SAMPLE = 200_000  # rows that a model is fitted on, spread over the log, unless the user says otherwise
NAMES = ("auto", "logistic", "ridge", "boosted")


@dataclass(frozen=True)
class Reward:
    """A reward model, cross-fitted: every row is predicted by a model that was fitted on other rows.

    Parameters
    ----------
    estimator
        A regressor or classifier of scikit-learn (or anything with its `fit` and `predict` or `predict_proba`), not fitted yet; or
        ``"auto"``, ``"logistic"``, ``"ridge"`` or ``"boosted"``. ``"auto"`` is linear up to 5,000 rows and boosted trees above, for a
        reward of two values as for numbers. The model gets numbers: text is encoded before, and numbers are standardized, except for
        scikit-learn's histogram gradient boosting, which takes categories and missing values as they are.
    folds
        How many parts the log is cut into: by cluster, by key, or by row. A part is predicted by the model of all others.
    per_action
        Fit one model of the context for every action with at least 50 rows in the sample, instead of one model of context and action.
        The others get the mean reward of their rows, drawn toward that of all.
    sample
        From how many rows of the log the models are fitted, at most; they are spread over the whole log.
    mrdr
        Weigh the rows in the fit by w²(1 − p), the part of each in the variance of the doubly robust estimate. This model is for one
        target.
    stream
        Fit on all rows and not on a sample, batch by batch in the log's order, by the estimator's `partial_fit` (such as that of
        `SGDClassifier`). The sample then decides how columns are encoded, and shows how good the model is.

    Examples
    --------
    >>> Reward("ridge", folds=2)
    Reward(estimator='ridge', folds=2, per_action=False, sample=200000, mrdr=False, stream=False)

    References
    ----------
    Chernozhukov et al., "Double/debiased machine learning", 2018; Farajtabar, Chow & Ghavamzadeh, "More robust doubly robust
    off-policy evaluation", ICML 2018.
    """

    estimator: Any = "auto"
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
                raise OptionError([Argument("model", self.estimator), " is not known."], do=advice)
        elif isinstance(self.estimator, type) or not (hasattr(self.estimator, "fit") and _predicts(self.estimator)):
            what = getattr(self.estimator, "__name__", type(self.estimator).__name__)
            wrong = f" must have the methods fit and predict, as scikit-learn's estimators do; found {what}."
            raise OptionError([Argument("model"), wrong], do="Pass an instance, such as LogisticRegression().")
        elif names_classes(self.estimator):
            what = type(self.estimator).__name__
            raise OptionError(
                f"{what} says which reward is likeliest and not how likely, so that it has no mean reward.",
                do="Pass SGDClassifier(loss='log_loss')."
                if what == "SGDClassifier"
                else "Pass a classifier with predict_proba, such as LogisticRegression(), or a regressor.",
            )
        if self.stream and (self.per_action or not hasattr(self.estimator, "partial_fit")):
            raise OptionError(
                "stream fits one model of context and action batch by batch, which takes an estimator with the method partial_fit.",
                do="Pass such a one, as SGDClassifier(loss='log_loss') or SGDRegressor(), without per_action.",
            )


def as_reward(model: Any) -> Reward:
    """The reward model that a log was given: a `Reward`, or what one is made of.

    >>> as_reward("auto").folds
    5
    """
    return model if isinstance(model, Reward) else Reward(model)


def _predicts(estimator: Any) -> bool:
    return hasattr(estimator, "predict") or hasattr(estimator, "predict_proba")


def check_count(name: str, value: Any, least: int, most: int) -> None:
    """Check a whole number of a model."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise OptionError(f"{name} of a model must be a whole number from {least:,} to {most:,}, found {value!r}.")


# -- the step: before the fit, the fold of every row; after it, what the models of the other folds say of the row ------


REWARD = "counterpoise model reward"
ROWS = 100_000  # rows that are encoded at once
CELLS = 2_000_000  # of a table of contexts × actions
ALIKE = 100  # rows of which a policy is asked twice, before one answer stands for all that look the same to it


def value_column(target: str) -> str:
    """The column of the model's value of a target."""
    return f"counterpoise model value of {target}"


@dataclass(frozen=True)
class Unfitted(CrossFit):
    """A reward model before its fit: a batch gets the fold of every row."""

    value_samples: int | None

    @property
    def described(self) -> str:
        """What it is, as a text that stays the same tomorrow."""
        samples = "" if self.value_samples is None else f", {self.value_samples} samples"
        return super().described + samples

    def complete(self, frame: pl.DataFrame, question: Question, batch: str, first_row: int) -> pl.DataFrame:
        """The batch with the folds of its rows, and the policies, if any."""
        whole = add_policies(frame, question, batch) if question.policies else frame
        return whole.with_columns(pl.Series(FOLD, self.folds(frame, first_row)))


@dataclass(frozen=True)
class Fitted(Unfitted):
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
                    ids = ids.fill_null(0)  # whose rows are told of as ones without a cluster, and as nothing else
                known = (part.get_column(str(question.log.action)).is_not_null() & ids.is_not_null()).to_numpy()
                rows = part if known.all() else part.filter(known)
                columns = PredictedRows(rows, question, batch, ids.filter(known), self).columns() if known.any() else {}
                for name in names:
                    values = np.full(part.height, np.nan)
                    values[known] = columns.get(name, values[known])
                    part = part.with_columns(pl.Series(name, values).fill_nan(None))
                pieces.append(part)
                first_row += part.height
        return pl.concat(pieces)


@dataclass(frozen=True)
class PredictedRows:
    """Some rows of a batch, all of which have an action and an id, as the models see them."""

    frame: pl.DataFrame
    question: Question
    batch: str
    ids: pl.Series
    step: Fitted

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
            if isinstance(target.source, Chosen):
                columns[value] = self.pairs(self._codes(target.source.column))
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
                probability[rows] = chosen(table, logged[rows], member[rows] - start)
                value[rows] = self._value(table, fit, first[start:stop])[member[rows] - start]
        return checked(probability, self.frame, target.name, self.batch), value

    def _distinct(self, target: Target) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A row for every distinct question to the policy in every fold, in the order of folds, and which of them each row is like."""
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
        """Whether a policy says the same for rows that look the same to it: one that draws lots, or counts its calls, does not."""
        _, first, member = np.unique(numbers, return_index=True, return_inverse=True)
        again = np.flatnonzero(first[member] != np.arange(len(numbers)))
        again = again[:: max(len(again) // ALIKE, 1)][:ALIKE]
        rows = (first[member[again]], again)
        first_answers, later_answers = (
            table_of(target.source, self.frame[some], self.question).probabilities for some in rows
        )
        return bool(np.allclose(first_answers, later_answers, rtol=0, atol=1e-6, equal_nan=True))

    def _table(self, target: Target, rows: NDArray[np.int64]) -> Table:
        table = table_of(target.source, self.frame[rows], self.question)
        sums = table.probabilities @ np.ones(table.probabilities.shape[1], dtype=table.probabilities.dtype)
        off = np.abs(sums - 1.0)
        if not (off <= 1e-3).all():
            raise LogError(
                f"policy {target.name!r} must give probabilities of all actions that add up to 1: for {self.batch} the worst row adds up "
                f"to {sums[np.argmax(off)]:.6g}. Fix the policy."
            )
        return table

    def _value(self, table: Table, fit: Fit, rows: NDArray[np.int64]) -> Floats:
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
