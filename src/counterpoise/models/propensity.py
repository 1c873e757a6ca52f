"""`Propensity`: which propensity model to fit where propensities were not logged, and how."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from counterpoise.errors import Argument, OptionError
from counterpoise.log.log import MODEL, Log, Unlogged
from counterpoise.models.reward import SAMPLE, check_count

NAMES = ("logistic", "boosted")
ERRORS = ("scores", "refit")


@dataclass(frozen=True)
class Propensity(Unlogged):
    """A model of the logging policy, for logs that did not keep its probabilities: pass it as the log's `propensity`.

    It is cross-fitted: the propensity of a row comes from a model of action given context that was fitted on other rows. Estimates rest
    on it. They are right if the context has everything that the choice and the reward both depend on, and if the model is of the right
    form; no log can show the first, so that no verdict is better than ``caution``.

    Parameters
    ----------
    estimator
        A classifier of scikit-learn (or anything with its `fit`, `predict_proba` and `classes_`), not fitted yet; or ``"logistic"``, a
        multinomial logistic regression, or ``"boosted"``, gradient-boosted trees. Text is encoded before, and numbers are standardized.
    folds
        How many parts the log is cut into: by cluster, by key, or by row. A part is predicted by the model of all others.
    calibrate
        Draw the predicted probabilities towards the shares of the actions in the log, or away from them, as fits the actions of the rows
        that each model has not seen: p ∝ share^(1 − c) · p̂^c, with one number c for all.
    column
        The column with the propensities that were logged, if some were: the model then speaks for rows without a number there, and is
        fitted on those rows.
    sample
        From how many rows of the log the models are fitted, at most; they are spread over the whole log.
    floor
        The smallest propensity; smaller ones are raised to it. By default, a hundredth of one share: 0.01 / (number of actions).
    error
        How the errors of estimates allow for the fit: by the ``"scores"`` of a logistic model (others have errors as if propensities were
        known), or by ``"refit"``, for any classifier: a jackknife that fits all models again without each of 20 groups of rows or clusters.

    Examples
    --------
    >>> Propensity(folds=2)
    Propensity(estimator='logistic', folds=2, calibrate=True, column=None, sample=200000, floor=None, error='scores')

    References
    ----------
    Hirano, Imbens & Ridder, "Efficient estimation of average treatment effects using the estimated propensity score", Econometrica 2003;
    Chernozhukov et al., "Double/debiased machine learning", 2018.
    """

    estimator: Any = "logistic"
    folds: int = 5
    calibrate: bool = True
    column: Any = None
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
            if self.estimator not in NAMES:
                raise OptionError(
                    [
                        f"the propensity model {self.estimator!r} is not known: choose one of {', '.join(NAMES)}, or pass a classifier "
                        "of scikit-learn."
                    ]
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
    """The propensity model that a log was given; none, if its propensities are a column.

    >>> propensity_of(Log({"r": [1]}, reward="r", propensity="model")).folds, propensity_of(Log({"p": [1]}, propensity="p"))
    (5, None)
    """
    if isinstance(log.propensity, Propensity):
        return log.propensity
    return Propensity() if isinstance(log.propensity, str) and log.propensity == MODEL else None


def needs_context(log: Log) -> None:
    """Raise an error if the log has not said what a propensity model looks at and predicts."""
    if log.action is None:
        raise OptionError(["a propensity model needs ", Argument("action"), ", the column with the logged action."])
    if not log.context:
        raise OptionError(
            ["a propensity model needs ", Argument("context"), ", the columns that the logging policy looked at."]
        )
