"""Weights, each of which turns a row's columns into w and knows what the mean of w should be."""

from typing import TYPE_CHECKING

from counterpoise.errors import OptionError, did_you_mean, warn_of_old_name
from counterpoise.weights.biased import (
    Clip,
    ExponentialSmoothing,
    Harmonic,
    ImplicitExploration,
    Odds,
    Shrink,
    Slope,
    Switch,
)
from counterpoise.weights.lists import (
    EPISODE_WEIGHTS,
    LIST_WEIGHTS,
    Cascade,
    Independent,
    ListWeight,
    PerDecision,
    PseudoInverse,
    Standard,
    Trajectory,
    list_weight,
)
from counterpoise.weights.weight import Balanced, Importance, Own, Weight, as_weight

__all__ = [
    "WEIGHTS",
    "Balanced",
    "Cascade",
    "Clip",
    "ExponentialSmoothing",
    "Harmonic",
    "ImplicitExploration",
    "Importance",
    "Independent",
    "ListWeight",
    "Odds",
    "Own",
    "PerDecision",
    "PseudoInverse",
    "Shrink",
    "Slope",
    "Standard",
    "Switch",
    "Trajectory",
    "Weight",
    "as_weight",
    "list_weight",
    "weight_of",
]

# -- Weights by their names, as a command line has them: `clip:10`, `shrink:slope`, `harmonic:0.01,0.1` ------------------

WeightClass = type[Clip | Shrink | Switch | Harmonic | ExponentialSmoothing | ImplicitExploration]
WEIGHTS: dict[str, WeightClass] = {
    "clip": Clip,
    "shrink": Shrink,
    "switch": Switch,
    "harmonic": Harmonic,
    "exponential_smoothing": ExponentialSmoothing,
    "implicit_exploration": ImplicitExploration,
}
SLOPE = "slope"


def weight_of(text: str) -> Weight:
    """The weight that a name and its constant stand for; `slope`, or several constants, let the log choose.

    >>> weight_of("clip:10"), weight_of("exponential-smoothing:0.8")
    (Clip(most=10.0), ExponentialSmoothing(power=0.8))
    >>> weight_of("shrink:10,1000")
    Slope(kind=<class 'counterpoise.weights.biased.Shrink'>, constants=(1000.0, 10.0))
    """
    name, _, said = text.partition(":")
    key = name.strip().lower().replace("-", "_")
    whole = LIST_WEIGHTS | EPISODE_WEIGHTS
    if key in whole and not said:
        return whole[key]()
    if key not in WEIGHTS:
        known = [*WEIGHTS, *whole]
        raise OptionError(f"no weight {name!r}; choose from {', '.join(known)}.", suggestion=did_you_mean(key, known))
    kind = WEIGHTS[key]
    if said.strip().lower() == SLOPE:
        return Slope(kind)
    try:
        constants = [float(constant) for constant in said.split(",")]
    except ValueError:
        raise OptionError(
            f"the weight {text!r} needs a constant: write {key}:{kind.ladder[5]:g}, or {key}:slope to let the log choose one."
        ) from None
    return kind(constants[0]) if len(constants) == 1 else Slope(kind, constants)


if not TYPE_CHECKING:

    def __getattr__(name):
        if name != "Ratio":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warn_of_old_name("weights.Ratio", "weights.Importance")
        return Importance
