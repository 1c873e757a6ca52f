"""Logged feedback as scikit-learn passes it around, and the scorer that evaluates policies by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterpoise.errors import ColumnError, OptionError
from counterpoise.estimators import ESTIMATORS
from counterpoise.evaluation.estimates import IntervalOptions, Quantities
from counterpoise.evaluation.evaluate import evaluate
from counterpoise.evaluation.view import View
from counterpoise.log.parts import Columns, FrameLike
from counterpoise.readers.policies import ActionTable, logged_probabilities

NEEDED = ("action", "reward", "propensity")
OPTIONAL = ("cluster",)


def logged(
    action: ArrayLike, reward: ArrayLike, propensity: ArrayLike, *, cluster: ArrayLike | None = None
) -> NDArray[np.void]:
    """What was logged with every context, as one array: the `y` of scikit-learn's `fit(X, y)`.

    It is a structured array, so anything that splits rows can split it. A frame with columns of these names works, too.

    Examples
    --------
    >>> y = logged(action=[0, 1, 1], reward=[1, 0, 1], propensity=[0.5, 0.5, 0.25])
    >>> y[[0, 2]]["propensity"].tolist()
    [0.5, 0.25]
    """
    parts = {"action": action, "reward": reward, "propensity": propensity, "cluster": cluster}
    columns = {name: np.asarray(column) for name, column in parts.items() if column is not None}
    sizes = {name: column.shape for name, column in columns.items()}
    if any(len(size) != 1 for size in sizes.values()) or len(set(sizes.values())) > 1:
        shapes = ", ".join(f"{name} has shape {size}" for name, size in sizes.items())
        raise ColumnError(f"what was logged must be columns with the same number of rows, and {shapes}.")
    records = np.empty(len(columns["action"]), dtype=[(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        records[name] = column
    return records


def parts_of(y: Any) -> dict[str, Any]:
    """The parts of a log in what `logged` returns, or in a frame or mapping with columns of those names."""
    fields = getattr(getattr(y, "dtype", None), "names", None)
    if fields is None:
        fields = y.columns if hasattr(y, "columns") else y if isinstance(y, Mapping) else ()
    names = list(fields)
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise OptionError(
            f"y must have what was logged: {', '.join(NEEDED)}; {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing.",
            do="Pass y=cp.logged(action, reward, propensity), or a frame with columns of these names. If propensities were not logged, "
            "pass a log instead, with `propensity='model'`.",
        )
    return {name: np.asarray(y[name]) for name in (*NEEDED, *OPTIONAL) if name in names}


def value_scorer(
    policy: Any,
    X: ArrayLike | FrameLike,  # noqa: N803
    y: Columns | FrameLike,
    *,
    estimator: str = "beta_ips",
    bound: Literal["lower", "upper"] | None = None,
    level: float = 0.95,
) -> float:
    """What a fitted policy would have earned on held-out rows: a scorer for `GridSearchCV`, `cross_val_score` and others.

    The policy is anything with `predict_proba` and `classes_`: a `PolicyLearner`, a pipeline that ends in one, a classifier. `y`
    is what `logged` returns. The score is off-policy: an `estimator` of `ESTIMATORS`, or the `bound` of its interval; the lower
    one prefers policies that the log can say something about. Pass options with `functools.partial`:
    ``scoring=partial(cp.value_scorer, bound="lower")``.

    An action that the policy does not know has probability 0.

    Examples
    --------
    >>> class Careful:
    ...     classes_ = np.array(["buy", "wait"])
    ...     def predict_proba(self, X):
    ...         return np.tile([0.25, 0.75], (len(X), 1))
    >>> y = logged(["buy", "wait", "wait", "buy"] * 50, [1, 0, 1, 1] * 50, [0.5] * 200)
    >>> value_scorer(Careful(), np.zeros((200, 1)), y)
    0.625
    >>> value_scorer(Careful(), np.zeros((200, 1)), y, bound="lower") < 0.625
    True
    """
    if bound not in (None, "lower", "upper"):
        raise OptionError(f"`bound=` must be 'lower', 'upper' or None; found {bound!r}.")
    parts = parts_of(y)
    table = np.asarray(policy.predict_proba(X), dtype=np.float64)
    target = logged_probabilities(ActionTable(np.asarray(policy.classes_), table), parts.pop("action"))
    result = evaluate(target={"policy": target}, estimator=estimator, level=level, **parts)
    if bound is None:
        return float(result["policy", estimator].value)
    # wherever rewards end, so that policies of which the log says little do not all have the same score
    options = IntervalOptions.of(result)
    quantities = Quantities(View(result.moments, ("policy", "")), {estimator: ESTIMATORS[estimator]}, options)
    return float(getattr(quantities.at(estimator).endless.interval(), bound))
