"""The estimators behind the names: which model `"auto"` is, and what a model predicts."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, Self, TypeGuard, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.errors import CounterpoiseError, LogError, OptionError
from counterpoise.moments import Floats

if TYPE_CHECKING:
    from counterpoise.models.design import Matrix

FEW = 5_000  # rows up to which "auto" is a linear model
CLASSES = 20  # the most distinct rewards for a classifier


class Predictor(Protocol):
    """An estimator of scikit-learn, or one that is fitted and predicts as those do."""

    @property
    def fit(self) -> Callable[..., Self]:
        """What learns from a table and its rewards."""

    @property
    def predict(self) -> Callable[..., ArrayLike]:
        """What predicts the rewards of another table; a classifier may do without."""


class ClassPredictor(Predictor, Protocol):
    """A classifier that says how likely each of its classes is."""

    @property
    def predict_proba(self) -> Callable[..., ArrayLike]:
        """What predicts the probabilities of the classes."""

    @property
    def classes_(self) -> ArrayLike:
        """The classes, once it is fitted."""


class NativePredictor(Predictor, Protocol):
    """Histogram gradient boosting, which is told which columns are categories."""

    categorical_features: object
    set_params: Callable[..., object]


T = TypeVar("T")
P = TypeVar("P", bound=Predictor)


def estimator_of(name: str | Predictor, rewards: Floats) -> Predictor:
    """An estimator that is not fitted yet: the one given, or the one that a name stands for."""
    if not isinstance(name, str):
        return name
    linear, trees = libraries()
    is_binary = len(np.unique(rewards)) == 2
    if name == "auto":
        name = "boosted" if len(rewards) > FEW else "logistic" if is_binary else "ridge"
    if name == "logistic":
        if not is_binary:
            raise OptionError(
                f"`model='logistic'` is for rewards of two values, and these have {len(np.unique(rewards)):,}.",
                do="Pass `model='ridge'` or `model='boosted'`.",
            )
        made: Predictor = linear.LogisticRegression(max_iter=1000)
    elif name == "ridge":
        made = linear.Ridge()
    else:
        made = trees.HistGradientBoostingClassifier() if is_binary else trees.HistGradientBoostingRegressor()
    return made


def libraries() -> tuple[ModuleType, ModuleType]:
    """The linear models and the ensembles of scikit-learn."""
    try:
        from sklearn import ensemble, linear_model
    except ImportError as error:
        raise OptionError("models need scikit-learn: pip install 'counterpoise[models]'.") from error
    return linear_model, ensemble


def fresh(estimator: T, seed: int | None = None) -> T:
    """A copy of an estimator that is not fitted, so that the user's own is never changed; with a seed, if it draws anything."""
    try:
        from sklearn.base import clone as copy
    except ImportError:
        from copy import deepcopy as copy
    model: T = copy(estimator)
    parameters = model.get_params() if seed is not None and hasattr(model, "get_params") else ()
    if "random_state" in parameters and hasattr(model, "set_params"):
        model.set_params(random_state=seed)
    return model


def is_native(estimator: object) -> TypeGuard[NativePredictor]:
    """Whether an estimator takes categories and missing values as they are."""
    return type(estimator).__name__ in ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor")


def is_classifier(estimator: object) -> TypeGuard[ClassPredictor]:
    """Whether an estimator predicts probabilities of rewards, and not the reward itself."""
    return hasattr(estimator, "predict_proba")


def names_classes(estimator: object) -> bool:
    """Whether an estimator is a classifier that names the likeliest reward without probabilities, so that its mean is unknown."""
    if is_classifier(estimator):
        return False
    try:
        from sklearn.base import is_classifier as classifies

        return bool(classifies(estimator))
    except (ImportError, AttributeError):  # nothing of scikit-learn's
        return False


def predict_rewards(estimator: Predictor, table: Matrix) -> Floats:
    """The reward that a fitted estimator expects; for a classifier, the mean of the rewards it knows."""
    if not table.shape[0]:  # a fold without rows, which scikit-learn does not predict
        return np.empty(0)
    if is_classifier(estimator):
        classes = np.asarray(estimator.classes_, dtype=np.float64)
        return np.asarray(np.asarray(estimator.predict_proba(table), dtype=np.float64) @ classes)
    return np.asarray(estimator.predict(table), dtype=np.float64).reshape(-1)


def fit_estimator(
    estimator: P, table: Matrix, rewards: Floats, weights: Floats | None, categories: tuple[bool, ...] = ()
) -> P:
    """A fitted copy of an estimator."""
    made = fresh(estimator)
    if is_native(made) and made.categorical_features in (None, "from_dtype", "warn") and any(categories):
        made.set_params(categorical_features=list(categories))
    extra = {} if weights is None else {"sample_weight": weights}
    try:
        return made.fit(table, rewards, **extra)
    except TypeError as error:
        if weights is None:
            raise fit_error(made, error) from error
        raise OptionError(
            f"mrdr weighs rows in the fit, and {type(made).__name__} takes no sample_weight: choose another model."
        ) from error
    except CounterpoiseError:  # of an estimator that asks something of ours
        raise
    except ValueError as error:
        raise fit_error(made, error) from error


def check_rewards(estimator: object, rewards: Floats) -> None:
    """Check that there is something to learn, and that a classifier has few distinct rewards."""
    values = np.unique(rewards)
    if not len(values):
        raise LogError("no row has a reward, an action and a cluster to fit a model from.")
    if len(values) == 1:
        raise LogError(
            f"every reward that the model could learn from is {values[0]:g}: there is nothing to fit.",
            do="Leave out `model=`.",
        )
    if is_classifier(estimator) and len(values) > CLASSES:
        raise OptionError(
            f"{type(estimator).__name__} is a classifier, and the rewards have {len(values):,} different values.",
            do="Pass a regressor, such as Ridge() or HistGradientBoostingRegressor().",
        )


def fit_error(estimator: object, error: Exception) -> OptionError:
    """The error for an estimator that could not be fitted."""
    return OptionError(f"the model {type(estimator).__name__} cannot be fitted: {str(error).splitlines()[0]}")
