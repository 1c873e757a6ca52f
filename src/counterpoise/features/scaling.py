"""The mean and scale of every column of a table, part by part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.moments import Floats

VARIES = 1e-12  # of its mean: a column whose scale is smaller differs by rounding only


@dataclass(frozen=True)
class Scaling:
    """How many rows a table has, the mean of every column, and the sum of squares around it; those of two parts add up.

    Examples
    --------
    A column that never varies has scale 1, so that nothing is divided by 0:

    >>> scaling = Scaling.of([[1.0, 7.0]]) + Scaling.of([[2.0, 7.0], [3.0, 7.0]])
    >>> scaling.mean.tolist(), scaling.scale.round(3).tolist()
    ([2.0, 7.0], [0.816, 1.0])
    >>> scaling.standardized(np.array([[2.0, 8.0]])).tolist()
    [[0.0, 1.0]]

    References
    ----------
    Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1982.
    """

    rows: int
    mean: Floats
    scatter: Floats

    @classmethod
    def of(cls, table: Any) -> Scaling:
        """That of the rows of one table."""
        x = np.asarray(table, dtype=np.float64)
        if not len(x):
            return cls(0, np.zeros(x.shape[1]), np.zeros(x.shape[1]))
        with np.errstate(invalid="ignore"):
            mean = x.mean(axis=0)
            return cls(len(x), mean, np.square(x - mean).sum(axis=0))

    def __add__(self, other: Scaling) -> Scaling:
        rows = self.rows + other.rows
        if not rows:
            return self
        share = other.rows / rows
        # sums of squares around 0 would lose all digits of columns such as timestamps
        with np.errstate(
            invalid="ignore"
        ):  # what is not finite is refused elsewhere, and makes the mean and scale NaN here
            apart = other.mean - self.mean
            scatter = self.scatter + other.scatter + np.square(apart) * (self.rows * share)
            return Scaling(rows, self.mean + apart * share, scatter)

    @property
    def scale(self) -> Floats:
        """The standard deviations; 1 for a column that never varies."""
        scale = np.sqrt(self.scatter / max(self.rows, 1))
        return np.where(scale > VARIES * np.abs(self.mean), scale, 1.0)

    def leaving(self, columns: NDArray[np.bool_]) -> Scaling:
        """The same with mean 0 and scale 1 for some columns, which so stay as they are: standardized, a rare level would be a huge number.

        >>> Scaling.of([[0.0, 10.0], [1.0, 30.0]]).leaving(np.array([True, False])).standardized(np.array([[1.0, 30.0]])).tolist()
        [[1.0, 1.0]]
        """
        return replace(
            self, mean=np.where(columns, 0.0, self.mean), scatter=np.where(columns, float(self.rows), self.scatter)
        )

    def standardized(self, table: NDArray[Any]) -> Floats:
        """(x − mean) / scale."""
        return np.asarray((table - self.mean) / self.scale)
