"""scikit-learn's contract, kept without scikit-learn: `fit(X, y)`, `score`, and what its tools ask an estimator about itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from counterpoise.errors import Argument, OptionError
from counterpoise.evaluation.scoring import parts_of, value_scorer
from counterpoise.log.log import Log, LogFields

PREFIX = "logged "  # of the columns that join a frame of contexts


class NotFittedError(OptionError, AttributeError):
    """The learner has not learned anything yet: call `fit`. It is an `AttributeError`, too, so that `hasattr` works."""


class ScikitLearn:
    """What tools of scikit-learn ask for, beyond parameters: tags, whether it is fitted, and a score."""

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags  # only scikit-learn asks

        return Tags(estimator_type=None, target_tags=TargetTags(required=False))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "policy_")

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """The β-IPS value on rows that are not those of `fit`: see `value_scorer`."""
        return value_scorer(self, X, y)


def log_of(X: Any, y: Any, given: LogFields) -> Log:  # noqa: N803
    """The log of scikit-learn's X and y: all columns of X are the context, and y has the rest; `given` are further parts of it."""
    parts = parts_of(y)
    twice = [part for part in given if part in parts or part == "context"]
    if twice:
        raise OptionError(["X and y already say what ", Argument(twice[0]), " is."], do="Leave it out.")
    names = list(getattr(X, "columns", ()))
    if names and all(isinstance(name, str) for name in names):
        return _log_of_frame(X, names, parts, given)
    if hasattr(X, "toarray"):
        raise OptionError(
            "X is a sparse matrix, and contexts must be dense.",
            do="Pass X.toarray(), or sparse_output=False to the encoder.",
        )
    table = X if hasattr(X, "shape") else np.asarray(X)
    if len(table.shape) != 2:
        raise OptionError(f"X must be a table of contexts, a row for each; found shape {tuple(table.shape)}.")
    found: Any = {"context": np.asarray(table)} | parts | given
    return Log(None, **found)


def _log_of_frame(X: Any, names: list[str], parts: dict[str, Any], given: LogFields) -> Log:  # noqa: N803
    import narwhals as nw

    joined = {part: f"{PREFIX}{part}" for part in parts}
    clash = [name for name in joined.values() if name in names]
    if clash:
        raise OptionError(f"a column of X is called {clash[0]!r}, as we call one of y.", do="Rename it.")
    frame = nw.from_native(X, eager_only=True)
    columns = [nw.new_series(joined[part], values, backend=frame.implementation) for part, values in parts.items()]
    found: Any = {"context": names} | joined | given
    return Log(frame.with_columns(*columns).to_native(), **found)
