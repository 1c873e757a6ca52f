"""What a weight is to the rest of the library."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Protocol, runtime_checkable

from counterpoise.log.good import Values


@runtime_checkable
class Weight(Protocol):
    """A weight as arithmetic on columns; the same code runs on narwhals expressions and NumPy arrays.

    For one of your own, inherit from it, give it a `weight`, and change what else is different. Rows are summed as u = w − 1: a weight
    that is often near 1 keeps its digits with an `excess` of its own.

    Examples
    --------
    >>> class Halfway(Weight):
    ...     mean_is_one = True
    ...
    ...     def weight(self, target, propensity):
    ...         return (target / propensity + 1) / 2
    >>> Halfway().excess(0.75, 0.25), Halfway()
    (1.0, Halfway())
    """

    mean_is_one: ClassVar[bool] = False  # under right propensities; the mean-weight test rests on it
    may_be_negative: ClassVar[bool] = False
    needs_propensity: ClassVar[bool] = True
    part: ClassVar[str] = "target"  # what a target's column holds: "target", a probability, or "weight"

    @abstractmethod
    def weight(self, target: Values, propensity: Values) -> Values:
        """w."""

    def excess(self, target: Values, propensity: Values) -> Values:
        """w − 1."""
        return self.weight(target, propensity) - 1.0

    def difference(self, target: Values, other: Values, propensity: Values) -> Values:
        """The weight of one target minus that of another."""
        return self.weight(target, propensity) - self.weight(other, propensity)

    def is_zero(self, target: Values) -> Values:
        """Where the weight is 0."""
        return target == 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
