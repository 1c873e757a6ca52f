"""How a verb's `weight=` becomes a weight."""

from __future__ import annotations

from typing import Any

from counterpoise.errors import Argument, OptionError
from counterpoise.weights.own import Own
from counterpoise.weights.ratio import Ratio
from counterpoise.weights.weight import Weight


def as_weight(weight: Any, target: Any) -> tuple[Weight, Any]:
    """The weight and the targets of a verb: text names a column of the user's own weights, which is then the target, too."""
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
