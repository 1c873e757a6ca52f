"""What a weight is to the rest of the library, and how a verb's `weight=` becomes one."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from counterpoise.errors import Argument, OptionError


@runtime_checkable
class Weight(Protocol):
    """A weight as arithmetic on columns; the same code runs on narwhals expressions and NumPy arrays.

    Rows are summed as u = w − 1, which keeps its digits when weights are near 1, so that is what a weight computes.
    """

    mean_is_one: bool  # under right propensities; the mean-weight test and the baseline's unbiasedness rest on it
    may_be_negative: bool
    needs_propensity: bool
    part: str  # what a target's column holds: "target", a probability, or "weight"

    def weight(self, target: Any, propensity: Any) -> Any:
        """w."""

    def excess(self, target: Any, propensity: Any) -> Any:
        """w − 1."""

    def difference(self, target: Any, other: Any, propensity: Any) -> Any:
        """The weight of one target minus that of another."""


def as_weight(weight: Any, target: Any) -> tuple[Weight, Any]:
    """The weight and the targets of a verb: text names a column of the user's own weights, which is then the target, too."""
    from counterpoise.weights.own import Own
    from counterpoise.weights.ratio import Ratio

    if weight is None:
        return Ratio(), target
    if isinstance(weight, Weight) and not isinstance(weight, type):
        return weight, target
    if isinstance(weight, type) or not isinstance(weight, str | list | tuple | dict):
        raise OptionError(
            f"weight is a column's name, or a method such as counterpoise.weights.Clip(10), or Slope(Clip) to let the log choose the "
            f"constant; found {weight!r}."
        )
    if target is not None:
        raise OptionError(
            "a weight of your own stands for the target, too.",
            do=["Pass ", Argument("weight"), " or ", Argument("target"), ", not both."],
        )
    return Own(), weight
