"""`Reward`: which reward model to fit, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from counterpoise.errors import Argument, OptionError
from counterpoise.models.estimators import names_classes

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
                raise OptionError(
                    [
                        Argument("model", self.estimator),
                        f" is not known: choose one of {', '.join(NAMES)}, or pass an estimator of scikit-learn.",
                    ]
                )
        elif isinstance(self.estimator, type) or not (hasattr(self.estimator, "fit") and _predicts(self.estimator)):
            what = getattr(self.estimator, "__name__", type(self.estimator).__name__)
            raise OptionError(
                [
                    Argument("model"),
                    f" must have the methods fit and predict, as scikit-learn's estimators do; found {what}.",
                ],
                do="Pass an instance, such as LogisticRegression().",
            )
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
